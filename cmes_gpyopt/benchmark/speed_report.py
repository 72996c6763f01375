"""Measurements of the speed benchmark as CSV, Markdown and a figure."""

import csv
import importlib.metadata
import os
import platform
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import CMESError
from .report import Table
from .speed_cases import PARTS

Array = npt.NDArray[np.float64]

SHARE, EXPONENT, MEGABYTES = "share of the suggestion", "exponent in ", "MB at the peak"
"""Units; an exponent is followed by what it is an exponent of. Every other unit is what a time was divided by."""

TITLES = {
    "targets": "Targets",
    "peers": "One suggestion against other libraries",
    "limit": "Sampling y* against the Cholesky factorisations it cannot do without",
    "breakdown": "Parts of one suggestion",
    "growth": "Growth",
}
NOTES = {
    "targets": "Pass: the median is at most the target.",
    "peers": "Time of a suggestion of this library over that of the other one, from the same observations. Where libraries "
    "need a value at every point or know no constraints, hidden values are the largest one seen.",
    "limit": "dpotrf: LAPACK's Cholesky factorisation of order m; a kernel: an evaluation of the m by m covariance.",
    "breakdown": "Shares of the parts, and the whole over two factorisations by dpotrf of order m.",
    "growth": "Fitted to all sizes; the two sizes that are not varied are held. Peaks: what Python and NumPy allocate.",
}


@dataclass(frozen=True)
class Row:
    """One measured ratio, with its quartiles over the repeats."""

    section: str
    what: str
    n: int | None
    d: int | None
    m: int | None
    feedback: str
    median: float
    lower_quartile: float
    upper_quartile: float
    unit: str
    target: float | None = None
    """largest value that is good enough"""
    note: str = ""
    """why there is no value, or what to know about it"""

    @property
    def verdict(self) -> str:
        """Whether the target is met, if there is one."""
        if self.target is None:
            return ""
        if np.isnan(self.median):
            return "not measured"
        return ("pass" if self.median <= self.target else "miss") + (f" ({self.note})" if self.note else "")

    @property
    def value(self) -> str:
        """Median and quartiles, or why there are none."""
        if np.isnan(self.median):
            return self.note or "none"
        if self.unit == MEGABYTES:
            return _number(self.median)
        return f"{_number(self.median)} ({_number(self.lower_quartile)} to {_number(self.upper_quartile)})"

    def __str__(self) -> str:
        sizes = [f"{name}={size}" for name in "ndm" if (size := getattr(self, name)) is not None]
        goal = "" if self.target is None else f"; target {self.target:g}: {self.verdict}"
        return f"{self.section}: {self.what} [{' '.join([*sizes, self.feedback])}], {self.unit}: {self.value}{goal}"


def _number(value: float) -> str:
    """A number with as many digits as a measurement of time deserves."""
    return f"{value:.{2 if abs(value) < 10.0 else 1 if abs(value) < 100.0 else 0}f}"


def summarised(
    section: str,
    what: str,
    sizes: tuple[int | None, int | None, int | None],
    feedback: str,
    values: Array,
    unit: str,
    target: float | None = None,
    note: str = "",
) -> Row:
    """A row from values (repeats,); those that could not be measured are nan."""
    good = values[np.isfinite(values)]
    quartiles = [float(q) for q in np.quantile(good, (0.25, 0.5, 0.75))] if len(good) else [float("nan")] * 3
    if len(good) < len(values):
        note = note or f"failed in {len(values) - len(good)} of {len(values)} repeats"
    return Row(section, what, *sizes, feedback, quartiles[1], quartiles[0], quartiles[2], unit, target, note)


@contextmanager
def recorder(path: Path) -> Iterator[Any]:
    """A function that appends a row to the CSV file at ``path``, a new one, and to disk at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([field.name for field in fields(Row)] + ["verdict"])

        def record(row: Row) -> None:
            cells = [f"{cell:.6g}" if isinstance(cell, float) else cell for cell in astuple(row)]
            writer.writerow([*cells, row.verdict])
            file.flush()

        yield record


def recorded(path: Path) -> list[Row]:
    """The rows of a CSV file that :func:`recorder` wrote; none if there is no such file."""
    if not path.exists():
        return []

    def cell(name: str, text: str) -> Any:
        if name in ("n", "d", "m", "target"):
            return (float if name == "target" else int)(text) if text else None
        return float(text) if name in ("median", "lower_quartile", "upper_quartile") else text

    names = [field.name for field in fields(Row)]
    with path.open(newline="") as file:
        return [Row(**{name: cell(name, line[name]) for name in names}) for line in csv.DictReader(file)]


def machine(packages: Iterable[str] = ()) -> str:
    """The kind of machine, its threads, and the versions that were measured; no names of hosts, no paths."""
    names = ("numpy", "scipy", "GPy", "GPyOpt", *packages)
    versions = [f"{name} {version}" for name in dict.fromkeys(names) if (version := _version(name))]
    settings = [f"{name}={os.environ[name]}" for name in THREADS if name in os.environ]
    threads = ", ".join(settings) or "OMP_NUM_THREADS not set (as many threads as each library chooses)"
    python = f"Python {platform.python_version()}"
    return f"{_processor()}, {os.cpu_count()} cores, {threads}; {', '.join([python, *versions])}"


THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


# ------------------------------------------------------------------------------------------------------------
# Markdown
# ------------------------------------------------------------------------------------------------------------


def markdown(rows: Sequence[Row], command: str, kind: str) -> str:
    """All tables, with the command that made them and the kind of machine."""
    intro = (
        f"Made by `{command}` on {kind}. Ratios of times measured in turn in one run: median (lower to upper "
        "quartile over the repeats). A section that this command does not name was measured by one that does.\n"
    )
    return "\n".join([intro, *(str(table) for section in TITLES for table in tables(rows, section))])


def tables(rows: Sequence[Row], section: str) -> list[Table]:
    """The tables of a section."""
    here = [row for row in rows if row.section == section]
    if not here:
        return []
    title, note = TITLES[section], NOTES[section]
    if section == "targets":
        cells = [[row.what, _size(row), row.value, row.unit, _goal(row), row.verdict] for row in here]
        return [Table(title, ["what", "at", "ratio", "to", "target", "verdict"], cells, note)]
    if section == "growth":
        exponents = [row for row in here if row.unit.startswith(EXPONENT)]
        peaks = [row for row in here if row.unit == MEGABYTES]
        made = [_pivot("Exponents of growth", exponents, ("what",), note)] if exponents else []
        return [*made, _pivot("Peak memory in MB", peaks, ("n", "d", "m"), "")]
    return [_pivot(title, here, ("m",) if section == "limit" else ("feedback", "d", "n"), note)]


def _pivot(title: str, rows: Sequence[Row], index: tuple[str, ...], note: str) -> Table:
    """A line for each value of the ``index`` fields and a column for each of what was measured."""
    lines = dict.fromkeys(tuple(getattr(row, name) for name in index) for row in rows)
    columns = dict.fromkeys(_heading(row) for row in rows)
    cells = {(tuple(getattr(row, name) for name in index), _heading(row)): row.value for row in rows}
    body = [[*map(_text, line), *(cells.get((line, name), "") for name in columns)] for line in lines]
    return Table(title, [*index, *columns], body, note)


def _heading(row: Row) -> str:
    if row.section == "peers" or row.unit.startswith(EXPONENT):
        return row.unit
    return row.what if row.unit in (SHARE, MEGABYTES) else f"{row.what}, {row.unit}"


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _goal(row: Row) -> str:
    return "" if row.target is None else f"{row.target:g}"


def _size(row: Row) -> str:
    return ", ".join([f"{name}={size}" for name in "ndm" if (size := getattr(row, name)) is not None] + [row.feedback])


# ------------------------------------------------------------------------------------------------------------
# Figure
# ------------------------------------------------------------------------------------------------------------


def figure(rows: Sequence[Row], path: Path) -> None:
    """Write one PNG with a panel for each of peers, parts, limit and exponents."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise CMESError("the figure needs matplotlib: install it with pip install 'cmes_gpyopt[plot]'") from error
    drawing = Figure(figsize=(12.0, 8.5), layout="constrained")
    for ax, draw in zip(drawing.subplots(2, 2).flat, (_peers, _parts, _limit, _exponents), strict=True):
        draw(ax, [row for row in rows if not np.isnan(row.median)])
    drawing.savefig(path, dpi=120)


def _line(ax: Any, rows: Sequence[Row], across: str, label: str) -> None:
    x, middle = [getattr(row, across) for row in rows], np.array([row.median for row in rows])
    spread = [middle - [row.lower_quartile for row in rows], [row.upper_quartile for row in rows] - middle]
    ax.errorbar(x, middle, yerr=spread, marker="o", capsize=3, label=label)
    ax.set(xscale="log", yscale="log")
    ax.set_xticks(x, [str(size) for size in x])
    ax.set_xticks([], minor=True)


def _typical(rows: Sequence[Row], section: str) -> list[Row]:
    """Rows with binary feedback in the middle one of the dimensions."""
    here = [row for row in rows if row.section == section and row.feedback == "binary"]
    dimensions = sorted({row.d for row in here if row.d is not None})
    return [row for row in here if row.d == dimensions[len(dimensions) // 2]]


def _peers(ax: Any, rows: Sequence[Row]) -> None:
    here = _typical(rows, "peers")
    for unit in dict.fromkeys(row.unit for row in here):
        _line(ax, [row for row in here if row.unit == unit], "n", unit.removeprefix("of "))
    ax.axhline(1.0, color="grey", lw=0.8)
    _finish(ax, here, "one suggestion over that of another library", "observations n", "ratio of times")


def _parts(ax: Any, rows: Sequence[Row]) -> None:
    here = [row for row in _typical(rows, "breakdown") if row.unit == SHARE]
    sizes = list(dict.fromkeys(row.n for row in here))
    bottom = np.zeros(len(sizes))
    for part in PARTS:
        share = np.array([row.median for row in here if row.what == part])
        if len(share) == len(sizes):
            ax.bar([str(size) for size in sizes], share, bottom=bottom, label=part)
            bottom = bottom + share
    _finish(ax, here, "parts of one suggestion", "observations n", SHARE)


def _limit(ax: Any, rows: Sequence[Row]) -> None:
    here = [row for row in rows if row.section == "limit"]
    for what, unit in dict.fromkeys((row.what, row.unit) for row in here):
        _line(ax, [row for row in here if (row.what, row.unit) == (what, unit)], "m", f"{what}, {unit}")
    _finish(ax, here, "sampling y*", "points m", "ratio of times")


def _exponents(ax: Any, rows: Sequence[Row]) -> None:
    here = [row for row in rows if row.unit.startswith(EXPONENT)]
    names = list(dict.fromkeys(row.what for row in here))
    for number, unit in enumerate(dict.fromkeys(row.unit for row in here)):
        those = [row for row in here if row.unit == unit]
        middle = np.array([row.median for row in those])
        spread = [middle - [row.lower_quartile for row in those], [row.upper_quartile for row in those] - middle]
        height = [names.index(row.what) + 0.2 * number for row in those]
        ax.errorbar(middle, height, xerr=spread, fmt="o", capsize=3, label=unit)
    ax.set_yticks(range(len(names)), names)
    _finish(ax, here, "growth", "fitted exponent", "")
    ax.set_title("growth" if here else "growth: not measured")


def _finish(ax: Any, rows: Sequence[Row], title: str, across: str, up: str) -> None:
    first = rows[0] if rows else None
    place = f" ({first.feedback}, d={first.d})" if first is not None else ": not measured"
    ax.set(title=title + place, xlabel=across, ylabel=up)
    if rows:
        ax.legend(fontsize=7)
