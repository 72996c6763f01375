"""What a binary constraint can report: outcome tables, with partial derivatives.

The latent constraint value at a point is c ~ N(mean, std^2); an evaluation reports z = -1 (feasible) or
z = +1 (infeasible) with P(z | c) = link(z c). Each table holds, for both labels,

    Q(z) = P(z),    F(z) = P(c <= delta | z),    1 - F(z),    all as logarithms.

Notation of the quadrature: ``x`` is the argument of the link, ``start`` the left end of a half-line,
``peak`` a point at which the integrand is close to its largest value, ``t`` the distance from the left end
of the window that is integrated.

References
----------
Perrone, Shcherbatyi, Jenatton, Archambeau, Seeger (2020). Constrained Bayesian optimization with max-value
    entropy search. AISTATS; supplement, "Binary Constraint Feedback".
Bishop (2006). Pattern Recognition and Machine Learning, section 4.5.2: the approximation of Q(z).
Owen (1956). Tables for computing bivariate normal probabilities. Annals of Mathematical Statistics 27: the
    closed form of the probit table, with absolute accuracy only; the tests compare with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, overload

import numpy as np
from scipy.special import erfcx, expit, log_expit, logit, ndtri

from .entropy import Outcomes
from .normal import Array, hazard, log1mexp, log_cdf

Link = Literal["logistic", "probit"]
Tables = tuple[Outcomes, Outcomes, Outcomes]  # value, d_mean, d_std

_LABELS = np.array([[-1.0], [1.0]])  # (2, 1): feasible, infeasible
_SIDES = np.array([[-1.0], [1.0]])  # (2, 1): c <= delta, c > delta
_LOG_SQRT_2PI = 0.5 * np.log(2.0 * np.pi)

# Stands for std = 0, a latent value known exactly; (delta - mean)^2 / std^3 must stay finite.
_MIN_STD = 1e-60

# A window that ends where the integrand has fallen by exp(-32), and 56 nodes that spread like 4 sinh(u)
# around c = 0: the relative error is about 1e-11 in every mass and moment for mean in [-40, 40], std in
# [1e-4, 1e3], delta in [-7, 7].
_FALL = 32.0
_SPREAD = 4.0
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(56)
_NODES, _WEIGHTS = 0.5 + 0.5 * _NODES, 0.5 * _WEIGHTS  # on [0, 1]

# Enough for a relative error of 1e-3.
_ROUGH_NODES, _ROUGH_WEIGHTS = np.polynomial.legendre.leggauss(16)
_ROUGH_NODES, _ROUGH_WEIGHTS = 0.5 + 0.5 * _ROUGH_NODES, 0.5 * _ROUGH_WEIGHTS

# Points whose tables are made together.
_CHUNK = 256

# Keeps a quotient finite that is not used.
_TINY = 1e-100

# Below this share of the local spacing of the nodes the map 4 sinh(u) is a straight line.
_LINEAR = 1e-4


# ------------------------------------------------------------------------------------------------------------
# Public functions
# ------------------------------------------------------------------------------------------------------------


def latent_threshold(probability: float, link: str) -> float:
    """Latent threshold delta at which the probability of label +1 equals the confidence parameter.

    Parameters
    ----------
    probability : float
        Confidence parameter, strictly between 0 and 1; c <= delta means P(z = +1 | c) <= probability.
    link : {"logistic", "probit"}

    Returns
    -------
    float
        logit(probability) or probit(probability).
    """
    if not 0.0 < probability < 1.0:
        raise ValueError(f"expected a probability strictly between 0 and 1, got {probability!r}")
    return float(logit(probability) if _is_logistic(link) else ndtri(probability))


@overload
def logistic_outcomes(
    mean: Array, std: Array, delta: float, method: str = ..., *, grad: Literal[False] = ...
) -> Outcomes: ...
@overload
def logistic_outcomes(mean: Array, std: Array, delta: float, method: str = ..., *, grad: Literal[True]) -> Tables: ...
def logistic_outcomes(
    mean: Array, std: Array, delta: float, method: str = "laplace", *, grad: bool = False
) -> Outcomes | Tables:
    """Outcome table of a binary constraint with link P(z | c) = 1 / (1 + exp(-z c)).

    Parameters
    ----------
    mean, std : ndarray of shape (n,)
        Moments of the latent value, std >= 0.
    delta : float
        Latent threshold.
    method : {"laplace", "exact"}
        "laplace" is the paper's: Q(z) of Bishop and a Gaussian Q(c | z) from a single Newton step.
        "exact" integrates; the error of each logarithm is below 1e-8 max(1, |logarithm|) for mean in
        [-40, 40], std in [1e-4, 1e3] and delta in [-7, 7].
    grad : bool
        Whether to return the partial derivatives as well.

    Returns
    -------
    Outcomes, or (outcomes, d_mean, d_std) with grad=True
        Fields of shape (2, 1, n), rows z = -1, +1. The other two hold the partial derivative of each field
        with respect to mean and std.
    """
    if method not in ("laplace", "exact"):
        raise ValueError(f"expected method 'laplace' or 'exact', got {method!r}")
    mean, std = _moments(mean, std)
    if method == "exact":
        return _in_chunks(mean, std, delta, "logistic", grad)
    table = _laplace(mean, std, delta)
    return table if grad else table[0]


@overload
def probit_outcomes(mean: Array, std: Array, delta: float, *, grad: Literal[False] = ...) -> Outcomes: ...
@overload
def probit_outcomes(mean: Array, std: Array, delta: float, *, grad: Literal[True]) -> Tables: ...
def probit_outcomes(mean: Array, std: Array, delta: float, *, grad: bool = False) -> Outcomes | Tables:
    """Outcome table of a binary constraint with link P(z | c) = Phi(z c), exact.

    Parameters
    ----------
    mean, std : ndarray of shape (n,)
        Moments of the latent value, std >= 0.
    delta : float
        Latent threshold.
    grad : bool
        Whether to return the partial derivatives as well.

    Returns
    -------
    Outcomes, or (outcomes, d_mean, d_std) with grad=True
        As for `logistic_outcomes`, with the accuracy of its method "exact".

    Notes
    -----
    F(z) has a closed form in Owen's T, but only to absolute accuracy: at mean = 6, std = 0.5, delta = 0 it
    returns 0 for 8.6e-34. The quadrature has relative accuracy everywhere.
    """
    mean, std = _moments(mean, std)
    return _in_chunks(mean, std, delta, "probit", grad)


def rough_outcomes(mean: Array, std: Array, delta: float, link: str) -> Outcomes:
    """The exact table from so few nodes that logarithms are off by up to 1e-3, at less than half the cost.

    Parameters are those of :func:`logistic_outcomes`. It serves to choose the points worth an exact table.
    """
    mean, std = _moments(mean, std)
    return _side_by_side(
        [
            _exact_outcomes(*part, delta, "logistic" if _is_logistic(link) else "probit", rough=True)
            for part in _chunks(mean, std)
        ]
    )


@overload
def log_probability_feasible(mean: Array, std: Array, link: str, *, grad: Literal[False] = ...) -> Array: ...
@overload
def log_probability_feasible(
    mean: Array, std: Array, link: str, *, grad: Literal[True]
) -> tuple[Array, Array, Array]: ...
def log_probability_feasible(
    mean: Array, std: Array, link: str, *, grad: bool = False
) -> Array | tuple[Array, Array, Array]:
    """Logarithm of P(z = -1), exact for both links.

    Parameters
    ----------
    mean, std : ndarray of shape (n,)
        Moments of the latent value, std >= 0.
    link : {"logistic", "probit"}
    grad : bool
        Whether to return the partial derivatives as well.

    Returns
    -------
    ndarray of shape (n,), or (value, d_mean, d_std) with grad=True
    """
    mean, std = _moments(mean, std)
    if _is_logistic(link):
        result = _logistic_feasible(mean, std)
    else:
        result = _probit_label(mean, std, np.float64(-1.0))
    return result if grad else result[0]


# ------------------------------------------------------------------------------------------------------------
# Tables, fields of shape (2, 1, n)
# ------------------------------------------------------------------------------------------------------------


def _is_logistic(link: str) -> bool:
    if link not in ("logistic", "probit"):
        raise ValueError(f"expected link 'logistic' or 'probit', got {link!r}")
    return link == "logistic"


def _moments(mean: Array, std: Array) -> tuple[Array, Array]:
    mean, std = np.asarray(mean, dtype=float), np.asarray(std, dtype=float)
    if mean.ndim != 1 or mean.shape != std.shape:
        raise ValueError(f"expected mean and std of one shape (n,), got {mean.shape} and {std.shape}")
    return mean, np.maximum(std, _MIN_STD)


def _outcomes(log_q: Array, log_f: Array, log_not_f: Array) -> Outcomes:
    return Outcomes(log_q[:, None], log_f[:, None], log_not_f[:, None])


def _laplace(mean: Array, std: Array, delta: float) -> Tables:
    """Table of the paper: Q(z) of Bishop, Q(c | z) from one Newton step that starts at the mean."""
    shrink = 1.0 / np.sqrt(1.0 + np.pi / 8.0 * std**2)
    log_q = log_expit(_LABELS * shrink * mean)  # Bishop, Eq. (4.153)
    d_log_q = _LABELS * expit(-_LABELS * shrink * mean)

    # The Gaussian Q(c | z) has precision (ratio / std)^2 and mean mean + slope (std / ratio)^2.
    slope = _LABELS * expit(-_LABELS * mean)
    curvature = expit(mean) * expit(-mean)
    ratio = np.sqrt(1.0 + std**2 * curvature)
    gamma = (delta - mean) / std * ratio - slope * std / ratio
    d_ratio = -0.5 * std**2 * curvature * np.tanh(0.5 * mean) / ratio
    gamma_mean = ((delta - mean) * d_ratio - ratio) / std
    gamma_mean = gamma_mean + (curvature + slope * d_ratio / ratio) * std / ratio
    gamma_std = -(delta - mean) / (std**2 * ratio) - slope / ratio**3

    below, above = hazard(-gamma), -hazard(gamma)
    return (
        _outcomes(log_q, log_cdf(gamma), log_cdf(-gamma)),
        _outcomes(d_log_q * shrink, below * gamma_mean, above * gamma_mean),
        _outcomes(-d_log_q * mean * shrink**3 * np.pi / 8.0 * std, below * gamma_std, above * gamma_std),
    )


def _in_chunks(mean: Array, std: Array, delta: float, link: Link, grad: bool) -> Outcomes | Tables:
    """Exact tables."""
    if not grad:
        return _side_by_side([_exact_outcomes(*part, delta, link) for part in _chunks(mean, std)])
    parts = [_exact(*part, delta, link) for part in _chunks(mean, std)]
    value, d_mean, d_std = map(_side_by_side, zip(*parts, strict=True))
    return value, d_mean, d_std


def _chunks(mean: Array, std: Array) -> list[tuple[Array, Array]]:
    """So few points at a time that all their nodes fit into the processor's cache."""
    return [(mean[i : i + _CHUNK], std[i : i + _CHUNK]) for i in range(0, max(len(mean), 1), _CHUNK)]


def _side_by_side(parts: Sequence[Outcomes]) -> Outcomes:
    return Outcomes(*(np.concatenate(field, axis=-1) for field in zip(*parts, strict=True)))


def _exact(mean: Array, std: Array, delta: float, link: Link) -> Tables:
    """Table from the masses of both sides of delta under both labels.

    With t = |c - delta| and means given label and side, d/dmean (log mass below - log mass above) is
    -(E[t | below] + E[t | above]) / std^2: a sum of terms of one sign, as accurate as its parts.
    """
    signs = _LABELS[:, None] * _SIDES  # (2, 2, 1): label, side
    part = _integrate(link, signs, _SIDES * delta, _SIDES * mean, std)  # c <= delta is -c >= -delta
    log_odds = part.log_mass[:, 1] - part.log_mass[:, 0]  # (2, n): above against below
    f, not_f = expit(-log_odds), expit(log_odds)

    distance = part.first.sum(axis=1)
    odds_mean = distance / std
    odds_std = (2.0 * (delta - mean) / std * distance + part.second[:, 1] - part.second[:, 0]) / std

    if link == "probit":
        log_q, q_mean, q_std = _probit_label(mean, std, _LABELS)
    else:
        log_q, slope, q_std = _joined(part)
        log_q, q_mean, q_std = _complete(log_q, _LABELS * slope, q_std)
    return (
        _outcomes(log_q, log_expit(-log_odds), log_expit(log_odds)),
        _outcomes(q_mean, -not_f * odds_mean, f * odds_mean),
        _outcomes(q_std, -not_f * odds_std, f * odds_std),
    )


def _exact_outcomes(mean: Array, std: Array, delta: float, link: Link, *, rough: bool = False) -> Outcomes:
    """The table of :func:`_exact` alone, at little more than half the cost."""
    signs = _LABELS[:, None] * _SIDES
    log_mass = _integrate(link, signs, _SIDES * delta, _SIDES * mean, std, grad=False, rough=rough).log_mass
    log_odds = log_mass[:, 1] - log_mass[:, 0]
    if link == "probit":
        log_q = _probit_label(mean, std, _LABELS)[0]
    else:
        log_q = np.logaddexp(log_mass[:, 0], log_mass[:, 1])
        log_q = np.where(log_q <= log_q[::-1], log_q, log1mexp(np.minimum(log_q[0], log_q[1])))
    return _outcomes(log_q, log_expit(-log_odds), log_expit(log_odds))


def _joined(part: _Part) -> tuple[Array, Array, Array]:
    """Log mass, slope and spread of two half-lines, on the last axis but one, together."""
    log_mass = np.logaddexp(part.log_mass[..., 0, :], part.log_mass[..., 1, :])
    share = np.exp(part.log_mass - log_mass[..., None, :])
    return log_mass, (share * part.slope).sum(axis=-2), (share * part.spread).sum(axis=-2)


def _complete(log_q: Array, q_mean: Array, q_std: Array) -> tuple[Array, Array, Array]:
    """Replace the larger of two label probabilities, with derivatives, by one minus the smaller."""
    smaller = log_q <= log_q[::-1]
    least = np.minimum(log_q[0], log_q[1])
    most = log1mexp(least)
    odds = np.exp(least - most)
    return (
        np.where(smaller, least, most),
        np.where(smaller, q_mean, -odds * q_mean[::-1]),
        np.where(smaller, q_std, -odds * q_std[::-1]),
    )


def _probit_label(mean: Array, std: Array, label: Array | np.float64) -> tuple[Array, Array, Array]:
    """Log Phi(label mean / sqrt(1 + std^2)) and its partial derivatives."""
    scale = np.sqrt(1.0 + std**2)
    ratio = label * hazard(-label * mean / scale)
    return log_cdf(label * mean / scale), ratio / scale, -ratio * mean * std / scale**3


def _logistic_feasible(mean: Array, std: Array) -> tuple[Array, Array, Array]:
    """Log P(z = -1) from the less probable label, which is z = +1 at mean -|mean|, split at c = 0."""
    log_mass, slope, spread = _joined(_integrate("logistic", _SIDES, np.zeros(1), -_SIDES * np.abs(mean), std))
    most = log1mexp(log_mass)
    rare, odds = mean > 0.0, np.exp(log_mass - most)
    return (
        np.where(rare, log_mass, most),
        np.where(rare, -1.0, -odds) * slope,
        np.where(rare, 1.0, -odds) * spread,
    )


# ------------------------------------------------------------------------------------------------------------
# Quadrature of link(sign c) N(c; mean, std^2) over c >= start
# ------------------------------------------------------------------------------------------------------------


class _Part(NamedTuple):
    """Integral over a half-line and means under the normalised integrand, each of shape (..., n)."""

    log_mass: Array
    first: Array
    """Mean of (c - start) / std."""
    second: Array
    """Mean of ((c - start) / std)^2."""
    slope: Array
    """Mean of the log link's derivative with respect to its argument (logistic link; else zero)."""
    spread: Array
    """Share of this part in d/dstd log E[link] (logistic link; else zero)."""


def _integrate(
    link: Link, sign: Array, start: Array, mean: Array, std: Array, *, grad: bool = True, rough: bool = False
) -> _Part:
    """Gauss-Legendre quadrature over the window that holds the mass; arguments broadcast to (..., n).

    Without ``grad`` the means are zero.

    The integrand has two scales, std and the link's 1, and the logistic link has poles at distance pi from
    c = 0. In u, with c = 4 sinh(u), it is smooth on the scale 1 for every std. Distances from the left end
    of the window are formed without a subtraction, so that a window of width 1e-10 keeps its digits.
    """
    lower, width, lower_z, offset = _window(link, sign, start, mean, std)
    nodes, weights = (_ROUGH_NODES, _ROUGH_WEIGHTS) if rough else (_NODES, _WEIGHTS)
    span, c, t = _spread_nodes(lower, width, nodes)
    t /= std[:, None]
    x = sign[..., None] * c
    weight, factor = _link(link, x)
    anchor = _envelope(link, sign * lower)
    weight -= anchor[..., None]
    weight -= t * (lower_z[..., None] + 0.5 * t)
    np.exp(weight, out=weight)
    weight *= factor
    weight *= np.sqrt(c * c + _SPREAD**2)  # dc / du
    weight *= weights
    total = weight.sum(axis=-1)
    log_mass = anchor - 0.5 * lower_z**2 + np.log(total * (span / std)) - _LOG_SQRT_2PI
    if not grad:
        return _Part(log_mass, *[np.zeros(1)] * 4)

    weight /= total[..., None]
    first = np.einsum("...m,...m->...", weight, t)
    second = np.einsum("...m,...m->...", weight, t * t)
    slope = spread = np.zeros(1)
    if link == "logistic":
        slope, spread = _logistic_slopes(weight, t, x, factor, sign, lower_z, std)
    return _Part(log_mass, offset + first, offset**2 + 2.0 * offset * first + second, slope, spread)


def _spread_nodes(lower: Array, width: Array, nodes: Array) -> tuple[Array, Array, Array]:
    """Width of the window in u, nodes c, and their distances from lower; shape (..., m) for m nodes on [0, 1]."""
    slant = np.hypot(lower, _SPREAD)
    span = np.where(
        width < _LINEAR * slant,
        width / slant,
        np.arcsinh((lower + width) / _SPREAD) - np.arcsinh(lower / _SPREAD),
    )
    growth = span[..., None] * nodes
    np.expm1(growth, out=growth)
    decay = growth + 1.0
    np.divide(growth, decay, out=decay)
    t = growth + decay  # 2 sinh; growth * decay is 2 (cosh - 1)
    t *= 0.5 * slant[..., None]
    growth *= decay
    growth *= 0.5 * lower[..., None]
    t += growth
    return span, np.add(lower[..., None], t, out=growth), t


def _window(link: Link, sign: Array, start: Array, mean: Array, std: Array) -> tuple[Array, Array, Array, Array]:
    """Window in which envelope times normal density is within exp(-_FALL) of its largest value.

    The logarithm of that product is a parabola where x >= 0 ("flat") and another, lower one where x < 0
    ("bent"), and it is concave: a root of the flat one counts if it lies at x > 0, else that of the bent one.

    Returns
    -------
    lower, width, lower_z, offset
        Left end; width; (lower - mean) / std and (lower - start) / std, which are exact where lower and mean,
        or lower and start, are too close for a subtraction.
    """
    if link == "logistic":
        tilted = mean + sign * std**2
        peak = np.maximum(start, np.clip(0.0, np.minimum(mean, tilted), np.maximum(mean, tilted)))
        bent_std, bent_slope, bent_value = std, sign, sign * peak
    else:
        peak = np.maximum(start, np.where(sign * mean > 0.0, mean, mean / (1.0 + std**2)))
        bent_std, bent_slope, bent_value = std / np.sqrt(1.0 + std**2), -peak, -0.5 * peak**2

    value = _envelope(link, sign * peak)
    pull = (mean - peak) / std
    flat_left, flat_right = _roots(pull, _FALL - value, std)
    bent_left, bent_right = _roots((pull / std + bent_slope) * bent_std, _FALL + bent_value - value, bent_std)

    left = np.where(sign * (peak - flat_left) > 0.0, flat_left, bent_left)
    left = np.minimum(left, peak - start)
    right = np.where(sign * (peak + flat_right) > 0.0, flat_right, bent_right)
    return peak - left, left + right, -pull - left / std, (peak - start - left) / std


def _roots(slope: Array, fall: Array, scale: Array) -> tuple[Array, Array]:
    """Distances, to the left and right, at which slope t - t^2 / 2 has fallen by `fall`, times scale.

    A parabola that stays lower than that has no roots, and `_window` does not use it.
    """
    far = np.sqrt(np.maximum(slope**2 + 2.0 * fall, 0.0)) + np.abs(slope)
    near = 2.0 * fall / np.maximum(far, _TINY)
    rising = slope > 0.0
    return scale * np.where(rising, near, far), scale * np.where(rising, far, near)


def _envelope(link: Link, x: Array) -> Array:
    """Upper bound of the log link, exact up to a slowly varying factor: min(x, 0) or -min(x, 0)^2 / 2."""
    negative = np.minimum(x, 0.0)
    return negative if link == "logistic" else -0.5 * negative**2


def _link(link: Link, x: Array) -> tuple[Array, Array]:
    """Envelope e(x) and the remaining factor: the link is exp(e) times factor."""
    if link == "logistic":
        return _envelope(link, x), 1.0 / (1.0 + np.exp(-np.abs(x)))
    tail = 0.5 * erfcx(np.abs(x) * np.sqrt(0.5))  # Phi(-|x|) = exp(-x^2 / 2) tail
    return _envelope(link, x), np.where(x < 0.0, tail, 1.0 - np.exp(-0.5 * x * x) * tail)


def _logistic_slopes(
    weight: Array, t: Array, x: Array, factor: Array, sign: Array, lower_z: Array, std: Array
) -> tuple[Array, Array]:
    """Mean of the log link's derivative, and the share of d/dstd log E[link], from nodes and weights.

    With g the link, d/dstd E[g] = E[g' (c - mean) / std] = std E[g'']. The first cancels for small std, the
    second for large.
    """
    ratio = np.exp(np.minimum(-x, 0.0))
    ratio *= factor  # g' / g = sigma(-x), in x; g'' / g = ratio (2 ratio - 1)
    tilted = weight * ratio
    slope = tilted.sum(axis=-1)
    by_parts = std * (2.0 * np.einsum("...m,...m->...", tilted, ratio) - slope)
    direct = sign * (lower_z * slope + np.einsum("...m,...m->...", tilted, t))
    return slope, np.where(std < 1.0, by_parts, direct)
