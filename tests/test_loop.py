"""The driver's loop: asking and telling, executors, histories, interruptions, recommendations."""

import logging
import multiprocessing
import os
import random
import signal
import threading
import time
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import numpy as np
import pytest

from cmes_gpyopt import (
    BinaryConstraint,
    CMESError,
    ConstrainedBayesianOptimization,
    Infeasible,
    RealConstraint,
    load_history,
)
from cmes_gpyopt.problems import TOY

from .conftest import MIXED_DOMAIN

DOMAIN = list(TOY.domain)
SMALL = {"grid_size": 100, "num_samples": 3}


def make(f=TOY.with_failures, domain=DOMAIN, **options):
    options = {"acquisition_options": SMALL} | options
    return ConstrainedBayesianOptimization(f, domain, **options)


def toy(x):
    """The toy as a function that a process pool can be sent."""
    return TOY.with_failures(x)


# --- ask and tell -----------------------------------------------------------------------------------------------------


def test_a_loop_of_ones_own_visits_the_points_of_run_optimization():
    whole = make(seed=4)
    whole.run_optimization(4)
    own = make(None, seed=4)
    for _ in range(9):
        x = own.suggest_next_locations()
        np.testing.assert_array_equal(own.suggest_next_locations(), x)
        own.tell(x, TOY.with_failures(x))
    np.testing.assert_array_equal(own.X, whole.X)
    assert own.fx_opt == whole.fx_opt


def test_pending_and_ignored_points_are_not_suggested():
    bo = make(seed=4)
    bo.run_optimization(1)
    first = bo.suggest_next_locations()
    second = bo.suggest_next_locations(pending_X=first)
    assert np.abs(second - first).max() > 0.01
    np.testing.assert_array_equal(bo.suggest_next_locations(), first)
    assert not np.array_equal(bo.suggest_next_locations(ignored_X=first), first)


def test_initial_points_come_first_and_once():
    bo = make(None)
    initial = bo._initial
    np.testing.assert_array_equal(bo.suggest_next_locations(), initial[:1])
    np.testing.assert_array_equal(bo.suggest_next_locations(pending_X=initial[:2]), initial[2:3])
    beyond = bo.suggest_next_locations(pending_X=initial)  # no data at all yet
    assert np.abs(beyond - initial).max(axis=1).min() > 1e-3


def test_constraint_values_can_be_told_by_name_and_by_position():
    feedback = [BinaryConstraint("crash"), RealConstraint("size", upper=3.0)]
    bo = make(lambda x: (1.0, {"size": 2.0, "crash": -1}), feedback=feedback)
    bo.tell([[0.0, 0.0]], [1.0], [[-1, 2.0]])
    bo.run_optimization(0)
    np.testing.assert_array_equal(bo.C, np.tile([-1.0, -1.0], (6, 1)))
    bo = make(lambda x: (1.0, {"size": 5.0}), feedback=feedback)
    bo.run_optimization(0)
    np.testing.assert_array_equal(bo.C, np.tile([np.nan, 2.0], (5, 1)))
    assert bo.x_opt is None


def test_a_failure_can_name_its_constraint():
    def f(x):
        raise Infeasible("too slow", constraint="time")

    bo = make(f, feedback=[BinaryConstraint("memory"), BinaryConstraint("time")])
    bo.run_optimization(0)
    np.testing.assert_array_equal(bo.C, np.tile([np.nan, 1.0], (5, 1)))
    assert bo.causes == ["too slow"] * 5


def test_listed_errors_are_failures_and_others_are_not():
    def f(x):
        if x[0, 0] > 0:
            raise ZeroDivisionError("no good")
        return x[0, 1]

    bo = make(f, catch=ArithmeticError)
    bo.run_optimization(2)
    assert set(bo.causes) == {"", "ZeroDivisionError: no good"}
    np.testing.assert_array_equal(bo.feasible, bo.X[:, 0] <= 0)


# --- hygiene ----------------------------------------------------------------------------------------------------------


def test_a_finite_domain_is_explored_once_and_then_the_run_ends():
    domain = [
        {"name": "a", "type": "discrete", "domain": (0, 1, 2)},
        {"name": "b", "type": "categorical", "domain": (0, 1)},
    ]
    bo = make(lambda x: x.sum(), domain, initial_design_numdata=2)
    result = bo.run_optimization(50)
    assert result.reason == "every point of the domain has been evaluated"
    assert len(np.unique(bo.X, axis=0)) == 6
    with pytest.raises(CMESError, match="there is nothing left to suggest"):
        bo.suggest_next_locations()


def test_time_is_limited_and_results_say_why_they_end():
    bo = make(lambda x: time.sleep(0.05) or 1.0)
    result = bo.run_optimization(100, max_time=0.12)
    assert 1 <= len(bo.X) < 6
    assert result.reason == "the time was used up"
    assert "evaluations" in str(result)


def test_an_interruption_keeps_everything_and_the_run_goes_on_where_it_was():
    calls = []

    def f(x):
        calls.append(x)
        if len(calls) == 7:
            raise KeyboardInterrupt
        return TOY.with_failures(x)

    bo = make(f, seed=1)
    result = bo.run_optimization(4)
    assert result.reason == "it was interrupted"
    assert len(bo.X) == 6
    bo.run_optimization(3)
    undisturbed = make(seed=1)
    undisturbed.run_optimization(4)
    np.testing.assert_array_equal(bo.X[:9], undisturbed.X)


def test_a_failed_fit_falls_back_to_the_last_good_hyperparameters(caplog, monkeypatch):
    bo = make(seed=2)
    bo.run_optimization(3)
    good = bo.model.get_model_parameters()

    def fail(*args, **kwargs):
        raise np.linalg.LinAlgError("made to fail")

    monkeypatch.setattr("cmes_gpyopt.models.fit.minimize", fail)
    with caplog.at_level(logging.WARNING):
        bo.run_optimization(1)
        bo._update_model()
        np.testing.assert_allclose(bo.model.get_model_parameters(), good)
    assert "last good hyperparameters" in caplog.text


def test_the_progress_bar_says_what_matters(capsys):
    bo = make()
    bo.run_optimization(1, progress=True)
    shown = capsys.readouterr().err
    assert "infeasible=" in shown
    assert "last=" in shown
    assert "best=" in shown


# --- results ----------------------------------------------------------------------------------------------------------


def test_results_are_readable_and_name_the_variables():
    domain = [*MIXED_DOMAIN[:2], {"name": "kind", "type": "categorical", "domain": ("relu", "tanh", "elu")}]

    def f(x):
        return np.inf if x[0, 0] * x[0, 1] > 4 else x[0, 0] + x[0, 1] + x[0, 2]

    bo = make(f, domain)
    result = bo.run_optimization(3)
    assert set(result.variables) == {"rate", "layers", "kind"}
    assert result.variables["kind"] in ("relu", "tanh", "elu")
    assert result.variables["layers"] in (1, 2, 4, 8)
    assert isinstance(result.variables["layers"], int)
    assert "kind='" in str(result)
    with pytest.raises(AttributeError):
        result.fx_opt = 0.0
    nothing = make(lambda x: np.inf).run_optimization(0)
    assert nothing.x_opt is None
    assert "no feasible evaluation yet" in str(nothing)


def test_the_recommendation_is_safe_and_good():
    bo = make(lambda x: (x[0, 0], x[0, 0] * -1.0 - 0.5), feedback="real", seed=3)  # feasible where x1 >= -0.5
    bo.run_optimization(12)
    found = bo.recommend(0.95)
    assert found.confident
    assert found.probability >= 0.95
    assert -0.52 < found.x[0] < -0.4
    assert found.interval[0] <= found.mean <= found.interval[1]
    assert found.variables == bo.variables(found.x)
    bold = bo.recommend(0.05)
    assert bold.mean <= found.mean
    np.testing.assert_array_equal(bo.recommend(0.95).x, found.x)


def test_where_nothing_is_safe_enough_the_safest_point_is_recommended_and_says_so():
    bo = make(lambda x: np.inf)
    bo.run_optimization(2)
    found = bo.recommend(0.99)
    assert not found.confident
    assert "this is the safest" in str(found)
    assert found.probability == pytest.approx(bo.model.probability_feasible(found.x[None]).item())


@pytest.mark.parametrize("fraction", [0.2, 0.0])
def test_the_share_of_failures_can_be_controlled(fraction):
    shares = []
    for limit in (None, fraction):
        runs = [make(seed=s, max_infeasible_fraction=limit) for s in range(2)]
        for bo in runs:
            bo.tell([[0.5, 0.3], [-0.3, -0.3]], TOY.objective(np.array([[0.5, 0.3], [-0.3, -0.3]])))
            bo.run_optimization(12)
        shares.append(np.mean([1 - bo.feasible[7:].mean() for bo in runs]))
    assert shares[1] < shares[0] - 0.1
    assert shares[1] <= fraction + 0.2


# --- executors --------------------------------------------------------------------------------------------------------


class Recorder(ThreadPoolExecutor):
    """A pool that notes which points are in flight together."""

    def __init__(self, workers):
        super().__init__(workers)
        self.in_flight, self.most, self.repeats = [], 0, 0

    def submit(self, call, f, x, isolate):
        key = x.tobytes()
        self.repeats += key in self.in_flight
        self.in_flight.append(key)
        self.most = max(self.most, len(self.in_flight))
        future = super().submit(call, f, x, isolate)
        future.add_done_callback(lambda _: self.in_flight.remove(key))
        return future


def test_evaluations_run_asynchronously_without_repeats():
    durations = random.Random(0)

    def f(x):
        time.sleep(durations.uniform(0.0, 0.05))
        return TOY.with_failures(x)

    with Recorder(4) as pool:
        bo = make(f, executor=pool)
        bo.run_optimization(15)
        assert pool.most == 4
        assert pool.repeats == 0
    assert len(np.unique(bo.X, axis=0)) == 20
    np.testing.assert_array_equal(bo.Y, TOY.with_failures(bo.X))


def test_more_workers_than_initial_points_start_at_once():
    together = threading.Barrier(8)
    with Recorder(8) as pool:
        bo = make(lambda x: together.wait(60) * 0 + 1.0, executor=pool, initial_design_numdata=3)
        bo.run_optimization(5)
        assert pool.most == 8
    assert len(np.unique(bo.X, axis=0)) == 8


def test_process_pools_work():
    with ProcessPoolExecutor(2) as pool:
        bo = make(toy, executor=pool)
        bo.run_optimization(3)
    assert len(bo.X) == 8
    np.testing.assert_array_equal(bo.Y, TOY.with_failures(bo.X))


@pytest.mark.parametrize("threads", [0, 3])
def test_batches_are_synchronous_and_distinct(threads):
    pool = Recorder(threads) if threads else None
    together = threading.Barrier(max(threads, 1))
    bo = make(lambda x: together.wait(60) * 0 + x[0, 0], executor=pool, batch_size=3)
    assert bo.suggest_next_locations().shape == (3, 2)
    bo.run_optimization(7)
    assert len(np.unique(bo.X, axis=0)) == 12
    if pool is not None:
        pool.shutdown()


def die_once(x):
    """Kill the worker process the first time."""
    flag = os.environ["CMES_TEST_FLAG"]
    if not os.path.exists(flag):
        Path(flag).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return float(x[0, 0])


def test_points_of_a_broken_pool_are_not_lost(tmp_path, monkeypatch):
    monkeypatch.setenv("CMES_TEST_FLAG", str(tmp_path / "flag"))
    with ProcessPoolExecutor(2) as pool:
        bo = make(die_once, executor=pool, history=tmp_path / "run.db")
        with pytest.raises(BrokenProcessPool):
            bo.run_optimization(2)
    # While the broken pool goes unnoticed the other worker may have finished the five points and asked for more.
    suggested = len(load_history(tmp_path / "run.db", as_dict=True)["status"])
    assert len(bo.X) < suggested
    with ProcessPoolExecutor(2) as pool:
        bo.executor = pool
        bo.run_optimization(2)
    assert len(bo.X) == max(suggested, 5) + 2
    assert len(np.unique(bo.X, axis=0)) == len(bo.X)
    bo.history.close()
    table = load_history(tmp_path / "run.db", as_dict=True)
    assert (table["status"] == "done").all()
    assert (table["attempts"] > 1).sum() >= 1


def test_a_programming_error_stops_the_run_after_what_is_in_flight_has_been_recorded():
    def f(x):
        if x[0, 0] == bad:
            raise TypeError("a bug")
        time.sleep(0.1)
        return 1.0

    with ThreadPoolExecutor(3) as pool:
        bo = make(f, executor=pool)
        bad = bo._initial[0, 0]
        with pytest.raises(TypeError, match="a bug"):
            bo.run_optimization(5)
    assert len(bo.X) == 2


class KilledWorker(Exception):
    """What Dask raises when workers keep dying under a task."""


class DaskLike(Executor):
    def submit(self, call, *arguments):
        future = Future()
        future.set_exception(KilledWorker("worker died")) if arguments[1][0, 0] > 0 else future.set_result(
            call(*arguments)
        )
        return future


def test_a_worker_that_keeps_dying_is_an_infeasible_evaluation():
    bo = make(lambda x: 1.0, executor=DaskLike(), workers=2)
    bo.run_optimization(2)
    np.testing.assert_array_equal(bo.feasible, bo.X[:, 0] <= 0)
    assert "KilledWorker: worker died" in bo.causes


# --- histories --------------------------------------------------------------------------------------------------------


def test_the_same_call_with_the_same_file_resumes(tmp_path):
    whole = make(seed=5)
    whole.run_optimization(6)
    for calls in (3, 6, 100):
        count = 0

        def f(x, limit=calls):
            nonlocal count
            count += 1
            if count > limit:
                raise KeyboardInterrupt
            return TOY.with_failures(x)

        bo = make(f, seed=5, history=tmp_path / "run.db")
        bo.run_optimization(6)
        bo.history.close()
    np.testing.assert_array_equal(bo.X, whole.X)
    again = make(None, seed=5, history=tmp_path / "run.db")
    assert again.fx_opt == whole.fx_opt
    assert again.causes == bo.causes
    again.history.close()
    table = load_history(tmp_path / "run.db", as_dict=True)
    assert len(table["id"]) == 11
    assert (table["attempts"] == 2).sum() == 2


def test_evaluations_told_from_outside_do_not_use_up_the_budget_of_a_resumed_run(tmp_path):
    outside = np.array([[0.5, 0.3], [-0.3, -0.3]])
    for calls in (6, 100):
        left = iter(range(calls))

        def f(x, left=left):
            if next(left, None) is None:
                raise KeyboardInterrupt
            return TOY.with_failures(x)

        bo = make(f, acquisition="random", acquisition_options={}, history=tmp_path / "run.db")
        if calls == 6:
            bo.tell(outside, TOY.objective(outside))
        bo.run_optimization(4)
        bo.history.close()
    assert len(bo.X) == 2 + 5 + 4


def test_asked_and_told_evaluations_are_in_the_history(tmp_path):
    bo = make(None, history=tmp_path / "run.db")
    for _ in range(6):
        x = bo.suggest_next_locations()
        bo.tell(x, TOY.with_failures(x))
    bo.history.close()
    again = make(None, history=tmp_path / "run.db")
    np.testing.assert_array_equal(again.X, bo.X)
    np.testing.assert_array_equal(again.Y, bo.Y)
    again.history.close()


def test_another_domain_or_feedback_is_refused(tmp_path):
    make(history=tmp_path / "run.db").history.close()
    with pytest.raises(CMESError, match="x1"):
        make(domain=[{**DOMAIN[0], "domain": (0, 5)}, DOMAIN[1]], history=tmp_path / "run.db")
    with pytest.raises(CMESError, match="was made with the constraints"):
        make(feedback="real", history=tmp_path / "run.db")


def test_a_resumed_run_knows_in_which_order_evaluations_finished(tmp_path):
    def f(x):
        # The third is the last of the first ones to finish.
        time.sleep(0.3 if x[0, 0] == first.X[2, 0] else 0.01)
        return TOY.with_failures(x)

    first = make(seed=4)
    first.run_optimization(0)
    database = tmp_path / "run.db"
    with ThreadPoolExecutor(2) as pool:
        live = make(f, seed=4, executor=pool, history=database)
        live.run_optimization(0)
    live.history.close()
    assert not np.array_equal(live.X, first.X)
    resumed = make(f, seed=4, history=database)
    np.testing.assert_array_equal(resumed.X, live.X)
    np.testing.assert_array_equal(resumed.suggest_next_locations(), live.suggest_next_locations())


def killed_run(database, budget, ready):
    """What the killed process does: two evaluations in flight, as fast as they come."""

    def f(x):
        time.sleep(0.005)
        return TOY.with_failures(x)

    with ThreadPoolExecutor(2) as pool:
        bo = ConstrainedBayesianOptimization(f, DOMAIN, acquisition="random", history=database, executor=pool)
        ready.set()
        bo.run_optimization(budget)
    bo.history.close()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_run_survives_being_killed_at_fifty_random_moments(tmp_path):
    moments = random.Random(1)
    context = multiprocessing.get_context("fork")
    database, budget = tmp_path / "run.db", 2000
    seen = {}
    for kills in range(500):
        if kills >= 50 and len(seen) > 20:  # on a busy machine fewer evaluations end between two kills
            break
        ready = context.Event()
        child = context.Process(target=killed_run, args=(database, budget, ready))
        child.start()
        assert ready.wait(60)
        time.sleep(moments.uniform(0.0, 0.1))
        child.kill()
        child.join()
        assert child.exitcode == -signal.SIGKILL
        table = load_history(database, as_dict=True)
        done = table["status"] == "done"
        for id, y in zip(table["id"][done].tolist(), table["objective"][done].tolist(), strict=True):
            assert repr(seen.setdefault(id, y)) == repr(y)
        assert set(seen) == set(table["id"][done].tolist())
        assert (~done).sum() <= 2
    assert len(seen) > 20
    total = len(seen) + 30
    last = context.Process(target=killed_run, args=(database, total - 5, context.Event()))
    last.start()
    last.join(60)
    assert last.exitcode == 0
    table = load_history(database, as_dict=True)
    assert len(table["id"]) == total
    assert (table["status"] == "done").all()
    repeated = int((table["attempts"] - 1).sum())
    print(f"{repeated} evaluations in flight at 50 kills were repeated, of {total}")
    assert 0 < repeated <= 2 * 50
    assert len(np.unique(np.column_stack([table["x1"], table["x2"]]), axis=0)) == total


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_killed_while_it_draws_its_own_progress_bar_does_not_block_the_next_run():
    from tqdm import tqdm

    def hold_the_lock(ready):
        with tqdm.get_lock():
            ready.set()
            time.sleep(60)

    tqdm.get_lock()
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    child = context.Process(target=hold_the_lock, args=(ready,))
    child.start()
    assert ready.wait(30)
    child.kill()
    child.join()
    try:
        bo = make(acquisition="random", acquisition_options={})
        bo.run_optimization(1, progress=True)
    finally:
        _release(tqdm)
    assert len(bo.X) == 6


def _release(tqdm):
    """Give tqdm a fresh lock: the old one is held by a process that is dead."""
    from tqdm.std import TqdmDefaultWriteLock

    TqdmDefaultWriteLock.mp_lock = multiprocessing.RLock()
    tqdm.set_lock(TqdmDefaultWriteLock())
