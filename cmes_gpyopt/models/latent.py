"""The latent functions of a constrained problem, each a Gaussian process fitted with GPy.

All three classes share one protocol, in which X is a set of points of the model space, (n, d):

- ``fit(X, values, lower, width)`` learns from data; inputs are scaled to the unit cube by ``lower`` and ``width``;
- ``moments(X, grad=False)``, ``joint(X)``, ``sample(X, normals)`` describe the latent, noise-free function;
- ``gp`` is the GPy model behind it (None before the first observation).

A fit is a function of the data alone: it starts from fixed hyperparameters, uses no randomness, and gives the same
result whenever it is repeated.
"""

import copy
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from .._gpyopt import GPy
from ..errors import CMESError
from ..feedback import latent_threshold, log_probability_feasible
from ..normal import hazard, log_cdf
from .ep import LogisticBernoulli, ParallelEP
from .posterior import LatentPosterior, Matern52, Moments, posterior_from_sites

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
CLASSIFIER_STARTS = (0.2, 0.8)
MAX_STEPS = 100

# EP tolerances: while hyperparameters move, and for the posterior that is kept.
FIT_TOLERANCE = 1e-6
FINAL_TOLERANCE = 1e-11


def cautious_lengthscale(count: int, dimension: int) -> float:
    """Length scale held while the data cannot determine one: that of ``count`` points spread over the cube.

    The marginal likelihood of a few equal labels (or of a single value) grows with the length scale, which would
    make the posterior flat and the search blind.
    """
    return float(min(LENGTHSCALE_MEAN, 0.5 * dimension**0.5 * max(count, 1) ** (-1.0 / dimension)))


def _log_normal(prior: tuple[float, float]) -> Any:
    median, sigma = prior
    return GPy.priors.LogGaussian(float(np.log(median)), sigma)


class LatentGP:
    """State and predictions shared by the objective and the constraints."""

    name: str
    gp: Any = None
    _posterior: LatentPosterior | None = None
    _lower: Array
    _width: Array

    @property
    def posterior(self) -> LatentPosterior:
        """The fitted posterior on the unit cube."""
        if self._posterior is None:
            raise CMESError(f"the model of {self.name!r} has no data yet; call set_data or updateModel first")
        return self._posterior

    def moments(self, X: Array, *, grad: bool = False) -> Moments:
        """Latent mean and standard deviation at X, with gradients with respect to X on request."""
        result = self.posterior.moments(self._to_unit(X), grad=grad)
        if result.d_mean is None or result.d_std is None:
            return result
        return Moments(result.mean, result.std, result.d_mean / self._width, result.d_std / self._width)

    def joint(self, X: Array) -> tuple[Array, Array]:
        """Latent mean (m,) and covariance (m, m) at X."""
        return self.posterior.joint(self._to_unit(X))

    def sample(self, X: Array, normals: Array) -> Array:
        """Exact joint draws of the latent function at X from standard normals (m, K); returns (K, m)."""
        return self.posterior.sample(self._to_unit(X), normals)

    def unfitted(self) -> "LatentGP":
        """A copy with the same settings and no data."""
        clone = copy.copy(self)
        clone.gp = clone._posterior = None
        return clone

    def _to_unit(self, X: Array) -> Array:
        return np.asarray((X - self._lower) / self._width)

    def _search(self, starts: Sequence[Callable[[], None]]) -> None:
        """Maximise the GPy model's posterior over hyperparameters from each start and keep the best."""
        best, best_value = None, np.inf
        for start in starts:
            start()
            try:
                self.gp.optimize(optimizer="lbfgs", max_iters=MAX_STEPS)
                value = float(self.gp.objective_function())
            except np.linalg.LinAlgError as failure:
                logger.warning("a hyperparameter search for %s failed (%s)", self.name, failure)
                continue
            if value < best_value:
                best, best_value = self.gp.param_array.copy(), value
        if best is None:
            logger.warning("hyperparameters of %s stay at their start: no search succeeded", self.name)
            start()
        else:
            self.gp[:] = best

    def _kernel(self) -> Matern52:
        return Matern52(float(self.gp.kern.variance[0]), np.array(self.gp.kern.lengthscale))


def _new_kernel(dimension: int, variance_prior: tuple[float, float]) -> Any:
    kernel = GPy.kern.Matern52(dimension, variance=variance_prior[0], lengthscale=LENGTHSCALE_MEAN, ARD=True)
    kernel.lengthscale.set_prior(GPy.priors.Gamma(*LENGTHSCALE_PRIOR), warning=False)
    kernel.variance.set_prior(_log_normal(variance_prior), warning=False)
    return kernel


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
    noise : float
        Noise variance in standardised units.
    """

    def __init__(self, name: str = "objective") -> None:
        self.name = name
        self.offset, self.scale, self.noise = 0.0, 1.0, NOISE_PRIOR[0]

    def fit(self, X: Array, values: Array, lower: Array, width: Array) -> None:
        """Learn from values (N,) at X (N, d); N may be zero."""
        self._lower, self._width = lower, width
        count, dimension = X.shape
        largest = float(np.abs(values).max(initial=0.0)) or 1.0
        # Dividing first keeps the squares of huge values from overflowing.
        self.offset = float((values / largest).mean() * largest) if count else 0.0
        spread = float((values / largest).std() * largest) if count else 0.0
        # Values that differ by rounding alone carry no scale.
        constant = spread <= 1e-12 * largest
        self.scale = 1.0 if constant else spread
        self.noise = NOISE_PRIOR[0]
        if count == 0:
            self.gp = None
            lengthscales = np.full(dimension, cautious_lengthscale(1, dimension))
            self._posterior = LatentPosterior.prior(Matern52(OUTPUT_VARIANCE_PRIOR[0], lengthscales))
            return
        U, targets = self._to_unit(X), (values - self.offset) / self.scale
        if constant:
            targets = np.zeros(count)
        self._load(U, targets)
        if constant:
            self._start(cautious_lengthscale(count, dimension), NOISE_PRIOR[0])
        else:
            self._search([partial(self._start, *start) for start in REGRESSION_STARTS])
        self.noise = float(self.gp.likelihood.variance[0])
        precision = 1.0 / (self.noise + GPY_JITTER)
        self._posterior = posterior_from_sites(self._kernel(), U, np.full(count, precision), targets * precision)

    def _load(self, U: Array, targets: Array) -> None:
        if self.gp is not None:
            self.gp.set_XY(U, targets[:, None])
            return
        kernel = _new_kernel(U.shape[1], OUTPUT_VARIANCE_PRIOR)
        self.gp = GPy.models.GPRegression(U, targets[:, None], kernel, noise_var=NOISE_PRIOR[0])
        self.gp.likelihood.variance.set_prior(_log_normal(NOISE_PRIOR), warning=False)

    def _start(self, lengthscale: float, noise: float) -> None:
        lengthscales = np.full(self.gp.input_dim, lengthscale)
        self.gp[:] = np.concatenate([[OUTPUT_VARIANCE_PRIOR[0]], lengthscales, [noise]])

    def parameters(self) -> dict[str, float]:
        """Hyperparameters by name, the same names before and after the first observation."""
        kernel = self.posterior.kernel
        scales = {f"{self.name}.lengthscale_{j}": float(v) for j, v in enumerate(kernel.lengthscales)}
        return {f"{self.name}.variance": kernel.variance, **scales, f"{self.name}.noise": self.noise}


class RealConstraint(Regression):
    """A constraint whose value is measured: feasible where the value is at most ``upper``.

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

    def fit(self, X: Array, values: Array, lower: Array, width: Array) -> None:
        """Learn from measured values c (N,), from which ``upper`` was subtracted: c <= 0 is feasible."""
        super().fit(X, values, lower, width)

    def threshold(self, confidence: float) -> float:
        """The latent value up to which a point is feasible; the confidence does not enter."""
        return -self.offset / self.scale

    def log_feasible(self, X: Array, *, grad: bool = False) -> Array | tuple[Array, Array]:
        """Log P(c <= 0) at X (n,), with its gradient (n, d) on request."""
        m = self.moments(X, grad=grad)
        gamma = (self.threshold(0.5) - m.mean) / m.std
        value = log_cdf(gamma)
        if m.d_mean is None or m.d_std is None:
            return value
        slope = hazard(-gamma) / m.std
        return value, -slope[:, None] * (m.d_mean + gamma[:, None] * m.d_std)


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
    hold_one_class : bool
        While all labels are equal, hold the hyperparameters at the prior with a length scale that shrinks as
        labels accumulate, instead of letting the marginal likelihood flatten the posterior.
    """

    binary = True

    def __init__(
        self,
        name: str = "feasible",
        *,
        link: str = "logistic",
        variance_prior: tuple[float, float] | None = LATENT_VARIANCE_PRIOR,
        hold_one_class: bool = True,
    ) -> None:
        if link not in ("logistic", "probit"):
            raise CMESError(f"link must be 'logistic' or 'probit', got {link!r}")
        self.name = name
        self.link = link
        self.variance_prior = variance_prior or WEAK_LATENT_VARIANCE_PRIOR
        self.hold_one_class = hold_one_class

    def fit(self, X: Array, values: Array, lower: Array, width: Array) -> None:
        """Learn from labels (N,) in {-1, +1} at X (N, d); N may be zero."""
        self._lower, self._width = lower, width
        count, dimension = X.shape
        if count == 0:
            self.gp = None
            lengthscales = np.full(dimension, cautious_lengthscale(1, dimension))
            self._posterior = LatentPosterior.prior(Matern52(self.variance_prior[0], lengthscales))
            return
        U = self._to_unit(X)
        self._load(U, values)
        inference = self.gp.inference_method
        if self.hold_one_class and np.all(values == values[0]):
            self._start(cautious_lengthscale(count, dimension))
        else:
            self._search([partial(self._start, start) for start in CLASSIFIER_STARTS])
        inference.tolerance = FINAL_TOLERANCE
        self.gp.parameters_changed()
        inference.tolerance = FIT_TOLERANCE
        self._posterior = posterior_from_sites(self._kernel(), U, inference.sites.tau, inference.sites.nu)

    def _load(self, U: Array, labels: Array) -> None:
        targets = (labels[:, None] + 1.0) / 2.0
        if self.gp is not None:
            self.gp.inference_method.reset()
            self.gp.set_XY(U, targets)
            return
        kernel = _new_kernel(U.shape[1], self.variance_prior)
        likelihood = LogisticBernoulli() if self.link == "logistic" else GPy.likelihoods.Bernoulli()
        inference = ParallelEP(self.link, FIT_TOLERANCE)
        self.gp = GPy.core.GP(U, targets, kernel, likelihood, inference_method=inference, name=self.name)

    def _start(self, lengthscale: float) -> None:
        self.gp.inference_method.reset()
        self.gp[:] = np.concatenate([[self.variance_prior[0]], np.full(self.gp.input_dim, lengthscale)])

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
