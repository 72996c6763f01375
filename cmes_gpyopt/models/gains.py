"""What a point is expected to gain, as logarithms with gradients: moments in, chain rule inside."""

from typing import Any

import numpy as np
import numpy.typing as npt

from ..improvement import log_improvement
from ..normal import hazard, log_cdf
from .posterior import Moments

Array = npt.NDArray[np.float64]


def log_expected_improvement(m: Moments, best: float | Array) -> tuple[Array, Any]:
    """Logarithm of the expected improvement on ``best``, one for all points or one for each (n,).

    Returns
    -------
    the value (n,), and its gradient (n, d) where the moments have theirs
    """
    u = (best - m.mean) / m.std
    value, slope = log_improvement(u)
    total = value + np.log(m.std)
    if m.d_mean is None or m.d_std is None:
        return total, None
    by_mean, by_std = -slope / m.std, (1.0 - slope * u) / m.std
    return total, by_mean[:, None] * m.d_mean + by_std[:, None] * m.d_std


def log_below(m: Moments, limit: float) -> tuple[Array, Any]:
    """Logarithm of the probability to be at most ``limit`` (n,), and its gradient (n, d) where the moments have theirs."""
    gamma = (limit - m.mean) / m.std
    value = log_cdf(gamma)
    if m.d_mean is None or m.d_std is None:
        return value, None
    slope = hazard(-gamma) / m.std
    return value, -slope[:, None] * (m.d_mean + gamma[:, None] * m.d_std)
