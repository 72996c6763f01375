"""Evaluating the objective and the constraints separately, each at its own cost.

References
----------
Perrone et al. (2020), Constrained Bayesian optimization with max-value entropy search, supplement A.5.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .. import spaces
from ..errors import CMESError
from ..models import Constraint
from .base import DECOUPLED_STREAM
from .cmes import ConstrainedMES

Array = npt.NDArray[np.float64]


class Suggestion(NamedTuple):
    """Where to evaluate next, and what."""

    x: Array
    """(1, d), a point of the objective space"""
    target: str
    """"objective", "joint", or the name of a constraint"""
    score: float
    """information per unit cost"""


class Decoupled:
    """Choose the next point together with what to evaluate there, by information per unit cost.

    It is the information alone: a weight of the border does not enter.

    Parameters
    ----------
    acquisition : ConstrainedMES
    costs : mapping
        Cost of each evaluation that is possible: "objective", the name of a constraint, or "joint" for all at once.

    Examples
    --------
    >>> policy = Decoupled(acquisition, costs={"objective": 1.0, "size": 0.1})  # doctest: +SKIP
    >>> x, target, _ = policy.suggest()  # doctest: +SKIP
    >>> policy.tell(x, {target: measure(target, x)})  # doctest: +SKIP
    """

    def __init__(self, acquisition: ConstrainedMES, costs: Mapping[str, float]) -> None:
        names = [c.name for c in acquisition.model.constraints]
        for target, cost in costs.items():
            if target not in ("joint", "objective", *names):
                raise CMESError(f"costs name {target!r}; expected 'objective', 'joint' or one of {names}")
            if not (np.isfinite(cost) and cost > 0):
                raise CMESError(f"the cost of {target!r} must be a positive number, got {cost!r}")
        if not costs:
            raise CMESError("costs must name at least one evaluation, such as {'objective': 1.0}")
        self.acquisition, self.costs = acquisition, dict(costs)
        self.space, self.model = acquisition.space, acquisition.model
        dimension = self.space.model_dimensionality
        self.X, self.Y = np.empty((0, dimension)), np.empty(0)
        self.C = np.empty((0, len(names)))

    def tell(self, x: Array, values: Mapping[str, float]) -> None:
        """Record what was observed at a point of the objective space.

        Parameters
        ----------
        x : array of shape (1, d)
        values : mapping
            From "objective" and names of constraints to what was observed: a label -1 or +1 for a binary constraint, the
            measured value for a real one. Values at a point that was evaluated before are added to those.
        """
        constraints = {c.name: (j, c) for j, c in enumerate(self.model.constraints)}
        unknown = [name for name in values if name != "objective" and name not in constraints]
        if unknown:
            raise CMESError(f"values name {unknown[0]!r}; expected 'objective' or one of {list(constraints)}")
        point = spaces.to_model(self.space, np.atleast_2d(np.asarray(x, dtype=float)))
        X, Y, C, row = self._with_row(point)
        for name, value in values.items():
            if name == "objective":
                Y[row] = value
            else:
                j, constraint = constraints[name]
                C[row, j] = _as_modelled(value, constraint)
        self.model.set_data(X, Y, C)
        self.X, self.Y, self.C = X, Y, C

    def _with_row(self, point: Array) -> tuple[Array, Array, Array, int]:
        known = np.flatnonzero((self.X == point).all(axis=1))
        if len(known):
            return self.X, self.Y.copy(), self.C.copy(), int(known[0])
        X, Y = np.vstack([self.X, point]), np.append(self.Y, np.nan)
        return X, Y, np.vstack([self.C, np.full((1, self.C.shape[1]), np.nan)]), len(X) - 1

    def suggest(self) -> Suggestion:
        """The point and the target with the largest score per unit cost."""
        self.acquisition.update()
        best: Suggestion | None = None
        for stream, (target, cost) in enumerate(self.costs.items()):
            x, value = self._best_point(target, stream)
            if best is None or value / cost > best.score:
                best = Suggestion(spaces.to_objective(self.space, x), target, value / cost)
        assert best is not None
        return best

    def _best_point(self, target: str, stream: int) -> tuple[Array, float]:
        def f(X: Array) -> Array:
            return -np.asarray(self.acquisition.target_scores(X, target, False))[:, None]

        def f_df(X: Array) -> tuple[Array, Array]:
            value, gradient = self.acquisition.target_scores(X, target, True)
            return -value[:, None], -gradient

        seen = np.column_stack([self.Y, self.C])
        columns = ["objective", *(c.name for c in self.model.constraints)]
        used = np.isfinite(seen if target == "joint" else seen[:, [columns.index(target)]]).all(axis=1)
        x, value = self.acquisition.optimizer.optimize(
            f,
            f_df=f_df,
            rng=self.acquisition.generator(DECOUPLED_STREAM + stream),
            near=self.X[-3:],
            avoid=self.X[used],
        )
        return x, -float(value.item())


def _as_modelled(value: float, constraint: Constraint) -> float:
    return float(value) if constraint.binary else float(value) - constraint.upper  # type: ignore[union-attr]
