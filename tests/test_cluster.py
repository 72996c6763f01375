"""Evaluations on a real Dask cluster, and real crashes in child processes."""

import copyreg
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from cmes_gpyopt import ConstrainedBayesianOptimization, Limits
from cmes_gpyopt.problems import TOY

DOMAIN = list(TOY.domain)


def toy(x):
    return TOY.with_failures(x)


def kills_its_worker_once(x):
    flag = Path(os.environ["CMES_DASK_FLAG"])
    if not flag.exists():
        flag.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return TOY.with_failures(x)


def always_kills_its_worker(x):
    if x[0, 0] > 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return 1.0


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    pickled = dict(copyreg.dispatch_table)
    distributed = pytest.importorskip("distributed")
    flag = tmp_path_factory.mktemp("dask") / "flag"
    os.environ["CMES_DASK_FLAG"] = str(flag)
    cluster = distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50
    )
    with cluster, distributed.Client(cluster) as client:
        yield client
    # distributed changes how all exceptions are pickled, in the whole process.
    copyreg.dispatch_table.clear()
    copyreg.dispatch_table.update(pickled)


def run(f, client, evaluations, workers=2, **options):
    bo = ConstrainedBayesianOptimization(
        f, DOMAIN, acquisition="cei", executor=client.get_executor(), workers=workers, **options
    )
    bo.run_optimization(evaluations)
    return bo


@pytest.mark.filterwarnings("ignore")  # distributed warns about its own event loops and sockets
def test_evaluations_run_on_a_cluster(client):
    bo = run(toy, client, 4)
    assert len(np.unique(bo.X, axis=0)) == 9
    np.testing.assert_array_equal(bo.Y, TOY.with_failures(bo.X))


@pytest.mark.filterwarnings("ignore")
def test_a_point_whose_worker_is_killed_is_retried_and_not_lost(client):
    bo = run(kills_its_worker_once, client, 2)
    assert Path(os.environ["CMES_DASK_FLAG"]).exists()
    assert len(np.unique(bo.X, axis=0)) == 7
    np.testing.assert_array_equal(bo.Y, TOY.with_failures(bo.X))


@pytest.mark.filterwarnings("ignore")
def test_a_point_that_keeps_killing_workers_is_recorded_as_infeasible(client):
    # One at a time: Dask blames every task that a dying worker had in hand.
    bo = run(always_kills_its_worker, client, 0, workers=1, X=np.array([[0.5, 0.5], [-0.5, 0.5]]))
    np.testing.assert_array_equal(bo.feasible[np.argsort(bo.X[:, 0])], [True, False])
    assert any("KilledWorker" in cause for cause in bo.causes)


# --- crashes ----------------------------------------------------------------------------------------------------------


def segfault(x):
    os.kill(os.getpid(), signal.SIGSEGV)


def too_much_memory(x):
    return np.ones(400_000_000).sum()


def never(x):
    time.sleep(60)


BEHAVIOURS = {
    "fine": (lambda x: 1.0, ""),
    "segfault": (segfault, "SIGSEGV"),
    "memory": (too_much_memory, "memory limit"),
    "timeout": (never, "timed out"),
    "exit": (lambda x: os._exit(3), "exited with code 3"),
    "garbage": (lambda x: "good", "must be a real number, got 'good'"),
    "shape": (lambda x: np.ones((2, 2)), "must be one number, got ndarray of shape (2, 2)"),
    "complex": (lambda x: 1 + 2j, "must be a real number, got (1+2j)"),
}


def test_two_hundred_evaluations_that_die_in_every_way_are_all_recorded():
    order = random.Random(0)
    # A timeout takes its whole second; the others are quick.
    plan = [order.choice([b for b in BEHAVIOURS if b != "timeout"]) for _ in range(192)] + ["timeout"] * 8
    order.shuffle(plan)
    points = np.random.default_rng(0).uniform(-1, 1, (200, 2))
    behaviour = {x.tobytes(): name for x, name in zip(points, plan, strict=True)}

    def f(x):
        return BEHAVIOURS[behaviour[x[0].tobytes()]][0](x)

    bo = ConstrainedBayesianOptimization(
        f, DOMAIN, X=points, acquisition="random", isolate=Limits(seconds=1.0, memory="1GB")
    )
    bo.run_optimization(0)
    assert len(bo.X) == 200
    for x, good, cause in zip(bo.X, bo.feasible, bo.causes, strict=True):
        name = behaviour[x.tobytes()]
        assert good == (name == "fine")
        assert BEHAVIOURS[name][1] in cause, (name, cause)
    assert set(Counter(plan)) == set(BEHAVIOURS)
