"""Expectation propagation for binary labels, all sites at once.

GPy's own EP visits the sites one by one in an order taken from the global random state, needs the probit link and by
default stops short of the fixed point while hyperparameters move. :class:`ParallelEP` is a GPy inference method that
updates all sites in one vectorised, damped sweep, is bounded in sweeps, uses no randomness, and is converged whenever
it returns, so that the marginal-likelihood gradient GPy sees is the gradient at the fixed point.

Labels are z = -1 (feasible) and z = +1 (infeasible), P(z | c) = link(z c).

References
----------
Minka (2001), Expectation propagation for approximate Bayesian inference.
Rasmussen and Williams (2006), Gaussian Processes for Machine Learning, section 3.6.
"""

import logging
from collections import deque
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.linalg import lapack
from scipy.special import expit, log_ndtr

from .._gpyopt import EP, GPy
from ..normal import hazard

Array = npt.NDArray[np.float64]

logger = logging.getLogger(__name__)

# Site precisions are positive for log-concave links; this floor only absorbs rounding.
MIN_PRECISION = 1e-10

# The trapezoidal rule converges geometrically for the tilted density. In u, with c = 4 sinh(u), the poles of the link, at
# c = +-i pi, are 0.9 away from the real line however wide the density is, and the Gaussian factor stays bounded up to pi/4;
# near the mode a step may not exceed STEP_AT_MODE standard deviations either. The error is below 1e-12 for every width.
# A density narrower than WIDE needs no such spacing. The window is 8.5 standard deviations around the mode, plus half a
# one because the mode is only bracketed.
HALF_WINDOW = 9.0
MIN_NODES = 52
SPREAD = 4.0
STEP = 0.1
STEP_AT_MODE = 0.4
WIDE = 1.0


class Tilted(NamedTuple):
    """Normaliser, mean and variance of P(z | c) N(c; mean, variance), each (N,)."""

    log_z: Array
    mean: Array
    variance: Array


def probit_moments(labels: Array, mean: Array, variance: Array) -> Tilted:
    """Moments of Phi(z c) N(c; mean, variance), in closed form."""
    scale = np.sqrt(1.0 + variance)
    t = labels * mean / scale
    h = hazard(-t)
    shift = h / scale
    return Tilted(log_ndtr(t), mean + labels * variance * shift, variance - variance**2 * shift * (t / scale + shift))


def logistic_moments(labels: Array, mean: Array, variance: Array) -> Tilted:
    """Moments of sigma(z c) N(c; mean, variance), by the trapezoidal rule around the mode."""
    std = np.sqrt(variance)
    m = labels * mean
    # The mode solves c = m + v sigma(-c) and so lies in [m, m + v]; bisect until the bracket is half a std wide.
    low, high = m, m + variance
    for _ in range(max(int(np.ceil(np.log2(2.0 * std.max(initial=0.5)))), 0)):
        middle = 0.5 * (low + high)
        right = m + variance * expit(-middle) > middle
        low, high = np.where(right, middle, low), np.where(right, high, middle)
    centre = 0.5 * (low + high)
    low, high = centre - HALF_WINDOW * std, centre + HALF_WINDOW * std
    wide = np.flatnonzero(std > WIDE)
    start, end = np.arcsinh(low[wide] / SPREAD), np.arcsinh(high[wide] / SPREAD)
    step = np.minimum(STEP, STEP_AT_MODE * std[wide] / np.hypot(centre[wide], SPREAD))
    count = int(np.ceil(((end - start) / step).max(initial=MIN_NODES - 1))) + 1
    nodes = np.linspace(0.0, 1.0, count)[:, None]
    c = low + (high - low) * nodes  # (nodes, N)
    weight = np.broadcast_to((high - low) / (count - 1), c.shape).copy()
    if len(wide):
        growth = np.exp(start + (end - start) * nodes)
        decay = 1.0 / growth
        c[:, wide] = 0.5 * SPREAD * (growth - decay)
        weight[:, wide] = 0.5 * SPREAD * (growth + decay) * ((end - start) / (count - 1))
    # sigma(c) is exp(min(c, 0)) / (1 + exp(-|c|)); the exponent at the centre, near the largest, is taken out of the sum.
    peak = np.minimum(centre, 0.0) - 0.5 * ((centre - m) / std) ** 2
    weight *= np.exp(np.minimum(c, 0.0) - 0.5 * ((c - m) / std) ** 2 - peak)
    weight /= 1.0 + np.exp(-np.abs(c))
    total = weight.sum(axis=0)
    offset = (c - centre) / std
    first = (weight * offset).sum(axis=0) / total
    second = (weight * (offset - first) ** 2).sum(axis=0) / total
    log_z = peak + np.log(total / std) - 0.5 * np.log(2.0 * np.pi)
    return Tilted(log_z, labels * (centre + std * first), variance * second)


MOMENTS = {"logistic": logistic_moments, "probit": probit_moments}


class Sites(NamedTuple):
    """Converged EP: Gaussian sites exp(nu c - tau c^2 / 2), log evidence, and how convergence went."""

    tau: Array
    nu: Array
    log_evidence: float
    half: Array
    """L^-1 tau^(1/2), (N, N), with the Cholesky factor L of I + tau^(1/2) K tau^(1/2)"""
    residual: float
    sweeps: int

    def weights(self, K: Array) -> Array:
        """The weights w (N,) of the posterior mean k(x, X) w, for the prior covariance K (N, N) that EP ran with.

        Written so that a site of almost no precision does no harm.
        """
        return np.asarray(self.nu - self.half.T @ (self.half @ (K @ self.nu)))


def _site_posterior(K: Array, tau: Array, nu: Array) -> tuple[Array, Array, Array, Array]:
    """Posterior mean and marginal variances (N,), the Cholesky factor L of B = I + tau^(1/2) K tau^(1/2), and L^-1."""
    root = np.sqrt(tau)
    B = root[:, None] * K * root
    B[np.diag_indices_from(B)] += 1.0
    factor, info = lapack.dpotrf(B, lower=1, overwrite_a=1, clean=1)
    if info:
        raise np.linalg.LinAlgError("the EP covariance is not positive definite; check the data for non-finite values")
    inverse, _ = lapack.dtrtri(factor, lower=1)
    mean = K @ nu
    mean -= K @ (root * (inverse.T @ (inverse @ (root * mean))))
    # The posterior covariance is also tau^(-1/2) (I - B^-1) tau^(-1/2), whose diagonal is cheap; where a site says so
    # little that the subtraction would cost digits, the definition serves.
    variance = (1.0 - np.einsum("ij,ij->j", inverse, inverse)) / tau
    vague = np.flatnonzero(tau * K.diagonal() < 1e-3)
    if len(vague):
        explained = inverse @ (root[:, None] * K[:, vague])
        variance[vague] = K.diagonal()[vague] - np.einsum("ij,ij->j", explained, explained)
    return mean, np.maximum(variance, 1e-300), factor, inverse


def propagate(
    K: Array, labels: Array, link: str, start: tuple[Array, Array] | None = None, *, tolerance: float, max_sweeps: int
) -> Sites:
    """Run EP to its fixed point.

    Parameters
    ----------
    K : array of shape (N, N)
        Prior covariance.
    labels : array of shape (N,)
        -1 or +1.
    start : pair of arrays (N,), optional
        Sites (tau, nu) to start from; zero by default.
    tolerance : float
        Largest difference allowed between a tilted and a posterior marginal, in posterior standard deviations
        (mean) and relative (variance).
    max_sweeps : int
        Bound on the sweeps; where it is reached the best sites so far are returned and a warning is logged.
    """
    found = _iterate(K, labels, link, start, tolerance, max_sweeps)
    if start is not None and found.residual >= tolerance:
        # Sites that belong to very different hyperparameters can be a worse start than none.
        again = _iterate(K, labels, link, None, tolerance, max_sweeps)
        found = min(found, again, key=lambda sites: sites.residual)
    if found.residual >= tolerance:
        logger.warning("EP stopped after %d sweeps with residual %.1e", max_sweeps, found.residual)
    return found


def _iterate(
    K: Array, labels: Array, link: str, start: tuple[Array, Array] | None, tolerance: float, max_sweeps: int
) -> Sites:
    """Sweeps until the residual is below ``tolerance``; the best sites met."""
    moments = MOMENTS[link]
    tau, nu = start if start is not None else (np.full(len(labels), MIN_PRECISION), np.zeros(len(labels)))
    damping, last, best = 1.0, np.inf, None
    steps = AndersonSteps()
    for sweeps in range(1, max_sweeps + 1):
        mean, variance, factor, inverse = _site_posterior(K, tau, nu)
        std = np.sqrt(variance)
        cavity_tau = np.maximum(1.0 / variance - tau, MIN_PRECISION)
        cavity_nu = mean / variance - nu
        tilted = moments(labels, cavity_nu / cavity_tau, 1.0 / cavity_tau)
        residual = float(max(np.abs((tilted.mean - mean) / std).max(), np.abs(tilted.variance / variance - 1.0).max()))
        if best is None or residual < best.residual:
            log_evidence = _log_evidence(tau, nu, cavity_tau, cavity_nu, mean, tilted, factor)
            best = Sites(tau, nu, log_evidence, inverse * np.sqrt(tau), residual, sweeps)
        if residual < tolerance:
            break
        if residual > last and steps.plain is not None:
            # The step was an extrapolation that went wrong: back to where the plain one leads.
            sites = steps.plain
            steps = AndersonSteps()
        else:
            change = np.concatenate(
                [1.0 / tilted.variance - cavity_tau - tau, tilted.mean / tilted.variance - cavity_nu - nu]
            )
            # Halve the steps when they overshoot, and lengthen them again when they do not.
            damping = max(0.5 * damping, 0.05) if residual > last else min(1.3 * damping, 1.0)
            steps = AndersonSteps() if residual > last else steps
            last = residual
            sites = steps.next(np.concatenate([tau, nu]), change, np.concatenate([variance, std]), damping)
        tau, nu = np.maximum(sites[: len(tau)], MIN_PRECISION), sites[len(tau) :]
    assert best is not None
    return best


class AndersonSteps:
    """Anderson acceleration of a fixed-point iteration: the secants of the last few steps stand in for its Jacobian.

    References
    ----------
    Walker and Ni (2011), Anderson acceleration for fixed-point iterations.
    """

    def __init__(self, depth: int = 6) -> None:
        self.plain: Array | None = None
        """where the plain step would have led, if the last one was not plain"""
        self._points: deque[Array] = deque(maxlen=depth)
        self._changes: deque[Array] = deque(maxlen=depth)

    def next(self, point: Array, change: Array, weights: Array, damping: float) -> Array:
        """The point to go on from, where a plain step would add ``change``; all (n,), ``weights`` those of the norm.

        Steps are plain while they are damped.
        """
        self._points.append(point)
        self._changes.append(change)
        if len(self._points) == 1 or damping < 1.0:
            self.plain = None
            return point + damping * change
        self.plain = point + change
        d_points, d_changes = np.diff(self._points, axis=0).T, np.diff(self._changes, axis=0).T
        share, *_ = np.linalg.lstsq(d_changes * weights[:, None], change * weights, rcond=1e-10)
        return np.asarray(self.plain - (d_points + d_changes) @ share)


def _log_evidence(
    tau: Array, nu: Array, cavity_tau: Array, cavity_nu: Array, mean: Array, tilted: Tilted, factor: Array
) -> float:
    # Rasmussen and Williams, Eqs. (3.73) and (3.74): the posterior's quadratic term is nu' mean.
    both = cavity_tau + tau
    evidence = (
        tilted.log_z
        + 0.5 * np.log1p(tau / cavity_tau)
        + 0.5 * nu * (mean - nu / both)
        + 0.5 * cavity_nu * (tau * cavity_nu / cavity_tau - 2.0 * nu) / both
    )
    return float(evidence.sum() - np.log(factor.diagonal()).sum())


class Logistic(GPy.likelihoods.link_functions.GPTransformation):  # type: ignore[misc]
    """The logistic link, which GPy does not have."""

    def transf(self, f: Array) -> Array:
        """sigma(f)."""
        return np.asarray(expit(f))

    def dtransf_df(self, f: Array) -> Array:
        """First derivative."""
        return np.asarray(expit(f) * expit(-f))

    def d2transf_df2(self, f: Array) -> Array:
        """Second derivative."""
        s = expit(f)
        return np.asarray(s * expit(-f) * (1.0 - 2.0 * s))

    def d3transf_df3(self, f: Array) -> Array:
        """Third derivative."""
        s = expit(f)
        slope = s * expit(-f)
        return np.asarray(slope * (1.0 - 6.0 * slope))


class LogisticBernoulli(GPy.likelihoods.Bernoulli):  # type: ignore[misc]
    """GPy's Bernoulli likelihood with the logistic link and its EP moments."""

    def __init__(self) -> None:
        super().__init__(Logistic())
        self.log_concave = True

    def moments_match_ep(
        self, Y_i: Any, tau_i: float, v_i: float, Y_metadata_i: Any = None
    ) -> tuple[float, float, float]:
        """Z, mean and variance of the tilted distribution of one site, as GPy's own EP asks for them."""
        label = np.atleast_1d(np.where(np.asarray(Y_i) == 1, 1.0, -1.0)).ravel()[:1]
        tilted = logistic_moments(label, np.atleast_1d(v_i / tau_i), np.atleast_1d(1.0 / tau_i))
        return float(np.exp(tilted.log_z[0])), float(tilted.mean[0]), float(tilted.variance[0])

    def predictive_mean(self, mu: Array, variance: Array, Y_metadata: Any = None) -> Array:
        """P(z = +1) for latent moments (n, 1)."""
        ones = np.ones(mu.size)
        log_z = logistic_moments(ones, mu.ravel(), np.maximum(variance.ravel(), 1e-300)).log_z
        return np.exp(log_z).reshape(mu.shape)

    def predictive_variance(self, mu: Array, variance: Array, pred_mean: Array, Y_metadata: Any = None) -> Array:
        """Variance of the label in {0, 1}."""
        return np.asarray(pred_mean * (1.0 - pred_mean))


class ParallelEP(EP):  # type: ignore[misc]
    """GPy inference method: :func:`propagate`, warm-started while hyperparameters move."""

    def __init__(self, link: str, tolerance: float = 1e-6, max_sweeps: int = 200) -> None:
        super().__init__(max_iters=max_sweeps, ep_mode="nested")
        self.link = link
        self.tolerance = tolerance
        self.sites: Sites | None = None

    def reset(self) -> None:
        """Forget the warm start."""
        super().reset()
        self.sites = None

    def inference(
        self,
        kern: Any,
        X: Any,
        likelihood: Any,
        Y: Any,
        mean_function: Any = None,
        Y_metadata: Any = None,
        precision: Any = None,
        K: Array | None = None,
    ) -> tuple[Any, float, dict[str, Any]]:
        """Posterior, log evidence and its gradients, as GPy expects them."""
        K = kern.K(X) if K is None else K
        labels = np.where(np.asarray(Y).ravel() == 1, 1.0, -1.0)
        warm = self.sites is not None and len(self.sites.tau) == len(labels)
        start = (self.sites.tau, self.sites.nu) if warm and self.sites is not None else None
        self.sites = propagate(
            np.asarray(K), labels, self.link, start, tolerance=self.tolerance, max_sweeps=self.max_iters
        )
        inverse = self.sites.half.T @ self.sites.half
        alpha = self.sites.weights(np.asarray(K))
        dL_dK = 0.5 * (np.outer(alpha, alpha) - inverse)
        posterior = GPy.inference.latent_function_inference.posterior.PosteriorEP(
            woodbury_inv=inverse, woodbury_vector=alpha[:, None], K=K
        )
        gradients = {"dL_dK": dL_dK, "dL_dthetaL": np.zeros(0), "dL_dm": alpha[:, None]}
        return posterior, self.sites.log_evidence, gradients
