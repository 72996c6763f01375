"""Acquisition functions for GPyOpt."""

from .base import ConstrainedAcquisition
from .baselines import AdaptivePercentile, ConstrainedEI, MaxValueEntropySearch, RandomSearch
from .cmes import ConstrainedMES
from .decoupled import Decoupled, Suggestion
from .pesc import PESC

METHODS: dict[str, type[ConstrainedAcquisition]] = {
    "cmes": ConstrainedMES,
    "cei": ConstrainedEI,
    "ap": AdaptivePercentile,
    "mes": MaxValueEntropySearch,
    "pesc": PESC,
    "random": RandomSearch,
}
"""Every method by name."""

__all__ = [
    "METHODS",
    "PESC",
    "AdaptivePercentile",
    "ConstrainedAcquisition",
    "ConstrainedEI",
    "ConstrainedMES",
    "Decoupled",
    "MaxValueEntropySearch",
    "RandomSearch",
    "Suggestion",
]
