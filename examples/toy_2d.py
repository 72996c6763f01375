"""Constrained max-value entropy search on the paper's 2D problem (Perrone et al. 2020, section 4.1).

Three valleys; an evaluation fails wherever the objective is 1.2 or more, and then shows no value. The deepest valley is
also the smallest. Run it with

    python examples/toy_2d.py

It prints a table and writes a picture: the objective, the probability of feasibility, the acquisition function, and the
evaluated points in order.
"""

import argparse
import time

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from cmes_gpyopt import ConstrainedBayesianOptimization, ConstrainedMES
from cmes_gpyopt.plotting import plot_search_2d
from cmes_gpyopt.problems import TOY


def run(seed, num_initial, num_suggestions, options):
    """One run on the toy; returns the optimiser and the seconds it took."""
    bo = ConstrainedBayesianOptimization(
        TOY.with_failures,
        list(TOY.domain),
        acquisition=ConstrainedMES,
        initial_design_numdata=num_initial,
        seed=seed,
        acquisition_options=options,
    )
    start = time.perf_counter()
    bo.run_optimization(max_iter=num_suggestions, progress=True)
    return bo, time.perf_counter() - start


def report(bo, seconds):
    """Print what the run found."""
    failed = np.isinf(bo.Y).mean()
    rows = [
        ("evaluations", f"{len(bo.Y)}"),
        ("infeasible", f"{failed:.0%}"),
        ("best feasible value", "none" if bo.fx_opt is None else f"{bo.fx_opt:.4f}"),
        ("at", "none" if bo.x_opt is None else np.array2string(bo.x_opt, precision=3)),
        ("global optimum", f"{TOY.f_opt:.4f} at {TOY.x_opt}"),
        ("seconds", f"{seconds:.1f}"),
    ]
    for name, value in rows:
        print(f"{name:<22}{value}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--initial", type=int, default=5, help="random points evaluated first")
    parser.add_argument("--evaluations", type=int, default=50, help="evaluations in all")
    parser.add_argument("--preset", choices=["paper"], help="the paper's own settings")
    parser.add_argument("--output", default="toy_2d.png", help="file for the picture")
    arguments = parser.parse_args()

    bo, seconds = run(
        arguments.seed, arguments.initial, arguments.evaluations - arguments.initial, {"preset": arguments.preset}
    )
    report(bo, seconds)
    figure, axes = plt.subplots(1, 3, figsize=(14, 4.4), layout="constrained")
    plot_search_2d(axes, bo, TOY, "cMES")
    figure.savefig(arguments.output, dpi=130)
    print(f"picture               {arguments.output}")


if __name__ == "__main__":
    main()
