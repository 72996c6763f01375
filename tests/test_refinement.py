import numpy as np
import pytest
from scipy.special import ndtr
from scipy.stats import ks_2samp

from cmes_gpyopt import BinaryConstraint, CMESError, ConstrainedMES, ConstrainedModel, RealConstraint, spaces
from cmes_gpyopt.models import JointDraws, Regression
from cmes_gpyopt.models.posterior import LatentPosterior, Matern52
from cmes_gpyopt.optima import candidate_grid, joint_optima
from cmes_gpyopt.refinement import _gain, _within, lowest_feasible

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


def optima(model, grid, count, space, seed=2, **options):
    limits = [c.threshold(0.5) for c in model.constraints]
    rng = np.random.default_rng(seed)
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
        np.concatenate([optima(model, grid, 10, LINE, seed, refinements=rounds).y_star for seed in range(40)])
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


@pytest.mark.parametrize("constraints", [0, 1])
def test_where_the_grid_is_fine_nothing_is_gained(constraints):
    """Draws that forgot some of their own values would find gains where there are none."""
    kernel = Matern52(1.0, np.array([0.07]))
    latents = [Regression(), *(RealConstraint(f"c{j}") for j in range(constraints))]
    for latent in latents:
        latent.fit(np.empty((0, 1)), np.empty(0), np.zeros(1), np.ones(1))
        latent._posterior = LatentPosterior.prior(kernel)
    grid = np.linspace(0, 1, 1500)[:, None]
    gains = []
    for seed in range(6):
        before, after = (
            joint_optima(
                latents[0],
                latents[1:],
                [0.3] * constraints,
                grid,
                10,
                np.random.default_rng(seed),
                LINE,
                refinements=rounds,
            ).y_star
            for rounds in (0, 3)
        )
        gains.append(before - after)
    assert np.min(gains) == 0.0  # of the lower of both values, the one that was there
    assert np.max(gains) < 0.03


def test_draws_of_further_points_are_those_of_one_factorisation():
    rng = np.random.default_rng(0)
    latent = box_model().objective
    U, further = rng.uniform(size=(40, 5)), rng.uniform(size=(7, 5))
    normals, more = rng.standard_normal((40, 3)), rng.standard_normal((7, 3))
    draws = latent.draws(U, normals)
    found = [draws.draw(np.arange(10, 25)), draws.draw(np.arange(10))]  # then rows 0 to 9 of those left
    found += [draws.draw_further(further[:4], more[:4]), draws.draw_further(further[4:], more[4:])]
    rows = [*range(10, 25), *range(10)]
    expected = latent.sample(np.vstack([U[rows], further]), np.vstack([normals[rows], more]))
    np.testing.assert_allclose(np.hstack(found), expected, atol=1e-6)
    forgetful = latent.sample(np.vstack([U[rows[:15]], further]), np.vstack([normals[rows[:15]], more]))
    assert np.abs(forgetful[:, 15:] - expected[:, 25:]).max() > 1e-2


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
    limit = 0.87
    space = spaces.checked_space(
        [{"name": "x", "type": "continuous", "domain": (0, 1)}], [{"name": "k", "constraint": f"x[:,0] - {limit}"}]
    )
    X = np.linspace(0, 1, 25)[:, None]
    model = ConstrainedModel(space, [RealConstraint("c")])
    model.set_data(X, np.cos(3 * X.ravel()), np.full((25, 1), -1.0) + 0.1 * X)
    bound = np.cos(3 * limit)  # the function falls
    in_units = [
        model.objective.offset
        + model.objective.scale * optima(model, X[X[:, 0] < 0.8], 10, space, refinements=rounds).y_star
        for rounds in (0, 3)
    ]
    assert (in_units[0] > bound + 0.1).all()
    assert (in_units[1] > bound - 0.01).all()
    assert (in_units[1] < bound + 0.03).all()
    given = [latent.conditioned(X[:2], np.zeros((1, 2))) for latent in (model.objective, *model.constraints)]
    value, gradient = _gain(given, [0.0], np.zeros(1), space)(np.array([[0.5], [0.9]]), np.zeros(2, dtype=int))
    assert value[0] < 1e10 < value[1]
    assert gradient[1] == 0.0


def test_starts_are_moved_inside_the_known_constraints():
    plane = [{"name": f"x{j}", "type": "continuous", "domain": (0, 1)} for j in range(2)]
    space = spaces.checked_space(plane, [{"name": "k", "constraint": "abs(x[:,0] + x[:,1] - 1) - 0.01"}])
    rng = np.random.default_rng(0)
    x = rng.uniform(0.1, 0.9, 200)
    centres = np.column_stack([x, 1 - x])
    starts = _within(space, centres, 0.02 * rng.standard_normal((200, 2)), np.zeros(2), np.ones(2))
    assert spaces.inside(space, starts).all()
    assert (starts != centres).all()


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
    original = JointDraws.draw_further
    monkeypatch.setattr(JointDraws, "draw_further", lambda self, U, z: seen.append((U, z)) or original(self, U, z))
    optima(model, candidate_grid(mixed, 100, X, rng), 10, mixed, refinements=2)
    assert len(seen) == 4  # two rounds, two functions
    lower, width = spaces.box(mixed)
    for U, _ in seen:
        points = lower + width * U
        np.testing.assert_allclose(spaces.round_points(mixed, points), points, atol=1e-12)
    # Every value has a random number of its own.
    assert len(np.unique(np.concatenate([z.ravel() for _, z in seen]))) == sum(z.size for _, z in seen)


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
    X = rng.uniform(size=(2, 5))
    # A little above what is expected, so that neither factor is sure.
    y, c = (latent.moments(X) for latent in given)
    best, limits = y.mean.diagonal() + 0.3 * y.std, [float(c.mean.diagonal().mean())]
    value, _ = _gain(given, limits, best, spaces.checked_space(BOX))(X, np.arange(2))
    for k in range(2):
        y, c = (latent.conditioned(points, values[k]).moments(X) for latent in latents)
        ys = y.mean[k] + y.std[k] * rng.standard_normal(400_000)
        cs = c.mean[k] + c.std[k] * rng.standard_normal(400_000)
        gains = np.maximum(best[k] - ys, 0.0) * (cs <= limits[0])
        assert 0.01 < (cs <= limits[0]).mean() < 0.99
        assert np.exp(-value[k]) == pytest.approx(gains.mean(), abs=5 * gains.std() / 400_000**0.5)


def test_lowest_feasible_values_by_hand():
    y, c = np.array([[3.0, 1.0, 2.0], [1.0, 2.0, 3.0]]), np.array([[0.0, 1.0, -1.0], [1.0, 1.0, 1.0]])
    np.testing.assert_array_equal(lowest_feasible([y, c], [0.5]), [2.0, np.inf])


def test_refinements_are_a_whole_number_that_depends_on_what_is_measured():
    for feedback, expected in (("real", 2), ([], 2), ("binary", 0), ([BinaryConstraint("a"), RealConstraint("b")], 0)):
        assert ConstrainedMES.for_domain(BOX, feedback=feedback).refinements == expected
    assert ConstrainedMES.for_domain(BOX, feedback="binary", refinements=1).refinements == 1
    assert ConstrainedMES.for_domain(BOX, feedback="real", preset="paper").refinements == 0
    for wrong in (-1, 1.5, "two"):
        with pytest.raises(CMESError, match="refinements"):
            ConstrainedMES.for_domain(BOX, refinements=wrong)
