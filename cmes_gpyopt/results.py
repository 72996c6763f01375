"""What an optimisation found."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from . import spaces
from ._gpyopt import Design_space
from .errors import CMESError
from .models import ConstrainedModel

Array = npt.NDArray[np.float64]

NUM_CANDIDATES = 2048
ROUNDS = 4
Z_95 = 1.959963984540054


def named(space: Design_space, x: Array) -> dict[str, Any]:
    """A point (d,) of the objective space by the names of its variables, categories as they stand in the domain."""
    values: dict[str, Any] = {}
    position = 0
    for variable in space.space_expanded:
        if variable.type == "bandit":
            size = variable.dimensionality_in_model
            values[variable.name] = tuple(float(v) for v in x[position : position + size])
            position += size
            continue
        value = x[position]
        if variable.type == "categorical":
            values[variable.name] = variable.domain[int(value)]
        elif variable.type == "discrete":
            allowed = list(variable.domain)
            values[variable.name] = allowed[int(np.argmin(np.abs(np.array(allowed, dtype=float) - value)))]
        else:
            values[variable.name] = float(value)
        position += 1
    return values


def _settings(variables: dict[str, Any]) -> str:
    return ", ".join(f"{k}={v:.6g}" if isinstance(v, float) else f"{k}={v!r}" for k, v in variables.items())


@dataclass(frozen=True)
class Recommendation:
    """The point the models recommend."""

    x: Array = field(repr=False)
    """(d,), objective space"""
    variables: dict[str, Any]
    """the same by name"""
    mean: float
    """posterior mean of the objective"""
    interval: tuple[float, float]
    """in which the objective lies with probability 0.95"""
    probability: float
    """that all constraints hold"""
    confident: bool
    """whether that probability reaches what was asked for; where no point does, the safest one is recommended"""

    def __str__(self) -> str:
        low, high = self.interval
        text = f"{_settings(self.variables)}: {self.mean:.6g} [{low:.6g}, {high:.6g}]"
        text = f"{text}, feasible with probability {self.probability:.3g}"
        return text if self.confident else f"{text} (no point is as safe as was asked for; this is the safest)"


@dataclass(frozen=True)
class Result:
    """What a run has found so far."""

    x_opt: Array | None = field(repr=False)
    """(d,), best feasible evaluation in the objective space; None where there is none"""
    fx_opt: float | None
    """its value"""
    variables: dict[str, Any] | None
    """the same point by name"""
    evaluations: int
    infeasible: int
    """evaluations that were not observed to be feasible"""
    reason: str
    """why the run ended"""

    def __str__(self) -> str:
        best = "no feasible evaluation yet"
        if self.variables is not None:
            best = f"best feasible value {self.fx_opt:.6g} at {_settings(self.variables)}"
        return f"{best}; {self.evaluations} evaluations, {self.infeasible} infeasible; {self.reason}"


def recommend(model: ConstrainedModel, confidence: float, rng: np.random.Generator) -> Recommendation:
    """The point with the lowest posterior mean among those whose probability of feasibility is at least ``confidence``.

    Evaluated points, a Sobol set and clouds that close in on the best point found are compared. Where none is safe enough
    the safest one is returned.
    """
    if isinstance(confidence, bool) or not isinstance(confidence, int | float) or not 0 <= confidence < 1:
        raise CMESError(f"confidence must be a number in [0, 1), got {confidence!r}")
    if model.data is None or len(model.data.X) == 0:
        raise CMESError("there is nothing to recommend before the first evaluation; run the optimisation first")
    space = model.space
    whole = spaces.all_points(space, 4 * NUM_CANDIDATES)
    X = model.data.X
    X = np.vstack([X, spaces.sobol_points(space, NUM_CANDIDATES, rng, fallback=X) if whole is None else whole])
    best = _best(model, X, confidence)
    for _ in range(0 if whole is not None else ROUNDS):
        best = _best(model, np.vstack([best, spaces.clouds(space, best, rng)]), confidence)
    mean, std = (float(a.item()) for a in model.predict(best))
    probability = float(model.probability_feasible(best).item())
    x = spaces.to_objective(space, best)[0]
    interval = (mean - Z_95 * std, mean + Z_95 * std)
    return Recommendation(x, named(space, x), mean, interval, probability, probability >= confidence)


def _best(model: ConstrainedModel, X: Array, confidence: float) -> Array:
    probability = model.probability_feasible(X)
    safe = probability >= confidence
    if not safe.any():
        return X[[np.argmax(probability)]]
    return X[safe][[np.argmin(model.predict(X[safe])[0])]]
