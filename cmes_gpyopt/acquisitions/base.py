"""What every acquisition of this library shares: the adaptor between pure scores and GPyOpt."""

from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from .. import spaces
from .._gpyopt import AcquisitionBase, Design_space
from ..checks import number, whole_number
from ..errors import CMESError
from ..models import ConstrainedModel, Constraint, Regression, constraints_from
from ..normal import hazard
from ..search import AcquisitionSearch
from .border import inside_share, weigh, weigh_log

Array = npt.NDArray[np.float64]

# The score of points outside the known constraints: worse than any real one, and small enough that the arithmetic
# of line searches and plots does not overflow.
OUTSIDE = -np.sqrt(np.finfo(float).max)
# The same for points that are too likely to fail, between the real scores and the points outside.
UNSAFE = -1e100

EFFORT_IN_FLIGHT = 0.25

# Random streams derived from (seed, number of observations, number of pending points, stream).
GRID_STREAM, OPTIMA_STREAM, SEARCH_STREAM, DECOUPLED_STREAM, WANDER_STREAM = range(5)


class ConstrainedAcquisition(AcquisitionBase):  # type: ignore[misc]
    """Base class: a score to maximise, with analytic gradients, on a :class:`ConstrainedModel`.

    Subclasses implement ``_scores(X, grad)``, values (n,) and gradients (n, d) of model-space points X (n, d), and
    may override ``_prepare``, called once whenever the model has new data.

    Parameters
    ----------
    model : ConstrainedModel
    space : GPyOpt Design_space
    optimizer : optional
        :class:`AcquisitionSearch` by default; GPyOpt's AcquisitionOptimizer works as well.
    cost_withGradients : callable, optional
        Cost of an evaluation, as in GPyOpt. Scores are per unit cost; a negative score is multiplied by the cost
        instead of divided, so that a higher cost never makes a point look better.
    seed : int
        Everything random is derived from it and from the number of observations, never from a state that advances:
        the same data give the same suggestion however often it is asked for.
    border : float
        Standard deviation, as a share of each continuous variable's range, of the neighbourhood of a point that should
        lie inside the box; scores near the border are lowered (see :mod:`.border`). 0 is no weight.
    """

    analytical_gradient_prediction = True
    log_scale: ClassVar[bool] = False
    """Whether the score is a logarithm, from which log cost is subtracted."""
    believes_pending: ClassVar[bool] = True
    """Whether pending points are taken as known at their posterior mean before ``_prepare`` is called."""

    def __init__(
        self,
        model: ConstrainedModel,
        space: Design_space,
        optimizer: Any = None,
        cost_withGradients: Any = None,
        *,
        seed: int = 0,
        border: float = 0.0,
    ) -> None:
        if not isinstance(model, ConstrainedModel):
            raise CMESError(
                f"{type(self).__name__} needs a ConstrainedModel, got {type(model).__name__}; "
                f"{type(self).__name__}.for_domain(domain) builds one"
            )
        super().__init__(model, space, optimizer or AcquisitionSearch(space), cost_withGradients)
        self.seed = whole_number("seed", seed, 0)
        self.border = number("border", border)
        if not 0 <= self.border <= 1:
            raise CMESError(f"border must lie between 0, for no weight, and 1, got {border!r}")
        self._nothing_pending = np.empty((0, space.model_dimensionality))
        self.pending: Array = self._nothing_pending
        self.least_probability = 0.0
        self.objective: Regression = model.objective
        self.constraints: list[Constraint] = model.constraints
        self._prepared_for: Any = None

    @classmethod
    def for_domain(
        cls, domain: list[dict[str, Any]], constraints: Any = None, *, feedback: Any = "binary", **options: Any
    ) -> "ConstrainedAcquisition":
        """Build the space, the models, the optimizer and the acquisition for a GPyOpt domain.

        Parameters
        ----------
        domain : list of dict
            As for GPyOpt's BayesianOptimization.
        constraints : list of dict, optional
            Known constraints, as for GPyOpt's BayesianOptimization, which needs them too.
        feedback : "binary", "real", or a list of BinaryConstraint and RealConstraint
            What is observed of the unknown constraints.
        **options
            Passed to the acquisition.
        """
        space = spaces.checked_space(domain, constraints)
        return cls(ConstrainedModel(space, constraints_from(feedback)), space, **options)

    def acquisition_function(self, x: Array) -> Array:
        """Negated score per unit cost, (n, 1), which GPyOpt minimises."""
        x = np.atleast_2d(x)
        score = self._compute_acq(x)
        cost = self.cost_withGradients(x)[0]
        return -self._outside(x, self._per_cost(score, cost)[0])

    def acquisition_function_withGradients(self, x: Array) -> tuple[Array, Array]:
        """Negated score per unit cost (n, 1) and its gradient (n, d)."""
        x = np.atleast_2d(x)
        score, gradient = self._compute_acq_withGradients(x)
        cost, d_cost = self.cost_withGradients(x)
        value, by_score, by_cost = self._per_cost(score, cost)
        gradient = by_score * gradient + by_cost * d_cost
        value = self._outside(x, value)
        return -value, np.where(value <= UNSAFE, 0.0, -gradient)

    def _per_cost(self, score: Array, cost: Array) -> tuple[Array, Array, Array]:
        """Score per unit cost and its partial derivatives by score and by cost."""
        if self.log_scale:
            return score - np.log(cost), np.ones_like(score), -1.0 / cost
        positive = score >= 0
        factor = np.where(positive, 1.0 / cost, cost)
        with np.errstate(over="ignore"):  # a score may be the largest double
            value = np.minimum(score * factor, np.finfo(float).max)
        return value, factor, np.where(positive, -value / cost, score)

    def _outside(self, x: Array, value: Array) -> Array:
        """Values (n, 1), with points that are not allowed worse than any other.

        Points less likely to be feasible than ``least_probability`` are ranked by that probability.
        """
        if self.least_probability > 0:
            probability = self.model.probability_feasible(x)[:, None]
            value = np.where(probability < self.least_probability, UNSAFE * (2.0 - probability), value)
        if self.space.has_constraints():
            value = np.where(spaces.inside(self.space, x)[:, None], value, OUTSIDE)
        return value

    def optimize(self, duplicate_manager: Any = None) -> tuple[Array, Array]:
        """Draw what the score needs for the current data, and maximise it."""
        self.update()
        if not isinstance(self.optimizer, AcquisitionSearch):
            return super().optimize(duplicate_manager)  # type: ignore[no-any-return]
        return self._search(
            self.acquisition_function, self.acquisition_function_withGradients, duplicate_manager, self._screen
        )

    def _screen(self, x: Array) -> Array:
        """The acquisition function, as accurately as the choice of starting points needs."""
        return self.acquisition_function(x)

    def _search(
        self, f: Any, f_df: Any, duplicate_manager: Any, screen: Any = None, candidates: Array | None = None
    ) -> tuple[Array, Array]:
        data = self.model.data
        best = data.X[data.feasible][np.argsort(data.Y[data.feasible])[:3]]
        return self.optimizer.optimize(  # type: ignore[no-any-return]
            f=f,
            f_df=f_df,
            screen=screen,
            duplicate_manager=duplicate_manager,
            rng=self.generator(SEARCH_STREAM),
            near=best if len(best) else data.X[-3:],
            avoid=np.vstack([data.X, self.pending]),
            effort=self.effort,
            candidates=candidates,
        )

    @property
    def effort(self) -> float:
        """Share of the usual work to spend on a suggestion: less while points are in flight, because a worker waits."""
        return EFFORT_IN_FLIGHT if len(self.pending) else 1.0

    def update(self) -> None:
        """Make the random state match the model's data; does nothing where it already does."""
        if self.model.data is None:
            raise CMESError("the model has no data yet; call model.set_data or model.updateModel first")
        state = (self.model.data, self.pending)
        if self._prepared_for is None or any(a is not b for a, b in zip(self._prepared_for, state, strict=True)):
            self.objective = self.model.objective
            self.constraints = [constraint.exploring() for constraint in self.model.constraints]
            if len(self.pending) and self.believes_pending:
                self.objective = self.objective.conditioned(self.pending)
                self.constraints = [self._believed(constraint) for constraint in self.constraints]
            self._prepare()
            self._prepared_for = state

    def _believed(self, constraint: Constraint) -> Constraint:
        """The constraint given its expected values at the pending points.

        While nothing feasible is known, they are what is expected of points that fail: the next one is for that case.
        """
        if self.model.data.feasible.any():
            return constraint.conditioned(self.pending)
        m = constraint.moments(self.pending)
        above = (constraint.threshold(0.5) - m.mean) / m.std
        return constraint.conditioned(self.pending, m.mean + m.std * hazard(above))

    def set_pending(self, X: Array | None) -> None:
        """Say which points are being evaluated: model-space points (p, d), or None.

        A score takes them as known where it can: by default at their posterior mean.
        """
        shape = (-1, self.space.model_dimensionality)
        self.pending = self._nothing_pending if X is None else np.array(X, dtype=float).reshape(shape)

    def _prepare(self) -> None:
        """Draw what the score needs."""

    def generator(self, stream: int) -> np.random.Generator:
        """A generator that belongs to the seed, the data and ``stream``, always in the same state."""
        return np.random.default_rng([self.seed, len(self.model.data.X), len(self.pending), stream])

    def _scores(self, X: Array, grad: bool) -> Any:
        raise NotImplementedError

    def _compute_acq(self, x: Array) -> Array:
        self.update()
        return np.asarray(self._weighed(x, self._scores(x, False), None)[0][:, None])

    def _compute_acq_withGradients(self, x: Array) -> tuple[Array, Array]:
        self.update()
        value, gradient = self._weighed(x, *self._scores(x, True))
        return value[:, None], gradient

    @property
    def visits_border(self) -> bool:
        """Whether this suggestion is made without the weight of the border."""
        return False

    def _weighed(self, X: Array, score: Array, gradient: Any) -> tuple[Array, Any]:
        """Score (n,) and gradient (n, d) with the weight of the border."""
        if not self.border or self.visits_border:
            return score, gradient
        lower, width = spaces.box(self.space)
        continuous = spaces.continuous_columns(self.space)
        weight, slope = inside_share((X[:, continuous] - lower[continuous]) / width[continuous], self.border)
        d_weight = np.zeros_like(X)
        d_weight[:, continuous] = slope / width[continuous]
        return (weigh_log if self.log_scale else weigh)(score, gradient, weight, d_weight)
