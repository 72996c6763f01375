import csv
from dataclasses import astuple

import numpy as np
import pytest

from cmes_gpyopt.benchmark import speed, speed_cases, speed_report
from cmes_gpyopt.benchmark.__main__ import main
from cmes_gpyopt.benchmark.speed_cases import PARTS, PEERS, PeerCase, Setting
from cmes_gpyopt.benchmark.speed_report import Row, summarised
from cmes_gpyopt.benchmark.speed_timing import exponents, interleaved, peaks

TINY = Setting(12, 2, 50)
ABSENT = PeerCase(("a_package_that_nobody_has",), lambda setting, repeat: lambda: None)


def a_row(median, target=None, note="", section="targets", unit="of another"):
    return Row(section, "this", 20, 2, 200, "binary", median, 0.9 * median, 1.1 * median, unit, target, note)


# --- measuring --------------------------------------------------------------------------------------------------------


def test_things_that_are_compared_are_done_in_turn():
    done = []

    def prepare(repeat):
        done.append(f"prepare {repeat}")
        return {"a": lambda: done.append("a"), "b": lambda: done.append("b")}

    seconds = interleaved(prepare, 2, discard=1)
    assert done == ["prepare 2", "a", "b", "prepare 0", "a", "b", "prepare 1", "a", "b"]
    assert {key: times.shape for key, times in seconds.items()} == {"a": (2,), "b": (2,)}


def test_preparation_is_not_timed():
    def prepare(repeat):
        np.linalg.svd(np.random.default_rng(0).random((300, 300)))
        return {"nothing": lambda: None}

    assert interleaved(prepare, 1)["nothing"] < 1e-3


def test_only_what_may_fail_may_fail():
    def prepare(repeat):
        return {"bad": lambda: 1 / 0}

    assert np.isnan(interleaved(prepare, 2, may_fail={"bad"})["bad"]).all()
    with pytest.raises(ZeroDivisionError):
        interleaved(prepare, 2)


def test_exponent_of_a_power_law_is_found():
    sizes = np.array([20.0, 50.0, 100.0, 500.0])
    seconds = np.array([3e-6, 7e-5])[:, None] * sizes**2.5
    np.testing.assert_allclose(exponents(sizes, seconds), [2.5, 2.5], rtol=1e-12)


def test_peak_memory_counts_arrays_that_are_gone_at_the_end():
    found = peaks({"large": lambda: np.ones(1_000_000).sum(), "small": lambda: np.ones(1000).sum()})
    assert found["large"] == pytest.approx(8.0, rel=0.05)
    assert found["small"] < 0.1


# --- cases ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("d", [2, 6, 12])
def test_about_half_of_the_points_are_infeasible(d):
    seen = speed_cases.observations(Setting(256, d, 50), 0)
    assert 0.4 < (seen.C > 0).mean() < 0.6
    np.testing.assert_array_equal(np.isinf(seen.Y), seen.C > 0)
    assert seen.filled.max() == seen.Y[np.isfinite(seen.Y)].max()


def test_repeats_have_different_data_that_are_the_same_in_every_run():
    first, again, second = (speed_cases.observations(TINY, repeat) for repeat in (0, 0, 1))
    np.testing.assert_array_equal(first.X, again.X)
    assert not np.array_equal(first.X, second.X)


@pytest.mark.parametrize("feedback", ["binary", "real"])
def test_stages_make_the_suggestion_that_a_single_call_makes(feedback):
    setting = Setting(12, 2, 50, feedback)
    results = [call() for call in speed_cases.stages(setting, 0).values()]
    np.testing.assert_array_equal(results[-1], speed_cases.told(setting, 0).suggest_next_locations())


@pytest.mark.parametrize("name", PEERS)
def test_peers_that_are_there_suggest_a_point_of_the_cube(name):
    reason = speed_cases.why_absent(PEERS[name].packages)
    if reason:
        pytest.skip(reason)
    state = np.random.get_state()[1].copy()
    point = np.asarray(PEERS[name].prepare(TINY, 0)())
    assert point.shape == (1, 2)
    assert ((point >= 0) & (point <= 1)).all()
    np.testing.assert_array_equal(np.random.get_state()[1], state)


def test_missing_peers_are_reported(monkeypatch):
    monkeypatch.setattr(speed, "PEERS", {"Nobody": ABSENT})
    (row,) = speed._against("peers", TINY, {"Nobody": 0.5}, 1)
    assert np.isnan(row.median)
    assert (row.value, row.verdict) == ("not installed", "not measured")


def test_peers_that_fail_do_not_end_the_run(monkeypatch):
    def broken(setting, repeat):
        raise RuntimeError

    monkeypatch.setattr(speed, "PEERS", {"Broken": PeerCase((), broken)})
    (row,) = speed._against("peers", TINY, {"Broken": None}, 2)
    assert row.value == "failed in 2 of 2 repeats"


# --- report -----------------------------------------------------------------------------------------------------------


def test_quartiles_are_over_the_repeats():
    row = summarised("peers", "this", (1, 2, 3), "real", np.array([4.0, 1.0, 2.0, 3.0, 5.0]), "of that")
    assert (row.lower_quartile, row.median, row.upper_quartile) == (2.0, 3.0, 4.0)


def test_a_missed_target_is_called_missed():
    assert a_row(0.5, target=0.5).verdict == "pass"
    assert a_row(0.51, target=0.5).verdict == "miss"
    assert a_row(0.51, target=0.5, note="but").verdict == "miss (but)"
    assert a_row(0.51).verdict == ""


def test_machine_names_threads_but_no_host(monkeypatch):
    import platform

    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    kind = speed_report.machine(["a_package_that_nobody_has"])
    assert "OMP_NUM_THREADS=3" in kind
    assert "cores" in kind
    assert "nobody" not in kind
    assert platform.node() not in kind


def test_unknown_sections_are_refused(tmp_path, capsys):
    assert main(["speed", "--sections", "nonsense", "--output", str(tmp_path / "speed.csv")]) == 2
    assert "takes some of" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_quick_run_end_to_end(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(speed.PEERS, "BoTorch constrained log EI", ABSENT)
    kept = {name: peer for name, peer in PEERS.items() if name.startswith(("BoTorch constrained", "GPyOpt"))}
    monkeypatch.setattr(speed, "PEERS", kept)
    output = tmp_path / "new" / "speed.csv"
    assert main(["speed", "--quick", "--output", str(output)]) == 0
    with output.open() as file:
        rows = list(csv.DictReader(file))
    wanted = {"section", "what", "n", "d", "m", "feedback", "median", "lower_quartile", "upper_quartile", "unit"}
    assert wanted < set(rows[0])
    assert {row["section"] for row in rows} == set(speed.SECTIONS)
    parts = [row for row in rows if row["section"] == "breakdown" and row["what"] in PARTS]
    assert {(row["n"], row["feedback"]) for row in parts} == {(n, f) for n in ("20", "50") for f in ("binary", "real")}
    assert not any(row["unit"] in ("s", "seconds") for row in rows)
    measured = [row for row in rows if row["note"] != "not installed"]
    assert all(np.isfinite(float(row["median"])) for row in measured)
    assert all(float(r["lower_quartile"]) <= float(r["median"]) <= float(r["upper_quartile"]) for r in measured)
    assert {row["verdict"] for row in rows if row["note"] == "not installed" and row["target"]} == {"not measured"}
    assert output.with_suffix(".png").stat().st_size > 10_000
    text = output.with_suffix(".md").read_text()
    assert "python -m cmes_gpyopt.benchmark speed --quick" in text
    assert str(tmp_path) not in text
    assert all(speed_report.TITLES[name] in text for name in speed.SECTIONS if name != "growth")
    for row in measured:
        if row["section"] == "targets":
            assert speed_report._number(float(row["median"])) in text
    assert "target 0.25" in capsys.readouterr().out


def test_sections_measured_before_are_kept(tmp_path):
    output = tmp_path / "speed.csv"
    before = [
        a_row(0.5, target=0.3, note="but"),
        a_row(float("nan")),
        summarised("limit", "x", (None, 2, 3), "", np.ones(3), "of y"),
    ]
    with speed_report.recorder(output) as record:
        for row in before:
            record(row)
    np.testing.assert_equal([astuple(row) for row in speed_report.recorded(output)], [astuple(row) for row in before])
    assert main(["speed", "--quick", "--sections", "limit", "--output", str(output)]) == 0
    after = speed_report.recorded(output)
    np.testing.assert_equal([astuple(row) for row in after[:2]], [astuple(row) for row in before[:2]])
    assert {row.section for row in after[2:]} == {"limit"}
    assert "x" not in {row.what for row in after}
