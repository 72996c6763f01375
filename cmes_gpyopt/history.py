"""Every suggestion and every outcome of a run in one SQLite file.

What a call has stored is on disk when it returns, whatever kills the process afterwards: each call is one transaction,
synchronised to the disk before it returns. Points and outcomes are stored as the bytes of their doubles, next to a
form that people can read. While a run is open, ``<file>-wal`` and ``<file>-shm`` belong to it; the empty file
``<file>.lock`` keeps a second process out and may be deleted when no run is open. SQLite's write-ahead log needs a
local disk.
"""

import importlib
import json
import logging
import os
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import datetime, timezone
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from . import __version__
from .errors import CMESError

if TYPE_CHECKING:  # a history can be read without loading GPy
    from .evaluation import Evaluation
    from .models import Constraint

Array = npt.NDArray[np.float64]
Kind = Literal["initial", "suggestion", "told"]

logger = logging.getLogger(__name__)

APPLICATION_ID = 0x636D6573  # "cmes", in the header of the file
SCHEMA_VERSION = 1

BUSY_SECONDS = 30.0
# Long enough for a process that was just killed to be gone, and for one of two that start together to win.
LOCK_SECONDS = 1.0

SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE evaluation (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    kind TEXT NOT NULL CHECK (kind IN ('initial', 'suggestion', 'told')),
    status TEXT NOT NULL CHECK (status IN ('running', 'done', 'abandoned')),
    attempts INTEGER NOT NULL DEFAULT 1,
    x BLOB NOT NULL,
    outcome BLOB CHECK ((outcome IS NOT NULL) = (status = 'done')),
    cause TEXT NOT NULL DEFAULT '',
    started TEXT NOT NULL,
    finished TEXT,
    seconds REAL,
    readable_x TEXT NOT NULL,
    readable_y REAL,
    readable_c TEXT
);
CREATE TABLE note (at TEXT NOT NULL, evaluation INTEGER REFERENCES evaluation (id), text TEXT NOT NULL);
"""

# Columns of a loaded table that variables and constraints of the same name make way for.
RESERVED = ("id", "kind", "status", "attempts", "objective", "feasible", "cause", "started", "finished", "seconds")


class History:
    """The record of one run, opened for writing by one process at a time.

    Every method may be called from any thread.

    Parameters
    ----------
    path : str or path
        Made where it does not exist; otherwise continued, provided it describes the same run.
    domain, known_constraints : list of dict
        As for GPyOpt; compared with what the file was made with.
    constraints : sequence of BinaryConstraint and RealConstraint
        The unknown constraints; compared likewise.
    seed : int
        Compared likewise.
    acquisition : str
        Name of the method; a change is logged and noted in the file.

    Raises
    ------
    CMESError
        If the file belongs to another run or another program, is damaged, or is open in another process.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        domain: Sequence[Mapping[str, Any]],
        known_constraints: Sequence[Mapping[str, Any]] | None,
        constraints: Sequence["Constraint"],
        seed: int,
        acquisition: str,
    ) -> None:
        self._shown, self._path = str(path), Path(path).resolve()
        given = _described(domain, known_constraints, constraints, seed, acquisition)
        self._inputs, self._outputs = len(_columns(given["domain"])), len(given["feedback"])
        self._owner, self._thread_lock, self._closed = os.getpid(), threading.Lock(), False
        if not self._path.parent.is_dir():
            raise CMESError(f"{self._shown} cannot be made: its directory does not exist; make it first")
        if not _is_missing(self._path):
            with _reading(self._path, self._shown):  # before anything is put next to a file of someone else
                pass
        self._process_lock = _process_lock(self._path, self._shown)
        try:
            if _is_missing(self._path):
                _create(self._path, given)
            with _reading(self._path, self._shown) as (reader, stored):
                _refuse_damage(reader, self._shown)
                _refuse_difference(stored, given, self._shown)
            self._connection = self._connected()
            with self._transaction() as connection:
                connection.execute("UPDATE meta SET value = ? WHERE key = 'acquisition'", [json.dumps(acquisition)])
                _note(connection, f"opened by cmes_gpyopt {__version__}, acquisition {acquisition}, process {self._owner}")
        except BaseException:
            self.close()
            raise
        if stored["acquisition"] != acquisition:
            logger.warning("%s was made with %s, continues with %s", self._shown, stored["acquisition"], acquisition)

    def _connected(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            f"{self._path.as_uri()}?mode=rw",
            uri=True,
            timeout=BUSY_SECONDS,
            isolation_level=None,
            check_same_thread=False,
        )
        for pragma in ("journal_mode = WAL", "synchronous = FULL", "fullfsync = ON", "foreign_keys = ON"):
            connection.execute(f"PRAGMA {pragma}")
        return connection

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """One transaction: on disk when the block ends, undone if it raises."""
        if os.getpid() != self._owner:
            raise CMESError(
                f"{self._shown} was opened by process {self._owner} and process {os.getpid()} cannot write to it; "
                "return the result to the process that opened it"
            )
        with self._thread_lock:
            if self._closed:
                raise CMESError(f"the history {self._shown} is closed; open it again")
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                yield self._connection
                self._connection.execute("COMMIT")
            except sqlite3.Error as error:
                raise CMESError(f"{self._shown} cannot be written ({error}); check the disk and the file") from error
            finally:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")

    def suggested(self, x: Array, *, kind: Kind) -> int:
        """Store a point (d,) of the objective space that is about to be evaluated, and return its id."""
        blob, readable = self._point(x)
        with self._transaction() as connection:
            return _insert(connection, kind=kind, status="running", x=blob, readable_x=readable, started=_now())

    def finished(self, id: int, evaluation: "Evaluation", seconds: float | None = None) -> None:
        """Store the outcome of a suggestion; there can be only one."""
        outcome = self._outcome(evaluation)
        with self._transaction() as connection:
            self._update_running(connection, id, status="done", seconds=seconds, finished=_now(), **outcome)

    def record(self, x: Array, evaluation: "Evaluation", *, kind: Kind = "told") -> int:
        """Store a point together with its outcome, and return its id."""
        blob, readable = self._point(x)
        outcome, now = self._outcome(evaluation), _now()
        with self._transaction() as connection:
            return _insert(
                connection, kind=kind, status="done", x=blob, readable_x=readable, started=now, finished=now, **outcome
            )

    def restart(self, id: int) -> None:
        """Say that a suggestion which was in flight when an earlier process died is evaluated once more."""
        with self._transaction() as connection:
            attempts = connection.execute("SELECT attempts + 1 FROM evaluation WHERE id = ?", [id]).fetchone() or (1,)
            self._update_running(connection, id, attempts=attempts[0])
            _note(connection, f"restarted, attempt {attempts[0]}", id)

    def abandon(self, id: int, reason: str) -> None:
        """Say that a suggestion will not be evaluated; the reason is stored as its cause."""
        with self._transaction() as connection:
            self._update_running(connection, id, status="abandoned", cause=reason)
            _note(connection, f"abandoned: {reason}", id)

    def running(self) -> list[tuple[int, Array]]:
        """Suggestions without an outcome, as (id, x) in the order they were made."""
        with self._transaction() as connection:
            rows = connection.execute("SELECT id, x FROM evaluation WHERE status = 'running' ORDER BY id").fetchall()
        return [(id, _doubles(x)) for id, x in rows]

    def done(self) -> list[tuple[int, Array, "Evaluation"]]:
        """Finished evaluations, as (id, x, evaluation) in the order of their ids."""
        from .evaluation import Evaluation

        query = "SELECT id, x, outcome, cause FROM evaluation WHERE status = 'done' ORDER BY id"
        with self._transaction() as connection:
            rows = connection.execute(query).fetchall()
        read = [(id, _doubles(x), _doubles(outcome), cause) for id, x, outcome, cause in rows]
        return [(id, x, Evaluation(float(outcome[0]), outcome[1:], cause)) for id, x, outcome, cause in read]

    def close(self) -> None:
        """Give the file free for other processes; closing twice does no harm."""
        if os.getpid() != self._owner:
            return
        with self._thread_lock:
            self._closed = True
            if hasattr(self, "_connection"):
                self._connection.close()
            self._process_lock.close()

    def __enter__(self) -> "History":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _point(self, x: Array) -> tuple[bytes, str]:
        point = np.asarray(x, dtype="<f8")
        if point.shape != (self._inputs,):
            raise CMESError(f"x must have shape ({self._inputs},), got {point.shape}")
        return point.tobytes(), _readable(point)

    def _outcome(self, evaluation: "Evaluation") -> dict[str, Any]:
        c = np.asarray(evaluation.c, dtype="<f8")
        if c.shape != (self._outputs,):
            raise CMESError(f"the evaluation must have c of shape ({self._outputs},), got {c.shape}")
        return {
            "outcome": np.float64(evaluation.y).astype("<f8").tobytes() + c.tobytes(),
            "readable_y": float(evaluation.y),
            "readable_c": _readable(c),
            "cause": evaluation.cause,
        }

    def _update_running(self, connection: sqlite3.Connection, id: int, **values: Any) -> None:
        assignments = ", ".join(f"{name} = ?" for name in values)
        query = f"UPDATE evaluation SET {assignments} WHERE id = ? AND status = 'running'"
        if connection.execute(query, [*values.values(), id]).rowcount == 1:
            return
        found = connection.execute("SELECT status, cause FROM evaluation WHERE id = ?", [id]).fetchone()
        if found is None:
            raise CMESError(f"{self._shown} has no evaluation {id}; pass an id that suggested returned")
        if found[0] == "done":
            raise CMESError(f"evaluation {id} of {self._shown} already has its outcome; it cannot be changed")
        raise CMESError(
            f"evaluation {id} of {self._shown} was given up ({found[1]}); store a late result with record(x, evaluation)"
        )


def load_history(path: str | os.PathLike[str], *, as_dict: bool = False) -> Any:
    """Read a history as a table; this works at any time, also while a run is writing.

    Parameters
    ----------
    path : str or path
        A file made by :class:`History`.
    as_dict : bool
        Return a dict of arrays even where pandas is installed.

    Returns
    -------
    pandas.DataFrame, or dict of arrays of shape (R,) where pandas is not installed
        One row for each suggestion: id, kind, status, attempts, the variables by name (a categorical one as the entry
        of its domain; one of several dimensions as name_1, name_2), objective (nan where not observed), the constraints
        by name in the user's units (labels for a binary one), feasible, cause, started and finished (UTC), seconds. A
        variable or constraint that has the name of another column is called variable_name or constraint_name.

    Raises
    ------
    CMESError
        If the file is missing or is not a history.
    """
    names = "id, kind, status, attempts, cause, started, finished, seconds, x, outcome"
    with _reading(Path(path).resolve(), str(path)) as (connection, meta):
        rows = connection.execute(f"SELECT {names} FROM evaluation ORDER BY id").fetchall()
    raw: dict[str, list[Any]] = {name: [row[j] for row in rows] for j, name in enumerate(names.split(", "))}
    variables, feedback = _columns(meta["domain"]), meta["feedback"]
    X = _doubles(b"".join(raw["x"])).reshape(len(rows), len(variables))
    unobserved = np.full(1 + len(feedback), np.nan).tobytes()
    outcomes = _doubles(b"".join(o or unobserved for o in raw["outcome"])).reshape(len(rows), -1)

    table: dict[str, Any] = dict.fromkeys(RESERVED[:4])
    for (name, variable), column in zip(variables, X.T, strict=True):
        categorical = variable["type"] == "categorical"
        table[_free(table, "variable", name)] = _categories(column, variable["domain"]) if categorical else column
    table["objective"] = outcomes[:, 0] if rows else np.empty(0)
    for j, constraint in enumerate(feedback):
        values = outcomes[:, 1 + j] if rows else np.empty(0)
        table[_free(table, "constraint", constraint["name"])] = values + constraint.get("upper", 0.0)
    done = np.array([status == "done" for status in raw["status"]], dtype=bool)
    return _as_table(
        table
        | {
            "id": np.array(raw["id"], dtype=np.int64),
            "kind": np.array(raw["kind"], dtype=object),
            "status": np.array(raw["status"], dtype=object),
            "attempts": np.array(raw["attempts"], dtype=np.int64),
            "feasible": done & (outcomes[:, 1:] <= 0).all(axis=1) if rows else done,
            "cause": np.array(raw["cause"], dtype=object),
            "started": _times(raw["started"]),
            "finished": _times(raw["finished"]),
            "seconds": np.array(raw["seconds"], dtype=float),
        },
        as_dict,
    )
