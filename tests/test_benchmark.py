import csv
import os
import signal
import subprocess
import sys
import time
import warnings
from dataclasses import replace

import numpy as np
import pytest

from cmes_gpyopt import CMESError
from cmes_gpyopt.benchmark import peers, quality, report, statistics
from cmes_gpyopt.benchmark.__main__ import main
from cmes_gpyopt.benchmark.methods import Method, parse_methods
from cmes_gpyopt.benchmark.quality import initial_points, make_tasks, on_boundary, parse_problems, run_all, run_task
from cmes_gpyopt.benchmark.records import COLUMNS, ResultsFile, Run, read
from cmes_gpyopt.problems import BY_NAME, DEVELOPMENT, HELD_OUT, OPEN, SUITE, TOY

inf = np.inf


def a_run(values, method="a", problem="p", seed=0, initial=1, **changes):
    count = len(values) - initial
    run = Run(
        problem=problem,
        method=method,
        feedback="binary",
        start="random",
        seed=seed,
        evaluations=count,
        f_opt=1.0,
        typical=3.0,
        values=np.array(values, dtype=float),
        boundary=np.zeros(count, dtype=bool),
        seconds=np.full(count, 0.5),
        version="0",
        settings="{}",
    )
    return replace(run, **changes)


# --- measures ---------------------------------------------------------------------------------------------------------


def test_ranks_follow_the_papers_example():
    best = np.array([0.5, 0.1, 0.3, 0.2, 0.4, inf, inf, inf, inf, inf])
    np.testing.assert_array_equal(statistics.ranks(best), [5, 1, 3, 2, 4, 8, 8, 8, 8, 8])


def test_methods_that_share_a_value_share_their_ranks():
    best = np.array([[1.0, inf], [1.0, inf], [0.0, 2.0]])
    np.testing.assert_array_equal(statistics.ranks(best), [[2.5, 2.5], [2.5, 2.5], [1.0, 1.0]])


def test_average_rank_is_over_suggestions_seeds_and_problems():
    runs = [
        a_run([inf, 2.0, 1.5], "a", seed=0),
        a_run([inf, inf, 1.2], "b", seed=0),  # ranks of a: 1, 2
        a_run([5.0, 9.0, 3.0], "a", seed=1),
        a_run([5.0, 4.0, 9.0], "b", seed=1),  # ranks of a: 2, 1
        a_run([inf, inf, inf], "a", problem="q"),
        a_run([inf, inf, inf], "b", problem="q"),  # 1.5, 1.5
    ]
    c = report.compare(runs)
    assert c.pairs == [("p", 0), ("p", 1), ("q", 0)]
    np.testing.assert_array_equal(c.ranks()["a"], [1.5, 1.5, 1.5])
    better = report.compare([*runs[:4], a_run([inf, 2.0, inf], "a", problem="q"), runs[5]])
    assert statistics.stratified(better.ranks()["a"], better.strata).mean == pytest.approx((1.5 + 1.0) / 2)


def test_regret_of_hand_made_runs():
    run = a_run([inf, inf, 3.0, 1.02, 2.0, 1.0])
    best = statistics.best_so_far(run.values)
    np.testing.assert_array_equal(best, [inf, inf, 3.0, 1.02, 1.02, 1.0])
    regret = statistics.regret(best, run.f_opt, run.typical)
    np.testing.assert_allclose(regret, [10.0, 10.0, 1.0, 0.01, 0.01, 0.0], atol=1e-12)
    assert report.final_regret(run) == 0.0
    assert report.final_log_regret(run) == -6.0
    assert report.mean_log_regret(run) == pytest.approx((1 + 0 - 2 - 2 - 6) / 5)
    assert report.final_log_regret(a_run([inf, inf])) == 1.0


def test_counters_of_hand_made_runs():
    run = a_run([inf, inf, 2.0, 1.15, 1.01, inf], boundary=np.array([True, False, False, True, False]))
    assert report.until_feasible(run) == 2
    assert report.until_within(run, 0.1) == 3
    assert report.until_within(run, 0.01) == 4
    assert report.until_within(run, 1e-4) == inf
    assert report.until_within(a_run([1.0, 5.0]), 0.01) == 0, "an initial point was enough"
    assert report.infeasible_share(run) == 2 / 5
    assert report.boundary_share(run) == 2 / 5
    assert (report.found_nothing(run), report.found_nothing(a_run([inf, inf]))) == (0, 1)


def test_stratified_error_is_that_of_the_mean_of_problem_means(rng):
    strata = np.repeat([0, 1], [10, 40])
    means = []
    for _ in range(4000):
        values = np.where(strata == 0, 5.0 + 3 * rng.standard_normal(50), rng.standard_normal(50))
        means.append(statistics.stratified(values, strata))
    spread = np.std([m.mean for m in means])
    assert np.mean([m.mean for m in means]) == pytest.approx(2.5, abs=4 * spread / 4000**0.5)
    assert np.mean([m.error for m in means]) == pytest.approx(spread, rel=0.05)
    assert np.isnan(statistics.stratified(np.ones(1), np.zeros(1, dtype=int)).error)
    with warnings.catch_warnings(action="error"):
        nothing = statistics.stratified(np.array([1.0, np.inf]), np.zeros(2, dtype=int))
    assert nothing.mean == np.inf
    assert np.isnan(nothing.error)


def test_paired_comparison_sees_a_difference_that_the_spread_hides(rng):
    strata = np.repeat([0, 1], 20)
    reference = 10 * rng.standard_normal(40)
    values = reference + 0.5 + 0.1 * rng.standard_normal(40)
    found = statistics.paired(values, reference, strata)
    assert found.difference == pytest.approx(0.5, abs=4 * found.error)
    assert found.error < 0.05
    assert found.p < 1e-6
    assert statistics.paired(reference, reference, strata).p == 1.0
    assert statistics.paired(reference + rng.standard_normal(40), reference, strata).p > 1e-3


# --- tables -----------------------------------------------------------------------------------------------------------


def some_runs():
    return [
        a_run([inf, 2.0 + seed, 1.2 if method == "a" else 1.5], method, problem, seed)
        for method in ("a", "b")
        for problem in ("p", "q")
        for seed in (0, 1)
    ]


def test_tables_hold_every_method_and_problem():
    c = report.compare(some_runs())
    made = report.tables(c, below=[1.3])
    titles = [table.title for table in made]
    assert titles[:2] == ["Summary", "Difference from a"]
    assert [row[0] for row in made[0].rows] == ["a", "b"], "best average rank first"
    assert made[1].rows[0][5].startswith("0.3979"), "log10(0.25 / 0.1)"
    assert made[-1].rows[0] == ["p", "1.3", "100.0%", "0.0%"]
    text = str(made[0])
    assert len({line.count("|") for line in text.splitlines() if line.startswith("|")}) == 1
    rows = list(csv.DictReader(report.long_csv(c).splitlines()))
    assert {row["scope"] for row in rows} == {"all", "p", "q"}
    (rank,) = [r for r in rows if (r["scope"], r["method"], r["measure"]) == ("all", "a", "average rank")]
    assert float(rank["mean"]) == pytest.approx((1.5 + 1) / 2)


def test_pairs_that_a_method_lacks_are_left_out():
    c = report.compare(some_runs()[:-1])
    assert (len(c.pairs), c.missing) == (3, 1)
    assert "1 pairs" in str(report.summary_table(c))


def test_runs_are_cut_to_fewer_evaluations():
    run = report.truncated(a_run([inf, 2.0, 1.5, 1.0]), 2)
    assert (run.evaluations, run.initial, report.final_regret(run)) == (2, 1, 0.25)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda runs: [*runs, replace(runs[0], feedback="real")], "feedback"),
        (lambda runs: [*runs, replace(runs[0], values=runs[0].values + 1)], "twice"),
        (lambda runs: [report.truncated(runs[0], 1), *runs[1:]], "different numbers"),
        (lambda runs: [], "no runs"),
        (lambda runs: [runs[0], runs[-1]], "no problem and seed"),
    ],
)
def test_runs_that_cannot_be_compared_are_refused(change, said):
    with pytest.raises(CMESError, match=said):
        report.compare(change(some_runs()))


# --- runs -------------------------------------------------------------------------------------------------------------


class Recorder:
    """An optimiser that stays at one point and remembers what it is told."""

    settings = {}

    def __init__(self, point):
        self.point, self.told = point, []

    def tell(self, x, y, c):
        self.told.append((x, y, c))

    def suggest(self):
        return self.point


@pytest.mark.parametrize("start", ["random", "infeasible"])
def test_all_methods_start_from_the_same_points(monkeypatch, start):
    recorders = []

    def build(method, problem, feedback, seed, initial):
        recorders.append(Recorder(np.array([[-0.7, 0.5]])))
        return recorders[-1]

    monkeypatch.setattr(Method, "build", build)
    tasks = make_tasks([TOY], parse_methods("cmes,cei,random"), [0, 1], evaluations=1, start=start)
    runs = [run_task(task) for task in tasks]
    first = [np.vstack([x for x, _, _ in r.told[:5]]) for r in recorders]
    for seed in (0, 1):
        same = first[3 * seed : 3 * seed + 3]
        for points in same:
            np.testing.assert_array_equal(points, initial_points(TOY, seed, start))
    assert not np.array_equal(first[0], first[3])
    if start == "infeasible":
        assert not TOY.feasible(np.vstack(first)).any()
        assert all(report.until_feasible(run) == 1 for run in runs)
    assert all(run.values[-1] == TOY.f_opt for run in runs)


def test_what_methods_are_told():
    x = np.array([[-1.0, -1.0]])
    y, c = quality.observe(TOY, "binary", x)
    assert (y, list(c)) == (inf, [1.0])
    assert quality.observe(TOY, "binary", np.array([[-0.7, 0.5]])) == (0.3, np.array([-1.0]))
    y, c = quality.observe(TOY, "real", x)
    assert np.isfinite(y)
    assert c[0] > 0


def test_boundary_is_one_percent_of_the_continuous_variables():
    X = np.array([[0.0, 0.0, 0.0], [1.97, 0.0, 2.0], [-2.0, 0.0, 1.0], [0.0, 0.985, 0.0]])
    np.testing.assert_array_equal(on_boundary(OPEN, X), [False, True, True, True])


def test_real_feedback_counts_infeasible_values_as_infeasible():
    (task,) = make_tasks([BY_NAME["gramacy"]], parse_methods("random"), [0], evaluations=20, feedback="real")
    run = run_task(task)
    assert 0 < report.infeasible_share(run) < 1
    assert run.values.min() >= task.problem.f_opt


@pytest.mark.parametrize("name", ["cmes:grid_size=100,num_samples=2,link=probit", "paper:grid_size=100", "sobol"])
def test_runs_are_repeatable(name):
    (task,) = make_tasks([OPEN], parse_methods(name), [3], evaluations=2)
    a, b = run_task(task), run_task(task)
    np.testing.assert_array_equal(a.values, b.values)
    assert a.settings == b.settings
    if name.startswith("paper"):
        assert '"confidence": 0.9' in a.settings
    if "probit" in name:
        assert '"link": "probit"' in a.settings


def test_budgets():
    tasks = make_tasks(SUITE, parse_methods("random"), [0])
    assert {task.problem.name for task in tasks if task.evaluations == 60} == {"ackley10", "speed_reducer"}
    assert {task.evaluations for task in tasks} == {40, 60}
    started = make_tasks(SUITE, parse_methods("random"), [0], start="infeasible")
    assert OPEN not in [task.problem for task in started], "nothing is infeasible there"


# --- the results file -------------------------------------------------------------------------------------------------


def test_a_run_survives_the_file(tmp_path):
    path = tmp_path / "new" / "runs.csv"
    run = a_run([inf, 1 / 3, 2.5], method="cmes:a=1,b=2", boundary=np.array([True, False]), settings='{"a": "b"}')
    with ResultsFile(path) as results:
        results.append(run)
        with pytest.raises(CMESError, match="another process"):
            ResultsFile(path)
    (found,) = read(path)
    assert found.key == run.key
    assert found.settings == run.settings
    np.testing.assert_allclose(found.values, run.values, rtol=1e-11)
    np.testing.assert_array_equal(found.boundary, run.boundary)


def test_half_a_line_is_dropped(tmp_path):
    path = tmp_path / "runs.csv"
    with ResultsFile(path) as results:
        results.append(a_run([1.0, 2.0]))
    whole = path.read_bytes()
    for cut in (1, 30, len(whole.splitlines()[1]), len(whole) - 5):  # within the second line, and within the header
        path.write_bytes(whole[:-cut])
        with ResultsFile(path) as results:
            assert not results.runs
            results.append(a_run([1.0, 2.0]))
        assert path.read_bytes() == whole


def test_another_file_is_refused(tmp_path):
    path = tmp_path / "other.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(CMESError, match="not a results file"):
        read(path)
    with pytest.raises(CMESError, match="cannot read"):
        read(tmp_path / "absent.csv")


# --- the command ------------------------------------------------------------------------------------------------------

COMMAND = ["quality", "--problems", "toy,open", "--methods", "random,cei", "--seeds", "2", "--evaluations", "3"]


def contents(path):
    """The file without what differs between repetitions."""
    with open(path, newline="") as file:
        return [
            [cell for cell, name in zip(row, COLUMNS, strict=True) if name != "seconds"] for row in csv.reader(file)
        ]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    path = tmp_path_factory.mktemp("finished") / "quality.csv"
    assert main([*COMMAND, "--output", str(path), "--processes", "2"]) == 0
    return path


def test_small_benchmark_end_to_end(finished, capsys):
    runs = read(finished)
    assert len(runs) == 8
    assert {(len(run.values), len(run.boundary), len(run.seconds)) for run in runs} == {(8, 3, 3)}
    assert "### Summary" in finished.with_suffix(".md").read_text()
    assert finished.with_name("quality_summary.csv").exists()
    assert main(["report", str(finished), "--reference", "random", "--problems", "toy", "--below", "0.6"]) == 0
    shown = capsys.readouterr().out
    assert "Difference from random" in shown
    assert "open" not in shown
    before = finished.read_bytes()
    assert main([*COMMAND, "--output", str(finished)]) == 0, "nothing is left to do"
    assert finished.read_bytes() == before


def _children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(child) for child in file.read().split()]


@pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="finds the children in /proc")
def test_a_killed_benchmark_resumes_to_the_same_file(finished, tmp_path):
    path = tmp_path / "quality.csv"
    command = [sys.executable, "-m", "cmes_gpyopt.benchmark", *COMMAND, "--output", str(path)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not (path.exists() and path.read_bytes().count(b"\n") >= 3):  # two runs are finished, six are not
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.005)
    workers = _children(process.pid)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert workers
    held = read(path)
    assert 2 <= len(held) < 8
    with open(path, "ab") as file:
        file.write(b"toy,cei,binary,ran")  # as if it had been killed while it wrote
    while any(os.path.exists(f"/proc/{worker}") for worker in workers):
        assert time.monotonic() < deadline, "the workers ended with their parent"
        time.sleep(0.05)
    assert main([*COMMAND, "--output", str(path)]) == 0
    assert contents(path) == contents(finished)
    again = {run.key: run for run in read(path)}
    for run in held:
        np.testing.assert_array_equal(again[run.key].seconds, run.seconds)  # kept, not made anew


def test_a_run_that_fails_does_not_stop_the_others(tmp_path):
    tasks = make_tasks([TOY], parse_methods("pesc,random"), [0], evaluations=1)
    with ResultsFile(tmp_path / "runs.csv") as results:
        outcomes = dict((task.method.label, outcome) for task, outcome in run_all(tasks, results))
    assert isinstance(outcomes["pesc"], CMESError)
    assert isinstance(outcomes["random"], Run)
    assert [run.method for run in read(tmp_path / "runs.csv")] == ["random"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--problems", "toi"], "unknown problem 'toi'; expected one of dev, held-out, all, toy"),
        (["--methods", "cmse"], "unknown method 'cmse'; expected one of cmes"),
        (["--methods", "cmes:estimator"], "key=value"),
        (["--methods", "cmes:estimator=k"], "estimator must be one of"),
        (["--methods", "cmes:estimater=kl"], "does not take these options"),
        (["--methods", "sobol:a=1"], "takes no options"),
        (["--methods", "cei,cei"], "twice"),
        (["--methods", "pesc"], "real"),
        (["--methods", ","], "no method"),
        (["--seeds", "0"], "--seeds"),
        (["--seeds", "a-b"], "--seeds"),
        (["--evaluations", "0"], "positive"),
        (["--problems", "open", "--start", "infeasible"], "infeasible point"),
    ],
)
def test_mistakes_are_refused_in_one_sentence(arguments, said, tmp_path, capsys):
    defaults = ["--problems", "toy", "--methods", "random", "--seeds", "1", "--evaluations", "1"]
    assert main(["quality", *defaults, "--output", str(tmp_path / "x.csv"), *arguments]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert said in shown.err
    assert shown.err.startswith("error: ")
    assert shown.err.count("\n") == 1


def test_runs_with_other_settings_do_not_go_into_the_same_file(finished, tmp_path, capsys):
    path = tmp_path / "x.csv"
    path.write_bytes(finished.read_bytes().replace(b'""border"": 0.0', b'""border"": 0.5'))
    before = path.read_bytes()
    assert main([*COMMAND, "--seeds", "3", "--output", str(path)]) == 2
    assert "with other settings" in capsys.readouterr().err
    assert path.read_bytes() == before


def test_names():
    assert parse_problems("dev") == list(DEVELOPMENT)
    assert parse_problems("held-out,toy") == [*HELD_OUT, TOY]
    assert parse_problems("all,toy") == list(SUITE)
    methods = parse_methods("cmes, cmes:estimator=kl,confidence=0.9,paper,cmes:ystar_cap=-inf,preset=None,random")
    assert [method.label for method in methods][1] == "cmes:estimator=kl,confidence=0.9"
    assert [method.options for method in methods] == [
        {},
        {"estimator": "kl", "confidence": 0.9},
        {"preset": "paper"},
        {"ystar_cap": -inf, "preset": None},
        {},
    ]


# --- peers ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(peers.PEERS))
def test_a_missing_peer_says_what_to_install(name, monkeypatch):
    def absent(package):
        raise ImportError(f"No module named {package!r}")

    monkeypatch.setattr(peers.importlib, "import_module", absent)
    with pytest.raises(CMESError, match=r"pip install 'cmes_gpyopt\[peers\]'"):
        peers.PEERS[name](TOY, "binary", 0, 5)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(("problem", "feedback"), [("toy", "real"), ("mixed", "binary"), ("pressure_vessel", "binary")])
@pytest.mark.parametrize("name", list(peers.PEERS))
def test_peers_suggest_points_of_the_domain_and_are_repeatable(name, problem, feedback):
    for package in peers.PEERS[name].packages:
        pytest.importorskip(package)
    problem = BY_NAME[problem]
    seen = []
    for _ in range(2):
        optimiser = parse_methods(name)[0].build(problem, feedback, 0, 5)
        for x in initial_points(problem, 0):
            optimiser.tell(x[None, :], *quality.observe(problem, feedback, x[None, :]))
        for _ in range(2):
            x = optimiser.suggest()
            assert x.shape == (1, problem.dimension)
            for variable, value in zip(problem.domain, x[0], strict=True):
                if variable["type"] == "continuous":
                    assert variable["domain"][0] <= value <= variable["domain"][1]
                else:
                    assert value in variable["domain"]
            optimiser.tell(x, *quality.observe(problem, feedback, x))
            seen.append(x)
    np.testing.assert_array_equal(seen[:2], seen[2:])
    assert not np.array_equal(seen[0], seen[1])
