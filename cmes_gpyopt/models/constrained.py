"""The joint model of an objective and its unknown constraints, as a GPyOpt model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import spaces
from .._gpyopt import BOModel, Design_space
from ..errors import CMESError
from .latent import BinaryConstraint, Constraint, RealConstraint, Regression
from .posterior import Moments

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Data:
    """Everything observed so far; nan means not observed."""

    X: Array
    """(N, d), model space"""
    Y: Array
    """(N,)"""
    C: Array
    """(N, J): -1 or +1 for a binary constraint, a value (feasible where <= 0) for a real one"""

    def same_as(self, other: "Data") -> bool:
        """Whether two data sets are equal."""
        pairs = ((self.X, other.X), (self.Y, other.Y), (self.C, other.C))
        return all(np.array_equal(a, b, equal_nan=True) for a, b in pairs)

    @property
    def feasible(self) -> npt.NDArray[np.bool_]:
        """Points at which every constraint was observed to hold, (N,)."""
        return np.asarray((self.C <= 0).all(axis=1))


class ConstrainedModel(BOModel):  # type: ignore[misc]
    """An objective and J unknown constraints, conditionally independent given the inputs.

    Parameters
    ----------
    space : GPyOpt Design_space
        The domain; inputs are scaled to its unit cube.
    constraints : sequence of BinaryConstraint and RealConstraint, optional
        One binary constraint by default. The model works on copies.

    Attributes
    ----------
    objective : Regression
        Latent objective; ``objective.gp`` is the GPy model.
    constraints : list
        Latent constraints; ``constraints[j].gp`` are the GPy models.
    """

    analytical_gradient_prediction = True

    def __init__(self, space: Design_space, constraints: Sequence[Constraint] | None = None) -> None:
        self.space = space
        chosen = [BinaryConstraint()] if constraints is None else list(constraints)
        names = [c.name for c in chosen]
        if len(set(names)) < len(names):
            raise CMESError(f"constraints need different names, got {names}; pass name= to each")
        self.constraints: list[Constraint] = [c.unfitted() for c in chosen]
        self.objective = Regression()
        self.data: Data | None = None
        self._fmin: float | None = None
        self._lower, self._width = spaces.box(space)

    def set_data(self, X: Array, Y: Array, C: Array) -> None:
        """Fit to all observations.

        Parameters
        ----------
        X : array of shape (N, d)
            Points of the model space (categorical variables one-hot encoded).
        Y : array of shape (N,) or (N, 1)
            Objective values; nan where the objective was not observed.
        C : array of shape (N, J)
            Labels -1 (feasible) and +1 for a binary constraint; for a real one the value minus its ``upper``.
            nan where a constraint was not observed.
        """
        data = self._checked(X, Y, C)
        if self.data is not None and self.data.same_as(data):
            return
        seen = np.isfinite(data.Y)
        self.objective.fit(data.X[seen], data.Y[seen], self._lower, self._width)
        for constraint, values in zip(self.constraints, data.C.T, strict=True):
            seen = np.isfinite(values)
            constraint.fit(data.X[seen], values[seen], self._lower, self._width)
        self.data = data
        self._fmin = None

    def _checked(self, X: Array, Y: Array, C: Array) -> Data:
        # Copies, so that later changes of the caller's arrays cannot change what was fitted.
        X, Y = np.array(X, dtype=float), np.array(Y, dtype=float).reshape(-1)
        C = np.array(C, dtype=float).reshape(len(Y), len(self.constraints))
        if X.ndim != 2 or X.shape[1] != self.space.model_dimensionality or len(X) != len(Y):
            raise CMESError(
                f"expected X of shape ({len(Y)}, {self.space.model_dimensionality}) to go with {len(Y)} values Y, "
                f"got shape {X.shape}; pass model-space points, one row for each value"
            )
        if not np.isfinite(X).all():
            row = int(np.flatnonzero(~np.isfinite(X).all(axis=1))[0])
            raise CMESError(f"X must be finite, row {row} is {X[row].tolist()}; remove that row")
        if np.isinf(Y).any() or np.isinf(C).any():
            raise CMESError("Y and C must be finite, or nan where nothing was observed; got an infinite value")
        for constraint, values in zip(self.constraints, C.T, strict=True):
            if constraint.binary and not np.isin(values[~np.isnan(values)], (-1.0, 1.0)).all():
                bad = values[~np.isnan(values) & ~np.isin(values, (-1.0, 1.0))][0]
                raise CMESError(
                    f"labels of {constraint.name!r} must be -1 (feasible) or +1 (infeasible), got {bad:g}; "
                    "use a RealConstraint for measured values"
                )
        return Data(X, Y, C)

    def updateModel(self, X_all: Array, Y_all: Array, X_new: Any = None, Y_new: Any = None) -> None:
        """GPyOpt's update: a finite Y is a feasible evaluation, inf (or nan) an infeasible one."""
        if len(self.constraints) > 1 or any(not c.binary for c in self.constraints):
            raise CMESError(
                "GPyOpt's BayesianOptimization passes on objective values only, which is enough for one binary "
                "constraint; use ConstrainedBayesianOptimization, or set_data(X, Y, C), for other feedback"
            )
        Y = np.asarray(Y_all, dtype=float).reshape(-1)
        if np.isneginf(Y).any():
            raise CMESError(
                "Y contains -inf where finite values, or inf for a failed evaluation, are expected; "
                "pass normalize_Y=False (this model standardises by itself) and maximize=False "
                "(return the negated value instead) to BayesianOptimization"
            )
        self._check_unchanged(np.asarray(X_all, dtype=float), Y)
        seen = np.isfinite(Y)
        if not self.constraints and not seen.all():
            raise CMESError(
                f"evaluation {int(np.flatnonzero(~seen)[0])} failed, but the model has no constraint to explain "
                "it; pass feedback='binary'"
            )
        labels = np.where(seen, -1.0, 1.0)[:, None]
        self.set_data(X_all, np.where(seen, Y, np.nan), labels[:, : len(self.constraints)])

    def _check_unchanged(self, X: Array, Y: Array) -> None:
        old = self.data
        if old is None or len(old.X) > len(X) or not np.array_equal(old.X, X[: len(old.X)]):
            return
        before, now = old.Y, np.where(np.isfinite(Y), Y, np.nan)[: len(old.Y)]
        if not np.array_equal(before, now, equal_nan=True):
            row = int(np.flatnonzero(~((before == now) | (np.isnan(before) & np.isnan(now))))[0])
            raise CMESError(
                f"the value of observation {row} changed from {before[row]:g} to {now[row]:g} since the last update; "
                "pass normalize_Y=False to BayesianOptimization (this model standardises by itself), "
                "and build a new acquisition for a new run"
            )

    def predict(self, X: Array, with_noise: bool = False) -> tuple[Array, Array]:
        """Posterior mean and standard deviation of the objective at X, in the user's units, each (n, 1)."""
        m = self.objective.moments(np.atleast_2d(X))
        std = np.sqrt(m.std**2 + self.objective.noise) if with_noise else m.std
        return self._in_units(m.mean)[:, None], self.objective.scale * std[:, None]

    def predict_withGradients(self, X: Array) -> tuple[Array, Array, Array, Array]:
        """Mean and std (n, 1) of the latent objective and their gradients (n, d), in the user's units."""
        m: Moments = self.objective.moments(np.atleast_2d(X), grad=True)
        assert m.d_mean is not None
        assert m.d_std is not None
        scale = self.objective.scale
        return self._in_units(m.mean)[:, None], scale * m.std[:, None], scale * m.d_mean, scale * m.d_std

    def _in_units(self, standardised: Array) -> Array:
        return self.objective.offset + self.objective.scale * standardised

    def get_fmin(self) -> float:
        """Lowest posterior mean over evaluated points labelled feasible, in the user's units; inf without any."""
        return float(self._in_units(np.array(self.standardised_fmin())))

    def standardised_fmin(self) -> float:
        """:meth:`get_fmin` in the units of the latent objective."""
        if self.data is None or not self.data.feasible.any():
            return np.inf
        if self._fmin is None:
            self._fmin = float(self.objective.moments(self.data.X[self.data.feasible]).mean.min())
        return self._fmin

    def probability_feasible(self, X: Array) -> Array:
        """Probability that all constraints hold at X, (n,): the product over constraints."""
        X = np.atleast_2d(X)
        total = np.zeros(len(X))
        for constraint in self.constraints:
            total = total + constraint.log_feasible(X)
        return np.exp(total)

    def get_model_parameters(self) -> Array:
        """Hyperparameters of all latent functions, (1, P)."""
        return np.array([list(self._parameters().values())])

    def get_model_parameters_names(self) -> list[str]:
        """Names that go with :meth:`get_model_parameters`."""
        return list(self._parameters())

    def _parameters(self) -> dict[str, float]:
        parameters = self.objective.parameters()
        for constraint in self.constraints:
            parameters |= constraint.parameters()
        return parameters

    def copy(self) -> "ConstrainedModel":
        """An independent model with the same settings and data."""
        clone = ConstrainedModel(self.space, self.constraints)
        if self.data is not None:
            clone.set_data(self.data.X, self.data.Y, self.data.C)
        return clone

    @property
    def model(self) -> "ObjectiveView | None":
        """What GPyOpt's plots read: the objective in the user's units; None before the first data."""
        return None if self.data is None else ObjectiveView(self)


@dataclass(frozen=True)
class ObjectiveView:
    """The part of a GPy model that GPyOpt's plotting functions use, in the user's units."""

    parent: ConstrainedModel

    @property
    def X(self) -> Array:
        """Evaluated points, (N, d)."""
        assert self.parent.data is not None
        return self.parent.data.X

    @property
    def Y(self) -> Array:
        """Objective values, (N, 1), nan where the objective was not observed."""
        assert self.parent.data is not None
        return self.parent.data.Y[:, None]

    def predict(self, X: Array) -> tuple[Array, Array]:
        """Mean and *variance*, as in GPy, each (n, 1)."""
        mean, std = self.parent.predict(X)
        return mean, std**2

    def plot_density(self, bounds: tuple[float, float], alpha: float = 0.5) -> None:
        """Shade the posterior of a one-dimensional objective over ``bounds``."""
        import matplotlib.pyplot as plt

        x = np.linspace(*bounds, 400)
        mean, std = (a.ravel() for a in self.parent.predict(x[:, None]))
        for width in (2.58, 1.96, 1.28, 0.67):
            plt.fill_between(x, mean - width * std, mean + width * std, color="tab:blue", alpha=alpha / 4, lw=0)


def constraints_from(feedback: str | Constraint | Sequence[Constraint]) -> list[Constraint]:
    """Constraints described by ``feedback``: "binary", "real", one constraint, or a list of them."""
    if isinstance(feedback, BinaryConstraint | RealConstraint):
        return [feedback]
    if isinstance(feedback, str):
        if feedback not in ("binary", "real"):
            raise CMESError(f"feedback must be 'binary', 'real' or a list of constraints, got {feedback!r}")
        return [BinaryConstraint() if feedback == "binary" else RealConstraint()]
    chosen = list(feedback)
    for constraint in chosen:
        if not isinstance(constraint, BinaryConstraint | RealConstraint):
            raise CMESError(f"feedback must list BinaryConstraint and RealConstraint objects, got {constraint!r}")
    return chosen
