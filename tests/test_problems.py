"""The suite of test problems: every problem is what it says."""

import pickle
from collections import Counter

import numpy as np
import pytest
from scipy.optimize import minimize, nnls
from scipy.stats import qmc

from cmes_gpyopt import BinaryConstraint, CMESError, RealConstraint, problems, spaces
from cmes_gpyopt._gpyopt import Design_space
from cmes_gpyopt.evaluation import interpret
from cmes_gpyopt.problems import BY_NAME, DEVELOPMENT, HELD_OUT, SUITE

from .conftest import central_difference

ALL = pytest.mark.parametrize("problem", SUITE, ids=lambda problem: problem.name)

# Binary logarithm of the number of Sobol points; more where few points are feasible.
EXPONENT = 16
MORE = {"gardner2": 18, "needle": 18, "ackley10": 19, "welded_beam": 18, "spring": 18, "speed_reducer": 19}

# The feasible set of this problem is too small for its domain to be sampled; all of it lies in a smaller box.
SMALLER_BOX = {"ackley10": (-5.0, 5.0)}

# As printed in the papers (Townsend, bird: Wikipedia), and half a unit of their last digit or a little more.
PUBLISHED = {
    "gramacy": (0.5998, 5e-5),
    "branin": (0.397887, 1e-6),
    "townsend": (-2.0239884, 1e-7),
    "bird": (-106.7645367, 1e-7),
    "hartmann6": (-3.32237, 5e-6),
    "ackley10": (0.0, 0.0),
    "welded_beam": (1.724852, 1e-6),
    "pressure_vessel": (6059.714335, 1e-6),
    "spring": (0.012665, 5e-7),
    "speed_reducer": (2996.348165, 1e-6),
}


def space_of(problem):
    return Design_space([dict(variable) for variable in problem.domain])


def sobol(problem, exponent=EXPONENT):
    """Objective-space points (2**exponent, d), and the share of the domain they were drawn from."""
    unit = qmc.Sobol(problem.dimension, rng=20200603).random_base2(exponent)
    if problem.name in SMALLER_BOX:
        low, high = SMALLER_BOX[problem.name]
        whole = np.diff([variable["domain"] for variable in problem.domain]).ravel()
        return low + (high - low) * unit, np.prod((high - low) / whole)
    space = space_of(problem)
    return spaces.to_objective(space, spaces.from_unit(space, unit)), 1.0


@pytest.fixture(scope="module")
def samples():
    return {p.name: sobol(p, MORE.get(p.name, EXPONENT)) for p in SUITE}


def continuous(problem):
    """Columns, lower bounds and widths of the continuous variables."""
    columns = [j for j, variable in enumerate(problem.domain) if variable["type"] == "continuous"]
    low, high = np.array([problem.domain[j]["domain"] for j in columns], dtype=float).T
    return columns, low, high - low


def scale(problem):
    """What an error of the optimum is relative to."""
    return abs(problem.f_opt) or abs(problem.typical)


@ALL
def test_the_domain_is_one_of_gpyopt_and_holds_the_optimum(problem):
    space = space_of(problem)
    assert space.objective_dimensionality == problem.dimension == len(problem.x_opt)
    X = np.array([problem.x_opt])
    model = spaces.to_model(space, X)
    assert np.array_equal(spaces.round_points(space, model), model)
    assert np.array_equal(spaces.to_objective(space, model), X)
    assert problem.has_discrete == any(variable.type != "continuous" for variable in space.space_expanded)


@ALL
def test_the_optimum_is_feasible_and_attains_its_value(problem):
    assert problem.feasible(problem.x_opt).tolist() == [True]
    assert problem.objective(np.array([problem.x_opt]))[0] == pytest.approx(problem.f_opt, rel=1e-13, abs=1e-15)
    assert problem.normalised_regret(problem.f_opt) == 0
    assert problem.normalised_regret([problem.typical, np.inf]).tolist() == [1, np.inf]
    published, tolerance = PUBLISHED.get(problem.name, (problem.f_opt, 0.0))
    assert abs(problem.f_opt - published) <= tolerance


@ALL
def test_no_feasible_sobol_point_is_better_and_the_fraction_and_the_typical_value_are_as_stated(problem, samples):
    X, share = samples[problem.name]
    feasible = problem.feasible(X)
    values = problem.objective(X[feasible])
    assert len(values) >= 100
    assert values.min() >= problem.f_opt - 1e-9
    # Three standard errors of independent points (those of Sobol points are smaller), and the rounding to three digits.
    stated = problem.feasible_fraction / share
    assert abs(feasible.mean() - stated) <= 3 * np.sqrt(stated * abs(1 - stated) / len(X)) + 5e-3 * stated
    assert abs((values < problem.typical).mean() - 0.5) <= 1.5 / np.sqrt(len(values)) + 5e-3
    assert problem.typical > problem.f_opt


@ALL
def test_no_feasible_point_nearby_is_better(problem):
    rng = np.random.default_rng(1)
    columns, low, width = continuous(problem)
    size = 10 ** rng.uniform(-7, -1, (20_000, 1))
    X = np.tile(problem.x_opt, (len(size), 1))
    X[:, columns] = np.clip(
        X[:, columns] + size * width * rng.standard_normal((len(size), len(columns))), low, low + width
    )
    for j, variable in enumerate(problem.domain):
        if variable["type"] != "continuous":  # another value in a third of the points
            other = rng.random(len(X)) < 1 / 3
            X[other, j] = rng.choice(np.asarray(variable["domain"], dtype=float), other.sum())
    X = X[problem.feasible(X)]
    assert len(X) >= 50
    assert problem.objective(X).min() >= problem.f_opt - 1e-6 * scale(problem)


@ALL
def test_the_optimum_satisfies_the_first_order_conditions(problem):
    if problem.name == "ackley10":
        pytest.skip("not differentiable at the optimum")
    columns, low, width = continuous(problem)
    at = np.array(problem.x_opt)
    z = (at[columns] - low) / width

    def gradient(function):
        def scaled(Z):
            X = np.tile(at, (len(Z), 1))
            X[:, columns] = low + width * Z
            return function(X)

        return central_difference(scaled, z[None])[0]

    active = problem.constraint_values(at)[0] > -1e-8
    normals = [gradient(c) for c, a in zip(problem.constraints, active, strict=True) if a]
    normals += [-row for row in np.eye(len(z))[z <= 0]] + [row for row in np.eye(len(z))[z >= 1]]
    slope = gradient(problem.objective)
    unexplained = nnls(np.array(normals).T, -slope)[1] if normals else np.linalg.norm(slope)
    assert unexplained <= 1e-5 * max(np.linalg.norm(slope), scale(problem))


@ALL
def test_descent_from_the_best_sobol_points_finds_nothing_better(problem, samples):
    X, _ = samples[problem.name]
    X = X[problem.feasible(X)]
    columns, low, width = continuous(problem)
    for start in X[np.argsort(problem.objective(X))[:3]]:

        def point(z, start=start):
            x = start[None].copy()
            x[0, columns] = low + width * np.clip(z, 0, 1)
            return x

        found = minimize(
            lambda z, point=point: problem.objective(point(z))[0] / scale(problem),
            (start[columns] - low) / width,
            method="SLSQP",
            bounds=[(0, 1)] * len(columns),
            constraints={"type": "ineq", "fun": lambda z, point=point: -problem.constraint_values(point(z))[0]},
            options={"maxiter": 200, "ftol": 1e-10},
        )
        if problem.constraint_values(point(found.x)).max() <= 1e-8:
            assert found.fun * scale(problem) >= problem.f_opt - 1e-6 * scale(problem)


@ALL
def test_rows_are_evaluated_independently(problem, samples):
    X = samples[problem.name][0][:64]
    y, c, feasible = problem.objective(X), problem.constraint_values(X), problem.feasible(X)
    assert y.shape == (64,)
    assert c.shape == (64, len(problem.constraints))
    assert np.isfinite(y).all()
    assert np.isfinite(c).all()
    for i in range(64):
        row = X[i : i + 1]
        assert problem.objective(row)[0] == pytest.approx(y[i], rel=1e-12, abs=1e-12)
        np.testing.assert_allclose(problem.constraint_values(row)[0], c[i], rtol=1e-12, atol=1e-12)
    assert np.array_equal(feasible, (c <= 0).all(axis=1))


@ALL
def test_both_forms_of_feedback_can_be_read_by_the_driver(problem, samples):
    X = samples[problem.name][0][:16]
    real = [RealConstraint(f"c{j}") for j in range(len(problem.constraints))]
    for x in np.vstack([X, problem.x_opt])[:, None]:
        feasible = problem.feasible(x)[0]
        measured = interpret(problem.measured(x), real)
        crashed = interpret(problem.with_failures(x), [BinaryConstraint("works")])
        assert measured.feasible == crashed.feasible == feasible
        assert measured.y == problem.objective(x)[0]
        assert np.array_equal(measured.c, problem.constraint_values(x)[0])
        assert crashed.y == measured.y if feasible else np.isnan(crashed.y)
    assert problem.with_failures(X).shape == (16, 1)


@ALL
def test_a_problem_survives_pickling_and_cites_its_source(problem):
    again = pickle.loads(pickle.dumps(problem))
    assert again.measured(problem.x_opt)[0] == problem.measured(problem.x_opt)[0]
    assert problem.reference


def test_the_halves_of_the_suite_are_balanced_and_do_not_overlap():
    assert len({p.name for p in SUITE}) == len(SUITE) == 16
    assert set(BY_NAME) == {p.name for p in DEVELOPMENT} | {p.name for p in HELD_OUT}
    assert all(BY_NAME[p.name] is p for p in SUITE)
    assert Counter(p.kind for p in DEVELOPMENT) == Counter(p.kind for p in HELD_OUT)
    assert sum(p.has_discrete for p in DEVELOPMENT) == sum(p.has_discrete for p in HELD_OUT) == 2


def test_the_needle_is_small_and_nothing_is_infeasible_in_the_open(samples):
    assert 0.01 < problems.NEEDLE.feasible_fraction < 0.02
    assert problems.OPEN.constraint_values(samples["open"][0]).max() < 0


def test_the_fractions_with_a_closed_form():
    assert problems.HARTMANN6.feasible_fraction == pytest.approx(np.pi**3 / 6 / 2**6, rel=5e-3)
    assert problems.ACKLEY10.feasible_fraction == pytest.approx(np.pi**5 / 240 / 3**10, rel=5e-3)
    assert problems.NEEDLE.feasible_fraction == pytest.approx(4 / 3 * np.pi * 0.15**3, rel=5e-3)


def test_the_optimum_of_the_mixed_problem_by_enumeration():
    base, centre, weight, largest = (0, 0, 1 / 8), (3 / 4, 1 / 4, 1 / 2), (1 / 4, 1 / 16, 1 / 8), (8, 3, 8)
    best = {}
    for k in range(3):
        for n in range(1, largest[k] + 1):
            excess = max(centre[k] + n / 8 + weight[k] * n - 2, 0)
            best[n, k] = base[k] + ((n - 6) / 8) ** 2 + excess**2 / 2  # without the bounds of u and v: not too large
    n, k = min(best, key=best.get)
    move = (centre[k] + n / 8 + weight[k] * n - 2) / 2
    assert problems.MIXED.x_opt == (centre[k] - move, n / 8 - move, n, k)
    assert problems.MIXED.f_opt == best[n, k]


def test_the_thicknesses_of_the_pressure_vessel_by_enumeration():
    # For given thicknesses and radius the shortest vessel that holds the volume is the cheapest.
    problem = problems.PRESSURE_VESSEL
    shell, head, radius = np.meshgrid(
        *[v["domain"] for v in problem.domain[:2]], np.linspace(10, 200, 401), indexing="ij"
    )
    radius = np.minimum(radius, np.minimum(shell / 0.0193, head / 0.00954)).ravel()
    length = np.maximum((1296000 / np.pi - 4 / 3 * radius**3) / radius**2, 10)
    X = np.column_stack([shell.ravel(), head.ravel(), radius, length])[(length <= 200) & (radius >= 10)]
    values = problem.objective(X)
    assert values.min() == pytest.approx(problem.f_opt, rel=1e-9)
    assert X[values.argmin()] == pytest.approx(problem.x_opt, rel=1e-9)


def test_the_pole_of_the_spring_is_finite_and_infeasible():
    c = problems.SPRING.constraint_values([[0.5, 0.5, 10.0]])
    assert np.isfinite(c).all()
    assert c.max() > 0


def test_a_point_of_the_wrong_shape_is_refused():
    with pytest.raises(CMESError, match=r"takes points of shape \(n, 2\)"):
        problems.TOY.feasible([[0.0, 0.0, 0.0]])
    with pytest.raises(CMESError, match=r"one point of shape \(1, 2\), got 2 points"):
        problems.TOY.measured([[0.0, 0.0], [0.1, 0.1]])
