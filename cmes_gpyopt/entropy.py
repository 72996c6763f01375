"""What an evaluation tells about the constrained optimum y*: the kernels of every score.

Notation (shapes in brackets; K samples of y*, n points, R outcomes)

==============  =============================================================================================
o               observation at one point; A is the event that every gate holds, "x would beat y*"
kappa(o)        P(not A | o);  P(o | y*) = P(o) kappa(o) / Z
gamma_g         Gaussian gate g, (K, n): a quantity seen noise-free is below its bound with Phi(gamma_g)
Q_r, F_r        discrete outcome r, (R, K, n): its probability, and P(all remaining gates hold | r)
Z_A             prod_g Phi(gamma_g): every Gaussian gate holds
Zt, Nt          sum_r Q_r F_r and sum_r Q_r (1 - F_r); Zt + Nt = 1
X, Z            Z_A Zt = P(A) and 1 - X, the mass that y* leaves
S, V            shares of Z: some Gaussian gate fails, (1 - Z_A) / Z; none does, Z_A Nt / Z; S + V = 1
rho_r           Q_r (1 - F_r) / Nt: outcome r given that the Gaussian gates hold and A does not
J               what rho tells against Q: KL[rho || Q] in the divergence, H[Q] - H[rho] in the entropy
h(x)            N(x) / Phi(-x), the hazard
==============  =============================================================================================

Notes
-----
Both scores obey a chain rule. "Does a Gaussian gate fail?" is answered first, then, where none does, the
outcome is drawn from rho instead of Q. Hence a score is a function of the gates and Nt alone, plus V J, and
the sum over outcomes is needed once, not for every sample of y*. With sum_r Q_r = 1 this equals

    entropy_difference = -log Z - (X/Z) (1/2 sum_g gamma_g h(-gamma_g)
                                         + 1/Zt sum_r Q_r [(F_r - 1) log(1 - F_r) + (F_r - Zt) log Q_r])
    kl_divergence      = -log Z + (Z_A/Z) sum_r Q_r (1 - F_r) log(1 - F_r)

For real-valued gates the divergence is -log Z, the lower bound of Takeno et al. (2022).

Valid range: abs(gamma) < 1e150, beyond which a gate counts as infinite; any log-probability in [-inf, 0].

References
----------
V. Perrone, I. Shcherbatyi, R. Jenatton, C. Archambeau, M. Seeger (2020). Constrained Bayesian Optimization
with Max-Value Entropy Search. Supplement, sections A.1 (real feedback), A.3 (binary), A.5 (one at a time).
Z. Wang, S. Jegelka (2017). Max-value Entropy Search for Efficient Bayesian Optimization. ICML.
S. Takeno, T. Tamura, K. Shitara, M. Karasuyama (2022). Sequential and Parallel Constrained Max-value Entropy
Search via Information Lower Bound. ICML.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import accumulate
from typing import Literal, NamedTuple, overload

import numpy as np
import numpy.typing as npt
from scipy.special import expit, xlogy

from .normal import Array, one_plus_tail_product, tails

# A gate beyond this counts as infinite. Its square is finite, so that 0 * gamma^2 is 0 and not nan.
_GAMMA_MAX = 1e150
# Stands for log 0; finite for the same reason, and far below -_GAMMA_MAX^2 / 2.
_LOG_0 = -1e305
# Sums of a few logarithms that contain _LOG_0 are below this, all others above.
_LOG_0_SUM = -1e304
_VALUE_MAX = float(np.finfo(np.float64).max)
# Below this the series of u e^u - expm1(u) is exact to rounding; above it the difference loses 2 eps / u.
_SERIES_BELOW = 1e-3


class Outcomes(NamedTuple):
    """Table of discrete outcomes; the arrays broadcast to (R, K, n). sum_r Q_r = 1."""

    log_q: Array
    """log Q_r."""
    log_f: Array
    """log F_r."""
    log_not_f: Array
    """log(1 - F_r)."""


class Partials(NamedTuple):
    """Partial derivatives of a score.

    The total derivative is the sum over all fields of partial times perturbation, for every perturbation that
    keeps F_r + (1 - F_r) = 1 and sum_r Q_r = 1. These two identities leave a choice, which is made so
    that each partial is finite and accurate as F or Q tend to 0 or 1.
    """

    gammas: list[Array]
    """With respect to each gate, (K, n); 0 where the gate is infinite."""
    outcomes: Outcomes | None
    """With respect to log_q, log_f, log_not_f, (R, K, n)."""
    always: list[Array] = []  # noqa: RUF012  (never written to)
    """With respect to each gate of `always` in `kl_if_feasible`, (K, n)."""


class _Gate(NamedTuple):
    """One Gaussian gate among the others, in the order given."""

    gamma: Array
    hazard_neg: Array  # h(-gamma), the derivative of log Z_A
    hazard_abs: Array
    slope: Array  # the derivative of -log(1 - Z_A)
    q: Array  # gamma^2 - r^2
    share: Array  # P(this gate is the first to fail | some gate fails)
    log_upto: Array  # log P(this and all earlier gates hold)
    log_after: Array  # log P(all later gates hold)


class _Gates(NamedTuple):
    """All Gaussian gates. r is the smallest gamma, at least 0: exp(-r^2/2) is factored out of 1 - Z_A."""

    gates: list[_Gate]
    log_za: Array
    log_not_za: Array
    r: Array
    log_scaled: Array  # log(1 - Z_A) + r^2 / 2, accurate where Z_A > 1/2


class _Table(NamedTuple):
    """A table of outcomes: sums over its rows (K, n), and the rows themselves (R, K, n)."""

    log_zt: Array
    log_nt: Array
    divergence: Array  # KL[rho || Q]
    shift: Array  # sum_r (Q_r - rho_r) log Q_r
    rows: Outcomes
    rho: Array
    gap: Array  # Q_r - rho_r
    log_ratio: Array  # log(rho_r / Q_r)
    terms: Array  # of the divergence


class _Split(NamedTuple):
    """How y* splits what is left, (K, n)."""

    x: Array
    log_z: Array
    s: Array
    v: Array
    u: Array  # log(Nt / Z) <= 0
    low: npt.NDArray[np.bool_]  # X <= 1/2
    empty: npt.NDArray[np.bool_]  # Z = 0


@overload
def entropy_difference(
    gammas: Sequence[npt.ArrayLike], outcomes: Outcomes | None = None, *, grad: Literal[False] = False
) -> Array: ...
@overload
def entropy_difference(
    gammas: Sequence[npt.ArrayLike], outcomes: Outcomes | None = None, *, grad: Literal[True]
) -> tuple[Array, Partials]: ...
@np.errstate(all="ignore")
def entropy_difference(
    gammas: Sequence[npt.ArrayLike], outcomes: Outcomes | None = None, *, grad: bool = False
) -> Array | tuple[Array, Partials]:
    """Entropy difference H[P(o)] - H[P(o | y*)], the score of the paper; it can be negative.

    Parameters
    ----------
    gammas : sequence of arrays broadcastable to (K, n)
        Gaussian gates, possibly none; +-inf are exact limits.
    outcomes : Outcomes, optional
        Discrete part of the observation, broadcastable to (R, K, n).
    grad : bool
        Also return the partial derivatives.

    Returns
    -------
    value : array, (K, n)
        Always finite; the largest double where Z = 0.
    partials : Partials, only with ``grad=True``
    """
    gates, table = _gates(gammas), _table(outcomes, gammas)
    split = _split(gates, table)
    zt, s, v = np.exp(table.log_zt), split.s, split.v
    label = table.divergence - table.shift  # J
    pull = 0.5 * s * zt * _total([g.gamma * g.slope for g in gates.gates])  # X/Z * 1/2 sum gamma h(-gamma)
    curves = [one_plus_tail_product(np.abs(g.gamma), g.hazard_abs) for g in gates.gates]
    near = _gate_divergence(gates, split) - pull
    far = _far_entropy(gates, split, table, curves)
    value = _finish(np.where(split.low, near, far) + v * label, split)
    if not grad:
        return value

    known = table.log_nt + label
    tilt = 0.5 * _total([g.gamma * g.hazard_neg for g in gates.gates])
    pulled = np.where(split.low, tilt / (1.0 - split.x), pull / split.x)  # pull / X, safe as X -> 0
    common = _gate_factor(split, table, label)
    bends = _far_bends(gates, split, curves)
    d_gammas = []
    for gate, curve, bend in zip(gates.gates, curves, bends, strict=True):
        lift = np.where(gate.gamma < 0.0, curve - 1.0, gate.gamma * (gate.gamma + gate.hazard_neg))
        near = common - zt * (pulled + 0.5 - 0.5 * lift)
        far = 0.5 * zt * bend + np.exp(split.u) * known
        d_gammas.append(s * gate.slope * np.where(split.low, near, far))
    mean_log_q = (table.rho * table.rows.log_q).sum(axis=0)
    centred = table.rows.log_q - mean_log_q
    d_label = _Rows(
        table.terms - table.rho * table.divergence - table.gap * (centred + 1.0),
        table.rho * (table.log_ratio - table.divergence + centred),
    )
    d_outcomes = _outcome_partials(table, split, v * (s * known + pulled), d_label)
    return value, Partials(_gate_partials(d_gammas, gates, split), None if outcomes is None else d_outcomes)


@overload
def kl_divergence(
    gammas: Sequence[npt.ArrayLike], outcomes: Outcomes | None = None, *, grad: Literal[False] = False
) -> Array: ...
@overload
def kl_divergence(
    gammas: Sequence[npt.ArrayLike], outcomes: Outcomes | None = None, *, grad: Literal[True]
) -> tuple[Array, Partials]: ...
@np.errstate(all="ignore")
def kl_divergence(
    gammas: Sequence[npt.ArrayLike], outcomes: Outcomes | None = None, *, grad: bool = False
) -> Array | tuple[Array, Partials]:
    """Divergence KL[P(o | y*) || P(o)], never negative.

    Parameters
    ----------
    gammas : sequence of arrays broadcastable to (K, n)
        Gaussian gates, possibly none; +-inf are exact limits.
    outcomes : Outcomes, optional
        Discrete part of the observation, broadcastable to (R, K, n).
    grad : bool
        Also return the partial derivatives.

    Returns
    -------
    value : array, (K, n)
        Always finite; the largest double where Z = 0.
    partials : Partials, only with ``grad=True``
    """
    gates, table = _gates(gammas), _table(outcomes, gammas)
    split = _split(gates, table)
    value = _finish(_gate_divergence(gates, split) + split.v * table.divergence, split)
    if not grad:
        return value

    common = split.s * _gate_factor(split, table, table.divergence)
    d_gammas = [gate.slope * common for gate in gates.gates]
    d_label = _Rows(table.terms - table.rho * table.divergence, table.rho * (table.log_ratio - table.divergence))
    d_log_nt = split.v * split.s * (table.log_nt + table.divergence)
    d_outcomes = _outcome_partials(table, split, d_log_nt, d_label)
    return value, Partials(_gate_partials(d_gammas, gates, split), None if outcomes is None else d_outcomes)


@overload
def kl_if_feasible(
    gammas: Sequence[npt.ArrayLike],
    outcomes: Outcomes,
    feasible: npt.ArrayLike,
    always: Sequence[npt.ArrayLike] = (),
    *,
    grad: Literal[False] = False,
) -> Array: ...
@overload
def kl_if_feasible(
    gammas: Sequence[npt.ArrayLike],
    outcomes: Outcomes,
    feasible: npt.ArrayLike,
    always: Sequence[npt.ArrayLike] = (),
    *,
    grad: Literal[True],
) -> tuple[Array, Partials]: ...
@np.errstate(all="ignore")
def kl_if_feasible(
    gammas: Sequence[npt.ArrayLike],
    outcomes: Outcomes,
    feasible: npt.ArrayLike,
    always: Sequence[npt.ArrayLike] = (),
    *,
    grad: bool = False,
) -> Array | tuple[Array, Partials]:
    """Divergence of an observation whose `gammas` are seen only on feasible outcomes.

    Parameters
    ----------
    gammas : sequence of arrays broadcastable to (K, n)
        Gaussian gates seen on feasible rows only (the objective of a run that can crash).
    outcomes : Outcomes
        Broadcastable to (R, K, n).
    feasible : boolean array, (R,)
        The rows on which `gammas` are seen.
    always : sequence of arrays broadcastable to (K, n)
        Gaussian gates seen on every row.
    grad : bool
        Also return the partial derivatives.

    Returns
    -------
    value : array, (K, n)
    partials : Partials, only with ``grad=True``; its field `always` is filled

    Notes
    -----
    Equals `kl_divergence` of a longer table: on a feasible row either the gates hold (Q_r Z_A, F_r) or one
    fails (the last row: kappa = 1); on an infeasible row they are unobserved (Q_r, Z_A F_r).
    """
    gates, rows = _gates(gammas), _lift(outcomes)
    seen = np.asarray(feasible, dtype=bool)[:, None, None]
    hidden = _scaled(rows, gates.log_za, gates.log_not_za)
    log_q_seen = np.where(seen, rows.log_q, _LOG_0)
    top = np.max(log_q_seen, axis=0)
    among = np.exp(log_q_seen - top)  # Q_r / max Q over feasible rows
    fails = np.asarray(top + np.log(np.sum(among, axis=0)) + gates.log_not_za)[None]
    table = Outcomes(
        _stack(rows.log_q + np.where(seen, gates.log_za, 0.0), fails),
        _stack(np.where(seen, rows.log_f, hidden.log_f), np.full_like(fails, _LOG_0)),
        _stack(np.where(seen, rows.log_not_f, hidden.log_not_f), np.zeros_like(fails)),
    )
    if not grad:
        return kl_divergence(always, table)

    value, (d_always, d_table, _) = kl_divergence(always, table, grad=True)
    assert d_table is not None
    d_q, d_f, d_not_f = (d[:-1] for d in d_table)
    d_fails = d_table.log_q[-1]
    d_hidden, d_log_za, d_log_not_za = unobserved_partials(
        rows, gates.log_za, gates.log_not_za, Outcomes(*(np.where(seen, 0.0, d) for d in (d_q, d_f, d_not_f)))
    )
    d_log_za = d_log_za + np.sum(np.where(seen, d_q, 0.0), axis=0)
    d_log_not_za = d_log_not_za + d_fails
    d_outcomes = Outcomes(
        d_q + np.where(seen, d_fails * (among / np.sum(among, axis=0)), 0.0),
        np.where(seen, d_f, d_hidden.log_f),
        np.where(seen, d_not_f, d_hidden.log_not_f),
    )
    d_gammas = [
        np.where(np.abs(g.gamma) < _GAMMA_MAX, d_log_za * g.hazard_neg - d_log_not_za * g.slope, 0.0)
        for g in gates.gates
    ]
    return value, Partials(d_gammas, d_outcomes, d_always)


@overload
def entropy_mixture(
    gammas: Sequence[npt.ArrayLike],
    outcomes: Outcomes,
    feasible: npt.ArrayLike,
    always: Sequence[npt.ArrayLike] = (),
    *,
    grad: Literal[False] = False,
) -> Array: ...
@overload
def entropy_mixture(
    gammas: Sequence[npt.ArrayLike],
    outcomes: Outcomes,
    feasible: npt.ArrayLike,
    always: Sequence[npt.ArrayLike] = (),
    *,
    grad: Literal[True],
) -> tuple[Array, Partials]: ...
@np.errstate(all="ignore")
def entropy_mixture(
    gammas: Sequence[npt.ArrayLike],
    outcomes: Outcomes,
    feasible: npt.ArrayLike,
    always: Sequence[npt.ArrayLike] = (),
    *,
    grad: bool = False,
) -> Array | tuple[Array, Partials]:
    """Mixture of entropy differences for `gammas` seen on feasible outcomes only (supplement A.6).

    P(feasible) times the entropy difference with `gammas` seen, plus P(infeasible) times the one without.
    Parameters and returns as for `kl_if_feasible`; the value can be negative.
    """
    gates, rows = _gates(gammas), _lift(outcomes)
    seen = np.asarray(feasible, dtype=bool)[:, None, None]
    hidden = _scaled(rows, gates.log_za, gates.log_not_za)
    q = np.exp(rows.log_q)
    q_seen, q_hidden = np.where(seen, q, 0.0).sum(axis=0), np.where(seen, 0.0, q).sum(axis=0)
    if not grad:
        with_gates, without = entropy_difference([*always, *gammas], rows), entropy_difference(always, hidden)
        return np.where(with_gates >= _VALUE_MAX, _VALUE_MAX, q_seen * with_gates + q_hidden * without)

    with_gates, d_with = entropy_difference([*always, *gammas], rows, grad=True)
    without, d_without = entropy_difference(always, hidden, grad=True)
    empty = with_gates >= _VALUE_MAX  # both have the same Z
    value = np.where(empty, _VALUE_MAX, q_seen * with_gates + q_hidden * without)
    assert d_with.outcomes is not None
    assert d_without.outcomes is not None
    d_rows, d_log_za, d_log_not_za = unobserved_partials(rows, gates.log_za, gates.log_not_za, d_without.outcomes)
    d_log_q = np.where(empty, 0.0, q * np.where(seen, with_gates, without))
    mixed = [q_seen * a + q_hidden * b for a, b in zip(d_with.outcomes, d_rows, strict=True)]
    d_hidden = [d_log_za * g.hazard_neg - d_log_not_za * g.slope for g in gates.gates]
    n_always = len(always)
    d_gammas = [
        np.where(np.abs(g.gamma) < _GAMMA_MAX, q_seen * a + q_hidden * b, 0.0)
        for g, a, b in zip(gates.gates, d_with.gammas[n_always:], d_hidden, strict=True)
    ]
    d_always = [q_seen * a + q_hidden * b for a, b in zip(d_with.gammas[:n_always], d_without.gammas, strict=True)]
    return value, Partials(d_gammas, Outcomes(mixed[0] + d_log_q, mixed[1], mixed[2]), d_always)


@np.errstate(all="ignore")
def product_outcomes(tables: Sequence[Outcomes]) -> Outcomes:
    """Table of several independent observations seen together: Q and F multiply.

    Parameters
    ----------
    tables : sequence of Outcomes, table j broadcastable to (R_j, K, n)

    Returns
    -------
    Outcomes, (R_1 R_2 ..., K, n)
        The row of the last table varies fastest; row 0 is the first row of every table.
    """
    return reduce(_pair, (_lift(table) for table in tables))


@np.errstate(all="ignore")
def split_partials(tables: Sequence[Outcomes], partials: Outcomes) -> list[Outcomes]:
    """Chain the partials with respect to ``product_outcomes(tables)`` back to each table.

    Parameters
    ----------
    tables : sequence of Outcomes, table j broadcastable to (R_j, K, n)
    partials : Outcomes, (R_1 R_2 ..., K, n)

    Returns
    -------
    list of Outcomes, entry j of shape (R_j, K, n)
    """
    if len(tables) == 1:
        return [partials]
    lifted = [_lift(table) for table in tables]
    sizes = [table.log_q.shape[0] for table in lifted]
    whole = product_outcomes(lifted)
    result = []
    for j, table in enumerate(lifted):
        index = np.indices(sizes)[j].ravel()  # the row of table j in each row of the product
        # d log(1 - prod F) / d log(1 - F_j) = (1 - F_j) prod_{i != j} F_i / (1 - prod F)
        others = lifted[:j] + [table._replace(log_f=np.zeros_like(table.log_f))] + lifted[j + 1 :]
        weight = np.exp(product_outcomes(others).log_f + table.log_not_f[index] - whole.log_not_f)
        fields = (partials.log_q, partials.log_f, partials.log_not_f * weight)
        rows = (np.stack([d[index == r].sum(axis=0) for r in range(sizes[j])]) for d in fields)
        result.append(Outcomes(*rows))
    return result


def with_unobserved(outcomes: Outcomes, log_p: npt.ArrayLike, log_not_p: npt.ArrayLike) -> Outcomes:
    """Multiply every F by the probability p that a quantity which is not observed holds.

    Parameters
    ----------
    outcomes : Outcomes, broadcastable to (R, K, n)
    log_p, log_not_p : arrays broadcastable to (K, n)
        log p and log(1 - p).

    Returns
    -------
    Outcomes, (R, K, n)
    """
    with np.errstate(all="ignore"):
        return _scaled(_lift(outcomes), _floor(log_p), _floor(log_not_p))


@np.errstate(all="ignore")
def unobserved_partials(
    outcomes: Outcomes, log_p: npt.ArrayLike, log_not_p: npt.ArrayLike, partials: Outcomes
) -> tuple[Outcomes, Array, Array]:
    """Chain the partials with respect to ``with_unobserved(outcomes, log_p, log_not_p)`` back.

    Returns
    -------
    partials : Outcomes, (R, K, n)
        With respect to `outcomes`.
    d_log_p, d_log_not_p : arrays, (K, n)
    """
    rows, log_p, log_not_p = _lift(outcomes), _floor(log_p), _floor(log_not_p)
    log_not_f = _scaled(rows, log_p, log_not_p).log_not_f
    d_rows = partials.log_not_f * np.exp(log_p + rows.log_not_f - log_not_f)
    d_p = partials.log_not_f * np.exp(rows.log_f + log_not_p - log_not_f)
    return (
        Outcomes(partials.log_q, partials.log_f, d_rows),
        np.sum(partials.log_f, axis=0),
        np.sum(d_p, axis=0),
    )


class _Rows(NamedTuple):
    """Partials of J by log Q_r and log(1 - F_r), (R, K, n)."""

    log_q: Array
    log_not_f: Array


def _floor(log_p: npt.ArrayLike) -> Array:
    return np.maximum(np.asarray(log_p, dtype=np.float64), _LOG_0)


def _lift(outcomes: Outcomes) -> Outcomes:
    """Three dimensions, a common number of rows and no infinity."""
    fields = [_floor(field) for field in outcomes]
    fields = [field.reshape((1,) * (3 - field.ndim) + field.shape) for field in fields]
    n_rows = max(field.shape[0] for field in fields)
    return Outcomes(*(f if len(f) == n_rows else np.broadcast_to(f, (n_rows, *f.shape[1:])) for f in fields))


def _stack(rows: Array, last: Array) -> Array:
    shape = np.broadcast_shapes(rows.shape[1:], last.shape[1:])
    return np.concatenate([np.broadcast_to(a, (a.shape[0], *shape)) for a in (rows, last)])


def _total(arrays: Sequence[Array]) -> Array:
    return reduce(np.add, arrays, np.zeros(()))


def _scaled(rows: Outcomes, log_p: Array, log_not_p: Array) -> Outcomes:
    """Multiply every F by p. Positive pieces of 1 - p F give a poor logarithm once p F is small."""
    log_f = np.maximum(rows.log_f + log_p, _LOG_0)
    pieces = np.logaddexp(log_not_p, log_p + rows.log_not_f)
    log_not_f = np.where(log_f < -np.log(2.0), np.log1p(-np.exp(log_f)), pieces)
    return Outcomes(rows.log_q, log_f, np.maximum(log_not_f, _LOG_0))


def _pair(a: Outcomes, b: Outcomes) -> Outcomes:
    """Product of two tables, (R_a R_b, K, n)."""
    b = Outcomes(*(field[None] for field in b))
    a = Outcomes(*(field[:, None] for field in a))
    both = _scaled(b._replace(log_q=np.maximum(a.log_q + b.log_q, _LOG_0)), a.log_f, a.log_not_f)
    fields = np.broadcast_arrays(*both)
    return Outcomes(*(field.reshape((-1, *field.shape[2:])) for field in fields))


def _gates(gammas: Sequence[npt.ArrayLike]) -> _Gates:
    """Write 1 - Z_A as the sum over g of P(gate g is the first to fail), without exp(-r^2/2)."""
    zero = np.zeros(())
    if not gammas:
        return _Gates([], zero, np.full((), _LOG_0), zero, zero)
    arrays = [np.asarray(gamma, dtype=np.float64) for gamma in gammas]
    clipped = [np.minimum(np.maximum(gamma, -_GAMMA_MAX), _GAMMA_MAX) for gamma in arrays]
    sides = [tails(gamma) for gamma in clipped]
    r = np.maximum(reduce(np.minimum, clipped), 0.0)
    q = [(gamma - r) * (gamma + r) for gamma in clipped]
    upto = list(accumulate(side.log_cdf for side in sides))
    before = [zero, *upto[:-1]]
    after = list(accumulate((side.log_cdf for side in reversed(sides[1:])), initial=zero))[::-1]
    first = [
        np.exp(log_before + side.log_scaled - np.where(gamma > 0.0, 0.5 * q_g, 0.0))
        for log_before, side, gamma, q_g in zip(before, sides, clipped, q, strict=True)
    ]
    total = _total(first)
    log_scaled = np.log(total)
    z_a = np.exp(upto[-1])
    log_not_za = np.where(z_a <= 0.5, np.log1p(-z_a), log_scaled - 0.5 * r * r)
    log_not_za = np.where(r >= _GAMMA_MAX, _LOG_0, log_not_za)
    shares = [f / total for f in first]
    slopes = [f * np.exp(log_after) * t.hazard for f, log_after, t in zip(shares, after, sides, strict=True)]
    columns = zip(clipped, sides, slopes, q, shares, upto, after, strict=True)
    gates = [_Gate(gamma, side.hazard_neg, side.hazard_abs, *rest) for gamma, side, *rest in columns]
    return _Gates(gates, upto[-1], log_not_za, r, log_scaled)


def _table(outcomes: Outcomes | None, gammas: Sequence[npt.ArrayLike]) -> _Table:
    """Sum over the rows; Zt and Nt are each taken from the side on which their logarithm is accurate."""
    zero = np.zeros(())
    if outcomes is None:
        if not gammas:
            raise ValueError("an observation needs at least one gate or a table of outcomes; got neither")
        row = np.zeros((1, 1, 1))
        return _Table(zero, np.full((), _LOG_0), zero, zero, Outcomes(row, row, row), row, row, row, row)
    rows = _lift(outcomes)
    q, f = np.exp(rows.log_q), np.exp(rows.log_f)
    zt = (q * f).sum(axis=0)
    log_mass = rows.log_q + rows.log_not_f
    top = log_mass.max(axis=0)
    mass = np.exp(log_mass - top)
    total = mass.sum(axis=0)
    rho = mass / total
    low = zt <= 0.5
    log_nt = np.where(low, np.log1p(-zt), top + np.log(total))
    nt = np.exp(log_nt)
    log_zt = np.where(low, np.maximum(np.log(zt), _LOG_0), np.log1p(-nt))
    gap = np.where(low, q * (f - zt) / nt, q - rho)
    log_ratio = rows.log_not_f - log_nt
    terms = _divergence_terms(q, rho, log_ratio)
    shift = (gap * rows.log_q).sum(axis=0)
    return _Table(log_zt, log_nt, terms.sum(axis=0), shift, rows, rho, gap, log_ratio, terms)


def _split(gates: _Gates, table: _Table) -> _Split:
    x = np.exp(gates.log_za + table.log_zt)
    low = x <= 0.5
    log_hold = gates.log_za + table.log_nt
    log_z = np.where(low, np.log1p(-x), np.logaddexp(gates.log_not_za, log_hold))
    odds = log_hold - gates.log_not_za
    u = -np.logaddexp(0.0, gates.log_not_za + table.log_zt - table.log_nt)
    empty = np.maximum(gates.log_not_za, table.log_nt) < _LOG_0_SUM
    return _Split(x, log_z, expit(-odds), expit(odds), u, low, empty)


def _divergence_terms(p: Array, v: Array, u: Array) -> Array:
    """Terms v u - v + p of a divergence, with v = p exp(u): never negative, and nothing overflows."""
    a = np.abs(u)
    drop = -np.expm1(-a)
    direct = np.where(u > 0.0, v * (a - drop), p * (drop - a * (1.0 - drop)))
    w = np.where(a < _SERIES_BELOW, u, 0.0)
    series = w * w * (1 / 2 + w * (1 / 3 + w * (1 / 8 + w * (1 / 30 + w / 144))))
    return np.where(a < _SERIES_BELOW, p * series, direct)


def _gate_divergence(gates: _Gates, split: _Split) -> Array:
    """Divergence of the answer to "does a Gaussian gate fail?"."""
    fails = _divergence_terms(np.exp(gates.log_not_za), split.s, -split.log_z)
    return fails + _divergence_terms(np.exp(gates.log_za), split.v, split.u)


def _gate_factor(split: _Split, table: _Table, label: Array) -> Array:
    """Differentiate -log Z + V (log Nt + J) by log Z_A, times Z / Z_A."""
    zt, nt = np.exp(table.log_zt), np.exp(table.log_nt)
    curve = _divergence_terms(np.ones(()), nt, table.log_nt)  # Zt + Nt log Nt
    near = (curve + nt * label - split.x * zt) / (1.0 - split.x)
    return np.where(split.low, near, zt + np.exp(split.u) * (table.log_nt + label))


def _far_entropy(gates: _Gates, split: _Split, table: _Table, curves: Sequence[Array]) -> Array:
    """`_gate_divergence` minus X/Z 1/2 sum gamma h(-gamma), with gamma^2/2 cancelled by hand; for X > 1/2."""
    s, v = split.s, split.v
    result = xlogy(s, s) - s * gates.log_scaled + xlogy(v, v) - v * gates.log_za
    for gate, curve in zip(gates.gates, curves, strict=True):
        log_x_after = gate.log_after + table.log_zt
        bend = np.exp(log_x_after) * (curve - 1.0) - np.expm1(log_x_after) * gate.gamma**2
        result = result + 0.5 * s * gate.share * (bend - gate.q)
    return np.asarray(result)


def _far_bends(gates: _Gates, split: _Split, curves: Sequence[Array]) -> list[Array]:
    """1 + gamma_g (gamma_g + h(-gamma_g)) minus 2/X times `pull`, with r^2 cancelled by hand; for X > 1/2."""
    weights = [split.s * gate.share * np.exp(-gate.log_upto) for gate in gates.gates]
    excess = split.v + _total([w * np.expm1(g.log_upto) for w, g in zip(weights, gates.gates, strict=True)])
    common = excess * (1.0 + gates.r * gates.r)
    common = common + _total([w * (c - g.q) for w, c, g in zip(weights, curves, gates.gates, strict=True)])
    return [common + gate.q + gate.gamma * gate.hazard_neg for gate in gates.gates]


def _finish(value: Array, split: _Split) -> Array:
    return np.where(split.empty, _VALUE_MAX, np.clip(value, -_VALUE_MAX, _VALUE_MAX))


def _gate_partials(d_gammas: Sequence[Array], gates: _Gates, split: _Split) -> list[Array]:
    return [
        np.where(split.empty | (np.abs(gate.gamma) >= _GAMMA_MAX), 0.0, d)
        for d, gate in zip(d_gammas, gates.gates, strict=True)
    ]


def _outcome_partials(table: _Table, split: _Split, d_log_nt: Array, d_label: _Rows) -> Outcomes:
    """Chain Nt and J to the rows; F_r moves through log F_r where it is below 1/2, else log(1 - F_r)."""
    rows, v = table.rows, split.v
    if split.empty.any():
        v, d_log_nt = np.where(split.empty, 0.0, v), np.where(split.empty, 0.0, d_log_nt)
    small = rows.log_f < -np.log(2.0)
    odds = np.where(small, -np.exp(rows.log_f - rows.log_not_f), 0.0)
    d_f = v * d_label.log_not_f + d_log_nt * table.rho
    return Outcomes(v * d_label.log_q - d_log_nt * table.gap, d_f * odds, np.where(small, 0.0, 1.0) * d_f)
