import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import ndtr
from scipy.stats import ks_2samp

from cmes_gpyopt import CMESError, ConstrainedMES, ConstrainedModel, RealConstraint, spaces
from cmes_gpyopt.optima import candidate_grid, joint_optima
from cmes_gpyopt.refinement import _gain, lowest_feasible, refined_optima

from .conftest import MIXED_DOMAIN, central_difference, relative_error

LINE = spaces.checked_space([{"name": "x", "type": "continuous", "domain": (0, 1)}])
BOX = [{"name": f"x{j}", "type": "continuous", "domain": (0, 1)} for j in range(5)]


def line_model():
    X = np.linspace(0.04, 0.93, 7)[:, None]
    model = ConstrainedModel(LINE, [RealConstraint("c")])
    model.set_data(X, np.sin(9 * X.ravel()), np.cos(7 * X + 1) - 0.3)
    return model


def box_model(count=30):
    rng = np.random.default_rng(3)
    X = rng.uniform(size=(count, 5))
    model = ConstrainedModel(spaces.checked_space(BOX), [RealConstraint("c")])
    model.set_data(X, ((X - 0.35) ** 2).sum(axis=1), (X.sum(axis=1) - 2.2)[:, None])
    return model


def optima(model, grid, count, space, **options):
    limits = [c.threshold(0.5) for c in model.constraints]
    rng = np.random.default_rng(2)
    return joint_optima(model.objective, model.constraints, limits, grid, count, rng, space, **options)


def gpy_draws(latent, X, count, rng):
    """Direct draws (count, m) from GPy's own posterior, by an eigendecomposition."""
    mean, covariance = latent.gp._raw_predict(X, full_cov=True)
    values, vectors = np.linalg.eigh(covariance.reshape(len(X), len(X)))
    return mean.ravel() + rng.standard_normal((count, len(X))) @ (vectors * np.sqrt(np.maximum(values, 0.0))).T


def test_refined_draws_from_few_points_follow_the_law_over_a_dense_grid():
    model, count = line_model(), 400
    dense, rng = np.linspace(0, 1, 801)[:, None], np.random.default_rng(7)
    y, c = (gpy_draws(latent, dense, count, rng) for latent in (model.objective, model.constraints[0]))
    expected = np.where(c <= model.constraints[0].threshold(0.5), y, np.inf).min(axis=1)
    grid = np.vstack([model.data.X, np.linspace(0, 1, 9)[:, None]])
    coarse, refined = (
        np.concatenate(
            [
                joint_optima(
                    model.objective,
                    model.constraints,
                    [model.constraints[0].threshold(0.5)],
                    grid,
                    10,
                    np.random.default_rng(seed),
                    LINE,
                    refinements=rounds,
                ).y_star
                for seed in range(40)
            ]
        )
        for rounds in (0, 4)
    )
    assert ks_2samp(refined, expected).pvalue > 0.01
    assert ks_2samp(coarse, expected).pvalue < 1e-6
    # Values that a path takes somewhere are not below its minimum.
    assert refined.mean() > expected.mean() - 4 * expected.std() / count**0.5


def test_no_point_is_much_likelier_than_not_to_beat_refined_draws():
    model = box_model(100)
    space = spaces.checked_space(BOX)
    grid = candidate_grid(space, 500, model.data.X, np.random.default_rng(1))
    near = spaces.clouds(space, np.repeat(np.full((1, 5), 0.35), 40, axis=0), np.random.default_rng(4))
    y, c = model.objective.moments(near), model.constraints[0].moments(near)
    feasible = ndtr((model.constraints[0].threshold(0.5) - c.mean) / c.std)

    def likeliest(rounds):
        y_star = optima(model, grid, 60, space, refinements=rounds).y_star
        return (feasible * ndtr((y_star[:, None] - y.mean) / y.std)).mean(axis=0).max()

    assert likeliest(0) > 0.9
    assert likeliest(3) < 0.6


def test_refinement_never_raises_a_draw_and_leaves_values_at_pending_points_alone():
    model = box_model()
    space = spaces.checked_space(BOX)
    pending = np.random.default_rng(5).uniform(size=(2, 5))
    grid = candidate_grid(space, 200, np.vstack([model.data.X, pending]), np.random.default_rng(1))
    before, after = (optima(model, grid, 12, space, pending=pending, refinements=rounds) for rounds in (0, 2))
    assert (after.y_star <= before.y_star).all()
    assert (after.y_star < before.y_star - 1e-3).all()
    np.testing.assert_array_equal(after.objective, before.objective)
    np.testing.assert_array_equal(after.constraints, before.constraints)


def test_a_value_at_a_pending_point_binds_what_is_drawn_beside_it():
    """Pending values far below everything else must pull the refined optimum with them."""
    model = line_model()
    points = np.vstack([model.data.X, [[0.55]]])
    latents, limits = (model.objective, *model.constraints), [model.constraints[0].threshold(0.5)]
    values = [np.tile(latent.moments(points).mean, (2, 1)) for latent in latents]
    values[0][:, -1], values[1][:, -1] = [-9.0, 9.0], -9.0
    low, high = refined_optima(
        latents, limits, points, values, np.array([len(points) - 1]), LINE, 2, np.random.default_rng(0)
    )
    assert low <= -9.0
    assert high > -3.0


def test_a_draw_without_a_feasible_point_finds_one_between_the_points_of_the_grid():
    X = np.linspace(0, 1, 12)[:, None]
    model = ConstrainedModel(LINE, [RealConstraint("c")])
    centre, radius = 0.5 * (X[5, 0] + X[6, 0]), 0.02
    model.set_data(X, np.sin(3 * X.ravel()), (X - centre) ** 2 - radius**2)
    grid = np.vstack([X, [[0.2], [0.8]]])
    assert np.isposinf(optima(model, grid, 10, LINE).y_star).all()
    found = optima(model, grid, 10, LINE, refinements=2).y_star
    expected = np.sin(3 * np.array([centre - 2 * radius, centre + 2 * radius]))
    in_units = model.objective.offset + model.objective.scale * found
    assert np.isfinite(found).mean() > 0.7
    finite = in_units[np.isfinite(found)]
    assert (finite > expected.min() - 0.01).all()
    assert (finite < expected.max() + 0.01).all()


def test_known_constraints_bound_the_refined_optimum():
    known = spaces.checked_space(
        [{"name": "x", "type": "continuous", "domain": (0, 1)}], [{"name": "k", "constraint": "0.31 - x[:,0]"}]
    )
    X = np.linspace(0, 1, 25)[:, None]
    model = ConstrainedModel(known, [RealConstraint("c")])
    model.set_data(X, np.sin(5 * X.ravel() - 0.5), np.full((25, 1), -1.0) + 0.1 * X)
    grid = X[X[:, 0] > 0.31]
    true = minimize_scalar(lambda x: np.sin(5 * x - 0.5), bounds=(0.31, 1.0), method="bounded").fun
    free = minimize_scalar(lambda x: np.sin(5 * x - 0.5), bounds=(0.0, 1.0), method="bounded").fun
    forbidden = spaces.checked_space(
        [{"name": "x", "type": "continuous", "domain": (0, 1)}], [{"name": "k", "constraint": "x[:,0] - 0.9"}]
    )
    for space, points, bound in ((known, grid, true), (forbidden, X[X[:, 0] < 0.9], np.sin(5 * 0.9 - 0.5))):
        found = optima(model, points, 10, space, refinements=3).y_star
        in_units = model.objective.offset + model.objective.scale * found
        assert (in_units > bound - 0.01).all()
    assert free == pytest.approx(true)


def test_a_finite_space_is_left_as_it_is_and_others_keep_their_discrete_values(monkeypatch):
    finite = spaces.checked_space([{"name": "a", "type": "discrete", "domain": tuple(range(9))}])
    model = ConstrainedModel(finite, [RealConstraint("c")])
    X = np.array([[0.0], [3.0], [8.0]])
    model.set_data(X, np.array([1.0, 0.0, 2.0]), X - 6.0)
    grid = spaces.all_points(finite, 100)
    np.testing.assert_array_equal(
        optima(model, grid, 10, finite).y_star, optima(model, grid, 10, finite, refinements=2).y_star
    )

    mixed = spaces.checked_space(MIXED_DOMAIN)
    rng = np.random.default_rng(0)
    X = spaces.random_points(mixed, 20, rng)
    model = ConstrainedModel(mixed, [RealConstraint("c")])
    model.set_data(X, X.sum(axis=1), X[:, :1] - X[:, :1].mean())
    seen = []
    original = RealConstraint.sample
    monkeypatch.setattr(RealConstraint, "sample", lambda self, X, z: seen.append(X) or original(self, X, z))
    optima(model, candidate_grid(mixed, 100, X, rng), 10, mixed, refinements=2)
    assert len(seen) == 2
    for points in seen:
        np.testing.assert_allclose(spaces.round_points(mixed, points), points, atol=1e-12)


@pytest.mark.parametrize("best", [[-1.0, 0.5, -4.0], [np.inf, -0.2, np.inf]])
def test_the_gradient_of_the_gain_agrees_with_differences(best):
    model, rng = box_model(), np.random.default_rng(0)
    latents = (model.objective, *model.constraints)
    points = rng.uniform(size=(6, 5))
    given = [latent.conditioned(points, rng.standard_normal((3, 6))) for latent in latents]
    limits = [c.threshold(0.5) for c in model.constraints]
    gain = _gain(given, limits, np.array(best), spaces.checked_space(BOX))
    X, which = rng.uniform(0.1, 0.9, (9, 5)), np.arange(9) % 3
    _, gradient = gain(X, which)
    numeric = central_difference(lambda X: gain(X, which)[0], X)
    assert relative_error(gradient, numeric) < 1e-5
    # The control: the gradient of another draw.
    assert relative_error(gain(X, (which + 1) % 3)[1], numeric) > 1e-3


def test_the_gain_is_the_expected_improvement_of_feasible_values():
    """Against Monte Carlo over the conditional posteriors of one draw."""
    model, rng = box_model(), np.random.default_rng(0)
    latents = (model.objective, *model.constraints)
    points, values = rng.uniform(size=(4, 5)), 0.3 * rng.standard_normal((2, 4))
    given = [latent.conditioned(points, values) for latent in latents]
    limits = [c.threshold(0.5) for c in model.constraints]
    X, best = np.full((2, 5), 0.4), np.array([0.2, -0.4])
    value, _ = _gain(given, limits, best, spaces.checked_space(BOX))(X, np.arange(2))
    for k in range(2):
        y, c = (latent.conditioned(points, values[k]).moments(X) for latent in latents)
        ys = y.mean[k] + y.std[k] * rng.standard_normal(400_000)
        cs = c.mean[k] + c.std[k] * rng.standard_normal(400_000)
        gains = np.maximum(best[k] - ys, 0.0) * (cs <= limits[0])
        assert np.exp(-value[k]) == pytest.approx(gains.mean(), abs=5 * gains.std() / 400_000**0.5)


def test_lowest_feasible_values_by_hand():
    y, c = np.array([[3.0, 1.0, 2.0], [1.0, 2.0, 3.0]]), np.array([[0.0, 1.0, -1.0], [1.0, 1.0, 1.0]])
    np.testing.assert_array_equal(lowest_feasible([y, c], [0.5]), [2.0, np.inf])


def test_refinements_are_a_whole_number_and_none_in_the_preset_of_the_paper():
    assert ConstrainedMES.for_domain(BOX).refinements == 2
    assert ConstrainedMES.for_domain(BOX, preset="paper").refinements == 0
    for wrong in (-1, 1.5, "two"):
        with pytest.raises(CMESError, match="refinements"):
            ConstrainedMES.for_domain(BOX, refinements=wrong)
