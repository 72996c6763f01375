import matplotlib.pyplot as plt
import numpy as np
import pytest

from cmes_gpyopt import CMESError, ConstrainedBayesianOptimization, ConstrainedMES, Infeasible
from cmes_gpyopt.problems import TOY

from .conftest import MIXED_DOMAIN

DOMAIN = list(TOY.domain)
SMALL = {"grid_size": 150}


def run(f=TOY.with_failures, domain=DOMAIN, max_iter=5, **options):
    bo = ConstrainedBayesianOptimization(f, domain, **{"acquisition_options": SMALL} | options)
    bo.run_optimization(max_iter=max_iter)
    return bo


def test_the_class_may_be_passed_as_acquisition():
    bo = run(acquisition=ConstrainedMES)
    assert isinstance(bo.acquisition, ConstrainedMES)
    assert len(bo.X) == 10
    assert TOY.feasible(bo.x_opt)[0]
    assert bo.fx_opt == bo.Y.min() == bo.Y_best[-1]


def test_an_instance_may_be_passed_as_acquisition():
    acquisition = ConstrainedMES.for_domain(DOMAIN, grid_size=100)
    bo = run(acquisition=acquisition, acquisition_options=None)
    assert bo.acquisition is acquisition
    assert len(bo.X) == 10


def test_failures_may_be_inf_nan_or_raised():
    def fails(how):
        def f(x):
            if x[0, 0] < 0:
                return how() if callable(how) else how
            return x[0, 1]

        return f

    def raising():
        raise Infeasible("too large")

    runs = [run(fails(how)) for how in (np.inf, np.nan, raising)]
    for bo in runs:
        np.testing.assert_array_equal(bo.X, runs[0].X)
        np.testing.assert_array_equal(np.isinf(bo.Y).ravel(), bo.X[:, 0] < 0)


def test_other_errors_stop_the_run_and_keep_what_was_evaluated():
    calls = []

    def f(x):
        calls.append(x)
        if len(calls) == 4:
            raise ZeroDivisionError("a bug")
        return 1.0

    bo = ConstrainedBayesianOptimization(f, DOMAIN)
    with pytest.raises(ZeroDivisionError, match="a bug"):
        bo.run_optimization(3)
    assert len(bo.X) == len(bo.Y) == 3


def test_nothing_is_evaluated_before_the_run():
    def f(x):
        raise AssertionError("called too early")

    bo = ConstrainedBayesianOptimization(f, DOMAIN)
    assert bo.x_opt is None
    assert bo.fx_opt is None


def test_runs_are_deterministic_and_continue_where_they_stopped():
    state = np.random.get_state()[1].copy()
    whole = run(max_iter=6, seed=3)
    parts = run(max_iter=2, seed=3)
    parts.run_optimization(max_iter=4)
    np.testing.assert_array_equal(whole.X, parts.X)
    assert not np.array_equal(run(max_iter=0, seed=4).X, whole.X[:5])
    np.testing.assert_array_equal(np.random.get_state()[1], state)


def test_given_evaluations_are_used_and_not_repeated():
    X = np.array([[0.0, 0.0], [0.5, 0.3]])
    bo = run(X=X, Y=TOY.with_failures(X), max_iter=1)
    assert len(bo.X) == 3
    np.testing.assert_array_equal(bo.X[:2], X)


def test_mixed_and_discrete_spaces_run_without_stopping_at_a_repeat():
    def f(x):
        return np.inf if x[0, 0] * x[0, 1] > 4 else x[0, 0] + x[0, 1] + x[0, 2]

    assert len(run(f, MIXED_DOMAIN).X) == 10
    discrete = [{"name": "a", "type": "discrete", "domain": (0, 1, 2, 3)}]
    assert len(np.unique(run(lambda x: x[0, 0], discrete, initial_design_numdata=1, max_iter=3).X)) == 4


def test_time_is_limited():
    bo = ConstrainedBayesianOptimization(TOY.with_failures, DOMAIN)
    bo.run_optimization(max_iter=100, max_time=0.0)
    assert len(bo.X) == 0


def test_plots_work(tmp_path):
    bo = run(max_iter=2)
    bo.plot_convergence(str(tmp_path / "c.png"))
    bo.plot_acquisition(str(tmp_path / "a.png"))
    plt.close("all")
    assert (tmp_path / "c.png").exists()
    assert (tmp_path / "a.png").exists()


WRONG = [
    (
        lambda: ConstrainedBayesianOptimization(abs, DOMAIN, initial_design_numdata=0),
        "must be a positive integer, got 0",
    ),
    (lambda: run(lambda x: -np.inf), "f returned -inf"),
    (lambda: run(lambda x: [1.0, 2.0]), "the objective value must be one number, got list of shape"),
    (lambda: run(lambda x: 1j), "the objective value must be a real number, got 1j"),
    (lambda: run(lambda x: "good"), "the objective value must be a real number, got 'good'"),
    (lambda: run(lambda x: (1.0, 0.5)), "the label of 'feasible' must be -1"),
    (lambda: run(lambda x: (1.0, {"speed": 1})), "a value for 'speed', which is not among the constraints"),
    (lambda: run(lambda x: 1.0, feedback="real"), "f returned an objective value alone; return"),
    (lambda: run(lambda x: (1.0, [1, 2]), feedback="real"), "f returned 2 constraint values for the 1 constraints"),
    (lambda: run(lambda x: (1.0, np.inf), feedback="real"), "the value of 'constraint' must be finite, or nan"),
    (lambda: run(lambda x: np.inf, feedback=[], acquisition="mes"), "f returned inf, but nothing was said to fail"),
    (lambda: ConstrainedBayesianOptimization(3, DOMAIN), "f must be callable, got int"),
    (lambda: ConstrainedBayesianOptimization(abs, DOMAIN, Y=np.ones((1, 1))), "Y was given without X"),
    (lambda: ConstrainedBayesianOptimization(abs, DOMAIN, X=np.ones(2)), r"X must have shape \(N, 2\), got \(2,\)"),
    (lambda: ConstrainedBayesianOptimization(abs, DOMAIN, X=np.ones((2, 2)), Y=np.ones(3)), "X has 2 rows and Y 3"),
    (
        lambda: ConstrainedBayesianOptimization(abs, DOMAIN, acquisition="EI"),
        "must be one of 'cmes', 'cei', .* got 'EI'",
    ),
    (
        lambda: ConstrainedBayesianOptimization(
            abs, DOMAIN, acquisition=ConstrainedMES.for_domain(DOMAIN), acquisition_options=SMALL
        ),
        "acquisition_options and feedback go with a name or a class",
    ),
]


@pytest.mark.parametrize(("call", "message"), WRONG, ids=[m[:30] for _, m in WRONG])
def test_wrong_calls_get_one_sentence(call, message):
    with pytest.raises(CMESError, match=message):
        call()
