"""Predictive entropy search with constraints, for constraints that are measured.

For each of K draws x* of the constrained optimum, the posterior of the objective f and of the constraints c_j is
conditioned on what makes x* the optimum,

    c_j(x*) <= delta_j  for all j,                                                                    (a)
    not (f(x_i) < f(x*) and c_j(x_i) <= delta_j for all j)   at every evaluated point x_i,            (b)
    the same at the candidate x,                                                                      (c)

and the score of x is the entropy of an observation (y, c_1, ..., c_J) at x less its mean entropy after conditioning.
Conditions (a) and (b) do not depend on x and are replaced by Gaussian sites, found by expectation propagation once for
each x*; (c) is one more moment-matching step, for all candidates at once. f and the c_j stay independent Gaussians.

References
----------
Hernandez-Lobato, Gelbart, Hoffman, Adams and Ghahramani (2015), Predictive entropy search for Bayesian optimization
with unknown constraints, ICML.
Minka (2001), Expectation propagation for approximate Bayesian inference.

Notes
-----
Condition (b) depends on f through w_i = f(x_i) - f(x*) only, so its site in (f(x_i), f(x*)) has rank one, and one
precision and one shift describe it: the paper's 2 x 2 matrices reduce to this. All moments are in closed form, because
a Gaussian variable under (b) or (c), with the other variables integrated out, has density N(t) (1 - q 1[t < g]) / Z.

Against rejection sampling from the exact conditional (tests/test_pesc.py) the median error of the conditioned variances
is below 1 %. The approximation fails where (c) and an earlier condition bound nearly the same variable from both sides,
which happens around x*: the variance left is then, in most cases, too large, and the score too low.
"""

import logging
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .. import spaces
from .._gpyopt import Design_space
from ..checks import whole_number
from ..errors import CMESError
from ..models import ConstrainedModel, LatentPosterior, RealConstraint
from ..normal import log1mexp, log_cdf, log_pdf
from ..optima import candidate_grid, pathwise_optima
from .base import GRID_STREAM, OPTIMA_STREAM, ConstrainedAcquisition

Array = npt.NDArray[np.float64]

logger = logging.getLogger(__name__)

# Expectation propagation: all sites are updated together, which needs damping. Marginals that move by less than the
# tolerance, in prior standard deviations, count as converged.
MAX_SWEEPS = 50
DAMPING = 0.5
TOLERANCE = 1e-4

# Standardised gates are clipped here. Nothing at stake has probability exp(-5000), and the variance of a truncated
# variable, 1/g^2 from a difference of terms near g^2, keeps eight digits.
GATE_LIMIT = 100.0

# Step of the central differences, in widths of the box.
DIFFERENCE_STEP = 1e-5

# Candidates are scored in blocks of this many rows, which bounds memory at K * N * BLOCK doubles for N observations.
BLOCK = 1024


class Gate(NamedTuple):
    """Moments of a standard normal variable t with density N(t) (1 - q 1[t < g]) / Z."""

    mean: Array
    variance: Array


def gate_moments(g: Array, log_q: Array | float) -> Gate:
    """Mean and variance of a standard normal variable of which a share q is removed below g.

    Parameters
    ----------
    g : array
        Clipped to abs(g) <= GATE_LIMIT.
    log_q : array broadcastable with g
        At most 0; 0 is plain truncation to t >= g.

    Notes
    -----
    Z = 1 - q Phi(g), mean b = q N(g) / Z, variance 1 + g b - b^2. The variance exceeds one where a distant part of
    the normal is left next to a nearly removed bulk.
    """
    g = np.clip(g, -GATE_LIMIT, GATE_LIMIT)
    log_z = np.logaddexp(log1mexp(log_q), log_q + log_cdf(-g))
    mean = np.exp(log_q + log_pdf(g) - log_z)
    return Gate(mean, 1.0 + mean * (g - mean))


def joint_gates(gates: list[Array]) -> list[Gate]:
    """Moments of independent standard normal variables t_l, given that not all of them lie below their gates g_l.

    Parameters
    ----------
    gates : list of arrays of one shape

    Returns
    -------
    list of Gate, one for each variable
    """
    log_p = [log_cdf(np.clip(g, -GATE_LIMIT, GATE_LIMIT)) for g in gates]
    others = [sum((p for m, p in enumerate(log_p) if m != j), start=np.zeros_like(log_p[0])) for j in range(len(gates))]
    return [gate_moments(g, log_q) for g, log_q in zip(gates, others, strict=True)]


class Sites:
    """K Gaussians over M linear functionals of one latent function, each functional with a Gaussian site.

    Parameters
    ----------
    mean : array of shape (K, M)
    covariance : array of shape (K, M, M)
        Positive semidefinite; it may be singular.
    floor : float
        Smallest variance.
    """

    def __init__(self, mean: Array, covariance: Array, floor: float) -> None:
        values, vectors = np.linalg.eigh(covariance)
        self.prior_mean, self.floor = mean, floor
        self.prior_variance = np.maximum(np.einsum("kii->ki", covariance), floor)
        self.root = vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :]  # (K, M, M)
        self.tau, self.nu = np.zeros_like(mean), np.zeros_like(mean)
        self._refresh()

    def _refresh(self) -> None:
        inner = np.swapaxes(self.root, 1, 2) @ (self.tau[:, :, None] * self.root)
        factor = np.linalg.cholesky(np.eye(self.tau.shape[1]) + inner)
        half = np.linalg.solve(factor, np.swapaxes(self.root, 1, 2))
        self.covariance = np.swapaxes(half, 1, 2) @ half
        shift = self.nu - self.tau * self.prior_mean
        self.mean = self.prior_mean + np.einsum("kij,kj->ki", self.covariance, shift)
        self.variance = np.maximum(np.einsum("kii->ki", self.covariance), self.floor)

    def cavity(self) -> tuple[Array, Array, npt.NDArray[np.bool_]]:
        """Mean and variance of each functional without its own site, and where these exist, each (K, M)."""
        precision = 1.0 / self.variance - self.tau
        good = precision > 0.0
        variance = np.where(good, 1.0 / np.where(good, precision, 1.0), self.variance)
        mean = np.where(good, variance * (self.mean / self.variance - self.nu), self.mean)
        return mean, variance, good

    def move(self, tau: Array, nu: Array) -> Array:
        """Move the sites to (tau, nu), each (K, M), and return how far marginals moved (K,), in prior deviations.

        A sample whose sites would leave no proper Gaussian keeps its old ones.
        """
        before = self.mean, self.variance, self.tau, self.nu
        self.tau, self.nu = tau, nu
        try:
            self._refresh()
        except np.linalg.LinAlgError:
            inner = np.swapaxes(self.root, 1, 2) @ (tau[:, :, None] * self.root)
            proper = np.linalg.eigvalsh(np.eye(tau.shape[1]) + inner)[:, :1] > np.finfo(float).eps ** 0.5
            self.tau, self.nu = np.where(proper, tau, before[2]), np.where(proper, nu, before[3])
            self._refresh()
        scale = np.sqrt(self.prior_variance)
        moved = np.abs(self.mean - before[0]) / scale + np.abs(self.variance - before[1]) / self.prior_variance
        return np.asarray(moved.max(axis=1, initial=0.0))

    def conditioning(self) -> tuple[Array, Array]:
        """What the sites do to other values u of the function: beta (K, M) and B (K, M, M).

        With k the covariance of u with the functionals, the mean of u grows by k beta and a covariance falls by k B k'.
        """
        B = -self.tau[:, :, None] * self.covariance * self.tau[:, None, :]
        np.einsum("kii->ki", B)[...] += self.tau
        return self.nu - self.tau * self.mean, B


def site_from_gate(gate: Gate, mean: Array, variance: Array) -> tuple[Array, Array]:
    """Precision and shift of the site that turns a cavity (mean, variance) into its gated version."""
    tau = (1.0 / gate.variance - 1.0) / variance
    return tau, tau * mean + gate.mean / (gate.variance * np.sqrt(variance))


def expectation_propagation(objective: Sites, constraints: list[Sites], thresholds: list[float]) -> int:
    """Fit the sites of conditions (a) and (b) in place.

    Parameters
    ----------
    objective : Sites
        Over w_i = f(x_i) - f(x*), (K, N).
    constraints : list of J Sites
        Over c_j at x* and at the N evaluated points, (K, 1 + N).
    thresholds : list of J floats

    Returns
    -------
    number of sweeps
    """
    for sweep in range(1, MAX_SWEEPS + 1):
        proposals = _proposals(objective, constraints, thresholds)
        moved = 0.0
        for sites, (tau, nu, good) in zip([objective, *constraints], proposals, strict=True):
            step = np.where(good, DAMPING, 0.0)
            change = sites.move(sites.tau + step * (tau - sites.tau), sites.nu + step * (nu - sites.nu))
            moved = max(moved, float(change.max(initial=0.0)))
        if moved < TOLERANCE:
            return sweep
    logger.debug("expectation propagation stopped after %d sweeps, still moving by %.1e", MAX_SWEEPS, moved)
    return MAX_SWEEPS


def _proposals(objective: Sites, constraints: list[Sites], thresholds: list[float]) -> list[tuple[Array, Array, Any]]:
    """Undamped sites (tau, nu) of every latent function, and where they may be used."""
    w_mean, w_variance, good = objective.cavity()
    cavities = [sites.cavity() for sites in constraints]
    gates = [-w_mean / np.sqrt(w_variance)]
    for (mean, variance, proper), delta in zip(cavities, thresholds, strict=True):
        gates.append((delta - mean[:, 1:]) / np.sqrt(variance[:, 1:]))
        good = good & proper[:, 1:]
    gated = joint_gates(gates)
    proposals: list[tuple[Array, Array, Any]] = [(*site_from_gate(gated[0], w_mean, w_variance), good)]
    for (mean, variance, proper), delta, gate in zip(cavities, thresholds, gated[1:], strict=True):
        # Condition (a) is truncation from above: that of the mirrored variable from below.
        below = gate_moments((mean[:, :1] - delta) / np.sqrt(variance[:, :1]), 0.0)
        moments = Gate(np.hstack([-below.mean, gate.mean]), np.hstack([below.variance, gate.variance]))
        proposals.append((*site_from_gate(moments, mean, variance), np.hstack([proper[:, :1], good])))
    return proposals


@dataclass(frozen=True)
class Conditioned:
    """One latent function given (a) and (b), for each of K draws x*.

    The points are x* and the N evaluated points.
    """

    posterior: LatentPosterior
    x_star: Array
    """(K, d), on the unit cube"""
    evaluated: Array
    """(N, d), on the unit cube"""
    beta: Array
    """(K, 1 + N)"""
    B: Array
    """(K, 1 + N, 1 + N)"""
    star_mean: Array
    """(K,), mean at x*"""
    star_variance: Array
    """(K,)"""
    star_weights: Array
    """(K, 1 + N): B times the covariance of the points with x*"""

    def moments(self, U: Array) -> tuple[Array, Array, Array]:
        """Mean, variance and covariance with the value at x*, each (K, n), at U (n, d)."""
        prior = self.posterior.moments(U)
        k = np.empty((len(self.x_star), len(U), 1 + len(self.evaluated)))
        k[:, :, 0] = posterior_covariance(self.posterior, U, self.x_star).T
        k[:, :, 1:] = posterior_covariance(self.posterior, U, self.evaluated)
        mean = prior.mean + (k @ self.beta[:, :, None])[:, :, 0]
        variance = prior.std**2 - ((k @ self.B) * k).sum(axis=2)
        with_star = k[:, :, 0] - (k @ self.star_weights[:, :, None])[:, :, 0]
        return mean, np.maximum(variance, self.posterior.variance_floor), with_star


def posterior_covariance(posterior: LatentPosterior, U: Array, V: Array) -> Array:
    """Latent covariances (n, m) between points U (n, d) and V (m, d) of the unit cube."""
    left, right = (posterior.kernel(points, posterior.inputs) @ posterior.half.T for points in (U, V))
    return np.asarray(posterior.kernel(U, V) - left @ right.T)


def candidate_variances(
    objective: Conditioned, constraints: list[Conditioned], thresholds: list[float], U: Array
) -> Array:
    """Latent variances of f and c_1, ..., c_J given (a), (b) and (c), by one moment-matching step for (c).

    Parameters
    ----------
    objective, constraints : Conditioned
    thresholds : list of J floats
    U : array of shape (n, d)
        Candidates on the unit cube.

    Returns
    -------
    array of shape (1 + J, K, n)

    Notes
    -----
    With w = f(x) - f(x*) and r the variance of its gated, standardised version, the variance of f(x) changes by
    cov(f(x), w)^2 / var(w) (r - 1). r may exceed one, since (c), unlike (a), can leave two separate modes: theory
    demands no upper bound for a single x*, and the exact variances do exceed the predictive ones.
    """
    mean, variance, with_star = objective.moments(U)
    floor = objective.posterior.variance_floor
    w_variance = np.maximum(variance + objective.star_variance[:, None] - 2.0 * with_star, floor)
    latent = [c.moments(U)[:2] for c in constraints]
    gates = [(objective.star_mean[:, None] - mean) / np.sqrt(w_variance)]
    gates += [(delta - m) / np.sqrt(v) for (m, v), delta in zip(latent, thresholds, strict=True)]
    gated = joint_gates(gates)
    # The bound is Cauchy and Schwarz's; rounding can break it where x is next to x*.
    explained = np.minimum((variance - with_star) ** 2 / w_variance, variance)
    result = [np.maximum(variance + explained * (gated[0].variance - 1.0), floor)]
    for c, (_, v), gate in zip(constraints, latent, gated[1:], strict=True):
        result.append(np.maximum(v * gate.variance, c.posterior.variance_floor))
    return np.stack(result)


def condition_on_optima(
    posteriors: list[LatentPosterior], thresholds: list[float], x_star: Array, evaluated: Array
) -> list[Conditioned]:
    """The objective and the constraints given (a) and (b).

    Parameters
    ----------
    posteriors : list of 1 + J LatentPosterior
        The objective first.
    thresholds : list of J floats
    x_star : array of shape (K, d)
    evaluated : array of shape (N, d)
        Both on the unit cube.

    Returns
    -------
    list of 1 + J Conditioned
    """
    points = np.stack([np.vstack([x, evaluated]) for x in x_star])  # (K, 1 + N, d)
    joints = []
    for posterior in posteriors:
        means, covariances = zip(*(posterior.joint(p) for p in points), strict=True)
        joints.append((np.array(means), np.array(covariances)))
    # w = A f with f at the points, x* first.
    A = np.hstack([-np.ones((len(evaluated), 1)), np.eye(len(evaluated))])
    mean, covariance = joints[0]
    floors = [posterior.variance_floor for posterior in posteriors]
    sites = [Sites(mean @ A.T, A @ covariance @ A.T, floors[0])]
    sites += [Sites(*joint, floor) for joint, floor in zip(joints[1:], floors[1:], strict=True)]
    expectation_propagation(sites[0], sites[1:], thresholds)
    maps = [A] + [np.eye(1 + len(evaluated))] * len(thresholds)
    return [
        _conditioned(posterior, s, linear, *joint, x_star, evaluated)
        for posterior, s, linear, joint in zip(posteriors, sites, maps, joints, strict=True)
    ]


def _conditioned(
    posterior: LatentPosterior,
    sites: Sites,
    linear: Array,
    mean: Array,
    covariance: Array,
    x_star: Array,
    evaluated: Array,
) -> Conditioned:
    """Sites on the functionals ``linear`` (M, 1 + N) of the values at the points, carried over to those values."""
    beta, B = sites.conditioning()
    beta, B = beta @ linear, linear.T @ B @ linear
    with_star = covariance[:, :, 0]  # (K, 1 + N)
    weights = np.einsum("kij,kj->ki", B, with_star)
    star_mean = mean[:, 0] + (with_star * beta).sum(axis=1)
    star_variance = np.maximum(covariance[:, 0, 0] - (with_star * weights).sum(axis=1), posterior.variance_floor)
    return Conditioned(posterior, x_star, evaluated, beta, B, star_mean, star_variance, weights)


class PESC(ConstrainedAcquisition):
    """Information that an evaluation gives about the location x* of the constrained optimum.

    For constraints whose values are measured, and an objective that is seen wherever they are.

    Parameters
    ----------
    model, space, optimizer, cost_withGradients
        As for GPyOpt acquisitions; ``PESC.for_domain(domain)`` builds them.
    num_samples : int
        Draws of x* to average over.
    grid_size : int
        Points from the best of which each sample path is minimised to draw x*.
    seed : int
        See :class:`ConstrainedAcquisition`.

    Attributes
    ----------
    x_star : array of shape (K, d)
        Draws of x* for the current data. Paths without a feasible point have none: K may be below ``num_samples``.

    Notes
    -----
    If no path has a feasible point there is no x* to learn about, and the score is 1 / (1 - log P(feasible)): it has
    the maximum of the probability of feasibility, which itself may be zero to machine precision everywhere.
    Pending points count as evaluated, with their posterior means as values.
    A score can be slightly negative: a single x* may widen a prediction. Gradients are central differences.
    """

    def __init__(
        self,
        model: ConstrainedModel,
        space: Design_space,
        optimizer: Any = None,
        cost_withGradients: Any = None,
        *,
        num_samples: int = 10,
        grid_size: int = 1000,
        seed: int = 0,
    ) -> None:
        super().__init__(model, space, optimizer, cost_withGradients, seed=seed)
        kinds = [type(c).__name__ for c in model.constraints]
        if not kinds or not all(isinstance(c, RealConstraint) for c in model.constraints):
            raise CMESError(
                f"PESC needs one or more measured constraints (RealConstraint), got {', '.join(kinds) or 'none'}; "
                "pass feedback='real' and return constraint values, or use ConstrainedMES"
            )
        self.num_samples = whole_number("num_samples", num_samples, 1)
        self.grid_size = whole_number("grid_size", grid_size, 1)
        self.x_star: Array = np.empty((0, space.model_dimensionality))
        self._conditioned: list[Conditioned] = []

    @classmethod
    def for_domain(
        cls, domain: list[dict[str, Any]], constraints: Any = None, *, feedback: Any = "real", **options: Any
    ) -> ConstrainedAcquisition:
        """As for :class:`ConstrainedAcquisition`, with one measured constraint by default."""
        return super().for_domain(domain, constraints, feedback=feedback, **options)

    @property
    def thresholds(self) -> list[float]:
        """Latent values delta_j up to which each constraint is satisfied."""
        # A measured constraint has no label to be confident about: the argument does not enter.
        return [c.threshold(0.5) for c in self.constraints]

    def _prepare(self) -> None:
        known = np.vstack([self.model.data.X, self.pending])
        grid = candidate_grid(self.space, self.grid_size, known, self.generator(GRID_STREAM))
        rng = self.generator(OPTIMA_STREAM)
        latents = (self.objective, self.constraints, self.thresholds)
        x_star = pathwise_optima(*latents, grid, self.num_samples, rng, self.space).x_star
        assert x_star is not None
        self.x_star = x_star[np.isfinite(x_star).all(axis=1)]
        self._conditioned = []
        if len(self.x_star):
            posteriors = [latent.posterior for latent in self._latents]
            evaluated = self._to_unit(spaces.distinct(known))
            self._conditioned = condition_on_optima(posteriors, self.thresholds, self._to_unit(self.x_star), evaluated)

    @property
    def _latents(self) -> list[Any]:
        return [self.objective, *self.constraints]

    def _to_unit(self, X: Array) -> Array:
        lower, width = spaces.box(self.space)
        return np.asarray((X - lower) / width)

    def conditioned_variances(self, X: Array) -> Array:
        """Latent variances of the objective and the constraints at X (n, d) for each draw x*, (1 + J, K, n)."""
        self.update()
        if not self._conditioned:
            return np.empty((1 + len(self.constraints), 0, len(X)))
        objective, *constraints = self._conditioned
        return candidate_variances(objective, constraints, self.thresholds, self._to_unit(X))

    def _values(self, X: Array) -> Array:
        if not self._conditioned:
            log_feasible = np.sum([c.log_feasible(X) for c in self.constraints], axis=0)
            return np.asarray(1.0 / (1.0 - log_feasible))
        objective, *constraints = self._conditioned
        after = candidate_variances(objective, constraints, self.thresholds, self._to_unit(X))
        total = np.zeros(len(X))
        for latent, variance in zip(self._latents, after, strict=True):
            before = latent.moments(X).std ** 2
            total += 0.5 * (np.log(before + latent.noise) - np.log(variance + latent.noise).mean(axis=0))
        return total

    def _scores(self, X: Array, grad: bool) -> Any:
        if not grad:
            return np.concatenate([self._values(X[i : i + BLOCK]) for i in range(0, max(len(X), 1), BLOCK)])
        n, d = X.shape
        steps = DIFFERENCE_STEP * np.diag(spaces.box(self.space)[1])
        copies = X + np.concatenate([np.zeros((1, d)), steps, -steps])[:, None, :]  # (1 + 2 d, n, d)
        values = self._scores(copies.reshape(-1, d), False).reshape(-1, n)
        slopes = (values[1 : 1 + d] - values[1 + d :]) / (2.0 * steps.diagonal()[:, None])
        return values[0], slopes.T
