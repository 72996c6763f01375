import matplotlib
import numpy as np
import pytest

matplotlib.use("Agg")

MIXED_DOMAIN = [
    {"name": "rate", "type": "continuous", "domain": (0.1, 2.0)},
    {"name": "layers", "type": "discrete", "domain": (1, 2, 4, 8)},
    {"name": "kind", "type": "categorical", "domain": (0, 1, 2)},
]


@pytest.fixture
def rng():
    return np.random.default_rng(20200603)


def central_difference(function, X, scale=1.0):
    """Gradient (n, d) of a vectorised function (n, d) -> (n,) by central differences."""
    step = np.finfo(float).eps ** (1 / 3) * scale
    gradient = np.empty_like(X)
    for j in range(X.shape[1]):
        shift = np.zeros(X.shape[1])
        shift[j] = step
        gradient[:, j] = (function(X + shift) - function(X - shift)) / (2 * step)
    return gradient


def relative_error(found, expected):
    """Largest error of a set of gradients relative to the largest entry."""
    return np.abs(found - expected).max() / np.abs(expected).max()
