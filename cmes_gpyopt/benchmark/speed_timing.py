"""Times of things done in turn, peaks of memory, and the power laws behind them."""

import logging
import time
import tracemalloc
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Thunk = Callable[[], Any]
Key = TypeVar("Key")

logger = logging.getLogger(__name__)


def interleaved(
    prepare: Callable[[int], Mapping[Key, Thunk]], repeats: int, *, discard: int = 0, may_fail: Container[Key] = ()
) -> dict[Key, Array]:
    """Seconds that several things take, done in turn.

    Parameters
    ----------
    prepare : callable
        Maps the number of a repeat to the calls to time, in their order; not timed itself.
    repeats : int
    discard : int
        Repeats made before those that count.
    may_fail : container of keys
        Calls whose exceptions are logged and count as a time of nan.

    Returns
    -------
    arrays of shape (repeats,)
    """
    seconds: dict[Key, list[float]] = {}
    # The discarded repeats have numbers, and so data, of their own.
    for repeat in [*range(repeats, repeats + discard), *range(repeats)]:
        for key, call in prepare(repeat).items():
            start = time.perf_counter()
            try:
                call()
                passed = time.perf_counter() - start
            except Exception as error:
                if key not in may_fail:
                    raise
                logger.warning("%s failed: %s", key, type(error).__name__)
                passed = float("nan")
            if repeat < repeats:
                seconds.setdefault(key, []).append(passed)
    return {key: np.array(values) for key, values in seconds.items()}


def peaks(calls: Mapping[Key, Thunk]) -> dict[Key, float]:
    """Memory in MB that each call, made in order, has allocated at its peak, beyond what was there before it."""
    found = {}
    tracemalloc.start()
    try:
        for key, call in calls.items():
            before, _ = tracemalloc.get_traced_memory()
            tracemalloc.reset_peak()
            call()
            found[key] = (tracemalloc.get_traced_memory()[1] - before) / 1e6
    finally:
        tracemalloc.stop()
    return found


def exponents(sizes: Sequence[float], seconds: Array) -> Array:
    """Exponents b (repeats,) of the power laws a size^b nearest to times (repeats, sizes), in the logarithm."""
    logarithms = np.log(np.asarray(sizes, dtype=float))
    return np.asarray(np.polyfit(logarithms, np.log(seconds).T, 1)[0])
