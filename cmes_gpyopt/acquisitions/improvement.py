"""Expected improvement where evaluations can fail: the improvement on the best feasible value times its probability to count.

References
----------
Gardner, Kusner, Xu, Weinberger and Cunningham (2014), Bayesian optimization with inequality constraints.
Gelbart, Snoek and Adams (2014), Bayesian optimization with unknown constraints.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..models import ConstrainedModel, Constraint, Regression
from ..models.gains import log_expected_improvement

Array = npt.NDArray[np.float64]


def best_observed(model: ConstrainedModel) -> float | None:
    """The lowest value observed at a feasible point, standardised; None while there is none."""
    data, objective = model.data, model.objective
    if data is None:
        return None
    seen = data.feasible & np.isfinite(data.Y)
    return float((data.Y[seen].min() - objective.offset) / objective.scale) if seen.any() else None


def log_constrained_improvement(
    objective: Regression, constraints: Sequence[Constraint], best: float | None, X: Array, grad: bool
) -> Any:
    """Logarithm (n,) of the expected improvement on ``best`` times the probability that all constraints hold at X (n, d).

    The probability alone where ``best`` is None. With its gradient (n, d) on request.
    """
    value: Array = np.zeros(len(X))
    gradient: Any = np.zeros(X.shape)
    if best is not None:
        value, gradient = log_expected_improvement(objective.moments(X, grad=grad), best)
    for constraint in constraints:
        if grad:
            log_feasible, slope = constraint.log_feasible(X, grad=True)
            value, gradient = value + log_feasible, gradient + slope
        else:
            value = value + constraint.log_feasible(X)
    return (value, gradient) if grad else value
