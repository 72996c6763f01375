"""Outcome tables of a binary constraint: accuracy, derivatives, limits."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from scipy.special import expit, log_ndtr, logsumexp, ndtr, owens_t
from scipy.stats import norm

from cmes_gpyopt import feedback
from cmes_gpyopt.entropy import Outcomes
from cmes_gpyopt.feedback import (
    latent_threshold,
    log_probability_feasible,
    logistic_outcomes,
    probit_outcomes,
    rough_outcomes,
)

Array = npt.NDArray[np.float64]
Table = Callable[..., tuple[Outcomes, Outcomes, Outcomes]]

GOLDEN = Path(__file__).parent / "golden" / "feedback.csv"
FIELDS = ("log_q", "log_f", "log_not_f")
LABELS = np.array([[-1.0], [1.0]])


def laplace(mean: Array, std: Array, delta: float) -> tuple[Outcomes, Outcomes, Outcomes]:
    return logistic_outcomes(mean, std, delta, "laplace", grad=True)


def exact(mean: Array, std: Array, delta: float) -> tuple[Outcomes, Outcomes, Outcomes]:
    return logistic_outcomes(mean, std, delta, "exact", grad=True)


def probit(mean: Array, std: Array, delta: float) -> tuple[Outcomes, Outcomes, Outcomes]:
    return probit_outcomes(mean, std, delta, grad=True)


EXACT: dict[str, Table] = {"logistic": exact, "probit": probit}
every_table = pytest.mark.parametrize("table", [laplace, exact, probit])
every_link = pytest.mark.parametrize("link", ["logistic", "probit"])


def stacked(table: Table, mean: Array, std: Array, delta: Array) -> Array:
    """Value, d_mean, d_std by field by label by setting, with one call per threshold: (3, 3, 2, n)."""
    result = np.empty((3, 3, 2, len(mean)))
    for threshold in np.unique(delta):
        chosen = delta == threshold
        parts = table(mean[chosen], std[chosen], threshold)
        result[..., chosen] = np.array([np.array(part)[:, :, 0] for part in parts])
    return result


def random_settings(size: int, seed: int) -> tuple[Array, Array, Array]:
    """Settings all over the stated range, a third of them with the threshold within a few std of the mean."""
    rng = np.random.default_rng(seed)
    delta = rng.choice([-7.0, -2.2, -0.3, 0.0, 1.0, 2.2, 7.0], size)
    std = 10.0 ** rng.uniform(-4, 3, size)
    mean = rng.uniform(-40, 40, size) * rng.choice([1.0, 0.1], size)
    near = rng.random(size) < 1 / 3
    mean = np.where(near, np.clip(delta + std * rng.normal(scale=3.0, size=size), -40, 40), mean)
    return mean, std, delta


# --- golden values -----------------------------------------------------------------------------------------


def golden(link: str) -> tuple[Array, Array, Array, Array]:
    with GOLDEN.open() as file:
        rows = [row for row in csv.DictReader(file) if row["link"] == link]
    mean, std, delta = (np.array([float(row[name]) for row in rows]) for name in ("mean", "std", "delta"))
    values = np.array(
        [
            [[[float(row[f"{kind}{field}{label}"]) for row in rows] for label in ("-1", "+1")] for field in FIELDS]
            for kind in ("", "d_mean_", "d_std_")
        ]
    )
    return mean, std, delta, values


@every_link
def test_exact_tables_match_mpmath_over_the_stated_range(link: str) -> None:
    mean, std, delta, expected = golden(link)
    assert len(mean) >= 300
    assert (mean.min(), mean.max(), std.min(), std.max()) == (-40, 40, 1e-4, 1e3)
    value = stacked(EXACT[link], mean, std, delta)[0]
    assert np.all(np.abs(value - expected[0]) <= 1e-8 * np.maximum(1.0, np.abs(expected[0])))


@every_link
def test_logarithms_close_to_zero_keep_their_relative_accuracy(link: str) -> None:
    mean, std, delta, expected = golden(link)
    value = stacked(EXACT[link], mean, std, delta)[0]
    assert np.sum((expected[0] > -1e-12) & (expected[0] < -1e-300)) > 80
    np.testing.assert_allclose(value, expected[0], rtol=1e-9, atol=1e-300)


@every_link
@pytest.mark.parametrize("order", [1, 2], ids=["d_mean", "d_std"])
def test_exact_partial_derivatives_match_mpmath_over_the_stated_range(link: str, order: int) -> None:
    mean, std, delta, expected = golden(link)
    partial = stacked(EXACT[link], mean, std, delta)[order]
    # The derivative with respect to std changes sign: there it is compared on the scale of the other one.
    tolerance = 1e-6 * np.abs(expected[order]) + 1e-12 * np.abs(expected[1]) + 1e-300
    assert np.all(np.abs(partial - expected[order]) <= tolerance)


def test_golden_values_contain_the_deep_tail_that_owens_t_cannot_resolve() -> None:
    mean, std, delta, expected = golden("probit")
    (index,) = np.flatnonzero((mean == 6.0) & (std == 0.5) & (delta == 0.0))
    assert np.exp(expected[0, 1, 1, index]) == pytest.approx(8.6e-34, rel=0.01)
    table = probit_outcomes(np.array([6.0]), np.array([0.5]), 0.0)
    assert table.log_f[1, 0, 0] == pytest.approx(expected[0, 1, 1, index], rel=1e-12)


# --- independent computations ------------------------------------------------------------------------------


def brute_force(log_link: Callable[[Array], Array], mean: float, std: float, delta: float) -> Array:
    """(log_q, log_f, log_not_f) by label, from short panels on every scale of the integrand."""
    fine = np.sqrt(2.0) ** np.arange(-90.0, 28.0)
    breaks = np.concatenate(
        [mean + std * np.linspace(-40, 40, 161), np.linspace(-45, 45, 181), delta + fine, delta - fine]
    )
    breaks = np.unique(np.append(breaks, delta))
    nodes, weights = np.polynomial.legendre.leggauss(8)
    width = np.diff(breaks)
    c = (breaks[:-1, None] + width[:, None] * (nodes + 1) / 2).ravel()
    log_weight = np.log(width[:, None] * weights / 2).ravel() + norm.logpdf(c, mean, std)
    below = np.repeat(breaks[1:] <= delta, len(nodes))
    result = []
    for label in (-1.0, 1.0):
        terms = log_weight + log_link(label * c)
        log_below, log_above = logsumexp(terms[below]), logsumexp(terms[~below])
        log_q = np.logaddexp(log_below, log_above)
        result.append([log_q, log_below - log_q, log_above - log_q])
    return np.array(result).T


@every_link
def test_exact_tables_match_brute_force_quadrature_on_random_settings(link: str) -> None:
    log_link = {"logistic": lambda x: -np.logaddexp(0.0, -x), "probit": log_ndtr}[link]
    mean, std, delta = random_settings(2000, seed=1)
    value = stacked(EXACT[link], mean, std, delta)[0]
    expected = np.array([brute_force(log_link, *setting) for setting in zip(mean, std, delta, strict=True)])
    expected = np.moveaxis(expected, 0, -1)
    assert np.all(np.abs(value - expected) <= 1e-8 * np.maximum(1.0, np.abs(expected)))


def bivariate_cdf(h: Array, k: Array, rho: Array) -> Array:
    """P(X <= h, Y <= k) for standard normals with correlation rho (Owen 1956, Eq. 3.1)."""
    root = np.sqrt(1.0 - rho**2)
    outside = np.where((h * k > 0) | ((h * k == 0) & (h + k >= 0)), 0.0, 0.5)
    owen = owens_t(h, (k / h - rho) / root) + owens_t(k, (h / k - rho) / root)
    return (ndtr(h) + ndtr(k)) / 2 - owen - outside


def test_probit_table_matches_owens_t_where_the_joint_probability_is_not_small() -> None:
    rng = np.random.default_rng(2)
    mean, std, delta = rng.normal(scale=2.0, size=500), 10.0 ** rng.uniform(-1, 1, 500), 0.7
    scale = np.sqrt(1.0 + std**2)
    for row, label in enumerate((-1.0, 1.0)):
        joint = bivariate_cdf((delta - mean) / std, label * mean / scale, -label * std / scale)
        table = probit_outcomes(mean, std, delta)
        large = joint > 1e-4
        assert np.sum(large) > 200
        log_joint = (table.log_q + table.log_f)[row, 0]
        np.testing.assert_allclose(log_joint[large], np.log(joint[large]), rtol=0, atol=1e-10)


@every_link
def test_label_probabilities_sum_to_one(link: str) -> None:
    value = stacked(EXACT[link], *random_settings(2000, seed=3))[0]
    np.testing.assert_allclose(np.exp(value[0]).sum(axis=0), 1.0, rtol=1e-12)


@every_table
def test_both_sides_of_the_threshold_sum_to_one(table: Table) -> None:
    value = stacked(table, *random_settings(2000, seed=4))[0]
    np.testing.assert_allclose(np.exp(value[1]) + np.exp(value[2]), 1.0, rtol=1e-12)


@every_link
def test_exact_tables_average_to_the_prior_probability_of_the_threshold(link: str) -> None:
    mean, std, delta = random_settings(2000, seed=5)
    log_q, log_f, log_not_f = stacked(EXACT[link], mean, std, delta)[0]
    gamma = (delta - mean) / std
    for log_side, expected in ((log_f, log_ndtr(gamma)), (log_not_f, log_ndtr(-gamma))):
        error = np.abs(np.logaddexp(*(log_q + log_side)) - expected)
        assert np.all(error <= 1e-9 * np.maximum(1.0, np.abs(expected)))


def test_laplace_table_is_the_papers() -> None:
    mean, std, delta = random_settings(1000, seed=6)
    std = np.maximum(std, 1e-2)
    value = stacked(laplace, mean, std, delta)[0]
    for row, z in enumerate((-1.0, 1.0)):
        log_q = -np.logaddexp(0.0, -z * mean / np.sqrt(1.0 + np.pi * std**2 / 8.0))
        gradient = z * (1.0 - 1.0 / (1.0 + np.exp(-z * mean)))  # of log sigma(z c) + log N(c), at the mean
        hessian = -1.0 / ((1.0 + np.exp(-mean)) * (1.0 + np.exp(mean))) - 1.0 / std**2
        mode, deviation = mean - gradient / hessian, np.sqrt(-1.0 / hessian)
        np.testing.assert_allclose(value[0, row], log_q, rtol=1e-12)
        np.testing.assert_allclose(value[1, row], norm.logcdf(delta, mode, deviation), rtol=1e-9, atol=1e-300)
        np.testing.assert_allclose(value[2, row], norm.logsf(delta, mode, deviation), rtol=1e-9, atol=1e-300)


def test_laplace_table_is_close_to_the_exact_one_where_the_latent_value_is_well_known() -> None:
    mean, std = np.linspace(-3, 3, 13), np.full(13, 0.3)
    for approximate, reference in zip(laplace(mean, std, 0.5)[0], exact(mean, std, 0.5)[0], strict=True):
        np.testing.assert_allclose(np.exp(approximate), np.exp(reference), atol=5e-3)


# --- derivatives -------------------------------------------------------------------------------------------


def difference_settings() -> tuple[Array, Array, Array]:
    """Settings whose logarithms are small enough for finite differences to have six digits."""
    mean, std, delta = random_settings(600, seed=7)
    gamma = np.clip((delta - mean) / std, -8.0, 8.0)
    return delta - gamma * std, std, delta


def finite_differences(table: Table, mean: Array, std: Array, delta: Array) -> tuple[Array, Array]:
    """Central differences of fourth order, and the rounding error they may carry: (2, 3, 2, n) each."""
    step = 2e-4 * np.minimum(std, 1.0)
    slopes, noise = [], []
    for direction in ((1.0, 0.0), (0.0, 1.0)):
        at = {
            k: stacked(table, mean + k * direction[0] * step, std + k * direction[1] * step, delta)[0]
            for k in (-2, -1, 1, 2)
        }
        slopes.append((8.0 * (at[1] - at[-1]) - (at[2] - at[-2])) / (12.0 * step))
        noise.append((1e-13 * np.abs(at[1]) + 2e-16 * (np.abs(mean) + std) * np.abs(slopes[-1])) / step)
    return np.array(slopes), np.array(noise)


@every_table
@pytest.mark.parametrize("scale", [1.0, 1.01])
def test_partial_derivatives_match_central_differences(table: Table, scale: float) -> None:
    """The scale 1.01 is the negative control: the same comparison must reject it, for every field."""
    mean, std, delta = difference_settings()
    partials = scale * stacked(table, mean, std, delta)[1:]
    expected, noise = finite_differences(table, mean, std, delta)
    agrees = np.abs(partials - expected) <= 1e-6 * np.abs(expected) + noise
    if scale == 1.0:
        assert np.all(agrees)
    else:
        assert np.all(np.mean(~agrees, axis=(2, 3)) > 0.8)


@every_link
def test_feasibility_agrees_with_the_table_in_value_and_derivatives(link: str) -> None:
    mean, std, delta = random_settings(1000, seed=8)
    table = stacked(EXACT[link], mean, std, delta)[:, 0, 0]
    result = np.array(log_probability_feasible(mean, std, link, grad=True))
    np.testing.assert_allclose(result, table, rtol=1e-9, atol=1e-300)
    np.testing.assert_array_equal(log_probability_feasible(mean, std, link), result[0])


def test_the_value_is_the_same_with_and_without_derivatives() -> None:
    mean, std, _ = random_settings(50, seed=9)
    for method in ("laplace", "exact"):
        alone = logistic_outcomes(mean, std, 0.3, method)
        np.testing.assert_array_equal(alone, logistic_outcomes(mean, std, 0.3, method, grad=True)[0])
    np.testing.assert_array_equal(probit_outcomes(mean, std, 0.3), probit(mean, std, 0.3)[0])


# --- shapes, limits, order ---------------------------------------------------------------------------------


@every_table
def test_tables_have_one_row_per_label_and_treat_points_independently(table: Table) -> None:
    mean, std, _ = random_settings(2000, seed=10)
    together = np.array(table(mean, std, 0.4))
    assert together.shape == (3, 3, 2, 1, 2000)
    for index in range(0, 2000, 97):
        alone = np.array(table(mean[index : index + 1], std[index : index + 1], 0.4))
        np.testing.assert_allclose(alone[..., 0], together[..., index], rtol=1e-11, atol=1e-300)


@every_table
def test_an_empty_set_of_points_gives_empty_tables(table: Table) -> None:
    assert np.array(table(np.empty(0), np.empty(0), 0.0)).shape == (3, 3, 2, 1, 0)


@every_table
def test_a_known_latent_value_gives_the_link_and_an_indicator(table: Table) -> None:
    mean = np.array([-30.0, -2.0, 0.2, 0.4, 3.0, 30.0])
    link = ndtr if table is probit else expit
    for std in (1e-12, 0.0):
        log_q, log_f, log_not_f = (field[:, 0] for field in table(mean, np.full(6, std), 0.3)[0])
        np.testing.assert_allclose(np.exp(log_q), link(LABELS * mean), rtol=1e-12)
        np.testing.assert_array_equal(np.exp(log_f), np.broadcast_to(mean < 0.3, (2, 6)))
        np.testing.assert_array_equal(np.exp(log_not_f), np.broadcast_to(mean > 0.3, (2, 6)))


def test_a_small_std_changes_the_logistic_label_by_the_curvature_of_the_link() -> None:
    mean, std = np.array([-30.0, -2.0, 0.2, 3.0, 30.0]), np.full(5, 1e-9)
    expected = -std * expit(-LABELS * mean) * np.tanh(LABELS * mean / 2)
    np.testing.assert_allclose(exact(mean, std, 0.3)[2].log_q[:, 0], expected, rtol=1e-9)


@every_link
def test_a_feasible_label_makes_the_threshold_more_probable(link: str) -> None:
    mean, std, delta = random_settings(2000, seed=11)
    value, d_mean, _ = stacked(EXACT[link], mean, std, delta)
    prior = log_ndtr((delta - mean) / std)
    slack = 1e-11 * np.maximum(1.0, np.abs(prior))
    assert np.all(value[1, 0] >= prior - slack)
    assert np.all(value[1, 1] <= prior + slack)
    assert np.all(d_mean[1] <= 0.0)
    assert np.all(d_mean[0, 0] <= 0.0)
    assert np.all(d_mean[0, 1] >= 0.0)


@every_table
def test_reflection_exchanges_labels_and_sides(table: Table) -> None:
    mean, std, _ = random_settings(500, seed=12)
    value, reflected = table(mean, std, 1.3)[0], table(-mean, std, -1.3)[0]
    np.testing.assert_allclose(value.log_q, reflected.log_q[::-1], rtol=1e-11, atol=1e-300)
    np.testing.assert_allclose(value.log_f, reflected.log_not_f[::-1], rtol=1e-11, atol=1e-300)


@every_table
def test_extreme_settings_give_numbers_and_finite_derivatives_without_a_warning(table: Table) -> None:
    mean, std = np.meshgrid([-1e6, -1e3, -40.0, 0.0, 0.3, 40.0, 1e3, 1e6], [0.0, 1e-12, 1e-6, 1.0, 1e3, 1e6])
    for delta in (-40.0, 0.0, 0.3, 7.0):
        value, d_mean, d_std = (np.array(part) for part in table(mean.ravel(), std.ravel(), delta))
        assert not np.any(np.isnan(value))
        assert np.all(value <= 0.0)
        assert np.all(np.isfinite(d_mean))
        assert np.all(np.isfinite(d_std))


@every_table
def test_random_settings_far_outside_the_stated_range_are_harmless(table: Table) -> None:
    rng = np.random.default_rng(15)
    for delta in rng.uniform(-40, 40, 40):
        mean = rng.choice([-1.0, 1.0], 500) * 10.0 ** rng.uniform(-3, 6, 500)
        std = 10.0 ** rng.uniform(-12, 6, 500)
        near = rng.random(500) < 0.5
        mean = np.where(near, delta + std * rng.normal(scale=4.0, size=500), mean)
        value, d_mean, d_std = (np.array(part) for part in table(mean, std, delta))
        assert np.all(np.isfinite([value, d_mean, d_std]))
        np.testing.assert_allclose(np.exp(value[0]).sum(axis=0), 1.0, rtol=1e-9)
        np.testing.assert_allclose(np.exp(value[1]) + np.exp(value[2]), 1.0, rtol=1e-9)


@every_link
def test_feasibility_of_extreme_settings_is_finite(link: str) -> None:
    mean, std = np.meshgrid([-1e6, -40.0, 0.0, 40.0, 1e6], [0.0, 1e-12, 1.0, 1e3, 1e6])
    result = np.array(log_probability_feasible(mean.ravel(), std.ravel(), link, grad=True))
    assert np.all(np.isfinite(result))
    assert np.all(result[0] <= 0.0)


@every_link
@pytest.mark.parametrize(
    ("name", "other"),
    [("_FALL", 42.0), ("_SPREAD", 3.0), ("_LINEAR", 1e-3), ("_LINEAR", 1e-5), ("_TINY", 1e-99)],
)
def test_results_do_not_depend_on_the_constants(
    link: str, name: str, other: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = random_settings(1000, seed=13)
    before = stacked(EXACT[link], *settings)
    monkeypatch.setattr(feedback, name, other)
    after = stacked(EXACT[link], *settings)
    assert np.all(np.abs(after - before)[0] <= 1e-9 * np.maximum(1.0, np.abs(before[0])))
    np.testing.assert_allclose(after[1:], before[1:], rtol=1e-6, atol=1e-300)


@every_table
def test_the_smallest_std_may_be_ten_times_larger_or_smaller(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    mean, std = np.array([-40.0, -1.0, 0.3, 2.0, 40.0]), np.zeros(5)
    before = np.exp(table(mean, std, 0.3)[0])
    for other in (1e-61, 1e-59):
        monkeypatch.setattr(feedback, "_MIN_STD", other)
        np.testing.assert_allclose(np.exp(table(mean, std, 0.3)[0]), before, rtol=1e-14)


@every_link
def test_more_nodes_change_nothing(link: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = random_settings(1000, seed=14)
    before = stacked(EXACT[link], *settings)
    nodes, weights = np.polynomial.legendre.leggauss(160)
    monkeypatch.setattr(feedback, "_NODES", (nodes + 1) / 2)
    monkeypatch.setattr(feedback, "_WEIGHTS", weights / 2)
    after = stacked(EXACT[link], *settings)
    assert np.all(np.abs(after - before)[0] <= 1e-10 * np.maximum(1.0, np.abs(before[0])))


def test_the_threshold_is_where_an_infeasible_label_has_the_given_probability() -> None:
    for probability in (0.1, 0.5, 0.9):
        assert expit(latent_threshold(probability, "logistic")) == pytest.approx(probability, rel=1e-14)
        assert ndtr(latent_threshold(probability, "probit")) == pytest.approx(probability, rel=1e-14)


def test_unknown_choices_and_shapes_are_named_in_the_message() -> None:
    one = np.ones(1)
    with pytest.raises(ValueError, match="'laplace' or 'exact', got 'quadrature'"):
        logistic_outcomes(one, one, 0.0, "quadrature")
    with pytest.raises(ValueError, match="'logistic' or 'probit', got 'cauchit'"):
        log_probability_feasible(one, one, "cauchit")  # type: ignore[call-overload]
    with pytest.raises(ValueError, match=r"got \(1,\) and \(2,\)"):
        probit_outcomes(one, np.ones(2), 0.0)
    with pytest.raises(ValueError, match=r"strictly between 0 and 1, got 1\.0"):
        latent_threshold(1.0, "probit")


def test_the_callers_arrays_are_left_alone() -> None:
    mean, std = np.array([0.0, 1.0]), np.array([0.0, 2.0])
    for table in (laplace, exact, probit):
        table(mean, std, 0.0)
    np.testing.assert_array_equal([mean, std], [[0.0, 1.0], [0.0, 2.0]])


@pytest.mark.parametrize("link", ["logistic", "probit"])
def test_the_rough_table_is_good_enough_to_choose_by(link):
    rng = np.random.default_rng(3)
    mean, std = rng.normal(0, 4, 1000), rng.uniform(0.05, 6, 1000)
    exact = logistic_outcomes(mean, std, 0.3, "exact") if link == "logistic" else probit_outcomes(mean, std, 0.3)
    errors = [
        np.abs(a - b) / np.maximum(1, np.abs(a))
        for a, b in zip(exact, rough_outcomes(mean, std, 0.3, link), strict=True)
    ]
    assert 1e-12 < np.max(errors) < 1e-2
