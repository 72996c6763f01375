"""Gaussian-process models of the objective and the constraints."""

from .constrained import ConstrainedModel, Data, constraints_from
from .draws import JointDraws
from .latent import BinaryConstraint, Constraint, RealConstraint, Regression
from .paths import SamplePaths
from .posterior import LatentPosterior, Matern52, Moments

__all__ = [
    "BinaryConstraint",
    "ConstrainedModel",
    "Constraint",
    "Data",
    "JointDraws",
    "LatentPosterior",
    "Matern52",
    "Moments",
    "RealConstraint",
    "Regression",
    "SamplePaths",
    "constraints_from",
]
