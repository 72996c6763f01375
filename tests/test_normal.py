"""The standard-normal functions against mpmath (tests/golden/normal.json) and at their limits."""

import json
from pathlib import Path

import numpy as np
import pytest

from cmes_gpyopt import normal

GOLDEN = json.loads((Path(__file__).parent / "golden" / "normal.json").read_text())
X = np.array(GOLDEN["x"])
FUNCTIONS = ["log_pdf", "log_cdf", "hazard", "tail_product", "one_plus_tail_product"]
TOLERANCE = 1e-10
TINY = np.finfo(float).tiny


def largest_relative_error(values, references):
    """Over the references that are normal doubles; the golden strings may lie outside the range of a double."""
    references = np.array([float(r) for r in references])
    normal_doubles = np.abs(references) >= TINY
    assert normal_doubles.sum() > 0.4 * len(references)
    errors = np.abs(np.asarray(values) - references)[normal_doubles] / np.abs(references[normal_doubles])
    return errors.max()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_agrees_with_mpmath_from_1e_minus_300_to_1e8(name):
    assert np.abs(X).min() < 1e-299
    assert np.abs(X).max() == 1e8
    assert largest_relative_error(getattr(normal, name)(X), GOLDEN[name]) <= TOLERANCE


def test_log1mexp_agrees_with_mpmath():
    x, references = zip(*GOLDEN["log1mexp"], strict=True)
    assert largest_relative_error(normal.log1mexp(np.array(x)), references) <= TOLERANCE


def test_the_check_against_mpmath_notices_a_relative_change_of_1e_minus_9():
    for name in FUNCTIONS:
        assert largest_relative_error(getattr(normal, name)(X) * (1 + 1e-9), GOLDEN[name]) > TOLERANCE


def test_tails_in_one_pass_equal_the_single_functions():
    tails = normal.tails(X)
    positive = np.maximum(X, 0.0)
    np.testing.assert_allclose(tails.log_cdf, normal.log_cdf(X), rtol=1e-12)
    np.testing.assert_allclose(tails.hazard, normal.hazard(X), rtol=1e-12, atol=TINY)
    np.testing.assert_allclose(tails.hazard_neg, normal.hazard(-X), rtol=1e-12, atol=TINY)
    moderate = np.abs(X) < 1e3
    np.testing.assert_allclose(
        (tails.log_scaled - 0.5 * positive**2)[moderate], normal.log_cdf(-X)[moderate], rtol=1e-12
    )


def test_infinities_give_the_exact_limits():
    ends = np.array([-np.inf, np.inf])
    np.testing.assert_array_equal(normal.log_cdf(ends), [-np.inf, 0.0])
    np.testing.assert_array_equal(normal.hazard(ends), [0.0, np.inf])
    np.testing.assert_array_equal(normal.log_pdf(ends), [-np.inf, -np.inf])
    np.testing.assert_array_equal(normal.tail_product(ends), [np.inf, -1.0])
    np.testing.assert_array_equal(normal.one_plus_tail_product(ends), [np.inf, 0.0])
    np.testing.assert_array_equal(normal.log1mexp(np.array([-np.inf, 0.0])), [0.0, -np.inf])
    tails = normal.tails(ends)
    np.testing.assert_array_equal(tails.log_cdf, [-np.inf, 0.0])
    np.testing.assert_array_equal(tails.log_scaled, [0.0, -np.inf])
    np.testing.assert_array_equal(tails.hazard, [0.0, np.inf])
    np.testing.assert_array_equal(tails.hazard_neg, [np.inf, 0.0])


def test_shapes_and_arguments_are_kept():
    x = np.linspace(-3.0, 20.0, 12).reshape(3, 4)
    before = x.copy()
    for name in FUNCTIONS:
        assert getattr(normal, name)(x).shape == (3, 4)
        assert getattr(normal, name)(1.5).shape == ()
    np.testing.assert_array_equal(x, before)


@pytest.mark.parametrize("switch", [5.0, 20.0])
def test_the_place_where_the_continued_fraction_takes_over_does_not_matter(monkeypatch, switch):
    x = np.linspace(4.0, 25.0, 400)
    reference = normal.one_plus_tail_product(x)
    monkeypatch.setattr(normal, "_FRACTION_FROM", switch)
    np.testing.assert_allclose(normal.one_plus_tail_product(x), reference, rtol=1e-9)
