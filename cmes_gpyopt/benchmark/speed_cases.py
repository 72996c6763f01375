"""What the speed benchmark times: one suggestion of this library or of a peer, from the same observations.

The problem is synthetic and smooth, on the unit cube: Sobol points, an objective that is a sum of sines, and a constraint
that half of the cube violates. With binary feedback the label -1 or +1 of the constraint is seen, and the objective only
where the constraint holds; with real feedback both are measured everywhere.

BoTorch and Optuna take hidden values as the adaptors in ``peers`` say. A library that needs a value at every point, or
knows no constraints, is given the largest one seen, so that all of them model n points. Settings are the defaults of each
library; BoTorch, which has none for the search, uses those of its tutorials. Every suggestion is one of a run: ours is the
mean of ten in a row, GPyOpt's and Emukit's objects know all observations but the last, and BoTorch and Optuna keep nothing
from one suggestion to the next. Written for BoTorch 0.18, Optuna 5.0,
Emukit 0.5, GPyOpt 1.2.6.
"""

import importlib
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.stats import qmc

from .._gpyopt import BayesianOptimization, GPy
from ..driver import ConstrainedBayesianOptimization
from ..problems import Domain, Problem
from . import peers
from .speed_timing import Thunk

Array = npt.NDArray[np.float64]

PARTS = ("model fit", "y* sampling", "acquisition optimisation", "everything else")
"""The parts of a suggestion."""

RUN = 10
"""Suggestions in a row that are timed together."""


@dataclass(frozen=True)
class Setting:
    """A size of the problem."""

    n: int
    """observations"""
    d: int
    """variables"""
    m: int
    """points over which y* is sought"""
    feedback: str = "binary"


class Observations(NamedTuple):
    """What has been seen of the problem."""

    X: Array
    """(n, d)"""
    Y: Array
    """(n,), inf where hidden"""
    C: Array
    """(n,), labels or values"""

    @property
    def filled(self) -> Array:
        """Y (n,) with the largest value seen where it is hidden."""
        seen = np.isfinite(self.Y)
        return np.where(seen, self.Y, self.Y[seen].max(initial=-np.inf) if seen.any() else 0.0)


def objective(X: Array) -> Array:
    """Objective (n,) at points X (n, d)."""
    d = X.shape[1]
    return np.asarray(np.sin(3.0 * X + np.arange(d)).sum(axis=1) / np.sqrt(d))


def constraint(X: Array) -> Array:
    """Constraint (n,) at points X (n, d), feasible where <= 0; it changes its sign with x -> 1 - x."""
    return np.asarray(np.cos(np.pi * X).sum(axis=1) / np.sqrt(X.shape[1]))


def observations(setting: Setting, repeat: int) -> Observations:
    """Observations for a repeat; every repeat has points of its own."""
    X = sobol(setting.n, setting.d, repeat)
    Y, c = objective(X), constraint(X)
    if setting.feedback == "real":
        return Observations(X, Y, c)
    return Observations(X, np.where(c <= 0, Y, np.inf), np.where(c <= 0, -1.0, 1.0))


def sobol(count: int, d: int, seed: int) -> Array:
    """Scrambled Sobol points on the unit cube, (count, d)."""
    exponent = max(int(np.ceil(np.log2(count))), 0)
    return np.asarray(qmc.Sobol(d, rng=np.random.default_rng(seed)).random_base2(exponent)[:count])


def domain(d: int) -> Domain:
    """The unit cube as a GPyOpt domain."""
    return tuple({"name": f"x{j}", "type": "continuous", "domain": (0.0, 1.0)} for j in range(d))


# ------------------------------------------------------------------------------------------------------------
# This library
# ------------------------------------------------------------------------------------------------------------


def told(setting: Setting, repeat: int, seen: Observations | None = None) -> Any:
    """A new optimiser that has been told the observations, n of those given, and has fitted nothing yet."""
    seen = observations(setting, repeat) if seen is None else Observations(*(part[: setting.n] for part in seen))
    bo = ConstrainedBayesianOptimization(
        None,
        list(domain(setting.d)),
        feedback=setting.feedback,
        X=np.empty((0, setting.d)),
        seed=repeat,
        acquisition_options={"grid_size": setting.m},
    )
    bo.tell(seen.X, seen.Y, seen.C[:, None])
    return bo


def fitted(setting: Setting, repeat: int) -> Any:
    """The same with fitted models."""
    bo = told(setting, repeat)
    fit(bo)
    return bo


def fit(bo: Any) -> None:
    """Hand the data to the models and learn their hyperparameters, which otherwise waits until they are used."""
    bo._update_model()
    for latent in (bo.model.objective, *bo.model.constraints):
        latent.exploring().posterior  # noqa: B018 - learns


def run_of_suggestions(setting: Setting, repeat: int) -> Thunk:
    """:data:`RUN` suggestions in a row, each after one more observation, from the n-th on.

    So many, because hyperparameters are learned anew only now and then; the mean is what a suggestion costs in a run.
    """
    seen = observations(replace(setting, n=setting.n + RUN - 1), repeat)
    before = setting.n - 1
    bo = told(replace(setting, n=before), repeat, seen)
    fit(bo)

    def run() -> None:
        for i in range(before, before + RUN):
            bo.tell(seen.X[[i]], seen.Y[[i]], seen.C[[i], None])
            bo.suggest_next_locations()

    return run


def stages(setting: Setting, repeat: int) -> dict[str, Thunk]:
    """One suggestion as the :data:`PARTS` it consists of, to be called in their order."""
    bo = told(setting, repeat)
    found: list[Any] = []

    def rest() -> Any:
        bo.acquisition.optimizer.optimize = lambda **options: found[0]
        return bo.suggest_next_locations()

    # A second call of an update does nothing, so each stage finds the work of those before it done.
    steps = (lambda: fit(bo), bo.acquisition.update, lambda: found.append(bo.acquisition.optimize()), rest)
    return dict(zip(PARTS, steps, strict=True))


# ------------------------------------------------------------------------------------------------------------
# Peers
# ------------------------------------------------------------------------------------------------------------


def botorch_log_ei(setting: Setting, repeat: int) -> Thunk:
    """BoTorch: LogConstrainedExpectedImprovement on a SingleTaskGP for the objective and one for the constraint."""
    return _with_adaptor(peers.BoTorch, setting, repeat)


def botorch_entropy(setting: Setting, repeat: int) -> Thunk:
    """BoTorch: qLowerBoundMaxValueEntropy, which knows no constraints, on a SingleTaskGP and 1000 candidates."""
    return _with_adaptor(_LowerBoundMES, setting, repeat)


def optuna_gp(setting: Setting, repeat: int) -> Thunk:
    """Optuna: GPSampler with one constraint."""
    return _with_adaptor(_DefaultGPSampler, setting, repeat)


def emukit_loop(setting: Setting, repeat: int) -> Thunk:
    """Emukit: UnknownConstraintBayesianOptimizationLoop on two GPRegression models; the last observation is news to it."""
    loops = importlib.import_module("emukit.bayesian_optimization.loops")
    core, wrappers = importlib.import_module("emukit.core"), importlib.import_module("emukit.model_wrappers")
    result = importlib.import_module("emukit.core.loop").UserFunctionResult
    seen = observations(setting, repeat)
    X, columns = seen.X, (seen.filled[:, None], seen.C[:, None])
    with quiet(repeat):
        models = [wrappers.GPyModelWrapper(GPy.models.GPRegression(X[:-1], column[:-1])) for column in columns]
        space = core.ParameterSpace([core.ContinuousParameter(f"x{j}", 0.0, 1.0) for j in range(setting.d)])
        loop = loops.UnknownConstraintBayesianOptimizationLoop(space, *models)
    news = result(X[-1], columns[0][-1], Y_constraint=columns[1][-1])
    return _quietly(lambda: loop.get_next_points([news]), repeat)


def gpyopt_ei(setting: Setting, repeat: int) -> Thunk:
    """GPyOpt: BayesianOptimization, which knows no unknown constraints; the last observation is news to it."""
    seen = observations(setting, repeat)
    X, Y = seen.X, seen.filled[:, None]
    with quiet(repeat):
        bo = BayesianOptimization(None, list(domain(setting.d)), X=X[:-1], Y=Y[:-1])
        bo._update_model(bo.normalization_type)
    bo.X, bo.Y = X, Y
    return _quietly(bo.suggest_next_locations, repeat)


class PeerCase(NamedTuple):
    """A peer: what must be installed, and how a suggestion of it is prepared."""

    packages: tuple[str, ...]
    prepare: Callable[[Setting, int], Thunk]


LOG_EI, GPYOPT_EI = "BoTorch constrained log EI", "GPyOpt EI"

PEERS: dict[str, PeerCase] = {
    LOG_EI: PeerCase(("torch", "botorch"), botorch_log_ei),
    "BoTorch qLowerBoundMaxValueEntropy": PeerCase(("torch", "botorch"), botorch_entropy),
    "Optuna GPSampler": PeerCase(("optuna", "torch"), optuna_gp),
    "Emukit unknown constraints": PeerCase(("emukit",), emukit_loop),
    GPYOPT_EI: PeerCase(("GPyOpt",), gpyopt_ei),
}
"""Every peer by the name it is reported under."""


def why_absent(packages: tuple[str, ...]) -> str:
    """Why a peer cannot be measured; empty where it can."""
    for package in packages:
        try:
            with quiet(0):
                importlib.import_module(package)
        except ModuleNotFoundError as error:
            return "not installed" if error.name == package else f"{package} needs {error.name}, which is not installed"
        except Exception as error:  # whatever an incompatible version raises; its text may hold paths
            return f"{package} cannot be imported ({type(error).__name__})"
    return ""


class _LowerBoundMES(peers.BoTorch):
    CANDIDATES = 1000

    def _acquisition(self) -> Any:
        entropy = importlib.import_module("botorch.acquisition.max_value_entropy_search")
        X, Y = np.array(self.X), np.array(self.Y)
        model = self._fitted(X, Observations(X, Y, Y).filled)
        candidates = self.torch.rand(self.CANDIDATES, X.shape[1], dtype=self.torch.double)
        return entropy.qLowerBoundMaxValueEntropy(model, candidates, maximize=False)


class _DefaultGPSampler(peers.OptunaGP):
    def _options(self) -> dict[str, Any]:
        return {}


def _with_adaptor(kind: type[peers.Peer], setting: Setting, repeat: int) -> Thunk:
    nan = float("nan")
    problem = Problem("speed", objective, (constraint,), domain(setting.d), (nan,) * setting.d, nan, 0.5)
    peer = kind(problem, setting.feedback, repeat, setting.n)
    for x, y, c in zip(*observations(setting, repeat), strict=True):
        peer.tell(x[None, :], float(y), np.array([c]))
    return peer.suggest


def _quietly(call: Thunk, seed: int) -> Thunk:
    def quietly() -> Any:
        with quiet(seed):
            return call()

    return quietly


@contextmanager
def quiet(seed: int) -> Iterator[None]:
    """Without warnings, and with a seeded global random state, which is put back afterwards."""
    state = np.random.get_state()  # noqa: NPY002 - what GPy draws from
    np.random.seed(seed)  # noqa: NPY002
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        np.random.set_state(state)  # noqa: NPY002
