"""Write the reference values of tests/test_normal.py and tests/test_entropy.py with mpmath.

Run as ``python tests/golden/make_golden.py`` (two minutes); it overwrites the json files beside it. The
scores are the literal formulas of the paper's supplement with 700 digits; only 1 - prod Phi is summed from the
tails, since at gamma = 1e8 it has 2e15 leading zeros.
"""

import json
from pathlib import Path

import mpmath as mp
import numpy as np

HERE = Path(__file__).parent


def upper_tail(x):
    return mp.erfc(x / mp.sqrt(2)) / 2


def log_cdf(x):
    return mp.log1p(-upper_tail(x)) if x > 0 else mp.log(upper_tail(-x))


def hazard(x):
    return mp.npdf(x) / upper_tail(x)


NORMAL = {
    "log_pdf": lambda x: -x * x / 2 - mp.log(2 * mp.pi) / 2,
    "log_cdf": log_cdf,
    "hazard": hazard,
    "tail_product": lambda x: x * (x - hazard(x)),
    "one_plus_tail_product": lambda x: 1 + x * (x - hazard(x)),
}


def log1mexp(x):
    return mp.log(-mp.expm1(x))


def all_hold(gammas):
    """Z_A, 1 - Z_A = sum_g P(g is the first gate to fail), and the upper tails."""
    tails = [upper_tail(g) for g in gammas]
    z_a, not_z_a = mp.mpf(1), mp.mpf(0)
    for tail in tails:
        not_z_a += z_a * tail
        z_a *= 1 - tail
    return z_a, not_z_a, tails


def divergence_if_feasible(gammas, table):
    """Gate 0 is seen on row 0 only, all others always."""
    z_a, not_z_a, _ = all_hold(gammas[:1])
    z_s, not_z_s, _ = all_hold(gammas[1:])
    kappas = [table[0][1], *(not_z_a + z_a * not_f for _, not_f in table[1:])]
    z = not_z_s + z_s * (not_z_a + z_a * mp.fsum(q * not_f for q, not_f in table))
    weights = [table[0][0] * z_a, *(q for q, _ in table[1:])]
    terms = mp.fsum(w * k * mp.log(k) for w, k in zip(weights, kappas, strict=True))
    return [-mp.log(z) + z_s / z * terms]


def entropy_and_divergence(gammas, table):
    """Supplement A.1 and A.3, and -log Z + E[kappa log kappa] / Z; `table` has rows (Q, 1 - F)."""
    z_a, not_z_a, tails = all_hold(gammas)
    q = [row[0] for row in table]
    f = [1 - row[1] for row in table]
    not_f = [row[1] for row in table]
    zt = mp.fsum(a * b for a, b in zip(q, f, strict=True))
    not_zt = mp.fsum(a * b for a, b in zip(q, not_f, strict=True))
    z = not_z_a + z_a * not_zt
    b = z_a * zt / z
    pull = mp.fsum(g * mp.npdf(g) / (1 - t) for g, t in zip(gammas, tails, strict=True)) / 2
    log_not_f = [mp.log(a) if a > 0 else mp.mpf(0) for a in not_f]
    label = mp.fsum(
        q_r * (-n * ln + (f_r - zt) * (mp.log(q_r) if q_r > 0 else 0))
        for q_r, f_r, n, ln in zip(q, f, not_f, log_not_f, strict=True)
    )
    entropy = -mp.log(z) - b * (pull + label / zt)
    kappa_log_kappa = mp.fsum(q_r * n * ln for q_r, n, ln in zip(q, not_f, log_not_f, strict=True))
    return entropy, -mp.log(z) + z_a / z * kappa_log_kappa


def derivatives(function, gammas, table):
    """Central differences with a step far below what any double resolves."""
    result = []
    for g in range(len(gammas)):
        step = mp.mpf(10) ** (-60) / max(1, abs(gammas[g]))
        up, down = list(gammas), list(gammas)
        up[g] += step
        down[g] -= step
        highs, lows = function(up, table), function(down, table)
        result.append([(a - b) / (2 * step) for a, b in zip(highs, lows, strict=True)])
    return [list(column) for column in zip(*result, strict=True)]


def gate_settings():
    rng = np.random.default_rng(0)
    scales = [1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8]
    for scale in scales:
        for gates in (1, 2, 5):
            yield [scale] * gates
            # Gates whose tails are within a few orders of magnitude of each other: all of them matter.
            yield [scale + float(d) / scale for d in rng.uniform(0, 4, gates)]
            yield [float(scale * f) for f in rng.uniform(1, 3, gates)]
    for _ in range(60):
        gates = int(rng.integers(2, 6))
        gammas = [float(10 ** rng.uniform(0, 8)) for _ in range(gates)]
        gammas[int(rng.integers(gates))] = float(rng.uniform(-6, 30))
        yield gammas
    for gamma in np.linspace(-37, 80, 79):
        yield [float(gamma)]
    for gamma in rng.uniform(-30, 60, (60, 2)):
        yield [float(gamma[0]), float(gamma[1])]


def table_settings():
    """Two rows; 1 - F down to 1e-300, so that gates up to 37 compete with the table."""
    rng = np.random.default_rng(1)
    for _ in range(120):
        gates = int(rng.integers(0, 4))
        gammas = [float(rng.uniform(-10, 40)) for _ in range(gates)]
        not_f = [float(10 ** rng.uniform(-300, 0)) if rng.random() < 0.5 else rng.random() for _ in range(2)]
        yield gammas, [[0.25, not_f[0]], [0.75, not_f[1]]]


def split_settings():
    rng = np.random.default_rng(2)
    for _ in range(120):
        gammas = rng.uniform(-10, 40, int(rng.integers(1, 4)))
        if rng.random() < 0.4:
            gammas = gammas * 0.02 + 10 ** rng.uniform(1.5, 8)
        not_f = 10.0 ** rng.uniform(-300, 0, 2) if rng.random() < 0.5 else rng.random(2)
        yield gammas.tolist(), [[0.25, float(not_f[0])], [0.75, float(not_f[1])]]


def number(x):
    """A double's worth of digits, whatever the exponent: tests skip what a double cannot hold."""
    return mp.nstr(x, 20)


def main():
    mp.mp.dps = 700
    grid = np.concatenate([np.logspace(-300, 8, 78), np.logspace(-3, 2, 51)])
    xs = sorted({float(f"{sign * x:.6g}") for x in grid for sign in (-1, 1)})
    normal = {"x": xs}
    for name, function in NORMAL.items():
        normal[name] = [number(function(mp.mpf(x))) for x in xs]
    # Below -700 the second term of log(1 - e^x) = -e^x - ... is beyond any double.
    normal["log1mexp"] = [[x, number(log1mexp(mp.mpf(x)) if x > -700 else -mp.exp(mp.mpf(x)))] for x in xs if x < 0]
    (HERE / "normal.json").write_text(json.dumps(normal, indent=0) + "\n")

    mp.mp.dps = 700
    rows = []
    for gammas, table in [(g, []) for g in gate_settings()] + list(table_settings()):
        exact = [mp.mpf(g) for g in gammas]
        full = [[mp.mpf(q), mp.mpf(n)] for q, n in table] or [[mp.mpf(1), mp.mpf(0)]]
        entropy, divergence = entropy_and_divergence(exact, full)
        row = {"gammas": gammas, "table": table, "entropy": number(entropy), "divergence": number(divergence)}
        if gammas:
            d_entropy, d_divergence = derivatives(entropy_and_divergence, exact, full)
            row["d_entropy"] = [number(d) for d in d_entropy]
            row["d_divergence"] = [number(d) for d in d_divergence]
        rows.append(row)
    (HERE / "entropy.json").write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")

    rows = []
    for gammas, table in split_settings():
        exact, full = [mp.mpf(g) for g in gammas], [[mp.mpf(q), mp.mpf(n)] for q, n in table]
        slopes = derivatives(divergence_if_feasible, exact, full)[0]
        value = number(divergence_if_feasible(exact, full)[0])
        rows.append({"gammas": gammas, "table": table, "value": value, "slopes": [number(d) for d in slopes]})
    (HERE / "if_feasible.json").write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")


if __name__ == "__main__":
    main()
