import mpmath
import numpy as np
import pytest
from scipy.special import ndtr

from cmes_gpyopt import (
    AdaptivePercentile,
    BinaryConstraint,
    CMESError,
    ConstrainedEI,
    ConstrainedMES,
    MaxValueEntropySearch,
    RandomSearch,
    RealConstraint,
    spaces,
)
from cmes_gpyopt.improvement import log_improvement
from cmes_gpyopt.problems import TOY

from .conftest import central_difference, relative_error

DOMAIN = list(TOY.domain)


def data(count=25, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (count, 2))
    y = np.sin(3 * X).sum(axis=1) + 0.02 * rng.standard_normal(count)
    return X, y, X[:, 0] - 0.2 + 0.1 * rng.standard_normal(count)


def fitted(cls, feedback, **options):
    X, y, edge = data()
    acquisition = cls.for_domain(DOMAIN, feedback=feedback, **options)
    C = np.column_stack(
        [
            np.where(edge + 0.4 * j * X[:, 1] <= 0, -1.0, 1.0) if c.binary else edge + 0.4 * j * X[:, 1]
            for j, c in enumerate(acquisition.model.constraints)
        ]
        or [np.empty((25, 0))]
    )
    acquisition.model.set_data(X, np.where((C <= 0).all(axis=1), y, np.nan), C)
    return acquisition


# --- expected improvement ---------------------------------------------------------------------------------------------


def test_log_improvement_agrees_with_mpmath_over_all_magnitudes():
    points = np.concatenate([-np.logspace(-8, 8, 60), np.linspace(-9, 9, 40), np.logspace(-8, 8, 30)])
    value, slope = log_improvement(points)
    with mpmath.workdps(60):
        for u, v, s in zip(points, value, slope, strict=True):
            x = mpmath.mpf(float(u))
            if x < -30:  # mpmath's own difference needs u^2 digits; the asymptotic series of the ratio does not
                series = mpmath.nsum(lambda k, x=x: (-1) ** k * mpmath.fac2(2 * k + 1) / x ** (2 * k), [0, 12]) / x**2
                expected, cdf = mpmath.log(mpmath.npdf(x)) + mpmath.log(series), None
            else:
                h = mpmath.npdf(x) + x * mpmath.ncdf(x)
                expected, cdf = mpmath.log(h), mpmath.ncdf(x) / h
            assert abs(v - float(expected)) <= 1e-12 * max(1.0, abs(float(expected)))
            if cdf is not None:
                assert s == pytest.approx(float(cdf), rel=1e-11)


def test_the_slope_of_log_improvement_far_out_follows_its_asymptote():
    u = -np.logspace(2, 8, 20)
    np.testing.assert_allclose(log_improvement(u)[1], -u, rtol=3e-4)


def test_constrained_ei_is_expected_improvement_times_probability_of_feasibility():
    acquisition = fitted(ConstrainedEI, [BinaryConstraint("crash"), RealConstraint("size")])
    X = np.random.default_rng(1).uniform(-1, 1, (6, 2))
    model = acquisition.model
    best = np.nanmin(np.where(model.data.feasible, model.data.Y, np.nan))
    rng = np.random.default_rng(2)
    draws = 400_000
    mean, std = (a.ravel() for a in model.predict(X))
    for i in range(6):
        y = mean[i] + std[i] * rng.standard_normal(draws)
        improvement = np.maximum(best - y, 0.0) / model.objective.scale
        latent = model.constraints[0].exploring().moments(X[[i]])
        label = rng.random(draws) < 1 / (1 + np.exp(latent.mean + latent.std * rng.standard_normal(draws)))
        size = model.constraints[1].moments(X[[i]])
        small = size.mean + size.std * rng.standard_normal(draws) <= model.constraints[1].threshold(0.5)
        product = improvement * label * small
        found = np.exp(-acquisition.acquisition_function(X[[i]]).item())
        assert abs(found - product.mean()) < 5 * product.std() / draws**0.5 + 1e-12


def test_constrained_ei_maximises_the_probability_of_feasibility_while_nothing_is_feasible():
    acquisition = ConstrainedEI.for_domain(DOMAIN)
    X = np.random.default_rng(1).uniform(-1, 1, (8, 2))
    acquisition.model.set_data(X, np.full(8, np.nan), np.ones((8, 1)))
    new = np.random.default_rng(2).uniform(-1, 1, (20, 2))
    np.testing.assert_allclose(
        np.exp(-acquisition.acquisition_function(new).ravel()), acquisition.model.probability_feasible(new)
    )


@pytest.mark.parametrize(
    ("cls", "feedback", "options"),
    [
        (ConstrainedEI, "binary", {}),
        (ConstrainedEI, [BinaryConstraint(link="probit")], {}),
        (ConstrainedEI, "real", {}),
        (ConstrainedEI, [BinaryConstraint("a"), RealConstraint("b")], {}),
        (AdaptivePercentile, "binary", {}),
        (AdaptivePercentile, "real", {"percentile": 70}),
        (MaxValueEntropySearch, [], {"grid_size": 100}),
    ],
)
def test_gradients_agree_with_central_differences(cls, feedback, options, rng):
    acquisition = fitted(cls, feedback, **options)
    X = rng.uniform(-1, 1, (30, 2))
    value, gradient = acquisition.acquisition_function_withGradients(X)
    np.testing.assert_allclose(value, acquisition.acquisition_function(X), rtol=1e-12)
    numerical = central_difference(lambda x: acquisition.acquisition_function(x).ravel(), X)
    assert relative_error(gradient, numerical) < 1e-5
    assert relative_error(1.01 * gradient, numerical) > 1e-3


def test_constrained_ei_stays_finite_far_in_the_tails():
    acquisition = fitted(ConstrainedEI, "real")
    acquisition.update()
    acquisition.best = -1e6
    value, gradient = acquisition.acquisition_function_withGradients(np.random.default_rng(0).uniform(-1, 1, (50, 2)))
    assert np.isfinite(value).all()
    assert np.isfinite(gradient).all()
    assert value.min() > 1e10


def test_cost_is_subtracted_from_log_scores_as_a_logarithm(rng):
    plain = fitted(ConstrainedEI, "binary")
    priced = ConstrainedEI(plain.model, plain.space, cost_withGradients=lambda x: (np.full((len(x), 1), 4.0), 0 * x))
    X = rng.uniform(-1, 1, (10, 2))
    np.testing.assert_allclose(priced.acquisition_function(X), plain.acquisition_function(X) + np.log(4.0))


# --- adaptive percentile ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("percentile", [50, 80, 100])
def test_infeasible_evaluations_count_as_a_percentile_of_the_feasible_values(percentile):
    acquisition = fitted(AdaptivePercentile, "binary", percentile=percentile)
    acquisition.update()
    model, surrogate = acquisition.model, acquisition.surrogate
    good = model.data.feasible
    expected = np.where(good, model.data.Y, np.percentile(model.data.Y[good], percentile))
    _, targets = surrogate._data
    np.testing.assert_allclose(surrogate.offset + surrogate.scale * targets, expected)
    assert acquisition.best * surrogate.scale + surrogate.offset == pytest.approx(model.data.Y[good].min())


def test_before_the_first_feasible_value_the_search_goes_where_least_is_known():
    acquisition = AdaptivePercentile.for_domain(DOMAIN)
    X = np.array([[-0.5, -0.5], [-0.4, -0.6], [-0.6, -0.4]])
    acquisition.model.set_data(X, np.full(3, np.nan), np.ones((3, 1)))
    new = np.random.default_rng(0).uniform(-1, 1, (40, 2))
    acquisition.update()
    score, std = -acquisition.acquisition_function(new).ravel(), acquisition.surrogate.moments(new).std
    np.testing.assert_array_equal(np.argsort(score), np.argsort(std))


# --- max-value entropy search and random search -----------------------------------------------------------------------


def test_max_value_entropy_search_is_the_truncated_gaussian_formula():
    acquisition = MaxValueEntropySearch.for_domain(
        DOMAIN, grid_size=100, ystar_cap=-np.inf, border=0, estimator="entropy"
    )
    X, y, _ = data()
    acquisition.model.set_data(X, y, np.empty((25, 0)))
    new = np.random.default_rng(3).uniform(-1, 1, (12, 2))
    acquisition.update()
    m = acquisition.model.objective.moments(new)
    gamma = (acquisition.y_star[:, None] - m.mean) / m.std
    density = np.exp(-0.5 * gamma**2) / np.sqrt(2 * np.pi)
    expected = (-gamma * density / (2 * ndtr(-gamma)) - np.log(ndtr(-gamma))).mean(axis=0)
    np.testing.assert_allclose(-acquisition.acquisition_function(new).ravel(), expected, rtol=1e-9, atol=1e-12)


def test_constrained_mes_becomes_mes_when_feasibility_is_certain():
    X, y, _ = data()
    plain = MaxValueEntropySearch.for_domain(DOMAIN, grid_size=100)
    plain.model.set_data(X, y, np.empty((25, 0)))
    safe = ConstrainedMES.for_domain(DOMAIN, grid_size=100, feedback="real")
    safe.model.set_data(X, y, np.column_stack([-100.0 + 0.01 * X[:, 0]]))
    new = np.random.default_rng(3).uniform(-1, 1, (12, 2))
    for acquisition in (plain, safe):
        acquisition.update()
    np.testing.assert_allclose(safe.y_star, plain.y_star)
    np.testing.assert_allclose(safe.acquisition_function(new), plain.acquisition_function(new), rtol=1e-8, atol=1e-12)


def test_random_search_is_uniform_and_belongs_to_the_seed():
    acquisition = RandomSearch.for_domain(DOMAIN, seed=5)
    points = []
    for count in range(1, 400):
        acquisition.model.set_data(np.zeros((count, 2)), np.zeros(count), -np.ones((count, 1)))
        points.append(acquisition.optimize()[0][0])
        np.testing.assert_array_equal(points[-1], acquisition.optimize()[0][0])
    points = np.array(points)
    assert len(np.unique(points, axis=0)) == 399
    assert (np.abs(points.mean(axis=0)) < 4 * (1 / 3 / 399) ** 0.5).all()
    assert (np.abs(points.std(axis=0) - 3**-0.5) < 0.05).all()


def test_random_search_covers_a_finite_space_before_it_repeats():
    acquisition = RandomSearch.for_domain([{"name": "a", "type": "discrete", "domain": (0, 1, 2, 3)}])
    X = np.array([[1.0]])
    for _ in range(3):
        acquisition.model.set_data(X, X.ravel(), -np.ones((len(X), 1)))
        X = np.vstack([X, acquisition.optimize()[0]])
    assert len(np.unique(X)) == 4
    assert spaces.is_finite(acquisition.space)


WRONG = [
    (lambda: AdaptivePercentile.for_domain(DOMAIN, percentile=40), "percentile must lie between 50 and 100, got 40"),
    (lambda: MaxValueEntropySearch.for_domain(DOMAIN, feedback="binary"), "MaxValueEntropySearch knows no constraints"),
    (
        lambda: ConstrainedMES.for_domain(DOMAIN, feedback=[BinaryConstraint(str(j)) for j in range(9)]),
        "at most 8 binary",
    ),
    (
        lambda: ConstrainedMES.for_domain(DOMAIN, noise="exact", estimator="entropy"),
        "noise='exact' needs estimator='kl'",
    ),
    (
        lambda: ConstrainedMES.for_domain(DOMAIN, sampler="gumbel"),
        "sampler must be one of 'joint', 'marginal', 'pathwise'",
    ),
    (
        lambda: MaxValueEntropySearch.for_domain(DOMAIN).model.updateModel(np.zeros((1, 2)), np.array([[np.inf]])),
        "evaluation 0 failed, but the model has no constraint",
    ),
]


@pytest.mark.parametrize(("call", "message"), WRONG, ids=[m[:30] for _, m in WRONG])
def test_unsupported_combinations_are_refused(call, message):
    with pytest.raises(CMESError, match=message):
        call()
