"""What constrained max-value entropy search is compared with.

References
----------
Gardner, Kusner, Xu, Weinberger and Cunningham (2014), Bayesian optimization with inequality constraints.
Gelbart, Snoek and Adams (2014), Bayesian optimization with unknown constraints.
Perrone et al. (2020), Constrained Bayesian optimization with max-value entropy search: adaptive percentile.
Wang and Jegelka (2017), Max-value entropy search for efficient Bayesian optimization.
Bergstra and Bengio (2012), Random search for hyper-parameter optimization.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from .. import spaces
from .._gpyopt import Design_space
from ..errors import CMESError
from ..models import ConstrainedModel, Regression
from ..models.gains import log_expected_improvement
from .base import SEARCH_STREAM, ConstrainedAcquisition
from .cmes import ConstrainedMES

Array = npt.NDArray[np.float64]


class ConstrainedEI(ConstrainedAcquisition):
    """Expected improvement times the probability of feasibility, as a logarithm.

    The improvement is over the best feasible observation; while there is none, the probability of feasibility alone
    is maximised. Binary and real-valued constraints, any number of each.
    """

    log_scale = True

    def _prepare(self) -> None:
        data, objective = self.model.data, self.model.objective
        seen = data.feasible & np.isfinite(data.Y)
        self.best = float((data.Y[seen].min() - objective.offset) / objective.scale) if seen.any() else None

    def _scores(self, X: Array, grad: bool) -> Any:
        value: Array = np.zeros(len(X))
        gradient: Any = np.zeros(X.shape)
        if self.best is not None:
            value, gradient = log_expected_improvement(self.objective.moments(X, grad=grad), self.best)
        for constraint in self.constraints:
            if grad:
                log_feasible, slope = constraint.log_feasible(X, grad=True)
                value, gradient = value + log_feasible, gradient + slope
            else:
                value = value + constraint.log_feasible(X)
        return (value, gradient) if grad else value


class AdaptivePercentile(ConstrainedAcquisition):
    """Expected improvement of a single process that is told a bad value wherever an evaluation was infeasible.

    The bad value is a percentile of the objective values observed at feasible points so far, taken anew whenever data
    arrive. Before the first of them all evaluations count as equal, and the search moves where the process knows least.

    Parameters
    ----------
    percentile : float
        In [50, 100]; 100 is the largest value observed so far.
    """

    log_scale = True
    believes_pending = False  # the surrogate does, not the model

    def __init__(
        self,
        model: ConstrainedModel,
        space: Design_space,
        optimizer: Any = None,
        cost_withGradients: Any = None,
        *,
        percentile: float = 100.0,
        seed: int = 0,
    ) -> None:
        super().__init__(model, space, optimizer, cost_withGradients, seed=seed)
        if isinstance(percentile, bool) or not isinstance(percentile, int | float) or not 50 <= percentile <= 100:
            raise CMESError(f"percentile must lie between 50 and 100, got {percentile!r}")
        self.percentile = float(percentile)

    def _prepare(self) -> None:
        data = self.model.data
        good = data.feasible & np.isfinite(data.Y)
        values = np.zeros(len(data.Y))
        if good.any():
            values = np.where(good, data.Y, np.percentile(data.Y[good], self.percentile))
        surrogate = Regression("objective with percentile")
        surrogate.fit(data.X, values, *spaces.box(self.space))
        incumbent = values[good].min() if good.any() else 0.0
        self.best = float((incumbent - surrogate.offset) / surrogate.scale)
        self.surrogate = surrogate.conditioned(self.pending) if len(self.pending) else surrogate

    def _scores(self, X: Array, grad: bool) -> Any:
        result = log_expected_improvement(self.surrogate.moments(X, grad=grad), self.best)
        return result if grad else result[0]


class MaxValueEntropySearch(ConstrainedMES):
    """Max-value entropy search without constraints: what :class:`ConstrainedMES` is when nothing can fail."""

    def __init__(
        self,
        model: ConstrainedModel,
        space: Design_space,
        optimizer: Any = None,
        cost_withGradients: Any = None,
        *,
        seed: int = 0,
        **options: Any,
    ) -> None:
        if getattr(model, "constraints", None):
            raise CMESError(
                "MaxValueEntropySearch knows no constraints; pass feedback=[] if nothing can fail, or use ConstrainedMES"
            )
        super().__init__(model, space, optimizer, cost_withGradients, seed=seed, **options)

    @classmethod
    def for_domain(
        cls, domain: list[dict[str, Any]], constraints: Any = None, *, feedback: Any = (), **options: Any
    ) -> ConstrainedAcquisition:
        """As for :class:`ConstrainedAcquisition`, without feedback on constraints by default."""
        return super().for_domain(domain, constraints, feedback=feedback, **options)


class RandomSearch(ConstrainedAcquisition):
    """Uniformly random suggestions, as a method like the others."""

    believes_pending = False

    def optimize(self, duplicate_manager: Any = None) -> tuple[Array, Array]:
        """Draw a point; in a finite space one that has not been evaluated, while there is one."""
        self.update()
        rng = self.generator(SEARCH_STREAM)
        choices = spaces.all_points(self.space, 4096)
        if choices is not None:
            fresh = choices[~spaces.is_row_of(choices, np.vstack([self.model.data.X, self.pending]))]
            choices = fresh if len(fresh) else choices
            point = choices[[rng.integers(len(choices))]]
        else:
            point = spaces.random_points(self.space, 1, rng)
        context = getattr(self.optimizer, "context_manager", None)
        if context is not None:
            point[:, context.context_index] = context.context_value
        return point, np.zeros((1, 1))

    def _scores(self, X: Array, grad: bool) -> Any:
        return (np.zeros(len(X)), np.zeros(X.shape)) if grad else np.zeros(len(X))
