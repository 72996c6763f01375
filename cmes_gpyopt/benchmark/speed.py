"""How fast suggestions are: ``python -m cmes_gpyopt.benchmark speed``.

Seconds say more about a machine than about a library, so everything is a ratio of two times measured in turn, A, B, A, B,
..., in one run, with its quartiles over the repeats. Every repeat has observations and objects of its own, and what is only
preparation is not timed. Threads stay as they are set; they are written down.

Sections: ``targets``, the ratios promised; ``peers``, a suggestion over that of other libraries; ``limit``, the sampling of
y* over the matrix factorisations it rests on; ``breakdown``, the parts of a suggestion; ``growth``, exponents in the
number of observations n, of points m and of variables d, and the memory of each part.

Peaks of memory are those that tracemalloc sees: everything that Python and NumPy allocate while a part runs, beyond what
was there before. Buffers that a BLAS library keeps for itself are not among them; they do not grow with the problem.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.linalg import lapack

from ..errors import CMESError
from ..models import BinaryConstraint, Matern52
from ..models.ep import MIN_PRECISION, propagate
from ..models.latent import FINAL_TOLERANCE, MAX_SWEEPS
from ..optima import candidate_grid, joint_optima
from . import speed_report
from .speed_cases import (
    GPYOPT_EI,
    LOG_EI,
    PARTS,
    PEERS,
    RUN,
    Setting,
    fitted,
    observations,
    run_of_suggestions,
    sobol,
    stages,
    why_absent,
)
from .speed_report import EXPONENT, MEGABYTES, SHARE, Row, summarised
from .speed_timing import Thunk, exponents, interleaved, peaks

Array = npt.NDArray[np.float64]

FACTORISATIONS = "of two dpotrf"
FLOOR = "of two kernels and two dpotrf"
WHOLE = "whole suggestion"
UNSCREENED, SCREENED = "y* sampling, unscreened", "y* sampling, screened"

NUM_SAMPLES = 10
# Added to the diagonal of a covariance, relative to its variance, to have it positive definite; it costs nothing.
NUGGET = 1e-4

USUAL, SMALL = Setting(100, 6, 2000), Setting(20, 2, 64)


@dataclass(frozen=True)
class Plan:
    """What is measured, and how often."""

    sizes: tuple[int, ...] = (20, 50, 100, 200, 500)
    """observations n"""
    dimensions: tuple[int, ...] = (2, 6, 12)
    grids: tuple[int, ...] = (500, 1000, 2000, 4000)
    """points m"""
    usual: Setting = USUAL
    """where the targets are, and what is held while one size varies"""
    large: int = 500
    """observations of the target for large n"""
    repeats: int = 5
    """of suggestions"""
    peer_repeats: int = 3
    """of suggestions of all libraries, the slowest of which take a minute"""
    target_repeats: int = 20
    """of everything in the sections targets and limit"""
    discard: int = 1
    """repeats that do not count, before the others"""
    reduced: bool = False
    """whether the sizes are too small to say anything about the targets"""


FULL = Plan()
QUICK = Plan((20, 50), (2,), (100, 200), Setting(20, 2, 200), 50, 2, 2, 2, 0, True)


# ------------------------------------------------------------------------------------------------------------
# Sections
# ------------------------------------------------------------------------------------------------------------


def breakdown(plan: Plan) -> Iterator[Row]:
    """Shares of the parts of a suggestion, and the whole over two factorisations of order m."""
    for setting in _grid(plan):

        def prepare(repeat: int, setting: Setting = setting) -> dict[str, Thunk]:
            kernel, points = Matern52(1.0, np.full(setting.d, 0.5)), sobol(setting.m, setting.d, repeat)
            return {**stages(setting, repeat), FACTORISATIONS: _factorisations([kernel] * 2, points)}

        seconds = interleaved(prepare, plan.repeats, discard=plan.discard)
        whole = np.sum([seconds[part] for part in PARTS], axis=0)
        for part in PARTS:
            yield _row("breakdown", part, setting, seconds[part] / whole, SHARE)
        yield _row("breakdown", WHOLE, setting, whole / seconds[FACTORISATIONS], FACTORISATIONS)


def peers(plan: Plan) -> Iterator[Row]:
    """A suggestion over that of every peer."""
    for setting in _grid(plan):
        yield from _against("peers", setting, dict.fromkeys(PEERS), plan.peer_repeats)


def limit(plan: Plan) -> Iterator[Row]:
    """Sampling y* over what it cannot do without."""
    for m in plan.grids:
        yield from _sampling("limit", replace(plan.usual, m=m), plan)


def targets(plan: Plan) -> Iterator[Row]:
    """What the library promises, and whether it keeps it."""
    note = "not at the size of the target" if plan.reduced else ""
    usual, repeats = plan.usual, plan.target_repeats
    rows = [_against("targets", usual, {LOG_EI: 0.5, GPYOPT_EI: 0.25}, repeats)]
    rows.append(_against("targets", replace(usual, n=plan.large), {LOG_EI: 1.0}, repeats))
    rows.append(_sampling("targets", usual, plan, {(UNSCREENED, FLOOR): 1.3, (SCREENED, FLOOR): 0.3}))
    rows += [_gradient(replace(usual, feedback=feedback), plan) for feedback in ("binary", "real")]
    rows.append(_refit(usual, plan))
    for group in rows:
        for row in group:
            yield replace(row, note=row.note or note) if row.target is not None else row


def growth(plan: Plan) -> Iterator[Row]:
    """Exponents and peaks of memory of the parts, as n, m and d vary one at a time."""
    axes = {"n": plan.sizes, "m": plan.grids, "d": plan.dimensions}
    measured: set[Setting] = set()
    for axis, sizes in axes.items():
        varied = {"n": plan.usual.n, "d": plan.usual.d, "m": plan.usual.m} | {axis: None}
        held = (varied["n"], varied["d"], varied["m"])
        settings = [replace(plan.usual, **{axis: size}) for size in sizes]  # type: ignore[arg-type]
        if len(settings) > 1:

            def prepare(repeat: int, settings: Sequence[Setting] = settings) -> dict[tuple[str, Setting], Thunk]:
                return {(part, s): call for s in settings for part, call in stages(s, repeat).items()}

            seconds = interleaved(prepare, plan.repeats, discard=plan.discard)
            times = {part: np.array([seconds[part, s] for s in settings]).T for part in PARTS}
            times[WHOLE] = np.sum(list(times.values()), axis=0)
            for part, table in times.items():
                yield summarised("growth", part, held, "binary", exponents(sizes, table), EXPONENT + axis)
        for setting in [s for s in settings if s not in measured]:
            measured.add(setting)
            for part, peak in peaks(stages(setting, 0)).items():
                if part in PARTS[:3]:
                    yield _row("growth", part, setting, np.array([peak]), MEGABYTES)


SECTIONS: dict[str, Callable[[Plan], Iterator[Row]]] = {
    "targets": targets,
    "peers": peers,
    "limit": limit,
    "breakdown": breakdown,
    "growth": growth,
}


def _grid(plan: Plan) -> list[Setting]:
    return [
        Setting(n, d, plan.usual.m, feedback)
        for feedback in ("binary", "real")
        for d in plan.dimensions
        for n in plan.sizes
    ]


def _row(section: str, what: str, setting: Setting, values: Array, unit: str, target: float | None = None) -> Row:
    return summarised(section, what, (setting.n, setting.d, setting.m), setting.feedback, values, unit, target)


def _against(section: str, setting: Setting, names: Mapping[str, float | None], repeats: int) -> Iterator[Row]:
    """The mean of ten suggestions in a run over one of the peers named, each with its target or None."""
    absent = {name: why_absent(PEERS[name].packages) for name in names}

    def prepare(repeat: int, at: Setting = setting) -> dict[str, Thunk]:
        others = {name: _prepared(name, at, repeat) for name in names if not absent[name]}
        return {WHOLE: run_of_suggestions(at, repeat), **others}

    # What a library does only once, it does here.
    interleaved(lambda repeat: prepare(repeat, replace(SMALL, feedback=setting.feedback)), 1, may_fail=names)
    seconds = interleaved(prepare, repeats, may_fail=names)
    for name, target in names.items():
        ratio = seconds[WHOLE] / RUN / seconds[name] if name in seconds else np.empty(0)
        row = _row(section, WHOLE, setting, ratio, f"of {name}", target)
        yield replace(row, note=absent[name]) if absent[name] else row


def _prepared(name: str, setting: Setting, repeat: int) -> Thunk:
    """A peer's suggestion; one that fails while it is prepared fails when it is called."""
    try:
        return PEERS[name].prepare(setting, repeat)
    except Exception as error:
        failure = error

        def fail() -> None:
            raise failure

        return fail


def _sampling(
    section: str, setting: Setting, plan: Plan, goals: Mapping[tuple[str, str], float] | None = None
) -> Iterator[Row]:
    """Draws of y* over m points, with and without screening, over two factorisations, with and without kernels."""

    def prepare(repeat: int) -> dict[str, Thunk]:
        bo = fitted(setting, repeat)
        points = candidate_grid(bo.space, max(setting.m - setting.n, 1), bo.X, np.random.default_rng(repeat))
        constraints, thresholds = [c.exploring() for c in bo.model.constraints], bo.acquisition.thresholds

        def draw(**options: Any) -> Any:
            rng = np.random.default_rng(repeat)
            return joint_optima(bo.model.objective, constraints, thresholds, points, NUM_SAMPLES, rng, **options)

        kernels = [latent.posterior.kernel for latent in (bo.model.objective, *constraints)]
        return {
            UNSCREENED: lambda: draw(tolerance=0.0),
            SCREENED: draw,
            FLOOR: lambda: _factorise(_covariance(kernel, points) for kernel in kernels),
            FACTORISATIONS: _factorisations(kernels, points),
        }

    seconds = interleaved(prepare, plan.target_repeats, discard=plan.discard)
    for what in (UNSCREENED, SCREENED):
        for unit in (FLOOR, FACTORISATIONS):
            target = (goals or {}).get((what, unit))
            yield _row(section, what, setting, seconds[what] / seconds[unit], unit, target)


def _covariance(kernel: Matern52, points: Array) -> Array:
    covariance = kernel(points, points)
    covariance[np.diag_indices_from(covariance)] += NUGGET * kernel.variance
    return covariance


def _factorise(matrices: Iterable[Array]) -> None:
    """Cholesky factorisations in place."""
    for matrix in matrices:
        # The transpose of a C-ordered symmetric matrix is Fortran-ordered, which spares a copy.
        _, info = lapack.dpotrf(matrix.T, lower=1, overwrite_a=1, clean=0)
        if info:
            raise CMESError(f"a covariance of order {len(matrix)} is not positive definite")


def _factorisations(kernels: Sequence[Matern52], points: Array) -> Thunk:
    """Factorise the covariances of ``points`` (m, d), which are at hand; once only, because they are overwritten."""
    matrices = [_covariance(kernel, points) for kernel in kernels]
    return lambda: _factorise(matrices)


def _gradient(setting: Setting, plan: Plan, batch: int = 100, calls: int = 5) -> Iterator[Row]:
    """The acquisition with its gradient over its value, for a batch of points."""

    def prepare(repeat: int) -> dict[str, Thunk]:
        bo = fitted(setting, repeat)
        bo.acquisition.update()
        points = [sobol(batch, setting.d, calls * repeat + call) for call in range(calls)]
        return {
            "value": lambda: [bo.acquisition.acquisition_function(X) for X in points],
            "gradient": lambda: [bo.acquisition.acquisition_function_withGradients(X) for X in points],
        }

    seconds = interleaved(prepare, plan.target_repeats, discard=plan.discard)
    what = f"acquisition with gradient, {batch} points"
    yield _row("targets", what, setting, seconds["gradient"] / seconds["value"], "of its value", 3.0)


def _refit(setting: Setting, plan: Plan, labels_more: int = 10) -> Iterator[Row]:
    """The model of the labels after each of ten new observations, over the same from scratch.

    Ten, because hyperparameters are learned anew only now and then; the mean is what an observation costs.
    """

    def prepare(repeat: int) -> dict[str, Thunk]:
        counts = range(setting.n, setting.n + labels_more)
        X, _, labels = observations(replace(setting, n=counts[-1]), repeat)
        lower, width = np.zeros(setting.d), np.ones(setting.d)

        def refit(model: BinaryConstraint, count: int) -> Any:
            model.fit(X[:count], labels[:count], lower, width)
            return model.exploring().posterior

        old = BinaryConstraint()
        K = refit(old, setting.n - 1).kernel(X, X)

        def sites(count: int, start: tuple[Array, Array] | None = None) -> Any:
            prior, seen = K[:count, :count], labels[:count]
            return propagate(prior, seen, old.link, start, tolerance=FINAL_TOLERANCE, max_sweeps=MAX_SWEEPS)

        before = sites(setting.n - 1)
        start = np.append(before.tau, MIN_PRECISION), np.append(before.nu, 0.0)
        return {
            "warm sites": lambda: sites(setting.n, start),
            "cold sites": lambda: sites(setting.n),
            "warm fit": lambda: [refit(old, count) for count in counts],
            "cold fit": lambda: [refit(BinaryConstraint(), count) for count in counts],
        }

    seconds = interleaved(prepare, plan.target_repeats, discard=plan.discard)
    for what, name in (
        ("expectation propagation after one label", "sites"),
        ("model of labels, mean over ten labels", "fit"),
    ):
        yield _row("targets", what, setting, seconds[f"warm {name}"] / seconds[f"cold {name}"], "of a cold one", 0.3)


# ------------------------------------------------------------------------------------------------------------
# Command
# ------------------------------------------------------------------------------------------------------------


def run(sections: Sequence[str], plan: Plan, output: Path, command: str) -> list[Path]:
    """Measure, print and write everything.

    Parameters
    ----------
    output : Path
        The CSV file, to which rows are added as they are measured; a Markdown file and a PNG lie beside it. Sections
        that it holds already and that are not measured now are kept.
    command : str
        How this was asked for, for the Markdown.
    """
    unknown = [name for name in sections if name not in SECTIONS]
    if unknown or not sections:
        raise CMESError(f"--sections takes some of {', '.join(SECTIONS)}, got {', '.join(unknown) or 'none'}")
    made = [row for row in speed_report.recorded(output) if row.section not in sections]
    kind = speed_report.machine(package for peer in PEERS.values() for package in peer.packages)
    print(kind, flush=True)
    with speed_report.recorder(output) as record:
        for row in made:
            record(row)
        for name in SECTIONS:
            for row in SECTIONS[name](plan) if name in sections else ():
                made.append(row)
                record(row)
                print(row, flush=True)
    beside = output.with_suffix(".md"), output.with_suffix(".png")
    beside[0].write_text(speed_report.markdown(made, command, kind))
    speed_report.figure(made, beside[1])
    print("\n" + "\n".join(map(str, speed_report.tables(made, "targets"))))
    return [output, *beside]
