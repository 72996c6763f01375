"""The kernels against numerical integration of their definitions, mpmath, central differences and theory."""

import json
from functools import lru_cache
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from scipy.special import expit, log_expit, logsumexp, xlogy
from scipy.stats import norm

from cmes_gpyopt import entropy
from cmes_gpyopt.entropy import (
    Outcomes,
    entropy_difference,
    entropy_mixture,
    kl_divergence,
    kl_if_feasible,
    product_outcomes,
    split_partials,
    unobserved_partials,
    with_unobserved,
)
from cmes_gpyopt.normal import hazard, log1mexp, log_cdf

GOLDEN = json.loads((Path(__file__).parent / "golden" / "entropy.json").read_text())
LARGEST = np.finfo(float).max
NODES, WEIGHTS = np.polynomial.legendre.leggauss(12)


# --- building blocks ----------------------------------------------------------------------------------------


def table_from(q, f, not_f=None):
    """Outcomes (R, 1, n) from probabilities (R,) or (R, n)."""
    q, f = np.atleast_1d(q).astype(float), np.atleast_1d(f).astype(float)
    not_f = 1.0 - f if not_f is None else np.atleast_1d(not_f)
    with np.errstate(divide="ignore"):
        fields = [np.log(a).reshape(len(a), 1, -1) for a in (q, f, not_f)]
    return Outcomes(*fields)


def logit_table(q_logits, f_logits):
    """Outcomes from unconstrained logits, so that Q sums to 1 and F + (1 - F) = 1 wherever they are moved."""
    return Outcomes(q_logits - logsumexp(q_logits, axis=0), log_expit(f_logits), log_expit(-f_logits))


def panels(lower, upper, *cuts):
    """Gauss-Legendre nodes and weights on [lower, upper], split at the cuts and every 2 units."""
    edges = np.unique(np.concatenate([np.arange(lower, upper, 2.0), [upper], cuts]))
    half = 0.5 * np.diff(edges)[:, None]
    centre = 0.5 * (edges[1:] + edges[:-1])[:, None]
    return (centre + half * NODES).ravel(), (half * WEIGHTS).ravel()


def density(x):
    return np.exp(-0.5 * x * x) / np.sqrt(2 * np.pi)


@lru_cache(maxsize=8)
def gate_grid(gamma):
    """Grid of a standard normal quantity, split at its gate: nodes, probability masses, log densities."""
    x, w = panels(-14.0, 14.0, gamma)
    return x, w * density(x), np.log(density(x))


class Channel:
    """An observation on a grid: probability mass element, log density and kappa of every grid point."""

    def __init__(self):
        self.mass, self.log_density, self.kappa = [], [], []

    def add(self, gammas, q, f):
        """Add the outcome of probability q on which the gates are seen and A holds with f given the gates."""
        mass, log_density, inside = np.array(q), np.log(q) if q > 0 else np.array(0.0), np.array(1.0)
        for gamma in gammas:
            x, w, d = gate_grid(gamma)
            mass = mass[..., None] * w
            log_density = log_density[..., None] + d
            inside = inside[..., None] * (x <= gamma)
        self.mass.append(mass.ravel())
        self.log_density.append(log_density.ravel())
        self.kappa.append(1.0 - inside.ravel() * f)

    def scores(self):
        """H[P(o)] - H[P(o | y*)] and KL[P(o | y*) || P(o)] by summation, with Z from the same sum."""
        mass, log_density, kappa = (np.concatenate(a) for a in (self.mass, self.log_density, self.kappa))
        z = np.sum(mass * kappa)
        ratio = kappa / z
        entropy_prior = -np.sum(mass * log_density)
        entropy_posterior = -np.sum(mass * (ratio * log_density + xlogy(ratio, ratio)))
        return entropy_prior - entropy_posterior, np.sum(mass * xlogy(ratio, ratio))


def integrate(gammas, q, f):
    channel = Channel()
    for q_r, f_r in zip(q, f, strict=True):
        channel.add(gammas, q_r, f_r)
    return channel.scores()


def integrate_cells(gammas, q, f):
    """The same for any number of gates: integrals of N and N log N per gate, combined over the 2^G cells."""
    sides = []
    for gamma in gammas:
        x, w, d = gate_grid(gamma)
        sides.append([(np.sum(w[s]), np.sum((w * d)[s])) for s in (x <= gamma, x > gamma)])
    cells = []
    for q_r, f_r in zip(q, f, strict=True):
        for cell in product((0, 1), repeat=len(gammas)):
            masses = np.array([sides[g][c][0] for g, c in enumerate(cell)])
            logs = np.array([sides[g][c][1] for g, c in enumerate(cell)])
            mass = q_r * np.prod(masses)
            weighted = q_r * sum(logs[g] * np.prod(np.delete(masses, g)) for g in range(len(cell)))
            weighted += mass * np.log(q_r)
            cells.append((mass, weighted, 1.0 - f_r * (not any(cell))))
    mass, weighted, kappa = np.array(cells).T
    ratio = kappa / np.sum(mass * kappa)
    gain = np.sum(mass * xlogy(ratio, ratio))
    return np.sum(weighted * (ratio - 1.0)) + gain, gain


def integrate_if_feasible(gammas, q, f, feasible, always):
    holds = 1.0
    for gamma in gammas:
        x, w, _ = gate_grid(gamma)
        holds *= np.sum(w[x <= gamma])
    channel = Channel()
    for q_r, f_r, seen in zip(q, f, feasible, strict=True):
        if seen:
            channel.add([*gammas, *always], q_r, f_r)
        else:
            channel.add(always, q_r, f_r * holds)
    return channel.scores()[1]


def random_setting(rng, n_gates, n_rows):
    gammas = rng.uniform(-8.0, 8.0, n_gates)
    if n_rows == 1:
        return gammas, np.ones(1), np.ones(1)
    q = rng.dirichlet(np.full(n_rows, rng.choice([0.3, 2.0])))
    return gammas, q, expit(rng.uniform(-9.0, 9.0, n_rows))


def as_arguments(gammas, q, f):
    table = None if len(q) == 1 and f[0] == 1.0 else table_from(q, f)
    return [np.full((1, 1), g) for g in gammas], table


def excess(value, reference):
    """How far the error exceeds 1e-9 of the value plus 1e-12; at most 1 is a pass."""
    return abs(float(value.item()) - reference) / (1e-9 * abs(reference) + 1e-12)


# --- the definitions, integrated ----------------------------------------------------------------------------


def test_entropy_and_divergence_equal_integrals_of_their_definitions_up_to_two_gates():
    rng = np.random.default_rng(0)
    worst = 0.0
    for _ in range(2000):
        n_gates, n_rows = rng.integers(0, 3), rng.choice([1, 2, 4])
        if n_gates == 0 and n_rows == 1:
            n_gates = 1
        gammas, q, f = random_setting(rng, n_gates, n_rows)
        arguments = as_arguments(gammas, q, f)
        entropy_reference, divergence_reference = integrate(gammas, q, f)
        worst = max(worst, excess(entropy_difference(*arguments), entropy_reference))
        worst = max(worst, excess(kl_divergence(*arguments), divergence_reference))
    assert worst <= 1.0


def test_entropy_and_divergence_equal_integrals_of_their_definitions_for_three_to_five_gates():
    rng = np.random.default_rng(1)
    worst = 0.0
    for _ in range(200):
        gammas, q, f = random_setting(rng, rng.integers(3, 6), rng.choice([1, 2, 4]))
        arguments = as_arguments(gammas, q, f)
        entropy_reference, divergence_reference = integrate_cells(gammas, q, f)
        worst = max(worst, excess(entropy_difference(*arguments), entropy_reference))
        worst = max(worst, excess(kl_divergence(*arguments), divergence_reference))
    assert worst <= 1.0


def test_divergence_if_feasible_equals_the_integral_of_its_definition():
    rng = np.random.default_rng(2)
    worst = 0.0
    for _ in range(2000):
        n_always = int(rng.integers(0, 2))
        gammas, q, f = random_setting(rng, rng.integers(1, 3 - n_always), rng.choice([2, 4]))
        always = rng.uniform(-8.0, 8.0, n_always)
        feasible = rng.random(len(q)) < 0.5
        reference = integrate_if_feasible(gammas, q, f, feasible, always)
        gates, table = as_arguments(gammas, q, f)
        value = kl_if_feasible(gates, table, feasible, [np.full((1, 1), g) for g in always])
        worst = max(worst, excess(value, reference))
    assert worst <= 1.0


def test_the_comparison_with_integrals_notices_an_error_of_one_part_in_a_hundred_million():
    gammas, q, f = np.array([0.7]), np.array([0.3, 0.7]), np.array([0.9, 0.2])
    reference = integrate(gammas, q, f)[0]
    value = entropy_difference(*as_arguments(gammas, q, f))
    assert excess(value, reference) <= 1.0 < excess(value * (1 + 1e-8), reference)


# --- large gates, against mpmath ----------------------------------------------------------------------------


def golden_errors(name, kernel):
    """Largest relative error of the value and of the partials by the gates, where they are normal doubles."""
    worst_value = worst_partial = 0.0
    for row in GOLDEN:
        gammas = [np.full((1, 1), g) for g in row["gammas"]]
        table = None
        if row["table"]:
            q, not_f = np.array(row["table"]).T
            with np.errstate(divide="ignore"):
                table = Outcomes(*(a[:, None, None] for a in (np.log(q), np.log1p(-not_f), np.log(not_f))))
        value, partials = kernel(gammas, table, grad=True)
        reference = float(row[name])
        if abs(reference) > 1e-300:
            worst_value = max(worst_value, abs(value.item() / reference - 1.0))
        for partial, reference in zip(partials.gammas, map(float, row.get("d_" + name, [])), strict=True):
            if abs(reference) > 1e-300:
                worst_partial = max(worst_partial, abs(partial.item() / reference - 1.0))
    return worst_value, worst_partial


@pytest.mark.parametrize(("name", "kernel"), [("entropy", entropy_difference), ("divergence", kl_divergence)])
def test_values_and_slopes_agree_with_mpmath_for_gates_up_to_1e8(name, kernel):
    smallest = np.array([min(row["gammas"], default=1.0) for row in GOLDEN])
    assert set(np.round(np.log10(smallest[smallest >= 99]))) == {2, 3, 4, 5, 6, 7, 8}
    assert {1, 2, 5} <= {len(row["gammas"]) for row in GOLDEN if min(row["gammas"], default=0) >= 1e8}
    worst_value, worst_partial = golden_errors(name, kernel)
    assert worst_value <= 1e-9
    assert worst_partial <= 1e-6


def test_the_divergence_if_feasible_and_its_slopes_agree_with_mpmath_for_gates_up_to_1e8():
    checked = 0
    for row in json.loads((Path(__file__).parent / "golden" / "if_feasible.json").read_text()):
        gammas = [np.full((1, 1), g) for g in row["gammas"]]
        q, not_f = np.array(row["table"]).T
        table = Outcomes(*(a[:, None, None] for a in (np.log(q), np.log1p(-not_f), np.log(not_f))))
        value, partials = kl_if_feasible(gammas[:1], table, [True, False], gammas[1:], grad=True)
        if float(row["value"]) > 1e-300:
            assert value.item() == pytest.approx(float(row["value"]), rel=1e-9, abs=0.0)
        slopes = [*partials.gammas, *partials.always]
        for partial, reference in zip(slopes, map(float, row["slopes"]), strict=True):
            if abs(reference) > 1e-300:
                assert partial.item() == pytest.approx(reference, rel=1e-6, abs=0.0)
                checked += 1
    assert checked > 150


# --- finiteness ---------------------------------------------------------------------------------------------


def extreme_log_pair(rng, shape):
    """Logarithms of p and 1 - p with either of them down to 1e-300."""
    small = rng.uniform(np.log(1e-300), np.log(0.5), shape)
    small = np.where(rng.random(shape) < 0.3, np.log(rng.uniform(0.0, 0.5, shape) + 1e-300), small)
    large = log1mexp(small)
    swap = rng.random(shape) < 0.5
    return np.where(swap, small, large), np.where(swap, large, small)


def test_a_million_extreme_settings_give_finite_scores_and_no_negative_divergence():
    rng = np.random.default_rng(3)
    shape = (50, 2000)
    for batch in range(10):
        count = 1 + batch % 3
        gammas = [10 ** rng.uniform(-300, 8, shape) * rng.choice([-1.0, 1.0], shape) for _ in range(count)]
        near = rng.random(shape) < 0.3
        gammas = [np.where(near, rng.uniform(-40.0, 40.0, shape), g) for g in gammas]
        q, not_q = extreme_log_pair(rng, shape)
        f, not_f = extreme_log_pair(rng, (2, *shape))
        table = Outcomes(np.stack([q, not_q]), f, not_f)
        seen = np.array([True, False])
        results = {
            "entropy": entropy_difference(gammas, table, grad=True),
            "divergence": kl_divergence(gammas, table, grad=True),
            "if feasible": kl_if_feasible(gammas[:1], table, seen, gammas[1:], grad=True),
        }
        for name, (value, partials) in results.items():
            assert np.isfinite(value).all(), name
            assert value.shape == shape
            for partial in [*partials.gammas, *partials.always, *partials.outcomes]:
                assert np.isfinite(partial).all(), name
            if name != "entropy":
                assert (value >= 0.0).all(), name


# --- derivatives --------------------------------------------------------------------------------------------

STEP = np.finfo(float).eps ** (1 / 3)
STRUCTURES = [(1, 0, 0), (3, 0, 0), (0, 2, 0), (1, 1, 0), (1, 2, 0), (2, 4, 0), (5, 2, 0)]
SPLIT_STRUCTURES = [(1, 2, 0), (1, 2, 1), (2, 4, 0), (2, 4, 2), (0, 2, 1)]


def seen_rows(n_rows):
    return np.arange(n_rows) < (n_rows + 1) // 2


KERNELS = {
    "entropy": lambda gammas, table, always, grad: entropy_difference(gammas, table, grad=grad),
    "divergence": lambda gammas, table, always, grad: kl_divergence(gammas, table, grad=grad),
    "if feasible": lambda gammas, table, always, grad: kl_if_feasible(
        gammas, table, seen_rows(len(table.log_q)), always, grad=grad
    ),
    "mixture": lambda gammas, table, always, grad: entropy_mixture(
        gammas, table, seen_rows(len(table.log_q)), always, grad=grad
    ),
}
CASES = [(name, s) for name in ("entropy", "divergence") for s in STRUCTURES]
CASES += [(name, s) for name in ("if feasible", "mixture") for s in SPLIT_STRUCTURES]


def through_logits(partials, q, f):
    """Partials by the logits of Q and F from those by log_q, log_f, log_not_f."""
    by_f = partials.log_f * (1.0 - f) - partials.log_not_f * f
    return partials.log_q - q * partials.log_q.sum(axis=0), by_f


def derivative_pairs(kernel, structure, rng, spread):
    """Yield (analytic, numeric, value) for every argument of a kernel."""
    n_gates, n_rows, n_always = structure
    shape = (4, 50)
    gates = [rng.uniform(-spread, spread, shape) for _ in range(n_gates + n_always)]
    logits = [rng.uniform(-spread, spread, (n_rows, 1, 50)) for _ in range(2)]

    def score(arguments, grad=False):
        table = logit_table(*arguments[n_gates + n_always :]) if n_rows else None
        return kernel(arguments[:n_gates], table, arguments[n_gates : n_gates + n_always], grad)

    arguments = [*gates, *logits] if n_rows else gates
    value, partials = score(arguments, grad=True)
    analytic = [*partials.gammas, *partials.always]
    if n_rows:
        q = np.exp(logits[0] - logsumexp(logits[0], axis=0))
        analytic += list(through_logits(partials.outcomes, q, expit(logits[1])))
    for position, exact in enumerate(analytic):
        argument = arguments[position]
        for row in range(len(argument)) if position >= len(gates) else [slice(None)]:
            step = np.zeros_like(argument)
            step[row] = STEP * np.maximum(1.0, np.abs(argument[row]))
            high = score([*arguments[:position], argument + step, *arguments[position + 1 :]])
            low = score([*arguments[:position], argument - step, *arguments[position + 1 :]])
            yield exact[row], (high - low) / (2.0 * step[row]), value


def agree(analytic, numeric, value):
    """Relative 1e-5, apart from the rounding of the difference quotient itself."""
    return np.all(np.abs(analytic - numeric) <= 1e-5 * np.abs(numeric) + 1e-9 * (1.0 + np.abs(value)))


@pytest.mark.parametrize("spread", [3.0, 7.0])
@pytest.mark.parametrize(("name", "structure"), CASES)
def test_every_partial_equals_a_central_difference_and_one_scaled_by_1_percent_does_not(name, structure, spread):
    rng = np.random.default_rng(4)
    for analytic, numeric, value in derivative_pairs(KERNELS[name], structure, rng, spread):
        assert agree(analytic, numeric, value)
        if np.any(numeric != 0.0) or structure[1] != 1:  # with one row Q = 1 cannot move
            assert not agree(1.01 * analytic, numeric, value)


@pytest.mark.parametrize("log_small", [-40.0, -300.0, -690.0])
@pytest.mark.parametrize("near_one", [False, True])
@pytest.mark.parametrize("kernel", [entropy_difference, kl_divergence])
def test_partials_stay_accurate_when_every_f_is_near_0_or_near_1(kernel, near_one, log_small):
    """Near 0 and 1 a score is a power of the small probability, so relative differences can be taken."""
    rng = np.random.default_rng(5)
    logs = log_small + rng.uniform(-1.0, 1.0, (2, 1, 30))
    log_q = np.log(np.array([0.3, 0.7]))[:, None, None]
    gammas = [] if near_one else [rng.uniform(-2.0, 2.0, (3, 30))]

    def score(logs, grad=False):
        pair = (log1mexp(logs), logs) if near_one else (logs, log1mexp(logs))
        return kernel(gammas, Outcomes(log_q, *pair), grad=grad)

    value, partials = score(logs, grad=True)
    small, other = partials.outcomes[1:] if not near_one else partials.outcomes[:0:-1]
    odds = np.exp(logs - log1mexp(logs))
    for row in range(2):
        step = np.zeros_like(logs)
        step[row] = 1e-4
        # Shifts of up to 1e-4 in a logarithm of size 690 round at 1e-9 of the step.
        numeric = (score(logs + step) - score(logs - step)) / 2e-4
        analytic = small[row] - odds[row] * other[row]
        np.testing.assert_allclose(analytic, numeric, rtol=1e-5, atol=1e-7 * np.abs(value).max())
    assert np.abs(value).max() > 0.0 or log_small < -350.0


def test_partials_chain_through_a_product_of_tables():
    rng = np.random.default_rng(6)
    sizes = (2, 3, 1)
    logits = [[rng.uniform(-4.0, 4.0, (r, 1, 40)) for _ in range(2)] for r in sizes]
    gamma = rng.normal(size=(3, 40))

    def score(logits, grad=False):
        return kl_divergence([gamma], product_outcomes([logit_table(*pair) for pair in logits]), grad=grad)

    value, partials = score(logits, grad=True)
    pieces = split_partials([logit_table(*pair) for pair in logits], partials.outcomes)
    checked = 0
    for j, piece in enumerate(pieces):
        q = np.exp(logits[j][0] - logsumexp(logits[j][0], axis=0))
        for kind, exact in enumerate(through_logits(piece, q, expit(logits[j][1]))):
            assert exact.shape == (sizes[j], 3, 40)
            for row in range(sizes[j]):
                ends = []
                for sign in (1.0, -1.0):
                    moved = [[a.copy() for a in pair] for pair in logits]
                    moved[j][kind][row] += sign * STEP
                    ends.append(score(moved))
                numeric = (ends[0] - ends[1]) / (2 * STEP)
                assert agree(exact[row], numeric, value)
                if sizes[j] > 1 or kind == 1:
                    assert not agree(1.01 * exact[row], numeric, value)
                checked += 1
    assert checked == 12


def test_partials_chain_through_an_unobserved_quantity():
    rng = np.random.default_rng(7)
    q_logits, f_logits = rng.uniform(-4.0, 4.0, (2, 2, 1, 40))
    gamma = rng.uniform(-4.0, 4.0, (3, 40))
    table = logit_table(q_logits, f_logits)

    def score(gamma, f_logits, grad=False):
        rows = with_unobserved(logit_table(q_logits, f_logits), log_cdf(gamma), log_cdf(-gamma))
        return entropy_difference([], rows, grad=grad)

    value, partials = score(gamma, f_logits, grad=True)
    assert value.shape == (3, 40)
    pieces, d_log_p, d_log_not_p = unobserved_partials(table, log_cdf(gamma), log_cdf(-gamma), partials.outcomes)
    by_gamma = d_log_p * hazard(-gamma) - d_log_not_p * hazard(gamma)
    numeric = (score(gamma + STEP, f_logits) - score(gamma - STEP, f_logits)) / (2 * STEP)
    assert agree(by_gamma, numeric, value)
    assert not agree(1.01 * by_gamma, numeric, value)
    by_f = through_logits(pieces, np.exp(table.log_q), expit(f_logits))[1]
    step = np.array([STEP, 0.0]).reshape(2, 1, 1)
    numeric = (score(gamma, f_logits + step) - score(gamma, f_logits - step)) / (2 * STEP)
    assert agree(by_f[0], numeric, value)
    assert not agree(1.01 * by_f[0], numeric, value)


# --- the rows of the paper ----------------------------------------------------------------------------------


@lru_cache
def exact_logistic(mean, std, delta):
    """Q(z) and F(z) for z = -1, +1 by quadrature split at delta; c ~ N(mean, std^2), P(z | c) = sigma(z c)."""
    x, w = panels(-12.0, 12.0, float(np.clip((delta - mean) / std, -12.0, 12.0)))
    c = mean + std * x
    joint = np.array([w * density(x) * expit(z * c) for z in (-1.0, 1.0)])
    q = joint.sum(axis=1)
    return q / q.sum(), joint[:, c <= delta].sum(axis=1) / q, joint[:, c > delta].sum(axis=1) / q


def exact_table(mean, std, delta=0.0):
    return table_from(*exact_logistic(mean, std, delta))


def test_mes_is_the_case_of_one_gate():
    gamma = np.linspace(-6.0, 6.0, 61)[None]
    # Wang and Jegelka for a minimum: the gate is y <= y*, so their gamma is -gamma.
    literal = -norm.logcdf(-gamma) - gamma * norm.pdf(gamma) / (2.0 * norm.sf(gamma))
    np.testing.assert_allclose(entropy_difference([gamma]), literal, rtol=1e-9, atol=1e-15)


def test_real_feedback_is_the_supplement_a1():
    rng = np.random.default_rng(8)
    gamma_y, gamma_c = rng.uniform(-4.0, 4.0, (2, 5, 200))
    log_y, log_c = norm.logcdf(gamma_y), norm.logcdf(gamma_c)
    pull = gamma_c * norm.pdf(gamma_c) / norm.cdf(gamma_c) + gamma_y * norm.pdf(gamma_y) / norm.cdf(gamma_y)
    literal = -np.log1p(-np.exp(log_y + log_c)) - pull / (2.0 * np.expm1(-log_c - log_y))
    np.testing.assert_allclose(entropy_difference([gamma_y, gamma_c]), literal, rtol=1e-9, atol=1e-13)


def test_binary_feedback_is_the_supplement_a3():
    rng = np.random.default_rng(9)
    gamma = rng.uniform(-4.0, 4.0, (5, 200))
    q = rng.uniform(0.02, 0.98, 200)
    q, f = np.array([q, 1.0 - q]), rng.uniform(0.02, 0.98, (2, 200))
    zt = (q * f).sum(axis=0)
    z = 1.0 - norm.cdf(gamma) * zt
    inner = (q * (-(1.0 - f) * np.log(1.0 - f) + (f - zt) * np.log(q))).sum(axis=0) / zt
    pull = gamma * norm.pdf(gamma) / norm.cdf(gamma) / 2.0
    literal = -np.log(z) - norm.cdf(gamma) * zt / z * (pull + inner)
    np.testing.assert_allclose(entropy_difference([gamma], table_from(q, f)), literal, rtol=1e-9, atol=1e-12)


def test_objective_alone_is_the_supplement_a5():
    rng = np.random.default_rng(10)
    gamma, p = rng.uniform(-4.0, 4.0, (3, 100)), rng.uniform(0.01, 0.99, 100)
    pull = gamma * norm.pdf(gamma) / norm.cdf(gamma) / 2.0
    literal = -np.log(1.0 - norm.cdf(gamma) * p) - (pull - (1.0 - p) / p * np.log(1.0 - p)) / (
        np.expm1(-norm.logcdf(gamma) - np.log(p))
    )
    value = entropy_difference([gamma], table_from(np.ones((1, 100)), p[None]))
    np.testing.assert_allclose(value, literal, rtol=1e-9, atol=1e-12)


def test_binary_constraint_alone_is_the_supplement_a5():
    rng = np.random.default_rng(11)
    gamma = rng.uniform(-4.0, 4.0, (3, 100))
    q = rng.uniform(0.02, 0.98, 100)
    q, f = np.array([q, 1.0 - q]), rng.uniform(0.02, 0.98, (2, 100))
    z_y, zt = norm.cdf(gamma), (q * f).sum(axis=0)
    kappa = 1.0 - z_y * f[:, None]
    z = 1.0 - z_y * zt
    terms = kappa * np.log(kappa) - z_y * ((f - zt) * np.log(q))[:, None]
    literal = -np.log(z) + (q[:, None] * terms).sum(axis=0) / z
    table = with_unobserved(table_from(q, f), log_cdf(gamma), log_cdf(-gamma))
    np.testing.assert_allclose(entropy_difference([], table), literal, rtol=1e-9, atol=1e-12)


def test_the_mixture_is_the_supplement_a6():
    rng = np.random.default_rng(12)
    gamma = rng.uniform(-4.0, 4.0, (3, 100))
    q = rng.uniform(0.02, 0.98, 100)
    table = table_from(np.array([q, 1.0 - q]), rng.uniform(0.02, 0.98, (2, 100)))
    alone = entropy_difference([], with_unobserved(table, log_cdf(gamma), log_cdf(-gamma)))
    literal = q * entropy_difference([gamma], table) + (1.0 - q) * alone
    np.testing.assert_allclose(entropy_mixture([gamma], table, [True, False]), literal, rtol=1e-13)


def test_the_divergence_of_real_gates_is_minus_log_z():
    rng = np.random.default_rng(13)
    gammas = list(rng.uniform(-4.0, 4.0, (3, 5, 100)))
    np.testing.assert_allclose(
        kl_divergence(gammas), -np.log1p(-np.prod([norm.cdf(g) for g in gammas], axis=0)), rtol=1e-10
    )


def test_binary_feedback_can_score_below_zero():
    value = entropy_difference([np.full((1, 1), 3.0)], exact_table(-2.0, 1.0))
    assert value.item() == pytest.approx(-0.3455, abs=5e-5)


def test_without_feasible_point_the_divergence_rises_with_feasibility_and_the_binary_entropy_does_not():
    probabilities, entropies, divergences = [], [], []
    for mean in (-5.0, -3.0, 0.0, 1.0):
        probabilities.append(exact_logistic(mean, 1.0, 0.0)[0][0])
        arguments = [np.full((1, 1), np.inf)], exact_table(mean, 1.0)
        entropies.append(entropy_difference(*arguments).item())
        divergences.append(kl_divergence(*arguments).item())
    assert np.round(probabilities, 2).tolist() == [0.99, 0.93, 0.50, 0.30]
    assert np.round(entropies, 2).tolist() == [-0.63, -0.43, 0.06, 0.06]
    assert np.round(divergences, 2).tolist() == [1.79, 0.86, 0.06, 0.01]


# --- theory -------------------------------------------------------------------------------------------------


def random_exact_tables(rng, n):
    means, stds, deltas = rng.uniform(-5, 5, n), 10 ** rng.uniform(-1, 1, n), rng.uniform(-2, 2, n)
    rows = [exact_logistic(*setting) for setting in zip(means, stds, deltas, strict=True)]
    q, f, not_f = (np.array([row[i] for row in rows]).T for i in range(3))
    return table_from(q, f, not_f), (deltas - means) / stds


def at_least(a, b):
    return bool(np.all(a - b >= -1e-12 * (1.0 + np.abs(b))))


def test_seeing_more_never_lowers_the_divergence():
    rng = np.random.default_rng(14)
    table, gamma_c = random_exact_tables(rng, 500)
    gamma_y = rng.uniform(-4.0, 5.0, (4, 500))
    holds = norm.cdf(gamma_c)
    joint = kl_divergence([gamma_y], table)
    objective = kl_divergence([gamma_y], table_from(np.ones((1, 500)), holds[None], norm.sf(gamma_c)[None]))
    constraint = kl_divergence([], with_unobserved(table, log_cdf(gamma_y), log_cdf(-gamma_y)))
    crash = kl_if_feasible([gamma_y], table, [True, False])
    real = kl_divergence([gamma_y, gamma_c])
    assert at_least(joint, objective)
    assert at_least(joint, crash)
    assert at_least(crash, constraint)
    assert at_least(real, joint)
    assert not at_least(objective, joint)
    assert not at_least(joint, real)


def test_the_entropy_difference_breaks_the_data_processing_inequality():
    rng = np.random.default_rng(15)
    table, gamma_c = random_exact_tables(rng, 500)
    gamma_y = rng.uniform(-4.0, 5.0, (4, 500))
    alone = table_from(np.ones((1, 500)), norm.cdf(gamma_c)[None], norm.sf(gamma_c)[None])
    assert not at_least(entropy_difference([gamma_y], table), entropy_difference([gamma_y], alone))


def test_any_table_joint_with_the_objective_beats_the_objective_alone_with_f_equal_to_zt():
    rng = np.random.default_rng(16)
    q = rng.dirichlet(np.ones(3), 300).T
    f = rng.uniform(0.0, 1.0, (3, 300))
    zt = (q * f).sum(axis=0)[None]
    gamma = rng.uniform(-5.0, 6.0, (4, 300))
    alone = kl_divergence([gamma], table_from(np.ones_like(zt), zt))
    assert at_least(kl_divergence([gamma], table_from(q, f)), alone)


def test_the_order_of_gates_and_of_rows_does_not_matter():
    rng = np.random.default_rng(17)
    gammas = [*rng.uniform(-5.0, 30.0, (3, 4, 60)), np.full((4, 60), 1e6)]
    q, f = rng.dirichlet(np.ones(4), 60).T, rng.uniform(0.0, 1.0, (4, 60))
    for kernel in (entropy_difference, kl_divergence):
        for table, mirrored in [(None, None), (table_from(q, f), table_from(q[::-1], f[::-1]))]:
            a, d_a = kernel(gammas, table, grad=True)
            b, d_b = kernel(gammas[::-1], mirrored, grad=True)
            np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-14)
            for one, other in zip(d_a.gammas, d_b.gammas[::-1], strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-13)


def test_if_feasible_equals_the_divergence_when_every_row_is_feasible_and_the_constraint_alone_when_none_is():
    rng = np.random.default_rng(18)
    gamma, always = rng.uniform(-6.0, 10.0, (2, 4, 80))
    q, f = rng.dirichlet(np.ones(3), 80).T, rng.uniform(0.0, 1.0, (3, 80))
    table = table_from(q, f)
    hidden = with_unobserved(table, log_cdf(gamma), log_cdf(-gamma))
    for seen, (value, partials) in [
        (np.ones(3, bool), kl_divergence([gamma, always], table, grad=True)),
        (np.zeros(3, bool), kl_divergence([always], hidden, grad=True)),
    ]:
        found, d_found = kl_if_feasible([gamma], table, seen, [always], grad=True)
        np.testing.assert_allclose(found, value, rtol=1e-11, atol=1e-15)
        np.testing.assert_allclose(d_found.always[0], partials.gammas[-1], rtol=1e-9, atol=1e-14)
        if seen.all():
            np.testing.assert_allclose(d_found.gammas[0], partials.gammas[0], rtol=1e-9, atol=1e-14)


def test_splitting_a_row_in_two_equal_halves_changes_no_divergence():
    gamma = np.linspace(-4.0, 6.0, 21)[None]
    whole = kl_divergence([gamma], table_from([0.4, 0.6], [0.9, 0.2]))
    halves = kl_divergence([gamma], table_from([0.4, 0.25, 0.35], [0.9, 0.2, 0.2]))
    np.testing.assert_allclose(whole, halves, rtol=1e-12)


def test_a_product_of_tables_multiplies_q_and_f_with_the_first_rows_first():
    rng = np.random.default_rng(19)
    q, f = [rng.dirichlet(np.ones(r), 5).T for r in (2, 3)], [rng.uniform(0.0, 1.0, (r, 5)) for r in (2, 3)]
    table = product_outcomes([table_from(a, b) for a, b in zip(q, f, strict=True)])
    expected_q = (q[0][:, None] * q[1][None]).reshape(6, 1, 5)
    expected_f = (f[0][:, None] * f[1][None]).reshape(6, 1, 5)
    np.testing.assert_allclose(np.exp(table.log_q), expected_q, rtol=1e-13)
    np.testing.assert_allclose(np.exp(table.log_f), expected_f, rtol=1e-13)
    np.testing.assert_allclose(np.exp(table.log_not_f), 1.0 - expected_f, rtol=1e-12)


@pytest.mark.parametrize("log_tiny", [-23.0, -200.0, -690.0])
def test_products_keep_relative_accuracy_at_both_ends(log_tiny):
    tiny = np.full((1, 1, 1), log_tiny)
    zero = np.zeros_like(tiny)
    likely = product_outcomes([Outcomes(zero, log1mexp(tiny), tiny)] * 2)
    expected = log_tiny + np.log(2.0) + np.log1p(-np.exp(log_tiny) / 2)
    np.testing.assert_allclose(likely.log_not_f, expected, rtol=1e-14)
    unlikely = product_outcomes([Outcomes(zero, tiny, log1mexp(tiny))] * 2)
    np.testing.assert_allclose(unlikely.log_f, 2 * log_tiny)
    np.testing.assert_allclose(unlikely.log_not_f, log1mexp(2 * log_tiny), rtol=1e-12)


# --- exact limits -------------------------------------------------------------------------------------------


def gate(x):
    return np.full((1, 1), x)


@pytest.mark.parametrize("kernel", [entropy_difference, kl_divergence])
def test_a_gate_at_plus_infinity_drops_out(kernel):
    table = table_from([0.3, 0.7], [0.9, 0.2])
    assert kernel([gate(np.inf)], table) == kernel([], table)
    np.testing.assert_allclose(kernel([gate(np.inf), gate(1.3)]), kernel([gate(1.3)]), rtol=1e-14)
    _, partials = kernel([gate(np.inf), gate(1.3)], table, grad=True)
    assert partials.gammas[0] == 0.0
    assert partials.gammas[1] != 0.0


@pytest.mark.parametrize("kernel", [entropy_difference, kl_divergence])
def test_a_gate_at_minus_infinity_makes_the_score_zero(kernel):
    for table in (None, table_from([0.3, 0.7], [0.9, 0.2]), table_from([0.0, 1.0], [1.0, 1.0])):
        value, partials = kernel([gate(-np.inf), gate(2.0), gate(np.inf)], table, grad=True)
        assert value == 0.0
        assert all(partial == 0.0 for partial in partials.gammas)


@pytest.mark.parametrize("kernel", [entropy_difference, kl_divergence])
def test_where_nothing_is_left_the_score_is_the_largest_double_with_zero_partials(kernel):
    sure = table_from([0.3, 0.7], [1.0, 1.0])
    empty_row = table_from([1.0, 0.0], [1.0, 0.5])
    for gammas, table in [
        ([gate(np.inf)], None),
        ([gate(np.inf)] * 3, sure),
        ([], sure),
        ([], empty_row),
        ([gate(np.inf)], empty_row),
    ]:
        value, partials = kernel(gammas, table, grad=True)
        assert value == LARGEST
        assert all(partial == 0.0 for partial in partials.gammas)
        if table is not None:
            assert all((field == 0.0).all() for field in partials.outcomes)


@pytest.mark.parametrize("split_kernel", [kl_if_feasible, entropy_mixture])
def test_the_split_scores_have_the_same_limits(split_kernel):
    table = table_from([0.3, 0.7], [0.9, 0.2])
    sure = table_from([0.3, 0.7], [1.0, 1.0])
    value, partials = split_kernel([gate(np.inf)], sure, [True, False], [gate(np.inf)], grad=True)
    assert value == LARGEST
    assert all((p == 0.0).all() for p in [*partials.gammas, *partials.always, *partials.outcomes])
    for gammas, always in [([gate(-np.inf)], [gate(1.0)]), ([gate(1.0)], [gate(-np.inf)])]:
        value, partials = split_kernel(gammas, table, [True, False], always, grad=True)
        assert value == 0.0
        assert all(p == 0.0 for p in [*partials.gammas, *partials.always])
    value, partials = split_kernel([gate(np.inf)], table, [True, False], grad=True)
    single = kl_divergence if split_kernel is kl_if_feasible else entropy_difference
    np.testing.assert_allclose(value, single([], table), rtol=1e-13)
    assert partials.gammas[0] == 0.0


@pytest.mark.parametrize("kernel", [entropy_difference, kl_divergence])
def test_rows_of_probability_zero_and_certain_rows_are_exact_limits(kernel):
    gamma = gate(0.8)
    two = kernel([gamma], table_from([0.4, 0.6], [0.9, 0.2]))
    np.testing.assert_allclose(kernel([gamma], table_from([0.4, 0.6, 0.0], [0.9, 0.2, 0.5])), two, rtol=1e-14)
    np.testing.assert_allclose(kernel([gamma], table_from([1.0], [1.0])), kernel([gamma]), rtol=1e-14)
    assert kernel([gamma], table_from([0.4, 0.6], [0.0, 0.0])) == 0.0
    for f in ([1.0, 0.3], [0.0, 0.3], [1.0, 0.0], [1.0, 1.0]):
        exact, partials = kernel([gamma], table_from([0.4, 0.6], f), grad=True)
        near = kernel([gamma], table_from([0.4, 0.6], np.clip(f, 1e-14, 1.0 - 1e-14)))
        np.testing.assert_allclose(exact, near, atol=1e-11)
        assert all(np.isfinite(field).all() for field in partials.outcomes)


@pytest.mark.parametrize("kernel", [entropy_difference, kl_divergence])
def test_gates_beyond_any_double_square_stay_finite(kernel):
    for gamma in (1e100, 1e149, 1e160, 1e308):
        for gammas in ([gate(gamma)], [gate(gamma)] * 2, [gate(gamma), gate(-gamma)], [gate(gamma), gate(2.0)]):
            value, partials = kernel(gammas, grad=True)
            assert np.isfinite(value)
            assert all(np.isfinite(partial) for partial in partials.gammas)


# --- conventions --------------------------------------------------------------------------------------------


def test_shapes_follow_the_broadcast_of_gates_and_table():
    rng = np.random.default_rng(20)
    gammas = [rng.normal(size=(7, 1)), rng.normal(size=(1, 5))]
    table = table_from([[0.2] * 5, [0.8] * 5], rng.uniform(size=(2, 5)))
    for kernel in (entropy_difference, kl_divergence):
        value, partials = kernel(gammas, table, grad=True)
        assert value.shape == (7, 5)
        assert [p.shape for p in partials.gammas] == [(7, 5)] * 2
        assert [p.shape for p in partials.outcomes] == [(2, 7, 5)] * 3
        assert kernel(gammas, grad=True)[1].outcomes is None
        full = [np.broadcast_to(g, (7, 5)) for g in gammas]
        np.testing.assert_array_equal(kernel(full, table), value)
    for kernel in (kl_if_feasible, entropy_mixture):
        value, partials = kernel(gammas[:1], table, [True, False], gammas[1:], grad=True)
        assert value.shape == (7, 5)
        assert [p.shape for p in [*partials.gammas, *partials.always]] == [(7, 5)] * 2
        assert [p.shape for p in partials.outcomes] == [(2, 7, 5)] * 3


def test_the_value_is_the_same_with_and_without_derivatives_and_no_argument_is_written_to():
    rng = np.random.default_rng(21)
    gammas = [rng.normal(size=(3, 8)) * 5 for _ in range(2)]
    table = logit_table(*rng.normal(size=(2, 2, 1, 8)))
    copies = [a.copy() for a in [*gammas, *table]]
    for kernel in (entropy_difference, kl_divergence):
        np.testing.assert_array_equal(kernel(gammas, table), kernel(gammas, table, grad=True)[0])
    for kernel in (kl_if_feasible, entropy_mixture):
        np.testing.assert_array_equal(
            kernel(gammas, table, [True, False]), kernel(gammas, table, [True, False], grad=True)[0]
        )
    for array, copy in zip([*gammas, *table], copies, strict=True):
        np.testing.assert_array_equal(array, copy)


def test_an_observation_of_nothing_is_refused():
    with pytest.raises(ValueError, match="at least one gate or a table"):
        kl_divergence([])


@pytest.mark.parametrize(
    ("constant", "value"),
    [("_GAMMA_MAX", 1e149), ("_LOG_0", -1e306), ("_SERIES_BELOW", 1e-4), ("_SERIES_BELOW", 1e-2)],
)
def test_no_result_depends_on_a_module_constant(monkeypatch, constant, value):
    rng = np.random.default_rng(22)
    gammas = [np.where(rng.random((5, 60)) < 0.1, np.inf, rng.uniform(-20.0, 20.0, (5, 60))) for _ in range(2)]
    gammas[0][:, 0] = -np.inf
    f = expit(rng.uniform(-20.0, 3.0, (2, 60)))
    f[:, :5] = [[0.0], [1.0]]
    table = table_from(np.array([np.full(60, 0.3), np.full(60, 0.7)]), f)
    before = [kernel(gammas, table) for kernel in (entropy_difference, kl_divergence)]
    monkeypatch.setattr(entropy, constant, value)
    after = [kernel(gammas, table) for kernel in (entropy_difference, kl_divergence)]
    np.testing.assert_allclose(after, before, rtol=1e-10, atol=0.0)
