"""Vectorised geometry of a GPyOpt ``Design_space``.

Two coordinate systems appear, as in GPyOpt: the *objective* space, in which the user's function is called
(a categorical variable is its index), and the *model* space, in which the models live (a categorical variable is
one-hot encoded). Every function here takes and returns model-space points of shape (n, d), unless it says otherwise.
"""

import contextlib
import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import qmc

from ._gpyopt import Design_space
from .errors import CMESError

Array = npt.NDArray[np.float64]

# Sobol points are drawn in rounds of the requested size until the known constraints have let enough through.
MAX_ROUNDS = 64


_KEYS = {"name", "type", "domain", "dimensionality"}
_TYPES = ("continuous", "discrete", "categorical", "bandit")


def checked_space(domain: Any, constraints: Any = None) -> Design_space:
    """The Design_space of a GPyOpt domain, after mistakes that GPyOpt would meet much later have been pointed out."""
    if not isinstance(domain, list | tuple) or not domain or not all(isinstance(v, dict) for v in domain):
        raise CMESError(f"domain must be a list with a dict for each variable, as in GPyOpt, got {domain!r}")
    for number, variable in enumerate(domain):
        _check_variable(variable, variable.get("name", f"var_{number}"))
    names = [v.get("name", f"var_{i}") for i, v in enumerate(domain)]
    if len(set(names)) < len(names):
        raise CMESError(f"variables need different names, got {names}")
    bandits = [v.get("type") == "bandit" for v in domain]
    if any(bandits) and len(domain) > 1:
        raise CMESError("a bandit variable cannot be combined with other variables; list all its arms in one variable")
    space = Design_space(list(domain), _checked_constraints(constraints))
    if space.has_constraints():
        _try_constraints(space)
    return space


def _check_variable(variable: dict[str, Any], name: Any) -> None:
    if not isinstance(name, str):
        raise CMESError(f"the name of a variable must be a string, got {name!r}")
    unknown = sorted(map(str, set(variable) - _KEYS))
    if unknown:
        raise CMESError(f"variable {name!r} has the unknown key {unknown[0]!r}; expected {sorted(_KEYS)}")
    kind = variable.get("type", "continuous")
    if kind not in _TYPES:
        raise CMESError(f"variable {name!r} has the unknown type {kind!r}; expected one of {list(_TYPES)}")
    if "domain" not in variable:
        raise CMESError(f"variable {name!r} has no domain; add 'domain': (low, high), or the list of its values")
    size = variable.get("dimensionality", 1)
    if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 1:
        raise CMESError(f"the dimensionality of variable {name!r} must be a positive integer, got {size!r}")
    values = variable["domain"]
    if kind == "categorical":
        good = isinstance(values, list | tuple | np.ndarray) and len(values) > 0
    else:
        try:
            numbers = np.asarray(values, dtype=float)
        except (TypeError, ValueError):
            numbers = np.empty(0)
        good = numbers.size > 0 and bool(np.isfinite(numbers).all())
        good &= numbers.ndim == (2 if kind == "bandit" else 1)
        good &= kind != "bandit" or isinstance(values, np.ndarray)
        good &= kind != "continuous" or (numbers.shape == (2,) and bool(numbers[0] < numbers[1]))
    if not good:
        wanted = {
            "continuous": "a pair of finite numbers (low, high) with low < high",
            "discrete": "a non-empty list of finite numbers",
            "categorical": "a non-empty list of values",
            "bandit": "a two-dimensional array of finite numbers, one arm a row",
        }[kind]
        raise CMESError(f"the domain of the {kind} variable {name!r} must be {wanted}, got {values!r}")


def _checked_constraints(constraints: Any) -> Any:
    if constraints is None:
        return None
    if not isinstance(constraints, list | tuple) or not all(isinstance(c, dict) for c in constraints):
        raise CMESError(
            f"constraints must be a list of dicts such as {{'name': 'c', 'constraint': 'x[:,0] - 1'}}, got {constraints!r}; "
            "these are GPyOpt's known constraints, unknown ones go to feedback="
        )
    for constraint in constraints:
        if not isinstance(constraint.get("constraint", constraint.get("constrain")), str):
            raise CMESError(f"a known constraint needs an expression under the key 'constraint', got {constraint!r}")
    return [dict(constraint) for constraint in constraints] or None


def _try_constraints(space: Design_space) -> None:
    """Evaluate the known constraints once, so that a mistake in an expression shows now."""
    corner = from_unit(space, np.full((1, len(space.space_expanded)), 0.5))
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            inside(space, corner)
    except Exception as error:
        raise CMESError(
            f"a known constraint cannot be evaluated ({type(error).__name__}: {error}); expressions use x[:,0], x[:,1], ..."
        ) from error


def _variables(space: Design_space) -> Iterator[tuple[Any, slice]]:
    """Each one-dimensional variable (or bandit) of ``space`` with its columns in the model space."""
    start = 0
    for variable in space.space_expanded:
        stop = start + variable.dimensionality_in_model
        yield variable, slice(start, stop)
        start = stop


def box(space: Design_space) -> tuple[Array, Array]:
    """Lower bounds and positive widths of the model space, each (d,)."""
    bounds = np.asarray(space.get_bounds(), dtype=float)
    width = bounds[:, 1] - bounds[:, 0]
    return bounds[:, 0], np.where(width > 0, width, 1.0)


def is_finite(space: Design_space) -> bool:
    """Whether the space has finitely many points."""
    return all(variable.type != "continuous" for variable in space.space_expanded)


def continuous_columns(space: Design_space) -> npt.NDArray[np.bool_]:
    """Which coordinates of the model space are continuous, (d,)."""
    found = np.zeros(space.model_dimensionality, dtype=bool)
    for variable, where in _variables(space):
        found[where] = variable.type == "continuous"
    return found


def objective_dimension(space: Design_space) -> int:
    """Number of columns of an objective-space point."""
    return sum(1 if v.type != "bandit" else v.dimensionality_in_model for v in space.space_expanded)


def to_objective(space: Design_space, X: Array) -> Array:
    """Objective-space form of rounded model-space points."""
    columns = []
    for variable, where in _variables(space):
        block = X[:, where]
        columns.append(block.argmax(axis=1)[:, None] if variable.type == "categorical" else block)
    return np.hstack(columns).astype(float)


def to_model(space: Design_space, X: Array) -> Array:
    """Model-space form of objective-space points."""
    return np.asarray(space.unzip_inputs(np.atleast_2d(X)), dtype=float)


def inside(space: Design_space, X: Array) -> npt.NDArray[np.bool_]:
    """Whether each point satisfies the known constraints of the space, (n,)."""
    if not space.has_constraints():
        return np.ones(len(X), dtype=bool)
    return np.asarray(space.indicator_constraints(to_objective(space, X)) > 0).ravel()


def round_points(space: Design_space, X: Array) -> Array:
    """Nearest allowed points: bounds clipped, discrete values snapped, the largest one-hot entry kept."""
    rounded = np.array(X, dtype=float)
    for variable, where in _variables(space):
        block = rounded[:, where]
        if variable.type == "continuous":
            block[:] = np.clip(block, *variable.domain)
        elif variable.type == "categorical":
            block[:] = np.eye(block.shape[1])[block.argmax(axis=1)]
        else:
            allowed = np.asarray(variable.domain, dtype=float).reshape(-1, block.shape[1])
            distance = ((block[:, None, :] - allowed) ** 2).sum(axis=2)
            block[:] = allowed[distance.argmin(axis=1)]
    return rounded


def from_unit(space: Design_space, U: Array) -> Array:
    """Map points of the unit cube, one column for each variable, to allowed model-space points."""
    columns = []
    for (variable, where), u in zip(_variables(space), U.T, strict=True):
        if variable.type == "continuous":
            low, high = variable.domain
            columns.append((low + (high - low) * u)[:, None])
            continue
        if variable.type == "categorical":
            allowed = np.eye(where.stop - where.start)
        else:
            allowed = np.asarray(variable.domain, dtype=float).reshape(-1, where.stop - where.start)
        columns.append(allowed[np.minimum((u * len(allowed)).astype(int), len(allowed) - 1)])
    return np.hstack(columns)


def clouds(space: Design_space, centres: Array, rng: np.random.Generator) -> Array:
    """Gaussian clouds of four sizes around each centre (p, d), rounded, inside the known constraints."""
    _, width = box(space)
    scales = np.repeat([0.1, 0.03, 0.01, 0.003], 8)[:, None] * width
    points = centres[:, None, :] + scales * rng.standard_normal((len(centres), len(scales), centres.shape[1]))
    points = round_points(space, points.reshape(-1, centres.shape[1]))
    return points[inside(space, points)]


def sobol_points(space: Design_space, count: int, rng: np.random.Generator, *, fallback: Array | None = None) -> Array:
    """Scrambled Sobol points that satisfy the known constraints; distinct where the space is finite.

    Parameters
    ----------
    fallback : array of shape (p, d), optional
        Points to return where the known constraints leave so small a region that no Sobol point hits it.

    Returns
    -------
    array of shape (m, d), m = ``count`` unless a finite space has fewer points.
    """
    engine = qmc.Sobol(len(space.space_expanded), scramble=True, rng=rng)
    exponent = max(int(np.ceil(np.log2(max(count, 2)))), 1)
    kept = np.empty((0, space.model_dimensionality))
    for _ in range(MAX_ROUNDS):
        X = from_unit(space, engine.random(2**exponent))
        kept = np.vstack([kept, X[inside(space, X)]])
        if is_finite(space):
            kept = distinct(kept)
        if len(kept) >= count or not space.has_constraints():
            break
    if len(kept) == 0 and fallback is not None and len(fallback):
        return fallback
    if len(kept) == 0:
        raise CMESError(
            f"none of {MAX_ROUNDS * 2**exponent} Sobol points satisfies the known constraints; check their sign (GPyOpt "
            "keeps points where the expression is <= 0), or tighten the bounds around a very small region"
        )
    return kept[:count]


def random_points(space: Design_space, count: int, rng: np.random.Generator) -> Array:
    """Independent uniform points that satisfy the known constraints, (count, d)."""
    kept = np.empty((0, space.model_dimensionality))
    for _ in range(10_000):
        X = from_unit(space, rng.random((max(count, 16), len(space.space_expanded))))
        kept = np.vstack([kept, X[inside(space, X)]])
        if len(kept) >= count:
            return kept[:count]
    raise CMESError(
        f"only {len(kept)} of {count} random points satisfy the known constraints; "
        "check their sign (GPyOpt keeps points where the expression is <= 0)"
    )


def all_points(space: Design_space, limit: int) -> Array | None:
    """Every point of a finite space that satisfies the known constraints, or None beyond ``limit`` of them."""
    if not is_finite(space):
        return None
    choices = []
    for variable, where in _variables(space):
        size = where.stop - where.start
        categorical = variable.type == "categorical"
        choices.append(np.eye(size) if categorical else np.asarray(variable.domain, float).reshape(-1, size))
    if np.prod([float(len(c)) for c in choices]) > limit:
        return None
    index = np.indices([len(c) for c in choices]).reshape(len(choices), -1)
    X = distinct(np.hstack([c[i] for c, i in zip(choices, index, strict=True)]))
    return X[inside(space, X)]


def distinct(X: Array) -> Array:
    """Rows of X without repeats, in order of first appearance."""
    _, first = np.unique(X, axis=0, return_index=True)
    return X[np.sort(first)]


def is_row_of(X: Array, others: Array) -> npt.NDArray[np.bool_]:
    """Whether each row of X equals some row of ``others``, (n,)."""
    if len(others) == 0:
        return np.zeros(len(X), dtype=bool)
    known = {row.tobytes() for row in np.ascontiguousarray(others + 0.0)}  # + 0.0 turns -0.0 into 0.0
    return np.array([row.tobytes() in known for row in np.ascontiguousarray(X + 0.0)], dtype=bool)


def row_numbers(X: Array, others: Array) -> npt.NDArray[np.int_]:
    """The number of the row of ``others`` that equals each row of X, (n,)."""
    if len(X) == 0:
        return np.empty(0, dtype=int)
    numbers = {row.tobytes(): i for i, row in enumerate(np.ascontiguousarray(others + 0.0))}
    return np.array([numbers[row.tobytes()] for row in np.ascontiguousarray(X + 0.0)], dtype=int)
