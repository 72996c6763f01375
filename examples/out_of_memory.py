"""Tune a regression whose larger models do not fit into memory: the failures are real, and cost nothing but themselves.

Ridge regression on random Fourier features (Rahimi and Recht, 2007). More features predict better, up to where the
matrix of features needs more memory than an evaluation may have. Nobody tells the optimiser where that is: each
evaluation runs in a process of its own, and one that runs out of memory is recorded as infeasible. Run it with

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
    {"name": "log2_features", "type": "continuous", "domain": (4.0, 18.0)},
    {"name": "log10_ridge", "type": "continuous", "domain": (-6.0, 2.0)},
]
DIMENSIONS, TRAINING, VALIDATION = 4, 300, 1700
LENGTHSCALE = 0.5


def make_data():
    """Inputs and noisy values of a smooth function, for training and validation together."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (TRAINING + VALIDATION, DIMENSIONS))
    y = np.sin(4 * X[:, 0]) * np.cos(3 * X[:, 1]) + X[:, 2] * X[:, 3]
    return X, y + 0.05 * rng.normal(size=len(y))


def features(X, number):
    """Random Fourier features of a squared exponential kernel, (N, number); more of them begin with the fewer."""
    directions = np.random.default_rng(1).normal(size=(number, DIMENSIONS)) / LENGTHSCALE
    F = X @ directions.T
    F += np.random.default_rng(2).uniform(0, 2 * np.pi, number)
    np.cos(F, out=F)
    F *= np.sqrt(2 / number)
    return F


def validation_error(x):
    """Root mean square error on the validation data; allocates all the features at once."""
    number, ridge = round(2 ** x[0, 0]), 10 ** x[0, 1]
    X, y = make_data()
    F = features(X, number)
    train, validate = F[:TRAINING], F[TRAINING:]
    dual = np.linalg.solve(train @ train.T + ridge * np.eye(TRAINING), y[:TRAINING])
    prediction = validate @ (train.T @ dual)
    return float(np.sqrt(np.mean((prediction - y[TRAINING:]) ** 2)))


def report(bo, seconds):
    """The table."""
    causes = Counter(cause for cause in bo.causes if cause)
    print(f"{'evaluations':<34}{len(bo.X)} in {seconds:.0f} s")
    print(f"{'feasible':<34}{bo.feasible.sum()}")
    for cause, count in causes.most_common():
        print(f"{cause:<34}{count}")
    if bo.x_opt is None:
        print("no evaluation was feasible")
        return
    print(f"{'best number of features':<34}{round(2 ** bo.x_opt[0])}")
    print(f"{'best ridge':<34}{10 ** bo.x_opt[1]:.2g}")
    print(f"{'validation error':<34}{bo.fx_opt:.4f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--evaluations", type=int, default=20, help="of which the first five are random")
    arguments = parser.parse_args()

    start = time.monotonic()
    bo = ConstrainedBayesianOptimization(validation_error, DOMAIN, seed=0, isolate=LIMITS)
    bo.run_optimization(max_iter=max(0, arguments.evaluations - 5), progress=True)
    report(bo, time.monotonic() - start)


if __name__ == "__main__":
    main()
