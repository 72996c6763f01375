"""Keeping the share of failed evaluations near a limit (max_infeasible_fraction).

Run it with

    python examples/control_failures.py

It runs constrained max-value entropy search on the paper's 2D problem with and without a limit, and prints the share of
failures and the best value that each reaches.
"""

import argparse

import numpy as np

from cmes_gpyopt import ConstrainedBayesianOptimization
from cmes_gpyopt.problems import TOY


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--evaluations", type=int, default=30, help="suggestions in each run, after five random points")
    parser.add_argument("--limits", type=float, nargs="+", default=[0.4, 0.2])
    arguments = parser.parse_args()

    print(f"{'limit':<10}{'infeasible suggestions':<26}{'infeasible in all':<20}{'mean best value':<16}")
    for limit in [None, *arguments.limits]:
        shares, whole, best = [], [], []
        for seed in range(arguments.seeds):
            bo = ConstrainedBayesianOptimization(
                TOY.with_failures,
                list(TOY.domain),
                seed=seed,
                max_infeasible_fraction=limit,
                acquisition_options={"grid_size": 500},
            )
            bo.run_optimization(arguments.evaluations)
            shares.append(1 - bo.feasible[5:].mean())
            whole.append(1 - bo.feasible.mean())
            best.append(TOY.objective(np.zeros((1, 2)))[0] if bo.fx_opt is None else bo.fx_opt)
        name = "none" if limit is None else f"{limit:.0%}"
        print(f"{name:<10}{np.mean(shares):<26.0%}{np.mean(whole):<20.0%}{np.mean(best):<16.3f}")


if __name__ == "__main__":
    main()
