"""The latent functions of a constrained problem, each a Gaussian process fitted with GPy.

All three classes share one protocol, in which X is a set of points of the model space, (n, d):

- ``fit(X, values, lower, width)`` takes over data, from which hyperparameters are learned at the first use; inputs
  are scaled to the unit cube by ``lower`` and ``width``;
- ``moments(X, grad=False)``, ``joint(X)``, ``sample(X, normals)`` describe the latent, noise-free function;
- ``gp`` is the GPy model with the fitted hyperparameters (None before the first observation).

A fit is a function of the data alone: it starts from fixed hyperparameters, uses no randomness, and gives the same
result whenever it is repeated.
"""

import copy
import logging
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from .._gpyopt import GPy
from ..checks import number
from ..errors import CMESError
from ..feedback import latent_threshold, log_probability_feasible
from .draws import JointDraws
from .ep import MIN_PRECISION, LogisticBernoulli, ParallelEP, Sites, propagate
from .fit import LabelEvidence, Objective, Prior, gaussian_evidence, objective, search
from .gains import log_below
from .paths import SamplePaths
from .posterior import LatentPosterior, Matern52, Moments, posterior_from_values

Array = npt.NDArray[np.float64]

logger = logging.getLogger(__name__)

# Length scales on the unit cube: Gamma with shape 3 and rate 6, mean 0.5.
LENGTHSCALE_PRIOR = (3.0, 6.0)
LENGTHSCALE_MEAN = LENGTHSCALE_PRIOR[0] / LENGTHSCALE_PRIOR[1]

# Log-normal priors as (median, standard deviation of the logarithm). Outputs are standardised, so their variance is
# near one; the noise prior is centred well below the 3e-3 of the cap on y* and wide enough to learn real noise.
OUTPUT_VARIANCE_PRIOR = (1.0, 1.0)
NOISE_PRIOR = (1e-6, 3.0)

# GPy's exact inference adds this to the noise variance; so do we, to have the posterior that was fitted.
GPY_JITTER = 1e-8

# The latent function of a classifier: after one infeasible label the posterior at that very point still calls it
# feasible with probability 0.33 at variance 1 and 0.11 at variance 30 (probit link); more does not help further.
LATENT_VARIANCE_PRIOR = (30.0, 0.5)
WEAK_LATENT_VARIANCE_PRIOR = (1.0, 2.0)

# The searches for hyperparameters start from these; the best fit is kept. Regression has two explanations of rough
# data to choose from, short length scales and noise, and finds each only from its own side.
REGRESSION_STARTS = ((0.2, NOISE_PRIOR[0]), (0.6, 1e-2))
CLASSIFIER_STARTS = (0.15, 0.4, 1.0)

# With more data than this, hyperparameters are first sought on a part of them.
MANY = 150

# EP tolerances: while hyperparameters move, and for the posterior that is kept.
FIT_TOLERANCE = 1e-3
FINAL_TOLERANCE = 1e-9
MAX_SWEEPS = 200


def spacing(count: int, dimension: int) -> float:
    """Diagonal of the cell that each of ``count`` points spread over the unit cube has to itself."""
    return float(dimension**0.5 * max(count, 1) ** (-1.0 / dimension))


def cautious_lengthscale(count: int, dimension: int) -> float:
    """Length scale held while the data cannot determine one: that of ``count`` points spread over the cube.

    The marginal likelihood of equal values grows with the length scale, which would make the posterior flat and the
    search blind.
    """
    return min(LENGTHSCALE_MEAN, 0.5 * spacing(count, dimension))


def _log_normal(prior: tuple[float, float]) -> Any:
    median, sigma = prior
    return GPy.priors.LogGaussian(float(np.log(median)), sigma)


Latent = TypeVar("Latent", bound="LatentGP")
LatentRegression = TypeVar("LatentRegression", bound="Regression")


class LatentGP:
    """State and predictions shared by the objective and the constraints."""

    name: str

    def __init__(self, name: str) -> None:
        self.name = name
        self._gp: Any = None
        self._posterior: LatentPosterior | None = None
        self._exploring: Any = None
        self._data: tuple[Array, Array] | None = None
        self._last_good: Array | None = None

    def fit(self, X: Array, values: Array, lower: Array, width: Array) -> None:
        """Take over data: values (N,) at X (N, d), N may be zero. Hyperparameters are learned at the first use."""
        self._lower, self._width = lower, width
        data = self._to_unit(X), np.array(values, dtype=float)
        conditioned = self._posterior is not None and self._posterior.size != len(data[1])
        if self._data is not None and all(map(np.array_equal, data, self._data)) and not conditioned:
            return  # what is new was seen by other functions only
        self._data = data
        self._posterior = self._gp = self._exploring = None

    @property
    def posterior(self) -> LatentPosterior:
        """The fitted posterior on the unit cube."""
        if self._posterior is None:
            if self._data is None:
                raise CMESError(f"the model of {self.name!r} has no data yet; call set_data or updateModel first")
            self._posterior = self._learn(*self._data)
        return self._posterior

    @property
    def gp(self) -> Any:
        """The GPy model with the fitted hyperparameters, made when it is first asked for; None before the first data."""
        if self.posterior.size == 0 or self._data is None:
            return None
        if self._gp is None:
            self._gp = self._gpy_model(*self._data)
        return self._gp

    def _learn(self, U: Array, values: Array) -> LatentPosterior:
        raise NotImplementedError

    def _gpy_model(self, U: Array, values: Array) -> Any:
        raise NotImplementedError

    def moments(self, X: Array, *, grad: bool = False) -> Moments:
        """Latent mean and standard deviation at X, with gradients with respect to X on request."""
        m = self.posterior.moments(self._to_unit(X), grad=grad)
        if m.d_std is None:
            return m
        pull = m.mean_pullback
        return Moments(
            m.mean,
            m.std,
            None if m.d_mean is None else m.d_mean / self._width,
            m.d_std / self._width,
            None if pull is None else lambda w: pull(w) / self._width,
        )

    def joint(self, X: Array) -> tuple[Array, Array]:
        """Latent mean (m,) and covariance (m, m) at X."""
        return self.posterior.joint(self._to_unit(X))

    def sample(self, X: Array, normals: Array) -> Array:
        """Exact joint draws of the latent function at X from standard normals (m, K); returns (K, m)."""
        return self.posterior.sample(self._to_unit(X), normals)

    def draws(self, X: Array, normals: Array) -> JointDraws:
        """Joint draws at X (m, d) from standard normals (m, K), to be made block by block."""
        return JointDraws(self.posterior, self._to_unit(X), normals)

    def paths(self, count: int, rng: np.random.Generator) -> SamplePaths:
        """Draw ``count`` sample paths of the latent function, continuous functions of X."""
        return SamplePaths.draw(self.posterior, self._lower, self._width, count, rng)

    def conditioned(self: Latent, X: Array, values: Array | None = None) -> Latent:
        """The same function given exact latent values at further points X (p, d), as an independent object.

        Parameters
        ----------
        values : array of shape (p,) or (K, p), optional
            By default the posterior means: what is expected there, without its uncertainty.
        """
        clone = copy.copy(self)
        clone._posterior = self.posterior.condition(
            self._to_unit(X), self.moments(X).mean if values is None else values
        )
        return clone

    def exploring(self: Latent) -> Latent:
        """The same function as a search for new points should see it: with what the data cannot rule out left open."""
        return self

    def unfitted(self: Latent) -> Latent:
        """A copy with the same settings and no data."""
        clone = copy.copy(self)
        clone._gp = clone._posterior = clone._exploring = clone._data = clone._last_good = None
        return clone

    def _to_unit(self, X: Array) -> Array:
        return np.asarray((X - self._lower) / self._width)

    def _fitted(
        self, make: Callable[[Array, Array], Objective], U: Array, values: Array, starts: Sequence[Array], searches: int
    ) -> Array:
        """The best hyperparameters (as logarithms), or the last good ones if all searches fail.

        Parameters
        ----------
        make : callable
            Maps points (n, d) and values (n,) to the function to minimise.
        starts : sequence of arrays
        searches : int
            How many of the starts, the best ones, are searched from.
        """
        dimension = U.shape[1]
        try:
            if len(U) > MANY:
                # An evaluation costs the cube of their number, and a part of the data shows where to look.
                part = slice(None, None, -(-len(U) // MANY))
                starts = [search(make(U[part], values[part]), starts, dimension, searches)]
            theta = search(make(U, values), starts, dimension, searches)
        except np.linalg.LinAlgError as failure:
            if self._last_good is None:
                logger.warning("%s for %s: hyperparameters stay at their start", failure, self.name)
                return starts[0]
            logger.warning("%s for %s: falling back to the last good hyperparameters", failure, self.name)
            return self._last_good
        self._last_good = theta
        return theta


def _last_milestone(count: int, growth: float) -> int:
    """The largest number up to ``count`` of those that grow from one by a share of ``growth``, or by one, at a time."""
    milestone = 1
    while (following := max(milestone + 1, math.ceil(milestone * (1.0 + growth)))) <= count:
        milestone = following
    return milestone


def _one_class(labels: Array) -> bool:
    return bool(np.all(labels == labels[:1]))


def _kernel(theta: Array, dimension: int) -> Matern52:
    return Matern52(float(np.exp(theta[0])), np.exp(theta[1 : 1 + dimension]))


def _limited_kernel(theta: Array, U: Array, limit: float) -> Matern52:
    """The learned kernel with length scales of at most ``limit`` times the spacing of the different points of U (n, d)."""
    learned = _kernel(theta, U.shape[1])
    longest = limit * spacing(len(np.unique(U, axis=0)), U.shape[1])
    return Matern52(learned.variance, np.minimum(learned.lengthscales, longest))


def _gpy_kernel(kernel: Matern52, variance_prior: tuple[float, float]) -> Any:
    gpy = GPy.kern.Matern52(kernel.lengthscales.size, kernel.variance, kernel.lengthscales, ARD=True)
    gpy.lengthscale.set_prior(GPy.priors.Gamma(*LENGTHSCALE_PRIOR), warning=False)
    gpy.variance.set_prior(_log_normal(variance_prior), warning=False)
    return gpy


class Regression(LatentGP):
    """A real-valued function observed with Gaussian noise; values are standardised over what was observed.

    Parameters
    ----------
    name : str
        Used in messages and reports.

    Attributes
    ----------
    offset, scale : float
        The value of the function is ``offset + scale * latent``.
    """

    def __init__(self, name: str = "objective") -> None:
        super().__init__(name)
        self.offset, self.scale = 0.0, 1.0
        self._noise = NOISE_PRIOR[0]

    @property
    def noise(self) -> float:
        """Noise variance in standardised units."""
        return self._noise if self.posterior.size else NOISE_PRIOR[0]

    def fit(self, X: Array, values: Array, lower: Array, width: Array) -> None:
        """Take over values (N,) at X (N, d)."""
        largest = float(np.abs(values).max(initial=0.0)) or 1.0
        # Dividing first keeps huge values from overflowing.
        relative = values / largest
        mean = float(relative.mean()) if len(values) else 0.0
        spread = float(relative.std()) if len(values) else 0.0
        # Values that differ by rounding alone carry no scale.
        constant = spread <= 1e-12
        self.offset = mean * largest
        self.scale = self._scale_of_constant() if constant else spread * largest
        super().fit(X, np.zeros(len(values)) if constant else (relative - mean) / spread, lower, width)

    def _scale_of_constant(self) -> float:
        """The scale where the values have none."""
        return 1.0

    def _learn(self, U: Array, values: Array) -> LatentPosterior:
        count, dimension = U.shape
        if count == 0:
            lengthscales = np.full(dimension, cautious_lengthscale(1, dimension))
            return LatentPosterior.prior(Matern52(OUTPUT_VARIANCE_PRIOR[0], lengthscales))
        starts = [np.log([OUTPUT_VARIANCE_PRIOR[0], *[ell] * dimension, noise]) for ell, noise in REGRESSION_STARTS]
        if (values == 0.0).all():
            ell = cautious_lengthscale(count, dimension)
            theta = np.log([OUTPUT_VARIANCE_PRIOR[0], *[ell] * dimension, NOISE_PRIOR[0]])
        else:
            prior = Prior(OUTPUT_VARIANCE_PRIOR, LENGTHSCALE_PRIOR, NOISE_PRIOR)

            def make(U: Array, values: Array) -> Objective:
                return objective(U, gaussian_evidence(values), prior, GPY_JITTER)

            theta = self._fitted(make, U, values, starts, len(starts))
        self._noise = float(np.exp(theta[-1]))
        return posterior_from_values(_kernel(theta, dimension), U, values, self._noise + GPY_JITTER)

    def doubted(self: LatentRegression, missing: float) -> LatentRegression:
        """The function given its data, with length scales shortened as if ``missing`` further values were hidden.

        With n values seen the learned ones are multiplied by n / (n + missing): they describe the part of the function
        that was seen, and what was hidden may change faster. Points in flight are to be conditioned on afterwards.
        """
        if missing <= 0 or self._data is None or not self._data[1].any():
            return self
        U, values = self._data
        learned = self.posterior.kernel
        shorter = Matern52(learned.variance, learned.lengthscales * (len(values) / (len(values) + missing)))
        clone = copy.copy(self)
        clone._gp = None
        clone._posterior = posterior_from_values(shorter, U, values, self._noise + GPY_JITTER)
        return clone

    def _gpy_model(self, U: Array, values: Array) -> Any:
        kernel = _gpy_kernel(self.posterior.kernel, OUTPUT_VARIANCE_PRIOR)
        gp = GPy.models.GPRegression(U, values[:, None], kernel, noise_var=self._noise)
        gp.likelihood.variance.set_prior(_log_normal(NOISE_PRIOR), warning=False)
        return gp

    def parameters(self) -> dict[str, float]:
        """Hyperparameters by name, the same names before and after the first observation."""
        kernel = self.posterior.kernel
        scales = {f"{self.name}.lengthscale_{j}": float(v) for j, v in enumerate(kernel.lengthscales)}
        return {f"{self.name}.variance": kernel.variance, **scales, f"{self.name}.noise": self.noise}


class RealConstraint(Regression):
    """A constraint whose value is measured: feasible where the value is at most ``upper``.

    Everything below the public boundary works with the value minus ``upper``, which is feasible up to zero.

    Parameters
    ----------
    name : str
        Used in messages and reports, and as the key of returned values.
    upper : float
        Largest feasible value.
    """

    binary = False

    def __init__(self, name: str = "constraint", upper: float = 0.0) -> None:
        if not np.isfinite(upper):
            raise CMESError(f"RealConstraint {name!r} needs a finite upper limit, got {upper!r}")
        super().__init__(name)
        self.upper = float(upper)

    def _scale_of_constant(self) -> float:
        # The distance to the limit is the only scale there is.
        return abs(self.offset) or 1.0

    def threshold(self, confidence: float) -> float:
        """The latent value up to which a point is feasible; the confidence does not enter."""
        return -self.offset / self.scale

    def log_feasible(self, X: Array, *, grad: bool = False) -> Array | tuple[Array, Array]:
        """Log P(c <= 0) at X (n,), with its gradient (n, d) on request."""
        value, gradient = log_below(self.moments(X, grad=grad), self.threshold(0.5))
        return value if gradient is None else (value, gradient)


class BinaryConstraint(LatentGP):
    """A constraint of which only a label is seen: -1 where the evaluation was feasible, +1 where it was not.

    Parameters
    ----------
    name : str
        Used in messages and reports, and as the key of returned labels.
    link : {"logistic", "probit"}
        P(label | latent value).
    variance_prior : (median, sigma) or None
        Log-normal prior of the latent variance. The default keeps a point that has failed from looking
        feasible; None gives a weak prior around one.
    lengthscale_limit : float
        In a search for new points (see :meth:`exploring`) length scales are at most this times sqrt(d) N^(-1/d), the
        diagonal of the cell that each of N labelled points has to itself: a smaller feasible island may have been missed,
        and a longer length scale would rule it out. Length scales that shrink as data accumulate keep a search with
        learned hyperparameters from ending in the wrong place (Berkenkamp, Schoellig and Krause 2019, No-regret
        Bayesian optimization with unknown hyperparameters). Half of it while every label is a failure: then the distance
        to the nearest one matters, not how many surround a point. Recommendations and probabilities of feasibility have
        the learned length scales, unless all labels are equal, whose marginal likelihood grows with the length scale. inf
        is no limit.
    relearn : float
        Hyperparameters are learned anew when the number of labels has grown by this share, and kept in between; from
        one label to the next they hardly change, and learning them is most of a fit. 0 learns them for every label.
    """

    binary = True

    def __init__(
        self,
        name: str = "feasible",
        *,
        link: str = "logistic",
        variance_prior: tuple[float, float] | None = LATENT_VARIANCE_PRIOR,
        lengthscale_limit: float = 0.5,
        relearn: float = 0.1,
    ) -> None:
        if link not in ("logistic", "probit"):
            raise CMESError(f"link must be 'logistic' or 'probit', got {link!r}")
        super().__init__(name)
        self.link = link
        self.variance_prior = variance_prior or WEAK_LATENT_VARIANCE_PRIOR
        self.lengthscale_limit = number("lengthscale_limit", lengthscale_limit)
        if not self.lengthscale_limit > 0:
            raise CMESError(f"lengthscale_limit must be positive, inf for none, got {lengthscale_limit!r}")
        self.relearn = number("relearn", relearn)
        if not 0 <= self.relearn <= 1:
            raise CMESError(f"relearn must lie between 0 and 1, got {relearn!r}")
        self._learned: tuple[Array, Array, Array, Sites] | None = None

    def exploring(self) -> "BinaryConstraint":
        """The same constraint with length scales no longer than ``lengthscale_limit`` allows."""
        if self._data is None or len(self._data[1]) == 0:
            return self
        if self._exploring is None:
            self._exploring = copy.copy(self)
            self._exploring._gp = None
            self._exploring._posterior = self._limited(*self._data, self.lengthscale_limit)
        found: BinaryConstraint = self._exploring
        return found

    def _learn(self, U: Array, values: Array) -> LatentPosterior:
        return self._limited(U, values, self.lengthscale_limit if _one_class(values) else np.inf)

    def _limited(self, U: Array, values: Array, limit: float) -> LatentPosterior:
        count, dimension = U.shape
        if count == 0:
            lengthscales = np.full(dimension, cautious_lengthscale(1, dimension))
            return LatentPosterior.prior(Matern52(self.variance_prior[0], lengthscales))
        # How many of the labels decide is a function of the labels, so that a fit is one of the data alone.
        used = _last_milestone(count, self.relearn)
        used = count if _one_class(values[:used]) and not _one_class(values) else used
        theta, known = self._hyperparameters(U[:used], values[:used])
        start = np.full(count, MIN_PRECISION), np.zeros(count)
        start[0][:used], start[1][:used] = known.tau, known.nu
        kernel = _limited_kernel(theta, U, self._tightened(limit, values))
        K = kernel(U, U)
        sites = propagate(K, values, self.link, start, tolerance=FINAL_TOLERANCE, max_sweeps=MAX_SWEEPS)
        return LatentPosterior(kernel, U, sites.weights(K), sites.half, sites.nu / sites.tau, 1.0 / np.sqrt(sites.tau))

    @staticmethod
    def _tightened(limit: float, labels: Array) -> float:
        """The limit of length scales, half of it where all labels are failures."""
        return 0.5 * limit if (labels > 0).all() else limit

    def _hyperparameters(self, U: Array, values: Array) -> tuple[Array, Sites]:
        """What is learned from labels (n,) at U (n, d), and sites to start from; remembered for the last labels."""
        if self._learned is None or not all(map(np.array_equal, self._learned[:2], (U, values))):
            starts = [np.log([self.variance_prior[0], *[ell] * U.shape[1]]) for ell in CLASSIFIER_STARTS]
            prior = Prior(self.variance_prior, LENGTHSCALE_PRIOR)
            evidence = LabelEvidence(values, self.link, FIT_TOLERANCE, MAX_SWEEPS)

            def make(points: Array, labels: Array) -> Objective:
                whole = len(labels) == len(values)
                part = evidence if whole else LabelEvidence(labels, self.link, FIT_TOLERANCE, MAX_SWEEPS)
                return objective(points, part, prior, 0.0)

            # Expectation propagation makes every step dear: one search, from the most promising start.
            theta = self._fitted(make, U, values, starts, 1)
            # Close to those of the search for new points, which asks for them most often.
            kernel = _limited_kernel(theta, U, self._tightened(self.lengthscale_limit, values))
            self._learned = U, values, theta, evidence.sites(kernel(U, U), FINAL_TOLERANCE)
        return self._learned[2:]

    def _gpy_model(self, U: Array, values: Array) -> Any:
        kernel = _gpy_kernel(self.posterior.kernel, self.variance_prior)
        likelihood = LogisticBernoulli() if self.link == "logistic" else GPy.likelihoods.Bernoulli()
        inference = ParallelEP(self.link, FINAL_TOLERANCE, MAX_SWEEPS)
        return GPy.core.GP(
            U, (values[:, None] + 1.0) / 2.0, kernel, likelihood, inference_method=inference, name=self.name
        )

    def threshold(self, confidence: float) -> float:
        """The latent value up to which P(label +1 | latent) is at most ``confidence``."""
        return latent_threshold(confidence, self.link)

    def log_feasible(self, X: Array, *, grad: bool = False) -> Array | tuple[Array, Array]:
        """Log P(label = -1) at X (n,), with its gradient (n, d) on request."""
        m = self.moments(X, grad=grad)
        if m.d_mean is None or m.d_std is None:
            return log_probability_feasible(m.mean, m.std, self.link)
        value, by_mean, by_std = log_probability_feasible(m.mean, m.std, self.link, grad=True)
        return value, by_mean[:, None] * m.d_mean + by_std[:, None] * m.d_std

    def parameters(self) -> dict[str, float]:
        """Hyperparameters by name."""
        kernel = self.posterior.kernel
        scales = {f"{self.name}.lengthscale_{j}": float(v) for j, v in enumerate(kernel.lengthscales)}
        return {f"{self.name}.variance": kernel.variance, **scales}


Constraint = BinaryConstraint | RealConstraint
