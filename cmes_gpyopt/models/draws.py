"""Joint draws of a latent function over a finite set of points, made block by block.

The result is that of one Cholesky factorisation of the joint covariance with its rows in the order of the blocks; but
after each block the points not drawn yet are known to be unlikely to matter, or not, and those that cannot matter need
not be drawn. Drawing every point costs what the full factorisation costs.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.linalg import blas

from .posterior import NEIGHBOURS_LADDER, LatentPosterior, jittered_cholesky

Array = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int_]


class _Block(NamedTuple):
    """Points drawn together: what further draws need to know of them."""

    U: Array
    """(b, d)"""
    explained: list[Array]
    """their rows of the blocks of columns before this one"""
    factor: Array
    """(b, b), the Cholesky factor of their covariance given what was drawn before"""
    normals: Array
    """(b, K)"""


class JointDraws:
    """K joint draws over those of m points that are still open, given the values drawn so far.

    Parameters
    ----------
    posterior : LatentPosterior
    U : array of shape (m, d)
        Points on the unit cube.
    normals : array of shape (m, K)
        Standard normals, those of each point in its row.

    Attributes
    ----------
    mean : array of shape (K, r)
        Of each draw at the r open points; (1, r) before the first ones are drawn.
    std : array of shape (r,)
    """

    def __init__(self, posterior: LatentPosterior, U: Array, normals: Array) -> None:
        self._posterior, self._kernel = posterior, posterior.kernel
        self._floor = posterior.variance_floor
        self._U, self._normals = U, normals
        k = posterior.kernel(U, posterior.inputs)
        # Blocks of columns, side by side a matrix R with prior minus posterior covariance R R': a column for each datum, and
        # for each drawn point. Joining them would copy the largest matrix here.
        self._explained = [k @ posterior.half.T]
        self._variance = posterior.kernel.variance - np.einsum("ij,ij->i", self._explained[0], self._explained[0])
        self.mean = (posterior.weights @ k.T)[None, :]
        self._drawn: list[_Block] = []

    @property
    def samples(self) -> int:
        """K."""
        return int(self._normals.shape[1])

    @property
    def std(self) -> Array:
        """Standard deviation at the open points, (r,), positive."""
        return np.asarray(np.sqrt(np.maximum(self._variance, self._floor)))

    def draw(self, rows: Rows) -> Array:
        """Draw the open points ``rows`` (b,); returns their values (K, b) and closes them."""
        covariance = self._kernel(self._U, self._U[rows])  # (r, b)
        for block in self._explained:
            covariance -= block @ block[rows].T
        factor = jittered_cholesky(covariance[rows], self._kernel.variance, NEIGHBOURS_LADDER)
        normals = self._normals[rows]
        self._drawn.append(_Block(self._U[rows], [block[rows] for block in self._explained], factor, normals))
        values = self.mean[:, rows] + (factor @ normals).T
        others = np.delete(np.arange(len(self._U)), rows)
        self.keep(others)
        # The transpose of a C-ordered matrix is Fortran-ordered, which spares the solver a copy.
        gained = blas.dtrsm(1.0, factor, covariance[others].T, lower=1).T if len(others) else covariance[others]
        self.mean = self.mean + (gained @ normals).T
        self._variance -= np.einsum("ij,ij->i", gained, gained)
        self._explained.append(gained)
        return np.asarray(values)

    def draw_further(self, U: Array, normals: Array) -> Array:
        """Draw points that were not among the m: values (K, p) at U (p, d) given everything drawn, from normals (p, K)."""
        k = self._kernel(U, self._posterior.inputs)
        explained = [k @ self._posterior.half.T]
        mean = (self._posterior.weights @ k.T)[None, :]
        for block in self._drawn:
            covariance = self._kernel(U, block.U)
            for mine, its in zip(explained, block.explained, strict=True):
                covariance -= mine @ its.T
            explained.append(blas.dtrsm(1.0, block.factor, covariance.T, lower=1).T)
            mean = mean + (explained[-1] @ block.normals).T
        covariance = self._kernel(U, U)
        for mine in explained:
            covariance -= mine @ mine.T
        factor = jittered_cholesky(covariance, self._kernel.variance, NEIGHBOURS_LADDER)
        self._drawn.append(_Block(U, explained, factor, normals))
        return np.asarray(mean + (factor @ normals).T)

    def keep(self, rows: Rows) -> None:
        """Close all open points but ``rows``, in their order."""
        self._U, self._normals = self._U[rows], self._normals[rows]
        self._explained = [block[rows] for block in self._explained]
        self._variance, self.mean = self._variance[rows], self.mean[:, rows]
