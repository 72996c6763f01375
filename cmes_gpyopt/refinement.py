"""Draws of y* made finer: points added where a draw may still gain, beyond the set it was first drawn over.

In several dimensions a grid is coarse, and the smallest value on it lies well above the minimum of the drawn function. Some
points between those of the grid are then almost sure to beat y*, which the true optimum does not allow: no point is feasible
and strictly below the y* of an independent draw with a probability above 1/2, since it is no lower than the optimum of its own
draw, which is as often above that y* as below. An acquisition that trusts coarse draws is led to safe, small steps.

Each round moves, for every draw, from its lowest feasible point to where that draw expects the largest improvement on its
own y*, times the probability that its constraints hold; then all draws are drawn at all of these points, given everything
drawn so far. How points are chosen does not change the law of the values there: a refined y* is a value that its draw takes
somewhere, never above the one it came from and never below the minimum of the drawn function.
"""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from . import spaces
from ._gpyopt import Design_space
from .models import Constraint, JointDraws, Regression
from .models.gains import log_below, log_expected_improvement
from .search import minimise_from

Array = npt.NDArray[np.float64]
Index = npt.NDArray[np.int_]
Latents = Sequence[Regression | Constraint]

# A search sees so many of the values drawn, or two for each draw: its lowest ones.
SEEN = 128

# A search starts beside the lowest point, so far away as a share of the box: at the point itself nothing is uncertain.
BESIDE = 0.02
MAX_STEPS, TOLERANCE = 15, 1e-3
# Starts outside the known constraints are moved closer to their point, halfway each time.
HALVINGS = 8

_OUTSIDE = 1e150


def lowest_feasible(values: Sequence[Array], thresholds: Sequence[float]) -> Array:
    """The smallest objective value of each draw where its constraints hold, (K,), from values (K, b) of all latents."""
    return np.asarray(_where_feasible(values, thresholds).min(axis=1))


def refined_optima(
    best: Array,
    latents: Latents,
    draws: Sequence[JointDraws],
    thresholds: Sequence[float],
    points: Array,
    values: Sequence[Array],
    space: Design_space,
    rounds: int,
    rng: np.random.Generator,
) -> Array:
    """The smallest feasible value of each draw after ``rounds`` of further points, (K,).

    Parameters
    ----------
    best : array of shape (K,)
        The smallest feasible values so far.
    latents : the objective and J constraints
    draws : J + 1 of them
        Have drawn ``values``, and draw the further points.
    thresholds : sequence of J floats
    points : array of shape (b, d)
        Where the draws are known.
    values : J + 1 arrays of shape (K, b)
        The draws there.
    """
    movable = spaces.continuous_columns(space)
    if not movable.any():
        return best
    lower, upper = (np.array(b, dtype=float) for b in np.transpose(space.get_bounds()))
    # A stream for each function: a constraint that is sure to hold, and comes last, changes nothing for the others.
    beside, *streams = rng.spawn(1 + len(latents))
    order = np.argsort(_order(values, thresholds), axis=1, kind="stable")
    seen = np.unique(order[:, : max(SEEN // len(best), 2)])
    points, values = points[seen], [v[:, seen] for v in values]
    for _ in range(rounds):
        given = [latent.conditioned(points, v) for latent, v in zip(latents, values, strict=True)]
        lowest = points[_order(values, thresholds).argmin(axis=1)]  # (K, d)
        offset = np.where(movable, BESIDE * (upper - lower) * beside.standard_normal(lowest.shape), 0.0)
        starts = _within(space, lowest, offset, lower, upper)
        gain = _gain(given, thresholds, best, space)
        found, _ = minimise_from(gain, starts, lower, upper, movable=movable, max_steps=MAX_STEPS, tolerance=TOLERANCE)
        found = spaces.distinct(found[spaces.inside(space, found)])
        found = found[~spaces.is_row_of(found, points)]
        if not len(found):
            continue
        U = (found - lower) / spaces.box(space)[1]
        shape = len(found), len(best)
        new = [draw.draw_further(U, s.standard_normal(shape)) for draw, s in zip(draws, streams, strict=True)]
        best = np.minimum(best, lowest_feasible(new, thresholds))
        points, values = np.vstack([points, found]), [np.hstack(pair) for pair in zip(values, new, strict=True)]
    return best


def _within(space: Design_space, centres: Array, offset: Array, lower: Array, upper: Array) -> Array:
    """Points (K, d) beside the centres, closer to them where the known constraints ask for it."""
    for _ in range(HALVINGS):
        beside = np.clip(centres + offset, lower, upper)
        outside = ~spaces.inside(space, beside)
        if not outside.any():
            break
        offset = np.where(outside[:, None], 0.5 * offset, offset)
    return np.asarray(beside)


def _where_feasible(values: Sequence[Array], thresholds: Sequence[float]) -> Array:
    """Objective values (K, b), +inf where a constraint does not hold."""
    y = values[0].copy()
    for c, threshold in zip(values[1:], thresholds, strict=True):
        y[c > threshold] = np.inf
    return y


def _order(values: Sequence[Array], thresholds: Sequence[float]) -> Array:
    """What sorts the points of each draw (K, b): feasible values, or the largest excess where a draw has none."""
    y = _where_feasible(values, thresholds)
    none = np.isinf(y).all(axis=1)
    if none.any():
        y[none] = np.max([c[none] - t for c, t in zip(values[1:], thresholds, strict=True)], axis=0)
    return y


def _gain(
    given: Latents, thresholds: Sequence[float], best: Array, space: Design_space
) -> Callable[[Array, Index], tuple[Array, Array]]:
    """Minus the logarithm of what draw ``which[i]`` expects to gain at point i; without a feasible value, of feasibility."""
    finite = np.isfinite(best)

    def gain(X: Array, which: Index) -> tuple[Array, Array]:
        objective, *constraints = (latent.moments(X, grad=True).of_draws(which) for latent in given)
        value, gradient = log_expected_improvement(objective, np.where(finite, best, 0.0)[which])
        value, gradient = np.where(finite[which], value, 0.0), np.where(finite[which, None], gradient, 0.0)
        for m, threshold in zip(constraints, thresholds, strict=True):
            chance, slope = log_below(m, threshold)
            value, gradient = value + chance, gradient + slope
        good = spaces.inside(space, X)
        return np.where(good, -value, _OUTSIDE), np.where(good[:, None], -gradient, 0.0)

    return gain
