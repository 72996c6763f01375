import numpy as np
import pytest

from cmes_gpyopt import CMESError, spaces
from cmes_gpyopt._gpyopt import Design_space

from .conftest import MIXED_DOMAIN

DISC = [{"name": "disc", "constraint": "x[:,0]**2 + x[:,1]**2 - 1"}]
SQUARE = [{"name": "x", "type": "continuous", "domain": (-1.0, 1.0), "dimensionality": 2}]
ARMS = np.array([[0.0, 1.0], [2.0, 3.0], [0.5, 0.5]])
SPACES = {
    "square": Design_space(SQUARE),
    "disc": Design_space(SQUARE, DISC),
    "mixed": Design_space(MIXED_DOMAIN),
    "mixed, constrained": Design_space(MIXED_DOMAIN, [{"name": "c", "constraint": "x[:,0] * x[:,1] - 3 - x[:,2]"}]),
    "discrete": Design_space(
        [{"name": "a", "type": "discrete", "domain": (0, 1, 5)}, {"name": "b", "type": "categorical", "domain": (0, 1)}]
    ),
    "bandit": Design_space([{"name": "arm", "type": "bandit", "domain": ARMS}]),
    "line": Design_space([{"name": "x", "type": "continuous", "domain": (3.0, 5.0)}]),
}


@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize("draw", [spaces.sobol_points, spaces.random_points])
def test_points_are_allowed_and_within_known_constraints(name, draw, rng):
    space = SPACES[name]
    X = draw(space, 50, rng)
    np.testing.assert_array_equal(spaces.round_points(space, X), X)
    assert spaces.inside(space, X).all()
    assert X.shape[1] == space.model_dimensionality
    assert len(X) == (50 if draw is spaces.random_points or not spaces.is_finite(space) else len(np.unique(X, axis=0)))


@pytest.mark.parametrize("name", SPACES)
def test_the_way_to_the_objective_space_and_back_is_gpyopts(name, rng):
    space = SPACES[name]
    X = spaces.random_points(space, 20, rng)
    Z = spaces.to_objective(space, X)
    np.testing.assert_array_equal(Z, space.zip_inputs(X))
    np.testing.assert_array_equal(spaces.to_model(space, Z), X)


@pytest.mark.parametrize("name", SPACES)
def test_rounding_is_gpyopts_point_by_point(name, rng):
    space = SPACES[name]
    lower, width = spaces.box(space)
    X = lower + width * rng.uniform(-0.2, 1.2, (40, len(lower)))
    np.testing.assert_allclose(spaces.round_points(space, X), np.vstack([_gpyopt_round(space, x) for x in X]))


def _gpyopt_round(space, x):
    if space._has_bandit():  # GPyOpt's own rounding of bandits nests its result
        return np.ravel(space.space_expanded[0].round(x))
    return space.round_optimum(x)


def test_finite_spaces_are_enumerated_once():
    X = spaces.all_points(SPACES["discrete"], 100)
    assert X.shape == (6, 3)
    assert len(np.unique(X, axis=0)) == 6
    assert spaces.all_points(SPACES["discrete"], 5) is None
    assert spaces.all_points(SPACES["mixed"], 10**9) is None
    np.testing.assert_array_equal(spaces.all_points(SPACES["bandit"], 10), ARMS)


def test_sobol_points_fill_the_space_evenly_and_follow_the_generator():
    a, b, c = (spaces.sobol_points(SPACES["square"], 1024, np.random.default_rng(s)) for s in (1, 1, 2))
    np.testing.assert_array_equal(a, b)
    assert not np.array_equal(a, c)
    counts, *_ = np.histogram2d(*a.T, bins=8, range=[(-1, 1)] * 2)
    assert (counts == 16).all()


def test_constraints_that_nothing_satisfies_are_reported(rng):
    space = Design_space(SQUARE, [{"name": "never", "constraint": "x[:,0]**2 + 1"}])
    with pytest.raises(CMESError, match="none of 512 Sobol points satisfies the known constraints"):
        spaces.sobol_points(space, 8, rng)
    with pytest.raises(CMESError, match="satisfy the known constraints"):
        spaces.random_points(space, 8, rng)


def test_a_region_too_small_for_sobol_points_is_searched_around_what_is_known(rng):
    space = Design_space(SQUARE, [{"name": "speck", "constraint": "(x[:,0]-.3)**2 + (x[:,1]-.3)**2 - 1e-5"}])
    inside = np.array([[0.3, 0.3], [0.301, 0.3]])
    np.testing.assert_array_equal(spaces.sobol_points(space, 8, rng, fallback=inside), inside)
    assert spaces.inside(space, spaces.clouds(space, inside, rng)).all()


def test_rows_are_recognised_whatever_the_sign_of_zero():
    found = spaces.is_row_of(np.array([[0.0, 1.0], [-0.0, 1.0], [2.0, 1.0]]), np.array([[-0.0, 1.0]]))
    np.testing.assert_array_equal(found, [True, True, False])
    assert not spaces.is_row_of(np.ones((2, 2)), np.empty((0, 2))).any()
