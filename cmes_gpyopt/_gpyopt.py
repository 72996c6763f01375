"""The only door to GPy and GPyOpt.

Importing GPyOpt 1.2.6 silences every warning of the process and fails where matplotlib is missing. Both are
undone here: the caller's warning filters are restored, and without matplotlib its two plotting modules receive
stand-ins that explain what to install when a plot is asked for. Its loop names ``numpy.linalg.linalg``, which NumPy 2
deprecates and then drops, whenever an update of the model raises: inside that one module the name is given back, so that the
user sees the error that was raised.
"""

import importlib.util
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import numpy as np


class _PlottingStandIn(types.ModuleType):
    """A module whose every attribute raises a helpful ImportError when called."""

    def __getattr__(self, name: str) -> Callable[..., NoReturn]:
        if name.startswith("__"):
            raise AttributeError(name)

        def needs_matplotlib(*args: Any, **kwargs: Any) -> NoReturn:
            raise ImportError("plots need matplotlib: install it with pip install 'cmes_gpyopt[plot]'")

        return needs_matplotlib


@contextmanager
def _plotting_modules() -> Iterator[None]:
    """Let GPyOpt import its plotting modules where matplotlib is missing."""
    if importlib.util.find_spec("matplotlib") is not None:
        yield
        return
    stand_ins = {name: _PlottingStandIn(name) for name in ("matplotlib", "matplotlib.pyplot", "pylab")}
    setattr(stand_ins["matplotlib"], "pyplot", stand_ins["matplotlib.pyplot"])  # noqa: B010 - as an import would
    sys.modules.update(stand_ins)
    try:
        yield
    finally:
        for name in stand_ins:
            del sys.modules[name]


with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import GPy  # before GPyOpt: it notices by itself that matplotlib is missing

    with _plotting_modules():
        import GPyOpt
        import GPyOpt.core.bo
    from GPy.inference.latent_function_inference import EP
    from GPyOpt.acquisitions.base import AcquisitionBase
    from GPyOpt.core.task.space import Design_space
    from GPyOpt.methods import BayesianOptimization
    from GPyOpt.models.base import BOModel
    from GPyOpt.optimization.acquisition_optimizer import AcquisitionOptimizer, ContextManager


class _NumpyWithLinalg(types.ModuleType):
    """NumPy as GPyOpt's loop knows it."""

    linalg = types.SimpleNamespace(linalg=np.linalg)

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)


GPyOpt.core.bo.np = _NumpyWithLinalg("numpy")

__all__ = [
    "EP",
    "AcquisitionBase",
    "AcquisitionOptimizer",
    "BOModel",
    "BayesianOptimization",
    "ContextManager",
    "Design_space",
    "GPy",
    "GPyOpt",
]
