"""The noisy divergence against numerical integration of its definition, central differences and theory."""

from itertools import pairwise
from time import perf_counter

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import expit, log_expit, log_ndtr, logsumexp, xlogy
from scipy.stats import norm

from cmes_gpyopt import noisy
from cmes_gpyopt.entropy import Outcomes, entropy_difference, kl_divergence, kl_if_feasible, with_unobserved
from cmes_gpyopt.errors import CMESError
from cmes_gpyopt.noisy import kl_noisy
from cmes_gpyopt.normal import log1mexp, log_cdf

LARGEST = np.finfo(float).max
NODES, WEIGHTS = np.polynomial.legendre.leggauss(12)


# --- building blocks ----------------------------------------------------------------------------------------


def table_from(q, f, not_f=None):
    """Outcomes (R, 1, n) from probabilities (R,) or (R, n)."""
    q, f = np.atleast_1d(q).astype(float), np.atleast_1d(f).astype(float)
    not_f = 1.0 - f if not_f is None else np.atleast_1d(not_f)
    with np.errstate(divide="ignore"):
        return Outcomes(*(np.log(a).reshape(len(a), 1, -1) for a in (q, f, not_f)))


def logit_table(q_logits, f_logits):
    """Outcomes from unconstrained logits, so that Q sums to 1 and F + (1 - F) = 1 wherever they are moved."""
    return Outcomes(q_logits - logsumexp(q_logits, axis=0), log_expit(f_logits), log_expit(-f_logits))


def gate(x):
    return np.full((1, 1), float(x))


def rho_of(noise):
    """Take 1 - rho^2 to rho."""
    return np.sqrt(1.0 - noise)


def gate_grid(gamma, rho, step, units):
    """Masses, P(gate holds) and P(gate fails) on a fine grid of the observation; two cells if there is no noise."""
    if rho == 1.0:
        p = norm.cdf(gamma)
        return np.array([p, norm.sf(gamma)]), np.array([1.0, 0.0]), np.array([0.0, 1.0])
    sd = np.sqrt((1.0 - rho) * (1.0 + rho))
    near = gamma / rho + sd / rho * np.linspace(-12.0, 12.0, units)
    edges = np.unique(np.clip(np.concatenate([np.arange(-15.0, 15.0 + step, step), near]), -15.0, 15.0))
    half = 0.5 * np.diff(edges)[:, None]
    z = (0.5 * (edges[1:] + edges[:-1])[:, None] + half * NODES).ravel()
    u = (gamma - rho * z) / sd
    return (half * WEIGHTS).ravel() * norm.pdf(z), norm.cdf(u), norm.sf(u)


def integrate(gammas, rhos, q, f, not_f, feasible, always=(), always_rhos=(), step=0.25, units=61):
    """-log Z + E[kappa log kappa] / Z, from the definition."""
    n_always, limits, pairs = len(always), [*always, *gammas], [*always_rhos, *rhos]
    grids = [gate_grid(g, r, step, units) for g, r in zip(limits, pairs, strict=True)]
    z, total = 0.0, 0.0
    for q_r, f_r, not_f_r, seen in zip(q, f, not_f, feasible, strict=True):
        mass, holds, fails = np.ones(1), np.ones(1), np.zeros(1)
        for j, (m, h, b) in enumerate(grids):
            if j >= n_always and not seen:
                m, h, b = np.ones(1), np.array([norm.cdf(limits[j])]), np.array([norm.sf(limits[j])])
            fails = np.add.outer(fails, 0.0 * b).ravel() + np.multiply.outer(holds, b).ravel()
            mass, holds = np.multiply.outer(mass, m).ravel(), np.multiply.outer(holds, h).ravel()
        kappa = not_f_r + f_r * fails
        total += q_r * np.sum(mass * xlogy(kappa, kappa))
        none = 0.0
        for g in limits:
            none = none + (1.0 - none) * norm.sf(g)
        z += q_r * (not_f_r + f_r * none)
    return -np.log(z) + total / z


def random_table(rng, n_rows):
    if n_rows == 1:
        return None, (np.ones(1), np.ones(1), np.zeros(1))
    q, logits = rng.dirichlet(np.ones(n_rows)), rng.uniform(-9.0, 9.0, n_rows)
    f, not_f = expit(logits), expit(-logits)
    return table_from(q, f, not_f), (q, f, not_f)


def random_noise(rng):
    """1 - rho^2 from 1e-10 to 1 - 1e-6, small, medium and large."""
    return rng.choice([10 ** rng.uniform(-10, 0), rng.uniform(0.01, 0.99), 1 - 10 ** rng.uniform(-6, 0)])


def excess(value, reference):
    """How far the error exceeds 1e-8 of the value plus 1e-12; at most 1 is a pass."""
    return abs(value.item() - reference) / (1e-8 * abs(reference) + 1e-12)


def worst_excess(rng, count, structures, **grid):
    """Largest excess over random settings of (gates, of them noisy, always, of them noisy, rows, split)."""
    worst = 0.0
    for index in range(count):
        n_gates, n_noisy, n_always, n_always_noisy, n_rows, split = structures[index % len(structures)]
        gammas, always = rng.uniform(-8.0, 8.0, n_gates), rng.uniform(-8.0, 8.0, n_always)
        rhos = [rho_of(random_noise(rng)) if j < n_noisy else 1.0 for j in range(n_gates)]
        always_rhos = [rho_of(random_noise(rng)) if j < n_always_noisy else 1.0 for j in range(n_always)]
        table, rows = random_table(rng, n_rows)
        seen = rng.permutation(np.arange(n_rows) % 2 == 0) if split else np.ones(n_rows, bool)
        reference = integrate(gammas, rhos, *rows, seen, always, always_rhos, **grid)
        value = kl_noisy(
            list(map(gate, gammas)),
            rhos,
            table,
            feasible=seen if split else None,
            always=list(map(gate, always)),
            always_rhos=always_rhos,
        )
        worst = max(worst, excess(value, reference))
    return worst


# --- the definition, integrated -----------------------------------------------------------------------------


def test_one_noisy_gate_equals_the_integral_of_the_definition():
    structures = [(1, 1, 0, 0, 1, False), (1, 1, 0, 0, 2, False), (1, 1, 0, 0, 2, True), (0, 0, 1, 1, 2, True)]
    structures += [(2, 1, 0, 0, 2, False), (2, 1, 1, 0, 2, True), (1, 0, 1, 1, 3, True), (1, 0, 1, 1, 2, False)]
    assert worst_excess(np.random.default_rng(0), 1200, structures) <= 1.0


def test_two_noisy_gates_equal_the_integral_of_the_definition():
    structures = [(2, 2, 0, 0, 1, False), (2, 2, 0, 0, 2, False), (2, 2, 0, 0, 2, True)]
    structures += [(1, 1, 1, 1, 2, True), (1, 1, 1, 1, 2, False), (0, 0, 2, 2, 2, True)]
    assert worst_excess(np.random.default_rng(1), 60, structures, step=0.5, units=37) <= 1.0


@pytest.mark.parametrize("noise", [1e-8, 1e-4, 0.03, 0.1, 0.3, 0.6, 0.97])
def test_a_certain_table_and_one_gate_agree_with_adaptive_quadrature(noise):
    rho, sd = rho_of(noise), np.sqrt(noise)
    for gamma in (-2.0, 0.3, 2.5):

        def integrand(z, gamma=gamma):
            kappa = norm.cdf((rho * z - gamma) / sd)
            return norm.pdf(z) * xlogy(kappa, kappa)

        n0 = gamma / rho
        cuts = np.unique(np.clip([-10.0, n0 - 8 * sd / rho, n0, n0 + 8 * sd / rho, 10.0], -10.0, 10.0))
        pieces = [quad(integrand, a, b, epsabs=1e-14, epsrel=1e-12)[0] for a, b in pairwise(cuts)]
        z = norm.sf(gamma)
        assert excess(kl_noisy([gate(gamma)], [rho]), -np.log(z) + sum(pieces) / z) <= 1.0


def test_the_comparison_with_integrals_notices_an_error_of_one_part_in_ten_million():
    table = table_from([0.3, 0.7], [0.9, 0.2])
    rows = np.array([0.3, 0.7]), np.array([0.9, 0.2]), np.array([0.1, 0.8])
    reference = integrate([0.7], [0.8], *rows, [True, True])
    value = kl_noisy([gate(0.7)], [0.8], table)
    assert excess(value, reference) <= 1.0 < excess(value * (1 + 1e-7), reference)


def large_gate(gamma, rho):
    """Divergence from an integral over where the observation lies given that the gate fails, in logarithms."""
    sd = np.sqrt((1.0 - rho) * (1.0 + rho))
    low, high = rho * gamma - 13 * sd, rho * np.hypot(gamma, 9.5) + 13 * sd
    near = np.clip(gamma / rho + sd / rho * np.linspace(-13.0, 13.0, 201), low, high)
    edges = np.unique(np.concatenate([np.linspace(low, high, 401), near]))
    half = 0.5 * np.diff(edges)[:, None]
    z = (0.5 * (edges[1:] + edges[:-1])[:, None] + half * NODES).ravel()
    log_y = log_ndtr((rho * z - gamma) / sd) - log_ndtr(-gamma)
    return np.sum((half * WEIGHTS).ravel() * np.exp(log_y - 0.5 * z * z) / np.sqrt(2 * np.pi) * log_y)


@pytest.mark.parametrize("gamma", [9.0, 12.0, 20.0, 36.0, 45.0, 300.0, 2000.0])
def test_gates_far_beyond_the_range_of_doubles_stay_accurate(gamma):
    for noise in (1e-10, 1e-5, 1e-2, 0.1, 0.3, 0.7, 0.99, 1 - 1e-6):
        value = kl_noisy([gate(gamma)], [rho_of(noise)]).item()
        assert value == pytest.approx(large_gate(gamma, rho_of(noise)), rel=1e-8)


# --- limits and theory --------------------------------------------------------------------------------------


def random_batch(rng, n, spread=5.0):
    gammas = [rng.uniform(-spread, spread, (4, n)) for _ in range(2)]
    return gammas, logit_table(*rng.uniform(-spread, spread, (2, 2, 1, n)))


SEEN = np.array([True, False])


def observations(gammas, table):
    """Yield (noisy score of rho, noise-free score, score with the noisy gate unobserved)."""
    first, second = gammas
    one = [log_cdf(first), log_cdf(-first)]
    hidden = with_unobserved(table, *one)
    alone = with_unobserved(table_from([1.0], [1.0]), *one)
    yield lambda rho: kl_noisy([first], [rho]), kl_divergence([first]), kl_divergence([], alone)
    yield lambda rho: kl_noisy([first], [rho], table), kl_divergence([first], table), kl_divergence([], hidden)
    yield (
        lambda rho: kl_noisy([first, second], [rho, 1.0], table),
        kl_divergence([first, second], table),
        kl_divergence([second], hidden),
    )
    yield (
        lambda rho: kl_noisy([first], [rho], table, feasible=SEEN, always=[second], always_rhos=[1.0]),
        kl_if_feasible([first], table, SEEN, [second]),
        kl_divergence([second], hidden),
    )
    yield (
        lambda rho: kl_noisy([second], [1.0], table, feasible=SEEN, always=[first], always_rhos=[rho]),
        kl_if_feasible([second], table, SEEN, [first]),
        kl_if_feasible([second], hidden, SEEN),
    )


def test_the_score_falls_with_the_noise_from_the_noise_free_value_to_that_of_an_unobserved_gate():
    gammas, table = random_batch(np.random.default_rng(2), 60)
    for score, clear, unseen in observations(gammas, table):
        values = [score(rho) for rho in np.sqrt(1.0 - 10.0 ** np.arange(-12.0, 0.0, 0.5))]
        values += [score(rho) for rho in (0.5, 0.2, 0.1, 0.01, 1e-4, 0.0)]
        for more, less in zip([clear, *values], [*values, unseen], strict=True):
            assert np.all(less <= more * (1 + 1e-9) + 1e-12)
        np.testing.assert_allclose(score(1.0), clear, rtol=1e-12)
        np.testing.assert_allclose(values[0], clear, rtol=1e-5, atol=1e-12)
        np.testing.assert_allclose(values[-1], unseen, rtol=1e-9, atol=1e-13)
        np.testing.assert_allclose(values[-2], unseen, rtol=1e-3, atol=1e-6)
        assert np.max(clear - score(0.5)) > 0.1
        assert np.max(score(0.5) - unseen) > 0.01


def test_two_noisy_gates_tend_to_one_as_the_other_becomes_clear_or_unobserved():
    (first, second), table = random_batch(np.random.default_rng(3), 6)
    both = kl_noisy([first, second], [0.7, rho_of(1e-12)], table)
    np.testing.assert_allclose(both, kl_noisy([first, second], [0.7, 1.0], table), rtol=1e-5, atol=1e-12)
    hidden = with_unobserved(table, log_cdf(second), log_cdf(-second))
    both = kl_noisy([first, second], [0.7, 0.0], table)
    np.testing.assert_allclose(both, kl_noisy([first], [0.7], hidden), rtol=1e-9, atol=1e-13)
    swapped = kl_noisy([second, first], [0.4, 0.7], table)
    np.testing.assert_allclose(kl_noisy([first, second], [0.7, 0.4], table), swapped, rtol=1e-9, atol=1e-13)


def test_gates_that_are_always_seen_are_gates_seen_on_every_row():
    (first, second), table = random_batch(np.random.default_rng(4), 30)
    value, partials = kl_noisy([first, second], [0.8, 1.0], table, grad=True)
    every = np.ones(2, bool)
    for arguments in (
        {"feasible": None, "always": [second], "always_rhos": [1.0]},
        {"feasible": every, "always": [second], "always_rhos": [1.0]},
    ):
        other, d_other = kl_noisy([first], [0.8], table, grad=True, **arguments)
        np.testing.assert_allclose(other, value, rtol=1e-12)
        np.testing.assert_allclose(d_other.always[0], partials.gammas[1], rtol=1e-9, atol=1e-13)
    none = kl_noisy([first], [0.8], table, feasible=~every, always=[second], always_rhos=[0.3])
    hidden = with_unobserved(table, log_cdf(first), log_cdf(-first))
    np.testing.assert_allclose(none, kl_noisy([second], [0.3], hidden), rtol=1e-12)


def test_the_point_approximation_of_the_paper_exceeds_the_noise_free_score_and_the_exact_one_does_not():
    gamma, rho = gate(1.0), 0.5
    for kernel in (entropy_difference, kl_divergence):
        assert kernel([gamma / rho]) > kernel([gamma])
    assert kl_noisy([gamma], [rho]) < 0.3 * kl_divergence([gamma])


def test_where_some_points_have_noise_and_others_none_each_gets_its_own_value():
    rng = np.random.default_rng(5)
    (first, second), table = random_batch(rng, 40)
    rho = np.where(rng.random((1, 40)) < 0.5, 1.0, 0.6)
    value, partials = kl_noisy([first, second], [rho, 1.0], table, grad=True)
    clear, d_clear = kl_divergence([first, second], table, grad=True)
    through_noise, d_noise = kl_noisy([first, second], [0.6, 1.0], table, grad=True)
    np.testing.assert_allclose(value, np.where(rho == 1.0, clear, through_noise), rtol=1e-9, atol=1e-12)
    for j in range(2):
        expected = np.where(rho == 1.0, d_clear.gammas[j], d_noise.gammas[j])
        np.testing.assert_allclose(partials.gammas[j], expected, rtol=1e-7, atol=1e-10)
    assert np.all(partials.rhos[0][:, rho[0] == 1.0] == 0.0)
    assert np.all(partials.rhos[1] == 0.0)


# --- derivatives --------------------------------------------------------------------------------------------

STEP = np.finfo(float).eps ** (1 / 3)
# Gates, always, rows, noisy gates among all, and whether the gates are seen on some rows only.
STRUCTURES = [
    (1, 0, 0, [0], False),
    (1, 0, 2, [0], False),
    (1, 0, 2, [0], True),
    (0, 1, 2, [0], True),
    (2, 1, 3, [2], True),
    (2, 1, 2, [1], False),
    (2, 0, 0, [0, 1], False),
    (2, 0, 2, [0, 1], True),
    (1, 1, 2, [0, 1], True),
    (2, 2, 2, [1, 3], True),
]


def through_logits(partials, q, f):
    """Partials by the logits of Q and F from those by log_q, log_f, log_not_f."""
    by_f = partials.log_f * (1.0 - f) - partials.log_not_f * f
    return partials.log_q - q * partials.log_q.sum(axis=0), by_f


def derivative_pairs(structure, rng, spread):
    """Yield (analytic, numeric, value) for every argument that can move."""
    n_gates, n_always, n_rows, noisy_gates, split = structure
    n, total = 12, n_gates + n_always
    gates = [rng.uniform(-spread, spread, (2, n)) for _ in range(total)]
    rhos = [rng.uniform(0.05, 0.995, (1, n)) if j in noisy_gates else np.ones((1, n)) for j in range(total)]
    logits = [rng.uniform(-spread, spread, (n_rows, 1, n)) for _ in range(2)] if n_rows else []
    arguments = [*gates, *rhos, *logits]
    seen = np.arange(n_rows) < (n_rows + 1) // 2 if split else None

    def score(arguments, grad=False):
        g, r, table = arguments[:total], arguments[total : 2 * total], arguments[2 * total :]
        return kl_noisy(
            g[:n_gates],
            r[:n_gates],
            logit_table(*table) if table else None,
            feasible=seen,
            always=g[n_gates:],
            always_rhos=r[n_gates:],
            grad=grad,
        )

    value, partials = score(arguments, grad=True)
    np.testing.assert_array_equal(value, score(arguments))
    analytic = [*partials.gammas, *partials.always, *partials.rhos, *partials.always_rhos]
    if n_rows:
        q = np.exp(logits[0] - logsumexp(logits[0], axis=0))
        analytic += list(through_logits(partials.outcomes, q, expit(logits[1])))
    for position, exact in enumerate(analytic):
        if total <= position < 2 * total and position - total not in noisy_gates:
            continue
        argument = arguments[position]
        for row in range(n_rows) if position >= 2 * total else [slice(None)]:
            step = np.zeros_like(argument)
            step[row] = STEP
            high = score([*arguments[:position], argument + step, *arguments[position + 1 :]])
            low = score([*arguments[:position], argument - step, *arguments[position + 1 :]])
            yield exact[row], (high - low) / (2.0 * step[row]), value


def agree(analytic, numeric, value):
    """Relative 1e-5, apart from the rounding of the difference quotient itself."""
    return np.all(np.abs(analytic - numeric) <= 1e-5 * np.abs(numeric) + 1e-8 * (1.0 + np.abs(value)))


@pytest.mark.parametrize("spread", [3.0, 7.0])
@pytest.mark.parametrize("structure", STRUCTURES)
def test_every_partial_equals_a_central_difference_and_one_scaled_by_1_percent_does_not(structure, spread):
    checked = 0
    for analytic, numeric, value in derivative_pairs(structure, np.random.default_rng(6), spread):
        assert agree(analytic, numeric, value)
        assert not agree(1.01 * analytic, numeric, value)
        checked += 1
    assert checked == structure[0] + structure[1] + len(structure[3]) + 2 * structure[2]


@pytest.mark.parametrize("noise", [1e-10, 1e-8, 1e-5, 1e-3])
def test_partials_hold_for_little_noise(noise):
    """Difference quotients by log(1 - rho^2), which is what can be moved by a fixed step."""
    (gamma, _), table = random_batch(np.random.default_rng(7), 40, spread=3.0)
    rho = rho_of(noise)
    value, partials = kl_noisy([gamma], [rho], table, grad=True)
    clear, d_clear = kl_divergence([gamma], table, grad=True)
    np.testing.assert_allclose(partials.gammas[0], d_clear.gammas[0], atol=20 * np.sqrt(noise))
    # The loss is c sqrt(1 - rho^2) to first order, hence its derivative by rho c rho / sqrt(1 - rho^2).
    loss = np.maximum(clear - value, 0.0)
    slope = loss * rho / ((1.0 - rho) * (1.0 + rho))
    # The loss itself is a difference, and its next order is relatively sqrt(1 - rho^2).
    np.testing.assert_allclose(partials.rhos[0], slope, rtol=20 * np.sqrt(noise) + 2e-5, atol=1e-12 / noise)


def test_partials_hold_for_gates_beyond_the_range_of_doubles():
    for noise in (1e-3, 0.2, 0.9):
        gamma, rho = np.array([[30.0, 50.0, 200.0]]), np.full((1, 3), rho_of(noise))
        _, partials = kl_noisy([gamma], [rho], grad=True)
        for analytic, (high, low) in [
            (partials.gammas[0], [kl_noisy([gamma + h], [rho]) for h in (1e-4, -1e-4)]),
            (partials.rhos[0], [kl_noisy([gamma], [rho + h]) for h in (1e-4 * noise, -1e-4 * noise)]),
        ]:
            width = 2e-4 * (1.0 if analytic is partials.gammas[0] else noise)
            np.testing.assert_allclose(analytic, (high - low) / width, rtol=1e-5)


# --- exact limits and finiteness ----------------------------------------------------------------------------


def all_partials(partials):
    fields = [*partials.gammas, *partials.rhos, *partials.always, *partials.always_rhos]
    return [*fields, *(partials.outcomes or ())]


@pytest.mark.parametrize("rho", [0.0, 0.3, rho_of(1e-8)])
def test_a_noisy_gate_at_plus_infinity_carries_nothing(rho):
    table = table_from([0.3, 0.7], [0.9, 0.2])
    value, partials = kl_noisy([gate(np.inf), gate(1.3)], [rho, 1.0], table, grad=True)
    np.testing.assert_allclose(value, kl_divergence([gate(1.3)], table), rtol=1e-13)
    assert partials.gammas[0] == partials.rhos[0] == 0.0
    split = kl_noisy([gate(np.inf)], [rho], table, feasible=SEEN)
    np.testing.assert_allclose(split, kl_divergence([], table), rtol=1e-13)


@pytest.mark.parametrize("rho", [0.0, 0.3, rho_of(1e-8)])
def test_a_noisy_gate_at_minus_infinity_makes_the_score_zero(rho):
    for table in (None, table_from([0.3, 0.7], [0.9, 0.2]), table_from([0.0, 1.0], [1.0, 1.0])):
        value, partials = kl_noisy([gate(-np.inf), gate(2.0), gate(np.inf)], [rho, 1.0, 0.5], table, grad=True)
        assert value == 0.0
        assert all(np.all(d == 0.0) for d in all_partials(partials))


def test_where_nothing_is_left_the_score_is_the_largest_double_with_zero_partials():
    for table in (None, table_from([0.3, 0.7], [1.0, 1.0]), table_from([1.0, 0.0], [1.0, 0.5])):
        value, partials = kl_noisy([gate(np.inf)] * 2, [0.5, 1.0], table, grad=True)
        assert value == LARGEST
        assert all(np.all(d == 0.0) for d in all_partials(partials))


def test_rows_of_probability_zero_and_certain_rows_are_exact_limits():
    gamma, rho = gate(0.8), 0.7
    two = kl_noisy([gamma], [rho], table_from([0.4, 0.6], [0.9, 0.2]))
    three = kl_noisy([gamma], [rho], table_from([0.4, 0.6, 0.0], [0.9, 0.2, 0.5]))
    np.testing.assert_allclose(three, two, rtol=1e-14)
    np.testing.assert_allclose(kl_noisy([gamma], [rho], table_from([1.0], [1.0])), kl_noisy([gamma], [rho]), rtol=1e-14)
    assert kl_noisy([gamma], [rho], table_from([0.4, 0.6], [0.0, 0.0])) == 0.0
    for f in ([1.0, 0.3], [0.0, 0.3], [1.0, 0.0], [1.0, 1.0]):
        exact, partials = kl_noisy([gamma], [rho], table_from([0.4, 0.6], f), grad=True)
        near = kl_noisy([gamma], [rho], table_from([0.4, 0.6], np.clip(f, 1e-14, 1.0 - 1e-14)))
        np.testing.assert_allclose(exact, near, atol=1e-11)
        assert all(np.isfinite(d).all() for d in all_partials(partials))


def extreme_log_pair(rng, shape):
    """Logarithms of p and 1 - p with either of them down to 1e-300, or 0."""
    small = rng.uniform(np.log(1e-300), np.log(0.5), shape)
    small = np.where(rng.random(shape) < 0.3, np.log(rng.uniform(0.0, 0.5, shape) + 1e-300), small)
    small = np.where(rng.random(shape) < 0.1, -np.inf, small)
    large, swap = log1mexp(small), rng.random(shape) < 0.5
    return np.where(swap, small, large), np.where(swap, large, small)


def extreme_gate(rng, shape):
    gamma = 10 ** rng.uniform(-300, rng.choice([8, 300]), shape) * rng.choice([-1.0, 1.0], shape)
    gamma = np.where(rng.random(shape) < 0.5, rng.uniform(-40.0, 40.0, shape), gamma)
    return np.where(rng.random(shape) < 0.1, rng.choice([-np.inf, np.inf], shape), gamma)


def extreme_rho(rng, shape):
    rho = np.sqrt(1.0 - 10 ** rng.uniform(-16, 0, shape))
    rho = np.where(rng.random(shape) < 0.3, 10 ** rng.uniform(-300, 0, shape), rho)
    return np.where(rng.random(shape) < 0.2, rng.choice([0.0, 1.0, np.nextafter(1.0, 0.0)], shape), rho)


@pytest.mark.parametrize(("n_noisy", "shape"), [(1, (5, 700)), (2, (2, 40))])
def test_extreme_settings_give_finite_scores_between_zero_and_the_noise_free_one(n_noisy, shape):
    rng = np.random.default_rng(8)
    for _ in range(3):
        gammas, rhos = ([draw(rng, shape) for _ in range(n_noisy)] for draw in (extreme_gate, extreme_rho))
        always = [extreme_gate(rng, shape)]
        q, not_q = extreme_log_pair(rng, shape)
        table = Outcomes(np.stack([q, not_q]), *extreme_log_pair(rng, (2, *shape)))
        settings = [
            (kl_noisy(gammas, rhos, grad=True), kl_divergence(gammas)),
            (kl_noisy(gammas, rhos, table, grad=True), kl_divergence(gammas, table)),
            (
                kl_noisy(gammas, rhos, table, feasible=SEEN, always=always, always_rhos=[1.0], grad=True),
                kl_if_feasible(gammas, table, SEEN, always),
            ),
        ]
        for (value, partials), clear in settings:
            assert value.shape == shape
            assert np.isfinite(value).all()
            assert (value >= 0.0).all()
            assert np.all(value - clear <= 1e-8 * clear + 1e-12)
            assert all(np.isfinite(d).all() for d in all_partials(partials))


# --- conventions --------------------------------------------------------------------------------------------


def test_shapes_follow_the_broadcast_of_gates_rhos_and_table():
    rng = np.random.default_rng(9)
    gammas, rho = [rng.normal(size=(7, 1)), rng.normal(size=(1, 5))], rng.uniform(0.1, 0.9, (1, 5))
    table = table_from([[0.2] * 5, [0.8] * 5], rng.uniform(size=(2, 5)))
    value, partials = kl_noisy(
        gammas[:1], [rho], table, feasible=[True, False], always=gammas[1:], always_rhos=[1.0], grad=True
    )
    assert value.shape == (7, 5)
    fields = [*partials.gammas, *partials.rhos, *partials.always, *partials.always_rhos]
    assert [d.shape for d in fields] == [(7, 5)] * 4
    assert [d.shape for d in partials.outcomes] == [(2, 7, 5)] * 3
    assert kl_noisy(gammas, [rho, 1.0], grad=True)[1].outcomes is None
    clear, d_clear = kl_noisy(gammas, [1.0, 1.0], table, grad=True)
    np.testing.assert_array_equal(clear, kl_divergence(gammas, table))
    assert [d.shape for d in [*d_clear.gammas, *d_clear.rhos]] == [(7, 5)] * 4


def test_no_argument_is_written_to_and_blocks_change_nothing(monkeypatch):
    rng = np.random.default_rng(10)
    gammas, table = random_batch(rng, 8)
    rhos = [rng.uniform(0.1, 1.0, (1, 8)), rng.uniform(0.1, 1.0, (1, 8))]
    copies = [a.copy() for a in [*gammas, *rhos, *table]]
    value, partials = kl_noisy(gammas, rhos, table, feasible=SEEN, grad=True)
    for array, copy in zip([*gammas, *rhos, *table], copies, strict=True):
        np.testing.assert_array_equal(array, copy)
    monkeypatch.setattr(noisy, "_BLOCK", 1)
    other, d_other = kl_noisy(gammas, rhos, table, feasible=SEEN, grad=True)
    np.testing.assert_allclose(other, value, rtol=1e-13)
    for a, b in zip(all_partials(partials), all_partials(d_other), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize(
    ("constant", "value"),
    [("_NOISY_GAMMA_MAX", 1e3), ("_SD_MIN", 1e-11), ("_SERIES_BELOW", 1e-3), ("_FAR", 60.0), ("_TINY", 1e-299)],
)
def test_no_result_depends_on_a_module_constant(monkeypatch, constant, value):
    rng = np.random.default_rng(11)
    (first, second), table = random_batch(rng, 60, spread=20.0)
    first[0, :10] = np.inf
    rho = np.where(rng.random((1, 60)) < 0.2, 1.0, rng.uniform(0.1, 1.0, (1, 60)))

    def scores():
        return [kl_noisy([first], [rho], table), kl_noisy([first + 20.0, second + 20.0], [rho, 1.0])]

    before = scores()
    monkeypatch.setattr(noisy, constant, value)
    for a, b in zip(scores(), before, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-15)


def test_what_cannot_be_computed_is_refused_in_one_sentence():
    three = [gate(0.0)] * 3
    with pytest.raises(CMESError, match="at most 2 noisy gates, got 3"):
        kl_noisy(three, [0.5, 0.5, 0.5])
    with pytest.raises(CMESError, match="at most 2 noisy gates, got 3"):
        kl_noisy(three[:2], [0.5, 0.5], always=three[2:], always_rhos=[0.9])
    assert kl_noisy(three, [0.5, 1.0, 0.5]).shape == (1, 1)
    for rho in (-0.1, 1.1, np.nan):
        with pytest.raises(CMESError, match=r"lie in \[0, 1\]"):
            kl_noisy(three[:1], [rho])
    with pytest.raises(CMESError, match="always_rhos needs one array for each gate: expected 1, got 0"):
        kl_noisy(three[:1], [0.5], always=three[:1])
    with pytest.raises(ValueError, match="at least one gate or a table"):
        kl_noisy([], [])


def test_a_call_of_ordinary_size_takes_milliseconds():
    rng = np.random.default_rng(12)
    gamma, rho = rng.normal(size=(10, 100)) * 2, rng.uniform(0.3, 1.0, (1, 100))
    table = logit_table(*rng.normal(size=(2, 2, 1, 100)))
    times = []
    for _ in range(10):
        start = perf_counter()
        kl_noisy([gamma], [rho], table, grad=True)
        times.append(perf_counter() - start)
    assert min(times) < 0.1
