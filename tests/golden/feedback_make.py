"""Write feedback.csv: outcome tables of a binary constraint and their derivatives, by mpmath.

Run as ``python tests/golden/feedback_make.py`` (five minutes). Each integral is a Gauss-Legendre rule of
order 40 on some 40 panels, in 40 digits, over the whole range in which the integrand is within exp(-90) of
its largest value; each tenth setting is repeated with order 60 and must agree to 1e-16. Derivatives follow
from moments: d log J / dmean = E[c - mean] / std^2, d log J / dstd = E[(c - mean)^2 - std^2] / std^3.
"""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import mpmath as mp

mp.mp.dps = 40
FALL = mp.mpf(90)
FIELDS = [
    f"{prefix}{field}{label}"
    for label in ("-1", "+1")
    for prefix in ("", "d_mean_", "d_std_")
    for field in ("log_q", "log_f", "log_not_f")
]


def settings():
    """Corners of the stated range, thresholds within a few std of the mean, and random settings."""
    for mean, std, delta in itertools.product(
        ("-40", "-6", "0.4", "40"), ("1e-4", "0.03", "0.5", "3", "40", "1000"), ("-7", "0", "7")
    ):
        yield mean, std, delta
    for std, delta, shift in itertools.product(
        ("1e-4", "1e-3", "0.1", "1", "10", "1000"), ("-7", "-2.2", "0", "7"), (-6, -1.5, 0, 1, 4)
    ):
        mean = float(delta) + shift * float(std)
        if abs(mean) <= 40:
            yield repr(round(mean, 6)), std, delta
    yield "6", "0.5", "0"
    yield "-6", "0.5", "0"
    generator = random.Random(0)
    for _ in range(150):
        yield (
            repr(round(generator.uniform(-40, 40) * generator.choice((1, 1, 0.1)), 3)),
            f"{10 ** generator.uniform(-4, 3):.3e}",
            repr(round(generator.uniform(-7, 7), 2)),
        )


def log_link(link, x):
    if link == "logistic":
        return -mp.log1p(mp.exp(-x))
    return mp.log(mp.erfc(-x / mp.sqrt(2)) / 2)


def root(function, inside, step):
    """Point to the side of `step` at which a concave function, positive inside, becomes negative."""
    outside = inside + step
    while function(outside) > 0:
        inside, outside = outside, outside + 2 * (outside - inside)
    for _ in range(20):
        middle = (inside + outside) / 2
        inside, outside = (middle, outside) if function(middle) > 0 else (inside, middle)
    return outside


def largest(function, low, high):
    """Argument of the maximum of a concave function on an interval."""
    ratio = (mp.sqrt(5) - 1) / 2
    for _ in range(110):
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        low, high = (low, right) if function(left) > function(right) else (left, high)
    return low


def half_line(link, label, side, mean, std, delta, rule):
    """Log of the mass on one side of delta, and the mean of ((c - mean) / std) and of its square."""

    def log_integrand(distance):
        c = delta + side * distance
        return log_link(link, label * c) - ((c - mean) / std) ** 2 / 2

    reach = abs(mean - delta) + 60 * std + std**2
    peak = largest(log_integrand, mp.mpf(0), reach)
    if log_integrand(mp.mpf(0)) > log_integrand(peak):
        peak = mp.mpf(0)
    top = log_integrand(peak)

    def above(distance):
        return log_integrand(distance) - top + FALL

    high = root(above, peak, std / 1000 / (1 + abs(delta - mean) / std))
    low = mp.mpf(0) if peak == 0 or above(mp.mpf(0)) > 0 else -root(lambda u: above(-u), -peak, std / 1000)
    low = max(low, mp.mpf(0))
    graded = [-side * delta + sign * mp.mpf(1.5) * 2**power for sign in (-1, 1) for power in range(14)]
    breaks = [low + (high - low) * k / 16 for k in range(17)] + graded + [-side * delta, peak]
    breaks = sorted(point for point in set(breaks) if low <= point <= high)
    sums = [mp.mpf(0)] * 3
    for left, right in itertools.pairwise(breaks):
        for node, weight in rule:
            distance = left + (right - left) * node
            value = (right - left) * weight * mp.exp(log_integrand(distance) - top)
            z = (delta + side * distance - mean) / std
            sums = [sums[0] + value, sums[1] + value * z, sums[2] + value * z * z]
    log_mass = top + mp.log(sums[0]) - mp.log(std * mp.sqrt(2 * mp.pi))
    return log_mass, sums[1] / sums[0], sums[2] / sums[0]


def table(link, mean, std, delta, rule):
    """The entries of FIELDS for one setting."""
    mean, std, delta = mp.mpf(mean), mp.mpf(std), mp.mpf(delta)
    labels, thresholds = [], []
    for label in (-1, 1):
        below = half_line(link, label, -1, mean, std, delta, rule)
        above = half_line(link, label, +1, mean, std, delta, rule)
        odds = above[0] - below[0]
        log_f, log_not_f = -mp.log1p(mp.exp(odds)), -mp.log1p(mp.exp(-odds))
        f, not_f = mp.exp(log_f), mp.exp(log_not_f)
        log_q = below[0] - log_f if odds < 0 else above[0] - log_not_f
        d_mean = [part[1] / std for part in (below, above)]
        d_std = [(part[2] - 1) / std for part in (below, above)]
        gap_mean, gap_std = d_mean[0] - d_mean[1], d_std[0] - d_std[1]
        labels.append([log_q, f * d_mean[0] + not_f * d_mean[1], f * d_std[0] + not_f * d_std[1]])
        thresholds.append([(log_f, log_not_f), (not_f * gap_mean, -f * gap_mean), (not_f * gap_std, -f * gap_std)])
    # 40 digits do not hold the logarithm of 1 - 1e-300: the more probable label from the other one.
    rare = 0 if labels[0][0] < labels[1][0] else 1
    share = mp.exp(labels[rare][0])
    labels[1 - rare] = [mp.log1p(-share)] + [-share / (1 - share) * value for value in labels[rare][1:]]
    return [
        value
        for label, threshold in zip(labels, thresholds, strict=True)
        for first, rest in zip(label, threshold, strict=True)
        for value in (first, *rest)
    ]


def legendre(order):
    """Nodes and weights on [0, 1]."""
    rule = []
    for k in range(order):
        x = mp.cos(mp.pi * (k + mp.mpf(3) / 4) / (order + mp.mpf(1) / 2))
        for _ in range(8):
            before, value = mp.mpf(1), x
            for j in range(2, order + 1):
                before, value = value, ((2 * j - 1) * x * value - (j - 1) * before) / j
            slope = order * (x * value - before) / (x * x - 1)
            x -= value / slope
        rule.append(((1 + x) / 2, 1 / ((1 - x * x) * slope**2)))
    return rule


def main():
    rule, finer = legendre(40), legendre(60)
    lines = [",".join(["link", "mean", "std", "delta", *FIELDS])]
    for link in ("logistic", "probit"):
        for count, setting in enumerate(settings()):
            row = table(link, *setting, rule)
            if count % 10 == 0:
                check = table(link, *setting, finer)
                worst = max(abs(a - b) / max(abs(b), mp.mpf(10) ** -30) for a, b in zip(row, check, strict=True))
                assert worst < mp.mpf(10) ** -16, (link, setting, worst)
            lines.append(",".join([link, *setting, *(mp.nstr(value, 13) for value in row)]))
    Path(__file__).with_name("feedback.csv").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
