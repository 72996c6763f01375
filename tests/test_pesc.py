import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm, spearmanr

from cmes_gpyopt import BinaryConstraint, CMESError, ConstrainedBayesianOptimization, RealConstraint
from cmes_gpyopt.acquisitions.pesc import (
    MAX_SWEEPS,
    PESC,
    Sites,
    expectation_propagation,
    gate_moments,
    joint_gates,
    posterior_covariance,
)

from .conftest import central_difference, relative_error


def cube(dimension, low=0.0, high=1.0):
    return [{"name": "x", "type": "continuous", "domain": (low, high), "dimensionality": dimension}]


def fitted(X, y, C, seed=0, **options):
    C = C if C.ndim == 2 else C[:, None]
    feedback = [RealConstraint(f"c{j}") for j in range(C.shape[1])]
    acquisition = PESC.for_domain(cube(X.shape[1]), feedback=feedback, seed=seed, **{"grid_size": 200, **options})
    acquisition.model.set_data(X, y, C)
    acquisition.update()
    return acquisition


def random_problem(seed, constraints=1, **options):
    """Six points of random waves in one or two dimensions; in every third problem two values are missing."""
    rng = np.random.default_rng(seed)
    dimension = 1 + seed % 2
    X = rng.uniform(0, 1, (6, dimension))
    waves = [np.sin(X @ (4 * rng.standard_normal(dimension)) + rng.uniform(0, 6)) for _ in range(2 + constraints)]
    y = waves[0] + 0.5 * waves[1] ** 2
    C = np.column_stack(waves[2:]) + 0.5 * rng.standard_normal(constraints) - 0.3 * (constraints - 1)
    if seed % 3 == 0:
        y[4], C[5, 0] = np.nan, np.nan
    return fitted(X, y, C, seed=seed, **options), rng


def rejection_variances(acquisition, X, rng, wanted=30_000, draws=100_000, rounds=20):
    """Latent variances (1 + J, n) given the first x* by rejection, the last condition for one candidate at a time."""
    model = acquisition.model
    evaluated = model.data.X
    points = np.vstack([acquisition.x_star[:1], evaluated, X])
    count = len(evaluated)
    kept = []
    for _ in range(rounds):
        values = [g.sample(points, rng.standard_normal((len(points), draws))) for g in acquisition._latents]
        holds = np.all([c <= d for c, d in zip(values[1:], acquisition.thresholds, strict=True)], axis=0)
        better = holds & (values[0] < values[0][:, :1])  # (draws, points)
        good = holds[:, 0] & ~better[:, 1 : 1 + count].any(axis=1)
        kept.append((np.array([v[good, 1 + count :] for v in values]), better[good, 1 + count :]))
        if sum(len(b) for _, b in kept) >= wanted:
            break
    values = np.concatenate([v for v, _ in kept], axis=1)  # (1 + J, accepted, n)
    better = np.vstack([b for _, b in kept])
    return np.array([values[:, ~better[:, i], i].var(axis=1) for i in range(len(X))]).T


def compared_with_rejection(problems, constraints=1):
    """Variances by rejection, by PESC and before conditioning, and both scores, for each of ``problems`` problems."""
    result, seed = [], 0
    while len(result) < problems:
        acquisition, rng = random_problem(seed, constraints, num_samples=1)
        seed += 1
        if not len(acquisition.x_star):
            continue
        X = rng.uniform(0, 1, (25, acquisition.x_star.shape[1]))
        exact = rejection_variances(acquisition, X, rng)
        before = np.array([g.moments(X).std ** 2 for g in acquisition._latents])
        noise = np.array([[g.noise] for g in acquisition._latents])
        score = acquisition._scores(X, False)
        reference = 0.5 * np.log((before + noise) / (exact + noise)).sum(axis=0)
        found = acquisition.conditioned_variances(X)[:, 0]
        result.append((exact + noise, found + noise, before + noise, score, reference))
    return result


@pytest.mark.parametrize(("constraints", "problems"), [(1, 20), (2, 6)])
def test_conditioned_variances_and_scores_agree_with_rejection_sampling(constraints, problems):
    results = compared_with_rejection(problems, constraints)
    exact, found, before = (np.concatenate([r[i].ravel() for r in results]) for i in range(3))
    error = np.abs(found / exact - 1.0)
    moved, wrong = exact < 0.8 * before, error > 0.35
    score, reference = (np.concatenate([r[i] for r in results]) for i in (3, 4))
    ranks = [spearmanr(r[3], r[4])[0] for r in results]
    pooled = spearmanr(score, reference)[0]
    # Three standard errors of a reference score from 30,000 accepted draws.
    clear = reference > 0.02
    pooled_clear = spearmanr(score[clear], reference[clear])[0]
    print(
        f"\n{problems} problems, {constraints} constraints: error of {error.size} variances: median "
        f"{np.median(error):.4f}, 90 % {np.quantile(error, 0.9):.4f}, 99 % {np.quantile(error, 0.99):.4f}, worst "
        f"{error.max():.3f}, above 35 %: {wrong.sum()} ({(wrong & (found > exact)).sum()} too "
        f"large); of {moved.sum()} that fell by a fifth: median {np.median(error[moved]):.4f}, 90 % "
        f"{np.quantile(error[moved], 0.9):.4f}; rank correlation pooled {pooled:.4f}, of {clear.sum()} clear scores "
        f"{pooled_clear:.4f}, by problem: median {np.median(ranks):.4f}, worst {np.min(ranks):.4f}"
    )
    assert np.median(error) < 0.02
    assert np.median(error[moved]) < 0.05
    # The step for the candidate is not iterated: next to x* the exact variance falls much further (module Notes).
    assert wrong.mean() < 0.02
    assert pooled > 0.85
    assert pooled_clear > 0.95
    assert np.median(ranks) > 0.9


def test_rejection_sampling_tells_conditioned_from_plain_variances():
    exact, found, before, _, _ = compared_with_rejection(1)[0]
    moved = exact < 0.8 * before
    assert moved.any()
    assert np.abs(found / exact - 1.0)[moved].mean() < 0.3 * np.abs(before / exact - 1.0)[moved].mean()


@pytest.mark.parametrize("q", [0.0, 0.3, 0.999, 1.0])
@pytest.mark.parametrize("g", [-6.0, -0.7, 0.0, 1.3, 5.0])
def test_gate_moments_agree_with_quadrature(g, q):
    def moment(power):
        parts = ((-12.0, g, 1.0 - q), (g, 12.0, 1.0))
        return sum(w * quad(lambda t: t**power * norm.pdf(t), a, b, epsabs=1e-14)[0] for a, b, w in parts)

    with np.errstate(divide="ignore"):
        gate = gate_moments(np.array(g), np.log(q))
    mean = moment(1) / moment(0)
    assert gate.mean == pytest.approx(mean, rel=1e-6, abs=1e-12)
    assert gate.variance == pytest.approx(moment(2) / moment(0) - mean**2, rel=1e-6)


def test_gate_moments_stay_positive_far_out():
    g = np.concatenate([-np.logspace(8, -8, 40), np.logspace(-8, 8, 40)])
    for log_q in (-1e4, -1.0, -1e-12, 0.0):
        gate = gate_moments(g, log_q)
        assert np.isfinite(gate.mean).all()
        assert (gate.variance > 0).all()


def test_joint_gates_agree_with_sampling(rng):
    gates = [np.array(0.4), np.array(1.2), np.array(-0.3)]
    draws = rng.standard_normal((400_000, 3))
    kept = draws[~(draws < np.array(gates)).all(axis=1)]
    for j, gate in enumerate(joint_gates(gates)):
        assert gate.mean == pytest.approx(kept[:, j].mean(), abs=0.01)
        assert gate.variance == pytest.approx(kept[:, j].var(), abs=0.01)


def test_sites_condition_like_gaussian_observations(rng):
    root = rng.standard_normal((2, 5, 5))
    covariance, mean = root @ np.swapaxes(root, 1, 2), rng.standard_normal((2, 5))
    sites = Sites(mean[:, :3], covariance[:, :3, :3], 1e-12)
    tau, nu = rng.uniform(0.1, 3, (2, 3)), rng.standard_normal((2, 3))
    sites.move(tau, nu)
    beta, B = sites.conditioning()
    for k in range(2):
        gain = covariance[k, :, :3] @ np.linalg.inv(covariance[k, :3, :3] + np.diag(1 / tau[k]))
        expected = mean[k] + gain @ (nu[k] / tau[k] - mean[k, :3])
        cross = covariance[k, :, :3]
        np.testing.assert_allclose(mean[k] + cross @ beta[k], expected, rtol=1e-9)
        np.testing.assert_allclose(cross @ B[k] @ cross.T, gain @ cross.T, rtol=1e-9)
        np.testing.assert_allclose(sites.mean[k], expected[:3], rtol=1e-9)


def test_sites_that_leave_no_gaussian_are_refused_for_that_sample_alone():
    sites = Sites(np.zeros((2, 2)), np.tile(np.eye(2), (2, 1, 1)), 1e-12)
    sites.move(np.array([[-2.0, 0.0], [1.0, 0.0]]), np.zeros((2, 2)))
    np.testing.assert_allclose(sites.tau, [[0.0, 0.0], [1.0, 0.0]])
    np.testing.assert_allclose(sites.variance, [[1.0, 1.0], [0.5, 1.0]])


def test_expectation_propagation_is_exact_for_one_condition():
    """Feasibility of x* alone: the observed point is known to be infeasible."""
    covariance = np.diag([2.0, 1e-9])[None]
    constraint = Sites(np.array([[1.0, 5.0]]), covariance, 1e-12)
    objective = Sites(np.array([[-0.5]]), np.ones((1, 1, 1)), 1e-12)
    assert expectation_propagation(objective, [constraint], [0.0]) < MAX_SWEEPS
    gate = norm.pdf(0.5**0.5) / norm.cdf(-(0.5**0.5))
    assert constraint.mean[0, 0] == pytest.approx(1.0 - 2**0.5 * gate, abs=1e-3)
    assert constraint.variance[0, 0] == pytest.approx(2.0 * (1.0 + 0.5**0.5 * gate - gate**2), abs=1e-3)
    assert objective.tau[0, 0] == pytest.approx(0.0, abs=1e-12)


def test_posterior_covariance_is_a_block_of_the_joint_covariance(rng):
    posterior = random_problem(1)[0].model.objective.posterior
    U, V = rng.random((4, 2)), rng.random((3, 2))
    expected = posterior.joint(np.vstack([U, V]))[1][:4, 4:]
    np.testing.assert_allclose(posterior_covariance(posterior, U, V), expected, atol=1e-12)


def extreme_data(name, rng):
    X = rng.uniform(0, 1, (6, 2))
    y, c = np.sin(5 * X[:, 0]) + X[:, 1], X.sum(axis=1) - 1.0
    if name == "no data":
        return X[:0], y[:0], c[:0]
    if name == "one observation":
        return X[:1], y[:1], c[:1]
    if name == "no feasible observation":
        return X, y, np.abs(c) + 0.1
    if name == "far from feasible":
        return X, y, c + 1e6
    if name == "all feasible":
        return X, y, -np.abs(c) - 1e6
    if name == "duplicates":
        return np.vstack([X, X, X + 1e-9]), np.tile(y, 3), np.tile(c, 3)
    if name == "constant":
        return X, np.ones(6), -np.ones(6)
    if name == "objective unseen":
        return X, np.full(6, np.nan), c
    return X, y * 1e12, c * 1e-12


NAMES = ["no data", "one observation", "no feasible observation", "far from feasible", "all feasible", "duplicates"]


@pytest.mark.parametrize("name", [*NAMES, "constant", "objective unseen", "extreme units"])
def test_scores_are_finite_on_extreme_data(name, rng):
    acquisition = fitted(*extreme_data(name, rng))
    X = np.vstack([rng.uniform(0, 1, (50, 2)), acquisition.model.data.X, acquisition.x_star])
    score, gradient = acquisition._scores(X, True)
    assert score.shape == (len(X),)
    assert gradient.shape == X.shape
    assert np.isfinite(score).all()
    assert np.isfinite(gradient).all()
    assert (acquisition.conditioned_variances(X) > 0).all()


def test_without_a_feasible_path_the_score_follows_the_probability_of_feasibility(rng):
    acquisition = fitted(*extreme_data("far from feasible", rng))
    assert acquisition.x_star.shape == (0, 2)
    X = rng.uniform(0, 1, (50, 2))
    assert acquisition.conditioned_variances(X).shape == (2, 0, 50)
    score = acquisition._scores(X, False)
    log_feasible = acquisition.model.constraints[0].log_feasible(X)
    assert acquisition.model.probability_feasible(X).max() == 0.0
    assert (score > 0).all()
    assert np.array_equal(np.argsort(score), np.argsort(log_feasible))


def test_paths_without_a_feasible_point_are_dropped():
    counts = {len(random_problem(seed, num_samples=10)[0].x_star) for seed in range(40)}
    assert any(0 < count < 10 for count in counts)


def test_scores_repeat_and_do_not_depend_on_their_neighbours(rng):
    acquisition, _ = random_problem(1)
    again, _ = random_problem(1)
    X = rng.uniform(0, 1, (2000, 2))
    score = acquisition._scores(X, False)
    assert np.array_equal(score, again._scores(X, False))
    assert acquisition._scores(X[:0], False).shape == (0,)
    np.testing.assert_allclose(acquisition._scores(X[5:8], False), score[5:8], rtol=1e-8, atol=1e-10)
    assert not np.array_equal(score, fitted(*extreme_data("plain", rng), seed=1)._scores(X, False))


@pytest.mark.parametrize("seed", [0, 1])
def test_gradients_agree_with_central_differences(seed, rng):
    acquisition, _ = random_problem(seed)
    X = rng.uniform(0, 1, (30, acquisition.x_star.shape[1]))
    value, gradient = acquisition.acquisition_function_withGradients(X)
    np.testing.assert_allclose(value, acquisition.acquisition_function(X), rtol=1e-7, atol=1e-9)
    numerical = central_difference(lambda x: acquisition.acquisition_function(x).ravel(), X)
    assert relative_error(gradient, numerical) < 1e-4
    assert relative_error(1.01 * gradient, numerical) > 1e-3


@pytest.mark.parametrize(
    ("feedback", "got"),
    [
        ("binary", "BinaryConstraint"),
        ([], "none"),
        ([RealConstraint("a"), BinaryConstraint("b")], "RealConstraint, BinaryConstraint"),
    ],
)
def test_other_feedback_is_refused(feedback, got):
    sentence = f"PESC needs one or more measured constraints \\(RealConstraint\\), got {got}; pass feedback='real'"
    with pytest.raises(CMESError, match=sentence):
        PESC.for_domain(cube(2), feedback=feedback)


@pytest.mark.parametrize("option", [{"num_samples": 0}, {"grid_size": 2.5}, {"seed": -1}])
def test_invalid_options_are_refused(option):
    with pytest.raises(CMESError, match=next(iter(option))):
        PESC.for_domain(cube(2), **option)


def test_a_short_run_finds_the_constrained_optimum_of_a_simple_problem():
    """Minimum of the sum of both inputs under x1 * x2 >= 0.25: y = 1 at (0.5, 0.5)."""

    def black_box(x):
        x = np.ravel(x)
        return x.sum(), 0.25 - x[0] * x[1]

    bo = ConstrainedBayesianOptimization(
        black_box,
        cube(2),
        feedback="real",
        acquisition=PESC,
        acquisition_options={"num_samples": 5, "grid_size": 300},
        initial_design_numdata=5,
        seed=0,
    )
    bo.run_optimization(max_iter=12)
    assert len(bo.X) == 5 + 12
    assert bo.feasible.any()
    assert bo.fx_opt < 1.02


def test_suggestions_respect_known_constraints():
    acquisition = PESC.for_domain(
        cube(2), [{"name": "sum", "constraint": "x[:,0] + x[:,1] - 0.8"}], num_samples=3, grid_size=100
    )
    X = np.array([[0.1, 0.2], [0.5, 0.1], [0.2, 0.5]])
    acquisition.model.set_data(X, -X.sum(axis=1), X[:, :1] - 0.4)
    assert acquisition.optimize()[0].sum() <= 0.8


def test_a_pending_point_is_known():
    acquisition, _ = random_problem(1)
    first = acquisition.optimize()[0]
    before = acquisition._scores(first, False)
    acquisition.set_pending(first)
    acquisition.update()
    assert acquisition._scores(first, False) < 0.01 * before
    assert np.abs(acquisition.optimize()[0] - first).max() > 0.01
    acquisition.set_pending(None)
    assert np.array_equal(acquisition.optimize()[0], first)
