"""Samplers of the constrained optimum y* = min { y(x) : c_j(x) <= delta_j }.

- *joint*, the paper's: exact joint draws of the objective and of each constraint on a finite set of points, and the
  smallest objective value among those at which every constraint holds; on request over further points, found from the
  draws themselves;
- *marginal*, the mean-field approximation of Wang and Jegelka: all values on the set are taken as independent. The more
  points, the lower its draws: they diverge as the set grows;
- *pathwise*, for spaces in which a finite set is too coarse: sample paths that can be differentiated, each minimised by
  a local search from its best points on the set.

Values are in the standardised units of the latent objective; a draw without a feasible point is +inf.

References
----------
Perrone et al. (2020), Constrained Bayesian optimization with max-value entropy search, supplement A.4.
Wang and Jegelka (2017), Max-value entropy search for efficient Bayesian optimization.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

from . import spaces
from ._gpyopt import Design_space
from .errors import CMESError
from .models import Constraint, JointDraws, Regression, SamplePaths
from .normal import log1mexp, log_cdf
from .refinement import lowest_feasible, refined_optima
from .search import minimise_from

Array = npt.NDArray[np.float64]
Index = npt.NDArray[np.int_]


def candidate_grid(space: Design_space, size: int, evaluated: Array, rng: np.random.Generator) -> Array:
    """Points over which y* is sought: a Sobol set of ``size`` points and the evaluated points.

    A finite space with at most ``size`` points is taken whole.

    Parameters
    ----------
    evaluated : array of shape (N, d)
        Points of the model space.

    Returns
    -------
    array of shape (m, d), distinct rows
    """
    grid = spaces.all_points(space, size)
    if grid is None:
        fallback = np.vstack([evaluated, spaces.clouds(space, evaluated, rng)]) if len(evaluated) else None
        grid = spaces.sobol_points(space, size, rng, fallback=fallback)
    new = evaluated[~spaces.is_row_of(evaluated, grid)]
    return np.vstack([grid, spaces.distinct(new)])


class Optima(NamedTuple):
    """K draws of the constrained optimum, and what the same draws say of the pending points."""

    y_star: Array
    """(K,); +inf where a draw has no feasible point"""
    x_star: Array | None = None
    """(K, d), nan where a draw has no feasible point; pathwise only"""
    objective: Array = np.empty((0, 0))
    """(K, p), latent values at the pending points"""
    constraints: tuple[Array, ...] = ()
    """J arrays (K, p)"""


# Points drawn jointly before the others are looked at again. Where a block does not halve the chance that something was
# missed, most points will have to be drawn, and the next block is as large as all before it.
BLOCK = 64


def joint_optima(
    objective: Regression,
    constraints: Sequence[Constraint],
    thresholds: Sequence[float],
    grid: Array,
    num_samples: int,
    rng: np.random.Generator,
    space: Design_space | None = None,
    pending: Array | None = None,
    tolerance: float = 1e-3,
    refinements: int = 0,
) -> Optima:
    """Draw y* jointly over ``grid``.

    Points are drawn in blocks, the most promising first. Given what was drawn, point i changes the optimum of draw k
    with a probability of at most P(c_j(x_i) <= delta_j for all j) P(y(x_i) < y*_k); by the union bound, leaving out a
    set of points changes no more draws than the sum of these says. Points are left out while their sum, averaged over
    the draws, stays below ``tolerance``.

    Parameters
    ----------
    thresholds : sequence of J floats
        Latent values delta_j up to which a point is feasible.
    grid : array of shape (m, d)
    num_samples : int
        K.
    space : GPyOpt Design_space, optional
        Needed for refinements.
    pending : array of shape (p, d), optional
        Points whose drawn values are wanted too; all of them rows of ``grid``.
    tolerance : float
        Bound on the expected share of draws whose y* differs from that over the whole grid; with 0 all points are
        drawn at once.
    refinements : int
        Rounds in which points are added where the draws may still gain; see :mod:`.refinement`.
    """
    if tolerance < 0:
        raise CMESError(f"tolerance must not be negative, got {tolerance!r}")
    latents = (objective, *constraints)
    normals = [rng.standard_normal((len(grid), num_samples)) for _ in latents]
    wanted = np.empty(0, dtype=int) if pending is None else spaces.row_numbers(pending, grid)
    if tolerance == 0.0 and not refinements:
        drawn = np.arange(len(grid))
        values = [latent.sample(grid, z) for latent, z in zip(latents, normals, strict=True)]  # (K, m) each
        best = lowest_feasible(values, thresholds)
    else:
        draws = [latent.draws(grid, z) for latent, z in zip(latents, normals, strict=True)]
        drawn, values = _draw_what_matters(draws, thresholds, wanted, tolerance)
        best = lowest_feasible(values, thresholds)
        if refinements:
            if space is None:
                raise CMESError("refinements need the space whose points are to be added; pass space=")
            best = refined_optima(best, latents, draws, thresholds, grid[drawn], values, space, refinements, rng)
    position = np.empty(len(grid), dtype=int)
    position[drawn] = np.arange(len(drawn))
    at = position[wanted]
    return Optima(best, None, values[0][:, at], tuple(v[:, at] for v in values[1:]))


def _draw_what_matters(
    draws: Sequence[JointDraws], thresholds: Sequence[float], wanted: Index, tolerance: float
) -> tuple[Index, list[Array]]:
    """Numbers (b,) of the points that were drawn, ``wanted`` (p,) among them, and the values (K, b) of all latents."""
    likely = _chance_to_matter(draws, thresholds, np.full(1, np.inf))
    promise = _chance_to_matter(draws, thresholds, _first_guess(draws[0], likely))
    promise[wanted] = np.inf
    chosen = np.argsort(-promise, kind="stable")[: max(BLOCK, len(wanted))]
    left, drawn = np.arange(len(promise)), np.empty(0, dtype=int)
    values: list[Array] = [np.empty((draw.samples, 0)) for draw in draws]
    budget, missed = tolerance, np.inf
    while True:
        drawn, left = np.concatenate([drawn, left[chosen]]), np.delete(left, chosen)
        values = [np.hstack([v, draw.draw(chosen)]) for v, draw in zip(values, draws, strict=True)]
        chance = _chance_to_matter(draws, thresholds, lowest_feasible(values, thresholds))
        if chance.sum() <= budget:
            return drawn, values
        order = np.argsort(chance, kind="stable")
        spent = np.cumsum(chance[order])
        dropped = int(np.searchsorted(spent, 0.5 * budget, side="right"))
        budget -= spent[dropped - 1] if dropped else 0.0
        left = left[order[dropped:]]
        for draw in draws:
            draw.keep(order[dropped:])
        # The likeliest to matter first.
        size = max(BLOCK, len(drawn) if chance.sum() > 0.5 * missed else 0)
        chosen = np.arange(len(left))[::-1][:size]
        missed = chance.sum()


def _chance_to_matter(draws: Sequence[JointDraws], thresholds: Sequence[float], best: Array) -> Array:
    """P(feasible and below ``best`` (K,)) at each open point, averaged over the draws, (r,)."""
    y, *constraints = draws
    chance = ndtr((best[:, None] - y.mean) / y.std)
    for c, threshold in zip(constraints, thresholds, strict=True):
        chance *= ndtr((threshold - c.mean) / c.std)
    return np.asarray(chance.mean(axis=0))


def _first_guess(objective: JointDraws, feasible: Array) -> Array:
    """Something for the first block to beat, (1,): the lowest mean among points likely to be ``feasible`` (r,)."""
    likely = feasible >= 0.5 * feasible.max()
    return np.asarray(objective.mean[:, likely].min(axis=1))


def marginal_optima(
    objective: Regression,
    constraints: Sequence[Constraint],
    thresholds: Sequence[float],
    grid: Array,
    num_samples: int,
    rng: np.random.Generator,
    space: Design_space | None = None,
    pending: Array | None = None,
) -> Optima:
    """Draw y* as if all values on ``grid`` were independent; parameters and result as for :func:`joint_optima`.

    The distribution function is the exact product P(y* > t) = prod_x (1 - P(x feasible) P(y(x) <= t)), inverted by
    bisection. Values at pending points are drawn jointly, and independently of y*.
    """
    m = objective.moments(grid)
    log_feasible = np.zeros(len(grid))
    for constraint, threshold in zip(constraints, thresholds, strict=True):
        c = constraint.moments(grid)
        log_feasible = log_feasible + log_cdf((threshold - c.mean) / c.std)

    def log_survival(t: Array) -> Array:
        return np.asarray(log1mexp(log_feasible + log_cdf((t[:, None] - m.mean) / m.std)).sum(axis=1))  # (K,)

    log_u = np.log(rng.random(num_samples))
    spread = 40.0 * m.std.max()
    low, high = np.full(num_samples, m.mean.min() - spread), np.full(num_samples, m.mean.max() + spread)
    nothing = log_u < log_survival(np.full(num_samples, np.inf))
    for _ in range(80):
        middle = 0.5 * (low + high)
        above = log_survival(middle) > log_u
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    y_star = np.where(nothing, np.inf, 0.5 * (low + high))
    if pending is None or not len(pending):
        return Optima(y_star)
    latents = (objective, *constraints)
    values = [latent.sample(pending, rng.standard_normal((len(pending), num_samples))) for latent in latents]
    return Optima(y_star, None, values[0], tuple(values[1:]))


# The local search follows the border of the feasible region behind a logarithmic barrier that is lowered once; the
# second height bounds what the barrier costs, in standard deviations of the objective.
BARRIERS = (0.1, 1e-3)
STARTS_PER_PATH = 4
_OUTSIDE = 1e150


def pathwise_optima(
    objective: Regression,
    constraints: Sequence[Constraint],
    thresholds: Sequence[float],
    grid: Array,
    num_samples: int,
    rng: np.random.Generator,
    space: Design_space,
    pending: Array | None = None,
) -> Optima:
    """Draw sample paths and minimise each under its constraints, from its best points on ``grid``.

    Parameters
    ----------
    objective, constraints, thresholds, grid, num_samples, rng, pending
        As for :func:`joint_optima`.
    space : GPyOpt Design_space
        Continuous variables are moved within its bounds and known constraints; others stay at their grid values.
    """
    y = objective.paths(num_samples, rng)
    limits = [(c.paths(num_samples, rng), delta) for c, delta in zip(constraints, thresholds, strict=True)]
    search = _PathSearch(space, y, limits)
    values = y(grid)  # (K, m)
    excess = np.max([c(grid) - delta for c, delta in limits], axis=0) if limits else np.full_like(values, -1.0)
    which, starts = search.starts(grid, values, excess)
    which, points = search.feasible(which, starts)
    points = search.descend(which, points)
    found = y.at(points, which)[0]
    x_star, y_star = np.full((num_samples, grid.shape[1]), np.nan), np.full(num_samples, np.inf)
    for k, point, value in zip(which, points, found, strict=True):
        if value < y_star[k]:
            x_star[k], y_star[k] = point, value
    known = grid[:0] if pending is None else pending
    return Optima(y_star, x_star, y(known), tuple(c(known) for c, _ in limits))


class _PathSearch:
    """Constrained minimisation of sample paths from several starts at once; ``which`` (S,) names each start's path."""

    def __init__(self, space: Design_space, y: SamplePaths, limits: list[tuple[SamplePaths, float]]) -> None:
        self.space, self.y, self.limits = space, y, limits
        self.lower, self.upper = (np.array(b, dtype=float) for b in np.transpose(space.get_bounds()))
        self.movable = spaces.continuous_columns(space)

    def starts(self, grid: Array, values: Array, excess: Array) -> tuple[npt.NDArray[np.int_], Array]:
        """The best feasible grid points of each path, or the least infeasible ones where there are none."""
        order = np.where(excess <= 0, values, np.inf)
        none = np.isinf(order).all(axis=1)
        order[none] = excess[none]
        count = min(STARTS_PER_PATH, len(grid))
        best = np.argpartition(order, count - 1, axis=1)[:, :count]
        keep = np.isfinite(np.take_along_axis(order, best, axis=1)).ravel()
        which = np.repeat(np.arange(len(values)), count)
        return which[keep], grid[best.ravel()[keep]]

    def feasible(self, which: npt.NDArray[np.int_], points: Array) -> tuple[npt.NDArray[np.int_], Array]:
        """Starts that are feasible, after those that are not have been moved towards feasibility."""
        outside = self._excess(points, which)[0] >= 0
        if outside.any():
            rows = np.flatnonzero(outside)
            points = points.copy()
            points[rows] = self._minimise(lambda X, r: self._excess(X, which[rows[r]]), points[rows])
            outside = self._excess(points, which)[0] >= 0
        return which[~outside], points[~outside]

    def descend(self, which: npt.NDArray[np.int_], points: Array) -> Array:
        """Minimise each path behind its barrier, from feasible points; the result is feasible and no worse."""
        for height in BARRIERS:
            if len(points):
                points = self._minimise(lambda X, r, height=height: self._barrier(X, which[r], height), points)
        return points

    def _minimise(self, function: Any, points: Array) -> Array:
        if not self.movable.any():
            return points

        def within(X: Array, rows: npt.NDArray[np.int_]) -> tuple[Array, Array]:
            value, gradient = function(X, rows)
            good = spaces.inside(self.space, X)
            return np.where(good, value, _OUTSIDE), np.where(good[:, None], gradient, 0.0)

        return minimise_from(within, points, self.lower, self.upper, movable=self.movable)[0]

    def _excess(self, X: Array, which: npt.NDArray[np.int_]) -> tuple[Array, Array]:
        """Largest c_j - delta_j (S,) and its gradient (S, d); -1 without constraints."""
        worst, slope = np.full(len(X), -np.inf if self.limits else -1.0), np.zeros_like(X)
        for c, delta in self.limits:
            value, gradient = c.at(X, which)
            larger = value - delta > worst
            worst, slope = np.where(larger, value - delta, worst), np.where(larger[:, None], gradient, slope)
        return worst, slope

    def _barrier(self, X: Array, which: npt.NDArray[np.int_], height: float) -> tuple[Array, Array]:
        """The path plus its barrier, huge where a constraint is violated."""
        value, gradient = self.y.at(X, which)
        for c, delta in self.limits:
            c_value, c_gradient = c.at(X, which)
            room = delta - c_value
            good = room > 0
            safe = np.where(good, room, 1.0)
            value = np.where(good, value - height * np.log(safe), _OUTSIDE)
            gradient = np.where(good[:, None], gradient + height * c_gradient / safe[:, None], 0.0)
        return value, gradient
