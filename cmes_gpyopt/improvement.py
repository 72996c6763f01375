"""Expected improvement in logarithms.

With u = (best - mean) / std the expected improvement of a Gaussian is std h(u), h(u) = N(u) + u Phi(u). Far below zero
h loses all digits to cancellation and then underflows; its logarithm does neither.

References
----------
Mockus, Tiesis and Zilinskas (1978), The application of Bayesian methods for seeking the extremum.
Ament, Daulton, Eriksson, Balandat and Bakshy (2023), Unexpected improvements to expected improvement.
"""

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

from .normal import hazard, log_pdf, tail_product

Array = npt.NDArray[np.float64]


def log_improvement(u: npt.ArrayLike) -> tuple[Array, Array]:
    """Logarithm of h(u) = N(u) + u Phi(u) and its derivative, for abs(u) <= 1e100.

    The relative error of h and of the derivative is below 1e-11. Below -1 the value comes from
    h(u) = N(u) (1 - x / hazard(x)), x = -u, in which ``tail_product`` supplies the difference.
    """
    u = np.asarray(u, dtype=float)
    low = u < -1.0
    x = np.where(low, -u, 1.0)
    v = np.where(low, 0.0, u)
    gap = -tail_product(x) / x  # hazard(x) - x
    h = np.exp(log_pdf(v)) + v * ndtr(v)
    value = np.where(low, log_pdf(x) + np.log(gap / hazard(x)), np.log(h))
    return value, np.where(low, 1.0 / gap, ndtr(v) / h)
