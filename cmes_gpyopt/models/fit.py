"""Hyperparameters by maximum a posteriori: the evidence of a latent function, and the search for its maximum.

The kernel is Matern-5/2 with variance v and length scales l_j; parameters are logarithms, in which the log-normal priors
are Gaussian and everything is unbounded. GPy computes the same evidence, some ten times slower for the few dozen points of
a search; its models receive the result.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.linalg import lapack
from scipy.optimize import minimize

from .ep import Sites, propagate
from .posterior import Matern52

Array = npt.NDArray[np.float64]
Evidence = Callable[[Array, float], tuple[float, Array, float]]
"""Maps a prior covariance (N, N) and a noise variance to the log evidence, its gradient by the covariance (N, N), and
its derivative by the logarithm of the noise variance"""
Objective = Callable[[Array], tuple[float, Array]]
"""Maps theta to minus its log posterior density, and the gradient"""

# Bounds of the logarithms of length scales, on the unit cube, that keep a line search from wandering off.
LENGTHSCALE_BOUNDS = (np.log(5e-3), np.log(1e2))
MAX_STEPS = 100
# A search ends when a step gains less than this share of the value: no digit of a length scale that matters.
PRECISION = 1e-5


class Prior(NamedTuple):
    """Log-normal priors as (median, standard deviation of the logarithm), and the Gamma prior of the length scales."""

    variance: tuple[float, float]
    lengthscale: tuple[float, float]
    """shape and rate"""
    noise: tuple[float, float] | None = None

    def log_density(self, theta: Array, dimension: int) -> tuple[float, Array]:
        """Log density of the logarithms theta = (log v, log l_1, ..., log noise), up to a constant, and its gradient."""
        gradient = np.zeros_like(theta)
        value = 0.0
        normals = [(0, self.variance)] if self.noise is None else [(0, self.variance), (-1, self.noise)]
        for index, (median, sigma) in normals:
            z = (theta[index] - np.log(median)) / sigma
            value -= 0.5 * z * z
            gradient[index] = -z / sigma
        shape, rate = self.lengthscale
        log_l = theta[1 : 1 + dimension]
        value += float((shape * log_l - rate * np.exp(log_l)).sum())
        gradient[1 : 1 + dimension] = shape - rate * np.exp(log_l)
        return value, gradient


def gaussian_evidence(values: Array) -> Evidence:
    """Evidence of values (N,) observed with Gaussian noise (Rasmussen and Williams 2006, Eqs. 5.8 and 5.9)."""

    def evidence(K: Array, noise: float) -> tuple[float, Array, float]:
        K = K.copy()
        K[np.diag_indices_from(K)] += noise
        factor, info = lapack.dpotrf(K, lower=1, overwrite_a=1, clean=1)
        if info:
            raise np.linalg.LinAlgError("the covariance of the observations is not positive definite")
        inverse, _ = lapack.dpotri(factor, lower=1)
        inverse = np.tril(inverse) + np.tril(inverse, -1).T
        alpha = inverse @ values
        value = -0.5 * float(values @ alpha) - float(np.log(factor.diagonal()).sum())
        by_covariance = 0.5 * (np.outer(alpha, alpha) - inverse)
        return value, by_covariance, noise * float(np.trace(by_covariance))

    return evidence


class LabelEvidence:
    """Evidence of labels (N,) by expectation propagation, at its fixed point; each call starts from the last one's sites."""

    def __init__(self, labels: Array, link: str, tolerance: float, max_sweeps: int) -> None:
        self._labels, self._link = labels, link
        self._tolerance, self._max_sweeps = tolerance, max_sweeps
        self._sites: Sites | None = None

    def sites(self, K: Array, tolerance: float) -> Sites:
        """The sites for a prior covariance (N, N)."""
        start = None if self._sites is None else (self._sites.tau, self._sites.nu)
        self._sites = propagate(K, self._labels, self._link, start, tolerance=tolerance, max_sweeps=self._max_sweeps)
        return self._sites

    def __call__(self, K: Array, noise: float) -> tuple[float, Array, float]:
        """As :data:`Evidence`; there is no noise."""
        sites = self.sites(K, self._tolerance)
        inverse = sites.half.T @ sites.half
        alpha = sites.weights(K)
        return sites.log_evidence, 0.5 * (np.outer(alpha, alpha) - inverse), 0.0


def objective(U: Array, evidence: Evidence, prior: Prior, noise_floor: float) -> Objective:
    """The function of theta to minimise."""
    dimension = U.shape[1]
    centred = U - U.mean(axis=0)

    def function(theta: Array) -> tuple[float, Array]:
        variance, lengthscales = np.exp(theta[0]), np.exp(theta[1 : 1 + dimension])
        noise = np.exp(theta[-1]) if prior.noise is not None else 0.0
        K, slope = Matern52(variance, lengthscales).with_slope(U, U)
        value, by_covariance, by_noise = evidence(K, noise + noise_floor)
        log_prior, gradient = prior.log_density(theta, dimension)
        gradient[0] += float((by_covariance * K).sum())
        # The sum over pairs of slope (u_i - u_j)^2, for a symmetric slope, without an array of all differences.
        slope *= by_covariance
        pairs = 2.0 * ((slope.sum(axis=1) @ centred**2) - ((slope @ centred) * centred).sum(axis=0))
        gradient[1 : 1 + dimension] += pairs / lengthscales**2
        if prior.noise is not None:
            gradient[-1] += by_noise * noise / (noise + noise_floor)
        return -(value + log_prior), -gradient

    return function


def search(function: Objective, starts: Sequence[Array], dimension: int, searches: int) -> Array:
    """The theta with the smallest value that searches from the best ``searches`` of ``starts`` find.

    Raises
    ------
    numpy.linalg.LinAlgError
        If no search succeeds.
    """
    if searches < len(starts):
        starts = sorted(starts, key=lambda start: function(start)[0])[:searches]
    bounds = [(-12.0, 12.0), *[LENGTHSCALE_BOUNDS] * dimension, *[(-25.0, 3.0)] * (len(starts[0]) - 1 - dimension)]
    found = []
    for start in starts:
        try:
            result = minimize(
                function,
                start,
                jac=True,
                method="L-BFGS-B",
                bounds=bounds,
                options={"maxiter": MAX_STEPS, "ftol": PRECISION, "gtol": 1e-3},
            )
        except np.linalg.LinAlgError:
            continue
        if np.isfinite(result.fun):
            found.append((float(result.fun), result.x))
    if not found:
        raise np.linalg.LinAlgError("no search for hyperparameters succeeded")
    return np.asarray(min(found, key=lambda pair: pair[0])[1])
