"""Tune a regression that runs out of memory where it would be best: the failures are real, and take nothing with them.

Kernel ridge regression. The more training points it uses the better it predicts, up to where its matrices need more
memory than an evaluation may have. Nobody tells the optimiser where that is: each evaluation runs in a process of its
own, and one that runs out of memory is recorded as infeasible. Run it with

    python examples/out_of_memory.py

It prints how many evaluations failed and why, and the best setting that fits.
"""

import argparse
import time
from collections import Counter

import numpy as np

from cmes_gpyopt import ConstrainedBayesianOptimization
from cmes_gpyopt.isolation import Limits

LIMITS = Limits(seconds=20, memory="400MB")
DOMAIN = [
    {"name": "log2_points", "type": "continuous", "domain": (4.0, 14.0)},
    {"name": "log10_lengthscale", "type": "continuous", "domain": (-2.0, 2.0)},
]
INITIAL = 5


def data(number, seed):
    """Inputs (number, 4) and noisy values of a smooth function; more points begin with the fewer."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (number, 4))
    noise = np.random.default_rng(seed + 1).normal(size=number)
    return X, np.sin(5 * X[:, 0]) * np.cos(4 * X[:, 1]) + X[:, 2] * X[:, 3] + 0.1 * noise


def kernel(A, B, lengthscale):
    """Squared exponential kernel (n, m), by way of all the differences at once, (n, m, 4)."""
    squares = ((A[:, None, :] - B[None, :, :]) ** 2).sum(axis=2)
    return np.exp(-squares / (2 * lengthscale**2))


def validation_error(x):
    """Root mean square error on 500 points that were not used for training."""
    number, lengthscale = round(2 ** x[0, 0]), 10 ** x[0, 1]
    X, y = data(number, seed=0)
    weights = np.linalg.solve(kernel(X, X, lengthscale) + 0.01 * np.eye(number), y)
    X_new, y_new = data(500, seed=10)
    return float(np.sqrt(np.mean((kernel(X_new, X, lengthscale) @ weights - y_new) ** 2)))


def report(bo, seconds):
    """The table."""
    rows = {"evaluations": f"{len(bo.X)} in {seconds:.0f} s", "feasible": bo.feasible.sum()}
    rows |= dict(Counter(cause for cause in bo.causes if cause).most_common())
    if bo.x_opt is None:
        rows["best setting"] = "none: no evaluation was feasible"
    else:
        rows["best number of points"] = round(2 ** bo.x_opt[0])
        rows["best length scale"] = f"{10 ** bo.x_opt[1]:.2f}"
        rows["validation error"] = f"{bo.fx_opt:.4f}"
    for name, value in rows.items():
        print(f"{name:<34}{value}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--evaluations", type=int, default=20, help=f"of which {INITIAL} are random (20)")
    arguments = parser.parse_args()

    start = time.monotonic()
    initial = min(INITIAL, arguments.evaluations)
    bo = ConstrainedBayesianOptimization(
        validation_error, DOMAIN, initial_design_numdata=initial, seed=0, isolate=LIMITS
    )
    bo.run_optimization(max_iter=arguments.evaluations - initial, progress=True)
    report(bo, time.monotonic() - start)


if __name__ == "__main__":
    main()
