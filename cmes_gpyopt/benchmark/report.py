"""Tables of finished runs: Markdown that reads well as plain text, and one long CSV."""

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..errors import CMESError
from ..problems import BY_NAME
from . import statistics
from .records import Run
from .statistics import Estimate

Array = npt.NDArray[np.float64]
Pair = tuple[str, int]


@dataclass(frozen=True)
class Table:
    """A table with a title and a note."""

    title: str
    header: list[str]
    rows: list[list[str]]
    note: str = ""

    def __str__(self) -> str:
        cells = [self.header, *self.rows]
        widths = [max(len(row[j]) for row in cells) for j in range(len(self.header))]
        lines = ["| " + " | ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) + " |" for row in cells]
        rule = "|" + "|".join("-" * (w + 2) for w in widths) + "|"
        text = [f"### {self.title}", "", lines[0], rule, *lines[1:], ""]
        return "\n".join([*text, self.note, ""] if self.note else text)


@dataclass(frozen=True)
class Comparison:
    """Runs of several methods on the same problems and seeds."""

    methods: list[str]
    runs: dict[tuple[str, Pair], Run]
    pairs: list[Pair] = field(default_factory=list)
    """problem and seed, those that every method has"""
    missing: int = 0
    """pairs left out because some method lacks them"""

    @property
    def problems(self) -> list[str]:
        """Problems in the order of the suite, others after them."""
        names = dict.fromkeys(problem for problem, _ in self.pairs)
        known = [name for name in BY_NAME if name in names]
        return known + [name for name in names if name not in known]

    @property
    def strata(self) -> npt.NDArray[np.int_]:
        """Number of the problem of each pair, (n,)."""
        return np.array([self.problems.index(problem) for problem, _ in self.pairs])

    def of(self, method: str) -> list[Run]:
        """The runs of a method, one for each pair."""
        return [self.runs[method, pair] for pair in self.pairs]

    def each(self, method: str, measure: Callable[[Run], float]) -> Array:
        """A measure of every run of a method, (n,)."""
        return np.array([measure(run) for run in self.of(method)], dtype=float)

    def ranks(self) -> dict[str, Array]:
        """For each method the mean rank over the suggestions of every pair, (n,)."""
        table = np.empty((len(self.methods), len(self.pairs)))
        for column, pair in enumerate(self.pairs):
            best = np.array([_best(self.runs[method, pair]) for method in self.methods])
            table[:, column] = statistics.ranks(best).mean(axis=1)
        return dict(zip(self.methods, table, strict=True))


def compare(runs: Sequence[Run], methods: Sequence[str] | None = None) -> Comparison:
    """Put runs side by side; pairs of problem and seed that some method lacks are left out."""
    if len({(run.feedback, run.start) for run in runs}) > 1:
        raise CMESError("the runs differ in feedback or start; report them separately")
    table: dict[tuple[str, Pair], Run] = {}
    for run in runs:
        same = table.setdefault((run.method, (run.problem, run.seed)), run)
        if not np.array_equal(same.values, run.values):
            raise CMESError(
                f"{run.method} on {run.problem} with seed {run.seed} occurs twice with different results; "
                "report these files separately"
            )
    found = list(dict.fromkeys(run.method for run in runs))
    chosen = list(methods) if methods else found
    unknown = [method for method in chosen if method not in found]
    if unknown or not runs:
        raise CMESError(
            f"there are no runs of {', '.join(unknown) or 'any method'}; found {', '.join(found) or 'none'}"
        )
    everything = sorted({pair for method, pair in table if method in chosen})
    pairs = [pair for pair in everything if all((method, pair) in table for method in chosen)]
    if not pairs:
        raise CMESError(f"no problem and seed has been run with all of {', '.join(chosen)}; name fewer with --methods")
    for pair in pairs:
        if len({len(table[method, pair].values) for method in chosen}) > 1:
            raise CMESError(f"the methods have different numbers of evaluations on {pair[0]}; use --evaluations")
    return Comparison(chosen, table, pairs, len(everything) - len(pairs))


def truncated(run: Run, evaluations: int) -> Run:
    """The beginning of a run."""
    count = min(evaluations, run.evaluations)
    return replace(
        run,
        evaluations=count,
        values=run.values[: run.initial + count],
        boundary=run.boundary[:count],
        seconds=run.seconds[:count],
    )


# ------------------------------------------------------------------------------------------------------------
# Measures of one run
# ------------------------------------------------------------------------------------------------------------


def _best(run: Run) -> Array:
    """Best feasible value after each suggestion, (evaluations,)."""
    return statistics.best_so_far(run.values)[run.initial :]


def _regret(run: Run) -> Array:
    return statistics.regret(statistics.best_so_far(run.values), run.f_opt, run.typical)


def final_regret(run: Run) -> float:
    """Regret at the end."""
    return float(_regret(run)[-1])


def final_log_regret(run: Run) -> float:
    """log10 of the regret at the end."""
    return float(statistics.log_regret(_regret(run))[-1])


def mean_log_regret(run: Run) -> float:
    """Mean over the suggestions of log10 of the regret."""
    return float(statistics.log_regret(_regret(run))[run.initial :].mean())


def until_within(run: Run, tolerance: float) -> float:
    """Suggestions until the regret is at most ``tolerance``."""
    return statistics.evaluations_until(_regret(run) <= tolerance, run.initial)


def until_feasible(run: Run) -> float:
    """Suggestions until the first feasible evaluation."""
    return statistics.evaluations_until(np.isfinite(run.values), run.initial)


def infeasible_share(run: Run) -> float:
    """Share of the suggestions that were infeasible."""
    return float((~np.isfinite(run.values[run.initial :])).mean())


def found_nothing(run: Run) -> float:
    """1 if no evaluation was feasible, else 0."""
    return float(not np.isfinite(run.values).any())


def boundary_share(run: Run) -> float:
    """Share of the suggestions on the boundary."""
    return float(run.boundary.mean())


# ------------------------------------------------------------------------------------------------------------
# Tables
# ------------------------------------------------------------------------------------------------------------


def tables(comparison: Comparison, reference: str | None = None, below: Sequence[float] = ()) -> list[Table]:
    """All tables.

    Parameters
    ----------
    reference : str, optional
        Method that the others are compared with; the first by default.
    below : sequence of float
        Objective values; the share of runs that end below them is shown.
    """
    reference = reference or comparison.methods[0]
    if reference not in comparison.methods:
        raise CMESError(f"the reference {reference!r} is not among the methods {', '.join(comparison.methods)}")
    made = [summary_table(comparison), *per_problem_tables(comparison)]
    if len(comparison.methods) > 1:
        made.insert(1, paired_table(comparison, reference))
    if comparison.of(reference)[0].start == "infeasible":
        made.append(first_feasible_table(comparison))
    if below:
        made.append(below_table(comparison, below))
    return made


def summary_table(c: Comparison) -> Table:
    """One line for each method, best average rank first."""
    by_rank = {method: statistics.stratified(values, c.strata) for method, values in c.ranks().items()}
    rows = [[method, _with_error(by_rank[method]), *_summary_cells(c, method)] for method in c.methods]
    rows.sort(key=lambda row: by_rank[row[0]].mean)
    header = ["method", "average rank", "final regret", "log10 final regret", "mean log10 regret", "within 10 %"]
    header += ["within 1 %", "infeasible", "nothing found", "on boundary", "s / suggestion"]
    first = c.of(c.methods[0])
    lengths = sorted({run.evaluations for run in first})
    note = (
        f"{len(c.problems)} problems, {len(c.pairs)} runs of each method, {first[0].initial} + "
        f"{' or '.join(map(str, lengths))} evaluations, {first[0].feedback} feedback, {first[0].start} start"
        f"{f'; {c.missing} pairs of problem and seed left out because a method lacks them' if c.missing else ''}. "
        "Ranks and logarithms are averaged over the suggestions, all over seeds and then problems; ± is one standard error. "
        f"Regret: 0 at the optimum, 1 at a typical feasible value, {statistics.CEILING:g} where nothing feasible was found; "
        f"logarithms from {statistics.FLOOR:g}. Within: share of runs that come so close to the optimum, and the median of the "
        "suggestions that all runs needed."
    )
    return Table("Summary", header, rows, note)


def _summary_cells(c: Comparison, method: str) -> list[str]:
    def mean(measure: Callable[[Run], float]) -> Estimate:
        return statistics.stratified(c.each(method, measure), c.strata)

    cells = [_with_error(mean(measure)) for measure in (final_regret, final_log_regret, mean_log_regret)]
    for tolerance in (0.1, 0.01):
        needed = np.array([until_within(run, tolerance) for run in c.of(method)])
        cells.append(f"{np.isfinite(needed).mean():.0%}, {_count(float(np.median(needed)))}")
    cells += [f"{mean(measure).mean:.1%}" for measure in (infeasible_share, found_nothing, boundary_share)]
    seconds = np.concatenate([run.seconds for run in c.of(method)])
    return [*cells, f"{np.median(seconds):.2g}"]


def paired_table(c: Comparison, reference: str) -> Table:
    """Every other method minus the reference, on the same problems and seeds."""
    by_rank = c.ranks()
    rows = []
    for method in c.methods:
        if method == reference:
            continue
        cells = [method]
        for values in (
            by_rank,
            {name: c.each(name, mean_log_regret) for name in (method, reference)},
            {name: c.each(name, final_log_regret) for name in (method, reference)},
        ):
            found = statistics.paired(values[method], values[reference], c.strata)
            cells += [_with_error(Estimate(found.difference, found.error)), f"{found.p:.2g}"]
        rows.append(cells)
    header = ["method", "average rank", "p", "mean log10 regret", "p", "log10 final regret", "p"]
    note = f"Positive: {reference} is better. p: Wilcoxon's signed-rank test over {len(c.pairs)} pairs of problem and seed."
    return Table(f"Difference from {reference}", header, rows, note)


def per_problem_tables(c: Comparison) -> list[Table]:
    """Average rank, final regret and best value on every problem."""
    by_rank = c.ranks()

    def table(title: str, values: dict[str, Array]) -> Table:
        rows = []
        for number, problem in enumerate(c.problems):
            here = c.strata == number
            found = [statistics.stratified(values[method][here], c.strata[here]) for method in c.methods]
            rows.append([problem, *map(_with_error, found)])
        return Table(title, ["problem", *c.methods], rows)

    return [
        table("Average rank by problem", by_rank),
        table("log10 final regret by problem", {m: c.each(m, final_log_regret) for m in c.methods}),
        table("Best feasible value by problem", {m: c.each(m, lambda run: float(_best(run)[-1])) for m in c.methods}),
    ]


def first_feasible_table(c: Comparison) -> Table:
    """Median over seeds of the suggestions until the first feasible one."""
    rows = []
    for number, problem in enumerate(c.problems):
        here = c.strata == number
        known = f"{BY_NAME[problem].feasible_fraction:.3g}" if problem in BY_NAME else ""
        medians = [float(np.median(c.each(method, until_feasible)[here])) for method in c.methods]
        rows.append([problem, known, *map(_count, medians)])
    note = "Median over seeds; never: more than half of the runs found no feasible point."
    return Table("Suggestions until the first feasible one", ["problem", "feasible", *c.methods], rows, note)


def below_table(c: Comparison, below: Sequence[float]) -> Table:
    """Share of runs that end below given values."""
    rows = []
    for number, problem in enumerate(c.problems):
        here = c.strata == number
        for limit in below:
            shares = [(c.each(m, lambda run: float(_best(run)[-1])) < limit)[here].mean() for m in c.methods]
            rows.append([problem, f"{limit:g}", *(f"{share:.1%}" for share in shares)])
    return Table("Share of runs that end below a value", ["problem", "value", *c.methods], rows)


def _with_error(estimate: Estimate) -> str:
    if not np.isfinite(estimate.mean):
        return "none"
    error = "" if np.isnan(estimate.error) else f" ± {estimate.error:.2g}"
    return f"{estimate.mean:.4g}{error}"


def _count(value: float) -> str:
    return f"{value:g}" if np.isfinite(value) else "never"


# ------------------------------------------------------------------------------------------------------------
# Files
# ------------------------------------------------------------------------------------------------------------


MEASURES: dict[str, Callable[[Run], float]] = {
    "final regret": final_regret,
    "log10 final regret": final_log_regret,
    "mean log10 regret": mean_log_regret,
    "infeasible": infeasible_share,
    "nothing found": found_nothing,
    "on boundary": boundary_share,
    "seconds per suggestion": lambda run: float(np.median(run.seconds)),
}


def long_csv(c: Comparison) -> str:
    """Every measure of every method, over all problems and on each: scope, method, measure, mean, standard_error."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["scope", "method", "measure", "mean", "standard_error"])
    by_rank = c.ranks()
    for method in c.methods:
        measured = {"average rank": by_rank[method]} | {k: c.each(method, f) for k, f in MEASURES.items()}
        for name, values in measured.items():
            for number, scope in enumerate(["all", *c.problems]):
                here = np.ones(len(values), dtype=bool) if scope == "all" else c.strata == number - 1
                found = statistics.stratified(values[here], c.strata[here])
                writer.writerow([scope, method, name, f"{found.mean:.6g}", f"{found.error:.3g}"])
    return buffer.getvalue()


def write(comparison: Comparison, made: Sequence[Table], path: Path) -> list[Path]:
    """Write the tables to ``path`` as Markdown and the long CSV beside it."""
    beside = path.with_name(path.stem + "_summary.csv")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(map(str, made)))
    beside.write_text(long_csv(comparison))
    return [path, beside]
