"""Evaluations in child processes: every way to die, and nothing left behind."""

import contextlib
import ctypes
import faulthandler
import os
import pickle
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context

import numpy as np
import pytest
import scipy.linalg

from cmes_gpyopt.errors import CMESError, Infeasible
from cmes_gpyopt.isolation import Crash, Isolated, Limits, run_isolated

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory limits and /proc")
LIMITS = Limits(seconds=20)
SMALL = Limits(seconds=20, memory="300MB")


@pytest.fixture(autouse=True)
def bounded():
    """No test may take longer than a minute, whatever it waits for."""

    def too_long(*_):
        raise TimeoutError("the test took more than 60 s")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def crash(f, x=None, limits=LIMITS):
    with pytest.raises(Crash) as caught:
        run_isolated(f, x, limits)
    return caught.value


def quietly(f):
    """F without the report that pytest's fault handler would print."""
    return lambda x: (faulthandler.disable(), f(x))[1]


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def wait_until(condition, seconds=5):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


def children():
    with open(f"/proc/self/task/{threading.get_native_id()}/children") as file:
        return set(file.read().split())


def square(x):
    return x**2


def sleep_forever(x):
    while True:
        time.sleep(10)


def ignore_sigterm(x):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sleep_forever(x)


def busy_in_c(x):
    np.lib.stride_tricks.as_strided(np.ones(1), (10**12,), (0,)).sum()


class Picky(Exception):
    """Can be pickled, but not unpickled: the usual mistake."""

    def __init__(self, a, b):
        super().__init__(f"{a} and {b}")


# Values


def test_a_closure_is_evaluated_in_another_process_and_its_value_comes_back():
    offset = np.arange(3.0)
    pid, value = run_isolated(lambda x: (os.getpid(), x + offset), np.ones(3), LIMITS)
    assert pid != os.getpid()
    np.testing.assert_array_equal(value, [1, 2, 3])
    assert run_isolated(square, 3) == 9


@pytest.mark.parametrize("value", [1 + 2j, np.zeros((2, 3)), None, "text", (1.0, {"a": np.nan}), []])
def test_any_value_that_can_be_pickled_is_returned_as_it_is(value):
    found = run_isolated(lambda x: value, None, LIMITS)
    assert type(found) is type(value)
    np.testing.assert_equal(found, value)


@pytest.mark.parametrize("value", [lambda x: x, (i for i in range(3)), threading.Lock()])
def test_a_value_that_cannot_be_pickled_is_a_crash(value):
    error = crash(lambda x: value)
    assert error.kind == "unpicklable"
    assert str(error).startswith(f"returned a {type(value).__name__}, which cannot be pickled: ")


def test_a_value_that_cannot_be_unpickled_is_a_crash():
    error = crash(lambda x: Picky(1, 2))
    assert error.kind == "unpicklable"
    assert "cannot be unpickled" in str(error)


@pytest.mark.parametrize("limits", [LIMITS, SMALL])
def test_a_value_larger_than_the_buffer_of_a_pipe_comes_back(limits):
    value = run_isolated(lambda x: np.arange(50_000_000 // 8), None, limits)
    assert value.nbytes == 50_000_000
    assert value[-1] == len(value) - 1


def test_what_the_child_prints_appears_once(capfd):
    print("before", end="")  # left in the buffer
    run_isolated(lambda x: (print("in the child"), print("complaint", file=sys.stderr)), None, LIMITS)
    sys.stdout.flush()
    out, err = capfd.readouterr()
    assert out == "beforein the child\n"
    assert err == "complaint\n"


def test_global_generators_differ_between_evaluations_and_follow_the_seed():
    def noise(x):
        return random.random(), np.random.rand()

    def run():
        np.random.seed(1)
        random.seed(1)
        return [run_isolated(noise, None, LIMITS) for _ in range(3)]

    state = random.getstate(), np.random.get_state()
    first, second = run(), run()
    random.setstate(state[0])
    np.random.set_state(state[1])
    assert first == second
    assert len({value for pair in first for value in pair}) == 6


# Deaths


@pytest.mark.parametrize(
    ("f", "kind", "cause"),
    [
        (lambda x: os.kill(os.getpid(), signal.SIGSEGV), "signal", "killed by SIGSEGV"),
        (lambda x: ctypes.string_at(0), "signal", "killed by SIGSEGV"),
        (lambda x: os.kill(os.getpid(), signal.SIGKILL), "signal", "killed by SIGKILL (out of memory?)"),
        (lambda x: os.abort(), "signal", "killed by SIGABRT"),
        (lambda x: os.kill(os.getpid(), signal.SIGINT), "signal", "killed by SIGINT"),
        (lambda x: os.kill(os.getpid(), signal.SIGRTMIN + 1), "signal", f"killed by signal {signal.SIGRTMIN + 1}"),
        (lambda x: os._exit(3), "exit", "exited with code 3"),
        (lambda x: sys.exit(4), "exit", "exited with code 4"),
        (lambda x: sys.exit(), "exit", "exited with code 0"),
        (lambda x: sys.exit("because"), "exit", "exited with code 1"),
    ],
)
def test_a_death_is_told_in_words(f, kind, cause):
    error = crash(quietly(f))
    assert (error.kind, error.cause, str(error)) == (kind, cause, cause)


@pytest.mark.parametrize(("f", "most"), [(sleep_forever, 1.0), (busy_in_c, 1.0), (ignore_sigterm, 3.0)])
def test_what_takes_too_long_is_ended(f, most):
    start = time.monotonic()
    error = crash(f, limits=Limits(seconds=0.3))
    assert (error.kind, error.cause) == ("timeout", "timed out after 0.3 s")
    assert 0.3 <= time.monotonic() - start < most + 1


def test_the_time_limit_holds_for_a_child_that_has_closed_the_pipe():
    error = crash(lambda x: (os.closerange(3, 100), sleep_forever(x)), limits=Limits(seconds=0.3))
    assert error.kind == "timeout"


def test_f_may_clean_up_when_its_time_is_over(tmp_path):
    def f(x):
        signal.signal(signal.SIGTERM, lambda *_: sys.exit((tmp_path / "cleaned").touch()))
        sleep_forever(x)

    assert crash(f, limits=Limits(seconds=0.3)).kind == "timeout"
    assert (tmp_path / "cleaned").exists()


def grow(x):
    hoard = []
    while True:
        hoard.append([0] * 100_000)


def no_memory(x):
    raise MemoryError


def no_map(x):
    raise OSError(12, "Cannot allocate memory")


@pytest.mark.parametrize("f", [lambda x: np.ones(10**8), lambda x: np.empty(10**8), grow, no_memory, no_map])
def test_what_takes_too_much_memory_is_a_crash(f):
    error = crash(f, limits=SMALL)
    assert (error.kind, error.cause) == ("memory", "memory limit of 300 MB exceeded")


def test_out_of_memory_without_a_limit_is_a_crash_too():
    error = crash(lambda x: np.empty(10**17))
    assert (error.kind, error.cause) == ("memory", "out of memory")


def test_the_memory_limit_counts_what_is_allocated_by_f_alone():
    mine = np.ones(40_000_000)  # 320 MB
    assert run_isolated(lambda x: mine.sum() + np.ones(25_000_000).sum(), None, SMALL) == 65_000_000
    assert crash(lambda x: np.ones(45_000_000), limits=SMALL).kind == "memory"


def test_memory_of_processes_that_f_starts_is_counted():
    code = "import time; hoard = [bytearray(b'x' * 120_000_000)]; time.sleep(10)"

    def f(x):
        for process in [subprocess.Popen([sys.executable, "-c", code]) for _ in range(3)]:
            process.wait()

    start = time.monotonic()
    error = crash(f, limits=SMALL)
    assert error.kind == "memory"
    assert time.monotonic() - start < 8


def test_a_signal_under_a_memory_limit_is_told_with_the_suspicion():
    error = crash(quietly(lambda x: os.abort()), limits=SMALL)
    assert str(error) == "killed by SIGABRT (memory limit of 300 MB exceeded?)"


# Exceptions


def test_infeasible_passes_with_its_constraint():
    def f(x):
        raise Infeasible("too hot", constraint="temperature")

    with pytest.raises(Infeasible, match="too hot") as caught:
        run_isolated(f, None, LIMITS)
    assert caught.value.constraint == "temperature"


def test_an_exception_passes_with_the_text_of_its_traceback():
    def a_function_with_a_bug(x):
        return {}["missing"]

    with pytest.raises(KeyError, match="missing") as caught:
        run_isolated(a_function_with_a_bug, None, LIMITS)
    assert "in a_function_with_a_bug" in str(caught.value.__cause__)


def test_an_exception_that_cannot_be_sent_is_a_crash_that_names_it():
    class Local(Exception):
        pass

    for error, text in [(Picky(1, 2), "Picky: 1 and 2"), (Local("here"), "Local: here")]:

        def f(x, error=error):
            raise error

        found = crash(f)
        assert found.kind == "exception"
        assert text in str(found)
        assert "Traceback" in str(found.__cause__)


def test_an_interrupt_of_the_parent_kills_the_child_and_passes(tmp_path):
    def f(x):
        (tmp_path / "pid").write_text(str(os.getpid()))
        sleep_forever(x)

    def interrupt():
        wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
        os.kill(os.getpid(), signal.SIGINT)

    # A shell starts its background jobs with interrupts ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    helper = threading.Thread(target=interrupt)
    helper.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            run_isolated(f, None, LIMITS)
    finally:
        signal.signal(signal.SIGINT, before)
    helper.join()
    assert not os.path.exists(f"/proc/{(tmp_path / 'pid').read_text()}")
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_a_child_dies_with_its_parent(tmp_path):
    code = (
        "import os, time; from cmes_gpyopt.isolation import run_isolated\n"
        "run_isolated(lambda x: (print(os.getpid(), flush=True), time.sleep(30)), None)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    with process, contextlib.closing(process.stdout):
        pid = int(process.stdout.readline())
        assert alive(pid)
        process.kill()
    assert wait_until(lambda: not alive(pid))


# Nothing is left behind


def start_sleeper(path):
    path.write_text(str(subprocess.Popen(["sleep", "30"], close_fds=False).pid))


def fork_holding_the_pipe(path):
    pid = os.fork()
    if pid == 0:
        time.sleep(30)
        os._exit(0)
    path.write_text(str(pid))


@pytest.mark.parametrize("start", [start_sleeper, fork_holding_the_pipe])
@pytest.mark.parametrize("end", [lambda: 5, lambda: os._exit(3), lambda: sleep_forever(None)])
def test_grandchildren_are_killed_and_do_not_delay(tmp_path, start, end):
    path = tmp_path / "pid"
    before = time.monotonic()
    with contextlib.suppress(Crash):
        assert run_isolated(lambda x: (start(path), end())[1], None, Limits(seconds=1)) == 5
    assert time.monotonic() - before < 4
    assert wait_until(lambda: not alive(int(path.read_text())))


def test_many_runs_leak_no_files_and_no_processes():
    run_isolated(square, 1, LIMITS)
    files, processes = set(os.listdir("/proc/self/fd")), children()
    for i in range(200):
        if i % 20:
            assert run_isolated(square, i, LIMITS) == i**2
        else:
            crash(lambda x: os._exit(3))
    assert set(os.listdir("/proc/self/fd")) == files
    assert children() == processes


def test_the_limits_and_handlers_of_the_parent_are_unchanged():
    kinds = [resource.RLIMIT_AS, resource.RLIMIT_CORE, resource.RLIMIT_DATA]
    signals = [signal.SIGINT, signal.SIGTERM]

    def now():
        return [resource.getrlimit(k) for k in kinds], [signal.getsignal(s) for s in signals], os.getpgid(0)

    before = now()
    run_isolated(square, 2, SMALL)
    crash(no_memory, limits=SMALL)
    assert now() == before
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_a_status_taken_by_someone_else_is_told():
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps
    try:
        assert run_isolated(square, 3, LIMITS) == 9
        error = crash(lambda x: os._exit(3))
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert error.kind == "exit"
    assert "status" in str(error)


# Linear algebra in the child


def factorise(n):
    a = np.random.default_rng(0).normal(size=(n, n))
    lower = np.linalg.cholesky(a @ a.T + n * np.eye(n))
    scipy.linalg.cho_solve(scipy.linalg.cho_factor(a @ a.T + n * np.eye(n)), a)
    return float(np.log(np.diag(lower)).sum())


def test_linear_algebra_works_in_the_child_after_heavy_use_in_the_parent():
    expected = factorise(600)
    for limits in (LIMITS, SMALL):
        assert run_isolated(factorise, 600, limits) == pytest.approx(expected)


@pytest.mark.parametrize("threads", ["1", "2"])
@pytest.mark.parametrize("used", [False, True])
def test_linear_algebra_works_with_any_number_of_threads_and_with_little_memory(threads, used):
    code = (
        "from cmes_gpyopt.isolation import Isolated, Limits\n"
        "from tests.test_isolation import factorise\n"
        f"if {used}: factorise(100)\n"
        "for memory in ('5MB', '40MB'): print(Isolated(factorise, Limits(10, memory))(100))\n"
    )
    root = os.path.dirname(os.path.dirname(__file__))
    environment = os.environ | {"OPENBLAS_NUM_THREADS": threads, "OMP_NUM_THREADS": threads}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, timeout=45)
    assert done.returncode == 0, done.stderr
    assert len(set(done.stdout.split())) == 1
    assert len(done.stdout.split()) == 2


# Called from elsewhere


def test_several_threads_may_call_at_once():
    def f(x):
        if x % 5 == 4:
            os._exit(3)
        time.sleep(0.05)
        return float(np.ones((50, 50)).sum()) + x

    def outcome(x):
        try:
            return run_isolated(f, x, LIMITS)
        except Crash as error:
            return str(error)

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(outcome, range(40)))
    assert found == ["exited with code 3" if x % 5 == 4 else 2500.0 + x for x in range(40)]


def test_a_timeout_in_one_thread_leaves_the_others_alone():
    with ThreadPoolExecutor(4) as pool:
        slow = pool.submit(run_isolated, sleep_forever, None, Limits(seconds=0.5))
        quick = [pool.submit(run_isolated, square, x, LIMITS) for x in range(10)]
        assert [future.result() for future in quick] == [x**2 for x in range(10)]
        with pytest.raises(Crash, match="timed out"):
            slow.result()


def test_other_threads_may_draw_and_print_meanwhile():
    over = threading.Event()

    def work():
        while not over.is_set():
            np.random.rand(1000, 100)
            print("", end="", flush=True)

    state = np.random.get_state()
    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(50):
            run_isolated(lambda x: (np.random.rand(), print("", end="", flush=True)), None, Limits(seconds=10))
    finally:
        over.set()
        for thread in threads:
            thread.join()
        np.random.set_state(state)


def outcome_of(isolated, x):
    try:
        return isolated(x)
    except Crash as error:
        return str(error)


def five_or_death(x):
    return 5 if x else os._exit(3)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_a_process_pool_may_call_it(method):
    with ProcessPoolExecutor(2, mp_context=get_context(method)) as pool:
        found = list(pool.map(Isolated(five_or_death, SMALL), [1, 2, 3]))
        with pytest.raises(Crash, match="exited with code 3") as caught:
            pool.submit(Isolated(five_or_death, SMALL), 0).result()
    assert found == [5, 5, 5]
    assert caught.value.kind == "exit"


def test_daemonic_workers_may_call_it():
    with get_context("fork").Pool(2) as pool:
        found = pool.starmap(outcome_of, [(Isolated(five_or_death, SMALL), x) for x in (1, 0)])
    assert found == [5, "exited with code 3"]


def test_it_may_be_nested():
    inner = Isolated(five_or_death, LIMITS)
    assert run_isolated(inner, 1, LIMITS) == 5
    assert str(crash(inner, 0)) == "exited with code 3"


# The interface


@pytest.mark.parametrize(
    ("memory", "expected"),
    [("512MB", 512 * 10**6), ("2GB", 2 * 10**9), ("1.5 gb", 15 * 10**8), ("1GiB", 2**30), (2e9, 2 * 10**9)],
)
def test_memory_may_be_given_in_bytes_or_words(memory, expected):
    assert Limits(memory=memory).memory_bytes == expected


@pytest.mark.parametrize(
    "options",
    [{"seconds": s} for s in (0, -1, np.nan, np.inf, "5", True)]
    + [{"memory": m} for m in (0, -1, 2, 0.5, "much", "2XB", "-1GB", np.inf, [1])],
)
def test_a_limit_that_is_none_is_refused_in_a_sentence(options):
    with pytest.raises(CMESError, match="must be"):
        Limits(**options)


def test_wrong_arguments_are_refused_in_a_sentence(monkeypatch):
    with pytest.raises(CMESError, match="f must be callable, got int"):
        Isolated(5)
    with pytest.raises(CMESError, match="limits must be Limits"):
        Isolated(square, 5)
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(CMESError, match="memory limits need Linux"):
        Isolated(square, SMALL)
    monkeypatch.delattr(os, "fork")
    with pytest.raises(CMESError, match="WSL on Windows"):
        run_isolated(square, 1)


def test_crashes_and_wrappers_can_be_pickled():
    error = pickle.loads(pickle.dumps(Crash("exit", "exited with code 3")))
    assert (error.kind, str(error)) == ("exit", "exited with code 3")
    assert pickle.loads(pickle.dumps(Isolated(square, SMALL))) == Isolated(square, SMALL)
