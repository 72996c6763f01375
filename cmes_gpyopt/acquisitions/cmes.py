"""Constrained max-value entropy search.

References
----------
Perrone, Shcherbatyi, Jenatton, Archambeau and Seeger (2020), Constrained Bayesian optimization with max-value
entropy search.
Takeno, Tamura, Shitara and Karasuyama (2022), Sequential and parallel constrained max-value entropy search via
information lower bound: the divergence used here reduces to their bound for real-valued feedback.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from .._gpyopt import Design_space
from ..entropy import (
    Outcomes,
    Partials,
    entropy_difference,
    entropy_mixture,
    kl_divergence,
    kl_if_feasible,
    product_outcomes,
    split_partials,
)
from ..errors import CMESError
from ..feedback import logistic_outcomes, probit_outcomes
from ..models import ConstrainedModel, Moments, RealConstraint
from ..optima import candidate_grid, joint_optima, marginal_optima, pathwise_optima
from .base import GRID_STREAM, OPTIMA_STREAM, ConstrainedAcquisition

Array = npt.NDArray[np.float64]

# The product table of outcomes has 2**J rows.
MAX_BINARY = 8

PRESETS: dict[str | None, dict[str, Any]] = {
    None: {"confidence": 0.5, "estimator": "entropy", "table": "exact", "ystar_cap": 3e-3},
    "paper": {"confidence": 0.9, "estimator": "entropy", "table": "laplace", "ystar_cap": -np.inf},
}


class ConstrainedMES(ConstrainedAcquisition):
    """Information that an evaluation gives about the constrained optimum y*.

    Parameters
    ----------
    model, space, optimizer, cost_withGradients
        As for GPyOpt acquisitions; ``ConstrainedMES.for_domain(domain)`` builds them.
    confidence : float, default 0.5
        p in (0, 1): a point counts towards y* where P(infeasible | latent) <= p. It matters for binary
        constraints only; 0.1 is strict, 0.9 lax.
    num_samples : int
        Draws of y* to average over.
    grid_size : int
        Points over which y* is sought.
    estimator : {"entropy", "mixture", "kl"}, default "entropy"
        "entropy" is the paper's difference of entropies; "mixture" its second suggestion for objectives that are
        seen only where the evaluation is feasible; "kl" the divergence KL[P(o | y*) || P(o)] of what is observed,
        never negative.
    sampler : {"joint", "marginal", "pathwise"}
        How y* is drawn over the grid: jointly, as in the paper; as if all values were independent, which drives y* too
        low; or by minimising sample paths, for spaces in which a grid is too coarse.
    objective_observed : {"feasible", "always"}
        Whether a failed evaluation still reports its objective value.
    table : {"exact", "laplace"}, default "exact"
        Probabilities of the labels of a logistic constraint by quadrature, or by the paper's approximation.
    ystar_cap : float, default 3e-3
        Draws of y* are capped this far below the best feasible value, in standard deviations of the observed
        values: without noise the incumbent itself would otherwise stay worth evaluating for ever. -inf is no cap.
    preset : {None, "paper"}
        "paper" changes the defaults above to the paper's: confidence 0.9, estimator "entropy" for every draw, the
        laplace table and no cap.
    seed : int
        See :class:`ConstrainedAcquisition`.

    Notes
    -----
    A draw with no feasible point has y* = +inf. The binary entropy difference then falls with the probability of
    feasibility, so such draws are scored with the divergence, except with ``preset="paper"``.
    """

    def __init__(
        self,
        model: ConstrainedModel,
        space: Design_space,
        optimizer: Any = None,
        cost_withGradients: Any = None,
        *,
        confidence: float | None = None,
        num_samples: int = 10,
        grid_size: int = 2000,
        estimator: str | None = None,
        sampler: str = "joint",
        objective_observed: str = "feasible",
        table: str | None = None,
        ystar_cap: float | None = None,
        preset: str | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(model, space, optimizer, cost_withGradients, seed=seed)
        self.preset = _one_of("preset", preset, tuple(PRESETS))
        defaults = PRESETS[preset]
        self.confidence = _number("confidence", defaults["confidence"] if confidence is None else confidence)
        self.ystar_cap = _number("ystar_cap", defaults["ystar_cap"] if ystar_cap is None else ystar_cap)
        self.estimator = _one_of("estimator", estimator or defaults["estimator"], ("entropy", "mixture", "kl"))
        self.table = _one_of("table", table or defaults["table"], ("exact", "laplace"))
        self.objective_observed = _one_of("objective_observed", objective_observed, ("feasible", "always"))
        self.sampler = _one_of("sampler", sampler, ("joint", "marginal", "pathwise"))
        self.num_samples = _positive_integer("num_samples", num_samples)
        self.grid_size = _positive_integer("grid_size", grid_size)
        if not 0.0 < self.confidence < 1.0:
            raise CMESError(f"confidence must lie strictly between 0 and 1, got {confidence!r}")
        binary = sum(constraint.binary for constraint in model.constraints)
        if binary > MAX_BINARY:
            raise CMESError(
                f"at most {MAX_BINARY} binary constraints are supported, got {binary}; combine labels that fail together"
            )
        if self.estimator == "mixture" and (objective_observed != "feasible" or not binary):
            raise CMESError(
                "estimator='mixture' is for binary feedback with an objective that is seen only where the evaluation "
                "is feasible; pass another estimator"
            )
        self.y_star: Array = np.empty(0)

    def _prepare(self) -> None:
        model = self.model
        grid = candidate_grid(self.space, self.grid_size, model.data.X, self._generator(GRID_STREAM))
        rng = self._generator(OPTIMA_STREAM)
        latents = (model.objective, model.constraints, self.thresholds, grid, self.num_samples, rng)
        if self.sampler == "pathwise":
            self.y_star = pathwise_optima(*latents, self.space)[1]
        else:
            self.y_star = (joint_optima if self.sampler == "joint" else marginal_optima)(*latents)

    @property
    def thresholds(self) -> list[float]:
        """Latent values delta_j up to which each constraint counts as satisfied."""
        return [c.threshold(self.confidence) for c in self.model.constraints]

    @property
    def scored_optima(self) -> Array:
        """The draws of y* that enter the score, (K,): capped, in standardised units."""
        return np.asarray(np.minimum(self.y_star, self.model.standardised_fmin() - self.ystar_cap))

    def _scores(self, X: Array, grad: bool) -> Any:
        observation = _Observation(self.model, X, self.thresholds, self.table, grad)
        y_star = self.scored_optima
        finite = np.isfinite(y_star)
        share = 1.0 / len(y_star)
        divergence = self._kernel("kl")
        groups = [(y_star[finite], self._kernel(self.estimator), share)]
        if not finite.all():
            # All draws without a feasible point are alike: one row, counted as often as it occurred.
            kernel = self._kernel("entropy") if self.preset == "paper" else divergence
            groups.append((np.array([np.inf]), kernel, share * float((~finite).sum())))
        return observation.total([group for group in groups if len(group[0])])

    def _kernel(self, estimator: str) -> "Kernel":
        if estimator == "mixture":
            return partial(_split_feasible, entropy_mixture)
        if estimator == "kl" and self.objective_observed == "feasible":
            return partial(_split_feasible, kl_if_feasible)
        return partial(_all_seen, kl_divergence if estimator == "kl" else entropy_difference)


Kernel = Callable[[Array, list[Array], Outcomes | None, bool], Any]


def _all_seen(kernel: Any, gamma_y: Array, gammas: list[Array], outcomes: Outcomes | None, grad: bool) -> Any:
    """A kernel whose gates are all seen on every row: y first, then the real constraints."""
    return kernel([gamma_y, *gammas], outcomes, grad=grad)


def _split_feasible(kernel: Any, gamma_y: Array, gammas: list[Array], outcomes: Outcomes | None, grad: bool) -> Any:
    """A kernel whose objective is seen on the feasible row only, which comes first in every table."""
    if outcomes is None:
        # With real-valued constraints alone an infeasible y cannot matter: it is as good as seen.
        return _all_seen(kl_divergence, gamma_y, gammas, None, grad)
    feasible = np.arange(len(outcomes.log_q)) == 0
    if not grad:
        return kernel([gamma_y], outcomes, feasible, gammas)
    value, partials = kernel([gamma_y], outcomes, feasible, gammas, grad=True)
    return value, Partials([*partials.gammas, *partials.always], partials.outcomes)


class _Observation:
    """What an evaluation at X would show: latent moments, real-valued gates and the table of binary outcomes."""

    def __init__(self, model: ConstrainedModel, X: Array, thresholds: list[float], table: str, grad: bool) -> None:
        self.grad = grad
        self.objective = model.objective.moments(X, grad=grad)
        self.gates: list[tuple[Moments, Array]] = []
        self.tables: list[tuple[Moments, Outcomes, Any, Any]] = []
        for constraint, threshold in zip(model.constraints, thresholds, strict=True):
            m = constraint.moments(X, grad=grad)
            if isinstance(constraint, RealConstraint):
                self.gates.append((m, ((threshold - m.mean) / m.std)[None, :]))
                continue
            outcomes = probit_outcomes if constraint.link == "probit" else partial(logistic_outcomes, method=table)
            if grad:
                self.tables.append((m, *outcomes(m.mean, m.std, threshold, grad=True)))
            else:
                self.tables.append((m, outcomes(m.mean, m.std, threshold), None, None))
        self.outcomes = product_outcomes([t[1] for t in self.tables]) if self.tables else None

    def total(self, groups: list[tuple[Array, Kernel, float]]) -> Any:
        """Sum over groups of draws (y* (k,), kernel, weight of a draw) of the weighted scores, (n,); with gradient."""
        value = np.zeros(len(self.objective.mean))
        gradient = np.zeros_like(self.objective.d_mean) if self.grad else None
        by_outcome: Any = None
        gammas = [gamma for _, gamma in self.gates]
        for y_star, kernel, weight in groups:
            gamma_y = (y_star[:, None] - self.objective.mean) / self.objective.std  # (k, n)
            result = kernel(gamma_y, gammas, self.outcomes, self.grad)
            score, partials = result if self.grad else (result, None)
            with np.errstate(over="ignore"):  # a score may be the largest double
                value = np.minimum(value + (weight * score).sum(axis=0), np.finfo(float).max)
            if gradient is None or partials is None:
                continue
            latents = [(self.objective, gamma_y), *self.gates]
            for (m, gamma), slope in zip(latents, partials.gammas, strict=True):
                gradient += _through_gate(m, gamma, weight * slope)
            if self.outcomes is not None:
                parts = Outcomes(*(weight * field.sum(axis=1, keepdims=True) for field in partials.outcomes))
                by_outcome = parts if by_outcome is None else Outcomes(*map(np.add, by_outcome, parts))
        if gradient is None:
            return value
        if by_outcome is not None:
            gradient += self._through_tables(by_outcome)
        return value, gradient

    def _through_tables(self, by_outcome: Outcomes) -> Array:
        """Gradient (n, d) from partial derivatives (R, 1, n) with respect to the product table."""
        gradient: Any = 0.0
        pieces = split_partials([t[1] for t in self.tables], by_outcome)
        for (m, _, d_mean, d_std), piece in zip(self.tables, pieces, strict=True):
            by_mean, by_std = (
                np.sum([(p * d).sum(axis=(0, 1)) for p, d in zip(piece, slopes, strict=True)], axis=0)
                for slopes in (d_mean, d_std)
            )
            gradient = gradient + by_mean[:, None] * m.d_mean + by_std[:, None] * m.d_std
        return np.asarray(gradient)


def _through_gate(m: Moments, gamma: Array, slope: Array) -> Array:
    """Gradient (n, d) of a score with partial derivatives ``slope`` (k, n) by gamma = (limit - mean) / std (k, n)."""
    assert m.d_mean is not None and m.d_std is not None
    by_mean = -slope.sum(axis=0) / m.std
    # Where the limit is infinite the slope is zero.
    by_std = -(slope * np.where(np.isfinite(gamma), gamma, 0.0)).sum(axis=0) / m.std
    return np.asarray(by_mean[:, None] * m.d_mean + by_std[:, None] * m.d_std)


def _one_of(name: str, value: Any, allowed: tuple[Any, ...]) -> Any:
    if value not in allowed:
        raise CMESError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}")
    return value


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or np.isnan(value):
        raise CMESError(f"{name} must be a number, got {value!r}")
    return float(value)


def _positive_integer(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise CMESError(f"{name} must be a positive integer, got {value!r}")
    return int(value)
