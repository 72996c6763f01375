"""A constrained optimiser in the manner of GPyOpt's BayesianOptimization."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Executor, Future, wait
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from tqdm.auto import tqdm

from . import spaces
from ._gpyopt import BayesianOptimization, ContextManager, Design_space, GPyOpt
from .acquisitions import METHODS, ConstrainedAcquisition
from .checks import whole_number
from .errors import CMESError, Infeasible
from .evaluation import Evaluation, failed, interpret
from .history import History
from .isolation import Crash, Isolated, Limits
from .models import ConstrainedModel
from .results import Recommendation, Result, named, recommend

Array = npt.NDArray[np.float64]

logger = logging.getLogger(__name__)

RECOMMEND_STREAM = 77
DONE = "all evaluations were made"
OUT_OF_TIME = "the time was used up"
EXPLORED = "every point of the domain has been evaluated"
INTERRUPTED = "it was interrupted"

# How much the chance of failure that max_infeasible_fraction still allows may be demanded to fall.
SMALLEST_RISK = 0.01


class _Bar(tqdm):  # type: ignore[misc]
    """A progress bar with a lock of its own.

    tqdm's default lock is shared with forked processes: one that is killed while it holds the lock, as isolated
    evaluations may be, would leave the optimiser waiting for ever.
    """

    _lock = threading.RLock()


class _Flight(NamedTuple):
    """An evaluation that has been started."""

    x: Array
    """(1, d)"""
    id: int | None
    started: float


class ConstrainedBayesianOptimization(BayesianOptimization):  # type: ignore[misc]
    """Minimise a function whose evaluations can fail.

    Parameters
    ----------
    f : callable or None
        Takes a point of the domain as an array of shape (1, d) and returns its value y, or (y, c) with the constraints'
        labels or values, or (y, {name: c}). A failed evaluation returns inf or nan, or raises :class:`Infeasible`. None for
        a loop of your own with :meth:`suggest_next_locations` and :meth:`tell`.
    domain : list of dict
        Variables, as for GPyOpt's BayesianOptimization.
    constraints : list of dict, optional
        Known constraints, as for GPyOpt's BayesianOptimization.
    feedback : "binary", "real", or a list of BinaryConstraint and RealConstraint, optional
        What is observed of the unknown constraints; one binary constraint by default. A failure that does not say which
        constraint it violates counts for the first binary one.
    acquisition : str, class or instance
        "cmes" (the default), "cei", "ap", "mes", "pesc" or "random"; a class such as ConstrainedMES, which is built for the
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
    catch : exception class or tuple of them
        Errors of f that mean that the evaluation failed. Any other error stops the run; what was evaluated is kept.
    isolate : bool or Limits
        Evaluate f in a child process, so that a crash, a timeout or running out of memory is an infeasible evaluation.
    executor : concurrent.futures.Executor, optional
        Evaluates f elsewhere, several points at a time and asynchronously: a new suggestion is made as soon as an
        evaluation returns, knowing the points in flight.
    workers : int, optional
        Evaluations in flight with an executor; by default as many as it has workers.
    batch_size : int
        Suggestions made at a time; more than one makes synchronous batches.
    history : path, optional
        SQLite file in which every suggestion and every outcome is stored before the next evaluation starts. The same call
        with the same file resumes the run; see :func:`load_history`.
    max_infeasible_fraction : float, optional
        Keep the share of infeasible evaluations near or below this, by demanding a higher probability of feasibility the
        more of the allowance has been used up.

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
        f: Callable[[Array], Any] | None,
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
        catch: type[Exception] | tuple[type[Exception], ...] = (),
        isolate: bool | Limits = False,
        executor: Executor | None = None,
        workers: int | None = None,
        batch_size: int = 1,
        history: Any = None,
        max_infeasible_fraction: float | None = None,
    ) -> None:
        _check_arguments(f, X, Y, C, initial_design_numdata, catch, isolate, batch_size, max_infeasible_fraction)
        self.f = f
        self.domain = domain
        self.constraints = constraints
        self.acquisition = _built(acquisition, domain, constraints, feedback, seed, acquisition_options)
        self.space: Design_space = self.acquisition.space
        self.model: ConstrainedModel = self.acquisition.model
        self.seed = seed
        self.catch = catch if isinstance(catch, tuple) else (catch,)
        self.isolate = isolate
        self.executor, self.workers, self.batch_size = executor, _in_flight(executor, workers), batch_size
        self.max_infeasible_fraction = max_infeasible_fraction
        if X is None:
            rng = np.random.default_rng(seed)
            X = spaces.to_objective(self.space, spaces.random_points(self.space, initial_design_numdata, rng))
        self._todo = self._points(X, "X")
        self._initial = self._todo
        self.X = np.empty((0, self._todo.shape[1]))
        self.Y = np.empty((0, 1))
        self.C = np.empty((0, len(self.model.constraints)))
        self.causes: list[str] = []
        self._set_gpyopt_attributes(initial_design_numdata)
        self._restarts: dict[bytes, int] = {}
        self._credit = 0
        self._planned = 0
        self.history: History | None = None
        if history is not None:
            self._open_history(history)
        if Y is not None and len(self.X) == 0:
            self.tell(self._todo, Y, C)
        self._compute_results()

    def _set_gpyopt_attributes(self, initial_design_numdata: int) -> None:
        """What GPyOpt's inherited methods read; its constructor, which evaluates f and prints, is not called."""
        self.evaluator = GPyOpt.core.evaluators.Sequential(self.acquisition)
        self.cost = GPyOpt.core.task.cost.CostModel(None)
        self.objective = None
        self.objective_name = getattr(self.f, "__name__", "objective")
        self.initial_design_numdata = initial_design_numdata
        self.normalize_Y = self.exact_feval = self.maximize = self.de_duplication = False
        self.normalization_type = "stats"
        self.model_type = self.acquisition_type = "User defined"
        self.model_update_interval = 1
        self.model_parameters_iterations = None
        self.context: dict[str, Any] | None = None
        self.num_acquisitions = 0

    # --- data ---------------------------------------------------------------------------------------------------------

    @property
    def feasible(self) -> npt.NDArray[np.bool_]:
        """Evaluations at which every constraint was observed to hold, (N,)."""
        return np.asarray((self.C <= 0).all(axis=1))

    def tell(self, X: Array, Y: Array, C: Array | None = None) -> None:
        """Record evaluations made elsewhere.

        Parameters
        ----------
        X : array of shape (N, d)
        Y : array of shape (N,) or (N, 1)
            inf or nan where the objective was not observed.
        C : array of shape (N, J), optional
            Labels -1 and +1, or measured values; may be left out with a single binary constraint.
        """
        X = self._points(X, "X")
        values = np.array(Y, dtype=float).reshape(-1)
        if len(values) != len(X):
            raise CMESError(f"X has {len(X)} rows and Y {len(values)}; pass one value for each point")
        rows: list[Any] = [None] * len(X)
        if C is not None:
            rows = list(np.asarray(C, dtype=float).reshape(len(X), -1))
        read = [
            interpret(y if c is None else (y, c), self.model.constraints) for y, c in zip(values, rows, strict=True)
        ]
        for x, evaluation in zip(X, read, strict=True):
            if self.history is not None:
                self.history.record(x, evaluation)
            self._record(x[None, :], evaluation)
        self._compute_results()

    def _record(self, x: Array, evaluation: Evaluation) -> None:
        self.X = np.vstack([self.X, x])
        self.Y = np.vstack([self.Y, [[np.inf if np.isnan(evaluation.y) else evaluation.y]]])
        self.C = np.vstack([self.C, evaluation.c])
        self.causes.append(evaluation.cause)
        self._todo = self._todo[~spaces.is_row_of(self._todo, x)]

    def _points(self, X: Any, name: str) -> Array:
        points = np.array(X, dtype=float)
        dimension = spaces.objective_dimension(self.space)
        if points.ndim != 2 or points.shape[1] != dimension:
            raise CMESError(f"{name} must have shape (N, {dimension}), got {points.shape}")
        if not np.isfinite(points).all():
            raise CMESError(
                f"{name} must be finite, row {int(np.flatnonzero(~np.isfinite(points).all(axis=1))[0])} is not"
            )
        return points

    def _open_history(self, path: Any) -> None:
        """Open or create the history, and take over what it holds."""
        self.history = History(
            path,
            domain=self.domain,
            known_constraints=self.constraints,
            constraints=self.model.constraints,
            seed=self.seed,
            acquisition=type(self.acquisition).__name__,
        )
        for _, x, evaluation in self.history.done():
            self._record(x[None, :], evaluation)
        running = self.history.running()
        # What was in flight when the last process died comes first, and is marked as repeated when it starts again.
        self._restarts = {x.tobytes(): id for id, x in running}
        interrupted = np.array([x for _, x in running]).reshape(-1, self._initial.shape[1])
        rest = self._todo[~spaces.is_row_of(self._todo, interrupted)]
        self._todo = np.vstack([interrupted, rest])
        self._credit = self.history.suggestion_count()
        if len(self.X) or len(running):
            logger.info("resumed %s: %d evaluations, %d in flight", path, len(self.X), len(running))

    # --- suggestions --------------------------------------------------------------------------------------------------

    def suggest_next_locations(
        self,
        context: dict[str, Any] | None = None,
        pending_X: Array | None = None,
        ignored_X: Array | None = None,
    ) -> Array:
        """The next points to evaluate, (batch_size, d).

        Initial points that have not been told come first. The same data and pending points give the same answer however
        often it is asked for.

        Parameters
        ----------
        context : dict, optional
            Variables to hold at a value, as in GPyOpt.
        pending_X : array of shape (p, d), optional
            Points being evaluated: they are not suggested again, and what they will tell is taken into account.
        ignored_X : array of shape (q, d), optional
            Points never to suggest.
        """
        pending = np.empty((0, self.X.shape[1])) if pending_X is None else self._points(pending_X, "pending_X")
        ignored = None if ignored_X is None else self._points(ignored_X, "ignored_X")
        first = len(pending)
        for _ in range(self.batch_size):
            if self._explored(pending):
                break
            pending = np.vstack([pending, self._suggest(pending, context, ignored)])
        if len(pending) == first:
            raise CMESError(f"there is nothing left to suggest: {EXPLORED}")
        return pending[first:]

    def _suggest(self, pending: Array, context: dict[str, Any] | None, ignored: Array | None = None) -> Array:
        """One point (1, d) that is neither evaluated nor pending."""
        waiting = self._todo[~spaces.is_row_of(self._todo, pending)]
        if len(waiting) and context is None:
            return waiting[:1]
        self._update_model()
        self.acquisition.set_pending(spaces.to_model(self.space, pending) if len(pending) else None)
        self.acquisition.optimizer.context_manager = ContextManager(self.space, context)
        self.acquisition.least_probability = self._demanded_probability(len(pending))
        duplicates = None
        if ignored is not None:
            duplicates = GPyOpt.util.duplicate_manager.DuplicateManager(
                self.space, zipped_X=self.X, pending_zipped_X=pending, ignored_zipped_X=ignored
            )
        try:
            x, _ = self.acquisition.optimize(duplicate_manager=duplicates)
        finally:
            self.acquisition.set_pending(None)
        return spaces.to_objective(self.space, x)

    def _update_model(self, normalization_type: str = "stats") -> None:
        Y = np.where(np.isfinite(self.Y), self.Y, np.nan)
        dimension = self.space.model_dimensionality
        X = spaces.to_model(self.space, self.X) if len(self.X) else np.empty((0, dimension))
        self.model.set_data(X, Y, self.C)

    def _explored(self, pending: Array) -> bool:
        """Whether a finite domain has no point left."""
        if not spaces.is_finite(self.space):
            return False
        known = spaces.to_model(self.space, np.vstack([self.X, pending])) if len(self.X) + len(pending) else None
        if known is None:
            return False
        everything = spaces.all_points(self.space, len(known))
        return everything is not None and bool(spaces.is_row_of(everything, known).all())

    def _demanded_probability(self, pending: int) -> float:
        """The probability of feasibility the next point must have, so that the share of failures stays allowed."""
        if self.max_infeasible_fraction is None:
            return 0.0
        done = len(self.X) + pending
        total = max(self._planned, done + 1)
        allowance = self.max_infeasible_fraction * total - float((~self.feasible).sum())
        risk = np.clip(allowance / (total - done), SMALLEST_RISK, 1.0)
        # The models are least to be trusted at the start: what is left of the allowance may be spent at an even rate only.
        return float(1.0 - min(risk, max(self.max_infeasible_fraction, SMALLEST_RISK)))

    # --- the loop -----------------------------------------------------------------------------------------------------

    def run_optimization(
        self,
        max_iter: int = 0,
        max_time: float = np.inf,
        *,
        context: dict[str, Any] | None = None,
        progress: bool = False,
    ) -> Result:
        """Evaluate the initial points that are left, then ``max_iter`` suggestions.

        Parameters
        ----------
        max_iter : int
            Suggestions to evaluate. A run resumed from a history counts those that it holds.
        max_time : float
            Seconds after which no further evaluation starts.
        context : dict, optional
            Variables to hold at a value, as in GPyOpt.
        progress : bool
            Show a progress bar.
        """
        if self.f is None:
            raise CMESError("there is no f to run; pass one, or use suggest_next_locations and tell")
        max_iter = whole_number("max_iter", max_iter, 0)
        if not isinstance(max_time, int | float) or not max_time >= 0:
            raise CMESError(f"max_time must be a non-negative number of seconds, got {max_time!r}")
        counted = min(self._credit, max_iter)
        self._credit -= counted
        budget = len(self._todo) + max_iter - counted
        self._planned = len(self.X) + budget
        self.context = context
        start, before = time.monotonic(), len(self.X)
        with _Bar(total=budget, disable=not progress, unit="evaluation") as bar:
            run = _Run(self, budget, start + max_time, bar)
            reason = run.with_executor() if self.executor is not None else run.serially()
        self.num_acquisitions = len(self.X) - before
        self.cum_time = time.monotonic() - start
        return self.result(reason)

    def result(self, reason: str = "") -> Result:
        """What has been found so far."""
        variables = None if self.x_opt is None else self.variables(self.x_opt)
        infeasible = int((~self.feasible).sum())
        return Result(self.x_opt, self.fx_opt, variables, len(self.X), infeasible, reason)

    def _compute_results(self) -> None:
        values = np.where(self.feasible, self.Y.ravel(), np.inf)
        self.Y_best = np.minimum.accumulate(values)
        found = np.isfinite(values).any()
        self.x_opt = self.X[np.argmin(values)] if found else None
        self.fx_opt = float(values.min()) if found else None

    # --- results ------------------------------------------------------------------------------------------------------

    def variables(self, x: Array) -> dict[str, Any]:
        """A point (d,) by the names of its variables, categories as they stand in the domain."""
        return named(self.space, np.asarray(x, dtype=float).reshape(-1))

    def recommend(self, confidence: float = 0.95) -> Recommendation:
        """The point with the lowest posterior mean whose probability of satisfying all constraints is at least that.

        Where no point reaches ``confidence`` the safest one is returned, and says so.
        """
        self._update_model()
        return recommend(self.model, confidence, np.random.default_rng([self.seed, len(self.X), RECOMMEND_STREAM]))

    def plot_convergence(self, filename: str | None = None) -> Any:
        """Best feasible value after each evaluation, with infeasible evaluations marked."""
        from . import plotting

        return plotting.finish(plotting.plot_convergence(self), filename)

    def plot_acquisition(self, filename: str | None = None) -> Any:
        """Posterior, probability of feasibility and acquisition in one or two dimensions."""
        from . import plotting

        return plotting.finish(plotting.plot_acquisition(self), filename)

    def plot_slices(self, filename: str | None = None) -> Any:
        """Posterior, probability of feasibility and acquisition along each variable through the recommendation."""
        from . import plotting

        return plotting.finish(plotting.plot_slices(self), filename)

    def report(self, path: Any, *, title: str | None = None) -> Any:
        """Write one self-contained HTML page with pictures, the best configuration and the history; returns its path."""
        from .report import write_report

        return write_report(self, path, title=title)


class _Run:
    """One call of run_optimization."""

    def __init__(self, bo: ConstrainedBayesianOptimization, budget: int, deadline: float, bar: Any) -> None:
        self.bo, self.budget, self.deadline, self.bar = bo, budget, deadline, bar
        self.flights: dict[Future[Any], _Flight] = {}

    @property
    def pending(self) -> Array:
        flights = [flight.x for flight in self.flights.values()]
        return np.vstack([np.empty((0, self.bo.X.shape[1])), *flights])

    def serially(self) -> str:
        """Evaluate one point after the other, ``batch_size`` suggestions at a time."""
        try:
            while self.budget > 0:
                if time.monotonic() >= self.deadline:
                    return OUT_OF_TIME
                if self.bo._explored(self.pending):
                    return EXPLORED
                for x in self._batch(min(self.budget, self.bo.batch_size)):
                    self._evaluate(x)
        except KeyboardInterrupt:
            return INTERRUPTED
        return DONE

    def _batch(self, size: int) -> list[Array]:
        pending = self.pending
        batch: list[Array] = []
        while len(batch) < size and not self.bo._explored(pending):
            batch.append(self.bo._suggest(pending, self.bo.context))
            pending = np.vstack([pending, batch[-1]])
        return batch

    def _evaluate(self, x: Array) -> None:
        flight = self._start(x)
        future: Future[Any] = Future()
        try:
            future.set_result(_call(self.bo.f, x, self.bo.isolate))
        except Exception as error:
            future.set_exception(error)
        except KeyboardInterrupt:
            self._take_back(flight)
            raise
        self._finish(flight, future)

    def with_executor(self) -> str:
        """Keep evaluations in flight; a batch is waited for as a whole, otherwise each is replaced as it returns."""
        batches = self.bo.batch_size > 1
        capacity = self.bo.batch_size if batches else self.bo.workers
        reason = DONE
        trouble: BaseException | None = None
        try:
            while True:
                while trouble is None and len(self.flights) < min(capacity, self.budget):
                    if time.monotonic() >= self.deadline or self.bo._explored(self.pending):
                        reason = OUT_OF_TIME if time.monotonic() >= self.deadline else EXPLORED
                        break
                    trouble = self._submit(self.bo._suggest(self.pending, self.bo.context))
                if not self.flights:
                    break
                done, _ = wait(self.flights, return_when="ALL_COMPLETED" if batches else FIRST_COMPLETED)
                for future in [future for future in self.flights if future in done]:
                    trouble = self._collect(future) or trouble
        except KeyboardInterrupt:
            for future, flight in list(self.flights.items()):
                future.cancel()
                self._take_back(flight)
            return INTERRUPTED
        if trouble is not None:
            raise trouble
        return reason

    def _submit(self, x: Array) -> BaseException | None:
        """Start an evaluation; return the error of an executor that takes no more."""
        assert self.bo.executor is not None
        flight = self._start(x)
        try:
            self.flights[self.bo.executor.submit(_call, self.bo.f, x, self.bo.isolate)] = flight
        except Exception as error:
            self._take_back(flight)
            return error
        return None

    def _collect(self, future: "Future[Any]") -> BaseException | None:
        """Record a result; return the error that must end the run, if it is one."""
        flight = self.flights.pop(future)
        try:
            self._finish(flight, future)
        except (BrokenExecutor, CancelledError) as error:
            # Nobody knows what became of this point: it is the first to be evaluated when the run goes on.
            self._take_back(flight)
            return error
        except Exception as error:
            return error
        return None

    def _start(self, x: Array) -> _Flight:
        bo = self.bo
        id = bo._restarts.pop(x[0].tobytes(), None)
        if bo.history is not None:
            if id is None:
                id = bo.history.suggested(x[0], kind="initial" if spaces.is_row_of(x, bo._initial)[0] else "suggestion")
            else:
                bo.history.restart(id)
        return _Flight(x, id, time.monotonic())

    def _take_back(self, flight: _Flight) -> None:
        """Put a point that was started but has no outcome back in front of the queue."""
        bo = self.bo
        if flight.id is not None:
            bo._restarts[flight.x[0].tobytes()] = flight.id
        bo._todo = np.vstack([flight.x, bo._todo[~spaces.is_row_of(bo._todo, flight.x)]])

    def _finish(self, flight: _Flight, future: "Future[Any]") -> None:
        bo = self.bo
        try:
            evaluation = _outcome(bo, future)
        except Exception as error:
            if (
                bo.history is not None
                and flight.id is not None
                and not isinstance(error, BrokenExecutor | CancelledError)
            ):
                bo.history.abandon(flight.id, f"{type(error).__name__}: {error}")
            raise
        if bo.history is not None and flight.id is not None:
            bo.history.finished(flight.id, evaluation, time.monotonic() - flight.started)
        bo._record(flight.x, evaluation)
        bo._compute_results()
        self.budget -= 1
        share = 1.0 - bo.feasible.mean()
        last = "feasible" if evaluation.feasible else evaluation.cause or "infeasible"
        best = "none" if bo.fx_opt is None else f"{bo.fx_opt:.4g}"
        self.bar.set_postfix(best=best, infeasible=f"{share:.0%}", last=last[:30])
        self.bar.update()


def _call(f: Any, x: Array, isolate: bool | Limits) -> Any:
    """Evaluate f, where the executor runs it."""
    if isolate is False:
        return f(x)
    return Isolated(f, Limits() if isolate is True else isolate)(x)


def _outcome(bo: ConstrainedBayesianOptimization, future: "Future[Any]") -> Evaluation:
    """What an evaluation means; raises the errors that stop the run."""
    constraints = bo.model.constraints
    try:
        returned = future.result()
    except Infeasible as failure:
        return failed(failure, constraints)
    except Crash as crash:
        return failed(Infeasible(str(crash)), constraints)
    except Exception as error:
        # Dask gives up on a task after its workers have died under it a few times.
        if isinstance(error, bo.catch) or type(error).__name__ == "KilledWorker":
            return failed(Infeasible(f"{type(error).__name__}: {error}"), constraints)
        raise
    try:
        return interpret(returned, constraints)
    except CMESError as error:
        if bo.isolate is False:
            raise
        return failed(Infeasible(str(error)), constraints)


def _check_arguments(
    f: Any,
    X: Any,
    Y: Any,
    C: Any,
    initial: Any,
    catch: Any,
    isolate: Any,
    batch_size: Any,
    fraction: Any,
) -> None:
    if f is not None and not callable(f):
        raise CMESError(f"f must be callable, got {type(f).__name__}; pass the function itself")
    if X is None and Y is not None:
        raise CMESError("Y was given without X; pass both, or X alone to have it evaluated")
    if Y is None and C is not None:
        raise CMESError("C was given without Y; pass X, Y and C")
    if X is None:
        whole_number("initial_design_numdata", initial, 1)
    classes: Sequence[Any] = catch if isinstance(catch, tuple) else (catch,)
    if not all(isinstance(c, type) and issubclass(c, Exception) for c in classes):
        raise CMESError(f"catch must be an exception class or a tuple of them, got {catch!r}")
    if not isinstance(isolate, bool | Limits):
        raise CMESError(f"isolate must be True, False or Limits(seconds=..., memory=...), got {isolate!r}")
    whole_number("batch_size", batch_size, 1)
    if fraction is not None and not (isinstance(fraction, int | float) and 0 <= fraction <= 1):
        raise CMESError(f"max_infeasible_fraction must lie between 0 and 1, got {fraction!r}")


def _in_flight(executor: Any, workers: Any) -> int:
    """How many evaluations may be in flight."""
    if executor is None:
        if workers is not None:
            raise CMESError("workers goes with an executor; pass executor=, or batch_size= for batches")
        return 1
    if not isinstance(executor, Executor):
        raise CMESError(f"executor must be a concurrent.futures.Executor, got {type(executor).__name__}")
    workers = getattr(executor, "_max_workers", None) if workers is None else workers
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
        raise CMESError(f"workers must be a positive integer, the number of evaluations in flight, got {workers!r}")
    return workers


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
