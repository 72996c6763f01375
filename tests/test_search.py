import numpy as np
import pytest
from scipy.optimize import minimize, rosen, rosen_der

from cmes_gpyopt import CMESError, spaces
from cmes_gpyopt._gpyopt import ContextManager, Design_space
from cmes_gpyopt.search import AcquisitionSearch, minimise_from

from .conftest import MIXED_DOMAIN

SQUARE = [{"name": "x", "type": "continuous", "domain": (-1.0, 1.0), "dimensionality": 2}]


def quadratic(centre):
    def value(X):
        return ((X - centre) ** 2).sum(axis=1)[:, None]

    def both(X):
        return value(X), 2 * (X - centre)

    return value, both


def test_local_search_agrees_with_scipy_on_rosenbrock(rng):
    lower, upper = np.full(3, -1.0), np.array([0.8, 2.0, 2.0])
    starts = rng.uniform(lower, upper, (5, 3))

    def function(X, which):
        assert len(X) == len(which)
        return np.array([rosen(x) for x in X]), np.array([rosen_der(x) for x in X])

    points, values = minimise_from(function, starts, lower, upper, max_steps=300)
    expected = minimize(rosen, starts[0], jac=rosen_der, method="L-BFGS-B", bounds=list(zip(lower, upper, strict=True)))
    np.testing.assert_allclose(values, expected.fun, rtol=1e-4)
    np.testing.assert_allclose(points, np.tile(expected.x, (5, 1)), atol=2e-3)


def test_local_search_finds_optima_on_the_border_and_keeps_fixed_coordinates():
    _, both = quadratic(np.array([3.0, 0.2, -0.3]))
    starts = np.array([[0.0, 0.5, 0.5], [-0.5, -0.9, 0.5]])
    points, values = minimise_from(
        lambda X, _: (both(X)[0].ravel(), both(X)[1]), starts, np.array([-1.0, -1.0, 0.5]), np.array([1.0, 1.0, 0.5])
    )
    np.testing.assert_allclose(points, [[1.0, 0.2, 0.5]] * 2, atol=1e-5)
    np.testing.assert_allclose(values, 4.64, rtol=1e-8)


def test_local_search_never_ends_above_its_start(rng):
    def wild(X, which=None):
        return np.sin(40 * X).sum(axis=1), 40 * np.cos(40 * X)

    starts = rng.uniform(-1, 1, (20, 2))
    points, values = minimise_from(wild, starts, np.full(2, -1.0), np.full(2, 1.0))
    assert (values <= wild(starts)[0]).all()
    np.testing.assert_allclose(wild(points)[0], values)


@pytest.mark.parametrize("scale", [1e-250, 1e-160, 1.0, 1e200])
def test_local_search_does_not_depend_on_the_scale_of_the_values(scale):
    def function(X, _):
        return scale * ((X - 0.37) ** 2).sum(axis=1) - 3 * scale, 2 * scale * (X - 0.37)

    points, values = minimise_from(function, np.array([[0.8, 0.15]]), np.zeros(2), np.ones(2))
    np.testing.assert_allclose(points, 0.37, atol=1e-6)
    np.testing.assert_allclose(values, -3 * scale)


def test_search_finds_the_minimum_and_is_deterministic():
    space = Design_space(SQUARE)
    f, f_df = quadratic(np.array([0.3, -0.4]))
    x, value = AcquisitionSearch(space).optimize(f, f_df=f_df, rng=np.random.default_rng(1))
    again, _ = AcquisitionSearch(space).optimize(f, f_df=f_df, rng=np.random.default_rng(1))
    np.testing.assert_allclose(x, [[0.3, -0.4]], atol=1e-6)
    np.testing.assert_array_equal(x, again)
    assert x.shape == (1, 2)
    assert value.shape == (1, 1)


def test_search_stays_within_known_constraints():
    space = Design_space(SQUARE, [{"name": "half", "constraint": "x[:,0] - 0.1"}])
    centre = np.array([0.5, 0.0])

    def f(X):
        return np.where(spaces.inside(space, X), ((X - centre) ** 2).sum(axis=1), 1e150)[:, None]

    def f_df(X):
        return f(X), np.where(spaces.inside(space, X)[:, None], 2 * (X - centre), 0.0)

    x, _ = AcquisitionSearch(space).optimize(f, f_df=f_df)
    assert x[0, 0] <= 0.1
    np.testing.assert_allclose(x, [[0.1, 0.0]], atol=5e-3)


def test_search_rounds_mixed_spaces_and_scores_after_rounding():
    space = Design_space(MIXED_DOMAIN)

    # The continuous optimum of the second variable, 2.9, rounds to 2 although f is lower at 4.
    def f(X):
        return ((X[:, 0] - 1) ** 2 + np.where(X[:, 1] == 4, -1.0, (X[:, 1] - 2.9) ** 2) - X[:, 3])[:, None]

    def f_df(X):
        gradient = np.zeros_like(X)
        gradient[:, 0], gradient[:, 1], gradient[:, 3] = 2 * (X[:, 0] - 1), 2 * (X[:, 1] - 2.9), -1.0
        return f(X), gradient

    x, value = AcquisitionSearch(space).optimize(f, f_df=f_df)
    np.testing.assert_allclose(x, [[1.0, 4.0, 0.0, 1.0, 0.0]], atol=2e-3)
    np.testing.assert_allclose(value, f(x))


def test_search_avoids_evaluated_points_while_others_exist():
    space = Design_space([{"name": "a", "type": "discrete", "domain": (0, 1, 2, 3)}])
    f, f_df = quadratic(np.array([2.0]))
    seen = np.array([[2.0], [1.0]])
    assert AcquisitionSearch(space).optimize(f, f_df=f_df, avoid=seen)[0].item() == 3.0
    everything = np.arange(4.0)[:, None]
    assert AcquisitionSearch(space).optimize(f, f_df=f_df, avoid=everything)[0].item() == 2.0


def test_search_honours_gpyopts_duplicate_manager():
    class Everything:
        def is_unzipped_x_duplicate(self, x):
            return True

    space = Design_space([{"name": "a", "type": "discrete", "domain": (0, 1)}])
    f, f_df = quadratic(np.array([0.0]))
    with pytest.raises(CMESError, match="every point of the domain has been evaluated"):
        AcquisitionSearch(space).optimize(f, f_df=f_df, duplicate_manager=Everything())


def test_search_holds_the_context():
    space = Design_space(MIXED_DOMAIN)
    search = AcquisitionSearch(space)
    search.context_manager = ContextManager(space, {"rate": 0.7, "kind": 2})
    f, f_df = quadratic(np.array([1.5, 4.0, 1.0, 0.0, 0.0]))
    x, _ = search.optimize(f, f_df=f_df)
    np.testing.assert_array_equal(x, [[0.7, 4.0, 0.0, 0.0, 1.0]])


def test_starts_that_cannot_catch_up_are_given_up_and_the_best_is_still_found():
    """Two valleys, one of them flat and high: its start creeps along and is left where it is."""
    evaluated = [0, 0]

    def function(X, which):
        for start in which:
            evaluated[start] += 1
        high = which == 1
        value = np.where(high, 10.0 + 1e-3 * X[:, 0], ((X - 0.3) ** 2).sum(axis=1))
        gradient = np.where(high[:, None], np.array([1e-3, 0.0]), 2 * (X - 0.3))
        return value, gradient

    starts, lower, upper = np.array([[0.9, 0.9], [0.9, 0.1]]), np.zeros(2), np.ones(2)
    points, values = minimise_from(function, starts, lower, upper, best_only=True)
    np.testing.assert_allclose(points[0], 0.3, atol=1e-6)
    assert values[1] <= 10.0 + 0.9e-3
    pruned = evaluated[1]
    minimise_from(function, starts, lower, upper)
    assert pruned < evaluated[1] - pruned
