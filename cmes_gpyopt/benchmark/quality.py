"""Run problems x methods x seeds, in parallel, and resume where a run was interrupted."""

import functools
import json
import os
import subprocess
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import connection, get_context, parent_process
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from .. import __version__, problems, spaces
from ..errors import CMESError
from ..problems import Problem
from .methods import Feedback, Method
from .records import Key, ResultsFile, Run

Array = npt.NDArray[np.float64]
Start = Literal["random", "infeasible"]

INITIAL = 5
EVALUATIONS, EVALUATIONS_HIGH, HIGH_DIMENSION = 40, 60, 6
BOUNDARY = 0.01
"""Share of a continuous variable's width that counts as its boundary."""

MAX_DRAWS = 1_000_000
ONE_THREAD = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}

GROUPS = {"dev": problems.DEVELOPMENT, "held-out": problems.HELD_OUT, "all": problems.SUITE}


@dataclass(frozen=True)
class Task:
    """One run to be made."""

    problem: Problem
    method: Method
    feedback: Feedback
    start: Start
    seed: int
    evaluations: int
    version: str = ""

    @property
    def key(self) -> Key:
        """What tells this run from another."""
        return Key(self.problem.name, self.method.label, self.feedback, self.start, self.seed, self.evaluations)


def parse_problems(text: str) -> list[Problem]:
    """Problems from "dev", "held-out", "all", or names separated by commas."""
    chosen: list[Problem] = []
    for name in filter(None, (name.strip() for name in text.split(","))):
        if name not in GROUPS and name not in problems.BY_NAME:
            known = [*GROUPS, *problems.BY_NAME]
            raise CMESError(f"unknown problem {name!r}; expected one of {', '.join(known)}")
        chosen += [p for p in GROUPS.get(name, (problems.BY_NAME.get(name),)) if p is not None and p not in chosen]
    if not chosen:
        raise CMESError("--problems names no problem")
    return chosen


def make_tasks(
    chosen: Sequence[Problem],
    methods: Sequence[Method],
    seeds: Sequence[int],
    *,
    evaluations: int | None = None,
    feedback: Feedback = "binary",
    start: Start = "random",
) -> list[Task]:
    """All runs, seed by seed, so that what is finished can be compared at any time.

    Parameters
    ----------
    evaluations : int, optional
        Suggestions in each run; by default 40, and 60 above six dimensions.
    start : {"random", "infeasible"}
        With "infeasible" problems without an infeasible point are left out.
    """
    version = library_version()
    kept = [p for p in chosen if start == "random" or p.feasible_fraction < 1]
    if not kept:
        raise CMESError("none of the problems has an infeasible point to start from; choose others")
    return [
        Task(problem, method, feedback, start, seed, evaluations or default_evaluations(problem), version)
        for seed in seeds
        for problem in kept
        for method in methods
    ]


def default_evaluations(problem: Problem) -> int:
    """40 suggestions, 60 above six dimensions."""
    return EVALUATIONS_HIGH if problem.dimension > HIGH_DIMENSION else EVALUATIONS


@functools.cache
def library_version() -> str:
    """Version of the library, with the commit where it is run from a repository."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--exclude", "*"]
    try:
        commit = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return __version__
    return f"{__version__}+{commit}"


# ------------------------------------------------------------------------------------------------------------
# One run
# ------------------------------------------------------------------------------------------------------------


def initial_points(problem: Problem, seed: int, start: Start = "random") -> Array:
    """The points (5, d) that every method starts from; they depend on the problem, the seed and ``start`` only."""
    rng = np.random.default_rng([zlib.crc32(problem.name.encode()), seed])
    space = spaces.checked_space(list(problem.domain))
    kept = np.empty((0, problem.dimension))
    for _ in range(MAX_DRAWS // INITIAL):
        X = spaces.to_objective(space, spaces.random_points(space, INITIAL, rng))
        kept = np.vstack([kept, X if start == "random" else X[~problem.feasible(X)]])
        if len(kept) >= INITIAL:
            return kept[:INITIAL]
    raise CMESError(f"{problem.name} has too few infeasible points to start from")


def observe(problem: Problem, feedback: Feedback, x: Array) -> tuple[float, Array]:
    """What an evaluation at x (1, d) shows: the objective, inf where hidden, and labels (1,) or values (J,)."""
    if feedback == "real":
        return problem.measured(x)
    y = float(problem.with_failures(x)[0, 0])
    return y, np.array([-1.0 if np.isfinite(y) else 1.0])


def on_boundary(problem: Problem, X: Array) -> npt.NDArray[np.bool_]:
    """Whether some continuous variable is within 1 % of its width of a bound, (n,)."""
    found = np.zeros(len(X), dtype=bool)
    for variable, column in zip(problem.domain, X.T, strict=True):
        if variable["type"] == "continuous":
            low, high = variable["domain"]
            found |= np.minimum(column - low, high - column) <= BOUNDARY * (high - low)
    return found


def run_task(task: Task) -> Run:
    """Make one run."""
    problem = task.problem
    optimiser = task.method.build(problem, task.feedback, task.seed, INITIAL)
    values: list[float] = []
    seconds: list[float] = []
    points: list[Array] = []

    def evaluate(x: Array) -> None:
        y, c = observe(problem, task.feedback, x)
        values.append(y if (c <= 0).all() else np.inf)
        optimiser.tell(x, y, c)

    for x in initial_points(problem, task.seed, task.start):
        evaluate(x[None, :])
    for _ in range(task.evaluations):
        # Time of this process, which other work on the machine does not lengthen.
        began = time.process_time()
        points.append(optimiser.suggest())
        seconds.append(time.process_time() - began)
        evaluate(points[-1])
    return Run(
        *task.key,
        problem.f_opt,
        problem.typical,
        np.array(values),
        on_boundary(problem, np.vstack(points)),
        np.array(seconds),
        task.version,
        settings_text(optimiser.settings),
    )


def settings_text(settings: dict[str, Any]) -> str:
    """Settings as one line of JSON."""
    return json.dumps(settings, sort_keys=True)


# ------------------------------------------------------------------------------------------------------------
# All runs
# ------------------------------------------------------------------------------------------------------------


def check(tasks: Sequence[Task], results: ResultsFile) -> None:
    """Refuse, before anything runs, what cannot run or does not belong into the same file."""
    held = {run.key._replace(seed=0): run.settings for run in results.runs.values()}
    for key, task in {task.key._replace(seed=0): task for task in tasks}.items():
        settings = settings_text(task.method.build(task.problem, task.feedback, task.seed, INITIAL).settings)
        if held.get(key, settings) != settings:
            raise CMESError(
                f"{results.path} holds runs of {task.method.label} on {task.problem.name} with other settings "
                f"({held[key]} instead of {settings}); choose another --output"
            )


def run_all(tasks: Sequence[Task], results: ResultsFile, processes: int = 1) -> Iterator[tuple[Task, Run | Exception]]:
    """Make the runs that the results file does not hold yet; each is stored before it is yielded.

    A run that raises is yielded with its error and not stored; the others go on.
    """
    waiting = [task for task in tasks if task.key not in results.runs]
    if not waiting:
        return
    # Numeric libraries read these when they are first imported, which in a spawned process is after this.
    os.environ.update(ONE_THREAD)
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn"), initializer=die_with_parent) as pool:
        futures = {pool.submit(run_task, task): task for task in waiting}
        try:
            for future in as_completed(futures):
                error = future.exception()
                if error is not None:
                    if not isinstance(error, Exception):
                        raise error
                    yield futures[future], error
                    continue
                results.append(future.result())
                yield futures[future], future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def die_with_parent(leave: Callable[[int], Any] = os._exit) -> None:
    """End this process when the one that started it is gone, however it ended."""
    parent = parent_process()
    if parent is None:
        return

    def watch() -> None:
        connection.wait([parent.sentinel])
        leave(1)

    threading.Thread(target=watch, daemon=True).start()
