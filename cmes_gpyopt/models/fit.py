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

Array = npt.NDArray[np.float64]
Evidence = Callable[[Array, float], tuple[float, Array, float]]
"""Maps a prior covariance (N, N) and a noise variance to the log evidence, its gradient by the covariance (N, N), and
its derivative by the logarithm of the noise variance"""

# Bounds of the logarithms of length scales, on the unit cube, that keep a line search from wandering off.
LENGTHSCALE_BOUNDS = (np.log(5e-3), np.log(1e2))
MAX_STEPS = 100


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


def label_evidence(labels: Array, link: str, tolerance: float, max_sweeps: int) -> Evidence:
    """Evidence of labels (N,) by expectation propagation, at its fixed point; each call starts from the last one's sites."""
    last: list[Sites] = []

    def evidence(K: Array, noise: float) -> tuple[float, Array, float]:
        start = (last[0].tau, last[0].nu) if last else None
        sites = propagate(K, labels, link, start, tolerance=tolerance, max_sweeps=max_sweeps)
        last[:] = [sites]
        root = np.sqrt(sites.tau)
        half, _ = lapack.dtrtrs(sites.factor, np.diag(root), lower=1)
        alpha = sites.nu - root * lapack.dpotrs(sites.factor, root * (K @ sites.nu), lower=1)[0]
        return sites.log_evidence, 0.5 * (np.outer(alpha, alpha) - half.T @ half), 0.0

    return evidence


def objective(U: Array, evidence: Evidence, prior: Prior, noise_floor: float) -> Callable[[Array], tuple[float, Array]]:
    """The function of theta to minimise: minus log posterior, with gradient."""
    dimension = U.shape[1]
    squares = (U[:, None, :] - U[None, :, :]) ** 2  # (N, N, d)

    def function(theta: Array) -> tuple[float, Array]:
        variance, lengthscales = np.exp(theta[0]), np.exp(theta[1 : 1 + dimension])
        noise = np.exp(theta[-1]) if prior.noise is not None else 0.0
        r = np.sqrt(5.0 * (squares @ lengthscales**-2))
        e = variance * np.exp(-r)
        K = e * (1.0 + r * (1.0 + r / 3.0))
        value, by_covariance, by_noise = evidence(K, noise + noise_floor)
        log_prior, gradient = prior.log_density(theta, dimension)
        gradient[0] += float((by_covariance * K).sum())
        slope = (5.0 / 3.0) * e * (1.0 + r) * by_covariance
        gradient[1 : 1 + dimension] += np.tensordot(slope, squares, axes=2) / lengthscales**2
        if prior.noise is not None:
            gradient[-1] += by_noise * noise / (noise + noise_floor)
        return -(value + log_prior), -gradient

    return function


def search(function: Callable[[Array], tuple[float, Array]], starts: Sequence[Array], dimension: int) -> Array:
    """The theta with the smallest value that searches from ``starts`` find.

    Raises
    ------
    numpy.linalg.LinAlgError
        If no search succeeds.
    """
    bounds = [(-12.0, 12.0), *[LENGTHSCALE_BOUNDS] * dimension, *[(-25.0, 3.0)] * (len(starts[0]) - 1 - dimension)]
    found = []
    for start in starts:
        try:
            result = minimize(
                function, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": MAX_STEPS}
            )
        except np.linalg.LinAlgError:
            continue
        if np.isfinite(result.fun):
            found.append((float(result.fun), result.x))
    if not found:
        raise np.linalg.LinAlgError("no search for hyperparameters succeeded")
    return np.asarray(min(found, key=lambda pair: pair[0])[1])
