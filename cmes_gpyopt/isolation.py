"""Evaluations in a process of their own, so that one that crashes, hangs or runs out of memory ends alone.

The child is a fork: it has everything the parent has in memory, so closures, lambdas and functions of a notebook work,
and x need not be pickled. What f changes in memory (counters, caches, random generators it holds) is lost with the
child; only what it returns comes back, pickled, through a pipe. The global generators of ``random`` and
``numpy.random`` are seeded in the child by a draw from the parent's: every evaluation has its own noise, and a seeded
run can be repeated.

Supported where Python has ``os.fork`` and ``os.waitid`` (Linux; macOS from Python 3.13); memory limits on Linux alone.
The usual warnings about fork apply: f must not use in the child what the parent has already used of CUDA or of GNU
OpenMP (OpenBLAS, as in the wheels of NumPy and SciPy, is fine), nor locks that other threads of the parent may hold. An
f that blocks on one of these is ended by ``Limits.seconds``, and by nothing else.
"""

import ctypes
import errno
import math
import numbers
import os
import pickle
import random
import re
import select
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NoReturn, TypeVar

import numpy as np

from .errors import CMESError

Kind = Literal["timeout", "memory", "signal", "exit", "exception", "unpicklable"]
Message = tuple[str, bytes, str]
Mask = set[int | signal.Signals]
X = TypeVar("X")

_TICK = 0.05  # seconds between looks at a child that sends nothing
_GRACE = 1.0  # seconds from SIGTERM to SIGKILL
_HEADER = 8  # bytes that give the length of the message
_SMALLEST_MEMORY = 10**6  # a limit below is a mistake of units
_UNITS = {"": 1, "B": 1} | {
    prefix + unit: base ** (power + 1)
    for power, prefix in enumerate("KMGT")
    for unit, base in [("B", 1000), ("IB", 1024)]
}
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


@dataclass(frozen=True)
class Limits:
    """What one evaluation may use; None for no limit.

    Parameters
    ----------
    seconds : float, optional
        Wall time, the sending of the result included. The process group of f is then sent SIGTERM, and SIGKILL a second
        later.
    memory : int, float or str, optional
        What f may allocate beyond what its process has when f starts, in bytes or as "512MB", "2GB", "1.5GiB".

    Notes
    -----
    Memory is limited twice. RLIMIT_AS, the *address space* of the child, is set to its size at the start of f plus
    ``memory``: an allocation beyond it fails at once, touched or not, which Python and NumPy report as MemoryError. New
    threads (8 MB of stack each) and modules that f is the first to import count. Processes that f starts inherit that
    limit, each for itself; in addition the *resident* memory f and they have come to use is added up about ten times
    a second, and the group is killed when it is above ``memory``.

    Libraries in C meet a failed allocation in their own ways: by abort, a segmentation fault, an exit, or (seen in
    OpenBLAS when not even its work space fits) by never returning. Give ``seconds`` along with ``memory``.
    """

    seconds: float | None = None
    memory: int | float | str | None = None

    def __post_init__(self) -> None:
        if self.seconds is not None and not _is_positive(self.seconds):
            raise CMESError(f"seconds must be a positive number or None, got {self.seconds!r}")
        if self.memory is not None and _bytes(self.memory) < _SMALLEST_MEMORY:
            raise CMESError(f"memory is given in bytes and must be at least 1 MB, got {self.memory!r}; write '2GB'")

    @property
    def memory_bytes(self) -> int | None:
        """The memory limit in bytes."""
        return None if self.memory is None else _bytes(self.memory)


class Crash(Exception):
    """An evaluation that ended without a value; ``str(crash)`` is the cause in words.

    Parameters
    ----------
    kind : str
        "timeout", "memory", "signal", "exit", "exception" (f raised something that cannot be sent to the parent) or
        "unpicklable" (f returned something that cannot).
    cause : str
        Such as "timed out after 5 s", "memory limit of 512 MB exceeded", "killed by SIGSEGV" or "exited with code 3".
    """

    def __init__(self, kind: Kind, cause: str) -> None:
        super().__init__(cause)
        self.kind: Kind = kind
        self.cause = cause

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        return type(self), (self.kind, self.cause)


class ChildTraceback(Exception):
    """The traceback of an exception raised in the child, as text: the ``__cause__`` of the exception in the parent."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


@dataclass(frozen=True)
class Isolated:
    """A function that runs f in a process of its own, within limits; picklable if f is.

    It may be called from any thread, several at a time, and from worker processes, daemonic ones too.

    Parameters
    ----------
    f : callable
        Takes one argument.
    limits : Limits, optional
        None but the isolation by default.
    """

    f: Callable[[Any], Any]
    limits: Limits = Limits()

    def __post_init__(self) -> None:
        if not callable(self.f):
            raise CMESError(f"f must be callable, got {type(self.f).__name__}; pass the function itself")
        if not isinstance(self.limits, Limits):
            raise CMESError(f"limits must be Limits(seconds=..., memory=...), got {self.limits!r}")
        _require_support(self.limits)

    def __call__(self, x: Any) -> Any:
        """The value of f(x); see :func:`run_isolated`."""
        return run_isolated(self.f, x, self.limits)


def run_isolated(f: Callable[[X], Any], x: X, limits: Limits | None = None) -> Any:
    """Call f(x) in a process of its own.

    When it returns or raises, the child is gone, and so is everything f started, except processes that have left its
    process group (``start_new_session``). What Python prints in the child appears as if printed here; text that a C
    library has left in a buffer of its own does not.

    Returns
    -------
    object
        What f returned, unpickled.

    Raises
    ------
    Crash
        If there is no such value: the child died, went beyond its limits or ran out of memory, or what it returned or
        raised cannot be pickled.
    Exception
        What f raised, :class:`Infeasible` included, with the traceback in the child as its ``__cause__``.
    """
    limits = limits or Limits()
    _require_support(limits)
    with _fork(f, x, limits) as child:
        data = child.receive()
    if data is None:
        raise _death(child.status, limits)
    return _delivered(pickle.loads(data), limits)


def _is_positive(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and 0 < float(value) < math.inf


def _bytes(memory: int | float | str) -> int:
    if isinstance(memory, str):
        found = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*([A-Za-z]*)\s*", memory)
        if found and found[2].upper() in _UNITS:
            return int(float(found[1]) * _UNITS[found[2].upper()])
    elif _is_positive(memory):
        return int(memory)
    raise CMESError(f"memory must be a number of bytes or a string such as '512MB' or '2GB', got {memory!r}")


def _require_support(limits: Limits) -> None:
    if not (hasattr(os, "fork") and hasattr(os, "waitid")):
        raise CMESError(
            f"isolated evaluations need os.fork and os.waitid, which Python lacks here ({sys.platform}); use Linux "
            "(WSL on Windows) or do not isolate"
        )
    if limits.memory is not None and sys.platform != "linux":
        raise CMESError(f"memory limits need Linux, and this is {sys.platform}; use Limits(seconds=...) alone")


def _in_words(size: int) -> str:
    unit, scale = next(((u, s) for u, s in [("TB", 1e12), ("GB", 1e9)] if size >= s), ("MB", 1e6))
    return f"{size / scale:.4g} {unit}"


# The parent's side


class _Child:
    """A forked process, leader of its process group; as a context it leaves nothing behind."""

    def __init__(self, pid: int, pipe: int, limits: Limits, mask: Mask) -> None:
        self.pid = pid
        self.pipe = pipe
        self.limits = limits
        self.mask = mask
        self.start = time.monotonic()
        self.status: int | None = None
        """as waitpid gives it, once the process is reaped; None if someone else has reaped it"""

    def __enter__(self) -> "_Child":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        try:
            if error is not None:
                self._terminate()
        finally:
            # The group is killed before its leader is reaped: until then nobody else can have its number.
            self._signal(signal.SIGKILL)
            with suppress(ChildProcessError):
                self.status = os.waitpid(self.pid, 0)[1]
            os.close(self.pipe)

    def receive(self) -> bytes | None:
        """The message, or None if the child ends without one.

        The end of the file says nothing: processes forked in the meantime by other threads, or by f, hold the pipe too.
        """
        signal.pthread_sigmask(signal.SIG_SETMASK, self.mask)
        buffer = bytearray()
        memory = _MemoryWatch(self.pid, self.limits.memory_bytes)
        poll = select.poll()
        poll.register(self.pipe, select.POLLIN)
        while True:
            ended = self._ended()
            if poll.poll(0 if ended else 1000 * self._patience()):
                chunk = os.read(self.pipe, 2**20)
                if not chunk:
                    self._wait_for_end()
                    return None
                buffer += chunk
                if len(buffer) >= _HEADER and len(buffer) == _HEADER + int.from_bytes(buffer[:_HEADER], "big"):
                    return bytes(buffer[_HEADER:])
            elif ended:
                return None
            else:
                memory.check()

    def _patience(self) -> float:
        """Seconds until the next look."""
        if self.limits.seconds is None:
            return _TICK
        left = self.start + self.limits.seconds - time.monotonic()
        if left <= 0:
            raise Crash("timeout", f"timed out after {self.limits.seconds:g} s")
        return min(left, _TICK)

    def _wait_for_end(self) -> None:
        pause = 1e-4
        while not self._ended():
            time.sleep(min(pause, self._patience()))
            pause = min(2 * pause, _TICK)

    def _ended(self) -> bool:
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return True

    def _terminate(self) -> None:
        self._signal(signal.SIGTERM)
        end = time.monotonic() + _GRACE
        while not self._ended() and time.monotonic() < end:
            time.sleep(0.005)

    def _signal(self, number: signal.Signals) -> None:
        for send in (os.killpg, os.kill):  # the child itself, in case it is not yet the leader of its group
            with suppress(ProcessLookupError, PermissionError):
                send(self.pid, number)


class _MemoryWatch:
    """Adds up the resident memory of a process and its descendants.

    Only where there are descendants: the process itself has its RLIMIT_AS. It counts with what it has gained in
    anonymous memory, and each descendant with what it shares with no other process.
    """

    def __init__(self, pid: int, limit: int | None) -> None:
        self.pid = pid
        self.limit = limit
        self.at_start = _proc_bytes(pid, "status", "RssAnon") if limit else 0
        self.next = time.monotonic()

    def check(self) -> None:
        """Raise Crash if they use too much."""
        now = time.monotonic()
        if self.limit is None or now < self.next:
            return
        family = list(_descendants(self.pid))
        if family:
            gained = max(0, _proc_bytes(self.pid, "status", "RssAnon") - self.at_start)
            used = gained + sum(_proc_bytes(pid, "smaps_rollup", "Private_Dirty") for pid in family)
            if used > self.limit:
                raise Crash("memory", f"memory limit of {_in_words(self.limit)} exceeded")
        # Reading is slow for large processes; it takes at most a tenth of the time.
        self.next = time.monotonic() + max(0.1, 10 * (time.monotonic() - now))


def _descendants(pid: int) -> Iterator[int]:
    with suppress(OSError):
        for path in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in path.read_text().split():
                yield int(child)
                yield from _descendants(int(child))


def _proc_bytes(pid: int, file: str, field: str) -> int:
    with suppress(OSError):
        found = re.search(rf"^{field}:\s+(\d+) kB", Path(f"/proc/{pid}/{file}").read_text(), re.MULTILINE)
        return 1024 * int(found[1]) if found else 0
    return 0


def _fork(f: Callable[[X], Any], x: X, limits: Limits) -> _Child:
    seeds = random.getrandbits(32), int(np.random.randint(2**32, dtype=np.uint32))  # noqa: NPY002 (what f would use)
    _flush()
    parent = os.getpid()
    reader, writer = os.pipe()
    # No handler runs in the child before _serve has taken over, nor here before receive, in the context of the child.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        pid = _quiet_fork()
    except OSError:
        os.close(reader)
        os.close(writer)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        raise
    if pid == 0:
        _serve(f, x, limits, writer, seeds, mask, parent)
    os.close(writer)
    return _Child(pid, reader, limits, mask)


def _quiet_fork() -> int:
    if sys.version_info >= (3, 12):  # which warns of fork where there are threads; the filter is for this module alone
        warnings.filterwarnings("ignore", ".*fork", DeprecationWarning, module=re.escape(__name__) + "$")
    # A lock that another thread holds is never released in the child, where f may want to draw.
    with np.random.mtrand.get_bit_generator().lock:
        return os.fork()


def _death(status: int | None, limits: Limits) -> Crash:
    """What the status of a child that sent nothing says."""
    if status is None:
        return Crash("exit", "ended without a value, and its exit status was taken by another part of the program")
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return Crash("exit", f"exited with code {code}")
    suspected = ""
    if -code == signal.SIGKILL:
        suspected = " (out of memory?)"
    elif limits.memory_bytes and -code in (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGINT):
        suspected = f" (memory limit of {_in_words(limits.memory_bytes)} exceeded?)"
    return Crash("signal", f"killed by {_signal_name(-code)}{suspected}")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _delivered(message: Message, limits: Limits) -> Any:
    tag, pickled, text = message
    if tag == "memory":
        limit = limits.memory_bytes
        raise Crash(
            "memory", f"memory limit of {_in_words(limit)} exceeded" if limit else "out of memory"
        ) from ChildTraceback(text)
    if tag == "unpicklable":
        raise Crash("unpicklable", text)
    try:
        content = pickle.loads(pickled)
    except Exception as error:
        if tag == "value":
            raise Crash("unpicklable", f"returned what cannot be unpickled: {error}") from error
        content = None
    if tag == "value":
        return content
    if not isinstance(content, BaseException):
        content = Crash("exception", f"raised {text.rstrip().splitlines()[-1]}")
    raise content from ChildTraceback(text)


# The child's side


def _serve(
    f: Callable[[X], Any],
    x: X,
    limits: Limits,
    pipe: int,
    seeds: tuple[int, int],
    mask: Mask,
    parent: int,
) -> NoReturn:
    """Evaluate, send and end, whatever happens: this process must not return into the parent's code."""
    code = 1
    try:
        _detach(parent)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        random.seed(seeds[0])
        np.random.seed(seeds[1])  # noqa: NPY002
        message = pickle.dumps(_evaluate(f, x, limits), protocol=pickle.HIGHEST_PROTOCOL)
        _flush()
        _write(pipe, len(message).to_bytes(_HEADER, "big"))
        _write(pipe, message)
        code = 0
    except SystemExit as stop:
        code = _exit_code(stop)
        _flush()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _detach(parent: int) -> None:
    """Own session and signal handlers; die with the parent, and before it where memory runs out."""
    os.setsid()
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGINT, signal.SIGTERM):  # OpenBLAS raises SIGINT if it cannot start its threads
        signal.signal(number, signal.SIG_DFL)
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        with suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000")


def _evaluate(f: Callable[[X], Any], x: X, limits: Limits) -> Message:
    try:
        with _memory_limited(limits.memory_bytes):
            value = f(x)
    except SystemExit:
        raise
    except BaseException as error:
        text = "".join(traceback.format_exception(error))
        if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
            return "memory", b"", text
        try:
            return "exception", pickle.dumps(error), text
        except Exception:
            return "exception", b"", text
    try:
        return "value", pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL), ""
    except Exception as error:
        return "unpicklable", b"", f"returned a {type(value).__name__}, which cannot be pickled: {error}"


@contextmanager
def _memory_limited(memory: int | None) -> Iterator[None]:
    """Lower RLIMIT_AS; back again afterwards, so that there is room to report."""
    if memory is None:
        yield
        return
    import resource

    _prepare_blas()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + memory
    if soft != resource.RLIM_INFINITY:
        limit = min(limit, soft)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _prepare_blas() -> None:
    """Have NumPy's and SciPy's BLAS take their work space and start their threads before memory is limited.

    OpenBLAS blocks for ever where it cannot have them. The matrices are large enough for it to use threads.
    """
    ones = np.ones((128, 128))
    ones @ ones
    if "scipy.linalg.blas" in sys.modules:
        sys.modules["scipy.linalg.blas"].dgemm(1.0, ones, ones)


def _write(pipe: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(pipe, view) :]


def _exit_code(stop: SystemExit) -> int:
    """The exit code that Python makes of it."""
    if stop.code is None:
        return 0
    if isinstance(stop.code, int):
        return stop.code & 0xFF
    print(stop.code, file=sys.stderr)
    return 1


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
