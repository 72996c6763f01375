"""Pictures of a search, and the page about it."""

import base64
import io
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest

from cmes_gpyopt import BinaryConstraint, CMESError, ConstrainedBayesianOptimization, Infeasible, RealConstraint, spaces
from cmes_gpyopt.plotting import (
    causes_of_failure,
    finish,
    plot_acquisition,
    plot_convergence,
    plot_search_2d,
    plot_slices,
    text,
)
from cmes_gpyopt.problems import TOY
from cmes_gpyopt.report import MISSING, write_report

SMALL = {"grid_size": 80}
LINE = [{"name": "x", "type": "continuous", "domain": (0.0, 1.0)}]
TITLE = "<i>title</i> & \udcff"  # a lone surrogate, which UTF-8 does not have
WEIRD = "<b>x & y</b>"
MIXED = [
    {"name": "rate", "type": "continuous", "domain": (0.1, 2.0)},
    {"name": "layers", "type": "discrete", "domain": (1, 2, 4, 8)},
    {"name": "kind", "type": "categorical", "domain": ("adam", "sgd", "rmsprop")},
]
MEMORY = [BinaryConstraint("runs"), RealConstraint("memory", upper=5.0)]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def run(f, domain, max_iter=2, **options):
    bo = ConstrainedBayesianOptimization(f, domain, **{"acquisition_options": SMALL} | options)
    bo.run_optimization(max_iter)
    return bo


def wave(x):
    return np.inf if x[0, 0] > 0.6 else float(np.sin(9 * x[0, 0]))


def training(x):
    rate, layers, kind = x[0]
    if rate > 1.5:
        raise Infeasible("loss diverged", constraint="runs")
    return np.log(rate) ** 2 + (layers - 4) ** 2 / 10 + 0.3 * kind, {"runs": -1, "memory": layers * 1.1}


def always_fails(x):
    raise Infeasible(f"<script>alert({int(3 * x[0, 0])})</script> & $a$\nsecond line")


@pytest.fixture(scope="module")
def toy():
    return run(TOY.with_failures, list(TOY.domain), max_iter=5)


@pytest.fixture(scope="module")
def line():
    return run(wave, LINE)


@pytest.fixture(scope="module")
def mixed():
    return run(training, MIXED, feedback=MEMORY, max_iter=4)


@pytest.fixture(scope="module")
def hopeless():
    domain = [LINE[0] | {"name": WEIRD}, {"name": "_k$1$", "type": "categorical", "domain": ("<i>a</i>", "$b$ & $c$")}]
    return run(always_fails, domain, initial_design_numdata=8)


@pytest.fixture(scope="module")
def single():
    return run(wave, LINE, max_iter=0, initial_design_numdata=1)


@pytest.fixture(scope="module")
def many():
    X = np.random.default_rng(0).uniform(-1, 1, (300, 2))
    return run(TOY.with_failures, list(TOY.domain), max_iter=0, X=X, Y=TOY.with_failures(X))


@pytest.fixture(autouse=True)
def _closed_figures():
    yield
    plt.close("all")


def pixels(axes):
    """The figure of some axes as it is drawn, (height, width, 4)."""
    buffer = io.BytesIO()
    np.ravel(np.asarray(axes, dtype=object))[0].figure.savefig(buffer, format="png", dpi=60)
    buffer.seek(0)
    return plt.imread(buffer)


def colours(picture):
    """How many different colours a picture has."""
    return len(np.unique((255 * picture[..., :3]).astype(np.int64) @ (65536, 256, 1)))


def line_of(ax, label):
    (found,) = [artist for artist in ax.lines if artist.get_label() == label]
    return found


def legend(ax):
    return [entry.get_text() for entry in ax.get_legend().get_texts()]


def texts(ax):
    return [entry.get_text() for entry in ax.texts]


# --- pictures ---------------------------------------------------------------------------------------------------------


def test_convergence_has_the_best_value_the_feasible_and_the_infeasible_evaluations(toy):
    ax = plot_convergence(toy)
    number = np.arange(1, len(toy.X) + 1)
    best = line_of(ax, "best so far")
    np.testing.assert_array_equal(best.get_ydata(), toy.Y_best[np.isfinite(toy.Y_best)])
    assert best.get_drawstyle() == "steps-post"
    np.testing.assert_array_equal(line_of(ax, "feasible").get_xdata(), number[toy.feasible])
    crosses = line_of(ax, f"returned inf ({(~toy.feasible).sum()})")
    np.testing.assert_array_equal(crosses.get_xdata(), number[~toy.feasible])
    # The strip is above every value.
    height = ax.transAxes.inverted().transform(ax.transData.transform([(1.0, toy.Y[toy.feasible].max())]))[0, 1]
    assert height < 0.9 < crosses.get_ydata().min()
    assert legend(ax)[0] == "initial design"
    assert colours(pixels(ax)) > 20


def test_convergence_shades_the_initial_design_and_nothing_else(toy):
    ax = plot_convergence(toy)
    (shade,) = [c for c in ax.collections if c.get_label() == "initial design"]
    corners = np.vstack([path.vertices for path in shade.get_paths()])
    assert corners[corners[:, 1] > 0, 0].min() == 0.5
    assert corners[corners[:, 1] > 0, 0].max() == 5.5


def test_convergence_works_when_nothing_is_feasible(hopeless):
    ax = plot_convergence(hopeless)
    assert "no feasible evaluation yet" in texts(ax)
    assert sum(len(line.get_xdata()) for line in ax.lines) == len(hopeless.X)
    assert colours(pixels(ax)) > 20


def test_rare_causes_share_a_mark(line):
    count = 30

    def f(x):
        raise Infeasible(f"cause {int(x[0, 0] * 10)}")

    bo = run(f, LINE, max_iter=0, initial_design_numdata=count)
    ax = plot_convergence(bo)
    entries = legend(ax)
    assert len(entries) == 1 + 4 + 1
    assert entries[-1].startswith("other causes (")
    assert sum(int(entry.split("(")[1][:-1]) for entry in entries[1:]) == count


def test_causes_are_inferred_where_none_was_given(mixed):
    causes = causes_of_failure(mixed)
    for cause, (runs, memory), good in zip(causes, mixed.C, mixed.feasible, strict=True):
        expected = "" if good else "loss diverged" if runs > 0 else "violates memory"
        assert cause == expected, (runs, memory)
    assert {"", "loss diverged", "violates memory"} == set(causes)


def test_one_variable_shows_model_data_and_suggestion(line):
    axes = plot_acquisition(line)
    assert axes.shape == (3,)
    mean = line_of(axes[0], "mean")
    expected, std = line.model.predict(mean.get_xdata()[:, None])
    np.testing.assert_allclose(mean.get_ydata(), expected.ravel())
    (band,) = [c for c in axes[0].collections if c.get_label() == "95 %"]
    assert band.get_paths()[0].vertices[:, 1].max() == pytest.approx((expected + 1.96 * std).max(), rel=1e-6)
    np.testing.assert_array_equal(line_of(axes[0], "feasible").get_xdata(), line.X[line.feasible, 0])
    np.testing.assert_array_equal(line_of(axes[0], "infeasible, not measured").get_xdata(), line.X[~line.feasible, 0])
    probability, score = axes[1].lines[0], axes[2].lines[0]
    np.testing.assert_allclose(
        probability.get_ydata(), line.model.probability_feasible(probability.get_xdata()[:, None])
    )
    np.testing.assert_allclose(
        -score.get_ydata(), line.acquisition.acquisition_function(score.get_xdata()[:, None]).ravel()
    )
    for ax in axes:
        assert line_of(ax, "next").get_xdata()[0] == line.suggest_next_locations()[0, 0]
    assert colours(pixels(axes)) > 50


def test_measured_infeasible_values_are_drawn_where_they_are():
    bo = run(lambda x: (x[0, 0], x[0, 0]), LINE, feedback=[RealConstraint("size", upper=0.5)], max_iter=0)
    assert not bo.feasible.all()
    axes = plot_acquisition(bo)
    np.testing.assert_array_equal(line_of(axes[0], "infeasible").get_ydata(), bo.Y[~bo.feasible, 0])
    assert "infeasible, not measured" not in legend(axes[0])


def test_one_variable_with_few_values_has_them_as_ticks():
    bo = run(lambda x: -x[0, 0], [{"name": "n", "type": "discrete", "domain": (8, 2, 4)}], initial_design_numdata=2)
    axes = plot_acquisition(bo)
    assert [label.get_text() for label in axes[2].get_xticklabels()] == ["2", "4", "8"]
    np.testing.assert_array_equal(line_of(axes[0], "feasible").get_xdata(), np.log2(bo.X.ravel()) - 1)


def test_two_variables_show_three_surfaces_numbers_and_the_suggestion(toy):
    axes = plot_acquisition(toy)
    assert [ax.get_title() for ax in axes] == ["posterior mean", "probability of feasibility", "acquisition"]
    for ax in axes:
        assert texts(ax) == [str(i + 1) for i in range(len(toy.X))]
        np.testing.assert_array_equal([t.get_position() for t in ax.texts], toy.X)
        star = line_of(ax, "next")
        np.testing.assert_array_equal(np.transpose(star.get_data()), toy.suggest_next_locations())
        assert ax.get_xlim() == ax.get_ylim() == (-1.0, 1.0)
    assert legend(axes[0]) == ["next", "feasible", "infeasible"]
    assert colours(pixels(axes)) > 500


def test_a_surface_is_drawn_the_right_way_round():
    # The objective grows with the second variable only, so that the mean must change upwards.
    X = np.array([[a, b] for a in (-0.9, 0.0, 0.9) for b in (-0.9, 0.0, 0.9)])
    bo = ConstrainedBayesianOptimization(None, list(TOY.domain), X=X, Y=X[:, 1], acquisition_options=SMALL)
    ax = plot_acquisition(bo)[0]
    ax.set_axis_off()
    for mark in [*ax.texts, *ax.lines]:
        mark.remove()
    whole = pixels(ax)  # drawing settles the layout
    x0, y0, x1, y1 = ax.get_window_extent().extents / ax.figure.dpi * 60
    picture = whole[len(whole) - int(y1) : len(whole) - int(y0), int(x0) : int(x1), :3]
    rows, columns = picture[5:-5, 5:-5].mean(axis=1), picture[5:-5, 5:-5].mean(axis=0)
    assert np.abs(rows[0] - rows[-1]).max() > 0.3
    assert np.abs(columns[0] - columns[-1]).max() < 0.05
    green = rows[:, 1]  # viridis reversed: low values are yellow
    assert green[-1] > green[0]


def test_two_variables_of_other_types_are_cells_with_names(hopeless):
    axes = plot_acquisition(hopeless)
    assert [label.get_text() for label in axes[0].get_yticklabels()] == ["<i>a</i>", r"\$b\$ & \$c\$"]
    assert axes[0].get_title() == "prior mean"
    for mark, category in zip(axes[0].texts, hopeless.X[:, 1], strict=True):
        assert round(mark.get_position()[1]) == category
    assert colours(pixels(axes)) > 100


def test_many_evaluations_are_dots(many):
    ax = plot_acquisition(many)[1]
    assert texts(ax) == []
    counts = sorted(len(artist.get_xdata()) for artist in ax.lines)
    assert counts == sorted([1, many.feasible.sum(), (~many.feasible).sum()])


def test_points_outside_the_known_constraints_have_no_acquisition():
    bo = run(lambda x: x.sum(), list(TOY.domain), constraints=[{"name": "half", "constraint": "x[:,0]"}], max_iter=0)
    axes = plot_slices(bo, x=[-0.5, 0.0])
    curve = axes[2, 0].lines[0]
    x, score = curve.get_xdata(), curve.get_ydata()
    np.testing.assert_array_equal(np.isnan(score), x > 0)
    assert colours(pixels(plot_acquisition(bo))) > 100


def test_a_search_that_dares_nothing_says_so(toy, monkeypatch):
    # As a search with max_infeasible_fraction does where no point is likely enough to be feasible.
    monkeypatch.setattr(type(toy), "_demanded_probability", lambda *_: 1.0)
    monkeypatch.setattr(toy.acquisition, "least_probability", 1.0)
    axes = plot_acquisition(toy)
    assert "no point is allowed" in texts(axes[2])[0]
    assert len(axes[0].figure.axes) == 3 + 2  # no scale for the acquisition
    slices = plot_slices(toy)
    assert all("no point is allowed" in texts(ax)[0] for ax in slices[2])
    pixels(axes), pixels(slices)


def test_a_scale_is_drawn_for_equal_values():
    bo = run(lambda x: 7.0, list(TOY.domain), max_iter=0)
    axes = plot_acquisition(bo)
    scale = axes[0].figure.axes[3]
    assert scale.get_ylim() == pytest.approx((7.0 - 0.35, 7.0 + 0.35))
    low, high = plot_convergence(bo).get_ylim()
    assert low < 7.0 < high


def test_three_variables_are_left_to_slices(mixed):
    with pytest.raises(CMESError, match="has 3; use plot_slices"):
        plot_acquisition(mixed)


def test_slices_run_through_the_recommendation(mixed):
    axes = plot_slices(mixed)
    assert axes.shape == (3, 3)
    recommendation = mixed.recommend()
    centre = spaces.to_model(mixed.space, recommendation.x[None])
    mean, curve = mixed.model.predict(centre)[0].item(), line_of(axes[0, 0], "mean")
    assert np.interp(recommendation.variables["rate"], curve.get_xdata(), curve.get_ydata()) == pytest.approx(
        mean, abs=1e-3 * np.ptp(curve.get_ydata()) + 1e-6
    )
    points = np.repeat(centre, 4, axis=0)
    points[:, 1] = (1, 2, 4, 8)
    heights = [bar.get_height() for bar in axes[1, 1].patches]
    np.testing.assert_allclose(heights, mixed.model.probability_feasible(points))
    points = np.repeat(centre, 3, axis=0)
    points[:, 2:] = np.eye(3)
    np.testing.assert_allclose(-axes[2, 2].lines[0].get_ydata(), mixed.acquisition.acquisition_function(points).ravel())
    assert [label.get_text() for label in axes[2, 1].get_xticklabels()] == ["1", "2", "4", "8"]
    assert [label.get_text() for label in axes[2, 2].get_xticklabels()] == ["adam", "sgd", "rmsprop"]
    assert [ax.get_xlabel() for ax in axes[2]] == ["rate", "layers", "kind"]
    assert len({ax.get_ylim() for ax in axes[0]}) == 1
    assert colours(pixels(axes)) > 50


def test_slices_of_many_variables_stand_in_blocks():
    domain = [{"name": "v", "type": "continuous", "domain": (0, 1), "dimensionality": 6}]
    axes = plot_slices(run(lambda x: x.sum(), domain, max_iter=0))
    assert [ax.get_xlabel() for ax in axes[2]] == [f"v_{k + 1}" for k in range(6)]
    places = np.array([[ax.get_subplotspec().rowspan.start for ax in row] for row in axes])
    np.testing.assert_array_equal(places, [[0, 0, 0, 3, 3, 3], [1, 1, 1, 4, 4, 4], [2, 2, 2, 5, 5, 5]])
    assert [bool(ax.get_ylabel()) for ax in axes[0]] == [True, False, False, True, False, False]


def test_bandits_can_be_drawn():
    arms = np.array([[0.0, 1.0], [1.0, 2.0], [3.0, 1.0], [2.0, 2.0]])
    bo = run(
        lambda x: x.sum(), [{"name": "arm", "type": "bandit", "domain": arms}], initial_design_numdata=2, max_iter=1
    )
    axes = plot_acquisition(bo)
    assert [label.get_text() for label in axes[2].get_xticklabels()] == ["(0, 1)", "(1, 2)", "(3, 1)", "(2, 2)"]
    assert plot_slices(bo).shape == (3, 1)


def test_given_axes_are_used(toy):
    figure, axes = plt.subplots(2, 4)
    assert plot_convergence(toy, axes[0, 0]) is axes[0, 0]
    assert list(plot_acquisition(toy, axes[0, 1:])) == list(axes[0, 1:])
    assert plt.get_fignums() == [figure.number]
    with pytest.raises(CMESError, match=r"axes must have shape \(3, 2\), got \(2, 4\)"):
        plot_slices(toy, axes)


def test_drawing_evaluates_nothing_and_changes_nothing():
    calls = []

    def f(x):
        calls.append(x)
        return wave(x)

    bo = run(f, LINE)
    other = run(wave, LINE)
    before, state = len(calls), np.random.get_state()[1].copy()
    plot_convergence(bo), plot_acquisition(bo), plot_slices(bo)
    assert len(calls) == before
    np.testing.assert_array_equal(np.random.get_state()[1], state)
    bo.run_optimization(1)
    other.run_optimization(1)
    np.testing.assert_array_equal(bo.X, other.X)


def test_drawing_needs_evaluations(tmp_path):
    bo = ConstrainedBayesianOptimization(wave, LINE)
    for draw in (plot_convergence, plot_acquisition, plot_slices):
        with pytest.raises(CMESError, match="no evaluations to draw; call run_optimization first"):
            draw(bo)
    with pytest.raises(CMESError, match="no evaluations to report"):
        write_report(bo, tmp_path / "report.html")
    assert plt.get_fignums() == []


def test_users_words_are_drawn_as_they_are():
    assert text("cost in $ or $") == r"cost in \$ or \$"
    assert text("two\nlines\x00") == "two lines"
    assert text("_hidden").strip() == "_hidden"
    assert len(text("long " * 50)) <= 40


def test_a_plot_says_what_it_needs_without_matplotlib(toy, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    for draw in (plot_convergence, plot_acquisition, plot_slices):
        with pytest.raises(
            ImportError, match=r"plots need matplotlib: install it with pip install 'cmes_gpyopt\[plot\]'"
        ):
            draw(toy)


def test_finishing_saves_and_lets_go(toy, tmp_path):
    finish(plot_slices(toy), str(tmp_path / "slices.png"))
    assert colours(plt.imread(tmp_path / "slices.png")) > 50
    assert plt.get_fignums() == []
    ax = plot_convergence(toy)
    assert finish(ax) is ax


def test_the_search_beside_the_truth(toy):
    _, axes = plt.subplots(1, 3)
    plot_search_2d(axes, toy, TOY, "a title")
    assert axes[0].get_ylabel() == "a title\nx2"
    assert legend(axes[0]) == ["next", "global optimum"]
    assert len(axes[2].texts) == len(toy.X)


# --- the page ---------------------------------------------------------------------------------------------------------


class Page(HTMLParser):
    """Elements, the cells of each table by its id, pictures and text of a page; refuses what does not nest."""

    EMPTY = frozenset({"meta", "img"})

    def __init__(self, source):
        super().__init__()
        self.open, self.tags, self.attributes, self.tables, self.text = [], [], [], {}, ""
        self.feed(source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag == "table":
            self.rows = self.tables[dict(attrs)["id"]] = []
        elif tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] in (["td"], ["th"]):
            self.rows[-1][-1] += data
        if "style" not in self.open:
            self.text += data

    @property
    def pictures(self):
        sources = [value for tag, name, value in self.attributes if (tag, name) == ("img", "src")]
        prefix = "data:image/png;base64,"
        assert all(source.startswith(prefix) for source in sources)
        return [plt.imread(io.BytesIO(base64.b64decode(s[len(prefix) :], validate=True))) for s in sources]


@pytest.fixture(scope="module")
def written(request, tmp_path_factory):
    """The path of the report on the search of that name, written once."""
    paths = {}

    def of(name):
        if name not in paths:
            path = tmp_path_factory.mktemp(name) / "report.html"
            paths[name] = write_report(request.getfixturevalue(name), path, title=TITLE)
            assert paths[name] == path
        return paths[name]

    return of


def parsed(path):
    return Page(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("name", "pictures"), [("toy", 3), ("line", 2), ("mixed", 2), ("hopeless", 3), ("single", 2), ("many", 3)]
)
def test_the_page_has_its_pictures_and_a_row_for_each_evaluation(name, pictures, written, request):
    bo = request.getfixturevalue(name)
    found = parsed(written(name))
    assert len(found.pictures) == pictures
    for picture in found.pictures:
        assert colours(picture) > 20
    history = found.tables["history"]
    assert len(history) == 1 + len(bo.X)
    assert {len(row) for row in history} == {1 + len(bo.space.space_expanded) + 1 + bo.C.shape[1] + 2}
    assert [row[0] for row in history[1:]] == [str(i + 1) for i in range(len(bo.X))]
    assert [row[-2] for row in history[1:]] == ["yes" if good else "no" for good in bo.feasible]
    assert not {"script", "link", "iframe", "object", "embed"} & set(found.tags)
    assert not {name for _, name, _ in found.attributes} & {"href", "srcset", "action", "background", "poster"}
    assert plt.get_fignums() == []


@pytest.mark.parametrize("name", ["toy", "mixed", "hopeless"])
def test_the_page_refers_to_nothing_outside(name, written):
    source = written(name).read_text(encoding="utf-8")
    assert source.count("src=") == source.count('src="data:image/png;base64,')
    for reference in ("http:", "https:", "//", "url(", "@import", "<script", "javascript:", "onload"):
        assert reference not in "".join(part for part in source.split('"') if not part.startswith("data:")), reference


def test_values_are_in_the_users_units(mixed, written):
    head, *rows = parsed(written("mixed")).tables["history"]
    assert head == [
        "number",
        "rate",
        "layers",
        "kind",
        "objective",
        "runs (binary)",
        "memory (at most 5)",
        "feasible",
        "cause",
    ]
    for row, x, y, c in zip(rows, mixed.X, mixed.Y.ravel(), mixed.C, strict=True):
        assert float(row[1]) == pytest.approx(x[0], rel=1e-5)
        assert row[2] == f"{x[1]:g}"
        assert row[3] == ("adam", "sgd", "rmsprop")[int(x[2])]
        if np.isinf(y):
            assert row[4:7] == [MISSING, "violated", MISSING]
            assert row[8] == "loss diverged"
        else:
            assert float(row[4]) == pytest.approx(y, rel=1e-5)
            assert row[5] == "holds"
            assert float(row[6]) == pytest.approx(1.1 * x[1])
            assert c[1] == pytest.approx(float(row[6]) - 5.0)


def test_the_summary_says_what_was_found(mixed, written):
    found = parsed(written("mixed"))
    assert found.text.count("<i>title</i> & ") == 2  # title and heading
    failures = (~mixed.feasible).sum()
    assert f"{failures / len(mixed.X):.0%} ({failures})" in found.text
    _, *rows = found.tables["configurations"]
    best, recommendation = mixed.variables(mixed.x_opt), mixed.recommend()
    assert [row[0] for row in rows] == ["rate", "layers", "kind", "objective", "feasible"]
    assert [row[1] for row in rows[1:3]] == [str(best["layers"]), best["kind"]]
    assert rows[3][1] == f"{mixed.fx_opt:.6g} (observed)"
    assert [row[2] for row in rows[1:3]] == [str(recommendation.variables["layers"]), recommendation.variables["kind"]]
    low, high = recommendation.interval
    assert rows[3][2] == f"{recommendation.mean:.6g} ({low:.6g} to {high:.6g})"
    assert rows[4][2] == f"{100 * recommendation.probability:.1f} %"


def test_causes_and_parameters_are_listed(mixed, written):
    found = parsed(written("mixed"))
    causes = causes_of_failure(mixed)
    assert {row[0]: int(row[1]) for row in found.tables["causes"][1:]} == {
        cause: causes.count(cause) for cause in set(causes) - {""}
    }
    head, *rows = found.tables["parameters"]
    assert [row[0] for row in rows] == ["objective", "runs", "memory"]
    assert "lengthscale of rate" in head
    assert "lengthscale of kind = sgd" in head
    parameters = dict(zip(mixed.model.get_model_parameters_names(), mixed.model.get_model_parameters()[0], strict=True))
    column = head.index("lengthscale of layers")
    assert [row[column] for row in rows] == [f"{parameters[f'{row[0]}.lengthscale_1']:.3g}" for row in rows]


def test_a_search_without_failures_says_so(tmp_path):
    def height(x):
        return x[0, 0]

    found = parsed(write_report(run(height, LINE, max_iter=0), tmp_path / "report.html"))
    assert "Search report: height" in found.text
    assert "No evaluation was infeasible." in found.text
    assert "causes" not in found.tables


def test_names_and_causes_are_shown_as_they_are(hopeless, written):
    found = parsed(written("hopeless"))
    assert not {"b", "i", "script"} & set(found.tags)
    assert found.tables["history"][0][1:3] == [WEIRD, "_k$1$"]
    assert {row[2] for row in found.tables["history"][1:]} == {"<i>a</i>", "$b$ & $c$"}
    assert found.tables["history"][1][-1] == causes_of_failure(hopeless)[0] == hopeless.causes[0]
    assert "none yet" in found.text
    assert "never observed" in found.text
    assert "the recommendation is the safest one" in found.text


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
@pytest.mark.parametrize("name", ["toy", "hopeless"])
def test_a_browser_shows_the_page(name, written, tmp_path):
    picture = tmp_path / "page.png"
    quiet = "--disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-component-update"
    command = [CHROMIUM, "--headless", "--no-sandbox", *quiet.split(), "--disable-sync", "--hide-scrollbars"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", f"--screenshot={picture}", "--window-size=1200,2400"]
    subprocess.run([*command, written(name).as_uri()], check=True, capture_output=True, timeout=50)
    shown = plt.imread(picture)
    assert shown.shape[:2] == (2400, 1200)
    assert colours(shown) > 200
    for part in np.split(shown[:2000], 4):
        assert part.std() > 0.02, "a quarter of the page is blank"


def test_the_page_is_replaced_and_a_missing_directory_is_an_error(line, tmp_path):
    path = tmp_path / "report.html"
    path.write_text("old")
    write_report(line, str(path))
    assert path.read_text().startswith("<!DOCTYPE html>")
    with pytest.raises(FileNotFoundError):
        write_report(line, Path(tmp_path) / "missing" / "report.html")
