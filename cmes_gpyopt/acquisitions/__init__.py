"""Acquisition functions for GPyOpt."""

from .base import ConstrainedAcquisition
from .cmes import ConstrainedMES

__all__ = ["ConstrainedAcquisition", "ConstrainedMES"]
