"""Constrained max-value entropy search.

References
----------
Perrone, Shcherbatyi, Jenatton, Archambeau and Seeger (2020), Constrained Bayesian optimization with max-value
entropy search.
Takeno, Tamura, Shitara and Karasuyama (2022), Sequential and parallel constrained max-value entropy search via
information lower bound: the divergence used here reduces to their bound for real-valued feedback.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import spaces
from .._gpyopt import Design_space
from ..checks import number, one_of, whole_number
from ..errors import CMESError
from ..models import ConstrainedModel, Constraint
from ..optima import Optima, candidate_grid, joint_optima, marginal_optima, pathwise_optima
from ..search import AcquisitionSearch
from .base import GRID_STREAM, OPTIMA_STREAM, UNSAFE, WANDER_STREAM, ConstrainedAcquisition
from .observation import Observation

Array = npt.NDArray[np.float64]

# When every constraint is far from satisfied, the information underflows and the score is flat; below this value it says
# nothing about where to go.
NEGLIGIBLE = 1e-30

# While nothing feasible is known, one suggestion in this many may be on the border: after five points, the third.
BORDER_TURN = 3
# After so many points without a feasible one, another in as many is the likeliest of a few random points: a feasible set
# that is thin and near the border, but not on it, is found in no other way.
PATIENCE = 25
FEW = 16

# Where the draws of y* leave little to gain, the cap is this share of it, and at least so much, in standard deviations of
# the observed values, and so many of the noise: below that an evaluation cannot be told from the next.
CAP_SHARE = 0.1
LEAST_CAP = 3e-4
CAP_IN_NOISE = 3.0

# The product table of outcomes has 2**J rows.
MAX_BINARY = 8

PRESETS: dict[str | None, dict[str, Any]] = {
    None: {
        "confidence": 0.5,
        "estimator": "kl",
        "table": "exact",
        "ystar_cap": 3e-3,
        "refinements": None,
        "border": 0.1,
        "doubt": 4.0,
    },
    "paper": {
        "confidence": 0.9,
        "estimator": "entropy",
        "table": "laplace",
        "ystar_cap": -np.inf,
        "refinements": 0,
        "border": 0.0,
        "doubt": 0.0,
    },
}


class ConstrainedMES(ConstrainedAcquisition):
    """Information that an evaluation gives about the constrained optimum y*.

    Parameters
    ----------
    model, space, optimizer, cost_withGradients
        As for GPyOpt acquisitions; ``ConstrainedMES.for_domain(domain)`` builds them.
    confidence : float, default 0.5
        p in (0, 1): a point counts towards y* where P(infeasible | latent) <= p. It matters for binary
        constraints only; 0.1 is strict, 0.9 lax.
    num_samples : int
        Draws of y* to average over.
    grid_size : int, default 2000
        Points over which y* is sought; a quarter of them while points are in flight.
    estimator : {"kl", "entropy", "mixture"}, default "kl"
        "kl" is the divergence KL[P(o | y*) || P(o)] of what is observed, never negative; "entropy" the paper's difference
        of entropies; "mixture" its second suggestion for objectives that are seen only where the evaluation is feasible.
    sampler : {"joint", "marginal", "pathwise"}
        How y* is drawn over the grid: jointly, as in the paper; as if all values were independent, which drives y* too
        low; or by minimising sample paths, for spaces in which a grid is too coarse.
    objective_observed : {"feasible", "always"}
        Whether a failed evaluation still reports its objective value.
    table : {"exact", "laplace"}, default "exact"
        Probabilities of the labels of a logistic constraint by quadrature, or by the paper's approximation.
    noise : {"ignore", "point", "exact"}
        Noise on the objective and on real constraints when an evaluation is scored: ignored; by the paper's point
        approximation; or exactly, by quadrature (estimator "kl" only, at most two noisy quantities).
    ystar_cap : float, default 3e-3
        Draws of y* are capped this far below the best feasible value, in standard deviations of the observed
        values: without noise the incumbent itself would otherwise stay worth evaluating for ever. Where the draws say that
        less than ten times as much can be gained at all, a tenth of that, so that a search goes on to refine. -inf is no cap.
    ystar_tolerance : float, default 1e-3
        Bound on the expected share of the joint draws whose y* differs because grid points that hardly matter are left
        out; 0 draws every point.
    refinements : int, optional
        Rounds in which the joint draws are continued at points where they may still gain, between those of the grid: in
        several dimensions a grid is coarse and y* would lie too high. 0 is the grid alone. By default 2 where every
        constraint is measured, and 0 with labels, where the border of the feasible set is too uncertain to gain by it.
    border : float, default 0.1
        Standard deviation, as a share of each continuous variable's range, of the neighbourhood of a point that should
        lie inside the box; the acquisition is lowered near the border. 0 leaves the information alone.
    doubt : float, default 4
        In a search the length scales of the objective are n / (n + m) of the learned ones, with n values seen and m, at
        most ``doubt``, hidden at points that failed: with the learned ones a few high values would rule out another valley
        beyond such points. Recommendations have the learned ones. 0 trusts them in a search too.
    preset : {None, "paper"}
        "paper" changes the defaults above to the paper's: confidence 0.9, estimator "entropy" for every draw, the
        laplace table, no cap, no refinement, no weight of the border and no doubt.
    seed : int
        See :class:`ConstrainedAcquisition`.

    Notes
    -----
    A draw with no feasible point has y* = +inf. The binary entropy difference then falls with the probability of
    feasibility, so such draws are scored with the divergence whatever the estimator, except with ``preset="paper"``.

    While nothing feasible and no objective value has been seen, y* is known from the prior alone and the acquisition is the
    probability of feasibility, except with ``preset="paper"``: the information grows without bound as that probability
    tends to one, which it does first in the corners. Every third of these suggestions is made without the weight of the
    border, and after 25 points another third is the likeliest of 16 random points. ``score`` is the information all the same.
    """

    believes_pending = False  # each draw of y* brings its own values at the pending points

    def __init__(
        self,
        model: ConstrainedModel,
        space: Design_space,
        optimizer: Any = None,
        cost_withGradients: Any = None,
        *,
        confidence: float | None = None,
        num_samples: int = 10,
        grid_size: int = 2000,
        estimator: str | None = None,
        sampler: str = "joint",
        objective_observed: str = "feasible",
        table: str | None = None,
        noise: str = "ignore",
        ystar_cap: float | None = None,
        ystar_tolerance: float = 1e-3,
        refinements: int | None = None,
        border: float | None = None,
        doubt: float | None = None,
        preset: str | None = None,
        seed: int = 0,
    ) -> None:
        defaults = PRESETS[one_of("preset", preset, tuple(PRESETS))]
        border = defaults["border"] if border is None else border
        super().__init__(model, space, optimizer, cost_withGradients, seed=seed, border=border)
        self.preset = preset
        self.confidence = number("confidence", defaults["confidence"] if confidence is None else confidence)
        self.ystar_cap = number("ystar_cap", defaults["ystar_cap"] if ystar_cap is None else ystar_cap)
        self.estimator = one_of("estimator", estimator or defaults["estimator"], ("entropy", "mixture", "kl"))
        self.table = one_of("table", table or defaults["table"], ("exact", "laplace"))
        self.objective_observed = one_of("objective_observed", objective_observed, ("feasible", "always"))
        self.sampler = one_of("sampler", sampler, ("joint", "marginal", "pathwise"))
        self.num_samples = whole_number("num_samples", num_samples, 1)
        self.grid_size = whole_number("grid_size", grid_size, 1)
        self.ystar_tolerance = number("ystar_tolerance", ystar_tolerance)
        if not 0.0 <= self.ystar_tolerance < 1.0:
            raise CMESError(f"ystar_tolerance must lie between 0, for every point, and 1, got {ystar_tolerance!r}")
        if not 0.0 < self.confidence < 1.0:
            raise CMESError(f"confidence must lie strictly between 0 and 1, got {confidence!r}")
        self.noise = one_of("noise", noise, ("ignore", "point", "exact"))
        if noise == "exact" and (self.estimator != "kl" or sum(not c.binary for c in model.constraints) > 1):
            raise CMESError(
                "noise='exact' needs estimator='kl' and at most one real constraint; pass these, or noise='point'"
            )
        binary = sum(constraint.binary for constraint in model.constraints)
        refinements = defaults["refinements"] if refinements is None else refinements
        self.refinements = whole_number("refinements", (0 if binary else 2) if refinements is None else refinements, 0)
        self.doubt = number("doubt", defaults["doubt"] if doubt is None else doubt)
        if not 0.0 <= self.doubt < np.inf:
            raise CMESError(f"doubt must be finite and not negative, 0 for none, got {doubt!r}")
        if binary > MAX_BINARY:
            raise CMESError(
                f"at most {MAX_BINARY} binary constraints are supported, got {binary}; combine labels that fail together"
            )
        if self.estimator == "mixture" and (objective_observed != "feasible" or not binary):
            raise CMESError(
                "estimator='mixture' is for binary feedback with an objective that is seen only where the evaluation "
                "is feasible; pass another estimator"
            )
        self.y_star: Array = np.empty(0)
        self._screening = False
        self._best_in_flight: Array | float = np.inf
        self._likeliest: list[Constraint] = []

    def _prepare(self) -> None:
        model = self.model
        self.objective = model.objective.doubted(min(self.doubt, self._hidden))
        size = max(int(self.effort * self.grid_size), 1)
        grid = candidate_grid(self.space, size, np.vstack([model.data.X, self.pending]), self.generator(GRID_STREAM))
        rng = self.generator(OPTIMA_STREAM)
        samplers: dict[str, Callable[..., Optima]] = {
            "joint": partial(joint_optima, tolerance=self.ystar_tolerance, refinements=self.refinements),
            "marginal": marginal_optima,
            "pathwise": pathwise_optima,
        }
        draws = samplers[self.sampler](
            self.objective, self.constraints, self.thresholds, grid, self.num_samples, rng, self.space, self.pending
        )
        self.y_star, self._best_in_flight = draws.y_star, np.inf
        self._likeliest = self.constraints
        if len(self.pending):
            self._likeliest = [self._believed(c) for c in self.constraints]
            holds = [c <= t for c, t in zip(draws.constraints, self.thresholds, strict=True)]
            values = np.where(np.all(holds, axis=0), draws.objective, np.inf) if holds else draws.objective
            self._best_in_flight = values.min(axis=1)
            # Each draw of y* is scored under what the same draw says of the points in flight.
            self.objective = self.objective.conditioned(self.pending, draws.objective)
            self.constraints = [
                c.conditioned(self.pending, v) for c, v in zip(self.constraints, draws.constraints, strict=True)
            ]

    @property
    def _hidden(self) -> int:
        """Number of points that failed and show no objective value for that."""
        data = self.model.data
        if self.objective_observed == "always":
            return 0
        return int((np.isnan(data.Y) & (data.C > 0).any(axis=1)).sum())

    @property
    def thresholds(self) -> list[float]:
        """Latent values delta_j up to which each constraint counts as satisfied."""
        return [c.threshold(self.confidence) for c in self.model.constraints]

    @property
    def scored_optima(self) -> Array:
        """The draws of y* that enter the score, (K,), in standardised units.

        They are capped below the best feasible value, counting what the same draw says of the points in flight.
        """
        best = np.minimum(self.model.standardised_fmin(), self._best_in_flight)
        with np.errstate(invalid="ignore"):  # inf less inf, where nothing feasible is known
            left = np.where(self.y_star < best, best - self.y_star, 0.0).mean()
        least = max(LEAST_CAP, CAP_IN_NOISE * self.model.objective.noise**0.5)
        return np.asarray(np.minimum(self.y_star, best - min(self.ystar_cap, max(CAP_SHARE * left, least))))

    @property
    def seeks_feasible(self) -> bool:
        """Whether the acquisition is the probability of feasibility, because nothing else is known yet."""
        data = self.model.data
        nothing = data is None or (not data.feasible.any() and bool(np.isnan(data.Y).all()))
        return bool(self.model.constraints) and self.preset != "paper" and nothing

    @property
    def visits_border(self) -> bool:
        """Every third time while nothing feasible is known: where a set that is feasible touches the border, it is there.

        With the weight of the border the corners would never be tried, without it nothing else for a long time.
        """
        return self.seeks_feasible and (self._made % BORDER_TURN == 1 or self.wanders)

    @property
    def wanders(self) -> bool:
        """Whether the suggestion is the likeliest of a few random points."""
        late = self.seeks_feasible and self._made >= PATIENCE and self._made % BORDER_TURN == 2
        return late and isinstance(self.optimizer, AcquisitionSearch) and not spaces.is_finite(self.space)

    @property
    def _made(self) -> int:
        return len(self.model.data.X) + len(self.pending)

    def optimize(self, duplicate_manager: Any = None) -> tuple[Array, Array]:
        """Maximise the information; where none is in sight, the probability of feasibility."""
        self.update()
        if self.wanders:
            few = spaces.random_points(self.space, FEW, self.generator(WANDER_STREAM))
            return self._search(self.acquisition_function, None, duplicate_manager, candidates=few)
        point, value = super().optimize(duplicate_manager)
        flat = UNSAFE < -value.item() <= NEGLIGIBLE
        if not (flat and self.model.constraints and isinstance(self.optimizer, AcquisitionSearch)):
            return point, value

        def f_df(X: Array) -> tuple[Array, Array]:
            value, gradient = self._log_feasible(X)
            return -value[:, None], -gradient

        point, _ = self._search(lambda X: f_df(X)[0], f_df, duplicate_manager)
        return point, self.acquisition_function(point)

    def _log_feasible(self, X: Array) -> tuple[Array, Array]:
        """Log probability (n,) that all constraints hold at X, given beliefs about points in flight; its gradient (n, d)."""
        pairs = [c.log_feasible(X, grad=True) for c in self._likeliest]
        return np.sum([p[0] for p in pairs], axis=0), np.sum([p[1] for p in pairs], axis=0)

    def _screen(self, x: Array) -> Array:
        self._screening = True
        try:
            return self.acquisition_function(x)
        finally:
            self._screening = False

    def score(self, x: Array, target: str = "joint") -> Array:
        """Information about y* from evaluating ``target`` at points x (n, d) of the model space, (n,).

        Parameters
        ----------
        target : str
            "joint" for an evaluation that shows everything, "objective", or the name of a constraint.
        """
        self.update()
        return np.asarray(self.target_scores(np.atleast_2d(x), target, False))

    def _scores(self, X: Array, grad: bool) -> Any:
        if not self.seeks_feasible:
            return self.target_scores(X, "joint", grad)
        log_value, gradient = self._log_feasible(X)
        value = np.exp(log_value)
        return (value, value[:, None] * gradient) if grad else value

    def target_scores(self, X: Array, target: str, grad: bool) -> Any:
        """Scores (n,) of evaluating ``target``, with their gradient (n, d) on request."""
        one_of("target", target, ("joint", "objective", *(c.name for c in self.model.constraints)))
        observation = Observation(
            self.objective,
            self.constraints,
            X,
            self.thresholds,
            target=target,
            objective_observed=self.objective_observed,
            table="rough" if self._screening and self.table == "exact" else self.table,
            noise=self.noise,
            grad=grad,
        )
        y_star = self.scored_optima
        bounded, unbounded = np.flatnonzero(np.isfinite(y_star)), np.flatnonzero(np.isinf(y_star))
        weight = 1.0 / len(y_star)
        # What the mixture weighs is an evaluation of everything.
        estimator = "entropy" if self.estimator == "mixture" and target != "joint" else self.estimator
        groups = [(y_star[bounded], bounded, estimator, weight)]
        estimator = "entropy" if self.preset == "paper" else "kl"
        if len(self.pending):
            groups.append((y_star[unbounded], unbounded, estimator, weight))
        else:
            # All draws without a feasible point are alike: one, counted as often as it occurred.
            groups.append((y_star[unbounded[:1]], unbounded[:1], estimator, weight * len(unbounded)))
        return observation.total([group for group in groups if len(group[0])])
