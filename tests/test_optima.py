import numpy as np
import pytest
from scipy.special import ndtr
from scipy.stats import ks_2samp

from cmes_gpyopt import BinaryConstraint, ConstrainedModel, RealConstraint, spaces
from cmes_gpyopt._gpyopt import Design_space
from cmes_gpyopt.optima import candidate_grid, joint_optima, marginal_optima, pathwise_optima
from cmes_gpyopt.problems import TOY

from .conftest import MIXED_DOMAIN, central_difference, relative_error

SPACE = Design_space(list(TOY.domain))
DRAWS = 4000


@pytest.fixture(scope="module")
def model():
    rng = np.random.default_rng(5)
    X = rng.uniform(-1, 1, (18, 2))
    model = ConstrainedModel(SPACE)
    model.updateModel(X, TOY.with_failures(X))
    return model


@pytest.fixture(scope="module")
def grid(model):
    return candidate_grid(SPACE, 150, model.data.X, np.random.default_rng(1))


def gpy_draws(latent, X, rng):
    """Direct draws (K, m) from GPy's own posterior, by an eigendecomposition rather than a Cholesky factor."""
    mean, covariance = latent.gp._raw_predict((X + 1) / 2, full_cov=True)
    values, vectors = np.linalg.eigh(covariance.reshape(len(X), len(X)))
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    return mean.ravel() + rng.standard_normal((DRAWS, len(X))) @ root.T


def test_draws_of_the_optimum_follow_the_law_of_direct_draws_from_gpy(model, grid):
    found = joint_optima(model.objective, model.constraints, [0.0], grid, DRAWS, np.random.default_rng(2)).y_star
    rng = np.random.default_rng(3)
    y, c = gpy_draws(model.objective, grid, rng), gpy_draws(model.constraints[0], grid, rng)
    expected = np.where(c <= 0.0, y, np.inf).min(axis=1)
    assert ks_2samp(found, expected).pvalue > 0.01
    assert ks_2samp(found + 0.2, expected).pvalue < 1e-6


def test_marginal_moments_of_the_draws_are_those_of_the_posterior(model, grid):
    for latent in (model.objective, model.constraints[0]):
        draws = latent.sample(grid, np.random.default_rng(4).standard_normal((len(grid), DRAWS)))
        m = latent.moments(grid)
        assert (np.abs(draws.mean(axis=0) - m.mean) / m.std).max() < 4.5 * DRAWS**-0.5
        assert np.abs(draws.std(axis=0) / m.std - 1).max() < 4.5 * (2 * DRAWS) ** -0.5
        mean, covariance = latent.joint(grid)
        correlation = np.corrcoef(draws.T) - covariance / np.sqrt(
            np.outer(covariance.diagonal(), covariance.diagonal())
        )
        assert np.abs(correlation).max() < 5.5 * DRAWS**-0.5
        np.testing.assert_allclose(mean, m.mean, atol=1e-10)


def test_a_stricter_threshold_never_lowers_the_optimum(model, grid):
    strict, lax = (
        joint_optima(model.objective, model.constraints, [t], grid, 50, np.random.default_rng(2), tolerance=0).y_star
        for t in (-2.0, 2.0)
    )
    assert (strict >= lax).all()
    assert (strict > lax).any()


def test_the_optimum_is_infinite_where_nothing_is_feasible():
    model = ConstrainedModel(SPACE)
    X = np.random.default_rng(0).uniform(-1, 1, (30, 2))
    model.set_data(X, np.full(30, np.nan), np.ones((30, 1)))
    found = joint_optima(model.objective, model.constraints, [-30.0], X, 40, np.random.default_rng(2)).y_star
    assert np.isposinf(found).all()


def test_several_constraints_must_all_hold(model, grid):
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (25, 2))
    both = ConstrainedModel(SPACE, [BinaryConstraint("crash"), RealConstraint("size")])
    both.set_data(X, X[:, 0], np.column_stack([np.where(X[:, 0] > -0.5, -1.0, 1.0), X[:, 1]]))
    thresholds = [c.threshold(0.5) for c in both.constraints]
    pair, one = (
        joint_optima(
            both.objective, both.constraints[:j], thresholds[:j], grid, 64, np.random.default_rng(2), tolerance=0
        ).y_star
        for j in (2, 1)
    )
    assert (pair >= one).all()
    assert (pair > one).mean() > 0.5


def test_blocks_drawn_one_after_the_other_are_one_joint_draw(model, grid):
    for latent in (model.objective, model.constraints[0]):
        order = np.random.default_rng(6).permutation(len(grid))
        normals = np.random.default_rng(7).standard_normal((len(grid), 5))
        mean, covariance = latent.joint(grid[order])
        covariance[np.diag_indices_from(covariance)] += 1e-9 * latent.posterior.kernel.variance
        expected = mean + (np.linalg.cholesky(covariance) @ normals[order]).T
        draws, found, left = latent.draws(grid, normals), [], np.arange(len(grid))
        for block in np.array_split(order, 6):
            found.append(draws.draw(np.array([int(np.flatnonzero(left == row)[0]) for row in block])))
            left = left[~np.isin(left, block)]
        assert draws.std.size == 0
        np.testing.assert_allclose(np.hstack(found), expected, atol=1e-3 * latent.posterior.kernel.variance**0.5)


@pytest.mark.parametrize("distance", [0.0, 1e-12, 1e-9, 1e-8, 1e-7, 1e-6, 1e-4])
def test_draws_of_points_that_nearly_coincide_do_not_turn_rounding_into_values(model, distance):
    """Pivots that are rounding alone once spoilt everything drawn after them."""
    rng = np.random.default_rng(3)
    centres = rng.uniform(-0.9, 0.9, (12, 2))
    crowd = (centres[:, None] + distance * rng.standard_normal((12, 8, 2))).reshape(-1, 2)
    grid = rng.permutation(np.vstack([crowd, rng.uniform(-1, 1, (300, 2))]))
    for latent in (model.objective, model.constraints[0]):
        draws, scale = latent.draws(grid, rng.standard_normal((len(grid), 6))), latent.posterior.kernel.variance**0.5
        m, left, found = latent.moments(grid), np.arange(len(grid)), np.full((6, len(grid)), np.nan)
        while len(left):
            rows = np.arange(len(left))[-40:]
            found[:, left[rows]] = draws.draw(rows)
            left = left[:-40]
            assert draws._variance.min(initial=0.0) > -1e-8 * scale**2
        assert np.abs((found - m.mean) / m.std).max() < 6
        for centre in centres:
            near = np.abs(grid - centre).max(axis=1) < 1e-3
            assert np.ptp(found[:, near], axis=1).max() < 1e-2 * scale


def test_moments_between_two_blocks_are_conditional_on_what_was_drawn(model, grid):
    latent, normals = model.objective, np.random.default_rng(7).standard_normal((len(grid), 3))
    draws = latent.draws(grid, normals)
    rows = np.arange(0, 40)
    values = draws.draw(rows)
    expected = latent.conditioned(grid[rows], values).moments(grid[40:])
    np.testing.assert_allclose(draws.mean, expected.mean, atol=1e-6)
    np.testing.assert_allclose(draws.std, expected.std, atol=1e-6)
    draws.keep(np.array([7, 3]))
    np.testing.assert_allclose(draws.mean, expected.mean[:, [7, 3]], atol=1e-6)


def test_points_left_out_change_no_more_draws_than_the_union_bound_allows(model):
    grid = candidate_grid(SPACE, 1000, model.data.X, np.random.default_rng(1))

    def draws(tolerance):
        # The same normals belong to the same points, and what is drawn is drawn in the same order.
        return np.concatenate(
            [
                joint_optima(
                    model.objective,
                    model.constraints,
                    [0.0],
                    grid,
                    10,
                    np.random.default_rng(seed),
                    tolerance=tolerance,
                ).y_star
                for seed in range(60)
            ]
        )

    def changed(tolerance):
        # Sums over matrices of other sizes may be rounded in another way; a point that was missed changes far more.
        difference = np.abs(draws(tolerance) - whole)
        assert not ((difference > 1e-9) & (difference < 1e-7)).any()
        return (difference >= 1e-7).mean()

    whole = draws(1e-300)
    assert 0 < changed(0.1) <= 0.1
    assert changed(1e-3) <= 0.01
    assert changed(50.0) > 0.2  # a bound this loose leaves out points that matter


def test_the_grid_holds_the_evaluated_points_once(model):
    grid = candidate_grid(SPACE, 64, np.vstack([model.data.X, model.data.X[:3]]), np.random.default_rng(0))
    assert len(grid) == 64 + len(model.data.X)
    assert spaces.is_row_of(model.data.X, grid).all()


def test_a_small_finite_space_is_its_own_grid():
    space = Design_space(MIXED_DOMAIN[1:])
    grid = candidate_grid(space, 500, np.array([[1.0, 1.0, 0.0, 0.0]]), np.random.default_rng(0))
    assert len(grid) == 12


# --- marginal and pathwise sampling -----------------------------------------------------------------------------------


def test_marginal_draws_follow_the_minimum_of_independent_values(model, grid):
    found = marginal_optima(model.objective, model.constraints, [0.0], grid, DRAWS, np.random.default_rng(2)).y_star
    rng = np.random.default_rng(3)
    m, c = model.objective.moments(grid), model.constraints[0].moments(grid)
    y = m.mean + m.std * rng.standard_normal((DRAWS, len(grid)))
    latent = c.mean + c.std * rng.standard_normal((DRAWS, len(grid)))
    expected = np.where(latent <= 0.0, y, np.inf).min(axis=1)
    assert ks_2samp(found, expected).pvalue > 0.01
    assert ks_2samp(found + 0.1, expected).pvalue < 1e-6


def test_marginal_draws_are_infinite_as_often_as_independent_values_are_all_infeasible():
    few = ConstrainedModel(SPACE)
    X = np.random.default_rng(0).uniform(-1, 1, (3, 2))
    few.set_data(X, np.full(3, np.nan), np.ones((3, 1)))
    found = marginal_optima(few.objective, few.constraints, [0.0], X, DRAWS, np.random.default_rng(2)).y_star
    c = few.constraints[0].moments(X)
    expected = np.prod(1 - ndtr(-c.mean / c.std))
    assert np.isposinf(found).mean() == pytest.approx(expected, abs=4 * DRAWS**-0.5)


def test_marginal_draws_run_away_as_the_grid_grows_and_joint_draws_settle(model):
    means = {"joint": [], "marginal": []}
    for size in (64, 256, 1024):
        points = candidate_grid(SPACE, size, model.data.X, np.random.default_rng(1))
        for name, sampler in (("joint", joint_optima), ("marginal", marginal_optima)):
            means[name].append(
                sampler(model.objective, model.constraints, [0.0], points, 300, np.random.default_rng(0)).y_star.mean()
            )
    assert np.diff(means["marginal"]).max() < -0.15
    assert abs(np.diff(means["joint"])[-1]) < 0.5 * abs(np.diff(means["marginal"])[-1])


@pytest.mark.parametrize("which", ["objective", "constraint"])
def test_moments_of_sample_paths_are_those_of_the_exact_posterior(model, which):
    latent = model.objective if which == "objective" else model.constraints[0]
    X = np.random.default_rng(8).uniform(-1, 1, (50, 2))
    values = np.vstack([latent.paths(250, np.random.default_rng(seed))(X) for seed in range(16)])
    mean, covariance = latent.joint(X)
    prior = np.sqrt(latent.posterior.kernel.variance)
    assert np.abs(values.mean(axis=0) - mean).max() < 4.5 * prior * len(values) ** -0.5
    tolerance = 5 * prior**2 * (len(values) ** -0.5 + (16 * 1024) ** -0.5)
    assert np.abs(np.cov(values.T) - covariance).max() < tolerance


def test_paths_pass_through_noise_free_data_and_their_gradients_are_right(model):
    paths = model.objective.paths(4, np.random.default_rng(0))
    U, targets = model.objective._data
    seen = model.data.X[np.isfinite(model.data.Y)]
    np.testing.assert_allclose(paths(seen), np.tile(targets, (4, 1)), atol=0.02)
    X = np.random.default_rng(1).uniform(-1, 1, (12, 2))
    which = np.arange(12) % 4
    value, gradient = paths.at(X, which)
    np.testing.assert_allclose(value, paths(X)[which, np.arange(12)], rtol=1e-9, atol=1e-9)
    numerical = central_difference(lambda x: paths.at(x, which)[0], X)
    assert relative_error(gradient, numerical) < 1e-6
    assert relative_error(1.01 * gradient, numerical) > 1e-3
    assert len(U) == len(seen)


def cube_model(dimension):
    space = Design_space([{"name": "x", "type": "continuous", "domain": (-1.0, 1.0), "dimensionality": dimension}])
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (40, dimension))
    labels = np.where(X.sum(axis=1) < 0.2, -1.0, 1.0)
    model = ConstrainedModel(space, [BinaryConstraint("sum"), RealConstraint("first")])
    model.set_data(X, ((X - 0.3) ** 2).sum(axis=1), np.column_stack([labels, X[:, 0] - 0.5]))
    return space, model


@pytest.mark.parametrize("dimension", [6, 12])
def test_paths_find_lower_optima_than_a_grid_in_many_dimensions_and_never_infeasible_ones(dimension):
    space, model = cube_model(dimension)
    thresholds = [c.threshold(0.5) for c in model.constraints]
    grid = candidate_grid(space, 2000, model.data.X, np.random.default_rng(1))
    joint = joint_optima(model.objective, model.constraints, thresholds, grid, 20, np.random.default_rng(2)).y_star
    rng = np.random.default_rng(2)
    y_star, x_star, *_ = pathwise_optima(model.objective, model.constraints, thresholds, grid, 20, rng, space)
    assert y_star.mean() < joint.mean() - 0.3
    assert (np.abs(x_star) <= 1).all()
    rng = np.random.default_rng(2)  # the same paths again
    y = model.objective.paths(20, rng)
    limits = [c.paths(20, rng) for c in model.constraints]
    own = np.arange(20)
    np.testing.assert_allclose(y.at(x_star, own)[0], y_star)
    for path, threshold in zip(limits, thresholds, strict=True):
        assert (path.at(x_star, own)[0] <= threshold).all()


def test_paths_agree_with_a_dense_grid_in_one_dimension():
    space, model = cube_model(1)
    thresholds = [c.threshold(0.5) for c in model.constraints]
    grid = np.linspace(-1, 1, 40)[:, None]
    y_star, *_ = pathwise_optima(
        model.objective, model.constraints, thresholds, grid, 30, np.random.default_rng(2), space
    )
    rng = np.random.default_rng(2)
    dense = np.linspace(-1, 1, 4001)[:, None]
    y = model.objective.paths(30, rng)(dense)
    for constraint, threshold in zip(model.constraints, thresholds, strict=True):
        y[constraint.paths(30, rng)(dense) > threshold] = np.inf
    np.testing.assert_allclose(y_star, y.min(axis=1), atol=0.02)


def test_paths_respect_mixed_spaces_and_known_constraints():
    known = [{"name": "edge", "constraint": "x[:,0] - 1.5"}]
    space = Design_space(MIXED_DOMAIN, known)
    grid = candidate_grid(space, 100, np.empty((0, 5)), np.random.default_rng(0))
    model = ConstrainedModel(space)
    model.set_data(grid[:10], -grid[:10, 0], -np.ones((10, 1)))
    y_star, x_star, *_ = pathwise_optima(
        model.objective, model.constraints, [0.0], grid, 10, np.random.default_rng(2), space
    )
    found = x_star[np.isfinite(y_star)]
    np.testing.assert_array_equal(spaces.round_points(space, found), found)
    assert (found[:, 0] <= 1.5).all()
    assert len(found) > 3
