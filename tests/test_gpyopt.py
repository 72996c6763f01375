"""The plain GPyOpt way: no class of this library but the acquisition."""

import subprocess
import sys

import matplotlib.pyplot as plt
import numpy as np
import pytest

from cmes_gpyopt import CMESError, ConstrainedMES
from cmes_gpyopt._gpyopt import AcquisitionOptimizer, GPyOpt
from cmes_gpyopt.problems import TOY

from .conftest import MIXED_DOMAIN

TOY_DOMAIN = list(TOY.domain)


def optimise(f, domain, max_iter=8, acquisition=None, constraints=None, **options):
    if acquisition is None:
        acquisition = ConstrainedMES.for_domain(domain, constraints, grid_size=200, seed=0)
    np.random.seed(1)  # GPyOpt's initial design draws from the global state
    options = {"normalize_Y": False} | options
    bo = GPyOpt.methods.BayesianOptimization(
        f, domain, constraints=constraints, model=acquisition.model, acquisition=acquisition, **options
    )
    bo.run_optimization(max_iter=max_iter)
    return bo


def check_best(bo, feasible):
    """x_opt is feasible, and fx_opt its value, whenever any evaluated point is feasible."""
    good = np.array([feasible(x) for x in bo.X])
    assert good.any()
    assert feasible(bo.x_opt)
    assert bo.fx_opt == bo.Y[good].min()
    assert np.isinf(bo.Y[~good]).all()


def mixed_objective(X):
    rate, layers, kind = X[0]
    assert layers in (1, 2, 4, 8)
    assert kind in (0, 1, 2)
    return np.array([[np.inf if rate * layers > 4 else (rate - 1) ** 2 + 1 / layers + 0.1 * kind]])


def test_the_toy_runs():
    bo = optimise(TOY.with_failures, TOY_DOMAIN, max_iter=12)
    assert len(bo.X) == 17
    check_best(bo, lambda x: TOY.feasible(x)[0])


def test_a_space_of_continuous_discrete_and_categorical_variables_runs():
    bo = optimise(mixed_objective, MIXED_DOMAIN)
    assert len(bo.X) == 13
    check_best(bo, lambda x: x[0] * x[1] <= 4)


def test_known_constraints_are_honoured():
    known = [{"name": "below", "constraint": "x[:,1] - 0.4"}]
    bo = optimise(TOY.with_failures, TOY_DOMAIN, constraints=known)
    assert (bo.X[:, 1] <= 0.4).all()
    check_best(bo, lambda x: TOY.feasible(x)[0])


def test_a_function_that_fails_ten_times_before_it_succeeds_is_optimised():
    calls = []

    def late(X):
        calls.append(X)
        return np.array([[np.inf if len(calls) <= 10 else X[0, 0]]])

    bo = optimise(late, TOY_DOMAIN, max_iter=9)
    assert len(calls) == 14
    assert np.isinf(bo.Y[:10]).all()
    assert np.isfinite(bo.fx_opt)
    assert bo.fx_opt == bo.Y[10:].min()


def test_nothing_feasible_at_all_ends_without_an_error():
    bo = optimise(lambda X: np.array([[np.inf]]), TOY_DOMAIN, max_iter=4)
    assert len(bo.X) == 9
    assert np.isinf(bo.fx_opt)


def test_random_batches_run():
    bo = optimise(TOY.with_failures, TOY_DOMAIN, max_iter=3, evaluator_type="random", batch_size=3)
    assert len(bo.X) == 5 + 9
    check_best(bo, lambda x: TOY.feasible(x)[0])


def test_bandits_and_purely_discrete_spaces_run():
    arms = np.array([[0.0, 0.1], [0.5, 0.5], [-0.7, 0.5], [0.5, 0.3], [0.9, -0.9], [-0.3, -0.3], [0.2, 0.2]])
    bo = optimise(TOY.with_failures, [{"name": "arm", "type": "bandit", "domain": arms}], X=arms[:2], max_iter=4)
    assert len(np.unique(bo.X, axis=0)) == 6
    discrete = [{"name": "a", "type": "discrete", "domain": tuple(range(6))}]
    bo = optimise(lambda X: np.where(X > 3, np.inf, X - 1.0), discrete, X=np.array([[5.0], [0.0]]), max_iter=4)
    assert len(np.unique(bo.X)) == 6


def test_gpyopts_own_optimizer_stays_usable():
    acquisition = ConstrainedMES.for_domain(TOY_DOMAIN, grid_size=100)
    acquisition.optimizer = AcquisitionOptimizer(acquisition.space)
    bo = optimise(TOY.with_failures, TOY_DOMAIN, max_iter=3, acquisition=acquisition)
    assert len(bo.X) == 8
    assert (np.abs(bo.X) <= 1).all()


@pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")  # GPyOpt's own
@pytest.mark.parametrize("dimension", [1, 2])
def test_gpyopts_plots_still_work(dimension, tmp_path):
    domain = TOY_DOMAIN[:dimension]

    def f(X):
        return TOY.with_failures(np.column_stack([X, np.full((len(X), 2 - dimension), -0.3)]))

    bo = optimise(f, domain, max_iter=3)
    bo.plot_convergence(str(tmp_path / "convergence.png"))
    bo.plot_acquisition(str(tmp_path / "acquisition.png"))
    plt.close("all")
    for name in ("convergence.png", "acquisition.png"):
        assert plt.imread(tmp_path / name).std() > 0.05  # something was drawn


def run_points(plot=False):
    acquisition = ConstrainedMES.for_domain(TOY_DOMAIN, grid_size=150, seed=7)
    X = np.random.default_rng(0).uniform(-1, 1, (5, 2))
    bo = GPyOpt.methods.BayesianOptimization(
        TOY.with_failures, TOY_DOMAIN, X=X, model=acquisition.model, acquisition=acquisition, normalize_Y=False
    )
    bo.run_optimization(max_iter=3)
    if plot:
        bo.plot_acquisition("/dev/null" if plot is True else plot)
        plt.close("all")
    bo.run_optimization(max_iter=3)
    return bo.X


def test_the_same_seed_gives_the_same_points_even_with_a_plot_in_between(tmp_path):
    first = run_points()
    np.testing.assert_array_equal(run_points(), first)
    np.testing.assert_array_equal(run_points(plot=str(tmp_path / "a.png")), first)
    assert len(np.unique(first, axis=0)) == 11


def test_the_same_seed_gives_the_same_points_in_another_process():
    code = "from tests.test_gpyopt import run_points; print(run_points().tobytes().hex())"
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert out.strip().splitlines()[-1] == run_points().tobytes().hex()


@pytest.mark.filterwarnings("ignore:invalid value encountered")  # GPyOpt's own arithmetic with inf
def test_normalised_values_are_explained():
    def smooth(X):
        return X[:, :1] ** 2

    with pytest.raises(CMESError, match="changed from .* since the last update; pass normalize_Y=False"):
        optimise(smooth, TOY_DOMAIN, normalize_Y=True)
    with pytest.raises(CMESError, match=r"-inf .* pass normalize_Y=False .* and maximize=False"):
        optimise(lambda X: np.where(X[:, :1] > -0.2, X[:, :1], np.inf), TOY_DOMAIN, normalize_Y=True)


def test_maximisation_is_explained():
    with pytest.raises(CMESError, match=r"-inf .* maximize=False \(return the negated value instead\)"):
        optimise(lambda X: np.where(X[:, :1] > -0.2, X[:, :1], np.inf), TOY_DOMAIN, maximize=True)


def test_a_non_finite_point_is_explained():
    with pytest.raises(CMESError, match="X must be finite, row 1 is"):
        optimise(TOY.with_failures, TOY_DOMAIN, X=np.array([[0.0, 0.0], [np.nan, 0.0]]), Y=np.ones((2, 1)))
