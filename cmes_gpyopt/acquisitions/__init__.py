"""Acquisition functions for GPyOpt."""

from .base import ConstrainedAcquisition
from .baselines import AdaptivePercentile, ConstrainedEI, MaxValueEntropySearch, RandomSearch
from .cmes import ConstrainedMES
from .decoupled import Decoupled, Suggestion

METHODS: dict[str, type[ConstrainedAcquisition]] = {
    "cmes": ConstrainedMES,
    "cei": ConstrainedEI,
    "ap": AdaptivePercentile,
    "mes": MaxValueEntropySearch,
    "random": RandomSearch,
}
"""Every method by name."""

__all__ = [
    "METHODS",
    "AdaptivePercentile",
    "ConstrainedAcquisition",
    "ConstrainedEI",
    "ConstrainedMES",
    "Decoupled",
    "MaxValueEntropySearch",
    "RandomSearch",
    "Suggestion",
]
