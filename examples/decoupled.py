"""A constraint that costs a tenth of the objective: evaluate each where it tells most for its cost.

The problem is the first of Gardner et al. (2014): minimise cos(2 x1) cos(x2) + sin(x1) on [0, 6]^2 where
cos(x1 + x2) <= 0.5. Run it with

    python examples/decoupled.py

It compares evaluating both together (cost 1.1) with choosing, at every step, which of the two to evaluate and where. It
prints the regret of the recommended point against the cost spent, and writes a picture.
"""

import argparse

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from cmes_gpyopt import ConstrainedMES, RealConstraint
from cmes_gpyopt.acquisitions import Decoupled

DOMAIN = [{"name": "x", "type": "continuous", "domain": (0.0, 6.0), "dimensionality": 2}]
COSTS = {"objective": 1.0, "sum": 0.1}
UPPER = 0.5


def objective(x):
    return np.cos(2 * x[..., 0]) * np.cos(x[..., 1]) + np.sin(x[..., 0])


def constraint(x):
    return np.cos(x[..., 0] + x[..., 1])


def true_optimum():
    """The constrained minimum on a fine grid."""
    axis = np.linspace(0, 6, 2001)
    grid = np.stack(np.meshgrid(axis, axis), axis=-1)
    return objective(grid)[constraint(grid) <= UPPER].min()


def recommend(model, confidence=0.95):
    """The evaluated point with the lowest posterior mean among those that are probably feasible."""
    X = model.data.X
    probability = model.probability_feasible(X)
    good = probability >= min(confidence, probability.max())
    return X[good][np.argmin(model.predict(X[good])[0])]


def run(costs, seed, budget):
    """Spend ``budget``; returns the cost spent and the true value of the recommendation after each evaluation."""
    acquisition = ConstrainedMES.for_domain(
        DOMAIN, feedback=[RealConstraint("sum", upper=UPPER)], grid_size=500, estimator="kl", seed=seed
    )
    policy = Decoupled(acquisition, costs)
    spent, trace = 0.0, []
    for x in np.random.default_rng(seed).uniform(0, 6, (3, 2)):
        policy.tell(x[None], {"objective": objective(x), "sum": constraint(x)})
        spent += sum(COSTS.values())
    while spent < budget:
        x, target, _ = policy.suggest()
        targets = COSTS if target == "joint" else [target]
        values = {"objective": float(objective(x[0])), "sum": float(constraint(x[0]))}
        policy.tell(x, {name: values[name] for name in targets})
        spent += sum(COSTS[name] for name in targets)
        best = recommend(acquisition.model)
        # A recommendation that is not feasible is worth nothing: it counts as the worst value there is.
        trace.append((spent, objective(best) if constraint(best) <= UPPER else 2.0))
    return np.array(trace)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--budget", type=float, default=20.0)
    parser.add_argument("--output", default="decoupled.png", help="file for the picture")
    arguments = parser.parse_args()

    optimum = true_optimum()
    policies = {"together": {"joint": sum(COSTS.values())}, "decoupled": COSTS}
    marks = np.linspace(5, arguments.budget, 50)
    figure, ax = plt.subplots(figsize=(6.5, 4), layout="constrained")
    print(
        f"{'policy':<12}{'mean regret at half the budget':<34}{'at the whole budget':<22}{'cost to regret < 0.05':<22}"
    )
    for name, costs in policies.items():
        curves, reached = [], []
        for seed in range(arguments.seeds):
            trace = run(costs, seed, arguments.budget)
            regret = trace[:, 1] - optimum
            last = np.searchsorted(trace[:, 0], marks, side="right") - 1
            curves.append(np.where(last >= 0, regret[np.maximum(last, 0)], np.nan))
            good = np.flatnonzero(regret < 0.05)
            reached.append(trace[good[0], 0] if len(good) else np.inf)
        curves = np.array(curves)
        mean = np.nanmean(curves, axis=0)
        ax.plot(marks, mean, label=name)
        print(f"{name:<12}{mean[len(marks) // 2]:<34.4f}{mean[-1]:<22.4f}{np.median(reached):<22.1f}")
    ax.set(xlabel="cost spent", ylabel="mean regret of the recommendation", yscale="log")
    ax.legend()
    figure.savefig(arguments.output, dpi=110)
    print(f"picture     {arguments.output}")


if __name__ == "__main__":
    main()
