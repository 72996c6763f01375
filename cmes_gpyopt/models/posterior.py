"""A Gaussian-process posterior from cached factors: moments, gradients and joint covariances.

GPy's own predictions are exact but slow to differentiate; after a fit everything needed is copied into a
:class:`LatentPosterior`, whose calls are a kernel evaluation and one or two matrix products. Inputs live on the unit
cube and outputs in the model's own (standardised or latent) units.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy.linalg import blas, lapack
from scipy.spatial.distance import cdist

Array = npt.NDArray[np.float64]

logger = logging.getLogger(__name__)

# Relative to the prior variance. Rounding leaves an absolute error near 1e-14 in a posterior variance; below
# this floor a computed variance is noise and its gradient meaningless.
VARIANCE_FLOOR = 1e-11

# Relative jitter tried in turn when a covariance on a dense grid is not positive definite in floating point.
JITTER_LADDER = (0.0, 1e-10, 1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4)
# Where others are conditioned on the points factorised. Points that nearly coincide have pivots that are rounding alone;
# a factorisation may succeed with them, and what is divided by them is noise. With this jitter that noise stays below it.
NEIGHBOURS_LADDER = JITTER_LADDER[1:]

# Numbers that fit into the second-level cache of any current processor.
CACHED_ENTRIES = 2**15


@dataclass(frozen=True)
class Moments:
    """Latent mean and standard deviation at n points, and their gradients if they were asked for."""

    mean: Array
    """(n,); (K, n) where the posterior was conditioned on K sets of values"""
    std: Array
    """(n,), positive"""
    d_mean: Array | None = None
    """(n, d); None for K sets, whose gradients are only ever needed summed up"""
    d_std: Array | None = None
    """(n, d)"""
    mean_pullback: Callable[[Array], Array] | None = None
    """For K sets: maps weights (K, n) to the gradient (n, d) of the weighted sum of the means over K"""

    def pullback(self, by_mean: Array, by_std: Array) -> Array:
        """Gradient (n, d) of a score with partial derivatives by mean, (k, n) to be summed over k, and by std (n,)."""
        assert self.d_std is not None
        if self.mean_pullback is not None:
            return np.asarray(self.mean_pullback(by_mean) + by_std[:, None] * self.d_std)
        assert self.d_mean is not None
        return np.asarray(by_mean.sum(axis=0)[:, None] * self.d_mean + by_std[:, None] * self.d_std)

    def of_draws(self, which: npt.NDArray[np.int_]) -> "Moments":
        """The moments of set ``which[i]`` at point i, for means of K sets and their gradients; which has shape (n,)."""
        assert self.mean_pullback is not None
        chosen = np.zeros_like(self.mean)
        chosen[which, np.arange(len(which))] = 1.0
        return Moments((chosen * self.mean).sum(axis=0), self.std, self.mean_pullback(chosen), self.d_std)


@dataclass(frozen=True)
class Matern52:
    """The Matern-5/2 covariance with one length scale for each input."""

    variance: float
    lengthscales: Array

    def distance(self, A: Array, B: Array) -> Array:
        """Scaled distances sqrt(5) |a - b| / lengthscale, (len(A), len(B))."""
        scale = np.sqrt(5.0) / self.lengthscales
        return np.asarray(cdist(A * scale, B * scale))

    def __call__(self, A: Array, B: Array) -> Array:
        """Covariances, (len(A), len(B))."""
        k = self.distance(A, B)
        # Rows are worked on in place, so many at a time that they stay in the processor's cache.
        count = max(CACHED_ENTRIES // max(len(B), 1), 1)
        for start in range(0, len(A), count):
            r = k[start : start + count]
            polynomial = r * (self.variance / 3.0)
            polynomial += self.variance
            polynomial *= r
            polynomial += self.variance
            np.negative(r, out=r)
            np.exp(r, out=r)
            r *= polynomial
        return k

    def with_slope(self, A: Array, B: Array) -> tuple[Array, Array]:
        """Covariances k and s, both (len(A), len(B)), with dk/da_j = -s (a_j - b_j) / lengthscale_j^2."""
        r = self.distance(A, B)
        e = np.exp(-r)
        # In the order of __call__, so that a value does not depend on whether its gradient is wanted.
        k = e * ((r * (self.variance / 3.0) + self.variance) * r + self.variance)
        return k, (5.0 / 3.0 * self.variance) * e * (1.0 + r)


@dataclass(frozen=True)
class LatentPosterior:
    """Posterior with mean k(x, X) w and covariance k(x, x') - (H k(X, x))' (H k(X, x'))."""

    kernel: Matern52
    inputs: Array
    """(N, d), on the unit cube"""
    weights: Array
    """(N,), w; (K, N) where the posterior was conditioned on K sets of values"""
    half: Array
    """(N, N), H: a square root of the inverse of K plus the (site) noise"""
    targets: Array
    """(N,), observed values, or the means of the EP sites"""
    noise_std: Array
    """(N,), their standard deviations"""

    @classmethod
    def prior(cls, kernel: Matern52) -> "LatentPosterior":
        """The prior: no data."""
        empty = np.empty(0)
        return cls(kernel, np.empty((0, kernel.lengthscales.size)), empty, np.empty((0, 0)), empty, empty)

    @property
    def variance_floor(self) -> float:
        """Smallest variance reported."""
        return VARIANCE_FLOOR * self.kernel.variance

    def moments(self, U: Array, *, grad: bool = False) -> Moments:
        """Latent mean and standard deviation at U (n, d), with their gradients on request."""
        if not grad:
            k = self.kernel(U, self.inputs)
            variance = self.kernel.variance - ((k @ self.half.T) ** 2).sum(axis=1)
            return Moments(self.weights @ k.T, np.sqrt(np.maximum(variance, self.variance_floor)))
        k, slope = self.kernel.with_slope(U, self.inputs)
        projected = k @ self.half.T  # (n, N)
        variance = self.kernel.variance - (projected**2).sum(axis=1)
        std = np.sqrt(np.maximum(variance, self.variance_floor))
        d_std = self.contract(U, slope * (projected @ self.half)) / -std[:, None]
        d_std[variance < self.variance_floor] = 0.0
        mean = self.weights @ k.T
        if self.weights.ndim == 1:
            return Moments(mean, std, self.contract(U, slope * self.weights), d_std)
        return Moments(mean, std, None, d_std, lambda w: self.contract(U, slope * (w.T @ self.weights)))

    def contract(self, U: Array, coefficients: Array) -> Array:
        """Sum over the data of coefficients (n, N) times -(u_j - X_j) / lengthscale_j^2, (n, d)."""
        total = coefficients @ self.inputs - U * coefficients.sum(axis=1)[:, None]
        return np.asarray(total / self.kernel.lengthscales**2)

    def joint(self, U: Array) -> tuple[Array, Array]:
        """Mean (m,) and covariance (m, m) at U; the covariance is neither clipped nor jittered."""
        k = self.kernel(U, self.inputs)
        projected = k @ self.half.T
        covariance = self.kernel(U, U)
        covariance -= projected @ projected.T
        return self.weights @ k.T, covariance

    def sample(self, U: Array, normals: Array) -> Array:
        """Exact joint draws at U (m, d) from standard normals (m, K); returns (K, m)."""
        k = self.kernel(U, self.inputs)
        factor = grid_cholesky(self.kernel, U, k @ self.half.T)
        return np.asarray(self.weights @ k.T + blas.dtrmm(1.0, factor, normals, lower=1).T)

    def condition(self, U: Array, values: Array) -> "LatentPosterior":
        """The posterior given exact values at further points U (p, d).

        Parameters
        ----------
        values : array of shape (p,) or (K, p)
            With K sets of values the means differ between sets and everything else is shared.
        """
        cross = self.kernel(U, self.inputs) @ self.half.T  # (p, N)
        covariance = self.kernel(U, U) - cross @ cross.T
        factor = jittered_cholesky(covariance, self.kernel.variance, NEIGHBOURS_LADDER)
        inverse, _ = lapack.dtrtrs(factor, np.eye(len(U)), lower=1)
        on_data = cross @ self.half  # (p, N)
        half = np.block([[self.half, np.zeros((self.size, len(U)))], [-inverse @ on_data, inverse]])
        surprise = values - self.weights @ self.kernel(U, self.inputs).T
        on_new = surprise @ inverse.T @ inverse
        weights = np.concatenate([self.weights - on_new @ on_data, on_new], axis=-1)
        last = values if values.ndim == 1 else values[0]
        return LatentPosterior(
            self.kernel,
            np.vstack([self.inputs, U]),
            weights,
            half,
            np.concatenate([self.targets, last]),
            np.concatenate([self.noise_std, np.zeros(len(U))]),
        )

    @cached_property
    def size(self) -> int:
        """Number of data."""
        return len(self.inputs)


def jittered_cholesky(matrix: Array, scale: float, ladder: Sequence[float] = JITTER_LADDER) -> Array:
    """Lower Cholesky factor of ``matrix``, with the smallest jitter of the ladder, times ``scale``, that makes it succeed.

    Raises
    ------
    numpy.linalg.LinAlgError
        If the largest jitter, 1e-4 of ``scale``, does not suffice.
    """
    for jitter in ladder:
        # The transpose of a C-ordered symmetric matrix is Fortran-ordered without a copy.
        jittered = np.array(matrix.T, order="F")
        if jitter:
            jittered[np.diag_indices_from(jittered)] += jitter * scale
        factor, info = lapack.dpotrf(jittered, lower=1, overwrite_a=1, clean=1)
        if info == 0:
            if jitter:
                logger.debug("Cholesky of order %d needed jitter %.0e of the variance", len(matrix), jitter)
            return np.asarray(factor)
    raise np.linalg.LinAlgError(_not_positive_definite(len(matrix)))


def grid_cholesky(kernel: Matern52, U: Array, explained: Array) -> Array:
    """Cholesky factor of the covariance at many points U (m, d), k(U, U) - explained explained', in its lower triangle.

    Everything happens in the memory of the kernel matrix. The jitter starts at 1e-10 of the variance, because points lie
    close enough together to need some, and a factorisation that fails costs as much as one that succeeds.
    """
    for jitter in NEIGHBOURS_LADDER:
        # The transpose of a C-ordered matrix is Fortran-ordered, and a covariance is symmetric.
        covariance = kernel(U, U).T
        covariance[np.diag_indices_from(covariance)] += jitter * kernel.variance
        if explained.shape[1]:
            covariance = blas.dsyrk(-1.0, explained, 1.0, covariance, lower=1, overwrite_c=1)
        factor, info = lapack.dpotrf(covariance, lower=1, overwrite_a=1, clean=0)
        if info == 0:
            return np.asarray(factor)
    raise np.linalg.LinAlgError(_not_positive_definite(len(U)))


def _not_positive_definite(order: int) -> str:
    return (
        f"a covariance of order {order} is not positive definite even with jitter {JITTER_LADDER[-1]:g}; "
        "check the data for non-finite values"
    )


def posterior_from_values(kernel: Matern52, inputs: Array, values: Array, noise: float) -> LatentPosterior:
    """Posterior for values (N,) observed with Gaussian noise of variance ``noise``."""
    K = kernel(inputs, inputs)
    K[np.diag_indices_from(K)] += noise
    factor = jittered_cholesky(K, kernel.variance)
    half, _ = lapack.dtrtrs(factor, np.eye(len(values)), lower=1)
    return LatentPosterior(kernel, inputs, half.T @ (half @ values), half, values, np.full(len(values), np.sqrt(noise)))
