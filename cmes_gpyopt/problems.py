"""Test problems with known optima.

Every problem is: minimise the objective subject to every constraint <= 0. Points are rows in the objective space, as
GPyOpt hands them to a function: a discrete variable is its value, a categorical one its index 0, ..., k - 1.

How the numbers of a problem came about: ``x_opt`` by closed form where there is one, otherwise by sequential quadratic
programming from many starts, for each combination of discrete values. Where a constraint is active at the optimum,
``x_opt`` is rounded into the feasible set: it satisfies every constraint in floating point, and ``f_opt``, the
objective at ``x_opt``, is within 1e-6 (relative) of the infimum. ``feasible_fraction`` and ``typical`` are by closed
form, or from 2**20 scrambled Sobol points or more, that take each value of a discrete variable equally often.
``tests/test_problems.py`` checks all of them.

``SUITE`` holds all problems, ``BY_NAME`` finds one. The suite is split into ``DEVELOPMENT``, on which settings may be
chosen, and ``HELD_OUT``, on which they are reported. The split was fixed when the suite was written, before any method was
tuned or compared on it. It was crossed four times: how suggestions are made from failures alone was chosen on problems of
both halves, by the time to a feasible point; final regrets of both halves prompted the shrinking cap of y*; and that draws
of y* are not refined with labels, and that length scales are doubted, was decided with runs on both in view. Each half has
four low-dimensional problems, one high-dimensional, two from engineering (one of them with discrete variables) and one with
continuous and categorical variables.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from .errors import CMESError

Array = npt.NDArray[np.float64]
Function = Callable[[Array], Array]
Domain = tuple[dict[str, Any], ...]
Kind = Literal["low-dimensional", "high-dimensional", "engineering", "mixed"]


@dataclass(frozen=True)
class Problem:
    """A constrained test function.

    Points X are rows of shape (n, d) in the objective space; a point is feasible where every constraint is <= 0.
    """

    name: str
    objective: Function
    """(n, d) -> (n,)"""
    constraints: tuple[Function, ...]
    """each (n, d) -> (n,)"""
    domain: Domain
    """One GPyOpt variable for each column of X."""
    x_opt: tuple[float, ...]
    f_opt: float
    feasible_fraction: float
    """Share of the domain that is feasible, to the digits shown."""
    typical: float = float("nan")
    """Median of the objective over the feasible points: a bad value, to measure regret by."""
    kind: Kind = "low-dimensional"
    reference: str = ""
    """Where the problem was published."""

    @property
    def dimension(self) -> int:
        """Number of variables d."""
        return len(self.domain)

    @property
    def has_discrete(self) -> bool:
        """Whether some variable is not continuous."""
        return any(variable["type"] != "continuous" for variable in self.domain)

    def constraint_values(self, X: npt.ArrayLike) -> Array:
        """Value of every constraint at every point, (n, J); feasible where <= 0."""
        points = self._points(X)
        return np.column_stack([constraint(points) for constraint in self.constraints])

    def feasible(self, X: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """Whether each point satisfies all constraints, (n,)."""
        return np.asarray((self.constraint_values(X) <= 0).all(axis=1))

    def with_failures(self, X: npt.ArrayLike) -> Array:
        """Objective values (n, 1), inf where infeasible: a black box that crashes."""
        points = self._points(X)
        return np.where(self.feasible(points), self.objective(points), np.inf)[:, None]

    def measured(self, x: npt.ArrayLike) -> tuple[float, Array]:
        """Objective value and the values (J,) of the constraints at one point (1, d): a black box that measures both."""
        points = self._points(x)
        if len(points) != 1:
            raise CMESError(f"measured takes one point of shape (1, {self.dimension}), got {len(points)} points")
        return float(self.objective(points)[0]), self.constraint_values(points)[0]

    def normalised_regret(self, best: npt.ArrayLike) -> Array:
        """Regret of feasible values: 0 at the optimum, 1 at the typical feasible value; inf stays inf."""
        return np.asarray((np.asarray(best, dtype=float) - self.f_opt) / (self.typical - self.f_opt))

    def _points(self, X: npt.ArrayLike) -> Array:
        points = np.atleast_2d(np.asarray(X, dtype=float))
        if points.ndim != 2 or points.shape[1] != self.dimension:
            raise CMESError(
                f"{self.name} takes points of shape (n, {self.dimension}) in the objective space, a categorical variable "
                f"as its index; got shape {np.shape(X)}"
            )
        return points


def _continuous(*bounds: tuple[float, float], names: str = "") -> Domain:
    """Continuous variables x1, x2, ..., or with the given names."""
    labels = names.split() or [f"x{i}" for i in range(1, len(bounds) + 1)]
    return tuple({"name": n, "type": "continuous", "domain": b} for n, b in zip(labels, bounds, strict=True))


def _column(function: Function, j: int, X: Array) -> Array:
    return function(X)[:, j]


def _columns(function: Function, count: int) -> tuple[Function, ...]:
    """One function (n, d) -> (n,) for each of the ``count`` columns of ``function``; they can be pickled."""
    return tuple(partial(_column, function, j) for j in range(count))


# ------------------------------------------------------------------------------------------------------------
# Low-dimensional
# ------------------------------------------------------------------------------------------------------------

_CENTRES = np.array([[-0.7, 0.5], [0.5, 0.3], [-0.3, -0.3]])
_WIDTHS = np.array([0.02, 0.2, 0.6])
_DEPTHS = np.array([0.3, 0.6, 0.9])


def _three_valleys(X: Array) -> Array:
    squared = ((X[:, None, :] - _CENTRES) ** 2).sum(axis=2)  # (n, 3)
    return np.asarray((squared / _WIDTHS + _DEPTHS).min(axis=1))


def _above_rim(X: Array) -> Array:
    # The feasible set is y < 1.2; the equality has probability zero.
    return _three_valleys(X) - 1.2


TOY = Problem(
    name="toy",
    objective=_three_valleys,
    constraints=(_above_rim,),
    domain=_continuous((-1.0, 1.0), (-1.0, 1.0)),
    x_opt=(-0.7, 0.5),
    f_opt=0.3,
    feasible_fraction=0.25,
    typical=1.006,
    reference="Perrone et al. (2020), Constrained Bayesian optimization with max-value entropy search, section 4.1",
)
"""Three quadratic valleys; the deepest is the smallest."""


def _gardner1(X: Array) -> Array:
    x1, x2 = X.T
    return np.asarray(np.cos(2 * x1) * np.cos(x2) + np.sin(x1))


def _gardner1_limit(X: Array) -> Array:
    x1, x2 = X.T
    return np.asarray(np.cos(x1) * np.cos(x2) - np.sin(x1) * np.sin(x2) - 0.5)


GARDNER1 = Problem(
    name="gardner1",
    objective=_gardner1,
    constraints=(_gardner1_limit,),
    domain=_continuous((0.0, 6.0), (0.0, 6.0)),
    x_opt=(1.5 * np.pi, 0.0),
    f_opt=-2.0,
    feasible_fraction=0.665,
    typical=0.0411,
    reference="Gardner et al. (2014), Bayesian optimization with inequality constraints, ICML, simulation 1",
)
"""Bands of feasible points; the optimum is on the edge of the box, with no constraint active."""


def _gardner2(X: Array) -> Array:
    x1, x2 = X.T
    return np.asarray(np.sin(x1) + x2)


def _gardner2_limit(X: Array) -> Array:
    x1, x2 = X.T
    return np.asarray(np.sin(x1) * np.sin(x2) + 0.95)


GARDNER2 = Problem(
    name="gardner2",
    objective=_gardner2,
    constraints=(_gardner2_limit,),
    domain=_continuous((0.0, 6.0), (0.0, 6.0)),
    x_opt=(1.5 * np.pi, 1.253235897504),
    f_opt=0.253235897504,
    feasible_fraction=0.0177,
    typical=np.pi,
    reference="Gardner et al. (2014), Bayesian optimization with inequality constraints, ICML, simulation 2",
)
"""Two small feasible islands; turning the square by half takes one to the other and y to 2 pi - y, hence the median. The
optimum is x1 = 3 pi / 2, sin(x2) = 0.95."""


def _sum(X: Array) -> Array:
    return np.asarray(X.sum(axis=1))


def _gramacy_wave(X: Array) -> Array:
    x1, x2 = X.T
    return np.asarray(1.5 - x1 - 2 * x2 - 0.5 * np.sin(2 * np.pi * (x1**2 - 2 * x2)))


def _gramacy_disc(X: Array) -> Array:
    x1, x2 = X.T
    return np.asarray(x1**2 + x2**2 - 1.5)


GRAMACY = Problem(
    name="gramacy",
    objective=_sum,
    constraints=(_gramacy_wave, _gramacy_disc),
    domain=_continuous((0.0, 1.0), (0.0, 1.0)),
    x_opt=(0.1951226928835, 0.4046653591352),
    f_opt=0.5997880520187,
    feasible_fraction=0.457,
    typical=1.25,
    reference="Gramacy et al. (2016), Modeling an augmented Lagrangian for blackbox constrained optimization, "
    "Technometrics 58",
)
"""A linear objective: all the difficulty is in the wavy constraint, with two local optima besides the global one."""


def _branin(X: Array) -> Array:
    x1, x2 = X.T
    valley = x2 - 5.1 / (4 * np.pi**2) * x1**2 + 5 / np.pi * x1 - 6
    return np.asarray(valley**2 + 10 * (1 - 1 / (8 * np.pi)) * np.cos(x1) + 10)


def _branin_disc(X: Array) -> Array:
    x1, x2 = X.T
    return np.asarray((x1 - 2.5) ** 2 + (x2 - 7.5) ** 2 - 50)


BRANIN = Problem(
    name="branin",
    objective=_branin,
    constraints=(_branin_disc,),
    domain=_continuous((-5.0, 10.0), (0.0, 15.0)),
    x_opt=(np.pi, 2.275),
    f_opt=5 / (4 * np.pi),
    feasible_fraction=0.698,
    typical=32.4,
    reference="Gelbart, Snoek, Adams (2014), Bayesian optimization with unknown constraints, UAI, section 4",
)
"""The disc leaves one of the three global minima of Branin's function."""


def _townsend(X: Array) -> Array:
    x1, x2 = X.T
    return np.asarray(-(np.cos((x1 - 0.1) * x2) ** 2) - x1 * np.sin(3 * x1 + x2))


def _townsend_heart(X: Array) -> Array:
    x1, x2 = X.T
    t = np.arctan2(x1, x2)
    edge = 2 * np.cos(t) - np.cos(2 * t) / 2 - np.cos(3 * t) / 4 - np.cos(4 * t) / 8
    return np.asarray(x1**2 + x2**2 - edge**2 - (2 * np.sin(t)) ** 2)


TOWNSEND = Problem(
    name="townsend",
    objective=_townsend,
    constraints=(_townsend_heart,),
    domain=_continuous((-2.25, 2.25), (-2.5, 1.75)),
    x_opt=(2.005292720343, 1.194452875195),
    f_opt=-2.023988362308613,
    feasible_fraction=0.684,
    typical=-0.729,
    reference="Townsend (2014), Constrained optimization in Chebfun, chebfun.org, with the modified constraint of "
    "Wikipedia, Test functions for optimization",
)
"""Several local optima inside and on the edge of a heart."""


def _bird(X: Array) -> Array:
    x1, x2 = X.T
    head = np.sin(x2) * np.exp((1 - np.cos(x1)) ** 2)
    tail = np.cos(x1) * np.exp((1 - np.sin(x2)) ** 2)
    return np.asarray(head + tail + (x1 - x2) ** 2)


def _bird_disc(X: Array) -> Array:
    x1, x2 = X.T
    return np.asarray((x1 + 5) ** 2 + (x2 + 5) ** 2 - 25)


BIRD = Problem(
    name="bird",
    objective=_bird,
    constraints=(_bird_disc,),
    domain=_continuous((-10.0, 0.0), (-6.5, 0.0)),
    x_opt=(-3.1302468, -1.58214218),
    f_opt=-106.76453674926472,
    feasible_fraction=0.831,
    typical=12.0,
    reference="Mishra (2006), Some new test functions for global optimization, MPRA paper 2718; domain and disc as in "
    "Wikipedia, Test functions for optimization",
)
"""Steep, with deep local optima; the disc does not touch the global one."""

_NEEDLE_CENTRE = np.array([0.7, 0.3, 0.4])
_NEEDLE_RADIUS = 0.15
_NEEDLE_TARGET = np.array([0.9, 0.7, 0.8])


def _needle(X: Array) -> Array:
    return np.asarray(((X - _NEEDLE_TARGET) ** 2).sum(axis=1))


def _needle_ball(X: Array) -> Array:
    return np.asarray(((X - _NEEDLE_CENTRE) ** 2).sum(axis=1) - _NEEDLE_RADIUS**2)


NEEDLE = Problem(
    name="needle",
    objective=_needle,
    constraints=(_needle_ball,),
    domain=_continuous((0.0, 1.0), (0.0, 1.0), (0.0, 1.0)),
    x_opt=(0.749999999999, 0.399999999998, 0.499999999998),
    f_opt=0.2025000000027,
    feasible_fraction=0.0141,
    typical=0.371,
    reference="this library",
)
"""All but a small ball is infeasible. The ball is 4/3 pi 0.15^3 of the cube; its point closest to the target, which is
0.6 from its centre, is 0.45 from the target."""


# ------------------------------------------------------------------------------------------------------------
# High-dimensional
# ------------------------------------------------------------------------------------------------------------

_HARTMANN_WEIGHTS = np.array([1.0, 1.2, 3.0, 3.2])
_HARTMANN_SHARPNESS = np.array(
    [
        [10, 3, 17, 3.5, 1.7, 8],
        [0.05, 10, 17, 0.1, 8, 14],
        [3, 3.5, 1.7, 10, 17, 8],
        [17, 8, 0.05, 10, 0.1, 14],
    ]
)
_HARTMANN_CENTRES = 1e-4 * np.array(
    [
        [1312, 1696, 5569, 124, 8283, 5886],
        [2329, 4135, 8307, 3736, 1004, 9991],
        [2348, 1451, 3522, 2883, 3047, 6650],
        [4047, 8828, 8732, 5743, 1091, 381],
    ]
)


def _hartmann6(X: Array) -> Array:
    exponents = (_HARTMANN_SHARPNESS * (X[:, None, :] - _HARTMANN_CENTRES) ** 2).sum(axis=2)  # (n, 4)
    return np.asarray(-(_HARTMANN_WEIGHTS * np.exp(-exponents)).sum(axis=1))


def _in_ball(radius: float, X: Array) -> Array:
    return np.asarray(np.sqrt((X**2).sum(axis=1)) - radius)


HARTMANN6 = Problem(
    name="hartmann6",
    objective=_hartmann6,
    constraints=(partial(_in_ball, 1.0),),
    domain=_continuous(*6 * [(0.0, 1.0)]),
    x_opt=(0.201689511, 0.150010692, 0.476873974, 0.27533243, 0.311651616, 0.657300534),
    f_opt=-3.3223680114155147,
    feasible_fraction=0.0807,
    typical=-0.306,
    kind="high-dimensional",
    reference="Letham et al. (2019), Constrained Bayesian optimization with noisy experiments, Bayesian Analysis 14",
)
"""The constraint ||x|| <= 1 leaves pi^3 / 6 / 2^6 of the cube and the global minimum of the function."""


def _ackley(X: Array) -> Array:
    # -20 exp(-0.2 rms) - exp(mean cos) + 20 + e, without cancellation near the optimum.
    root_mean_square = np.sqrt((X**2).mean(axis=1))
    mean_cosine = np.cos(2 * np.pi * X).mean(axis=1)
    return np.asarray(-20 * np.expm1(-0.2 * root_mean_square) - np.e * np.expm1(mean_cosine - 1))


ACKLEY10 = Problem(
    name="ackley10",
    objective=_ackley,
    constraints=(_sum, partial(_in_ball, 5.0)),
    domain=_continuous(*10 * [(-5.0, 10.0)]),
    x_opt=10 * (0.0,),
    f_opt=0.0,
    feasible_fraction=2.16e-5,
    typical=6.77,
    kind="high-dimensional",
    reference="Eriksson, Poloczek (2021), Scalable constrained Bayesian optimization, AISTATS, section 4",
)
"""Half a ball is feasible, pi^5 / 240 / 3^10 of the box; the optimum is on its flat side."""


# ------------------------------------------------------------------------------------------------------------
# Engineering
# ------------------------------------------------------------------------------------------------------------


def _welded_beam(X: Array) -> Array:
    h, l, t, b = X.T  # noqa: E741 - the letters of the literature
    return np.asarray(1.10471 * h**2 * l + 0.04811 * t * b * (14 + l))


def _welded_beam_limits(X: Array) -> Array:
    h, l, t, b = X.T  # noqa: E741
    load, length, young, shear_modulus = 6000.0, 14.0, 30e6, 12e6
    moment = load * (length + l / 2)
    R = np.sqrt(l**2 / 4 + ((h + t) / 2) ** 2)
    J = 2 * np.sqrt(2) * h * l * (l**2 / 12 + ((h + t) / 2) ** 2)
    primary = load / (np.sqrt(2) * h * l)
    secondary = moment * R / J
    shear = np.sqrt(primary**2 + primary * secondary * l / R + secondary**2)
    bending = 6 * load * length / (b * t**2)
    deflection = 4 * load * length**3 / (young * b * t**3)
    buckling = (
        4.013 * young * t * b**3 / (6 * length**2) * (1 - t / (2 * length) * np.sqrt(young / (4 * shear_modulus)))
    )
    return np.column_stack(
        [
            shear / 13600 - 1,
            bending / 30000 - 1,
            h - b,
            (0.10471 * h**2 + 0.04811 * t * b * (14 + l)) / 5 - 1,
            0.125 - h,
            deflection / 0.25 - 1,
            1 - buckling / load,
        ]
    )


WELDED_BEAM = Problem(
    name="welded_beam",
    objective=_welded_beam,
    constraints=_columns(_welded_beam_limits, 7),
    domain=_continuous((0.1, 2.0), (0.1, 10.0), (0.1, 10.0), (0.1, 2.0), names="h l t b"),
    x_opt=(0.2057296397766, 3.470488665863, 9.036623910391, 0.2057296397866),
    f_opt=1.724852308624141,
    feasible_fraction=0.0266,
    typical=5.46,
    kind="engineering",
    reference="Coello Coello (2000), Use of a self-adaptive penalty approach for engineering optimization problems, "
    "Computers in Industry 41, after Ragsdell and Phillips (1976)",
)
"""Cost of a welded beam; limits on stresses, deflection, buckling and sizes, each divided by its bound."""


def _pressure_vessel(X: Array) -> Array:
    x1, x2, x3, x4 = X.T
    return np.asarray(0.6224 * x1 * x3 * x4 + 1.7781 * x2 * x3**2 + 3.1661 * x1**2 * x4 + 19.84 * x1**2 * x3)


def _pressure_vessel_limits(X: Array) -> Array:
    x1, x2, x3, x4 = X.T
    volume = np.pi * x3**2 * x4 + 4 / 3 * np.pi * x3**3
    return np.column_stack([0.0193 * x3 - x1, 0.00954 * x3 - x2, 1 - volume / 1296000, x4 / 240 - 1])


_PLATES = tuple(0.0625 * i for i in range(1, 100))

PRESSURE_VESSEL = Problem(
    name="pressure_vessel",
    objective=_pressure_vessel,
    constraints=_columns(_pressure_vessel_limits, 4),
    domain=(
        {"name": "shell", "type": "discrete", "domain": _PLATES},
        {"name": "head", "type": "discrete", "domain": _PLATES},
        *_continuous((10.0, 200.0), (10.0, 200.0), names="radius length"),
    ),
    x_opt=(0.8125, 0.4375, 42.09844559534, 176.6365958512),
    f_opt=6059.7143351667855,
    feasible_fraction=0.401,
    typical=145e3,
    kind="engineering",
    reference="Kannan, Kramer (1994), An augmented Lagrange multiplier based method for mixed integer discrete "
    "continuous optimization, Journal of Mechanical Design 116; bounds of Coello Coello (2000)",
)
"""Cost of a cylinder with two heads. The thicknesses are multiples of 0.0625 inch, as plates are rolled (the continuous
relaxation, also common in the literature, has the optimum 5885.33). The limit on the length, 240, is never active
because the domain ends at 200; it is kept because the literature has it."""


def _spring(X: Array) -> Array:
    d, D, N = X.T
    return np.asarray((N + 2) * D * d**2)


def _spring_limits(X: Array) -> Array:
    d, D, N = X.T
    gap = np.where(D == d, np.finfo(float).eps, D - d)  # the shear stress has a pole there, far from feasible
    return np.column_stack(
        [
            1 - D**3 * N / (71785 * d**4),
            (4 * D**2 - d * D) / (12566 * d**3 * gap) + 1 / (5108 * d**2) - 1,
            1 - 140.45 * d / (D**2 * N),
            (d + D) / 1.5 - 1,
        ]
    )


SPRING = Problem(
    name="spring",
    objective=_spring,
    constraints=_columns(_spring_limits, 4),
    domain=_continuous((0.05, 2.0), (0.25, 1.3), (2.0, 15.0), names="d D N"),
    x_opt=(0.05168906106059, 0.3567177392615, 11.28896578343),
    f_opt=0.012665232788676978,
    feasible_fraction=0.0075,
    typical=0.0682,
    kind="engineering",
    reference="Coello Coello (2000), Use of a self-adaptive penalty approach for engineering optimization problems, "
    "Computers in Industry 41, after Belegundu (1982) and Arora (1989)",
)
"""Weight of a tension/compression spring; limits on deflection, shear stress, surge frequency and diameter."""


def _speed_reducer(X: Array) -> Array:
    x1, x2, x3, x4, x5, x6, x7 = X.T
    return np.asarray(
        0.7854 * x1 * x2**2 * (3.3333 * x3**2 + 14.9334 * x3 - 43.0934)
        - 1.508 * x1 * (x6**2 + x7**2)
        + 7.4777 * (x6**3 + x7**3)
        + 0.7854 * (x4 * x6**2 + x5 * x7**2)
    )


def _speed_reducer_limits(X: Array) -> Array:
    x1, x2, x3, x4, x5, x6, x7 = X.T
    return np.column_stack(
        [
            27 / (x1 * x2**2 * x3) - 1,
            397.5 / (x1 * x2**2 * x3**2) - 1,
            1.93 * x4**3 / (x2 * x3 * x6**4) - 1,
            1.93 * x5**3 / (x2 * x3 * x7**4) - 1,
            np.sqrt((745 * x4 / (x2 * x3)) ** 2 + 16.9e6) / (110 * x6**3) - 1,
            np.sqrt((745 * x5 / (x2 * x3)) ** 2 + 157.5e6) / (85 * x7**3) - 1,
            x2 * x3 / 40 - 1,
            5 * x2 / x1 - 1,
            x1 / (12 * x2) - 1,
            (1.5 * x6 + 1.9) / x4 - 1,
            (1.1 * x7 + 1.9) / x5 - 1,
        ]
    )


SPEED_REDUCER = Problem(
    name="speed_reducer",
    objective=_speed_reducer,
    constraints=_columns(_speed_reducer_limits, 11),
    domain=(
        *_continuous((2.6, 3.6), (0.7, 0.8)),
        {"name": "x3", "type": "discrete", "domain": tuple(range(17, 29))},
        *_continuous((7.3, 8.3), (7.8, 8.3), (2.9, 3.9), (5.0, 5.5), names="x4 x5 x6 x7"),
    ),
    x_opt=(3.500000000035, 0.7, 17.0, 7.3, 7.8, 3.350214666108, 5.286683229776),
    f_opt=2996.3481649967216,
    feasible_fraction=0.00188,
    typical=4330.0,
    kind="engineering",
    reference="Lemonge et al. (2010), Constrained optimization problems in mechanical engineering design using a "
    "real-coded steady-state genetic algorithm, Mecanica Computacional 29, after Golinski (1970)",
)
"""Weight of a gear box with x3 teeth. Some papers let x5 start at 7.3 instead of 7.8; the optimum is then 2994.471."""


# ------------------------------------------------------------------------------------------------------------
# Continuous and categorical
# ------------------------------------------------------------------------------------------------------------

_MIXED_BASE = np.array([0.0, 0.0, 0.125])
_MIXED_CENTRE = np.array([0.75, 0.25, 0.5])
_MIXED_WEIGHT = np.array([0.25, 0.0625, 0.125])
_MIXED_LARGEST = np.array([8.0, 3.0, 8.0])


def _mixed(X: Array) -> Array:
    u, v, n, k = X[:, 0], X[:, 1], X[:, 2], _index(X[:, 3])
    return np.asarray(_MIXED_BASE[k] + (u - _MIXED_CENTRE[k]) ** 2 + (v - n / 8) ** 2 + ((n - 6) / 8) ** 2)


def _mixed_load(X: Array) -> Array:
    u, v, n, k = X[:, 0], X[:, 1], X[:, 2], _index(X[:, 3])
    return np.asarray(u + v + _MIXED_WEIGHT[k] * n - 2)


def _mixed_size(X: Array) -> Array:
    return np.asarray(X[:, 2] - _MIXED_LARGEST[_index(X[:, 3])])


def _index(column: Array) -> npt.NDArray[np.intp]:
    return np.rint(column).astype(np.intp)


MIXED = Problem(
    name="mixed",
    objective=_mixed,
    constraints=(_mixed_load, _mixed_size),
    domain=(
        *_continuous((0.0, 1.0), (0.0, 1.0), names="u v"),
        {"name": "n", "type": "discrete", "domain": tuple(range(1, 9))},
        {"name": "k", "type": "categorical", "domain": (0, 1, 2)},
    ),
    x_opt=(0.625, 0.375, 4.0, 0.0),
    f_opt=0.09375,
    feasible_fraction=0.537,
    typical=0.487,
    kind="mixed",
    reference="this library",
)
"""Two continuous variables, a size n and a kind k. For given n and k the optimum is the projection of the centre of a
paraboloid to a half-plane: with e = centre[k] + n / 8 + weight[k] n - 2 it is base[k] + ((n - 6) / 8)^2, plus e^2 / 2
where e > 0. Kind 1 would be best at n = 6, which it does not allow. The optimum is exact in floating point."""

_OPEN_SLOPE = np.array([0.75, -0.25, 0.0])
_OPEN_BASE = np.array([0.25, 0.0, 0.0])


def _open(X: Array) -> Array:
    x1, x2, k = X[:, 0], X[:, 1], _index(X[:, 2])
    camel = (4 - 2.1 * x1**2 + x1**4 / 3) * x1**2 + x1 * x2 + (4 * x2**2 - 4) * x2**2
    return np.asarray(camel + _OPEN_SLOPE[k] * x1 + _OPEN_BASE[k])


def _open_limit(X: Array) -> Array:
    return np.asarray(X[:, 0] ** 2 + X[:, 1] ** 2 - 6)


OPEN = Problem(
    name="open",
    objective=_open,
    constraints=(_open_limit,),
    domain=(
        *_continuous((-2.0, 2.0), (-1.0, 1.0)),
        {"name": "k", "type": "categorical", "domain": (0, 1, 2)},
    ),
    x_opt=(-1.73914767, 0.797664543, 0.0),
    f_opt=-1.256935515770007,
    feasible_fraction=1.0,
    typical=1.14,
    kind="mixed",
    reference="this library; the six-hump camel function of Dixon, Szego (1978), Towards global optimisation 2, tilted",
)
"""Nothing is infeasible: the constraint is at most -1. Each category tilts the camel's back in another direction."""


# ------------------------------------------------------------------------------------------------------------
# The suite
# ------------------------------------------------------------------------------------------------------------

DEVELOPMENT: tuple[Problem, ...] = (TOY, GARDNER1, TOWNSEND, NEEDLE, HARTMANN6, WELDED_BEAM, PRESSURE_VESSEL, OPEN)
"""Problems on which settings may be chosen."""

HELD_OUT: tuple[Problem, ...] = (GARDNER2, GRAMACY, BRANIN, BIRD, ACKLEY10, SPRING, SPEED_REDUCER, MIXED)
"""Problems that settings are reported on; the settings that they had a part in are named above."""

SUITE: tuple[Problem, ...] = DEVELOPMENT + HELD_OUT

BY_NAME: dict[str, Problem] = {problem.name: problem for problem in SUITE}
