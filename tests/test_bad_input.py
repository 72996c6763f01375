"""Wrong calls: each gets one sentence that says what was expected, what came, and what to do."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from cmes_gpyopt import (
    BinaryConstraint,
    CMESError,
    ConstrainedBayesianOptimization,
    ConstrainedMES,
    Limits,
    RealConstraint,
)

GOOD = [{"name": "a", "type": "continuous", "domain": (0, 1)}, {"name": "b", "type": "discrete", "domain": (1, 2)}]
POOL = ThreadPoolExecutor(1)


def build(domain=GOOD, f=lambda x: 1.0, **options):
    return ConstrainedBayesianOptimization(f, domain, **options)


def one(**variable):
    return build([{"name": "a", "type": "continuous", "domain": (0, 1)} | variable])


CALLS = [
    # domains
    (lambda: build([]), r"domain must be a list with a dict for each variable"),
    (lambda: build({"name": "a"}), r"domain must be a list with a dict for each variable"),
    (lambda: build([(0, 1)]), r"domain must be a list with a dict for each variable"),
    (lambda: build([{"name": "a", "type": "continuous"}]), r"variable 'a' has no domain; add"),
    (lambda: one(domain=(1, 0)), r"continuous variable 'a' must be a pair .* low < high, got \(1, 0\)"),
    (lambda: one(domain=(0, 0)), r"low < high"),
    (lambda: one(domain=(0, np.inf)), r"a pair of finite numbers"),
    (lambda: one(domain=(0, 1, 2)), r"a pair of finite numbers"),
    (lambda: one(domain="0 to 1"), r"a pair of finite numbers"),
    (lambda: one(type="integer"), r"variable 'a' has the unknown type 'integer'; expected one of"),
    (lambda: one(type="discrete", domain=()), r"discrete variable 'a' must be a non-empty list of finite numbers"),
    (lambda: one(type="discrete", domain=("x", "y")), r"a non-empty list of finite numbers, got \('x', 'y'\)"),
    (lambda: one(type="categorical", domain=()), r"categorical variable 'a' must be a non-empty list of values"),
    (lambda: one(type="bandit", domain=[(1, 2)]), r"a two-dimensional array of finite numbers, one arm a row"),
    (lambda: one(dimensionality=0), r"the dimensionality of variable 'a' must be a positive integer, got 0"),
    (lambda: one(dimension=2), r"variable 'a' has the unknown key 'dimension'; expected"),
    (lambda: one(name=3), r"the name of a variable must be a string, got 3"),
    (lambda: build([GOOD[0], GOOD[0]]), r"variables need different names, got \['a', 'a'\]"),
    (
        lambda: build([GOOD[0], {"name": "arm", "type": "bandit", "domain": np.ones((2, 2))}]),
        r"a bandit variable cannot be combined with other variables",
    ),
    # known constraints
    (lambda: build(constraints="x[:,0]"), r"constraints must be a list of dicts"),
    (lambda: build(constraints=[BinaryConstraint()]), r"unknown ones go to feedback="),
    (lambda: build(constraints=[{"name": "c"}]), r"needs an expression under the key 'constraint'"),
    (lambda: build(constraints=[{"name": "c", "constraint": "x[:,0] -"}]), r"cannot be evaluated \(SyntaxError"),
    (lambda: build(constraints=[{"name": "c", "constraint": "x[:,7]"}]), r"cannot be evaluated \(IndexError"),
    # feedback
    (lambda: build(feedback="labels"), r"feedback must be 'binary', 'real' or a list of constraints, got 'labels'"),
    (lambda: build(feedback=[1]), r"feedback must list BinaryConstraint and RealConstraint objects, got 1"),
    (lambda: build(feedback=[RealConstraint("c"), BinaryConstraint("c")]), r"constraints need different names"),
    (lambda: build(feedback=[RealConstraint("c", upper=np.nan)]), r"needs a finite upper limit, got nan"),
    (lambda: build(feedback=[BinaryConstraint(link="log")]), r"link must be 'logistic' or 'probit', got 'log'"),
    (lambda: build(feedback="binary", acquisition="pesc"), r"PESC"),
    (lambda: build(feedback="binary", acquisition="mes"), r"MaxValueEntropySearch knows no constraints"),
    # acquisitions and their options
    (lambda: build(acquisition="ei"), r"acquisition must be one of 'cmes', .* got 'ei'"),
    (
        lambda: build(acquisition=42),
        r"acquisition must be a name, or a class or instance such as ConstrainedMES, got 42",
    ),
    (lambda: build(acquisition_options={"confidence": 2}), r"confidence must lie strictly between 0 and 1, got 2"),
    (lambda: build(acquisition_options={"grid_size": 0}), r"grid_size must be a positive integer, got 0"),
    (lambda: build(seed="one"), r"seed must be a non-negative integer, got 'one'"),
    (
        lambda: build(acquisition=ConstrainedMES.for_domain(GOOD), feedback="real"),
        r"feedback go with a name or a class",
    ),
    # data
    (lambda: build(Y=[1.0]), r"Y was given without X"),
    (lambda: build(X=[[0.5, 1]], C=[[1]]), r"C was given without Y"),
    (lambda: build(X=[0.5, 1]), r"X must have shape \(N, 2\), got \(2,\)"),
    (lambda: build(X=[[0.5]]), r"X must have shape \(N, 2\), got \(1, 1\)"),
    (lambda: build(X=[[np.nan, 1]]), r"X must be finite, row 0 is not"),
    (lambda: build(X=[[0.5, 1]], Y=[1.0, 2.0]), r"X has 1 rows and Y 2; pass one value for each point"),
    (lambda: build(X=[[0.5, 1]], Y=[1.0], C=[[0.3]]), r"the label of 'feasible' must be -1"),
    (lambda: build().tell([[0.5, 1]], [-np.inf]), r"f returned -inf"),
    (lambda: build(feedback="real").tell([[0.5, 1]], [1.0]), r"return \(y, c\) with c for the constraints"),
    (lambda: build().suggest_next_locations(pending_X=[0.5]), r"pending_X must have shape \(N, 2\), got \(1,\)"),
    # the loop
    (lambda: build(f="f"), r"f must be callable, got str; pass the function itself"),
    (
        lambda: build(f=None).run_optimization(1),
        r"there is no f to run; pass one, or use suggest_next_locations and tell",
    ),
    (lambda: build().run_optimization(-1), r"max_iter must be a non-negative integer, got -1"),
    (lambda: build().run_optimization(2.5), r"max_iter must be a non-negative integer, got 2.5"),
    (lambda: build().run_optimization(1, max_time=-1), r"max_time must be a non-negative number of seconds, got -1"),
    (lambda: build(initial_design_numdata=0), r"initial_design_numdata must be a positive integer, got 0"),
    (lambda: build(catch="all"), r"catch must be an exception class or a tuple of them, got 'all'"),
    (lambda: build(isolate="yes"), r"isolate must be True, False or Limits"),
    (lambda: build(isolate=Limits(seconds=-1)), r"seconds"),
    (lambda: build(isolate=Limits(memory="much")), r"memory"),
    (lambda: build(batch_size=0), r"batch_size must be a positive integer, got 0"),
    (lambda: build(workers=3), r"workers goes with an executor"),
    (lambda: build(executor=3), r"executor must be a concurrent.futures.Executor, got int"),
    (lambda: build(executor=POOL, workers=0), r"workers must be a positive integer"),
    (lambda: build(max_infeasible_fraction=1.5), r"max_infeasible_fraction must lie between 0 and 1, got 1.5"),
    (lambda: build().recommend(), r"nothing to recommend before the first evaluation"),
    (
        lambda: build(X=[[0.5, 1]], Y=[1.0]).recommend(confidence=1.0),
        r"confidence must be a number in \[0, 1\), got 1.0",
    ),
]


@pytest.mark.parametrize(("call", "message"), CALLS, ids=[m[:45] for _, m in CALLS])
def test_a_wrong_call_gets_one_sentence(call, message):
    with pytest.raises(CMESError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_there_are_enough_of_them():
    assert len(CALLS) >= 40


def test_misspelt_keywords_are_refused():
    with pytest.raises(TypeError, match="feedbck"):
        build(feedbck="real")
    with pytest.raises(TypeError, match="grid_sze"):
        build(acquisition_options={"grid_sze": 3})
    with pytest.raises(TypeError, match="max_iters"):
        build().run_optimization(max_iters=3)


def test_a_refused_tell_leaves_everything_as_it_was():
    bo = build(X=[[0.5, 1]], Y=[1.0])
    before = (bo.X.copy(), bo.Y.copy(), bo.C.copy(), bo.x_opt.copy())
    with pytest.raises(CMESError):
        bo.tell([[0.2, 1], [0.3, 2]], [1.0, -np.inf])
    for old, new in zip(before, (bo.X, bo.Y, bo.C, bo.x_opt), strict=True):
        np.testing.assert_array_equal(old, new)
