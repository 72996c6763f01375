"""Draws of the optimum y*: jointly, and as if all values were independent (Perrone et al. 2020, Figure 1).

The mean-field draws of Wang and Jegelka (2017) fall without end as more points are considered; joint draws settle. Run it
with

    python examples/ystar_histogram.py

It prints the mean of each set of draws and writes a picture.
"""

import argparse

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from cmes_gpyopt import ConstrainedModel
from cmes_gpyopt.optima import candidate_grid, joint_optima, marginal_optima
from cmes_gpyopt.problems import TOY


def fitted_model(seed, count):
    """The toy's models after ``count`` random evaluations."""
    from GPyOpt.core.task.space import Design_space

    model = ConstrainedModel(Design_space(list(TOY.domain)))
    X = np.random.default_rng(seed).uniform(-1, 1, (count, 2))
    model.updateModel(X, TOY.with_failures(X))
    return model


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--evaluations", type=int, default=25, help="random evaluations the models are fitted to")
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--sizes", type=int, nargs="+", default=[250, 1000, 4000], help="points of the grid")
    parser.add_argument("--output", default="ystar_histogram.png", help="file for the picture")
    arguments = parser.parse_args()

    model = fitted_model(arguments.seed, arguments.evaluations)
    scale, offset = model.objective.scale, model.objective.offset
    thresholds = [constraint.threshold(0.5) for constraint in model.constraints]
    figure, axes = plt.subplots(1, 2, figsize=(11, 3.8), sharex=True, sharey=True, layout="constrained")
    print(f"{'points':<10}{'joint mean':<14}{'independent mean':<18}")
    for size in arguments.sizes:
        grid = candidate_grid(model.space, size, model.data.X, np.random.default_rng(arguments.seed))
        means = []
        samplers = (("joint draws", joint_optima), ("independent draws", marginal_optima))
        for ax, (title, sampler) in zip(axes, samplers, strict=True):
            rng = np.random.default_rng(arguments.seed + 1)
            draws = sampler(model.objective, model.constraints, thresholds, grid, arguments.draws, rng).y_star
            draws = offset + scale * draws[np.isfinite(draws)]
            means.append(draws.mean())
            ax.hist(draws, bins=50, density=True, histtype="stepfilled", alpha=0.45, label=f"{size} points")
            ax.set(title=title, xlabel="y*")
        print(f"{size:<10}{means[0]:<14.4f}{means[1]:<18.4f}")
    for ax in axes:
        ax.axvline(TOY.f_opt, color="black", linestyle="--", linewidth=1, label="true optimum")
        ax.legend(fontsize=8)
    axes[0].set_ylabel("density")
    figure.savefig(arguments.output, dpi=110)
    print(f"picture   {arguments.output}")


if __name__ == "__main__":
    main()
