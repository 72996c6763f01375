"""Constrained max-value entropy search for GPyOpt.

Bayesian optimisation of expensive black boxes that can fail in ways nobody can write down in advance.

Conventions, stated once: the objective y is minimised; a constraint value c <= 0 is feasible; a binary label is -1
for a feasible and +1 for an infeasible evaluation. Shapes: n points, d inputs of the model space, K draws of the
constrained optimum y*, J constraints, N observations, R rows of an outcome table.

Names are imported when they are first used, so that ``import cmes_gpyopt`` is quick and leaves GPy, GPyOpt and
matplotlib alone.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .acquisitions import (
        PESC,
        AdaptivePercentile,
        ConstrainedEI,
        ConstrainedMES,
        Decoupled,
        MaxValueEntropySearch,
        RandomSearch,
    )
    from .driver import ConstrainedBayesianOptimization
    from .errors import CMESError, Infeasible
    from .history import load_history
    from .isolation import Limits
    from .models import BinaryConstraint, ConstrainedModel, RealConstraint

__version__ = "0.1.0"

_HOME = {
    "PESC": "acquisitions",
    "AdaptivePercentile": "acquisitions",
    "BinaryConstraint": "models",
    "CMESError": "errors",
    "ConstrainedBayesianOptimization": "driver",
    "ConstrainedEI": "acquisitions",
    "ConstrainedMES": "acquisitions",
    "ConstrainedModel": "models",
    "Decoupled": "acquisitions",
    "Infeasible": "errors",
    "Limits": "isolation",
    "MaxValueEntropySearch": "acquisitions",
    "RandomSearch": "acquisitions",
    "RealConstraint": "models",
    "load_history": "history",
}

__all__ = [
    "PESC",
    "AdaptivePercentile",
    "BinaryConstraint",
    "CMESError",
    "ConstrainedBayesianOptimization",
    "ConstrainedEI",
    "ConstrainedMES",
    "ConstrainedModel",
    "Decoupled",
    "Infeasible",
    "Limits",
    "MaxValueEntropySearch",
    "RandomSearch",
    "RealConstraint",
    "load_history",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
