"""Test problems with known optima."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Problem:
    """A constrained test function.

    Points X are rows of shape (n, d) in the objective space; a point is feasible where every constraint is <= 0.
    """

    name: str
    objective: Callable[[Array], Array]
    """(n, d) -> (n,)"""
    constraints: tuple[Callable[[Array], Array], ...]
    """each (n, d) -> (n,)"""
    domain: tuple[dict[str, Any], ...]
    x_opt: tuple[float, ...]
    f_opt: float
    feasible_fraction: float
    """Share of the domain that is feasible, estimated by Monte Carlo to the digits shown."""

    def feasible(self, X: Array) -> npt.NDArray[np.bool_]:
        """Whether each point satisfies all constraints, (n,)."""
        X = np.atleast_2d(X)
        return np.asarray(np.all([constraint(X) <= 0 for constraint in self.constraints], axis=0))

    def with_failures(self, X: Array) -> Array:
        """Objective values (n, 1), inf where infeasible: a black box that crashes."""
        X = np.atleast_2d(X)
        return np.where(self.feasible(X), self.objective(X), np.inf)[:, None]


_CENTRES = np.array([[-0.7, 0.5], [0.5, 0.3], [-0.3, -0.3]])
_WIDTHS = np.array([0.02, 0.2, 0.6])
_DEPTHS = np.array([0.3, 0.6, 0.9])


def _three_valleys(X: Array) -> Array:
    squared = ((X[:, None, :] - _CENTRES) ** 2).sum(axis=2)  # (n, 3)
    return np.asarray((squared / _WIDTHS + _DEPTHS).min(axis=1))


def _above_rim(X: Array) -> Array:
    # The feasible set is y < 1.2; the equality has probability zero.
    return _three_valleys(X) - 1.2


TOY = Problem(
    name="toy",
    objective=_three_valleys,
    constraints=(_above_rim,),
    domain=(
        {"name": "x1", "type": "continuous", "domain": (-1.0, 1.0)},
        {"name": "x2", "type": "continuous", "domain": (-1.0, 1.0)},
    ),
    x_opt=(-0.7, 0.5),
    f_opt=0.3,
    feasible_fraction=0.25,
)
"""Three quadratic valleys in two dimensions (Perrone et al. 2020, section 4.1); the deepest is the smallest."""
