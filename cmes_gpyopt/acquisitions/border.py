"""A prior on where optima lie: away from the border of the box.

Posterior variance is largest where a point has the fewest neighbours, at the border and above all in the corners, and a
search for information goes there first. The score is therefore weighed by the share of a Gaussian neighbourhood of the
point that lies inside the box, squared: one in the interior, a quarter on a face, a sixteenth on an edge.
"""

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

Array = npt.NDArray[np.float64]


def inside_share(U: Array, width: float) -> tuple[Array, Array]:
    """Squared share (n,) of a neighbourhood with standard deviation ``width`` inside the unit cube, and its gradient (n, d)."""
    share = ndtr((1.0 - U) / width) - ndtr(-U / width)  # (n, d)
    density = np.exp(-0.5 * (U / width) ** 2) - np.exp(-0.5 * ((1.0 - U) / width) ** 2)
    slope = density / (width * np.sqrt(2.0 * np.pi))
    weight = np.prod(share, axis=1) ** 2
    return weight, 2.0 * weight[:, None] * slope / share


def weigh(score: Array, gradient: Array | None, weight: Array, d_weight: Array) -> tuple[Array, Array | None]:
    """Score (n,) times weight, or divided by it where it is negative, and its gradient (n, d)."""
    positive = score >= 0
    factor = np.where(positive, weight, 1.0 / weight)
    if gradient is None:
        return score * factor, None
    d_factor = np.where(positive[:, None], d_weight, -d_weight / (weight**2)[:, None])
    return score * factor, gradient * factor[:, None] + score[:, None] * d_factor


def weigh_log(score: Array, gradient: Array | None, weight: Array, d_weight: Array) -> tuple[Array, Array | None]:
    """As :func:`weigh`, for a score that is a logarithm."""
    value = score + np.log(weight)
    return value, None if gradient is None else gradient + d_weight / weight[:, None]
