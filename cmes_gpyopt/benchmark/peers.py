"""Other libraries as methods of the benchmark, each used as its documentation says; all are optional.

With binary feedback an infeasible evaluation is a crash: it shows its label, +1 instead of -1, and no objective value.
What a library that needs a value is given there is said in the class. With real-valued feedback everything is measured
at every point. The versions these adaptors were written for: BoTorch 0.18, Optuna 5.0, SMAC 2.4.
"""

import importlib
import importlib.metadata
import shutil
import tempfile
import warnings
import weakref
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from .. import spaces
from ..errors import CMESError
from ..problems import Problem

Array = npt.NDArray[np.float64]


class Peer(ABC):
    """A library: its packages, and one run with it.

    Parameters
    ----------
    problem : Problem
    feedback : "binary" or "real"
    seed : int
    initial : int
        Number of evaluations that it is told before the first suggestion.
    """

    name: ClassVar[str]
    packages: ClassVar[tuple[str, ...]]

    def __init__(self, problem: Problem, feedback: str, seed: int, initial: int) -> None:
        self.problem, self.feedback, self.seed, self.initial = problem, feedback, seed, initial
        self.modules = [_import(package, self.name) for package in self.packages]
        self.values = [None if v["type"] == "continuous" else _choices(v) for v in problem.domain]
        """The values a variable may take, None where it is continuous."""

    @property
    def settings(self) -> dict[str, Any]:
        """Versions of the packages."""
        return {package: importlib.metadata.version(package) for package in self.packages}

    @abstractmethod
    def tell(self, x: Array, y: float, c: Array) -> None:
        """Take over an evaluation at x (1, d)."""

    @abstractmethod
    def suggest(self) -> Array:
        """The next point (1, d)."""

    def _bounds(self, column: int) -> tuple[float, float]:
        low, high = self.problem.domain[column]["domain"]
        return float(low), float(high)

    def _is_categorical(self, column: int) -> bool:
        return bool(self.problem.domain[column]["type"] == "categorical")

    def _to_named(self, x: Array) -> dict[str, Any]:
        """A point (d,) by names; discrete and categorical variables by the number of their value."""
        return {
            f"x{j}": float(value) if allowed is None else int(np.abs(allowed - value).argmin())
            for j, (value, allowed) in enumerate(zip(x, self.values, strict=True))
        }

    def _from_named(self, named: Any) -> Array:
        """The reverse of :meth:`_to_named`, (1, d)."""
        numbers = [named[f"x{j}"] for j in range(self.problem.dimension)]
        chosen = [n if allowed is None else allowed[int(n)] for n, allowed in zip(numbers, self.values, strict=True)]
        return np.array([chosen], dtype=float)


def _choices(variable: dict[str, Any]) -> Array:
    if variable["type"] == "categorical":
        return np.arange(len(variable["domain"]), dtype=float)
    return np.sort(np.asarray(variable["domain"], dtype=float))


def _import(package: str, peer: str) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(package)
    except ImportError as error:
        raise CMESError(
            f"the method {peer!r} needs the package {package} ({error}); install it with pip install 'cmes_gpyopt[peers]'"
        ) from error


class BoTorch(Peer):
    """Log constrained expected improvement, maximised as in BoTorch's tutorials (10 restarts, 512 raw samples).

    A crash has no objective value: the model of the objective, a SingleTaskGP, sees the other evaluations only. The labels
    -1 and +1 are the values of a constraint, modelled by another SingleTaskGP and feasible where <= 0. While nothing
    feasible is known the log probability of feasibility is maximised, as BoTorch provides for this case. Categories have
    the kernel of MixedSingleTaskGP; discrete and categorical variables are searched by optimize_acqf_mixed_alternating.
    The fit of a MixedSingleTaskGP is stopped after 200 iterations, which loses about 0.01 of log likelihood per observation
    and saves three quarters of the time.
    """

    name = "botorch"
    packages = ("torch", "botorch")
    RESTARTS, RAW_SAMPLES, MIXED_FIT = 10, 512, 200

    def __init__(self, problem: Problem, feedback: str, seed: int, initial: int) -> None:
        super().__init__(problem, feedback, seed, initial)
        self.torch, self.botorch = self.modules
        for part in ("models", "fit", "acquisition.analytic", "optim", "optim.optimize_mixed", "models.transforms"):
            _import(f"botorch.{part}", self.name)
        self.mll = _import("gpytorch.mlls", self.name).ExactMarginalLogLikelihood
        self.X: list[Array] = []
        self.Y: list[float] = []
        self.C: list[Array] = []
        self._low, self._width = self._scales()

    def _scales(self) -> tuple[Array, Array]:
        """Offset and width of every column; a category stays the number of its value."""
        ends = [self._bounds(j) if v is None else (v[0], v[-1]) for j, v in enumerate(self.values)]
        kept = [(0.0, 1.0) if self._is_categorical(j) else (a, b - a or 1.0) for j, (a, b) in enumerate(ends)]
        low, width = np.array(kept, dtype=float).T
        return low, width

    def tell(self, x: Array, y: float, c: Array) -> None:
        """Take over an evaluation."""
        self.X.append((x[0] - self._low) / self._width)
        self.Y.append(y)
        self.C.append(c)

    def suggest(self) -> Array:
        """The next point."""
        self.torch.manual_seed(self.seed * 100_003 + len(self.X))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            unit = self._maximise(self._acquisition())
        x = unit.detach().numpy().reshape(1, -1) * self._width + self._low
        space = spaces.checked_space(list(self.problem.domain))
        return spaces.to_objective(space, spaces.round_points(space, _one_hot(self.values, x, self._is_categorical)))

    def _acquisition(self) -> Any:
        analytic = self.botorch.acquisition.analytic
        X, Y, C = np.array(self.X), np.array(self.Y), np.array(self.C)
        constraints = [self._fitted(X, C[:, j]) for j in range(C.shape[1])]
        feasible = (C <= 0).all(axis=1)
        together = self.botorch.models.ModelListGP
        if not feasible.any():
            limits = {j: (None, 0.0) for j in range(len(constraints))}
            return analytic.LogProbabilityOfFeasibility(together(*constraints), limits)
        seen = np.isfinite(Y)
        model = together(self._fitted(X[seen], Y[seen]), *constraints)
        limits = {j + 1: (None, 0.0) for j in range(len(constraints))}
        return analytic.LogConstrainedExpectedImprovement(
            model, best_f=Y[feasible].min(), objective_index=0, constraints=limits, maximize=False
        )

    def _fitted(self, X: Array, values: Array) -> Any:
        data = self.torch.tensor(X), self.torch.tensor(values)[:, None]
        models = self.botorch.models
        transform = models.transforms.Standardize(m=1)
        categories = [j for j in range(X.shape[1]) if self._is_categorical(j)]
        options: dict[str, Any] = {}
        if categories:
            model = models.MixedSingleTaskGP(*data, cat_dims=categories, outcome_transform=transform)
            options = {"optimizer_kwargs": {"options": {"maxiter": self.MIXED_FIT}}}
        else:
            model = models.SingleTaskGP(*data, outcome_transform=transform)
        self.botorch.fit.fit_gpytorch_mll(self.mll(model.likelihood, model), **options)
        return model

    def _maximise(self, acquisition: Any) -> Any:
        """The best point found, in the unit cube, categories as numbers."""
        upper = [float(v[-1]) if v is not None and self._is_categorical(j) else 1.0 for j, v in enumerate(self.values)]
        bounds = self.torch.tensor([[0.0] * len(upper), upper], dtype=self.torch.double)
        sizes = {"q": 1, "num_restarts": self.RESTARTS, "raw_samples": self.RAW_SAMPLES}
        if all(v is None for v in self.values):
            return self.botorch.optim.optimize_acqf(acquisition, bounds, **sizes)[0]
        listed = {j: ((v - self._low[j]) / self._width[j]).tolist() for j, v in enumerate(self.values) if v is not None}
        return self.botorch.optim.optimize_mixed.optimize_acqf_mixed_alternating(
            acquisition,
            bounds,
            discrete_dims={j: v for j, v in listed.items() if not self._is_categorical(j)},
            cat_dims={j: v for j, v in listed.items() if self._is_categorical(j)},
            **sizes,
        )[0]


def _one_hot(values: list[Array | None], x: Array, is_categorical: Any) -> Array:
    """Model-space form (1, m) of a point (1, d) whose categories are numbers."""
    blocks = [
        np.eye(len(allowed))[round(float(x[0, j]))] if allowed is not None and is_categorical(j) else x[0, j : j + 1]
        for j, allowed in enumerate(values)
    ]
    return np.hstack(blocks)[None, :]


class Optuna(Peer):
    """Ask and tell with one of Optuna's samplers; constraints by ``Trial.set_constraint``.

    A failed or pruned trial is one that GPSampler leaves out, so a crash is told as Optuna's samplers take an infeasible
    trial: complete, with its constraint. Its value is inf: TPE ranks infeasible trials by their constraints alone, and
    GPSampler clips infinite values to the worst finite one. The initial points count as the startup trials, so that the
    sampler draws no random ones of its own.
    """

    packages: ClassVar[tuple[str, ...]] = ("optuna",)
    sampler: ClassVar[str]

    def __init__(self, problem: Problem, feedback: str, seed: int, initial: int) -> None:
        super().__init__(problem, feedback, seed, initial)
        self.optuna = self.modules[0]
        self.optuna.logging.set_verbosity(self.optuna.logging.ERROR)
        self.distributions = {f"x{j}": self._distribution(j) for j in range(problem.dimension)}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            sampler = getattr(self.optuna.samplers, self.sampler)
            self.study = self.optuna.create_study(
                sampler=sampler(seed=seed, n_startup_trials=initial, **self._options())
            )
        self.trial: Any = None

    def _options(self) -> dict[str, Any]:
        return {}

    def _distribution(self, j: int) -> Any:
        allowed, kinds = self.values[j], self.optuna.distributions
        if allowed is None:
            return kinds.FloatDistribution(*self._bounds(j))
        if self._is_categorical(j):
            return kinds.CategoricalDistribution(list(range(len(allowed))))
        return kinds.IntDistribution(0, len(allowed) - 1)

    def tell(self, x: Array, y: float, c: Array) -> None:
        """Take over an evaluation."""
        if self.trial is None:
            self.study.enqueue_trial(self._to_named(x[0]))
            self.trial = self._ask()
        for j, value in enumerate(c):
            self.trial.set_constraint(f"c{j}", float(value))
        self.study.tell(self.trial, y)
        self.trial = None

    def suggest(self) -> Array:
        """The next point."""
        self.trial = self._ask()
        return self._from_named(self.trial.params)

    def _ask(self) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return self.study.ask(self.distributions)


class OptunaGP(Optuna):
    """Optuna's GPSampler, told that the objective has no noise."""

    name, sampler = "optuna-gp", "GPSampler"
    packages = ("optuna", "torch")

    def _options(self) -> dict[str, Any]:
        return {"deterministic_objective": True}


class OptunaTPE(Optuna):
    """Optuna's TPESampler."""

    name, sampler = "optuna-tpe", "TPESampler"


class SMAC(Peer):
    """SMAC's facade for hyperparameter optimisation, a random forest, by ask and tell.

    SMAC has no unknown constraints: a crash is told with the status CRASHED and a cost, which a user would have to guess
    (Scenario.crash_cost). Here it is a good guess that only a benchmark can make: as far above the typical feasible value as
    this is above the optimum. Two defaults of the facade do not suit short runs of functions that may be negative: the model
    is trained for every suggestion, not for every eighth, and nothing (costs, forest, expected improvement) is about
    logarithms of costs, as in SMAC's facade for algorithm configuration.
    """

    name = "smac"
    packages = ("smac", "ConfigSpace", "joblib")
    LEAVES = 1000
    """Far more than a tree has. The default, a million, changes no tree but is allocated for each."""

    def __init__(self, problem: Problem, feedback: str, seed: int, initial: int) -> None:
        super().__init__(problem, feedback, seed, initial)
        self.smac, self.configspace, self.joblib = self.modules
        for part in ("acquisition.function", "model.random_forest", "runhistory.encoder"):
            _import(f"smac.{part}", self.name)
        self.space = self.configspace.ConfigurationSpace(seed=seed)
        self.space.add([self._parameter(j) for j in range(problem.dimension)])
        self.penalty = 2 * problem.typical - problem.f_opt
        self.told: list[tuple[Array, float, bool]] = []
        self.facade: Any = None
        self.trial: Any = None

    def _parameter(self, j: int) -> Any:
        allowed, name = self.values[j], f"x{j}"
        if allowed is None:
            return self.configspace.Float(name, self._bounds(j))
        if self._is_categorical(j):
            return self.configspace.Categorical(name, list(range(len(allowed))))
        return self.configspace.Integer(name, (0, len(allowed) - 1))

    def tell(self, x: Array, y: float, c: Array) -> None:
        """Take over an evaluation."""
        feasible = bool((c <= 0).all())
        if self.facade is None:
            self.told.append((x[0], y, feasible))
        else:
            self._tell(self.trial, y, feasible)

    def _tell(self, trial: Any, y: float, feasible: bool) -> None:
        status = self.smac.runhistory.StatusType
        value = self.smac.runhistory.TrialValue(
            cost=y if feasible else self.penalty, status=status.SUCCESS if feasible else status.CRASHED
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.facade.tell(trial, value, save=False)

    def suggest(self) -> Array:
        """The next point."""
        # The forest would start threads for every prediction, which take most of the time and cores of other runs.
        with warnings.catch_warnings(), self.joblib.parallel_config(backend="sequential"):
            warnings.simplefilter("ignore")
            if self.facade is None:
                self._begin()
            self.trial = self.facade.ask()
        return self._from_named(self.trial.config)

    def _begin(self) -> None:
        """Start with the points told so far as the initial design."""
        kind = self.smac.HyperparameterOptimizationFacade
        directory = tempfile.mkdtemp(prefix="smac")
        weakref.finalize(self, shutil.rmtree, directory, ignore_errors=True)
        scenario = self.smac.Scenario(
            self.space,
            deterministic=True,
            n_trials=10_000,
            seed=self.seed,
            crash_cost=float(self.penalty),
            output_directory=Path(directory),
        )
        points = [self.configspace.Configuration(self.space, values=self._to_named(x)) for x, _, _ in self.told]
        self.facade = kind(
            scenario,
            lambda config, seed: 0.0,
            initial_design=kind.get_initial_design(scenario, n_configs=0, additional_configs=points),
            model=self.smac.model.random_forest.RandomForest(
                self.space,
                seed=self.seed,
                n_trees=10,
                ratio_features=1.0,
                min_samples_split=2,
                min_samples_leaf=1,
                max_leaf_nodes=self.LEAVES,
            ),
            acquisition_function=self.smac.acquisition.function.EI(),
            runhistory_encoder=self.smac.runhistory.encoder.RunHistoryEncoder(scenario),
            config_selector=kind.get_config_selector(scenario, retrain_after=1),
            logging_level=False,
            overwrite=True,
        )
        told = np.array([x for x, _, _ in self.told])
        for _ in self.told:
            trial = self.facade.ask()
            _, y, feasible = self.told[int(np.abs(told - self._from_named(trial.config)).max(axis=1).argmin())]
            self._tell(trial, y, feasible)


PEERS: dict[str, type[Peer]] = {peer.name: peer for peer in (BoTorch, OptunaGP, OptunaTPE, SMAC)}
"""Every peer by name."""
