"""Constrained max-value entropy search on the paper's 2D problem (Perrone et al. 2020, section 4.1).

Three valleys; an evaluation fails wherever the objective is 1.2 or more, and then shows no value. The deepest valley is
also the smallest. Run it with

    python examples/toy_2d.py
    python examples/toy_2d.py --method cmes,cei

It prints a table and writes a picture: the objective, the probability of feasibility, the acquisition function, and the
evaluated points in order.
"""

import argparse
import time

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from cmes_gpyopt import ConstrainedBayesianOptimization
from cmes_gpyopt.acquisitions import METHODS
from cmes_gpyopt.plotting import plot_search_2d
from cmes_gpyopt.problems import TOY

TITLES = {"cmes": "cMES", "cei": "constrained EI", "ap": "adaptive percentile", "random": "random search"}


def run(method, arguments):
    """One run on the toy; returns the optimiser and the seconds it took."""
    bo = ConstrainedBayesianOptimization(
        TOY.with_failures,
        list(TOY.domain),
        acquisition=METHODS[method],
        initial_design_numdata=arguments.initial,
        seed=arguments.seed,
        acquisition_options={"preset": arguments.preset} if method == "cmes" else None,
    )
    start = time.perf_counter()
    bo.run_optimization(max_iter=arguments.evaluations - arguments.initial, progress=True)
    return bo, time.perf_counter() - start


def report(runs):
    """Print what each run found."""

    def best(bo):
        if bo.x_opt is None:
            return "none"
        return f"{bo.fx_opt:.4f} at {np.array2string(bo.x_opt, precision=3)}"

    rows = [
        ("method", list(runs)),
        ("evaluations", [len(bo.Y) for bo, _ in runs.values()]),
        ("infeasible", [f"{1 - bo.feasible.mean():.0%}" for bo, _ in runs.values()]),
        ("best feasible value", [best(bo) for bo, _ in runs.values()]),
        ("global optimum", [f"{TOY.f_opt:.4f} at {TOY.x_opt}"] * len(runs)),
        ("seconds", [f"{seconds:.1f}" for _, seconds in runs.values()]),
    ]
    for name, values in rows:
        print(f"{name:<22}" + "".join(f"{value!s:<28}" for value in values).rstrip())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--method", default="cmes", help=f"one or more of {','.join(TITLES)}, separated by commas")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--initial", type=int, default=5, help="random points evaluated first, the same for all methods"
    )
    parser.add_argument("--evaluations", type=int, default=50, help="evaluations in all")
    parser.add_argument("--preset", choices=["paper"], help="the paper's own settings of cMES")
    parser.add_argument("--output", default="toy_2d.png", help="file for the picture")
    arguments = parser.parse_args()
    methods = arguments.method.split(",")
    unknown = [name for name in methods if name not in TITLES]
    if unknown:
        parser.error(f"unknown method {unknown[0]!r}; choose from {', '.join(TITLES)}")

    runs = {method: run(method, arguments) for method in methods}
    report(runs)
    figure, axes = plt.subplots(len(runs), 3, figsize=(14, 4.4 * len(runs)), layout="constrained", squeeze=False)
    for row, (method, (bo, _)) in zip(axes, runs.items(), strict=True):
        plot_search_2d(row, bo, TOY, TITLES[method])
    figure.savefig(arguments.output, dpi=110)
    print(f"{'picture':<22}{arguments.output}")


if __name__ == "__main__":
    main()
