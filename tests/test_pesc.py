import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm, spearmanr

from cmes_gpyopt import BinaryConstraint, CMESError, ConstrainedBayesianOptimization, ConstrainedMES, RealConstraint
from cmes_gpyopt.acquisitions.pesc import (
    MAX_SWEEPS,
    PESC,
    Sites,
    expectation_propagation,
    gate_moments,
    joint_gates,
    posterior_covariance,
)

from .conftest import central_difference, relative_error


def cube(dimension, low=0.0, high=1.0):
    return [{"name": "x", "type": "continuous", "domain": (low, high), "dimensionality": dimension}]


def fitted(X, y, C, seed=0, **options):
    C = np.reshape(C, (len(X), -1))
    feedback = [RealConstraint(f"c{j}") for j in range(C.shape[1])]
    acquisition = PESC.for_domain(cube(X.shape[1]), feedback=feedback, seed=seed, **{"grid_size": 200, **options})
    acquisition.model.set_data(X, y, C)
    acquisition.update()
    return acquisition


def random_problem(seed, constraints=1, **options):
    """Six points of random waves in one or two dimensions; in every third problem two values are missing."""
    rng = np.random.default_rng(seed)
    dimension = 1 + seed % 2
    X = rng.uniform(0, 1, (6, dimension))
    waves = [np.sin(X @ (4 * rng.standard_normal(dimension)) + rng.uniform(0, 6)) for _ in range(2 + constraints)]
    y = waves[0] + 0.5 * waves[1] ** 2
    C = np.column_stack(waves[2:]) + 0.5 * rng.standard_normal(constraints) - 0.3 * (constraints - 1)
    if seed % 3 == 0:
        y[4], C[5, 0] = np.nan, np.nan
    return fitted(X, y, C, seed=seed, **options), rng


def rejection_variances(acquisition, X, rng, wanted=30_000, draws=100_000, rounds=20):
    """Latent variances (1 + J, n) given the first x* by rejection, the last condition for one candidate at a time."""
    model = acquisition.model
    evaluated = model.data.X
    points = np.vstack([acquisition.x_star[:1], evaluated, X])
    count = len(evaluated)
    kept = []
    for _ in range(rounds):
        values = [g.sample(points, rng.standard_normal((len(points), draws))) for g in acquisition._latents]
        holds = np.all([c <= d for c, d in zip(values[1:], acquisition.thresholds, strict=True)], axis=0)
        better = holds & (values[0] < values[0][:, :1])  # (draws, points)
        good = holds[:, 0] & ~better[:, 1 : 1 + count].any(axis=1)
        kept.append((np.array([v[good, 1 + count :] for v in values]), better[good, 1 + count :]))
        if sum(len(b) for _, b in kept) >= wanted:
            break
    values = np.concatenate([v for v, _ in kept], axis=1)  # (1 + J, accepted, n)
    better = np.vstack([b for _, b in kept])
    return np.array([values[:, ~better[:, i], i].var(axis=1) for i in range(len(X))]).T


def compared_with_rejection(problems, constraints=1):
    """Variances by rejection, by PESC and before conditioning, and both scores, for each of ``problems`` problems."""
    result, seed = [], 0
    while len(result) < problems:
        acquisition, rng = random_problem(seed, constraints, num_samples=1)
        seed += 1
        if not len(acquisition.x_star):
            continue
        X = rng.uniform(0, 1, (25, acquisition.x_star.shape[1]))
        exact = rejection_variances(acquisition, X, rng)
        before = np.array([g.moments(X).std ** 2 for g in acquisition._latents])
        noise = np.array([[g.noise] for g in acquisition._latents])
        score = acquisition._scores(X, False)
        reference = 0.5 * np.log((before + noise) / (exact + noise)).sum(axis=0)
        found = acquisition.conditioned_variances(X)[:, 0]
        result.append((exact + noise, found + noise, before + noise, score, reference))
    return result


@pytest.mark.parametrize(("constraints", "problems"), [(1, 20), (2, 6)])
def test_conditioned_variances_and_scores_agree_with_rejection_sampling(constraints, problems):
    results = compared_with_rejection(problems, constraints)
    exact, found, before = (np.concatenate([r[i].ravel() for r in results]) for i in range(3))
    error = np.abs(found / exact - 1.0)
    moved = exact < 0.8 * before
    score, reference = (np.concatenate([r[i] for r in results]) for i in (3, 4))
    ranks = [spearmanr(r[3], r[4])[0] for r in results]
    pooled = spearmanr(score, reference)[0]
    print(
        f"\n{problems} problems, {constraints} constraints: error of {error.size} variances: median {np.median(error):.4f}, "
        f"90 % {np.quantile(error, 0.9):.4f}, 99 % {np.quantile(error, 0.99):.4f}, worst {error.max():.3f}, "
        f"above 35 %: {(error > 0.35).sum()}; of {moved.sum()} that fell by a fifth: median {np.median(error[moved]):.4f}, "
        f"90 % {np.quantile(error[moved], 0.9):.4f}; rank correlation pooled {pooled:.4f}, "
        f"by problem: median {np.median(ranks):.4f}, worst {np.min(ranks):.4f}"
    )
    assert np.median(error) < 0.02
    assert np.median(error[moved]) < 0.05
    assert np.quantile(error[moved], 0.9) < 0.25
    assert np.mean(error > 0.35) < 0.01
    assert pooled > 0.95
    assert np.median(ranks) > 0.9
