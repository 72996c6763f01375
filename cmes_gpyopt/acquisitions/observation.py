"""What an evaluation would show, and its score with gradients with respect to the point.

This is where latent moments, the kernels of ``entropy`` and ``noisy`` and the outcome tables of ``feedback`` meet: no
formula but the chain rule.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..entropy import (
    Outcomes,
    entropy_difference,
    entropy_mixture,
    kl_divergence,
    kl_if_feasible,
    product_outcomes,
    split_partials,
    unobserved_partials,
    with_unobserved,
)
from ..feedback import logistic_outcomes, probit_outcomes, rough_outcomes
from ..models import Constraint, Moments, RealConstraint, Regression
from ..noisy import kl_noisy
from ..normal import hazard, log_cdf

Array = npt.NDArray[np.float64]

NOTHING_DISCRETE = Outcomes(np.zeros((1, 1, 1)), np.zeros((1, 1, 1)), np.full((1, 1, 1), -np.inf))
"""The table of one row: Q = F = 1."""


Index = npt.NDArray[np.int_]


def _rows(array: Array, which: Index) -> Array:
    """The draws ``which`` (k,) of an array (..., K, n); all of an array (..., 1, n), which is the same for every draw."""
    return array if array.shape[-2] == 1 else array[..., which, :]


def _to_rows(array: Array, which: Index, count: int) -> Array:
    """The reverse of :func:`_rows` for partial derivatives (..., k, n): (..., count, n), summed over draws if count is 1."""
    if count == 1:
        return np.asarray(array.sum(axis=-2, keepdims=True))
    full = np.zeros((*array.shape[:-2], count, array.shape[-1]))
    full[..., which, :] = array
    return full


@dataclass(frozen=True)
class Gate:
    """The event that a latent quantity stays below a limit, at n points and for k draws."""

    moments: Moments
    limit: Array
    """broadcastable to (k, n)"""
    which: Index
    """(k,), the draws: where the moments differ between draws, those of these draws are meant"""
    noise: float = 0.0
    """variance of the noise through which the quantity is observed"""

    @property
    def gamma(self) -> Array:
        """(limit - mean) / std, (k, n) or (1, n)."""
        mean = _rows(np.atleast_2d(self.moments.mean), self.which)
        return np.asarray((self.limit - mean) / self.moments.std)

    @property
    def rho(self) -> Array:
        """Correlation std / sqrt(std^2 + noise) of the quantity and what is seen of it, (1, n)."""
        std = self.moments.std[None, :]
        return np.asarray(std / np.sqrt(std**2 + self.noise))

    def chain(self, by_gamma: Array, by_rho: Array | None = None) -> Array:
        """Gradient (n, d) of a score with partial derivatives (k, n) by gamma and by rho."""
        m = self.moments
        gamma = self.gamma
        # Where the limit is infinite the slope is zero.
        by_std = -(by_gamma * np.where(np.isfinite(gamma), gamma, 0.0)).sum(axis=0) / m.std
        if by_rho is not None:
            by_std = by_std + by_rho.sum(axis=0) * self.noise / (m.std**2 + self.noise) ** 1.5
        count = len(np.atleast_2d(m.mean))
        return m.pullback(_to_rows(-by_gamma / m.std, self.which, count), by_std)


class Slopes(NamedTuple):
    """Partial derivatives of a score: gates with their slopes by gamma and rho, and those by the table."""

    gates: list[tuple[Gate, Array, Array | None]]
    outcomes: Outcomes | None


class Table(NamedTuple):
    """The outcome table of one binary constraint, with its partial derivatives if they were asked for."""

    moments: Moments
    outcomes: Outcomes
    d_mean: Outcomes | None = None
    d_std: Outcomes | None = None


class Observation:
    """What an evaluation at X would show.

    Parameters
    ----------
    objective : Regression
    constraints : sequence of J constraints
        These and the objective may have been conditioned on K sets of values, one for each draw of y*.
    X : array of shape (n, d)
    thresholds : sequence of J floats
        Latent values up to which each constraint holds.
    target : str
        "joint", "objective", or the name of a constraint: what is evaluated. The rest stays hidden.
    objective_observed : {"feasible", "always"}
        Whether a joint evaluation shows the objective where a label says infeasible.
    table : {"exact", "laplace", "rough"}
        "rough" has no gradient.
    noise : {"ignore", "point", "exact"}
    grad : bool
    """

    def __init__(
        self,
        objective: Regression,
        constraints: Sequence[Constraint],
        X: Array,
        thresholds: Sequence[float],
        *,
        target: str,
        objective_observed: str,
        table: str,
        noise: str,
        grad: bool,
    ) -> None:
        self.grad, self.noise = grad, noise
        self.objective = objective.moments(X, grad=grad)
        self.objective_noise = 0.0 if noise == "ignore" else objective.noise
        self.objective_seen = target in ("joint", "objective")
        self.only_if_feasible = target == "joint" and objective_observed == "feasible"
        self.gates: list[Gate] = []
        self.hidden: list[Gate] = []
        self.tables: list[Table] = []
        everything = np.arange(0)
        for constraint, threshold in zip(constraints, thresholds, strict=True):
            m = constraint.moments(X, grad=grad)
            if target not in ("joint", constraint.name):
                self.hidden.append(Gate(m, np.array(threshold), everything))
            elif isinstance(constraint, RealConstraint):
                seen_through = 0.0 if noise == "ignore" else constraint.noise
                self.gates.append(Gate(m, np.array(threshold), everything, seen_through))
            else:
                self.tables.append(_table(m, constraint.link, threshold, table, grad))
        self.outcomes = product_outcomes([t.outcomes for t in self.tables]) if self.tables else None

    def total(self, groups: Sequence[tuple[Array, Index, str, float]]) -> Any:
        """Weighted sum of scores (n,), and its gradient (n, d) if it was asked for.

        Parameters
        ----------
        groups : sequence of (y_star, which, estimator, weight)
            Draws of y* (k,), their numbers among all K draws (k,), how they are scored, and the weight of each.
        """
        value = np.zeros(len(self.objective.std))
        gradient: Any = np.zeros_like(self.objective.d_std) if self.grad else None
        by_outcome = None if self.outcomes is None else Outcomes(*map(np.zeros_like, self.outcomes))
        for y_star, which, estimator, weight in groups:
            y = Gate(self.objective, y_star[:, None], which, self.objective_noise)
            score, slopes = self._score(y, which, estimator)
            with np.errstate(over="ignore"):  # a score may be the largest double
                value = np.minimum(value + (weight * score).sum(axis=0), np.finfo(float).max)
            if slopes is None:
                continue
            for gate, by_gamma, by_rho in slopes.gates:
                gradient += weight * gate.chain(by_gamma, by_rho)
            if by_outcome is not None and slopes.outcomes is not None:
                count = by_outcome.log_q.shape[1]
                parts = (weight * _to_rows(field, which, count) for field in slopes.outcomes)
                by_outcome = Outcomes(*map(np.add, by_outcome, parts))
        if not self.grad:
            return value
        return value, gradient if by_outcome is None else gradient + self._through_tables(by_outcome)

    def _score(self, y: Gate, which: Index, estimator: str) -> tuple[Array, Slopes | None]:
        """Scores (k, n) of draws of y*, and their partial derivatives if they were asked for."""
        gates = [replace(gate, which=which) for gate in self.gates]
        hidden = [replace(gate, which=which) for gate in self.hidden]
        seen, hidden = ([y, *gates], hidden) if self.objective_seen else (gates, [y, *hidden])
        outcomes = None if self.outcomes is None else Outcomes(*(_rows(field, which) for field in self.outcomes))
        rows = _fold(outcomes, hidden)
        kernel = self._exact_noise if self.noise == "exact" and estimator == "kl" else self._closed_form
        value, slopes, by_rows = kernel(estimator, seen, rows[-1] if rows else None)
        if not self.grad:
            return value, None
        by_hidden, by_table = _unfold(rows, hidden, by_rows)
        return value, Slopes(slopes + by_hidden, None if outcomes is None else by_table)

    def _closed_form(self, estimator: str, seen: list[Gate], rows: Outcomes | None) -> Any:
        gammas = [gate.gamma / gate.rho if self.noise == "point" else gate.gamma for gate in seen]
        split = self.only_if_feasible and rows is not None and estimator != "entropy"
        if split and rows is not None:
            kernel: Any = entropy_mixture if estimator == "mixture" else kl_if_feasible
            arguments: tuple[Any, ...] = (gammas[:1], rows, _first_row(rows), gammas[1:])
        else:
            kernel, arguments = (kl_divergence if estimator == "kl" else entropy_difference), (gammas, rows)
        if not self.grad:
            return kernel(*arguments), [], None
        value, partials = kernel(*arguments, grad=True)
        slopes = [*partials.gammas, *partials.always]
        gates = [(g, *self._point_slopes(g, slope)) for g, slope in zip(seen, slopes, strict=True)]
        return value, gates, partials.outcomes

    def _point_slopes(self, gate: Gate, slope: Array) -> tuple[Array, Array | None]:
        """Slopes by gamma and rho of a score that was given gamma / rho."""
        if self.noise != "point":
            return slope, None
        gamma = np.where(np.isfinite(gate.gamma), gate.gamma, 0.0)
        return slope / gate.rho, -slope * gamma / gate.rho**2

    def _exact_noise(self, estimator: str, seen: list[Gate], rows: Outcomes | None) -> Any:
        gammas, rhos = [gate.gamma for gate in seen], [gate.rho for gate in seen]
        options: dict[str, Any] = {}
        if self.only_if_feasible and rows is not None:
            options = {"feasible": _first_row(rows), "always": gammas[1:], "always_rhos": rhos[1:]}
            gammas, rhos = gammas[:1], rhos[:1]
        if not self.grad:
            return kl_noisy(gammas, rhos, rows, **options), [], None
        value, partials = kl_noisy(gammas, rhos, rows, **options, grad=True)
        slopes = zip(seen, [*partials.gammas, *partials.always], [*partials.rhos, *partials.always_rhos], strict=True)
        return value, list(slopes), partials.outcomes

    def _through_tables(self, by_outcome: Outcomes) -> Array:
        """Gradient (n, d) from partial derivatives (R, K or 1, n) with respect to the product table."""
        gradient: Any = 0.0
        pieces = split_partials([t.outcomes for t in self.tables], by_outcome)
        for table, piece in zip(self.tables, pieces, strict=True):
            by_mean, by_std = (
                np.sum([(p * d).sum(axis=0) for p, d in zip(piece, slopes or (), strict=True)], axis=0)
                for slopes in (table.d_mean, table.d_std)
            )
            count = len(np.atleast_2d(table.moments.mean))
            by_mean = by_mean if len(by_mean) == count else by_mean.sum(axis=0, keepdims=True)
            gradient = gradient + table.moments.pullback(by_mean, by_std.sum(axis=0))
        return np.asarray(gradient)


def _table(m: Moments, link: str, threshold: float, method: str, grad: bool) -> Table:
    """The outcome table (2, 1, n) of a binary constraint, or (2, K, n) where its mean differs between draws."""
    make: Any = probit_outcomes if link == "probit" else partial(logistic_outcomes, method=method)
    make = partial(rough_outcomes, link=link) if method == "rough" else make
    mean = np.atleast_2d(m.mean)
    arguments = (mean.ravel(), np.broadcast_to(m.std, mean.shape).ravel(), threshold)
    made = make(*arguments, grad=True) if grad else (make(*arguments),)
    return Table(m, *(Outcomes(*(field.reshape(2, *mean.shape) for field in part)) for part in made))


def _first_row(rows: Outcomes) -> npt.NDArray[np.bool_]:
    """The row in which every label says feasible comes first in every table."""
    return np.asarray(np.arange(len(rows.log_q)) == 0)


def _fold(outcomes: Outcomes | None, hidden: Sequence[Gate]) -> list[Outcomes]:
    """The table after each hidden gate has been folded into it, the bare table first; empty where there is none."""
    if outcomes is None and not hidden:
        return []
    rows = [NOTHING_DISCRETE if outcomes is None else outcomes]
    for gate in hidden:
        rows.append(with_unobserved(rows[-1], log_cdf(gate.gamma), log_cdf(-gate.gamma)))
    return rows


def _unfold(
    rows: list[Outcomes], hidden: Sequence[Gate], partials: Outcomes | None
) -> tuple[list[tuple[Gate, Array, Array | None]], Outcomes | None]:
    """Slopes of the hidden gates, and of the bare table, from those of the last table of :func:`_fold`."""
    slopes: list[tuple[Gate, Array, Array | None]] = []
    for gate, table in zip(reversed(hidden), reversed(rows[:-1]), strict=True):
        assert partials is not None
        gamma = gate.gamma
        partials, d_log_p, d_log_not_p = unobserved_partials(table, log_cdf(gamma), log_cdf(-gamma), partials)
        # An infinite gamma meets slopes that are zero.
        with np.errstate(invalid="ignore"):
            slope = d_log_p * hazard(-gamma) - d_log_not_p * hazard(gamma)
        slopes.append((gate, np.where(np.isfinite(gamma), slope, 0.0), None))
    return slopes, partials
