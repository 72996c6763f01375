"""What a benchmark can compare: the methods of this library with any options, Sobol search, and the peers."""

import ast
import inspect
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from .. import spaces
from ..acquisitions import METHODS
from ..driver import ConstrainedBayesianOptimization
from ..errors import CMESError
from ..models import BinaryConstraint, RealConstraint
from ..problems import Problem
from .peers import PEERS, Peer

Array = npt.NDArray[np.float64]
Feedback = Literal["binary", "real"]

ALIASES: dict[str, tuple[str, dict[str, Any]]] = {"paper": ("cmes", {"preset": "paper"})}
"""Names that stand for a method with options."""

SOBOL_STREAM = 31
SOBOL_POINTS = 1024


class Optimiser(Protocol):
    """Makes suggestions for one run."""

    @property
    def settings(self) -> dict[str, Any]:
        """What is needed to know which configuration ran."""

    def tell(self, x: Array, y: float, c: Array) -> None:
        """Take over an evaluation at x (1, d); y is inf where it was not observed, c (J,) labels -1, +1 or values."""

    def suggest(self) -> Array:
        """The next point (1, d)."""


@dataclass(frozen=True)
class Method:
    """A method as it was asked for on the command line."""

    label: str
    name: str
    options: dict[str, Any] = field(default_factory=dict, hash=False)

    def build(self, problem: Problem, feedback: Feedback, seed: int, initial: int) -> Optimiser:
        """An optimiser for one run, which will first be told ``initial`` points."""
        if self.name in METHODS:
            return Ours(self.name, self.options, problem, feedback, seed)
        if self.options:
            raise CMESError(f"{self.name} takes no options here, got {self.label!r}")
        if self.name == "sobol":
            return SobolSearch(problem, seed)
        peer: type[Peer] = PEERS[self.name]
        return peer(problem, feedback, seed, initial)


def parse_methods(text: str) -> list[Method]:
    """Methods from a text such as "cmes,cmes:estimator=kl,confidence=0.9,random"."""
    labels: list[str] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        if "=" in part and ":" not in part and labels and ":" in labels[-1]:
            labels[-1] += "," + part
        else:
            labels.append(part)
    methods = [_method(label) for label in labels]
    if not methods:
        raise CMESError("--methods names no method")
    if len(set(labels)) < len(labels):
        raise CMESError(f"--methods names a method twice: {text!r}")
    return methods


def _method(label: str) -> Method:
    name, _, rest = label.partition(":")
    options = {}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            raise CMESError(f"options of a method are written name:key=value,key=value, got {label!r}")
        options[key] = _value(value)
    name, implied = ALIASES.get(name, (name, {}))
    known = [*METHODS, *ALIASES, "sobol", *PEERS]
    if name not in known:
        raise CMESError(f"unknown method {name!r}; expected one of {', '.join(known)}")
    return Method(label, name, {**implied, **options})


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        pass
    try:
        return float(text)  # inf
    except ValueError:
        return text


class Ours:
    """A method of this library. Options of the constraint models, such as ``link``, go to these."""

    def __init__(self, name: str, options: dict[str, Any], problem: Problem, feedback: Feedback, seed: int) -> None:
        kind = BinaryConstraint if feedback == "binary" else RealConstraint
        known = inspect.signature(kind.__init__).parameters
        of_model = {key: value for key, value in options.items() if key in known}
        of_method = {key: value for key, value in options.items() if key not in known}
        count = 1 if feedback == "binary" else len(problem.constraints)
        try:
            self.bo = ConstrainedBayesianOptimization(
                None,
                list(problem.domain),
                feedback=[kind(f"c{j}", **of_model) for j in range(1, count + 1)],
                acquisition=name,
                X=np.empty((0, problem.dimension)),
                seed=seed,
                acquisition_options=of_method,
            )
        except TypeError as error:
            raise CMESError(f"{name} does not take these options: {error}") from error
        self.settings = {**_settings(self.bo.acquisition), **of_model}

    def tell(self, x: Array, y: float, c: Array) -> None:
        """Take over an evaluation."""
        self.bo.tell(x, np.array([y]), c[None, :])

    def suggest(self) -> Array:
        """The next point."""
        return self.bo.suggest_next_locations()


def _settings(acquisition: Any) -> dict[str, Any]:
    """Arguments of the constructor that are numbers, strings or None, as the acquisition holds them."""
    names = [name for name in inspect.signature(type(acquisition).__init__).parameters if name != "seed"]
    values = {name: getattr(acquisition, name, ...) for name in names}
    return {name: value for name, value in values.items() if value is None or isinstance(value, int | float | str)}


class SobolSearch:
    """Scrambled Sobol points, whatever is observed."""

    settings: dict[str, Any] = {}  # noqa: RUF012 - never written to

    def __init__(self, problem: Problem, seed: int) -> None:
        space = spaces.checked_space(list(problem.domain))
        points = spaces.sobol_points(space, SOBOL_POINTS, np.random.default_rng([seed, SOBOL_STREAM]))
        self._points = spaces.to_objective(space, points)
        self._made = 0

    def tell(self, x: Array, y: float, c: Array) -> None:
        """Learn nothing."""

    def suggest(self) -> Array:
        """The next point."""
        self._made += 1
        return self._points[self._made - 1 : self._made]
