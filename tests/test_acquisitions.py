import subprocess
import sys

import numpy as np
import pytest
from scipy.stats import spearmanr

from cmes_gpyopt import BinaryConstraint, CMESError, ConstrainedEI, ConstrainedMES, RealConstraint, spaces
from cmes_gpyopt._gpyopt import Design_space
from cmes_gpyopt.acquisitions.base import GRID_STREAM, OPTIMA_STREAM, OUTSIDE, UNSAFE, WANDER_STREAM
from cmes_gpyopt.optima import candidate_grid, joint_optima
from cmes_gpyopt.problems import TOY

from .conftest import MIXED_DOMAIN, central_difference, relative_error


def cube(dimension):
    return [{"name": "x", "type": "continuous", "domain": (-2.0, 3.0), "dimensionality": dimension}]


def fitted(feedback="binary", dimension=2, count=25, seed=0, **options):
    """An acquisition on data with a linear edge of feasibility and a smooth objective."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 3, (count, dimension))
    y = np.sin(X).sum(axis=1) + 0.05 * rng.standard_normal(count)
    edge = X[:, 0] - 0.7 + 0.2 * rng.standard_normal(count)
    acquisition = ConstrainedMES.for_domain(cube(dimension), feedback=feedback, grid_size=200, seed=3, **options)
    columns = []
    for j, constraint in enumerate(acquisition.model.constraints):
        value = edge + 0.5 * j * X[:, -1]
        columns.append(np.where(value <= 0, -1.0, 1.0) if constraint.binary else value)
    C = np.column_stack(columns)
    seen = (C <= 0).all(axis=1) if acquisition.objective_observed == "feasible" else np.ones(count, dtype=bool)
    acquisition.model.set_data(X, np.where(seen, y, np.nan), C)
    return acquisition


def gradient_errors(acquisition, dimension, rng):
    X = rng.uniform(-2, 3, (25, dimension))
    value, gradient = acquisition.acquisition_function_withGradients(X)
    np.testing.assert_allclose(value, acquisition.acquisition_function(X), rtol=1e-12, atol=1e-300)
    numerical = central_difference(lambda x: acquisition.acquisition_function(x).ravel(), X)
    return relative_error(gradient, numerical), relative_error(1.01 * gradient, numerical)


@pytest.mark.parametrize("dimension", [1, 2, 6])
@pytest.mark.parametrize("link", ["logistic", "probit"])
@pytest.mark.parametrize("estimator", ["entropy", "kl", "mixture"])
def test_gradients_agree_with_central_differences(dimension, link, estimator, rng):
    acquisition = fitted([BinaryConstraint(link=link)], dimension, estimator=estimator)
    error, control = gradient_errors(acquisition, dimension, rng)
    assert error < 1e-5
    assert control > 1e-3


TWO = [BinaryConstraint("crash"), RealConstraint("size")]
SETTINGS = {
    "paper": dict(preset="paper"),
    "laplace kl": dict(table="laplace", estimator="kl"),
    "always observed, entropy": dict(objective_observed="always"),
    "always observed, kl": dict(objective_observed="always", estimator="kl"),
    "real, entropy": dict(feedback="real", objective_observed="always"),
    "real, kl": dict(feedback="real", estimator="kl"),
    "mixed, entropy": dict(feedback=TWO),
    "mixed, kl": dict(feedback=TWO, estimator="kl"),
    "mixed, mixture": dict(feedback=TWO, estimator="mixture"),
    "three binary": dict(feedback=[BinaryConstraint(n) for n in "abc"], estimator="kl"),
    "no constraint holds": dict(confidence=1e-9),
    "no border": dict(border=0),
    "border, paper": dict(border=0.2, preset="paper"),
    "no constraint holds, paper": dict(preset="paper", confidence=1e-9),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_gradients_agree_in_every_configuration(name, rng):
    acquisition = fitted(**SETTINGS[name])
    error, control = gradient_errors(acquisition, 2, rng)
    assert error < 1e-5
    assert control > 1e-3


def test_draws_without_a_feasible_point_lead_towards_feasibility_except_in_the_paper(rng):
    """With y* = +inf the divergence rises with P(feasible); the paper's binary entropy difference does not."""
    X = rng.uniform(-2, 3, (30, 2))
    labels = np.where(X[:, 0] < 2.0, 1.0, -1.0)[:, None]
    candidates = np.column_stack([np.linspace(-1.5, 2.8, 30), np.zeros(30)])
    scores = {}
    for preset in (None, "paper"):
        acquisition = ConstrainedMES.for_domain(
            cube(2), preset=preset, grid_size=100, confidence=0.5, border=0, ystar_cap=-np.inf
        )
        acquisition.model.set_data(X, np.full(30, np.nan), labels)
        acquisition.update()
        acquisition.y_star = np.full(10, np.inf)
        probability = acquisition.constraints[0].log_feasible(candidates)
        scores[preset] = -acquisition.acquisition_function(candidates).ravel()[np.argsort(probability)]
    assert spearmanr(scores[None], np.arange(30)).statistic > 0.9
    assert np.argmax(scores[None]) >= 27
    assert scores["paper"][-1] < 0 < scores[None][-1]
    assert np.argmax(scores["paper"]) < 25


def nothing_feasible(count=6, **options):
    """An acquisition that has only seen failures."""
    acquisition = ConstrainedMES.for_domain(cube(2), grid_size=200, seed=3, **options)
    X = np.random.default_rng(5).uniform(-2, 3, (count, 2))
    acquisition.model.set_data(X, np.full(count, np.nan), np.ones((count, 1)))
    return acquisition


def test_while_nothing_feasible_is_known_the_probability_of_feasibility_is_maximised(rng):
    X = rng.uniform(-2, 3, (30, 2))
    acquisition = nothing_feasible(border=0.0)
    probability = np.exp(acquisition.model.constraints[0].exploring().log_feasible(X))
    np.testing.assert_allclose(acquisition.acquisition_function(X)[:, 0], -probability, rtol=1e-12)
    error, control = gradient_errors(acquisition, 2, rng)
    assert error < 1e-5
    assert control > 1e-3
    # The information is another thing; the paper's configuration maximises it from the start.
    assert not np.allclose(acquisition.score(X), probability, rtol=0.01)
    paper = nothing_feasible(preset="paper")
    np.testing.assert_allclose(paper.acquisition_function(X)[:, 0], -paper.score(X), rtol=1e-12)
    # One objective value, even of a failure, or one feasible label, and the information decides.
    data = acquisition.model.data
    acquisition.model.set_data(data.X, np.where(np.arange(6) == 0, 1.0, np.nan), data.C)
    assert not acquisition.seeks_feasible
    acquisition.model.set_data(data.X, data.Y, np.where(np.arange(6) == 0, -1.0, 1.0)[:, None])
    assert not acquisition.seeks_feasible
    np.testing.assert_allclose(acquisition.acquisition_function(X)[:, 0], -acquisition.score(X), rtol=1e-12)


def no_data():
    acquisition = ConstrainedMES.for_domain(cube(2), grid_size=200)
    acquisition.model.set_data(np.empty((0, 2)), np.empty(0), np.empty((0, 1)))
    return acquisition


def never_both():
    """Two labels that are never both feasible."""
    acquisition = ConstrainedMES.for_domain(
        cube(1), feedback=[BinaryConstraint("a"), BinaryConstraint("b")], grid_size=200
    )
    X = np.linspace(-2, 3, 12)[1:-1, None]
    label = np.where(X < 0.5, -1.0, 1.0)
    acquisition.model.set_data(X, np.full(10, np.nan), np.hstack([label, -label]))
    return acquisition


def not_yet_feasible():
    """A measured constraint that falls towards one side."""
    acquisition = ConstrainedMES.for_domain(cube(1), feedback="real", grid_size=200)
    X = np.random.default_rng(0).uniform(-2, 0.5, (8, 1))
    acquisition.model.set_data(X, np.full(8, np.nan), 0.6 - X)
    return acquisition


def distance_to_border(point):
    return np.minimum(point + 2, 3 - point).min() / 5


def test_while_nothing_feasible_is_known_every_third_suggestion_may_be_on_the_border():
    points = [nothing_feasible(count).optimize()[0] for count in range(6, 12)]
    assert [distance_to_border(x) < 1e-6 for x in points] == [False, True, False] * 2
    # Points in flight count, and once something is feasible the weight is there every time.
    acquisition = nothing_feasible(5)
    acquisition.set_pending(np.array([[0.5, 0.5], [1.0, 1.0]]))
    assert distance_to_border(acquisition.optimize()[0]) < 1e-6
    acquisition = nothing_feasible(7)
    data = acquisition.model.data
    acquisition.model.set_data(data.X, np.where(np.arange(7) == 0, 1.0, np.nan), np.where(np.arange(7) == 0, -1.0, 1.0))
    assert not acquisition.visits_border


def test_after_many_failures_every_third_suggestion_is_the_likeliest_of_a_few_random_points():
    turns = {count: nothing_feasible(count) for count in (23, 24, 25, 26, 27, 29)}
    assert [acquisition.wanders for acquisition in turns.values()] == [False, False, False, True, False, True]
    acquisition = turns[26]
    point, value = acquisition.optimize()
    few = spaces.random_points(acquisition.space, 16, acquisition.generator(WANDER_STREAM))
    likely = acquisition.model.constraints[0].exploring().log_feasible(few)
    np.testing.assert_array_equal(point[0], few[likely.argmax()])
    assert -value.item() == pytest.approx(np.exp(likely.max()))
    # A finite space is searched whole every time.
    finite = ConstrainedMES.for_domain([{"name": "a", "type": "discrete", "domain": tuple(range(60))}])
    finite.model.set_data(np.arange(26.0)[:, None], np.full(26, np.nan), np.ones((26, 1)))
    assert finite.seeks_feasible
    assert not finite.wanders


@pytest.mark.parametrize("make", [nothing_feasible, no_data, never_both, not_yet_feasible])
def test_while_nothing_feasible_is_known_points_in_flight_are_avoided(make):
    acquisition = make()
    points = acquisition.optimize()[0]
    for _ in range(4):
        acquisition.set_pending(points)
        point = acquisition.optimize()[0]
        assert np.linalg.norm(point - points, axis=1).min() > 0.01
        points = np.vstack([points, point])


@pytest.mark.parametrize("make", [nothing_feasible, no_data, never_both])
def test_gradients_agree_while_nothing_feasible_is_known_and_points_are_in_flight(make, rng):
    acquisition = make()
    dimension = acquisition.space.model_dimensionality
    acquisition.set_pending(rng.uniform(-2, 3, (3, dimension)))
    error, control = gradient_errors(acquisition, dimension, rng)
    assert error < 1e-5
    assert control > 1e-3


def test_a_limit_on_failures_that_nothing_meets_leads_to_the_safest_point():
    acquisition = fitted()
    acquisition.least_probability = 0.9999
    point, value = acquisition.optimize()
    X = np.random.default_rng(1).uniform(-2, 3, (2000, 2))
    assert -value.item() <= UNSAFE
    assert acquisition.model.probability_feasible(point) >= acquisition.model.probability_feasible(X).max() - 1e-3


def test_the_tolerance_of_the_draws_reaches_the_sampler():
    exact, screened = fitted(ystar_tolerance=0.0), fitted()
    for acquisition in (exact, screened):
        acquisition.update()
    constraints = [c.exploring() for c in exact.model.constraints]
    grid = candidate_grid(exact.space, 200, exact.model.data.X, exact.generator(GRID_STREAM))
    every = joint_optima(
        exact.model.objective.doubted(4),
        constraints,
        exact.thresholds,
        grid,
        10,
        exact.generator(OPTIMA_STREAM),
        exact.space,
        tolerance=0.0,
        refinements=exact.refinements,
    )
    np.testing.assert_array_equal(exact.y_star, every.y_star)
    assert not np.array_equal(exact.y_star, screened.y_star)


def test_the_cap_keeps_the_optimum_below_the_best_feasible_value():
    capped, free = fitted(seed=1, num_samples=300), fitted(seed=1, num_samples=300, ystar_cap=-np.inf)
    for acquisition in (capped, free):
        acquisition.update()
    np.testing.assert_array_equal(capped.y_star, free.y_star)
    best = capped.model.standardised_fmin()
    assert capped.scored_optima.max() <= best - 3e-3
    np.testing.assert_array_equal(free.scored_optima, free.y_star)
    assert np.isposinf(capped.y_star).any() or capped.y_star.max() > best - 3e-3


def test_the_cap_shrinks_with_what_the_draws_leave_to_gain():
    acquisition = fitted()
    acquisition.update()
    best = acquisition.model.standardised_fmin()
    cases = (
        (0.0, 0.0, 3e-4),
        (0.0, 1e-4, 3e-4),
        (0.0, 0.015, 0.0015),
        (0.0, 2.0, 0.003),
        (5e-4, 0.0, 0.0015),
        (0.1, 0.0, 0.003),
    )
    for noise, left, cap in cases:
        acquisition.model.objective._noise = noise**2
        y_star = np.full(10, best - left)
        y_star[5:] = best - left if left < 1 else np.inf  # draws without a feasible point leave nothing to gain
        acquisition.y_star = y_star
        np.testing.assert_allclose(acquisition.scored_optima[5:], np.minimum(y_star[5:], best - cap))
        assert acquisition.scored_optima[0] == pytest.approx(best - max(left, cap))
    acquisition.y_star, acquisition.ystar_cap = np.full(10, best), 1e-5
    assert acquisition.scored_optima[0] == pytest.approx(best - 1e-5, abs=1e-9)  # a smaller one is left as it is


def shortened(acquisition):
    """Length scales of the objective in a search, as a share of the learned ones."""
    learned = acquisition.model.objective.posterior.kernel.lengthscales.copy()
    acquisition.update()
    np.testing.assert_array_equal(acquisition.model.objective.posterior.kernel.lengthscales, learned)
    return acquisition.objective.posterior.kernel.lengthscales / learned


def test_length_scales_are_doubted_as_far_as_failures_hide_values():
    X = np.random.default_rng(1).uniform(-2, 3, (12, 2))
    for failures in (0, 1, 3, 9):
        acquisition = ConstrainedMES.for_domain(cube(2), grid_size=100)
        labels = np.where(np.arange(12) < failures, 1.0, -1.0)
        acquisition.model.set_data(X, np.where(labels < 0, np.sin(X).sum(axis=1), np.nan), labels[:, None])
        seen, missing = 12 - failures, min(failures, 4)
        np.testing.assert_allclose(shortened(acquisition), seen / (seen + missing))
        acquisition.set_pending(X[:2] + 0.1)
        np.testing.assert_allclose(shortened(acquisition), seen / (seen + missing))


def test_length_scales_are_trusted_where_no_failure_hides_a_value():
    assert (shortened(fitted(objective_observed="always")) == 1).all()
    assert (shortened(fitted(doubt=0)) == 1).all()
    assert (shortened(fitted(preset="paper")) == 1).all()
    assert (shortened(fitted()) < 1).all()
    # A constraint that was evaluated alone, and holds, hides nothing; nor does one that was not observed.
    X = np.random.default_rng(1).uniform(-2, 3, (12, 2))
    Y = np.where(np.arange(12) < 6, np.sin(X).sum(axis=1), np.nan)
    for unseen in (-1.0, 0.0, np.nan):
        acquisition = ConstrainedMES.for_domain(cube(2), feedback="real", grid_size=100)
        acquisition.model.set_data(X, Y, np.where(np.isnan(Y), unseen, -1.0)[:, None])
        assert (shortened(acquisition) == 1).all()
    always = ConstrainedMES.for_domain(cube(2), feedback="real", grid_size=100, objective_observed="always")
    always.model.set_data(X, Y, np.where(np.isnan(Y), 1.0, -1.0)[:, None])
    assert (shortened(always) == 1).all()


def test_one_of_several_constraints_is_enough_to_hide_a_value():
    X = np.random.default_rng(1).uniform(-2, 3, (12, 2))
    Y = np.where(np.arange(12) < 10, np.sin(X).sum(axis=1), np.nan)
    C = np.column_stack([-np.ones(12), np.where(np.isnan(Y), 1.0, -1.0)])
    acquisition = ConstrainedMES.for_domain(cube(2), feedback=TWO, grid_size=100)
    acquisition.model.set_data(X, Y, C)
    np.testing.assert_allclose(shortened(acquisition), 10 / 12)
    half = ConstrainedMES.for_domain(cube(2), feedback=TWO, grid_size=100, doubt=0.5)
    half.model.set_data(X, Y, C)
    np.testing.assert_allclose(shortened(half), 10 / 10.5)


def test_doubt_leaves_a_valley_between_high_values_beyond_failures_worth_a_look():
    """A valley was refined on the left; a few high values on the right of points that failed are no proof."""
    left, right, failed = np.linspace(-2, -0.4, 7), np.array([1.4, 2.2]), np.array([0.1, 0.5, 0.9, 2.8])
    X = np.concatenate([left, right, failed])[:, None]
    Y = np.concatenate([(left + 1.2) ** 2, [1.0, 1.0], np.full(4, np.nan)])
    labels = np.where(np.isnan(Y), 1.0, -1.0)[:, None]
    share = []
    for doubt in (0, 4):
        acquisition = ConstrainedMES.for_domain(cube(1), doubt=doubt, border=0, grid_size=500, num_samples=50)
        acquisition.model.set_data(X, Y, labels)
        points = np.linspace(-2, 3, 301)[:, None]
        score = acquisition.score(points)
        share.append(score[points[:, 0] > 1].max() / score.max())
    assert share[1] > 2 * share[0]


def test_the_incumbent_is_not_worth_evaluating_again_once_the_optimum_is_capped():
    space = cube(1)
    X = np.linspace(-2, 3, 14)[:, None]
    values = (X.ravel() - 0.5) ** 2
    scores = []
    for cap in (3e-3, -np.inf):
        acquisition = ConstrainedMES.for_domain(space, ystar_cap=cap, grid_size=400, estimator="kl")
        acquisition.model.set_data(X, values, -np.ones((14, 1)))
        best = X[[np.argmin(values)]]
        acquisition.update()
        acquisition.y_star = np.full(10, acquisition.model.standardised_fmin())
        scores.append(-acquisition.acquisition_function(best).item())
    assert scores[1] > 0.4  # about log 2, on every scale
    assert scores[0] < 0.01


def test_the_suggestion_does_not_depend_on_the_units_of_the_objective():
    rng = np.random.default_rng(4)
    X = rng.uniform(-1, 1, (15, 2))
    Y = TOY.with_failures(X)
    found = []
    for scale, shift in ((1.0, 0.0), (1e3, -40.0)):
        acquisition = ConstrainedMES.for_domain(list(TOY.domain), grid_size=300)
        acquisition.model.updateModel(X, scale * Y + shift)
        found.append(acquisition.optimize()[0])
    np.testing.assert_allclose(found[0], found[1], atol=1e-3)


def test_known_constraints_are_respected_although_scores_may_be_negative(rng):
    known = [{"name": "left", "constraint": "x[:,0] - 0.2"}]
    acquisition = ConstrainedMES.for_domain(cube(2), known, grid_size=100)
    X = rng.uniform(-2, 0.2, (12, 2))
    acquisition.model.set_data(X, X.sum(axis=1), -np.ones((12, 1)))
    points = rng.uniform(-2, 3, (50, 2))
    value, gradient = acquisition.acquisition_function_withGradients(points)
    outside = points[:, 0] > 0.2
    assert (value[outside] == -OUTSIDE).all()
    assert (gradient[outside] == 0).all()
    assert np.isfinite(value).all()
    assert value[~outside].max() < 1e3
    assert acquisition.optimize()[0][0, 0] <= 0.2


def test_the_border_weight_is_the_share_of_a_gaussian_neighbourhood_inside_the_box(rng):
    acquisition = fitted(estimator="kl", border=0.1)
    plain = fitted(estimator="kl", border=0)
    points = np.array([[0.5, 0.5], [-2.0, 0.5], [-2.0, 3.0], [-1.7, 2.0]])
    ratio = acquisition.acquisition_function(points) / plain.acquisition_function(points)
    draws = (points[:, None, :] + 2) / 5 + 0.1 * rng.standard_normal((4, 200_000, 2))
    share = ((draws >= 0) & (draws <= 1)).all(axis=2).mean(axis=1)
    np.testing.assert_allclose(ratio.ravel(), share**2, atol=0.005)
    as_logarithm = ConstrainedEI(plain.model, plain.space, border=0.1).acquisition_function(points)
    difference = ConstrainedEI(plain.model, plain.space).acquisition_function(points) - as_logarithm
    np.testing.assert_allclose(difference.ravel(), np.log(ratio.ravel()), atol=1e-9)


def test_gradients_agree_for_a_logarithmic_score_with_a_border(rng):
    plain = fitted()
    error, control = gradient_errors(ConstrainedEI(plain.model, plain.space, border=0.1), 2, rng)
    assert error < 1e-5
    assert control > 1e-3


def test_cost_divides_positive_scores_and_never_flatters_negative_ones(rng):
    def cost(x):
        return 1 + x[:, :1] ** 2, np.column_stack([2 * x[:, 0], np.zeros(len(x))])

    plain = fitted(seed=2, preset="paper")
    priced = ConstrainedMES(plain.model, plain.space, cost_withGradients=cost, preset="paper", grid_size=200)
    for acquisition in (plain, priced):
        acquisition.update()
        acquisition.y_star = np.array([-0.5, np.inf])
    X = rng.uniform(-2, 3, (200, 2))
    score, with_cost = -plain.acquisition_function(X), -priced.acquisition_function(X)
    price = cost(X)[0]
    np.testing.assert_allclose(with_cost, np.where(score >= 0, score / price, score * price))
    assert (score < 0).any()
    assert (score > 0).any()
    gradient = priced.acquisition_function_withGradients(X)[1]
    numerical = central_difference(lambda x: priced.acquisition_function(x).ravel(), X)
    assert relative_error(gradient, numerical) < 1e-5


def test_scores_are_finite_at_and_near_the_data():
    for estimator in ("entropy", "kl", "mixture"):
        acquisition = fitted(estimator=estimator, count=40)
        X = acquisition.model.data.X
        for points in (X, X + 1e-9, np.repeat(X[:1], 5, axis=0)):
            value, gradient = acquisition.acquisition_function_withGradients(points)
            assert np.isfinite(value).all()
            assert np.isfinite(gradient).all()


@pytest.mark.parametrize("labels", [[1.0], [-1.0], [1.0, 1.0, 1.0], [-1.0, -1.0, -1.0], [1.0, -1.0]])
@pytest.mark.parametrize("estimator", ["entropy", "kl", "mixture"])
def test_a_suggestion_exists_from_the_first_observation_on(labels, estimator, rng):
    acquisition = ConstrainedMES.for_domain(cube(2), estimator=estimator, grid_size=100)
    X = rng.uniform(-2, 3, (len(labels), 2))
    C = np.array(labels)[:, None]
    acquisition.model.set_data(X, np.where(C.ravel() < 0, 7.0, np.nan), C)
    x, value = acquisition.optimize()
    assert np.isfinite(x).all()
    assert np.isfinite(value).all()


@pytest.mark.parametrize("offset", [0.0, 5.0, 100.0])
def test_real_constraints_far_from_feasible_still_point_towards_feasibility(offset):
    """Where all information underflows, the suggestion is the point most likely to be feasible."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 3, (12, 2))
    acquisition = ConstrainedMES.for_domain(cube(2), feedback="real", grid_size=100)
    acquisition.model.set_data(X, X[:, 1], (offset + 3.0 + X[:, 0] + 0.5 * X[:, 1])[:, None])
    point, value = acquisition.optimize()
    if offset > 50:
        assert value.item() == 0.0
        constraint = acquisition.model.constraints[0]
        assert constraint.log_feasible(point) >= constraint.log_feasible(rng.uniform(-2, 3, (5000, 2))).max()
    alone = ConstrainedMES.for_domain(cube(2), feedback="real", grid_size=100)
    alone.model.set_data(X[:1], [1.0], [[offset + 1.0]])
    assert alone.model.probability_feasible(X[1:]).max() > 0.1


PENDING = np.array([[0.5, 0.5], [-1.0, 2.0]])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"estimator": "kl"},
        {"estimator": "mixture", "feedback": TWO},
        {"feedback": "real", "estimator": "kl"},
        {"feedback": TWO, "estimator": "kl", "sampler": "pathwise"},
        {"estimator": "kl", "sampler": "marginal"},
        {"confidence": 1e-3},
    ],
)
def test_gradients_agree_while_points_are_in_flight(options, rng):
    acquisition = fitted(**options)
    acquisition.set_pending(PENDING)
    error, control = gradient_errors(acquisition, 2, rng)
    assert error < 1e-5
    assert control > 1e-3


def test_each_draw_is_scored_under_its_own_values_at_the_points_in_flight(rng):
    """Against the same score computed draw by draw from posteriors that were conditioned one at a time."""
    acquisition = fitted(feedback=TWO, estimator="kl")
    acquisition.set_pending(PENDING)
    acquisition.update()
    X = rng.uniform(-2, 3, (12, 2))
    total = np.zeros(12)
    for k in range(10):
        one = fitted(feedback=TWO, estimator="kl")
        one.update()
        one.y_star = acquisition.scored_optima[[k]]
        latents = (acquisition.objective, *acquisition.constraints)
        values = [latent.moments(PENDING).mean[k] for latent in latents]
        one.objective = one.objective.conditioned(PENDING, values[0])
        one.constraints = [c.conditioned(PENDING, v) for c, v in zip(one.constraints, values[1:], strict=True)]
        total -= one.acquisition_function(X).ravel() / 10
    np.testing.assert_allclose(-acquisition.acquisition_function(X).ravel(), total, rtol=1e-3, atol=1e-6)


def test_a_point_in_flight_is_worth_little_more_and_is_not_suggested_again():
    acquisition = fitted(estimator="kl")
    first = acquisition.optimize()[0]
    before = acquisition.score(first).item()
    acquisition.set_pending(first)
    assert acquisition.score(first).item() < 0.2 * before
    second = acquisition.optimize()[0]
    assert np.abs(second - first).max() > 0.01
    assert acquisition.score(second).item() > 1.5 * acquisition.score(first).item()
    acquisition.set_pending(None)
    np.testing.assert_array_equal(acquisition.optimize()[0], first)


def test_the_draw_belongs_to_the_data_and_the_seed_however_often_it_is_asked_for():
    a, b = fitted(), fitted()
    first = a.optimize()[0]
    a.acquisition_function(np.zeros((3, 2)))
    a.update()
    np.testing.assert_array_equal(a.optimize()[0], first)
    np.testing.assert_array_equal(b.optimize()[0], first)
    other = ConstrainedMES(a.model, a.space, grid_size=200, seed=4)
    other.update()
    assert not np.array_equal(other.y_star, a.y_star)


def test_import_fit_draw_and_optimise_leave_the_global_random_state_alone():
    code = (
        "import numpy as np; before = np.random.get_state()[1].copy();"
        "from cmes_gpyopt import ConstrainedMES;"
        "a = ConstrainedMES.for_domain([{'name': 'x', 'type': 'continuous', 'domain': (0, 1)}], grid_size=50);"
        "a.model.updateModel(np.array([[0.1], [0.6], [0.9]]), np.array([[1.0], [2.0], [np.inf]])); a.optimize();"
        "assert (np.random.get_state()[1] == before).all()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_mixed_spaces_get_allowed_suggestions(rng):
    acquisition = ConstrainedMES.for_domain(MIXED_DOMAIN, grid_size=100)
    X = np.array([[0.5, 1, 1, 0, 0], [1.0, 4, 0, 1, 0], [1.5, 8, 0, 0, 1.0]])
    acquisition.model.set_data(X, np.array([1.0, 2.0, np.nan]), np.array([[-1.0], [-1.0], [1.0]]))
    x, _ = acquisition.optimize()
    np.testing.assert_array_equal(acquisition.space.round_optimum(x), x)


WRONG = [
    (dict(confidence=1.0), "confidence must lie strictly between 0 and 1, got 1.0"),
    (dict(ystar_tolerance=-1.0), "ystar_tolerance must lie between 0, for every point, and 1, got -1.0"),
    (dict(confidence="high"), "confidence must be a number, got 'high'"),
    (dict(num_samples=0), "num_samples must be a positive integer, got 0"),
    (dict(num_samples=2.5), "num_samples must be a positive integer, got 2.5"),
    (dict(grid_size=-3), "grid_size must be a positive integer, got -3"),
    (dict(estimator="mes"), "estimator must be one of 'entropy', 'mixture', 'kl', got 'mes'"),
    (dict(objective_observed="never"), "objective_observed must be one of 'feasible', 'always', got 'never'"),
    (dict(table="probit"), "table must be one of 'exact', 'laplace', got 'probit'"),
    (dict(preset="fast"), "preset must be one of None, 'paper', got 'fast'"),
    (dict(ystar_cap=np.nan), "ystar_cap must be a number, got nan"),
    (dict(doubt=-1), "doubt must be finite and not negative, 0 for none, got -1"),
    (dict(doubt=np.inf), "doubt must be finite and not negative, 0 for none, got inf"),
    (dict(doubt="much"), "doubt must be a number, got 'much'"),
    (dict(seed=-1), "seed must be a non-negative integer, got -1"),
    (dict(seed=0.5), "seed must be a non-negative integer, got 0.5"),
    (dict(estimator="mixture", objective_observed="always"), "estimator='mixture' is for binary feedback"),
    (dict(estimator="mixture", feedback="real"), "estimator='mixture' is for binary feedback"),
    (dict(feedback="labels"), "feedback must be 'binary', 'real' or a list of constraints, got 'labels'"),
    (dict(feedback=["binary"]), "feedback must list BinaryConstraint and RealConstraint objects, got 'binary'"),
]


@pytest.mark.parametrize(("options", "message"), WRONG, ids=[m[:40] for _, m in WRONG])
def test_wrong_options_get_one_sentence(options, message):
    with pytest.raises(CMESError, match=message):
        ConstrainedMES.for_domain(cube(2), **options)


def test_misspelt_options_are_refused():
    with pytest.raises(TypeError, match="nun_samples"):
        ConstrainedMES.for_domain(cube(2), nun_samples=3)


def test_a_foreign_model_is_refused():
    with pytest.raises(CMESError, match="ConstrainedMES needs a ConstrainedModel, got object"):
        ConstrainedMES(object(), Design_space(cube(2)))


def test_an_acquisition_without_data_says_what_to_do():
    acquisition = ConstrainedMES.for_domain(cube(2))
    with pytest.raises(CMESError, match="the model has no data yet"):
        acquisition.acquisition_function(np.zeros((1, 2)))
