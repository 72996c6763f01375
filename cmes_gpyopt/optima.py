"""Samplers of the constrained optimum y* = min { y(x) : c_j(x) <= delta_j }.

The joint sampler is the paper's: exact joint draws of the objective and of each constraint on a finite set of
points, and the smallest objective value among those at which every constraint holds. Values are in the
standardised units of the latent objective.

References
----------
Perrone et al. (2020), Constrained Bayesian optimization with max-value entropy search, supplement A.4.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from . import spaces
from ._gpyopt import Design_space
from .models import Constraint, Regression

Array = npt.NDArray[np.float64]


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
        grid = spaces.sobol_points(space, size, rng)
    new = evaluated[~spaces.is_row_of(evaluated, grid)]
    return np.vstack([grid, spaces.distinct(new)])


def joint_optima(
    objective: Regression,
    constraints: Sequence[Constraint],
    thresholds: Sequence[float],
    grid: Array,
    num_samples: int,
    rng: np.random.Generator,
) -> Array:
    """Draw y* jointly over ``grid``.

    Parameters
    ----------
    thresholds : sequence of J floats
        Latent values delta_j up to which a point is feasible.
    grid : array of shape (m, d)
    num_samples : int
        K.

    Returns
    -------
    array of shape (K,); +inf where a draw has no feasible point
    """
    y = objective.sample(grid, rng.standard_normal((len(grid), num_samples)))  # (K, m)
    for constraint, threshold in zip(constraints, thresholds, strict=True):
        c = constraint.sample(grid, rng.standard_normal((len(grid), num_samples)))
        y[c > threshold] = np.inf
    return np.asarray(y.min(axis=1))
