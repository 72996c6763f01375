"""A constrained optimiser in the manner of GPyOpt's BayesianOptimization."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from tqdm.auto import tqdm

from . import spaces
from ._gpyopt import BayesianOptimization, Design_space
from .acquisitions import METHODS, ConstrainedAcquisition
from .errors import CMESError, Infeasible
from .evaluation import Evaluation, failed, interpret
from .models import ConstrainedModel

Array = npt.NDArray[np.float64]


class ConstrainedBayesianOptimization(BayesianOptimization):  # type: ignore[misc]
    """Minimise a function whose evaluations can fail.

    Parameters
    ----------
    f : callable
        Takes a point of the domain as an array of shape (1, d) and returns its value y, or (y, c) with the constraints'
        labels or values, or (y, {name: c}). A failed evaluation returns inf or nan, or raises :class:`Infeasible`.
    domain : list of dict
        Variables, as for GPyOpt's BayesianOptimization.
    constraints : list of dict, optional
        Known constraints, as for GPyOpt's BayesianOptimization.
    feedback : "binary", "real", or a list of BinaryConstraint and RealConstraint, optional
        What is observed of the unknown constraints; one binary constraint by default.
    acquisition : str, class or instance
        "cmes" (the default), "cei", "ap", "mes" or "random"; a class such as ConstrainedMES, which is built for the
        domain; or an instance, which is used with its own model.
    X, Y : arrays of shape (N, d) and (N, 1), optional
        Evaluations to start from; with X alone they are made first.
    C : array of shape (N, J), optional
        Labels or values of the constraints that go with X and Y; needed unless there is one binary constraint.
    initial_design_numdata : int
        Random points evaluated first where X is not given.
    seed : int
        Everything random is derived from it.
    acquisition_options : dict, optional
        Passed to the acquisition class.

    Attributes
    ----------
    X, Y : arrays of shape (N, d) and (N, 1)
        All evaluations; Y is inf where the objective was not observed.
    C : array of shape (N, J)
        Labels, and values minus ``upper``: at most 0 where feasible, nan where not observed.
    causes : list of N str
        Why an evaluation failed, where it did.
    x_opt, fx_opt
        Best feasible evaluation, None while there is none.
    Y_best : array of shape (N,)
        Best feasible value after each evaluation.
    """

    def __init__(
        self,
        f: Callable[[Array], Any],
        domain: list[dict[str, Any]],
        *,
        constraints: list[dict[str, Any]] | None = None,
        feedback: Any = None,
        acquisition: Any = "cmes",
        X: Array | None = None,
        Y: Array | None = None,
        C: Array | None = None,
        initial_design_numdata: int = 5,
        seed: int = 0,
        acquisition_options: dict[str, Any] | None = None,
    ) -> None:
        if not callable(f):
            raise CMESError(f"f must be callable, got {type(f).__name__}; pass the function itself")
        if X is None and Y is not None:
            raise CMESError("Y was given without X; pass both, or X alone to have it evaluated")
        if X is None and not (isinstance(initial_design_numdata, int) and initial_design_numdata > 0):
            raise CMESError(f"initial_design_numdata must be a positive integer, got {initial_design_numdata!r}")
        self.f = f
        self.domain = domain
        self.constraints = constraints
        self.acquisition = _built(acquisition, domain, constraints, feedback, seed, acquisition_options)
        self.space: Design_space = self.acquisition.space
        self.model: ConstrainedModel = self.acquisition.model
        if X is None:
            rng = np.random.default_rng(seed)
            X = spaces.to_objective(self.space, spaces.random_points(self.space, initial_design_numdata, rng))
        self._todo = np.array(X, dtype=float)
        if self._todo.ndim != 2:
            raise CMESError(f"X must have shape (N, d), got {self._todo.shape}")
        self.X = np.empty((0, self._todo.shape[1]))
        self.Y = np.empty((0, 1))
        self.C = np.empty((0, len(self.model.constraints)))
        self.causes: list[str] = []
        self._set_gpyopt_attributes(initial_design_numdata)
        if Y is not None:
            self._take_over(Y, C)
        self._compute_results()

    def _take_over(self, Y: Array, C: Array | None) -> None:
        """Record evaluations made elsewhere."""
        values = np.array(Y, dtype=float).reshape(-1)
        if len(values) != len(self._todo):
            raise CMESError(f"X has {len(self._todo)} rows and Y {len(values)}; pass one value for each point")
        rows = [None] * len(values) if C is None else list(np.asarray(C, dtype=float).reshape(len(values), -1))
        read = [
            interpret(y if c is None else (y, c), self.model.constraints) for y, c in zip(values, rows, strict=True)
        ]
        for x, evaluation in zip(self._todo, read, strict=True):
            self._record(x[None, :], evaluation)
        self._todo = self._todo[:0]

    def _set_gpyopt_attributes(self, initial_design_numdata: int) -> None:
        """What GPyOpt's inherited methods read; its constructor, which evaluates f and prints, is not called."""
        from GPyOpt.core.evaluators import Sequential
        from GPyOpt.core.task.cost import CostModel

        self.evaluator = Sequential(self.acquisition)
        self.cost = CostModel(None)
        self.objective = None
        self.objective_name = getattr(self.f, "__name__", "objective")
        self.initial_design_numdata = initial_design_numdata
        self.normalize_Y = self.exact_feval = self.maximize = self.de_duplication = False
        self.normalization_type = "stats"
        self.model_type = self.acquisition_type = "User defined"
        self.model_update_interval = self.batch_size = 1
        self.model_parameters_iterations = None
        self.context = None
        self.num_acquisitions = 0

    @property
    def feasible(self) -> npt.NDArray[np.bool_]:
        """Evaluations at which every constraint was observed to hold, (N,)."""
        return np.asarray((self.C <= 0).all(axis=1))

    def run_optimization(
        self,
        max_iter: int = 0,
        max_time: float = np.inf,
        *,
        context: dict[str, Any] | None = None,
        progress: bool = False,
    ) -> None:
        """Evaluate the initial points that are left, then ``max_iter`` suggestions, within ``max_time`` seconds.

        Parameters
        ----------
        context : dict, optional
            Variables to hold at a value, as in GPyOpt.
        progress : bool
            Show a progress bar.
        """
        start = time.monotonic()
        with tqdm(total=len(self._todo) + max_iter, disable=not progress, unit="evaluation") as bar:
            done = 0
            while time.monotonic() - start < max_time and (len(self._todo) or done < max_iter):
                if len(self._todo):
                    x, self._todo = self._todo[:1], self._todo[1:]
                else:
                    x = self.suggest_next_locations(context=context)
                    done += 1
                self._evaluate(x)
                bar.set_postfix(best=self.fx_opt, infeasible=f"{1 - self.feasible.mean():.0%}")
                bar.update()
        self.num_acquisitions = done

    def _update_model(self, normalization_type: str = "stats") -> None:
        Y = np.where(np.isfinite(self.Y), self.Y, np.nan)
        self.model.set_data(spaces.to_model(self.space, self.X), Y, self.C)

    def _evaluate(self, x: Array) -> None:
        try:
            evaluation = interpret(self.f(x), self.model.constraints)
        except Infeasible as failure:
            evaluation = failed(failure, self.model.constraints)
        self._record(x, evaluation)
        self._compute_results()

    def _record(self, x: Array, evaluation: Evaluation) -> None:
        self.X = np.vstack([self.X, x])
        self.Y = np.vstack([self.Y, [[np.inf if np.isnan(evaluation.y) else evaluation.y]]])
        self.C = np.vstack([self.C, evaluation.c])
        self.causes.append(evaluation.cause)

    def _compute_results(self) -> None:
        values = np.where(self.feasible, self.Y.ravel(), np.inf)
        self.Y_best = np.minimum.accumulate(values)
        found = np.isfinite(values).any()
        self.x_opt = self.X[np.argmin(values)] if found else None
        self.fx_opt = float(values.min()) if found else None


def _built(
    acquisition: Any, domain: Any, constraints: Any, feedback: Any, seed: int, options: dict[str, Any] | None
) -> ConstrainedAcquisition:
    if isinstance(acquisition, ConstrainedAcquisition):
        if options or feedback is not None:
            raise CMESError(
                "acquisition_options and feedback go with a name or a class; give them to the instance instead"
            )
        return acquisition
    if isinstance(acquisition, str):
        if acquisition not in METHODS:
            raise CMESError(f"acquisition must be one of {', '.join(map(repr, METHODS))}, got {acquisition!r}")
        acquisition = METHODS[acquisition]
    if isinstance(acquisition, type) and issubclass(acquisition, ConstrainedAcquisition):
        chosen = {} if feedback is None else {"feedback": feedback}
        return acquisition.for_domain(domain, constraints, seed=seed, **chosen, **(options or {}))
    raise CMESError(f"acquisition must be a name, or a class or instance such as ConstrainedMES, got {acquisition!r}")
