import logging

import mpmath
import numpy as np
import pytest
from scipy.linalg import solve
from scipy.special import log_ndtr
from scipy.stats import gamma as gamma_law
from scipy.stats import norm

from cmes_gpyopt import BinaryConstraint, CMESError, ConstrainedModel, RealConstraint
from cmes_gpyopt._gpyopt import Design_space, GPy
from cmes_gpyopt.models import latent as latent_module
from cmes_gpyopt.models import posterior as posterior_module
from cmes_gpyopt.models.ep import LogisticBernoulli, ParallelEP, logistic_moments, probit_moments, propagate
from cmes_gpyopt.models.fit import LabelEvidence, Prior, gaussian_evidence, objective
from cmes_gpyopt.models.latent import Regression
from cmes_gpyopt.models.posterior import Matern52, jittered_cholesky
from cmes_gpyopt.problems import TOY

from .conftest import central_difference, relative_error

SPACE = Design_space(list(TOY.domain))


def toy_data(rng, count):
    X = rng.uniform(-1, 1, (count, 2))
    return X, TOY.with_failures(X)


def fitted(rng, count, link="logistic"):
    X, Y = toy_data(rng, count)
    model = ConstrainedModel(SPACE, [BinaryConstraint(link=link)])
    model.updateModel(X, Y)
    return model


# --- expectation propagation ------------------------------------------------------------------------------------------


def mpmath_tilted(link, label, mean, variance):
    """Normaliser, mean and variance of link(label c) N(c; mean, variance) with 30 digits."""
    with mpmath.workdps(30):
        std = mpmath.sqrt(variance)
        cdf = {"logistic": lambda t: 1 / (1 + mpmath.exp(-t)), "probit": mpmath.ncdf}[link]

        def density(c):
            return cdf(label * c) * mpmath.npdf(c, mean, std)

        # The mass lies between the mean and the mean shifted by the variance towards the label.
        centres = [mean, mean + label * variance, mean + label * variance / 2, 0, -4, 4, -15, 15]
        ends = sorted({mpmath.mpf(c) + k * std for c in centres for k in (-12, -4, 0, 4, 12)})
        z = mpmath.quad(density, ends)
        first = mpmath.quad(lambda c: c * density(c), ends) / z
        second = mpmath.quad(lambda c: (c - first) ** 2 * density(c), ends) / z
        return float(mpmath.log(z)), float(first), float(second)


@pytest.mark.parametrize(("link", "moments"), [("logistic", logistic_moments), ("probit", probit_moments)])
def test_tilted_moments_agree_with_mpmath(link, moments):
    settings = [(1, 0.3, 1.0), (-1, 3.0, 30.0), (1, -12.0, 30.0), (1, -8.0, 4.0), (-1, 2.0, 1e-6), (1, 5.0, 400.0)]
    for label, mean, variance in settings:
        expected = mpmath_tilted(link, label, mean, variance)
        found = moments(np.array([float(label)]), np.array([mean]), np.array([variance]))
        np.testing.assert_allclose([f[0] for f in found], expected, rtol=1e-9, atol=1e-11)


def trapezoid_tilted(mean, std):
    """Moments of sigma(c) N(c; mean, std^2) by so fine a trapezoidal rule that rounding is all that is left."""
    step = min(0.25, std / 3)
    c = np.arange(mean - 14 * std, mean + 14 * std, step)
    log_density = -np.logaddexp(0.0, -c) - 0.5 * ((c - mean) / std) ** 2
    weight = np.exp(log_density - log_density.max())
    total = weight.sum()
    first = (weight * (c - mean)).sum() / total
    second = (weight * (c - mean - first) ** 2).sum() / total
    return log_density.max() + np.log(total * step / (std * np.sqrt(2 * np.pi))), mean + first, second


@pytest.mark.parametrize("std", [0.01, 0.9, 1.1, 3.0, 30.0, 1000.0])
def test_logistic_moments_are_as_accurate_for_wide_densities_as_for_narrow_ones(std):
    for mean in std * np.array([-4.0, -1.0, 0.0, 2.9, 9.0]):
        log_z, first, second = trapezoid_tilted(mean, std)
        found = logistic_moments(np.ones(1), np.array([mean]), np.array([std**2]))
        assert found.log_z[0] == pytest.approx(log_z, rel=1e-11, abs=1e-11)
        assert abs(found.mean[0] - first) < 1e-11 * second**0.5
        assert found.variance[0] == pytest.approx(second, rel=1e-11)


def test_logistic_moments_far_in_the_tail_follow_the_exponential_tilt():
    # sigma(c) = exp(c) to 40 digits here, so the tilted law is N(mean + variance, variance) exactly.
    found = logistic_moments(np.ones(1), np.array([-200.0]), np.array([100.0]))
    np.testing.assert_allclose([found.log_z[0], found.mean[0], found.variance[0]], [-150.0, -100.0, 100.0], rtol=1e-9)


def ep_problem(rng, count=40, variance=30.0):
    X = rng.random((count, 2))
    labels = np.where(((X - 0.5) ** 2).sum(axis=1) < 0.12, -1.0, 1.0)
    return X, labels, Matern52(variance, np.array([0.3, 0.5]))(X, X)


@pytest.mark.parametrize("link", ["logistic", "probit"])
def test_ep_is_at_its_fixed_point_when_it_returns(rng, link):
    _, labels, K = ep_problem(rng)
    sites = propagate(K, labels, link, tolerance=1e-10, max_sweeps=500)
    covariance = solve(np.linalg.inv(K + 1e-12 * np.eye(len(K))) + np.diag(sites.tau), np.eye(len(K)))
    mean = covariance @ sites.nu
    cavity_tau = 1 / covariance.diagonal() - sites.tau
    cavity_nu = mean / covariance.diagonal() - sites.nu
    moments = {"logistic": logistic_moments, "probit": probit_moments}[link]
    tilted = moments(labels, cavity_nu / cavity_tau, 1 / cavity_tau)
    np.testing.assert_allclose(tilted.mean, mean, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(tilted.variance, covariance.diagonal(), rtol=1e-6)


def test_ep_with_the_probit_link_agrees_with_gpy(rng):
    X, labels, _ = ep_problem(rng)
    kernel = GPy.kern.Matern52(2, variance=30.0, lengthscale=[0.3, 0.5], ARD=True)
    models = []
    for inference in (ParallelEP("probit", tolerance=1e-10), GPy.inference.latent_function_inference.EP(epsilon=1e-16)):
        state = np.random.get_state()
        models.append(
            GPy.core.GP(
                X, (labels[:, None] + 1) / 2, kernel.copy(), GPy.likelihoods.Bernoulli(), inference_method=inference
            )
        )
        np.random.set_state(state)
    ours, theirs = models
    assert ours.log_likelihood() == pytest.approx(theirs.log_likelihood(), rel=1e-6)
    for a, b in zip(ours._raw_predict(X), theirs._raw_predict(X), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_ep_evidence_of_one_label_is_exact():
    for link, expected in (("probit", log_ndtr(0.0)), ("logistic", np.log(0.5))):
        sites = propagate(np.array([[30.0]]), np.ones(1), link, tolerance=1e-12, max_sweeps=100)
        assert sites.log_evidence == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("link", ["logistic", "probit"])
def test_gradient_of_the_ep_evidence_is_the_one_at_the_fixed_point(rng, link):
    X, labels, _ = ep_problem(rng, 25)
    likelihood = LogisticBernoulli() if link == "logistic" else GPy.likelihoods.Bernoulli()
    gp = GPy.core.GP(
        X,
        (labels[:, None] + 1) / 2,
        GPy.kern.Matern52(2, variance=10.0, lengthscale=[0.3, 0.5], ARD=True),
        likelihood,
        inference_method=ParallelEP(link, tolerance=1e-12),
    )
    theta = gp.param_array.copy()

    def evidence(parameters):
        gp[:] = parameters
        return gp.log_likelihood()

    gp[:] = theta
    found = gp.gradient.copy()
    step = 1e-5
    numerical = np.array([(evidence(theta + step * e) - evidence(theta - step * e)) / (2 * step) for e in np.eye(3)])
    assert relative_error(found, numerical) < 1e-6
    assert relative_error(1.01 * found, numerical) > 1e-3


def test_ep_survives_contradicting_labels_at_one_point():
    K = np.full((20, 20), 30.0)
    labels = np.where(np.arange(20) < 7, -1.0, 1.0)
    sites = propagate(K, labels, "logistic", tolerance=1e-9, max_sweeps=300)
    assert sites.residual < 1e-9


def test_ep_converges_on_random_problems_of_every_kind(rng, caplog):
    with caplog.at_level(logging.WARNING):
        for _ in range(60):
            count, dimension = rng.integers(2, 70), rng.integers(1, 5)
            X = rng.random((count, dimension))
            X[: count // 2] = X[0] + 0.01 * rng.standard_normal((count // 2, dimension))
            labels = np.where(rng.random(count) < 0.5, -1.0, 1.0) if rng.random() < 0.3 else np.sign(X[:, 0] - 0.501)
            K = Matern52(10 ** rng.uniform(0, 3), 10 ** rng.uniform(-1.3, 0.5, dimension))(X, X)
            for link in ("logistic", "probit"):
                assert propagate(K, labels, link, tolerance=1e-10, max_sweeps=200).residual < 1e-10
    assert not caplog.records


def test_unconverged_ep_returns_sites_and_factor_that_belong_together(rng):
    _, labels, K = ep_problem(rng)
    sites = propagate(K, labels, "logistic", tolerance=1e-12, max_sweeps=3)
    root = np.sqrt(sites.tau)
    inverse = np.linalg.inv(np.eye(len(K)) + root[:, None] * K * root)
    np.testing.assert_allclose(sites.half.T @ sites.half, root[:, None] * inverse * root, rtol=1e-9, atol=1e-14)


def test_ep_that_runs_out_of_sweeps_says_so(rng, caplog):
    _, labels, K = ep_problem(rng)
    with caplog.at_level(logging.WARNING):
        propagate(K, labels, "logistic", tolerance=1e-12, max_sweeps=2)
    assert "EP stopped after 2 sweeps" in caplog.text


# --- posteriors -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("link", ["logistic", "probit"])
@pytest.mark.parametrize("count", [5, 30, 100])
def test_latent_moments_and_covariances_agree_with_gpy(rng, link, count):
    model = fitted(rng, count, link)
    X = rng.uniform(-1, 1, (60, 2))
    for latent in (model.objective, model.constraints[0]):
        U = (X + 1) / 2
        mean, variance = (a.ravel() for a in latent.gp._raw_predict(U))
        m = latent.moments(X)
        np.testing.assert_allclose(m.mean, mean, atol=1e-8)
        np.testing.assert_allclose(m.std**2, variance, atol=1e-8)
        joint_mean, covariance = latent.joint(X)
        np.testing.assert_allclose(joint_mean, mean, atol=1e-8)
        np.testing.assert_allclose(covariance, latent.gp._raw_predict(U, full_cov=True)[1].reshape(60, 60), atol=1e-8)


def test_the_mean_keeps_its_digits_when_points_cluster_and_there_is_no_noise(rng):
    X = rng.random((150, 2))
    X[75:] = 0.4 + 0.01 * rng.standard_normal((75, 2))
    latent = Regression()
    latent.fit(X, np.sin(5 * X[:, 0]) + X[:, 1] ** 2, np.zeros(2), np.ones(2))
    new = 0.4 + 0.02 * rng.standard_normal((40, 2))
    mean = latent.gp._raw_predict(new)[0].ravel()
    np.testing.assert_allclose(latent.moments(new).mean, mean, atol=1e-6)


@pytest.mark.parametrize("count", [3, 40])
def test_gradients_of_latent_moments_agree_with_central_differences(rng, count):
    model = fitted(rng, count)
    X = rng.uniform(-1, 1, (40, 2))
    for latent in (model.objective, model.constraints[0]):
        m = latent.moments(X, grad=True)
        d_mean = central_difference(lambda x, latent=latent: latent.moments(x).mean, X)
        d_std = central_difference(lambda x, latent=latent: latent.moments(x).std, X)
        np.testing.assert_allclose(m.mean, latent.moments(X).mean, rtol=1e-12, atol=1e-12)
        if np.abs(d_mean).max() > 0:
            assert relative_error(m.d_mean, d_mean) < 1e-6
            assert relative_error(1.01 * m.d_mean, d_mean) > 1e-3
        assert relative_error(m.d_std, d_std) < 1e-6
        assert relative_error(1.01 * m.d_std, d_std) > 1e-3


def test_predictions_are_in_the_units_of_the_user(rng):
    X, Y = toy_data(rng, 30)
    plain, scaled = ConstrainedModel(SPACE), ConstrainedModel(SPACE)
    plain.updateModel(X, Y)
    scaled.updateModel(X, 1e4 * Y - 300.0)
    new = rng.uniform(-1, 1, (20, 2))
    np.testing.assert_allclose(1e4 * plain.predict(new)[0] - 300.0, scaled.predict(new)[0], rtol=1e-6)
    np.testing.assert_allclose(1e4 * plain.predict(new)[1], scaled.predict(new)[1], rtol=1e-5)
    assert scaled.get_fmin() == pytest.approx(1e4 * plain.get_fmin() - 300.0, rel=1e-8)
    mean, std, d_mean, d_std = scaled.predict_withGradients(new)
    assert relative_error(d_mean, central_difference(lambda x: scaled.predict(x)[0].ravel(), new)) < 1e-5
    assert relative_error(d_std, central_difference(lambda x: scaled.predict(x)[1].ravel(), new)) < 1e-5
    assert mean.shape == std.shape == (20, 1)


def test_noise_is_learned_where_there_is_noise_and_small_where_there_is_none(rng):
    X = rng.random((80, 2))
    clean = np.sin(6 * X[:, 0]) + X[:, 1] ** 2
    quiet, noisy = Regression(), Regression()
    quiet.fit(X, clean, np.zeros(2), np.ones(2))
    noisy.fit(X, clean + 0.3 * rng.standard_normal(80), np.zeros(2), np.ones(2))
    assert np.sqrt(quiet.noise) < 1e-3
    assert 0.15 < np.sqrt(noisy.noise) * noisy.scale < 0.45


def test_fmin_is_the_best_posterior_mean_over_feasible_points(rng):
    model = fitted(rng, 40)
    data = model.data
    means = model.predict(data.X)[0].ravel()
    assert model.get_fmin() == pytest.approx(means[data.feasible].min())
    assert not data.feasible.all()


def test_a_failed_point_is_not_called_feasible_with_the_default_prior():
    point = np.array([[0.0, 0.0]])
    probabilities = []
    for prior in ((1.0, 0.5), (30.0, 0.5)):
        model = ConstrainedModel(SPACE, [BinaryConstraint(link="probit", variance_prior=prior)])
        model.set_data(point, [np.nan], [[1.0]])
        probabilities.append(model.probability_feasible(point)[0])
    # The exact posterior has 1/3 and 0.08; moment matching keeps 9 % below zero.
    np.testing.assert_allclose(probabilities, [1 / 3, 0.11], atol=0.005)


def labelled(X, labels, **options):
    model = ConstrainedModel(SPACE, [BinaryConstraint(**options)])
    model.set_data(X, np.full(len(X), np.nan), labels[:, None])
    return model.constraints[0]


@pytest.mark.parametrize(("classes", "share"), [("both", 0.5), ("feasible", 0.5), ("failed", 0.25)])
def test_a_search_sees_length_scales_limited_by_the_spacing_of_the_labels(classes, share, rng):
    X = rng.uniform(-1, 1, (40, 2))
    labels = {"both": np.where(X[:, 0] < 0, -1.0, 1.0), "feasible": -np.ones(40), "failed": np.ones(40)}[classes]
    limited, free = labelled(X, labels), labelled(X, labels, lengthscale_limit=np.inf)
    # The unit square has 40 cells of area 1/40; a length scale is at most half of a cell's diagonal.
    longest = share * np.sqrt(2.0 / 40.0)
    assert (free.exploring().posterior.kernel.lengthscales > 1.5 * longest).all()
    np.testing.assert_allclose(limited.exploring().posterior.kernel.lengthscales, longest)
    # What is recommended rests on what was learned, unless equal labels could teach nothing.
    learned = limited.posterior.kernel.lengthscales
    np.testing.assert_allclose(learned, free.posterior.kernel.lengthscales if classes == "both" else longest)
    # Further labels of the same points do not bring the others closer.
    again = labelled(np.vstack([X, X]), np.concatenate([labels, labels]))
    np.testing.assert_allclose(again.exploring().posterior.kernel.lengthscales, longest)


@pytest.mark.parametrize(
    ("limit", "message"), [(0.0, "must be positive, inf for none, got 0.0"), ("far", "must be a number")]
)
def test_a_wrong_limit_of_length_scales_gets_one_sentence(limit, message):
    with pytest.raises(CMESError, match=f"lengthscale_limit {message}"):
        BinaryConstraint(lengthscale_limit=limit)


def test_the_view_of_a_search_follows_the_data(rng):
    X = rng.uniform(-1, 1, (20, 2))
    labels = np.where(X[:, 0] < 0, -1.0, 1.0)[:, None]
    model = ConstrainedModel(SPACE)
    model.set_data(X[:15], np.full(15, np.nan), labels[:15])
    before = model.constraints[0].exploring()
    assert before is model.constraints[0].exploring()
    model.set_data(X, np.full(20, np.nan), labels)
    after = model.constraints[0].exploring()
    assert (before.posterior.size, after.posterior.size) == (15, 20)
    assert after.gp.kern.lengthscale.values == pytest.approx(after.posterior.kernel.lengthscales)
    assert model.copy().constraints[0].exploring() is not after


EXTREMES = {
    "one infeasible": ([[0.1, 0.2]], [np.nan], [[1.0]]),
    "one feasible": ([[0.1, 0.2]], [3.0], [[-1.0]]),
    "two feasible": ([[0.1, 0.2], [0.5, -0.5]], [3.0, 4.0], [[-1.0], [-1.0]]),
    "all infeasible": ([[0.1, 0.2], [0.5, -0.5], [0.9, 0.9]], [np.nan] * 3, [[1.0]] * 3),
    "duplicates": ([[0.1, 0.2]] * 4, [1.0, 1.1, np.nan, 1.0], [[-1.0], [-1.0], [1.0], [-1.0]]),
    "constant": ([[0.1, 0.2], [0.5, -0.5], [0.9, 0.9]], [7.0] * 3, [[-1.0]] * 3),
    "huge": ([[0.1, 0.2], [0.5, -0.5], [0.9, 0.9]], [1e300, -1e300, 1e299], [[-1.0]] * 3),
    "tiny": ([[0.1, 0.2], [0.5, -0.5], [0.9, 0.9]], [1e-300, 2e-300, 5e-300], [[-1.0]] * 3),
    "largest": ([[0.1, 0.2], [0.5, -0.5], [0.9, 0.9]], [1.7e308, -1.7e308, 1e299], [[-1.0]] * 3),
    "constraint unseen": ([[0.1, 0.2], [0.5, -0.5]], [1.0, 2.0], [[np.nan], [np.nan]]),
    "no data": (np.empty((0, 2)), [], np.empty((0, 1))),
}


@pytest.mark.parametrize("link", ["logistic", "probit"])
@pytest.mark.parametrize("case", EXTREMES)
def test_extreme_data_give_a_usable_posterior(case, link, rng):
    X, Y, C = EXTREMES[case]
    model = ConstrainedModel(SPACE, [BinaryConstraint(link=link)])
    model.set_data(np.array(X), np.array(Y), np.array(C))
    new = np.vstack([rng.uniform(-1, 1, (20, 2)), np.array(X)])
    for latent in (model.objective, model.constraints[0]):
        m = latent.moments(new, grad=True)
        assert all(np.isfinite(a).all() for a in (m.mean, m.std, m.d_mean, m.d_std))
        assert (m.std > 0).all()
        assert np.isfinite(latent.sample(new, rng.standard_normal((len(new), 3)))).all()
    assert ((model.probability_feasible(new) >= 0) & (model.probability_feasible(new) <= 1)).all()
    assert np.isfinite(model.get_model_parameters()).all()
    assert model.get_model_parameters().shape == (1, len(model.get_model_parameters_names())) == (1, 7)


def test_a_fit_depends_on_the_data_alone(rng):
    X, Y = toy_data(rng, 25)
    fresh, grown = ConstrainedModel(SPACE), ConstrainedModel(SPACE)
    fresh.updateModel(X, Y)
    for count in (5, 12, 25):
        grown.updateModel(X[:count], Y[:count])
    np.testing.assert_array_equal(fresh.get_model_parameters(), grown.get_model_parameters())
    np.testing.assert_array_equal(fresh.copy().get_model_parameters(), fresh.get_model_parameters())


def test_fitting_leaves_the_global_random_state_and_the_inputs_alone(rng):
    X, Y = toy_data(rng, 20)
    X_before, Y_before, state = X.copy(), Y.copy(), np.random.get_state()[1].copy()
    model = ConstrainedModel(SPACE)
    model.updateModel(X, Y)
    X[:] = np.nan
    np.testing.assert_array_equal(model.data.X, X_before)
    np.testing.assert_array_equal(Y, Y_before)
    np.testing.assert_array_equal(np.random.get_state()[1], state)


def test_a_search_that_always_fails_leaves_the_start_and_says_so(rng, caplog, monkeypatch):
    def fail(*args, **kwargs):
        raise np.linalg.LinAlgError("made to fail")

    monkeypatch.setattr("cmes_gpyopt.models.fit.minimize", fail)
    with caplog.at_level(logging.WARNING):
        prediction = fitted(rng, 20).predict(np.zeros((1, 2)))
    assert "hyperparameters stay at their start" in caplog.text
    assert np.isfinite(prediction).all()


@pytest.mark.parametrize("kind", ["values", "logistic", "probit"])
def test_the_evidence_that_is_maximised_is_gpys_with_its_gradient(rng, kind):
    model = fitted(rng, 25, "probit" if kind == "probit" else "logistic")
    latent = model.objective if kind == "values" else model.constraints[0]
    U, values = latent._data
    theta = np.log([1.7, 0.3, 0.6, 1e-3]) if kind == "values" else np.log([12.0, 0.3, 0.6])
    if kind == "values":
        evidence, prior, jitter = gaussian_evidence(values), Prior((1.0, 1.0), (3.0, 6.0), (1e-6, 3.0)), 1e-8
    else:
        evidence, prior, jitter = LabelEvidence(values, kind, 1e-11, 300), Prior((30.0, 0.5), (3.0, 6.0)), 0.0
    function = objective(U, evidence, prior, jitter)
    value, gradient = function(theta)
    gp = latent.gp
    gp[:] = np.exp(theta)
    likelihood = gp.log_likelihood() + (0.5 * len(values) * np.log(2 * np.pi) if kind == "values" else 0.0)
    assert -value - prior.log_density(theta, 2)[0] == pytest.approx(likelihood, rel=1e-7)
    numerical = np.array(
        [(function(theta + 1e-5 * e)[0] - function(theta - 1e-5 * e)[0]) / 2e-5 for e in np.eye(len(theta))]
    )
    assert relative_error(gradient, numerical) < 1e-5
    assert relative_error(1.01 * gradient, numerical) > 1e-3


def test_the_priors_are_what_they_say():
    prior = Prior((30.0, 0.5), (3.0, 6.0), (1e-6, 3.0))
    theta, other = np.log([20.0, 0.2, 0.9, 1e-5]), np.log([35.0, 0.5, 0.4, 1e-7])

    def expected(t):
        scales = gamma_law(3.0, scale=1 / 6.0).logpdf(np.exp(t[1:3])).sum() + t[1:3].sum()
        return norm(np.log(30.0), 0.5).logpdf(t[0]) + scales + norm(np.log(1e-6), 3.0).logpdf(t[3])

    difference = prior.log_density(theta, 2)[0] - prior.log_density(other, 2)[0]
    assert difference == pytest.approx(expected(theta) - expected(other))


def test_real_constraints_give_the_probability_of_their_gaussian(rng):
    X = rng.uniform(-1, 1, (30, 2))
    latency = 100.0 + 40.0 * X[:, 0]
    model = ConstrainedModel(SPACE, [RealConstraint("latency", upper=110.0)])
    model.set_data(X, X[:, 1], (latency - 110.0)[:, None])
    probability = model.probability_feasible(np.array([[-0.9, 0.0], [0.25, 0.0], [0.9, 0.0]]))
    assert probability[0] > 0.99
    assert 0.1 < probability[1] < 0.9
    assert probability[2] < 0.01
    np.testing.assert_array_equal(model.data.feasible, latency <= 110.0)


@pytest.mark.parametrize("kind", ["real", "logistic", "probit"])
def test_gradients_of_the_log_probability_of_feasibility(rng, kind):
    X = rng.uniform(-1, 1, (20, 2))
    constraint = RealConstraint() if kind == "real" else BinaryConstraint(link=kind)
    noise = 0.2 * rng.standard_normal(20)
    values = X[:, 0] - 0.3 + noise if kind == "real" else np.where(X[:, 0] < 0.3, -1.0, 1.0)
    constraint.fit(X, values, np.full(2, -1.0), np.full(2, 2.0))
    new = rng.uniform(-1, 1, (15, 2))
    value, gradient = constraint.log_feasible(new, grad=True)
    np.testing.assert_allclose(value, constraint.log_feasible(new), rtol=1e-10)
    numerical = central_difference(constraint.log_feasible, new)
    assert relative_error(gradient, numerical) < 1e-5
    assert relative_error(1.01 * gradient, numerical) > 1e-3


def test_a_covariance_that_is_not_positive_definite_gets_the_smallest_jitter_that_helps(caplog):
    U = np.linspace(0, 1, 400)[:, None]
    covariance = Matern52(1.0, np.array([3.0]))(U, U)
    with caplog.at_level(logging.DEBUG):
        factor = jittered_cholesky(covariance - 1e-9 * np.eye(400), 1.0)
    assert "needed jitter" in caplog.text
    np.testing.assert_allclose(factor @ factor.T, covariance, atol=1e-6)
    with pytest.raises(np.linalg.LinAlgError, match="not positive definite even with jitter"):
        jittered_cholesky(-np.eye(3), 1.0)


def test_the_variance_floor_does_not_change_results(rng, monkeypatch):
    model = fitted(rng, 40)
    X = np.vstack([rng.uniform(-1, 1, (30, 2)), model.data.X])
    before = model.objective.moments(X).std
    monkeypatch.setattr(posterior_module, "VARIANCE_FLOOR", 1e-12)
    np.testing.assert_allclose(model.objective.moments(X).std, before, rtol=1e-10)


@pytest.mark.parametrize("which", ["objective", "constraint"])
def test_conditioning_on_values_is_the_formula_for_gaussians(rng, which):
    model = fitted(rng, 20)
    latent = model.objective if which == "objective" else model.constraints[0]
    pending, new = rng.uniform(-1, 1, (3, 2)), rng.uniform(-1, 1, (10, 2))
    values = rng.standard_normal((4, 3))
    mean, covariance = latent.joint(np.vstack([new, pending]))
    gain = solve(covariance[10:, 10:], covariance[10:, :10], assume_a="pos").T
    m = latent.conditioned(pending, values).moments(new)
    np.testing.assert_allclose(m.mean, mean[:10] + (values - mean[10:]) @ gain.T, atol=1e-7)
    expected = covariance[:10, :10] - gain @ covariance[10:, :10]
    np.testing.assert_allclose(m.std**2, expected.diagonal(), rtol=1e-5, atol=1e-9)
    single = latent.conditioned(pending, values[1])
    np.testing.assert_allclose(single.moments(new).mean, m.mean[1], atol=1e-10)
    np.testing.assert_allclose(single.joint(new)[1], expected, atol=1e-8)
    believed = latent.conditioned(pending)
    np.testing.assert_allclose(believed.moments(new).mean, latent.moments(new).mean, atol=1e-8)
    np.testing.assert_allclose(latent.conditioned(pending, values).moments(pending).mean, values, atol=1e-4)


# --- the boundary -----------------------------------------------------------------------------------------------------


def test_wrong_data_get_a_sentence_and_leave_the_model_as_it_was(rng):
    model = fitted(rng, 10)
    before = model.data
    X, Y = toy_data(rng, 10)
    wrong = [
        (lambda: model.updateModel(np.full((3, 2), np.nan), np.ones((3, 1))), "X must be finite, row 0"),
        (lambda: model.updateModel(X, np.where(np.arange(10) == 2, -np.inf, 1.0)), "normalize_Y=False"),
        (lambda: model.updateModel(X[:, :1], Y), "expected X of shape"),
        (lambda: model.set_data(X, np.zeros(10), np.zeros((10, 1))), "labels of 'feasible' must be -1"),
        (lambda: model.set_data(X, np.full(10, np.inf), np.ones((10, 1))), "must be finite, or nan"),
        (lambda: BinaryConstraint(link="cauchit"), "link must be 'logistic' or 'probit', got 'cauchit'"),
        (lambda: RealConstraint("size", upper=np.inf), "needs a finite upper limit"),
        (lambda: ConstrainedModel(SPACE, [RealConstraint(), RealConstraint()]), "different names"),
        (lambda: ConstrainedModel(SPACE, [RealConstraint()]).updateModel(X, Y), "one binary constraint"),
        (lambda: ConstrainedModel(SPACE).predict(X), "has no data yet"),
    ]
    for call, message in wrong:
        with pytest.raises(CMESError, match=message):
            call()
        assert model.data is before


def test_values_that_change_between_updates_are_noticed(rng):
    X, Y = toy_data(rng, 10)
    Y[:] = np.arange(10.0)[:, None]
    model = ConstrainedModel(SPACE)
    model.updateModel(X[:9], Y[:9] - Y[:9].mean())
    with pytest.raises(
        CMESError, match="observation 0 changed from -4 to -4.5 since the last update; pass normalize_Y=False"
    ):
        model.updateModel(X, Y - Y.mean())


def label_data(count, dimension=2):
    X = np.random.default_rng(8).random((count, dimension))
    return X, np.where(np.sin(5 * X).sum(axis=1) < 0.9, -1.0, 1.0)


def fitted_labels(X, labels, constraint=None):
    constraint = constraint or BinaryConstraint()
    constraint.fit(X, labels, np.zeros(X.shape[1]), np.ones(X.shape[1]))
    return constraint


def test_hyperparameters_of_labels_are_kept_between_two_learnings_and_depend_on_the_data_alone(monkeypatch):
    X, labels = label_data(64)
    searched = []
    real = latent_module.search
    monkeypatch.setattr(latent_module, "search", lambda f, s, d, k: searched.append(1) or real(f, s, d, k))
    growing = BinaryConstraint()
    found = {}
    for count in range(57, 65):
        found[count] = fitted_labels(X[:count], labels[:count], growing).posterior
    assert len(searched) == 2  # for 57 and 63, and none in between
    for count, posterior in found.items():
        fresh = fitted_labels(X[:count], labels[:count]).posterior
        np.testing.assert_array_equal(posterior.weights, fresh.weights)
        np.testing.assert_array_equal(posterior.half, fresh.half)
    always = BinaryConstraint(relearn=0)
    searched.clear()
    for count in range(57, 65):
        fitted_labels(X[:count], labels[:count], always)
        assert always.posterior.size == count
    assert len(searched) == 8
    np.testing.assert_allclose(always.posterior.kernel.lengthscales, found[64].kernel.lengthscales, rtol=0.3)
    with pytest.raises(CMESError, match="relearn must lie between 0 and 1"):
        BinaryConstraint(relearn=2)


@pytest.mark.parametrize("binary", [True, False])
def test_a_search_that_starts_on_a_part_of_many_data_ends_where_the_whole_search_does(binary, monkeypatch):
    X, labels = label_data(200)
    values = labels if binary else np.sin(3 * X).sum(axis=1)
    kernels = []
    for many in (latent_module.MANY, 10**6):
        monkeypatch.setattr(latent_module, "MANY", many)
        model = BinaryConstraint() if binary else Regression()
        kernels.append(fitted_labels(X, values, model).posterior.kernel)
    np.testing.assert_allclose(kernels[0].lengthscales, kernels[1].lengthscales, rtol=0.02)


def test_a_function_whose_data_did_not_change_is_not_fitted_again():
    X, labels = label_data(20)
    constraint = fitted_labels(X, labels)
    before = constraint.posterior
    assert fitted_labels(X, labels, constraint).posterior is before
    assert fitted_labels(X, -labels, constraint).posterior is not before


def test_ep_does_not_run_in_circles_when_an_extrapolated_step_goes_wrong(caplog):
    # Nine failures in a corner that the first search, on every second point, does not see.
    rng = np.random.default_rng(2)
    X, labels = rng.random((200, 2)), -np.ones(200)
    rows = rng.choice(np.arange(1, 200, 2), 9, replace=False)
    X[rows], labels[rows] = 0.5 + 0.08 * rng.standard_normal((9, 2)), 1.0
    with caplog.at_level(logging.WARNING):
        assert fitted_labels(X, labels, BinaryConstraint(relearn=0)).posterior.size == 200
    assert "EP stopped" not in caplog.text


def test_a_search_that_fails_on_many_labels_leaves_a_usable_fit(monkeypatch, caplog):
    def fail(*arguments):
        raise np.linalg.LinAlgError("no search succeeded")

    monkeypatch.setattr(latent_module, "search", fail)
    X, labels = label_data(200)
    with caplog.at_level(logging.WARNING):
        assert np.isfinite(fitted_labels(X, labels).posterior.weights).all()
    assert "stay at their start" in caplog.text


def test_a_conditioned_copy_that_is_fitted_forgets_what_it_was_conditioned_on():
    X, labels = label_data(20)
    copy = fitted_labels(X, labels).conditioned(np.array([[0.5, 0.5]]), np.array([1.0]))
    assert copy.posterior.size == 21
    assert fitted_labels(X, labels, copy).posterior.size == 20


def test_a_doubted_function_is_the_posterior_of_gpy_with_shorter_length_scales(rng):
    U = rng.uniform(0, 1, (30, 2))
    values = np.sin(6 * U).sum(axis=1) + 0.3 * rng.standard_normal(30)
    function = Regression()
    function.fit(U, values, np.zeros(2), np.ones(2))
    doubted = function.doubted(3)  # before anything else was asked of the function
    kernel, noise = function.posterior.kernel, function.noise
    assert noise > 1e-3
    gpy_kernel = GPy.kern.Matern52(2, kernel.variance, kernel.lengthscales * 30 / 33, ARD=True)
    standardised = (values - function.offset) / function.scale
    gp = GPy.models.GPRegression(U, standardised[:, None], gpy_kernel, noise_var=noise)
    X = rng.uniform(0, 1, (20, 2))
    mean, variance = gp.predict_noiseless(X)
    before, found = function.moments(X), doubted.moments(X)
    np.testing.assert_allclose(found.mean, mean.ravel(), rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(found.std, np.sqrt(variance.ravel()), rtol=1e-5)
    assert doubted.noise == noise
    assert not np.allclose(found.mean, before.mean, atol=1e-3)
    np.testing.assert_allclose(function.gp.kern.lengthscale, kernel.lengthscales)
    np.testing.assert_allclose(function.doubted(3).gp.kern.lengthscale, kernel.lengthscales * 30 / 33)
    np.testing.assert_array_equal(function.moments(X).mean, before.mean)
    assert function.doubted(0) is function


@pytest.mark.parametrize("values", [[], [1.5], [2.0, 2.0, 2.0]])
def test_there_is_nothing_to_doubt_where_nothing_was_learned(values, rng):
    function = Regression()
    function.fit(rng.uniform(-1, 1, (len(values), 2)), np.array(values), np.full(2, -1.0), np.full(2, 2.0))
    assert function.doubted(4) is function
