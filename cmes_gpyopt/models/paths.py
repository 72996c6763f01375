"""Sample paths of a posterior as functions that can be evaluated and differentiated anywhere.

Matheron's rule turns a path of the prior into one of the posterior,

    f(x) = f_prior(x) + k(x, X) (K + S)^(-1) (z - f_prior(X) - S^(1/2) e),

with observations (or EP sites) z of variance S and standard normal e. The prior path is a sum of random Fourier
features of the Matern-5/2 kernel, whose spectral density is a Student t with five degrees of freedom; the update uses
the exact kernel. The cost of an evaluation is linear in the number of points.

References
----------
Rahimi and Recht (2007), Random features for large-scale kernel machines.
Wilson, Borovitskiy, Terenin, Mostowsky and Deisenroth (2020), Efficiently sampling functions from Gaussian process
posteriors.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .posterior import LatentPosterior

Array = npt.NDArray[np.float64]

# Frequencies; each gives a cosine and a sine. The covariance error of a path is near NUM_FREQUENCIES**-0.5.
NUM_FREQUENCIES = 1024


@dataclass(frozen=True)
class SamplePaths:
    """K paths of one latent function over the model space."""

    posterior: LatentPosterior
    lower: Array
    width: Array
    frequencies: Array
    """(M, d), on the unit cube"""
    weights: Array
    """(K, 2 M), of the cosines and the sines, scaled by the prior's standard deviation"""
    updates: Array
    """(K, N), of k(x, X)"""

    @classmethod
    def draw(
        cls, posterior: LatentPosterior, lower: Array, width: Array, count: int, rng: np.random.Generator
    ) -> "SamplePaths":
        """Draw ``count`` paths."""
        dimension = posterior.kernel.lengthscales.size
        # A Student t is a normal divided by the root of an independent chi-square over its degrees of freedom.
        normals = rng.standard_normal((NUM_FREQUENCIES, dimension))
        mixing = np.sqrt(5.0 / rng.chisquare(5.0, NUM_FREQUENCIES))
        frequencies = normals * mixing[:, None] / posterior.kernel.lengthscales
        scale = np.sqrt(posterior.kernel.variance / NUM_FREQUENCIES)
        weights = scale * rng.standard_normal((count, 2 * NUM_FREQUENCIES))
        noise = posterior.noise_std * rng.standard_normal((count, posterior.size))
        prior = weights @ _features(posterior.inputs @ frequencies.T).T  # (K, N)
        updates = (posterior.targets - prior - noise) @ posterior.half.T @ posterior.half
        return cls(posterior, lower, width, frequencies, weights, updates)

    def __call__(self, X: Array) -> Array:
        """Values of every path at every point of X (n, d), (K, n)."""
        U = (X - self.lower) / self.width
        prior = self.weights @ _features(U @ self.frequencies.T).T
        return np.asarray(prior + self.updates @ self.posterior.kernel(U, self.posterior.inputs).T)

    def at(self, X: Array, which: npt.NDArray[np.int_]) -> tuple[Array, Array]:
        """Value (n,) and gradient (n, d) of path ``which[i]`` at point X[i], for X (n, d)."""
        U = (X - self.lower) / self.width
        angle = U @ self.frequencies.T
        cosine, sine = np.cos(angle), np.sin(angle)
        by_cosine, by_sine = np.split(self.weights[which], 2, axis=1)
        k, slope = self.posterior.kernel.with_slope(U, self.posterior.inputs)
        updates = self.updates[which]
        value = (cosine * by_cosine + sine * by_sine).sum(axis=1) + (k * updates).sum(axis=1)
        gradient = (cosine * by_sine - sine * by_cosine) @ self.frequencies
        gradient += self.posterior.contract(U, slope * updates)
        return value, gradient / self.width


def _features(angle: Array) -> Array:
    """Cosines and sines of angles (n, M), (n, 2 M)."""
    return np.hstack([np.cos(angle), np.sin(angle)])
