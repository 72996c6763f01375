"""How close an asynchronous run comes to keeping all workers busy.

Evaluations sleep, so the ideal wall time is known: evaluations times seconds over workers. Suggestions are made in the
calling process and cost what they cost; the ratio to the ideal says how much of the workers' time they waste.
"""

import random
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from ..driver import ConstrainedBayesianOptimization
from ..problems import TOY

Array = npt.NDArray[np.float64]


def wall_time_ratio(
    method: str, options: dict[str, Any], *, evaluations: int, seconds: float, workers: int, seed: int
) -> float:
    """Wall time of an asynchronous run on the toy, with random durations around ``seconds``, over the ideal."""
    durations = random.Random(seed)
    spread = [durations.uniform(0.5, 1.5) for _ in range(evaluations)]
    planned = iter([seconds * d * evaluations / sum(spread) for d in spread])

    def f(x: Array) -> Array:
        time.sleep(next(planned))
        return TOY.with_failures(x)

    with ThreadPoolExecutor(workers) as pool:
        bo = ConstrainedBayesianOptimization(
            f, list(TOY.domain), acquisition=method, acquisition_options=options, executor=pool, seed=seed
        )
        start = time.perf_counter()
        bo.run_optimization(evaluations - len(bo._initial))
        elapsed = time.perf_counter() - start
    assert len(np.unique(bo.X, axis=0)) == evaluations
    return elapsed / (evaluations * seconds / workers)


def report(evaluations: int = 40, seconds: float = 0.5, workers: int = 4, repeats: int = 3) -> str:
    """A table of ratios, median and range over repeats."""
    rows: list[tuple[str, dict[str, Any]]] = [("random", {}), ("cei", {}), ("cmes", {})]
    lines = [f"{evaluations} evaluations of {seconds} s on average, {workers} workers; wall time over the ideal"]
    for method, options in rows:
        ratios = [
            wall_time_ratio(method, options, evaluations=evaluations, seconds=seconds, workers=workers, seed=seed)
            for seed in range(repeats)
        ]
        name = f"{method} {options}" if options else method
        lines.append(f"{name:<28}{np.median(ratios):.2f}  ({min(ratios):.2f} to {max(ratios):.2f})")
    return "\n".join(lines)
