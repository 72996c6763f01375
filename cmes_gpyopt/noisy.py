"""What an evaluation tells about y* when some of its quantities are seen through Gaussian noise.

Notation, beyond that of `cmes_gpyopt.entropy` (K samples of y*, n points, R outcomes; N = K n once flattened)

==============  =============================================================================================
rho_g           s / sqrt(s^2 + v) for a latent N(mu, s^2) seen with noise variance v; 1 is noise-free
sd_g            sqrt(1 - rho^2), the standard deviation of the latent quantity given its observation
z_g             observation of gate g, standardised to N(0, 1)
u_g             (gamma - rho z) / sd: the gate holds with Phi(u) once z is seen
n0, w           gamma / rho and sd / rho: where Phi(u) passes 1/2, and the width of its transition
y, V            kappa / Z, and the divergence E[y log y]
==============  =============================================================================================

Notes
-----
With noise, kappa depends on z smoothly: kappa = 1 - F_r prod_g Phi(u_g). The expectation over z is taken by
Gauss-Legendre quadrature in four panels, split at n0 +- several w, so that it holds for any amount of noise;
the panels also cover where z lies given that the gate fails (or, for gamma < 0, holds), around rho gamma. Two
noisy gates take the product of their nodes. Plain Gauss-Hermite nodes would miss a narrow transition.

The divergence is a sum of non-negative terms p (y log y - y + 1). Its derivatives are taken under the integral,

    dV = sum p dkappa (log y - V) / Z + sum dp (y log y - y + 1 - y V).

A point approximation of the noise, as in the paper (its A_2), can exceed the noise-free divergence, which no
noisy channel can; this one does not, beyond the error of the quadrature, and tends to it as rho tends to 1. For
noise-free gates alone that limit is the information lower bound of Takeno et al. (2022).

Valid range: abs(gamma) <= 1e4 for a noisy gate, beyond which it counts as 1e4, or as infinite from 1e150 on.
Measured for abs(gamma) <= 8 and 1 - rho^2 from 1e-10 to 1 - 1e-6: the error is below 1e-8 of the value + 1e-12.

References
----------
V. Perrone, I. Shcherbatyi, R. Jenatton, C. Archambeau, M. Seeger (2020). Constrained Bayesian Optimization
with Max-Value Entropy Search. Supplement, section A.2 (noisy targets).
S. Takeno, T. Tamura, K. Shitara, M. Karasuyama (2022). Sequential and Parallel Constrained Max-value Entropy
Search via Information Lower Bound. ICML.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Literal, NamedTuple, overload

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

from .entropy import (
    _GAMMA_MAX,
    _LOG_0,
    _VALUE_MAX,
    Outcomes,
    _Gates,
    _gates,
    _lift,
    _scaled,
    _split,
    _table,
    kl_divergence,
    kl_if_feasible,
    unobserved_partials,
)
from .errors import CMESError
from .normal import Array, log_cdf

_MAX_NOISY = 2
# A finite noisy gate is clipped here: gamma^2 / 2 then rounds at 1e-8, and so do the weights of the nodes.
_NOISY_GAMMA_MAX = 1e4
# Stands for sd = 0 at points without noise beside others with it; the value moves by something of this order.
_SD_MIN = 1e-12
# The standard normal has mass 6e-16 beyond this.
_REACH = 8.0
# Half-width of the transition in units of w.
_TRANSITION = 7.0
# Gauss-Legendre nodes on [-1, 1] of the four panels, one after the other.
_COUNTS = (20, 32, 24, 16)
_NODES, _WEIGHTS = (np.concatenate(a) for a in zip(*map(np.polynomial.legendre.leggauss, _COUNTS), strict=True))
_LOG_WEIGHTS = np.log(_WEIGHTS)
# Matrices that give every node what belongs to its panel, and its place between the two ends of it.
_FROM_PANELS = np.repeat(np.eye(4), _COUNTS, axis=1)  # (4, M)
_FROM_EDGES = np.repeat(_FROM_PANELS, 2, axis=0) * np.tile([0.5 - 0.5 * _NODES, 0.5 + 0.5 * _NODES], (4, 1))  # (8, M)
# Below this abs(log y) the series of y log y - y + 1 is exact to rounding; above it the difference is good to 4e-12.
_SERIES_BELOW = 1e-2
# Value of -log Z from which on kappa may underflow where it matters: everything is then taken from logarithms.
_FAR = 600.0
_TINY = 1e-300
# Elements of one array; larger ones fall out of the cache, and two gates out of memory.
_BLOCK = 1 << 15
_SQRT_2PI = np.sqrt(2.0 * np.pi)
_LOG_SQRT_2PI = np.log(_SQRT_2PI)
# One row with Q = F = 1.
_CERTAIN = Outcomes(np.zeros((1, 1, 1)), np.zeros((1, 1, 1)), np.full((1, 1, 1), -np.inf))


class NoisyPartials(NamedTuple):
    """Partial derivatives of `kl_noisy`; conventions as for `cmes_gpyopt.entropy.Partials`."""

    gammas: list[Array]
    """With respect to each gate, (K, n); 0 where the gate is infinite."""
    rhos: list[Array]
    """With respect to each rho, (K, n); 0 where rho = 1 (the true slope is infinite there, that by s is not)."""
    outcomes: Outcomes | None
    """With respect to log_q, log_f, log_not_f, (R, K, n)."""
    always: list[Array]
    """With respect to each gate of `always`, (K, n)."""
    always_rhos: list[Array]
    """With respect to each rho of `always`, (K, n)."""


class _Gate(NamedTuple):
    """One gate, flattened to (N,)."""

    gamma: Array
    rho: Array
    noisy: bool
    always: bool


class _Kind(NamedTuple):
    """Some of the gates: what `cmes_gpyopt.entropy` knows of them together, and which they are."""

    all: _Gates
    indices: list[int]


class _Nodes(NamedTuple):
    """Quadrature over the observation of one noisy gate, (N, M)."""

    log_p: Array  # log of the probability carried by the node
    p: Array
    u: Array
    holds: Array  # Phi(u)
    fails: Array  # Phi(-u)
    offset: Array  # z - origin
    sd: Array  # (N, 1)
    pull: Array  # abs(gamma) rho - origin, (N, 1)
    sign: Array  # that of gamma, (N, 1)


class _Grid(NamedTuple):
    """Product of the nodes of several gates, (N, M); one node without any gate."""

    p: Array
    holds: Array  # every gate holds
    fails: Array  # some gate fails


class _Sums(NamedTuple):
    """Sums over the nodes, for the rows of a group; the weights are those of `_weights`."""

    value: Array  # terms of the divergence, (R, 1, N)
    mass: Array  # p y, (R, 1, N)
    plain: Array  # weights, (W, 1, N)
    with_log_y: Array  # weights times log y, (W, R, 1, N)


class _Group(NamedTuple):
    """Rows on which the same noisy gates are seen."""

    rows: Outcomes  # (R, 1, N); log_q includes the noise-free gates seen on these rows
    gates: list[int]  # the noisy gates seen


@overload
def kl_noisy(
    gammas: Sequence[npt.ArrayLike],
    rhos: Sequence[npt.ArrayLike],
    outcomes: Outcomes | None = None,
    *,
    feasible: npt.ArrayLike | None = None,
    always: Sequence[npt.ArrayLike] = (),
    always_rhos: Sequence[npt.ArrayLike] = (),
    grad: Literal[False] = False,
) -> Array: ...
@overload
def kl_noisy(
    gammas: Sequence[npt.ArrayLike],
    rhos: Sequence[npt.ArrayLike],
    outcomes: Outcomes | None = None,
    *,
    feasible: npt.ArrayLike | None = None,
    always: Sequence[npt.ArrayLike] = (),
    always_rhos: Sequence[npt.ArrayLike] = (),
    grad: Literal[True],
) -> tuple[Array, NoisyPartials]: ...
@np.errstate(all="ignore")
def kl_noisy(
    gammas: Sequence[npt.ArrayLike],
    rhos: Sequence[npt.ArrayLike],
    outcomes: Outcomes | None = None,
    *,
    feasible: npt.ArrayLike | None = None,
    always: Sequence[npt.ArrayLike] = (),
    always_rhos: Sequence[npt.ArrayLike] = (),
    grad: bool = False,
) -> Array | tuple[Array, NoisyPartials]:
    """Divergence KL[P(o | y*) || P(o)] of an observation with Gaussian noise, never negative.

    Parameters
    ----------
    gammas : sequence of arrays broadcastable to (K, n)
        Gaussian gates (limit - mu) / s of the latent quantities; +-inf are exact limits.
    rhos : sequence of arrays broadcastable to (K, n), one for each gate
        s / sqrt(s^2 + v) in [0, 1], with v the noise variance; 1 is noise-free. At most two gates, `always`
        included, may be noisy.
    outcomes : Outcomes, optional
        Discrete part of the observation, broadcastable to (R, K, n).
    feasible : boolean array, (R,), optional
        The rows on which `gammas` are seen; every row if omitted.
    always : sequence of arrays broadcastable to (K, n)
        Gaussian gates seen on every row.
    always_rhos : sequence of arrays broadcastable to (K, n)
        As `rhos`, for `always`.
    grad : bool
        Also return the partial derivatives.

    Returns
    -------
    value : array, (K, n)
        Always finite; the largest double where Z = 0.
    partials : NoisyPartials, only with ``grad=True``

    Raises
    ------
    CMESError
        With more than two noisy gates, a rho outside [0, 1], or a number of rhos other than that of the gates.

    Notes
    -----
    Without noise this is `kl_divergence`, or `kl_if_feasible` where `feasible` is given.
    """
    _check_counts(gammas, rhos, always, always_rhos)
    all_rhos = [np.asarray(rho, dtype=np.float64) for rho in (*rhos, *always_rhos)]
    noisy = _which_are_noisy(all_rhos)
    if not any(noisy):
        return _noise_free(gammas, outcomes, feasible, always, grad)

    all_gammas = [np.asarray(gamma, dtype=np.float64) for gamma in (*gammas, *always)]
    rows = _lift(outcomes or _CERTAIN)
    shape = np.broadcast_shapes(*(a.shape for a in (*all_gammas, *all_rhos)), *(a.shape[1:] for a in rows))
    flat_rows = Outcomes(*(_flat(field, (len(field), *shape)) for field in rows))
    gates = [
        _Gate(_clipped(_flat(gamma, shape), is_noisy), _flat(rho, shape), is_noisy, j >= len(gammas))
        for j, (gamma, rho, is_noisy) in enumerate(zip(all_gammas, all_rhos, noisy, strict=True))
    ]
    seen = np.ones(len(rows.log_q), dtype=bool) if feasible is None else np.asarray(feasible, dtype=bool)
    value, d_gates, d_rhos, d_rows = _score(gates, flat_rows, seen, grad)
    if not grad:
        return value.reshape(shape)

    first = len(gammas)
    by_gamma, by_rho = ([d.reshape(shape) for d in ds] for ds in (d_gates, d_rhos))
    d_outcomes = None if outcomes is None else Outcomes(*(d.reshape((len(d), *shape)) for d in d_rows))
    partials = NoisyPartials(by_gamma[:first], by_rho[:first], d_outcomes, by_gamma[first:], by_rho[first:])
    return value.reshape(shape), partials


def _check_counts(
    gammas: Sequence[npt.ArrayLike],
    rhos: Sequence[npt.ArrayLike],
    always: Sequence[npt.ArrayLike],
    always_rhos: Sequence[npt.ArrayLike],
) -> None:
    for name, n_gates, n_rhos in [("rhos", len(gammas), len(rhos)), ("always_rhos", len(always), len(always_rhos))]:
        if n_gates != n_rhos:
            raise CMESError(f"{name} needs one array for each gate: expected {n_gates}, got {n_rhos}")


def _which_are_noisy(rhos: Sequence[Array]) -> list[bool]:
    if not all(np.all((rho >= 0.0) & (rho <= 1.0)) for rho in rhos):
        raise CMESError("every rho must lie in [0, 1]: it is s / sqrt(s^2 + v), with v the variance of the noise")
    noisy = [bool(np.any(rho < 1.0)) for rho in rhos]
    if sum(noisy) > _MAX_NOISY:
        raise CMESError(
            f"the exact noisy divergence takes at most {_MAX_NOISY} noisy gates, got {sum(noisy)}; "
            "pass rho = 1 for those with the least noise"
        )
    return noisy


def _noise_free(
    gammas: Sequence[npt.ArrayLike],
    outcomes: Outcomes | None,
    feasible: npt.ArrayLike | None,
    always: Sequence[npt.ArrayLike],
    grad: bool,
) -> Array | tuple[Array, NoisyPartials]:
    if feasible is None:
        value, partials = kl_divergence([*gammas, *always], outcomes, grad=True)
        d_gammas, d_always = partials.gammas[: len(gammas)], partials.gammas[len(gammas) :]
    else:
        value, partials = kl_if_feasible(gammas, outcomes or _CERTAIN, feasible, always, grad=True)
        d_gammas, d_always = partials.gammas, partials.always
    if not grad:
        return value
    zeros = [[np.zeros_like(value) for _ in ds] for ds in (d_gammas, d_always)]
    return value, NoisyPartials(d_gammas, zeros[0], partials.outcomes, d_always, zeros[1])


def _flat(array: Array, shape: tuple[int, ...]) -> Array:
    """Broadcast to (..., K, n) and flatten to (..., 1, N)."""
    return np.broadcast_to(array, shape).reshape((*shape[:-2], 1, -1))


def _clipped(gamma: Array, noisy: bool) -> Array:
    if not noisy:
        return gamma
    infinite = np.abs(gamma) >= _GAMMA_MAX
    return np.where(infinite, np.copysign(np.inf, gamma), np.clip(gamma, -_NOISY_GAMMA_MAX, _NOISY_GAMMA_MAX))


def _score(
    gates: Sequence[_Gate], rows: Outcomes, seen: npt.NDArray[np.bool_], grad: bool
) -> tuple[Array, list[Array], list[Array], Outcomes]:
    """Value and partials for gates (1, N) and rows (R, 1, N).

    Three groups of rows: feasible ones, on which every noisy gate is seen; infeasible ones, on which only those of
    `always` are; and two rows with kappa = 1, for a noise-free gate that fails.
    """
    split = _split(_gates([g.gamma for g in gates]), _table(rows, []))
    s = np.where(split.empty, 0.0, -split.log_z)
    steady, clear, unseen = kinds = [
        _kind(gates, [g.always and not g.noisy for g in gates]),
        _kind(gates, [not g.always and not g.noisy for g in gates]),
        _kind(gates, [not g.always for g in gates]),
    ]
    noisy = [j for j, g in enumerate(gates) if g.noisy]
    log_q_seen, among = _log_sum(np.where(seen[:, None, None], rows.log_q, _LOG_0))
    hidden = _scaled(rows, unseen.all.log_za, unseen.all.log_not_za)
    log_fails = [steady.all.log_not_za, log_q_seen + steady.all.log_za + clear.all.log_not_za]
    fails = np.maximum(np.stack([np.broadcast_to(a, s.shape) for a in log_fails]), _LOG_0)
    groups = [
        _Group(_chosen(rows, steady.all.log_za + clear.all.log_za, seen), noisy),
        _Group(_chosen(hidden, steady.all.log_za, ~seen), [j for j in noisy if gates[j].always]),
        _Group(Outcomes(fails, np.full_like(fails, _LOG_0), np.zeros_like(fails)), []),
    ]
    sums = [_integrate(group, gates, s, grad) for group in groups]
    value = np.minimum(sum(total.value.sum(axis=0) for total in sums), _VALUE_MAX)
    finished = np.where(split.empty, _VALUE_MAX, value)
    if not grad:
        return finished, [], [], rows

    pairs = list(zip(groups, sums, strict=True))
    d_groups = [_row_partials(group.rows, total, value, s) for group, total in pairs]
    d_gammas, d_rhos = _gate_partials(gates, pairs, value)
    d_outcomes = _chain(rows, seen, among, kinds, d_groups, d_gammas)
    edges = [_NOISY_GAMMA_MAX if g.noisy else _GAMMA_MAX for g in gates]
    limits = [split.empty | ~(np.abs(g.gamma) < edge) for g, edge in zip(gates, edges, strict=True)]
    return (
        finished,
        [np.where(limit, 0.0, d) for limit, d in zip(limits, d_gammas, strict=True)],
        [np.where(split.empty | (g.rho >= 1.0), 0.0, d) for g, d in zip(gates, d_rhos, strict=True)],
        Outcomes(*(np.where(split.empty, 0.0, d) for d in d_outcomes)),
    )


def _kind(gates: Sequence[_Gate], members: Sequence[bool]) -> _Kind:
    indices = [j for j, member in enumerate(members) if member]
    return _Kind(_gates([gates[j].gamma for j in indices]), indices)


def _chain(
    rows: Outcomes,
    seen: npt.NDArray[np.bool_],
    among: Array,
    kinds: Sequence[_Kind],
    d_groups: Sequence[Outcomes],
    d_gammas: list[Array],
) -> Outcomes:
    """Take the partials by the three groups of rows to the rows given, and add those by the gates to `d_gammas`."""
    steady, clear, unseen = kinds
    d_seen, d_hidden, d_fails = d_groups
    d_rows, d_unseen, d_not_unseen = unobserved_partials(
        rows, unseen.all.log_za, unseen.all.log_not_za, _placed(d_hidden, ~seen)
    )
    d_clear = d_seen.log_q.sum(axis=0)
    d_steady = d_clear + d_hidden.log_q.sum(axis=0) + d_fails.log_q[1]
    for kind, d_log_za, d_log_not_za in (
        (steady, d_steady, d_fails.log_q[0]),
        (clear, d_clear, d_fails.log_q[1]),
        (unseen, d_unseen, d_not_unseen),
    ):
        for gate, j in zip(kind.all.gates, kind.indices, strict=True):
            d_gammas[j] = d_gammas[j] + (d_log_za * gate.hazard_neg - d_log_not_za * gate.slope)
    d_outcomes = Outcomes(*(a + b for a, b in zip(d_rows, _placed(d_seen, seen), strict=True)))
    return d_outcomes._replace(log_q=d_outcomes.log_q + among * d_fails.log_q[1])


def _row_partials(rows: Outcomes, sums: _Sums, value: Array, s: Array) -> Outcomes:
    """Partials by the rows of a group; F_r moves through log F_r where it is below 1/2, else log(1 - F_r)."""
    slope = value * sums.plain[0] - sums.with_log_y[0]
    small = rows.log_f < -np.log(2.0)
    return Outcomes(
        sums.value - value * sums.mass,
        np.where(small, np.exp(rows.log_q + rows.log_f + s) * slope, 0.0),
        np.where(small, 0.0, -np.exp(rows.log_q + rows.log_not_f + s) * slope),
    )


def _gate_partials(
    gates: Sequence[_Gate], pairs: Sequence[tuple[_Group, _Sums]], value: Array
) -> tuple[list[Array], list[Array]]:
    """Partials by gamma and rho of the noisy gates, as far as these are seen; 0 for the others."""
    d_gammas, d_rhos = ([np.zeros_like(value) for _ in gates] for _ in range(2))
    for group, total in pairs:
        factor = np.exp(group.rows.log_q + group.rows.log_f)
        for k, j in enumerate(group.gates):
            for ds, i in ((d_gammas, 1 + 2 * k), (d_rhos, 2 + 2 * k)):
                ds[j] = ds[j] + (factor * (value * total.plain[i] - total.with_log_y[i])).sum(axis=0)
    return d_gammas, d_rhos


def _placed(partials: Outcomes, chosen: npt.NDArray[np.bool_]) -> Outcomes:
    """Put the rows of a group back among all rows; 0 elsewhere."""
    result = [np.zeros((chosen.size, *field.shape[1:])) for field in partials]
    for target, field in zip(result, partials, strict=True):
        target[chosen] = field
    return Outcomes(*result)


def _chosen(rows: Outcomes, log_p: Array, chosen: npt.NDArray[np.bool_]) -> Outcomes:
    """Some of the rows, their probability multiplied by p."""
    return Outcomes(np.maximum(rows.log_q[chosen] + log_p, _LOG_0), *(np.asarray(field[chosen]) for field in rows[1:]))


def _log_sum(logs: Array) -> tuple[Array, Array]:
    """Logarithm of the sum over rows (1, N), and the share of each row (R, 1, N)."""
    top = logs.max(axis=0)
    parts = np.exp(logs - top)
    total = parts.sum(axis=0)
    return top + np.log(total), parts / total


def _blocks(n_points: int, n_nodes: int) -> Iterator[slice]:
    step = max(1, _BLOCK // n_nodes)
    return (slice(start, start + step) for start in range(0, n_points, step))


def _integrate(group: _Group, gates: Sequence[_Gate], s: Array, grad: bool) -> _Sums:
    """Sum over the nodes of the gates seen, block by block of points."""
    n_rows, _, n_points = group.rows.log_q.shape
    n_weights = 1 + 2 * len(group.gates)
    sums = _Sums(
        value=np.zeros((n_rows, 1, n_points)),
        mass=np.zeros((n_rows, 1, n_points)),
        plain=np.zeros((n_weights, 1, n_points)),
        with_log_y=np.zeros((n_weights, n_rows, 1, n_points)),
    )
    for part in _blocks(n_points if n_rows else 0, _NODES.size ** len(group.gates)):
        s_part = s[0, part, None]
        nodes = [_nodes(gates[j].gamma[0, part], gates[j].rho[0, part]) for j in group.gates]
        grid = _product(nodes, len(s_part))
        weights = _weights(nodes, grid, s_part) if grad else []
        for i, weight in enumerate(weights):
            sums.plain[i, 0, part] = weight.sum(axis=-1)
        posterior = _far_posterior if np.any(s_part > _FAR) else _posterior
        for r in range(n_rows):
            row = Outcomes(*(field[r, 0, part, None] for field in group.rows))
            prior = np.exp(row.log_q) * grid.p
            log_y, mass = posterior(row, prior, grid, nodes, s_part)
            sums.value[r, 0, part] = _terms(prior, mass, log_y).sum(axis=-1)
            if grad:
                sums.mass[r, 0, part] = mass.sum(axis=-1)
            for i, weight in enumerate(weights):
                sums.with_log_y[i, r, 0, part] = np.einsum("ij,ij->i", weight, log_y)
    return sums


def _posterior(row: Outcomes, prior: Array, grid: _Grid, nodes: Sequence[_Nodes], s: Array) -> tuple[Array, Array]:
    """Find log y and p y at every node, (N, M); log kappa is taken from the side on which it is accurate."""
    f = np.exp(row.log_f)
    kappa = f * grid.fails
    kappa += np.exp(row.log_not_f)
    np.maximum(kappa, _TINY, out=kappa)
    log_y = np.log(kappa)
    kappa *= np.exp(s)
    kappa *= prior
    loss = -f * grid.holds
    likely = loss > -0.5
    np.copyto(log_y, np.log1p(loss, out=loss), where=likely)
    log_y += s
    return log_y, kappa


def _far_posterior(row: Outcomes, prior: Array, grid: _Grid, nodes: Sequence[_Nodes], s: Array) -> tuple[Array, Array]:
    """Do the same where kappa and the probability of a node may underflow although p y does not."""
    log_p, log_holds, log_fails = (np.zeros((1, 1)) + a for a in (row.log_q, 0.0, _LOG_0))
    for gate in nodes:
        holds, fails = (np.maximum(log_cdf(u), _LOG_0) for u in (gate.u, -gate.u))
        log_p = _outer_sum(log_p, gate.log_p)
        log_fails = np.logaddexp(_outer_sum(log_fails, 0.0 * fails), _outer_sum(log_holds, fails))
        log_holds = _outer_sum(log_holds, holds)
    log_kappa = np.logaddexp(row.log_not_f, row.log_f + log_fails)
    far_log_y = np.maximum(log_kappa, _LOG_0) + s
    log_y, mass = _posterior(row, prior, grid, nodes, np.minimum(s, _FAR))
    far = s > _FAR
    return np.where(far, far_log_y, log_y), np.where(far, np.exp(log_p + far_log_y), mass)


def _weights(nodes: Sequence[_Nodes], grid: _Grid, s: Array) -> list[Array]:
    """Derivatives of p prod Phi(u), (N, M): itself, then by gamma and rho of each gate, these over Z."""
    result = [grid.p * grid.holds]
    for k, gate in enumerate(nodes):
        by_gamma = np.exp(gate.log_p + (s - _LOG_SQRT_2PI) - 0.5 * gate.u * gate.u) / gate.sd
        by_rho = by_gamma * (gate.sign * (gate.pull - gate.offset) / (gate.sd * gate.sd))
        for own in (by_gamma, by_rho):
            factors = [own if i == k else other.p * other.holds for i, other in enumerate(nodes)]
            result.append(reduce(_outer, factors))
    return result


def _outer(a: Array, b: Array) -> Array:
    """Every product of an entry of a (N, M_a) and one of b (N, M_b), (N, M_a M_b)."""
    return (a[:, :, None] * b[:, None]).reshape((len(a), -1))


def _outer_sum(a: Array, b: Array) -> Array:
    return (a[:, :, None] + b[:, None]).reshape((len(b), -1))


def _product(nodes: Sequence[_Nodes], n_points: int) -> _Grid:
    """Combine the nodes of all gates."""
    if not nodes:
        one = np.ones((n_points, 1))
        return _Grid(one, one, 0.0 * one)
    grid = _Grid(nodes[0].p, nodes[0].holds, nodes[0].fails)
    for gate in nodes[1:]:
        fails = _outer_sum(grid.fails, 0.0 * gate.fails) + _outer(grid.holds, gate.fails)
        grid = _Grid(_outer(grid.p, gate.p), _outer(grid.holds, gate.holds), fails)
    return grid


def _terms(p: Array, mass: Array, log_y: Array) -> Array:
    """Terms p (y log y - y + 1) with mass = p y; never negative."""
    result = log_y - 1.0
    result *= mass
    result += p
    small = np.abs(log_y) < _SERIES_BELOW
    w = log_y[small]
    result[small] = p[small] * w * w * (1 / 2 + w * (1 / 3 + w * (1 / 8 + w * (1 / 30 + w * (1 / 144 + w / 840)))))
    return result


def _nodes(gamma: Array, rho: Array) -> _Nodes:
    """Nodes for gates (N,). For gamma < 0 everything is mirrored."""
    infinite = np.isinf(gamma)
    g, rho = np.where(infinite, 0.0, np.abs(gamma)), np.where(infinite, 0.0, rho)  # z then carries nothing
    sd = np.maximum(np.sqrt((1.0 - rho) * (1.0 + rho)), _SD_MIN)
    sharp, origin, edges = _panels(g, rho, sd)
    offset = edges.reshape((8, -1)).T @ _FROM_EDGES  # z - origin, (N, M)
    bell = origin[:, None] + offset  # z, then -z^2 / 2; in place, here and below, because memory is what takes time
    bell *= bell
    bell *= -0.5
    # Gives the long first panel its exact mass; kappa is constant on it once it is too long for its nodes.
    first = np.exp(bell[:, : _COUNTS[0]]) @ _WEIGHTS[: _COUNTS[0]]
    scale = (edges[:, 1] - edges[:, 0]) / (2.0 * _SQRT_2PI)
    scale[0] = ndtr(edges[0, 1] + origin) / first
    log_p = np.maximum(np.log(scale), _LOG_0).T @ _FROM_PANELS
    log_p += _LOG_WEIGHTS
    log_p += bell
    sign = np.where(gamma < 0.0, -1.0, 1.0)
    start = np.where(infinite, gamma, sign * np.where(sharp, 0.0, g) / sd)  # u at the origin
    u = (-sign * rho / sd)[:, None] * offset
    u += start[:, None]
    below, tail = u < 0.0, np.minimum(u, -u)
    ndtr(tail, out=tail)
    rest = 1.0 - tail
    return _Nodes(
        log_p=log_p,
        p=np.exp(log_p),
        u=u,
        holds=np.where(below, tail, rest),
        fails=np.where(below, rest, tail),
        offset=offset,
        sd=sd[:, None],
        pull=np.where(sharp, -g * sd * sd / rho, g * rho)[:, None],
        sign=sign[:, None],
    )


def _panels(g: Array, rho: Array, sd: Array) -> tuple[npt.NDArray[np.bool_], Array, Array]:
    """Where to integrate, for g >= 0.

    Returns
    -------
    sharp : boolean array, (N,)
        The transition is narrow and matters: the panels are split at it.
    origin : array, (N,)
        What `edges` are relative to: n0 where `sharp`, so that no digit of a narrow transition is lost; else 0.
    edges : array, (4, 2, N)
        Ends of the four panels. They adjoin, except that the first, which covers the prior, may end before
        the second begins where the gate holds almost surely.
    """
    # Not sharp, the inner panels are the shorter ones: the outer two hold little but tails.
    safe = np.maximum(rho, _TINY)
    n0, width = g / safe, _TRANSITION * sd / safe
    high = np.maximum(_REACH, rho * np.sqrt(g * g + 60.0) + _TRANSITION * sd)  # exp(-60 / 2) is left beyond
    near = rho * g - _REACH * sd
    gap = near > _REACH
    span = high - np.where(gap, near, -_REACH)
    sharp = np.where(gap, n0 + width < high, (width < span / 4.0) & (n0 - width < high))
    origin = np.where(sharp, n0, 0.0)
    top = high - origin
    near_n0 = -g * sd * sd / safe - _REACH * sd  # near - n0
    third = span / 3.0
    left = np.where(gap, near_n0, np.where(g > _REACH, np.minimum(near_n0, -width), -width))
    e1 = np.where(sharp, left, np.where(gap, near, 0.3 * span - _REACH))
    e2 = np.where(sharp, np.minimum(0.0, top), np.where(gap, near + third, 0.5 * span - _REACH))
    e3 = np.where(sharp, np.minimum(width, top), np.where(gap, near + 2.0 * third, 0.7 * span - _REACH))
    edges = [[-_REACH - origin, np.where(gap, _REACH - origin, e1)], [e1, e2], [e2, e3], [e3, top]]
    return sharp, origin, np.array(edges)
