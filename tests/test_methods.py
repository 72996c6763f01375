"""One contract for every method of the registry."""

import numpy as np
import pytest
from scipy.special import log_ndtr

from cmes_gpyopt import (
    BinaryConstraint,
    CMESError,
    ConstrainedBayesianOptimization,
    ConstrainedMES,
    RealConstraint,
    spaces,
)
from cmes_gpyopt._gpyopt import Design_space
from cmes_gpyopt.acquisitions import METHODS, Decoupled
from cmes_gpyopt.problems import TOY

from .conftest import MIXED_DOMAIN, central_difference, relative_error

SMALL = {
    "cmes": {"grid_size": 120, "num_samples": 4},
    "mes": {"grid_size": 120, "num_samples": 4},
    "pesc": {"grid_size": 60, "num_samples": 2},
}
TWO = [BinaryConstraint("crash"), RealConstraint("size", upper=4.0)]
SUPPORTED = {  # method -> feedback it can use
    "cmes": ("binary", "real", "two"),
    "cei": ("binary", "real", "two"),
    "ap": ("binary", "real", "two"),
    "mes": ("none",),
    "pesc": ("real",),
    "random": ("binary", "real", "two", "none"),
}
FEEDBACK = {"binary": "binary", "real": "real", "two": TWO, "none": []}
SPACES = {"toy": list(TOY.domain), "mixed": MIXED_DOMAIN}


def problem(space, feedback):
    """A function for each kind of feedback: the objective fails, or is measured, or both."""

    def value(x):
        if space == "toy":
            return float(TOY.objective(x)[0]), float(TOY.objective(x)[0] - 1.2)
        rate, layers, kind = x[0]
        return (rate - 1) ** 2 + 1 / layers + 0.1 * kind, rate * layers - 4

    def f(x):
        y, c = value(x)
        if feedback == "binary":
            return y if c <= 0 else np.inf
        if feedback == "real":
            return y, c
        if feedback == "two":
            return (y if c <= 0 else np.nan), {"crash": -1 if c <= 0 else 1, "size": 4.0 + c}
        return y

    return f


def optimise(method, space, feedback, seed=0, X=None, evaluations=12):
    bo = ConstrainedBayesianOptimization(
        problem(space, feedback),
        SPACES[space],
        feedback=FEEDBACK[feedback],
        acquisition=method,
        acquisition_options=SMALL.get(method, {}),
        X=X,
        seed=seed,
    )
    bo.run_optimization(evaluations - (5 if X is None else len(X)))
    return bo


CASES = [(m, s, f) for m in METHODS for s in SPACES for f in SUPPORTED[m]]


@pytest.mark.parametrize(("method", "space", "feedback"), CASES)
def test_every_method_makes_its_evaluations(method, space, feedback):
    bo = optimise(method, space, feedback)
    assert len(bo.X) == 12
    design = Design_space(SPACES[space])
    model_points = spaces.to_model(design, bo.X)
    np.testing.assert_array_equal(spaces.round_points(design, model_points), model_points)
    assert len(np.unique(bo.X, axis=0)) == 12
    if bo.feasible.any():
        assert bo.fx_opt == bo.Y[bo.feasible].min()


@pytest.mark.parametrize(("method", "space", "feedback"), [c for c in CASES if c[2] not in ("none", "two")])
def test_every_method_starts_from_nothing_but_failures(method, space, feedback):
    bad = np.array([[0.9, -0.9], [-0.9, 0.95], [0.95, 0.95]])
    if space == "mixed":
        bad = np.array([[1.9, 8.0, 0.0], [1.5, 8.0, 1.0], [1.7, 4.0, 2.0]])
    bo = optimise(method, space, feedback, X=bad, evaluations=7)
    assert not bo.feasible[:3].any()
    assert len(np.unique(bo.X, axis=0)) == 7


@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_deterministic_by_its_seed(method):
    feedback = SUPPORTED[method][0]
    state = np.random.get_state()[1].copy()
    first, again, other = (optimise(method, "toy", feedback, seed=s, evaluations=8).X for s in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    np.testing.assert_array_equal(np.random.get_state()[1], state)


UNSUPPORTED = [
    (m, f)
    for m in METHODS
    for f in FEEDBACK
    if f not in SUPPORTED[m] and (m, f) not in {("cmes", "none"), ("cei", "none"), ("ap", "none")}
]


@pytest.mark.parametrize(("method", "feedback"), UNSUPPORTED)
def test_unsupported_feedback_is_refused_before_anything_is_evaluated(method, feedback):
    def f(x):
        raise AssertionError("evaluated")

    with pytest.raises(CMESError, match="; "):
        ConstrainedBayesianOptimization(f, SPACES["toy"], feedback=FEEDBACK[feedback], acquisition=method)


@pytest.mark.parametrize("sampler", ["marginal", "pathwise"])
def test_other_samplers_of_the_optimum_run(sampler):
    bo = ConstrainedBayesianOptimization(
        TOY.with_failures,
        SPACES["toy"],
        acquisition_options={"sampler": sampler, "grid_size": 100, "num_samples": 3},
    )
    bo.run_optimization(2)
    assert len(bo.X) == 7


# --- noise ------------------------------------------------------------------------------------------------------------


def noisy(feedback="binary", **options):
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (30, 2))
    y = np.sin(3 * X).sum(axis=1) + 0.4 * rng.standard_normal(30)
    edge = X[:, 0] - 0.2 + 0.3 * rng.standard_normal(30)
    acquisition = ConstrainedMES.for_domain(SPACES["toy"], feedback=feedback, grid_size=100, **options)
    columns = [np.where(edge <= 0, -1.0, 1.0) if c.binary else edge for c in acquisition.model.constraints]
    C = np.column_stack(columns)
    acquisition.model.set_data(X, np.where((C <= 0).all(axis=1), y, np.nan), C)
    return acquisition


NOISY = [
    ("binary", {"noise": "point"}),
    ("binary", {"noise": "point", "estimator": "kl"}),
    ("binary", {"noise": "point", "estimator": "mixture"}),
    ("binary", {"noise": "exact", "estimator": "kl"}),
    ("binary", {"noise": "exact", "estimator": "kl", "objective_observed": "always"}),
    ("real", {"noise": "point"}),
    ("real", {"noise": "exact", "estimator": "kl"}),
    ([BinaryConstraint("a"), RealConstraint("b")], {"noise": "exact", "estimator": "kl"}),
]


@pytest.mark.parametrize(("feedback", "options"), NOISY)
def test_gradients_of_noisy_scores_agree_with_central_differences(feedback, options, rng):
    acquisition = noisy(feedback, **options)
    X = rng.uniform(-1, 1, (15, 2))
    gradient = acquisition.acquisition_function_withGradients(X)[1]
    numerical = central_difference(lambda x: acquisition.acquisition_function(x).ravel(), X)
    assert relative_error(gradient, numerical) < 2e-5
    assert relative_error(1.01 * gradient, numerical) > 1e-3


def test_noise_costs_information_and_the_point_approximation_does_not_know_it(rng):
    X = rng.uniform(-1, 1, (60, 2))
    scores = {
        noise: -noisy("real", noise=noise, estimator="kl", refinements=0).acquisition_function(X).ravel()
        for noise in ("ignore", "point", "exact")
    }
    assert (scores["exact"] <= scores["ignore"] + 1e-12).all()
    assert (scores["exact"] < 0.9 * scores["ignore"]).mean() > 0.2
    assert (scores["point"] > scores["ignore"] + 1e-3).any()


# --- decoupled evaluation ---------------------------------------------------------------------------------------------


def decoupled(**options):
    return noisy([BinaryConstraint("crash"), RealConstraint("size")], **options)


@pytest.mark.parametrize("estimator", ["entropy", "kl"])
@pytest.mark.parametrize("target", ["objective", "crash", "size", "joint"])
def test_gradients_of_decoupled_scores_agree_with_central_differences(estimator, target, rng):
    acquisition = decoupled(estimator=estimator)
    acquisition.update()
    acquisition.y_star[-1] = np.inf
    acquisition.ystar_cap = -np.inf
    X = rng.uniform(-1, 1, (15, 2))
    value, gradient = acquisition.target_scores(X, target, True)
    np.testing.assert_allclose(value, acquisition.score(X, target), rtol=1e-10)
    numerical = central_difference(lambda x: acquisition.score(x, target), X)
    assert relative_error(gradient, numerical) < 1e-5
    assert relative_error(1.01 * gradient, numerical) > 1e-3


def literal_alone(log_zy, log_zc, gamma):
    """Supplement A.5: a real quantity with gamma alone, the other holding with probability exp(log_zc)."""
    zy, zc = np.exp(log_zy), np.exp(log_zc)
    h = np.exp(-0.5 * gamma**2) / np.sqrt(2 * np.pi) / zy
    z = 1 - zy * zc
    return -np.log(z) - (gamma * h / 2 - (1 - zc) / zc * np.log(1 - zc)) / (1 / (zy * zc) - 1)


def test_decoupled_scores_are_the_formulas_of_the_supplement(rng):
    acquisition = noisy("real", ystar_cap=-np.inf, estimator="entropy", doubt=0)
    acquisition.update()
    X = rng.uniform(-1, 1, (20, 2))
    m, c = acquisition.model.objective.moments(X), acquisition.model.constraints[0].moments(X)
    gamma_y = (acquisition.y_star[:, None] - m.mean) / m.std
    gamma_c = (acquisition.thresholds[0] - c.mean) / c.std + 0 * gamma_y
    good = (np.abs(gamma_y) < 6) & (np.abs(gamma_c) < 6)
    points = good.all(axis=0)
    assert points.sum() >= 3
    X, gamma_y, gamma_c = X[points], gamma_y[:, points], gamma_c[:, points]
    objective = literal_alone(log_ndtr(gamma_y), log_ndtr(gamma_c), gamma_y).mean(axis=0)
    constraint = literal_alone(log_ndtr(gamma_c), log_ndtr(gamma_y), gamma_c).mean(axis=0)
    np.testing.assert_allclose(acquisition.score(X, "objective"), objective, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(acquisition.score(X, "constraint"), constraint, rtol=1e-6, atol=1e-9)


def test_everything_at_once_tells_at_least_as_much_as_any_part(rng):
    acquisition = decoupled(estimator="kl", objective_observed="always")
    X = rng.uniform(-1, 1, (200, 2))
    joint = acquisition.score(X)
    for target in ("objective", "crash", "size"):
        assert (acquisition.score(X, target) <= joint + 1e-12).all()


def test_the_policy_chooses_what_is_cheap_and_still_informative():
    acquisition = decoupled(estimator="kl")
    data = acquisition.model.data
    few = np.where(np.arange(len(data.X)) < 4, data.C[:, 1], np.nan)  # little is known of the size
    acquisition.model.set_data(data.X, data.Y, np.column_stack([data.C[:, 0], few]))
    data = acquisition.model.data
    chosen = {}
    for cheap, costs in {
        "size": {"objective": 100.0, "size": 0.1},
        "objective": {"objective": 0.1, "size": 100.0},
    }.items():
        policy = Decoupled(acquisition, costs)
        policy.X, policy.Y, policy.C = data.X, data.Y, data.C
        suggestion = policy.suggest()
        chosen[cheap] = suggestion.target
        assert suggestion.x.shape == (1, 2)
        np.testing.assert_allclose(
            suggestion.score, acquisition.score(suggestion.x, suggestion.target).item() / costs[suggestion.target]
        )
    assert chosen == {"size": "size", "objective": "objective"}


def test_what_is_told_at_one_point_belongs_together():
    acquisition = ConstrainedMES.for_domain(SPACES["toy"], feedback=[RealConstraint("size", upper=3.0)], grid_size=50)
    policy = Decoupled(acquisition, {"objective": 1.0, "size": 0.1})
    policy.tell([[0.1, 0.2]], {"size": 2.0})
    policy.tell([[0.1, 0.2]], {"objective": 5.0})
    policy.tell([[0.3, 0.2]], {"objective": 6.0})
    np.testing.assert_array_equal(acquisition.model.data.Y, [5.0, 6.0])
    np.testing.assert_array_equal(acquisition.model.data.C, [[-1.0], [np.nan]])
    suggestion = policy.suggest()
    assert suggestion.target in policy.costs


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda a: Decoupled(a, {"speed": 1.0}), "costs name 'speed'; expected 'objective', 'joint' or one of"),
        (lambda a: Decoupled(a, {"size": 0.0}), "the cost of 'size' must be a positive number"),
        (lambda a: Decoupled(a, {}), "costs must name at least one evaluation"),
        (lambda a: Decoupled(a, {"size": 1.0}).tell([[0.0, 0.0]], {"speed": 1.0}), "values name 'speed'"),
        (lambda a: a.score(np.zeros((1, 2)), "speed"), "target must be one of 'joint', 'objective', 'crash', 'size'"),
    ],
)
def test_wrong_decoupled_calls_get_one_sentence(call, message):
    with pytest.raises(CMESError, match=message):
        call(decoupled())
