"""Maximisation of an acquisition function: Sobol screening, then batched local search, then rounding.

GPyOpt's own optimizer draws from the global random state, evaluates every value twice and starts five separate
searches; this one is a deterministic function of the generator it is given and moves all starts together.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from . import spaces
from ._gpyopt import ContextManager, Design_space
from .errors import CMESError

Array = npt.NDArray[np.float64]
Value = Callable[[Array], Array]
ValueAndGradient = Callable[[Array], tuple[Array, Array]]
Batch = Callable[[Array, npt.NDArray[np.int_]], tuple[Array, Array]]

# Differences below the tolerance, a share of the acquisition, say nothing about which point is better to evaluate.
THOROUGH: dict[str, Any] = {"tolerance": 1e-3, "max_steps": 24, "best_only": True}

# The line search: the share of the decrease that the slope promises which is enough, and the factor of a shorter step.
SUFFICIENT = 1e-4
SHORTER = 0.4


def minimise_from(
    function: Batch,
    starts: Array,
    lower: Array,
    upper: Array,
    *,
    movable: npt.NDArray[np.bool_] | None = None,
    max_steps: int = 100,
    tolerance: float = 1e-10,
    best_only: bool = False,
) -> tuple[Array, Array]:
    """Minimise over a box from several starts at once, by projected BFGS with a backtracking line search.

    Every step is one evaluation of the points that all starts try next.

    Parameters
    ----------
    function : callable
        Maps points (s, d), and the numbers (s,) of the starts they come from, to values (s,) and gradients (s, d).
    starts : array of shape (S, d)
    lower, upper : arrays of shape (d,)
    movable : boolean array of shape (d,), optional
        Coordinates to move; those with equal bounds never do.
    tolerance : float
        A search ends when a step gains no more than this share of the value.
    best_only : bool
        Whether only the best of all results is wanted: a start that would not catch up with the best even if it went on
        gaining as in its last step is given up.

    Returns
    -------
    points (S, d) and values (S,), none worse than its start
    """
    width = np.where(upper > lower, upper - lower, 1.0)
    free = (upper > lower) & (True if movable is None else movable)

    def unscaled(points: Array, which: npt.NDArray[np.int_]) -> tuple[Array, Array]:
        values, gradients = function(lower + width * points, which)
        return values, np.where(free, gradients * width, 0.0)

    x = np.clip((starts - lower) / width, 0.0, 1.0)
    f, g = unscaled(x, np.arange(len(x)))
    # Scores may be as small as 1e-200, and products of them vanish: each start gets a unit of its own.
    unit = np.abs(g).max(axis=1)
    unit = np.where(unit > 0, unit, 1.0)
    f, g = f / unit, g / unit[:, None]

    def evaluate(points: Array, which: npt.NDArray[np.int_]) -> tuple[Array, Array]:
        values, gradients = unscaled(points, which)
        with np.errstate(over="ignore"):
            return values / unit[which], gradients / unit[which][:, None]

    H = np.tile(np.eye(x.shape[1]), (len(x), 1, 1))
    fresh = np.ones(len(x), dtype=bool)
    active = np.ones(len(x), dtype=bool)
    length = np.ones(len(x))
    for _ in range(max_steps):
        step = _descent_direction(x, g, H, fresh)
        active &= np.abs(step).max(axis=1) * length > 1e-8
        rows = np.flatnonzero(active)
        if len(rows) == 0:
            break
        trial = np.clip(x[rows] + length[rows, None] * step[rows], 0.0, 1.0)
        values, gradients = evaluate(trial, rows)
        expected = (g[rows] * (trial - x[rows])).sum(axis=1)
        enough = values < f[rows] + SUFFICIENT * np.minimum(expected, 0.0)
        # A start whose step was too long tries a shorter one, while the others go on.
        length[rows] = np.where(enough, 1.0, SHORTER * length[rows])
        rows, trial, values, gradients = rows[enough], trial[enough], values[enough], gradients[enough]
        gain = f[rows] - values
        active[rows] &= gain > tolerance * np.abs(f[rows])
        H[rows], fresh[rows] = _bfgs(H[rows], trial - x[rows], gradients - g[rows], fresh[rows])
        x[rows], f[rows], g[rows] = trial, values, gradients
        if best_only:
            behind = (f * unit)[rows] - (f * unit).min()
            active[rows] &= behind <= max_steps * gain * unit[rows]
    return np.where(free, lower + width * x, starts), f * unit


def _descent_direction(x: Array, g: Array, H: Array, fresh: npt.NDArray[np.bool_]) -> Array:
    """Quasi-Newton steps (S, d) in the coordinates free to move, at most half the box long."""
    free = ~(((x <= 0.0) & (g > 0)) | ((x >= 1.0) & (g < 0)))
    g = np.where(free, g, 0.0)
    with np.errstate(over="ignore", invalid="ignore"):  # a step that is not finite is no descent either
        step = np.where(free, -np.einsum("sij,sj->si", H, g), 0.0)
        steepest = ~((step * g).sum(axis=1) < 0.0) | ~np.isfinite(step).all(axis=1)
    step[steepest] = -g[steepest]
    longest = np.abs(step).max(axis=1, keepdims=True)
    # The first step has no curvature to scale it: a tenth of the box.
    limit = np.where((fresh | steepest)[:, None], 0.1, 0.5)
    longest = np.where(longest > 0, longest, 1.0)
    scale = np.where((fresh | steepest)[:, None], limit / longest, np.minimum(1.0, limit / longest))
    return np.asarray(step * scale)


@np.errstate(over="ignore", invalid="ignore")
def _bfgs(H: Array, s: Array, y: Array, fresh: npt.NDArray[np.bool_]) -> tuple[Array, npt.NDArray[np.bool_]]:
    """BFGS update of inverse Hessians (S, d, d) where the curvature along the step is positive.

    Scores change over hundreds of orders of magnitude along one step, so the update works with y divided by its size.
    """
    size = np.abs(y).max(axis=1)
    size = np.where(size > 0, size, 1.0)[:, None]
    y, H = y / size, H * size[:, :, None]
    sy, yy = (s * y).sum(axis=1), (y * y).sum(axis=1)
    curved = sy > 1e-10 * np.sqrt((s * s).sum(axis=1) * yy)
    sy, yy = np.where(curved, sy, 1.0), np.where(curved, yy, 1.0)
    identity = np.eye(H.shape[1])
    H = np.where(fresh[:, None, None], (sy / yy)[:, None, None] * identity, H)
    Hy = np.einsum("sij,sj->si", H, y)
    outer = np.einsum("si,sj->sij", s, Hy)
    update = ((1.0 + (y * Hy).sum(axis=1) / sy) / sy)[:, None, None] * np.einsum("si,sj->sij", s, s)
    update -= (outer + outer.transpose(0, 2, 1)) / sy[:, None, None]
    H = np.where(curved[:, None, None], H + update, H) / size[:, :, None]
    usable = np.asarray(np.isfinite(H).all(axis=(1, 2)))
    return np.where(usable[:, None, None], H, identity), ~usable | (fresh & ~curved)


class AcquisitionSearch:
    """A GPyOpt acquisition optimizer that needs no global random state.

    Parameters
    ----------
    space : GPyOpt Design_space
    num_candidates : int
        Sobol points that are screened; a finite space with at most ``4 * num_candidates`` points is searched whole.
    num_starts : int
        Best candidates from which the local search starts.
    """

    def __init__(self, space: Design_space, num_candidates: int = 1000, num_starts: int = 8) -> None:
        self.space = space
        self.num_candidates = num_candidates
        self.num_starts = num_starts
        self.context_manager = ContextManager(space)

    def optimize(
        self,
        f: Value,
        df: Any = None,
        f_df: ValueAndGradient | None = None,
        duplicate_manager: Any = None,
        *,
        screen: Value | None = None,
        rng: np.random.Generator | None = None,
        near: Array | None = None,
        avoid: Array | None = None,
        effort: float = 1.0,
        candidates: Array | None = None,
    ) -> tuple[Array, Array]:
        """Find the allowed point with the smallest f.

        Parameters
        ----------
        f, f_df : callables
            Value (n, 1), and value with gradient (n, d), of model-space points (n, d).
        duplicate_manager : GPyOpt DuplicateManager, optional
            Points it knows are not returned while another exists.
        screen : callable, optional
            Stands in for f where candidates are compared, which must only be good enough to choose starts.
        rng : numpy Generator, optional
            Source of the candidates; a fixed one by default.
        near : array of shape (p, d), optional
            Points around which extra candidates are placed.
        avoid : array of shape (q, d), optional
            Points not returned while another exists.
        effort : float
            Share of ``num_candidates`` that is screened, and of ``num_starts``, of which at least four are tried.
        candidates : array of shape (c, d), optional
            The points to choose from, instead of a search.

        Returns
        -------
        the point (1, d) and its value (1, 1)
        """
        if candidates is not None:
            candidates = self._with_context(candidates)
            return self._best(candidates, f(candidates).ravel(), duplicate_manager, avoid)
        rng = np.random.default_rng(0) if rng is None else rng
        candidates = spaces.all_points(self.space, 4 * self.num_candidates)
        exhaustive = candidates is not None
        if candidates is None:
            around = self._around(near, rng) if near is not None and len(near) else None
            count = max(int(effort * self.num_candidates), 64)
            candidates = spaces.sobol_points(self.space, count, rng, fallback=around)
            if around is not None:
                candidates = np.vstack([candidates, around])
        candidates = self._with_context(candidates)
        values = (f if exhaustive or screen is None else screen)(candidates).ravel()
        if not exhaustive and f_df is not None:
            count = min(max(int(effort * self.num_starts), 4), self.num_starts)
            refined, found = self._refine(candidates[np.argsort(values, kind="stable")[:count]], f_df)
            candidates = np.vstack([refined, candidates])
            values = np.concatenate([f(refined).ravel() if found is None else found, values])
        return self._best(candidates, values, duplicate_manager, avoid)

    def _around(self, near: Array, rng: np.random.Generator) -> Array:
        return np.vstack([near, spaces.clouds(self.space, near, rng)])

    def _with_context(self, X: Array) -> Array:
        X = X.copy()
        X[:, self.context_manager.context_index] = self.context_manager.context_value
        return X

    def _refine(self, starts: Array, f_df: ValueAndGradient) -> tuple[Array, Array | None]:
        """Allowed points (s, d) that local searches found, and their values (s,) where these are known."""
        lower, upper = (np.array(b, dtype=float) for b in np.transpose(self.space.get_bounds()))
        fixed = self.context_manager.context_index
        lower[fixed] = upper[fixed] = self.context_manager.context_value

        def flat(X: Array, _: npt.NDArray[np.int_]) -> tuple[Array, Array]:
            value, gradient = f_df(X)
            return value.ravel(), gradient

        points, values = minimise_from(flat, starts, lower, upper, **THOROUGH)
        rounded = self._with_context(spaces.round_points(self.space, points))
        continuous = spaces.continuous_columns(self.space)
        if continuous.all() or not continuous.any():
            return rounded, values if np.array_equal(rounded, points) else None
        # What is best for the continuous variables depends on the values the others were rounded to.
        second = np.vstack([rounded, starts])
        points, _ = minimise_from(flat, second, lower, upper, movable=continuous, **THOROUGH)
        return np.vstack([rounded, points]), None

    def _best(
        self, candidates: Array, values: Array, duplicate_manager: Any, avoid: Array | None
    ) -> tuple[Array, Array]:
        allowed = spaces.inside(self.space, candidates)
        for index in np.argsort(values, kind="stable"):
            point = candidates[index : index + 1]
            known = avoid is not None and (avoid == point).all(axis=1).any()
            if allowed[index] and not (
                known or (duplicate_manager and duplicate_manager.is_unzipped_x_duplicate(point))
            ):
                return point, values[index : index + 1, None]
        if avoid is not None:
            return self._best(candidates, values, duplicate_manager, None)
        raise CMESError("every point of the domain has been evaluated, is pending, or violates a known constraint")
