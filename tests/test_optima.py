import numpy as np
import pytest
from scipy.stats import ks_2samp

from cmes_gpyopt import BinaryConstraint, ConstrainedModel, RealConstraint, spaces
from cmes_gpyopt._gpyopt import Design_space
from cmes_gpyopt.optima import candidate_grid, joint_optima
from cmes_gpyopt.problems import TOY

from .conftest import MIXED_DOMAIN

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
    found = joint_optima(model.objective, model.constraints, [0.0], grid, DRAWS, np.random.default_rng(2))
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
        joint_optima(model.objective, model.constraints, [t], grid, 50, np.random.default_rng(2)) for t in (-2.0, 2.0)
    )
    assert (strict >= lax).all()
    assert (strict > lax).any()


def test_the_optimum_is_infinite_where_nothing_is_feasible():
    model = ConstrainedModel(SPACE)
    X = np.random.default_rng(0).uniform(-1, 1, (30, 2))
    model.set_data(X, np.full(30, np.nan), np.ones((30, 1)))
    found = joint_optima(model.objective, model.constraints, [-30.0], X, 40, np.random.default_rng(2))
    assert np.isposinf(found).all()


def test_several_constraints_must_all_hold(model, grid):
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (25, 2))
    both = ConstrainedModel(SPACE, [BinaryConstraint("crash"), RealConstraint("size")])
    both.set_data(X, X[:, 0], np.column_stack([np.where(X[:, 0] > -0.5, -1.0, 1.0), X[:, 1]]))
    thresholds = [c.threshold(0.5) for c in both.constraints]
    pair = joint_optima(both.objective, both.constraints, thresholds, grid, 64, np.random.default_rng(2))
    one = joint_optima(both.objective, both.constraints[:1], thresholds[:1], grid, 64, np.random.default_rng(2))
    assert (pair >= one).all()
    assert (pair > one).mean() > 0.5


def test_the_grid_holds_the_evaluated_points_once(model):
    grid = candidate_grid(SPACE, 64, np.vstack([model.data.X, model.data.X[:3]]), np.random.default_rng(0))
    assert len(grid) == 64 + len(model.data.X)
    assert spaces.is_row_of(model.data.X, grid).all()


def test_a_small_finite_space_is_its_own_grid():
    space = Design_space(MIXED_DOMAIN[1:])
    grid = candidate_grid(space, 500, np.array([[1.0, 1.0, 0.0, 0.0]]), np.random.default_rng(0))
    assert len(grid) == 12
