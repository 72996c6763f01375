"""A constrained optimiser in the manner of GPyOpt's BayesianOptimization."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from tqdm.auto import tqdm

from . import spaces
from ._gpyopt import BayesianOptimization, Design_space
from .acquisitions import ConstrainedAcquisition, ConstrainedMES
from .errors import CMESError, Infeasible

Array = npt.NDArray[np.float64]


class ConstrainedBayesianOptimization(BayesianOptimization):  # type: ignore[misc]
    """Minimise a function whose evaluations can fail.

    Parameters
    ----------
    f : callable
        Takes a point of the domain as an array of shape (1, d) and returns its value. A failed evaluation returns
        inf or nan, or raises :class:`Infeasible`.
    domain : list of dict
        Variables, as for GPyOpt's BayesianOptimization.
    constraints : list of dict, optional
        Known constraints, as for GPyOpt's BayesianOptimization.
    acquisition : class or instance, default ConstrainedMES
        A class is built for the domain; an instance is used with its own model.
    X, Y : arrays of shape (N, d) and (N, 1), optional
        Evaluations to start from; with X alone they are made first.
    initial_design_numdata : int
        Random points evaluated first where X is not given.
    seed : int
        Everything random is derived from it.
    acquisition_options : dict, optional
        Passed to the acquisition class.

    Attributes
    ----------
    X, Y : arrays of shape (N, d) and (N, 1)
        All evaluations; Y is inf where the evaluation failed.
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
        acquisition: Any = ConstrainedMES,
        X: Array | None = None,
        Y: Array | None = None,
        initial_design_numdata: int = 5,
        seed: int = 0,
        acquisition_options: dict[str, Any] | None = None,
    ) -> None:
        if not callable(f):
            raise CMESError(f"f must be callable, got {type(f).__name__}; pass the function itself")
        if X is None and Y is not None:
            raise CMESError("Y was given without X; pass both, or X alone to have it evaluated")
        self.f = f
        self.domain = domain
        self.constraints = constraints
        self.acquisition = _built(acquisition, domain, constraints, seed, acquisition_options)
        self.space: Design_space = self.acquisition.space
        if X is None:
            rng = np.random.default_rng(seed)
            X = spaces.to_objective(self.space, spaces.random_points(self.space, initial_design_numdata, rng))
        self._todo = np.array(X, dtype=float)
        if self._todo.ndim != 2:
            raise CMESError(f"X must have shape (N, d), got {self._todo.shape}")
        self.X = np.empty((0, self._todo.shape[1]))
        self.Y = np.empty((0, 1))
        if Y is not None:
            values = np.array(Y, dtype=float).reshape(-1, 1)
            if len(values) != len(self._todo):
                raise CMESError(f"X has {len(self._todo)} rows and Y {len(values)}; pass one value for each point")
            self.X, self.Y = self._todo, np.where(np.isnan(values), np.inf, values)
            self._todo = self._todo[:0]
        self._set_gpyopt_attributes(initial_design_numdata)
        self._compute_results()

    def _set_gpyopt_attributes(self, initial_design_numdata: int) -> None:
        """What GPyOpt's inherited methods read; its constructor, which evaluates f and prints, is not called."""
        from GPyOpt.core.evaluators import Sequential
        from GPyOpt.core.task.cost import CostModel

        self.model = self.acquisition.model
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
                bar.set_postfix(best=self.fx_opt, infeasible=f"{np.isinf(self.Y).mean():.0%}")
                bar.update()
        self.num_acquisitions = done

    def _evaluate(self, x: Array) -> None:
        try:
            y = float(np.asarray(self.f(x), dtype=float).reshape(()))
        except Infeasible:
            y = np.inf
        self.X = np.vstack([self.X, x])
        self.Y = np.vstack([self.Y, [[np.inf if np.isnan(y) else y]]])
        self._compute_results()

    def _compute_results(self) -> None:
        self.Y_best = np.minimum.accumulate(self.Y.ravel())
        feasible = np.isfinite(self.Y).any()
        self.x_opt = self.X[np.argmin(self.Y)] if feasible else None
        self.fx_opt = float(self.Y.min()) if feasible else None


def _built(
    acquisition: Any, domain: Any, constraints: Any, seed: int, options: dict[str, Any] | None
) -> ConstrainedAcquisition:
    if isinstance(acquisition, ConstrainedAcquisition):
        if options:
            raise CMESError("acquisition_options go with an acquisition class; give them to the instance instead")
        return acquisition
    if isinstance(acquisition, type) and issubclass(acquisition, ConstrainedAcquisition):
        return acquisition.for_domain(domain, constraints, seed=seed, **(options or {}))
    raise CMESError(
        f"acquisition must be a ConstrainedAcquisition class or instance such as ConstrainedMES, got {acquisition!r}"
    )
