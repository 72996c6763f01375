"""Checks of single arguments at the public boundary, each with the sentence it deserves."""

from typing import Any

import numpy as np

from .errors import CMESError


def one_of(name: str, value: Any, allowed: tuple[Any, ...]) -> Any:
    """``value``, if it is among ``allowed``."""
    if value not in allowed:
        raise CMESError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}")
    return value


def number(name: str, value: Any) -> float:
    """``value`` as a float, if it is a number and not nan."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or np.isnan(value):
        raise CMESError(f"{name} must be a number, got {value!r}")
    return float(value)


def whole_number(name: str, value: Any, least: int) -> int:
    """``value`` as an int, if it is an integer of at least ``least``, which is 0 or 1."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise CMESError(f"{name} must be a {'positive' if least else 'non-negative'} integer, got {value!r}")
    return int(value)
