"""The only door to GPy and GPyOpt.

Importing GPyOpt 1.2.6 silences every warning of the process and fails where matplotlib is missing. Both are
undone here: the caller's warning filters are restored, and without matplotlib its two plotting modules receive
stand-ins that explain what to install when a plot is asked for.
"""

import importlib.util
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn


class _PlottingStandIn(types.ModuleType):
    """A module whose every attribute raises a helpful ImportError when called."""

    def __getattr__(self, name: str) -> Callable[..., NoReturn]:
        if name.startswith("__"):
            raise AttributeError(name)

        def needs_matplotlib(*args: Any, **kwargs: Any) -> NoReturn:
            raise ImportError("plots need matplotlib: install it with pip install 'cmes_gpyopt[plot]'")

        return needs_matplotlib


@contextmanager
def _quiet_import() -> Iterator[None]:
    names = ["matplotlib", "matplotlib.pyplot", "pylab"]
    missing = importlib.util.find_spec("matplotlib") is None
    if missing:
        sys.modules.update({name: _PlottingStandIn(name) for name in names})
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        if missing:
            for name in names:
                sys.modules.pop(name, None)


with _quiet_import():
    import GPy
    import GPyOpt
    from GPy.inference.latent_function_inference import EP
    from GPyOpt.acquisitions.base import AcquisitionBase
    from GPyOpt.core.task.space import Design_space
    from GPyOpt.methods import BayesianOptimization
    from GPyOpt.models.base import BOModel
    from GPyOpt.optimization.acquisition_optimizer import AcquisitionOptimizer, ContextManager

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
