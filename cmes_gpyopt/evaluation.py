"""What an objective function may return, and what it means."""

import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import CMESError, Infeasible
from .models import Constraint

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Evaluation:
    """One evaluation: the objective and the constraints as the model takes them, and why it failed if it did."""

    y: float
    """nan where the objective was not observed"""
    c: Array
    """(J,): -1 or +1 for a binary constraint, value minus ``upper`` for a real one, nan where not observed"""
    cause: str = ""

    @property
    def feasible(self) -> bool:
        """Whether every constraint was observed to hold."""
        return bool((self.c <= 0).all())


def interpret(returned: Any, constraints: Sequence[Constraint]) -> Evaluation:
    """Read what f returned: y, (y, c) or (y, {name: c}).

    y is a number, or inf or nan where it was not observed. c is a number for one constraint, a sequence of one number for
    each, or a mapping from names; nan where it was not observed. With a single binary constraint c may be left out: the
    evaluation was then feasible where y is finite.

    Raises
    ------
    CMESError
        If the value has another form.
    """
    y, c = returned if isinstance(returned, tuple) and len(returned) == 2 else (returned, None)
    value = _number("the objective value", y)
    if np.isneginf(value):
        raise CMESError("f returned -inf; return a finite value, or inf or nan where the evaluation failed")
    y = value if np.isfinite(value) else np.nan
    if c is None:
        return Evaluation(
            y, _labels_from_objective(value, constraints), "" if np.isfinite(value) else f"returned {value}"
        )
    return Evaluation(y, _constraint_values(c, constraints))


def failed(failure: Infeasible, constraints: Sequence[Constraint]) -> Evaluation:
    """What is learned from an evaluation that raised :class:`Infeasible`.

    A failure that names no constraint counts for the first binary one; with real constraints alone it teaches nothing.
    """
    c = np.full(len(constraints), np.nan)
    binary = [j for j, constraint in enumerate(constraints) if constraint.binary]
    if failure.constraint is not None:
        names = [constraint.name for constraint in constraints]
        if failure.constraint not in names or not constraints[names.index(failure.constraint)].binary:
            raise CMESError(
                f"Infeasible names the constraint {failure.constraint!r}; the binary constraints are "
                f"{[names[j] for j in binary]}"
            )
        binary = [names.index(failure.constraint)]
    c[binary[:1]] = 1.0
    return Evaluation(np.nan, c, str(failure) or "infeasible")


def _labels_from_objective(value: float, constraints: Sequence[Constraint]) -> Array:
    if not constraints:
        if np.isfinite(value):
            return np.empty(0)
        raise CMESError(f"f returned {value}, but nothing was said to fail; pass feedback='binary'")
    if len(constraints) > 1 or not constraints[0].binary:
        names = [constraint.name for constraint in constraints]
        raise CMESError(f"f returned an objective value alone; return (y, c) with c for the constraints {names}")
    return np.array([-1.0 if np.isfinite(value) else 1.0])


def _constraint_values(c: Any, constraints: Sequence[Constraint]) -> Array:
    names = [constraint.name for constraint in constraints]
    if isinstance(c, Mapping):
        unknown = [key for key in c if key not in names]
        if unknown:
            raise CMESError(f"f returned a value for {unknown[0]!r}, which is not among the constraints {names}")
        values = [c.get(name, np.nan) for name in names]
    elif np.ndim(c) == 0:
        values = [c]
    else:
        values = list(np.ravel(np.asarray(c, dtype=object)))
    if len(values) != len(constraints):
        raise CMESError(f"f returned {len(values)} constraint values for the {len(constraints)} constraints {names}")
    return np.array([_one_constraint(v, k) for v, k in zip(values, constraints, strict=True)])


def _one_constraint(value: Any, constraint: Constraint) -> float:
    number = _number(f"the value of {constraint.name!r}", value)
    if np.isnan(number):
        return number
    if constraint.binary:
        if number not in (-1.0, 1.0):
            raise CMESError(
                f"the label of {constraint.name!r} must be -1 (feasible) or +1 (infeasible), got {value!r}; "
                "use a RealConstraint for measured values"
            )
        return number
    if np.isinf(number):
        raise CMESError(
            f"the value of {constraint.name!r} must be finite, or nan where it was not measured, got {value!r}"
        )
    return number - constraint.upper  # type: ignore[union-attr]


def _number(what: str, value: Any) -> float:
    """A real number from a scalar or an array with one element."""
    array = np.asarray(value)
    if array.size != 1:
        raise CMESError(f"{what} must be one number, got {type(value).__name__} of shape {array.shape}")
    item = array.reshape(()).item()
    if isinstance(item, bool) or not isinstance(item, numbers.Real):
        raise CMESError(f"{what} must be a real number, got {item!r}")
    return float(item)
