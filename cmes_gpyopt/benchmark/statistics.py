"""Measures of runs, as functions of arrays.

M methods, T evaluations, n pairs of a problem and a seed. Regret is normalised: 0 at the optimum, 1 at the value of a typical
feasible point.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata, wilcoxon

Array = npt.NDArray[np.float64]

FLOOR = 1e-6
"""Smallest regret that is told from others: below it a difference is of no use."""

CEILING = 10.0
"""Largest regret, and that of a run without a feasible point: no run is worse than one that found nothing."""


class Estimate(NamedTuple):
    """A mean and its standard error."""

    mean: float
    error: float


class Paired(NamedTuple):
    """A difference between two methods on the same problems and seeds."""

    difference: float
    error: float
    p: float
    """two-sided, by Wilcoxon's signed-rank test over the pairs"""


def best_so_far(values: Array) -> Array:
    """Smallest value up to each evaluation, (..., T); inf where none was feasible."""
    return np.asarray(np.minimum.accumulate(values, axis=-1))


def ranks(best: Array) -> Array:
    """Ranks 1, ..., M of the methods by their best feasible value, (M, ...).

    Methods that share a value share the mean of their ranks; so do all those without a feasible value, which come last
    (Perrone et al. 2020, section 4.2: with five of ten feasible the others have (6 + 10) / 2 = 8).
    """
    return np.asarray(rankdata(best, axis=0), dtype=float)


def regret(best: Array, f_opt: float, typical: float) -> Array:
    """Normalised regret, clipped to [0, CEILING]; CEILING where nothing was feasible."""
    return np.asarray(np.clip((best - f_opt) / (typical - f_opt), 0.0, CEILING))


def log_regret(normalised: Array) -> Array:
    """log10 of the regret, not below that of FLOOR."""
    return np.asarray(np.log10(np.maximum(normalised, FLOOR)))


def evaluations_until(reached: npt.NDArray[np.bool_], initial: int) -> float:
    """Suggestions after which a condition (initial + T,) first holds: 0 within the initial points, inf if never."""
    where = np.flatnonzero(reached)
    return float(max(where[0] + 1 - initial, 0)) if len(where) else np.inf


def stratified(values: Array, strata: npt.NDArray[np.int_]) -> Estimate:
    """Mean over strata of the mean within each; its standard error, the strata being fixed, nan where there is none.

    Parameters
    ----------
    values : array of shape (n,)
    strata : array of shape (n,)
        Number of the problem that a value belongs to.
    """
    groups = [values[strata == s] for s in np.unique(strata)]
    mean = float(np.mean([group.mean() for group in groups]))
    if min(len(group) for group in groups) < 2 or not np.isfinite(mean):
        return Estimate(mean, np.nan)
    variances = [group.var(ddof=1) / len(group) for group in groups]
    return Estimate(mean, float(np.sqrt(np.sum(variances)) / len(groups)))


def paired(values: Array, reference: Array, strata: npt.NDArray[np.int_]) -> Paired:
    """How much larger values are than those of the reference on the same n pairs."""
    difference = values - reference
    mean, error = stratified(difference, strata)
    if not difference.any():
        return Paired(mean, error, 1.0)
    # The exact distribution does not allow for ties and zeros.
    return Paired(mean, error, float(wilcoxon(difference, method="asymptotic").pvalue))
