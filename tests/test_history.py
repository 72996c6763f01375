"""The record of a run: exactness, resuming, refusals, concurrency, and kills."""

import logging
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
import types
from contextlib import closing
from types import SimpleNamespace

import numpy as np
import pytest

from cmes_gpyopt import BinaryConstraint, CMESError, RealConstraint, history
from cmes_gpyopt.evaluation import Evaluation
from cmes_gpyopt.history import History, load_history

from .conftest import MIXED_DOMAIN

DOMAIN = [{"name": "rate", "type": "continuous", "domain": (0, 1)}, {"name": "size", "domain": (0.0, 2.0)}]
AWKWARD = [np.nan, np.inf, -np.inf, -0.0, 0.0, 5e-324, 2.2e-308, np.nextafter(1, 2), 0.1 + 0.2, 1.7976931348623157e308]


def open_history(path, **changes):
    settings = {"domain": DOMAIN, "known_constraints": None, "constraints": [], "seed": 1, "acquisition": "cmes"}
    return History(path, **settings | changes)


def query(path, sql):
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(sql).fetchall()


def bits(values):
    return np.asarray(values, dtype=float).tobytes()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.db"


def test_doubles_come_back_bit_for_bit(path):
    domain = [{"name": "v", "type": "continuous", "domain": (0, 1), "dimensionality": len(AWKWARD)}]
    constraints = [RealConstraint(f"c{j}") for j in range(len(AWKWARD))]
    with open_history(path, domain=domain, constraints=constraints) as run:
        for y in AWKWARD:
            run.record(np.array(AWKWARD), Evaluation(y, np.array(AWKWARD[::-1]), "why"))
    with open_history(path, domain=domain, constraints=constraints) as run:
        for (id, x, evaluation), y in zip(run.done(), AWKWARD, strict=True):
            assert bits(x) == bits(AWKWARD)
            assert bits(evaluation.c) == bits(AWKWARD[::-1])
            assert (bits(evaluation.y), evaluation.cause) == (bits(y), "why")
            x[0] = id  # a copy of one's own
    table = load_history(path, as_dict=True)
    assert bits(table["objective"]) == bits(AWKWARD)
    assert bits([table[f"v_{j + 1}"][0] for j in range(len(AWKWARD))]) == bits(AWKWARD)


def test_a_reopened_file_resumes_where_it_was(path):
    constraints = [BinaryConstraint(), RealConstraint("heat", upper=3)]
    with open_history(path, constraints=constraints) as run:
        first = run.suggested(np.array([0.1, 0.2]), kind="initial")
        second = run.suggested(np.array([0.3, 0.4]), kind="suggestion")
        third = run.suggested(np.array([0.5, 0.6]), kind="suggestion")
        run.finished(second, Evaluation(np.nan, np.array([1.0, np.nan]), "out of memory"), 1.5)
    with open_history(path, constraints=constraints) as run:
        assert [(id, x.tolist()) for id, x in run.running()] == [(first, [0.1, 0.2]), (third, [0.5, 0.6])]
        [(id, x, evaluation)] = run.done()
        assert (id, x.tolist(), evaluation.cause, evaluation.feasible) == (second, [0.3, 0.4], "out of memory", False)
        run.restart(first)
        run.restart(first)
        run.finished(first, Evaluation(2.0, np.array([-1.0, -0.5])))
        run.abandon(third, "the machine is gone")
        assert run.running() == []
        assert run.record(np.array([0.7, 0.8]), Evaluation(1.0, np.array([-1.0, 0.0]))) == third + 1
    table = load_history(path, as_dict=True)
    assert table["attempts"].tolist() == [3, 1, 1, 1]
    assert table["status"].tolist() == ["done", "done", "abandoned", "done"]
    assert table["cause"].tolist() == ["", "out of memory", "the machine is gone", ""]
    notes = query(path, "SELECT evaluation, text FROM note WHERE evaluation IS NOT NULL")
    assert notes == [(1, "restarted, attempt 2"), (1, "restarted, attempt 3"), (3, "abandoned: the machine is gone")]
    readable = query(path, "SELECT readable_x, readable_outcome FROM evaluation WHERE id = 2")
    assert readable == [("[0.3, 0.4]", "[null, 1.0, null]")]


def test_outcomes_come_back_in_the_order_in_which_they_were_stored_whatever_the_clock_says(path, monkeypatch):
    with open_history(path) as run:
        ids = [run.suggested(np.full(2, i / 10), kind="suggestion") for i in range(4)]
        for hour, id in ((12, ids[2]), (11, ids[3]), (11, ids[0]), (13, ids[1])):
            monkeypatch.setattr(history, "_now", lambda hour=hour: f"2020-01-01T{hour}:00:00.000000+00:00")
            run.finished(id, Evaluation(float(id), np.empty(0)))
        told = run.record(np.ones(2), Evaluation(0.0, np.empty(0)))
        assert [id for id, _, _ in run.done()] == [ids[2], ids[3], ids[0], ids[1], told]


def test_an_outcome_is_stored_once(path):
    with open_history(path) as run:
        id, given_up = (run.suggested(np.zeros(2), kind="suggestion") for _ in range(2))
        run.finished(id, Evaluation(1.0, np.empty(0)))
        for again in (lambda: run.finished(id, Evaluation(2.0, np.empty(0))), lambda: run.restart(id)):
            with pytest.raises(CMESError, match="evaluation 1 of .*run.db already has its outcome"):
                again()
        with pytest.raises(CMESError, match="already has its outcome"):
            run.abandon(id, "no")
        run.abandon(given_up, "too slow")
        with pytest.raises(CMESError, match=r"evaluation 2 of .* was given up \(too slow\); store a late result"):
            run.finished(given_up, Evaluation(2.0, np.empty(0)))
        for missing in (lambda: run.finished(9, Evaluation(2.0, np.empty(0))), lambda: run.restart(9)):
            with pytest.raises(CMESError, match="has no evaluation 9"):
                missing()
        assert [(id, e.y) for id, _, e in run.done()] == [(1, 1.0)]
    assert len(query(path, "SELECT * FROM note WHERE evaluation = 1")) == 0


def test_wrong_arguments_are_refused_and_leave_nothing_behind(path):
    with open_history(path, constraints=[BinaryConstraint()]) as run:
        with pytest.raises(CMESError, match=r"x must have shape \(2,\), got \(1, 2\)"):
            run.suggested(np.zeros((1, 2)), kind="initial")
        with pytest.raises(CMESError, match="kind must be 'initial', 'suggestion' or 'told', got 'guess'"):
            run.suggested(np.zeros(2), kind="guess")
        with pytest.raises(CMESError, match=r"c of shape \(1,\), got \(2,\)"):
            run.record(np.zeros(2), Evaluation(0.0, np.zeros(2)))
        with pytest.raises(CMESError, match="cannot be written"):
            run.record(np.zeros(2), Evaluation(0.0, np.zeros(1), cause=object()))
        assert run.running() == run.done() == []
        run.suggested(np.zeros(2), kind="initial")
    run.close()
    with pytest.raises(CMESError, match="run.db is closed; open it again"):
        run.running()


def renamed(domain):
    return [{**domain[0], "name": "speed"}, domain[1]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"domain": [{**DOMAIN[0], "domain": (0, 2)}, DOMAIN[1]]},
         "variable 'rate' of domain (0, 1), got (0, 2); pass another file, or the same domain"),
        ({"domain": [{**DOMAIN[0], "type": "discrete"}, DOMAIN[1]]},
         "variable 'rate' of type 'continuous', got 'discrete'; pass another file, or the same domain"),
        ({"domain": [DOMAIN[0], {**DOMAIN[1], "dimensionality": 2}]},
         "variable 'size' of dimensionality 1, got 2; pass another file, or the same domain"),
        ({"domain": renamed(DOMAIN)},
         "the variables ('rate', 'size'), got ('speed', 'size'); pass another file, or the same domain"),
        ({"domain": DOMAIN[:1]}, "the variables ('rate', 'size'), got ('rate'); pass another file, or the same domain"),
        ({"known_constraints": []},
         "the known constraints ('x[:, 0] - 1'), got (); pass another file, or the same known constraints"),
        ({"known_constraints": [{"name": "k", "constraint": "x[:, 0] - 2"}]},
         "the known constraints ('x[:, 0] - 1'), got ('x[:, 0] - 2'); pass another file"),
        ({"constraints": [BinaryConstraint("fails", link="probit"), RealConstraint("heat", 3)]},
         "constraint 'fails' of link 'logistic', got 'probit'; pass another file, or the same feedback"),
        ({"constraints": [BinaryConstraint("fails"), RealConstraint("heat", 4)]},
         "constraint 'heat' of upper 3.0, got 4.0; pass another file, or the same feedback"),
        ({"constraints": [BinaryConstraint("fails"), BinaryConstraint("heat")]},
         "constraint 'heat' of kind 'real', got 'binary'; pass another file, or the same feedback"),
        ({"constraints": [BinaryConstraint("fails")]},
         "the constraints ('fails', 'heat'), got ('fails'); pass another file, or the same feedback"),
        ({"seed": 2}, "the seed 1, got 2; pass another file, or the same seed"),
    ],
)  # fmt: skip
def test_another_run_is_refused_and_the_difference_named(path, changes, message):
    made = {
        "known_constraints": [{"name": "k", "constraint": "x[:, 0] - 1"}],
        "constraints": [BinaryConstraint("fails"), RealConstraint("heat", 3)],
    }
    open_history(path, **made).close()
    content = path.read_bytes()
    with pytest.raises(CMESError) as refusal:
        open_history(path, **made | changes)
    assert str(refusal.value).startswith(f"{path} was made with {message}")
    assert path.read_bytes() == content
    open_history(path, **made).close()  # the lock was given back


def test_the_same_run_may_be_written_in_other_types(path):
    known = [{"name": "k", "constraint": "x[:, 0] - 1"}]
    domain = [*DOMAIN, {"name": "n", "type": "categorical", "domain": (0, 1, 2)}]
    open_history(path, domain=domain, known_constraints=known).close()
    same = [
        {"name": "rate", "domain": np.array([0.0, 1.0]), "dimensionality": 1},
        {"name": "size", "type": "continuous", "domain": [np.float64(0), 2], "dimensionality": np.int64(1)},
        {"name": "n", "type": "categorical", "domain": range(3)},
    ]
    known = [{"name": "other", "constrain": "x[:, 0] - 1"}]
    open_history(path, domain=same, known_constraints=known, seed=np.int64(1)).close()
    with pytest.raises(CMESError, match="a history cannot hold <function renamed"):
        open_history(path, domain=[{"name": "n", "type": "categorical", "domain": (renamed, 1)}])


def test_another_acquisition_is_noted_and_logged_once(path, caplog):
    open_history(path).close()
    with caplog.at_level(logging.WARNING):
        open_history(path, acquisition="cei").close()
        open_history(path, acquisition="cei").close()
    assert [record.getMessage() for record in caplog.records] == [f"{path} was run with cmes so far, now with cei"]
    assert [text.split()[-1] for (text,) in query(path, "SELECT text FROM note")] == ["cmes", "cei", "cei"]


def make_text(path):
    path.write_text("id,x,y\n" * 200)


def make_short(path):
    path.write_text("x")


def make_other_database(path):
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE meta (key, value)")


def make_newer(path):
    open_history(path).close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE meta SET value = '2' WHERE key = 'schema'")
        connection.execute("""UPDATE meta SET value = '"9.1"' WHERE key = 'library'""")


def make_truncated(path):
    open_history(path).close()
    path.write_bytes(path.read_bytes()[:9000])


def make_scrambled(path):
    open_history(path).close()
    content = path.read_bytes()
    path.write_bytes(content[:4096] + b"\xa5" * (len(content) - 4096))


def make_one_page_bad(path):
    with open_history(path) as run:
        for _ in range(60):
            run.record(np.zeros(2), Evaluation(1.0, np.empty(0)))
    content = path.read_bytes()
    path.write_bytes(content[:-4096] + b"\xa5" * 4096)


def make_emptied(path):
    open_history(path).close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DELETE FROM meta")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (make_text, "is not a history, or is damaged"),
        (make_short, "was made by another program"),
        (make_other_database, "was made by another program"),
        (make_newer, r"was made by cmes_gpyopt 9.1, this is \S+; update it"),
        (make_truncated, "is not a history, or is damaged"),
        (make_scrambled, "is not a history, or is damaged"),
        (make_one_page_bad, "is not a history, or is damaged"),
        (make_emptied, "is not a history, or is damaged"),
    ],
)
def test_other_newer_and_damaged_files_are_refused_untouched(path, make, message):
    make(path)
    before = path.read_bytes(), path.stat().st_mtime_ns
    for use in (open_history, load_history):
        with pytest.raises(CMESError, match=f"run.db {message}"):
            use(path)
        assert (path.read_bytes(), path.stat().st_mtime_ns) == before


def test_missing_and_empty_files(path, tmp_path):
    with pytest.raises(CMESError, match="run.db is no file; pass the history of a run"):
        load_history(path)
    with pytest.raises(CMESError, match="is no file"):
        load_history(tmp_path)
    with pytest.raises(CMESError, match="is no file"):
        open_history(tmp_path)
    with pytest.raises(CMESError, match="its directory does not exist"):
        open_history(tmp_path / "none" / "run.db")
    path.touch()
    with pytest.raises(CMESError, match="run.db is empty"):
        load_history(path)
    open_history(path).close()  # as tempfile leaves it
    assert len(load_history(path, as_dict=True)["rate"]) == 0


def test_a_file_that_cannot_be_made_is_a_clear_error(path, monkeypatch):
    def full(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(CMESError, match=r"run.db cannot be written \(No space left on device\)"):
        open_history(path)
    monkeypatch.undo()
    open_history(path).close()


def test_any_name_will_do(tmp_path):
    odd = tmp_path / "what? 50% #1 ünï.db"
    with open_history(odd) as run:
        run.record(np.zeros(2), Evaluation(1.0, np.empty(0)))
    assert load_history(str(odd), as_dict=True)["objective"].tolist() == [1.0]


def test_writes_are_durable(path):
    with open_history(path) as run, run._transaction() as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert connection.execute("PRAGMA synchronous").fetchone() == (2,)
        assert connection.execute("PRAGMA foreign_keys").fetchone() == (1,)


def test_threads_may_write_at_once(path):
    found, errors = [], []

    def work(run, number):
        try:
            for k in range(40):
                id = run.suggested(np.array([number, k]), kind="suggestion")
                if k % 10 == 0:
                    run.done(), run.running()
                run.finished(id, Evaluation(100.0 * number + k, np.empty(0)), 0.0)
                found.append(id)
        except Exception as error:
            errors.append(error)

    with open_history(path) as run:
        threads = [threading.Thread(target=work, args=(run, number)) for number in range(8)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            load_history(path)
        for thread in threads:
            thread.join()
        assert errors == []
        assert sorted(found) == list(range(1, 321))
        assert sorted(e.y for _, _, e in run.done()) == [100.0 * i + k for i in range(8) for k in range(40)]
        for _, x, evaluation in run.done():
            assert evaluation.y == 100 * x[0] + x[1]


# Without GPy, so that a child starts quickly.
CHILD = """
import sys, time
from types import SimpleNamespace
import numpy as np
from cmes_gpyopt.history import History
domain = [{"name": "rate", "type": "continuous", "domain": (0, 1)}, {"name": "size", "domain": (0.0, 2.0)}]
run = History(sys.argv[1], domain=domain, known_constraints=None, constraints=[], seed=1, acquisition="cmes")
assert "GPy" not in sys.modules
print("open", flush=True)
"""
LOOP = """
while True:
    x = np.random.default_rng().random(2)
    id = run.suggested(x, kind="suggestion")
    print("s", id, x[0].hex(), flush=True)
    run.finished(id, SimpleNamespace(y=x.sum(), c=np.empty(0), cause=""), 0.0)
    print("f", id, x[0].hex(), flush=True)
"""


def child(path, then):
    command = [sys.executable, "-c", CHILD + textwrap.dedent(then), str(path)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_second_writer_is_refused_until_the_first_is_killed(path):
    with child(path, "time.sleep(60)") as first:
        assert first.stdout.readline() == "open\n"
        with pytest.raises(CMESError, match="run.db is open in another run; wait for it, close it, or pass another"):
            open_history(path)
        assert len(load_history(path, as_dict=True)["id"]) == 0
        first.send_signal(signal.SIGKILL)
        with open_history(path), pytest.raises(CMESError, match="is open in another run"):
            open_history(path)  # nor twice in one process
        with open_history(path), child(path, "") as second:
            assert "is open in another run" in second.communicate()[1]


def test_a_lock_does_not_live_on_in_forked_workers_and_they_cannot_write(path):
    worker = """
    import os
    from cmes_gpyopt import CMESError
    if os.fork() == 0:
        try:
            run.running()
        except CMESError as error:
            print(os.getpid(), error, flush=True)
        run.close()
        time.sleep(60)
        os._exit(0)
    time.sleep(60)
    """
    with child(path, worker) as first:
        first.stdout.readline()
        orphan, refusal = first.stdout.readline().split(maxsplit=1)
        assert f"run.db was opened by process {first.pid}; return the result" in refusal
        with pytest.raises(CMESError, match="is open in another run"):
            open_history(path)  # the worker's close changed nothing
        first.kill()
        try:
            open_history(path).close()
        finally:
            os.kill(int(orphan), signal.SIGKILL)


def test_of_two_processes_that_start_together_one_wins(path):
    for _ in range(3):
        both = [child(path, "time.sleep(2)") for _ in range(2)]
        out = [process.communicate() for process in both]
        assert sorted(stdout for stdout, _ in out) == ["", "open\n"]
        assert sum("is open in another run" in stderr for _, stderr in out) == 1


def test_nothing_that_was_reported_is_lost_by_a_kill(path, rng):
    started, finished, in_flight = {}, {}, 0
    for kill in range(15):
        process = child(path, LOOP)
        if kill < 12:
            process.stdout.readline()
            time.sleep(rng.uniform(0.0, 0.15))
        else:
            time.sleep(rng.uniform(0.05, 0.4))  # while it starts
        process.send_signal(signal.SIGKILL)
        out, err = process.communicate()
        assert err == ""
        lines = out.splitlines()
        if not out.endswith("\n"):
            lines = lines[:-1]
        for what, id, value in (line.split() for line in lines if line != "open"):
            seen = started if what == "s" else finished
            assert int(id) > max(seen, default=0)  # order is kept, and no id is given twice
            seen[int(id)] = value
        if not path.exists():
            continue
        table = load_history(path, as_dict=True)
        assert table["id"].tolist() == list(range(1, len(table["id"]) + 1))
        stored = dict(zip(table["id"].tolist(), table["rate"].tolist(), strict=True))
        status = dict(zip(table["id"].tolist(), table["status"].tolist(), strict=True))
        assert all(stored[id].hex() == value for id, value in started.items())
        assert all(status[id] == "done" for id in finished)
        done = table["status"] == "done"
        np.testing.assert_array_equal(table["objective"][done], (table["rate"] + table["size"])[done])
        assert np.isnan(table["objective"][~done]).all()
        assert (~done).sum() - in_flight in (0, 1)
        in_flight = (~done).sum()
    assert len(finished) > 10
    with open_history(path) as run:
        assert query(path, "PRAGMA integrity_check") == [("ok",)]
        left = run.running()
        assert len(left) == in_flight
        for id, x in left:
            run.restart(id)
            run.finished(id, Evaluation(x.sum(), np.empty(0)))
        assert run.running() == []
        assert sorted(id for id, _, _ in run.done()) == table["id"].tolist()
    after = load_history(path, as_dict=True)
    assert after["id"][after["attempts"] == 2].tolist() == [id for id, _ in left]


def fake_pandas():
    module = types.ModuleType("pandas")
    module.DataFrame = lambda table: SimpleNamespace(columns=list(table), table=table)
    return module


def mixed(path):
    domain = [
        *MIXED_DOMAIN,
        {"name": "solver", "type": "categorical", "domain": ("adam", "sgd")},
        {"name": "w", "type": "continuous", "domain": (0, 1), "dimensionality": 2},
        {"name": "heat", "type": "categorical", "domain": (0.5, 2)},
    ]
    constraints = [BinaryConstraint(), RealConstraint("heat", upper=3.0)]
    with open_history(path, domain=domain, constraints=constraints) as run:
        run.record(np.array([0.5, 4, 2, 1, 0.25, 0.75, 1]), Evaluation(1.5, np.array([-1.0, -0.5])), kind="initial")
        run.record(np.array([0.5, 4, 2, 0, 0.25, 0.75, 0]), Evaluation(np.nan, np.array([1.0, np.nan]), "failed"))
        id = run.suggested(np.array([0.7, 8, 0, 7, 0.25, 0.75, 1]), kind="suggestion")
        run.finished(id, Evaluation(2.5, np.array([-1.0, 1.0])), 0.25)
        run.suggested(np.array([0.5, 1, 1, 0, 0, 1, 0]), kind="suggestion")


def test_a_loaded_table_speaks_the_users_language(path, monkeypatch):
    mixed(path)
    monkeypatch.setitem(sys.modules, "pandas", None)
    table = load_history(path)
    assert list(table) == [
        "id", "kind", "status", "attempts", "rate", "layers", "variable_kind", "solver", "w_1", "w_2", "heat",
        "objective", "constraint_feasible", "constraint_heat", "feasible", "cause", "started", "finished", "seconds",
    ]  # fmt: skip
    assert table["kind"].tolist() == ["initial", "told", "suggestion", "suggestion"]
    assert table["status"].tolist() == ["done"] * 3 + ["running"]
    assert table["rate"].tolist() == [0.5, 0.5, 0.7, 0.5]
    assert table["variable_kind"].tolist() == [2, 2, 0, 1]
    assert table["solver"].tolist() == ["sgd", "adam", 7.0, "adam"]  # 7 is no entry
    assert table["w_2"].tolist() == [0.75, 0.75, 0.75, 1.0]
    assert table["heat"].tolist() == [2.0, 0.5, 2.0, 0.5]
    np.testing.assert_array_equal(table["objective"], [1.5, np.nan, 2.5, np.nan])
    np.testing.assert_array_equal(table["constraint_feasible"], [-1, 1, -1, np.nan])
    np.testing.assert_array_equal(table["constraint_heat"], [2.5, np.nan, 4.0, np.nan])
    assert table["feasible"].tolist() == [True, False, False, False]
    assert table["feasible"].dtype == bool
    assert table["cause"].tolist() == ["", "failed", "", ""]
    np.testing.assert_array_equal(table["seconds"], [np.nan, np.nan, 0.25, np.nan])
    assert np.isnat(table["finished"]).tolist() == [False, False, False, True]
    assert (table["started"][:3] <= table["finished"][:3]).all()
    assert abs(table["started"][0] - np.datetime64(int(time.time() * 1e6), "us")) < np.timedelta64(60, "s")


def test_a_bandit_has_a_column_for_each_coordinate(path):
    domain = [{"name": "arm", "type": "bandit", "domain": np.array([[0, 1], [2, 3]])}]
    with open_history(path, domain=domain) as run:
        run.record(np.array([2.0, 3.0]), Evaluation(1.0, np.empty(0)))
    table = load_history(path, as_dict=True)
    assert (table["arm_1"].tolist(), table["arm_2"].tolist(), table["feasible"].tolist()) == ([2.0], [3.0], [True])


def test_the_columns_are_those_of_gpyopt(path):
    from cmes_gpyopt._gpyopt import Design_space

    domain = [*MIXED_DOMAIN[:2], {"domain": (0, 1)}, {"name": "w", "domain": (0, 1), "dimensionality": 3}]
    open_history(path, domain=domain).close()
    table = load_history(path, as_dict=True)
    assert list(table)[4:-6] == [variable.name for variable in Design_space(domain).space_expanded]


def test_pandas_is_used_where_it_is_installed(path, monkeypatch):
    mixed(path)
    monkeypatch.setitem(sys.modules, "pandas", fake_pandas())
    as_dict = load_history(path, as_dict=True)
    assert load_history(path).columns == list(as_dict)


def test_a_real_data_frame(path):
    pandas = pytest.importorskip("pandas")
    mixed(path)
    frame = load_history(path)
    assert isinstance(frame, pandas.DataFrame)
    assert frame[frame.feasible].constraint_heat.tolist() == [2.5]
    assert frame.finished.isna().tolist() == [False, False, False, True]


def test_a_table_can_be_loaded_while_another_process_writes(path):
    with child(path, LOOP) as writer:
        writer.stdout.readline()
        drain = threading.Thread(target=lambda: writer.stdout.read())
        drain.start()
        sizes = []
        stop = time.monotonic() + 1.0
        while time.monotonic() < stop:
            table = load_history(path, as_dict=True)
            done = table["status"] == "done"
            assert done.sum() >= len(done) - 1
            assert not np.isnan(table["objective"][done]).any()
            sizes.append(len(done))
        writer.kill()
        drain.join()
    assert sizes == sorted(sizes)
    assert sizes[-1] > sizes[0] + 20


def test_a_table_can_be_loaded_where_nothing_can_be_written(path, monkeypatch):
    mixed(path)
    monkeypatch.setattr(history.os, "access", lambda *_: False)
    before = sorted(os.listdir(path.parent))
    assert len(load_history(path, as_dict=True)["id"]) == 4
    assert sorted(os.listdir(path.parent)) == before
