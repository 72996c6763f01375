"""Pictures of a search; needs matplotlib (``pip install 'cmes_gpyopt[plot]'``)."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from .driver import ConstrainedBayesianOptimization
from .problems import Problem

RESOLUTION = 161


def plot_search_2d(axes: Sequence[Any], bo: ConstrainedBayesianOptimization, problem: Problem, title: str) -> None:
    """Draw a search in two dimensions: the true objective, the probability of feasibility and the acquisition.

    Parameters
    ----------
    axes : three matplotlib axes
    bo : ConstrainedBayesianOptimization
        After a run; its model is brought up to date.
    problem : Problem
        Supplies the true surface and the true edge of the feasible region.
    title : str
        Shown beside the row.
    """
    (low_1, high_1), (low_2, high_2) = (v["domain"] for v in problem.domain)
    x1, x2 = np.linspace(low_1, high_1, RESOLUTION), np.linspace(low_2, high_2, RESOLUTION)
    grid = np.column_stack([a.ravel() for a in np.meshgrid(x1, x2)])
    shape = (RESOLUTION, RESOLUTION)

    truth = problem.objective(grid).reshape(shape)
    inside = problem.feasible(grid).reshape(shape)
    suggestion = bo.suggest_next_locations()
    probability = bo.model.probability_feasible(grid).reshape(shape)
    score = -bo.acquisition.acquisition_function(grid).reshape(shape)

    surfaces = (
        ("objective", np.minimum(truth, 2.5), "viridis_r", None),
        ("probability of feasibility", probability, "RdYlGn", (0.0, 1.0)),
        ("acquisition", score, "magma", None),
    )
    for ax, (label, surface, colours, limits) in zip(axes, surfaces, strict=True):
        low, high = limits or (surface.min(), surface.max())
        if low == high:
            high = low + 1.0
        picture = ax.contourf(x1, x2, surface, np.linspace(low, high, 41), cmap=colours, extend="both")
        ax.figure.colorbar(picture, ax=ax, fraction=0.046, pad=0.03, format="%.2g")
        ax.contour(x1, x2, inside, [0.5], colors="white", linewidths=1.0)
        ax.set(title=label, xlabel=problem.domain[0]["name"], aspect="equal")
        ax.plot(*suggestion[0], "*", color="deepskyblue", markersize=13, markeredgecolor="black", label="next")
    _mark_evaluations(axes, bo)
    axes[0].set_ylabel(f"{title}\n{problem.domain[1]['name']}")
    axes[0].plot(*problem.x_opt, "+", color="red", markersize=12, markeredgewidth=2, label="global optimum")
    axes[0].legend(loc="lower right", fontsize=7, framealpha=0.9)


def _mark_evaluations(axes: Sequence[Any], bo: ConstrainedBayesianOptimization) -> None:
    """Number the evaluations in their order: black on white where feasible, white on black where not."""
    feasible = bo.feasible
    for ax in axes:
        for order, (point, good) in enumerate(zip(bo.X, feasible, strict=True), start=1):
            colour, back = ("black", "white") if good else ("white", "black")
            box = {"boxstyle": "circle,pad=0.12", "fc": back, "ec": colour, "lw": 0.5, "alpha": 0.85}
            ax.text(*point, str(order), fontsize=5.5, ha="center", va="center", color=colour, bbox=box)
