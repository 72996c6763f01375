"""The results file: a CSV with one line for each finished run, appended as it finishes."""

import csv
import fcntl
import io
import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import CMESError

Array = npt.NDArray[np.float64]


class Key(NamedTuple):
    """What tells one run from another."""

    problem: str
    method: str
    feedback: str
    start: str
    seed: int
    evaluations: int


@dataclass(frozen=True, eq=False)
class Run:
    """One finished run; see the package docstring."""

    problem: str
    method: str
    feedback: str
    """"binary" or "real" """
    start: str
    """"random" or "infeasible": how the initial points were drawn"""
    seed: int
    evaluations: int
    f_opt: float
    typical: float
    """the objective values at which the regret is 0 and 1"""
    values: Array
    """(initial + evaluations,), inf where infeasible"""
    boundary: npt.NDArray[np.bool_]
    """(evaluations,), suggestions on the edge of the box"""
    seconds: Array
    """(evaluations,), processor time for each suggestion"""
    version: str
    settings: str
    """options of the method, or the version of the peer, as JSON"""

    @property
    def key(self) -> Key:
        """What tells this run from another."""
        return Key(*(getattr(self, name) for name in Key._fields))

    @property
    def initial(self) -> int:
        """Number of initial points."""
        return len(self.values) - self.evaluations


COLUMNS = [field.name for field in fields(Run)]


class ResultsFile:
    """A results file open for appending; while it is, no other process may have it open.

    A line is written by one call, and is on disk before :meth:`append` returns. What a killed process left of a line is
    dropped when the file is opened again.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._file)
            raise CMESError(
                f"another process is writing to {self.path}; wait for it, or choose another --output"
            ) from None
        text = self.path.read_bytes()
        os.ftruncate(self._file, text.rfind(b"\n") + 1)
        if b"\n" not in text:
            self._write(_line(COLUMNS))
        self.runs = {run.key: run for run in read(self.path)}

    def append(self, run: Run) -> None:
        """Add a run."""
        self._write(_line(_texts(run)))
        self.runs[run.key] = run

    def sort(self) -> None:
        """Put the lines into the order of their keys, so that the order in which runs finished leaves no trace."""
        ordered = [self.runs[key] for key in sorted(self.runs)]
        scratch = self.path.with_name(self.path.name + ".new")
        scratch.write_bytes(b"".join([_line(COLUMNS), *(_line(_texts(run)) for run in ordered)]))
        scratch.replace(self.path)

    def _write(self, line: bytes) -> None:
        os.write(self._file, line)
        os.fsync(self._file)

    def __enter__(self) -> "ResultsFile":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._file)


def read(path: str | os.PathLike[str]) -> list[Run]:
    """The runs of a results file."""
    try:
        with open(path, newline="") as file:
            rows = list(csv.reader(file))
    except OSError as error:
        raise CMESError(f"cannot read the results file {path}: {error.strerror}") from error
    if not rows or rows[0] != COLUMNS:
        raise CMESError(f"{path} is not a results file of this version: its first line is not {','.join(COLUMNS)}")
    return [_run(row) for row in rows[1:] if len(row) == len(COLUMNS)]


def _line(cells: list[str]) -> bytes:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerow(cells)
    return buffer.getvalue().encode()


def _texts(run: Run) -> list[str]:
    cells: dict[str, Any] = asdict(run)
    cells["values"] = " ".join(f"{value:.12g}" for value in run.values)
    cells["boundary"] = "".join("01"[int(flag)] for flag in run.boundary)
    cells["seconds"] = " ".join(f"{value:.3g}" for value in run.seconds)
    return [str(cells[name]) for name in COLUMNS]


def _run(row: list[str]) -> Run:
    cells: dict[str, Any] = dict(zip(COLUMNS, row, strict=True))
    for name, kind in (("seed", int), ("evaluations", int), ("f_opt", float), ("typical", float)):
        cells[name] = kind(cells[name])
    cells["values"] = np.array(cells["values"].split(), dtype=float)
    cells["boundary"] = np.array([flag == "1" for flag in cells["boundary"]])
    cells["seconds"] = np.array(cells["seconds"].split(), dtype=float)
    return Run(**cells)
