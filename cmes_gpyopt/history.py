"""Every suggestion and every outcome of a run in one SQLite file.

What a call has stored is on disk when it returns, whatever kills the process afterwards. Points and outcomes are kept
as the bytes of their doubles, next to a form for people. ``<file>-wal`` and ``<file>-shm``, while they exist, are part
of it; the empty ``<file>.lock`` keeps a second process out. SQLite's write-ahead log needs a local disk.
"""

import importlib
import json
import logging
import os
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
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
SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE evaluation (
    id INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, status TEXT NOT NULL, attempts INTEGER NOT NULL DEFAULT 1,
    x BLOB NOT NULL, outcome BLOB CHECK ((outcome IS NOT NULL) = (status = 'done')), cause TEXT NOT NULL DEFAULT '',
    started TEXT NOT NULL, finished TEXT, seconds REAL, readable_x TEXT NOT NULL, readable_outcome TEXT
);
CREATE TABLE note (at TEXT NOT NULL, evaluation INTEGER REFERENCES evaluation (id), text TEXT NOT NULL);
"""
BUSY_SECONDS = 30.0
# Long enough for a process that was just killed to be gone, and for one of two that start together to win.
LOCK_SECONDS = 1.0


class History(AbstractContextManager["History"]):
    """The record of one run, opened for writing by one process at a time; methods may be called from any thread.

    Parameters
    ----------
    path : str or path
        Made where it does not exist; otherwise continued, provided it describes the same run.
    domain, known_constraints : list of dict
        As for GPyOpt.
    constraints : sequence of BinaryConstraint and RealConstraint
        The unknown constraints.
    seed : int
        Like the problem, it must be the one the file was made with.
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
        self._owner, self._threads = os.getpid(), threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._lock: sqlite3.Connection | None = None
        if not self._path.parent.is_dir():
            raise CMESError(f"{self._shown} cannot be made, its directory does not exist; make that first")
        if not _is_new(self._path):
            with _reading(self._path, self._shown):  # before anything is put next to a file of someone else
                pass
        try:
            self._lock = _process_lock(self._path, self._shown)
            if _is_new(self._path):
                _create(self._path, given)
            with _reading(self._path, self._shown, check=True) as (_, stored):
                _refuse_difference(stored, given, self._shown)
            self._connection = _connected(self._path)
            with self._transaction() as connection:
                connection.execute("UPDATE meta SET value = ? WHERE key = 'acquisition'", [json.dumps(acquisition)])
                _note(connection, f"process {self._owner} opened: cmes_gpyopt {__version__}, acquisition {acquisition}")
        except BaseException as error:
            self.close()
            if isinstance(error, sqlite3.Error | OSError):
                raise CMESError(f"{self._shown} cannot be written ({error}); check its directory and disk") from error
            raise
        if stored["acquisition"] != acquisition:
            logger.warning("%s was run with %s so far, now with %s", self._shown, stored["acquisition"], acquisition)

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """One transaction: on disk when the block ends, undone if it raises."""
        if os.getpid() != self._owner:
            raise CMESError(f"{self._shown} was opened by process {self._owner}; return the result to that process")
        with self._threads:
            if self._connection is None:
                raise CMESError(f"{self._shown} is closed; open it again")
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
        values = self._point(x, kind)
        with self._transaction() as connection:
            return _insert(connection, status="running", **values)

    def finished(self, id: int, evaluation: "Evaluation", seconds: float | None = None) -> None:
        """Store the outcome of a suggestion; there can be only one."""
        values = self._outcome(evaluation)
        with self._transaction() as connection:
            self._update_running(connection, id, seconds=seconds, finished=_after_all(connection), **values)

    def record(self, x: Array, evaluation: "Evaluation", *, kind: Kind = "told") -> int:
        """Store a point together with its outcome, and return its id."""
        values = self._point(x, kind) | self._outcome(evaluation)
        with self._transaction() as connection:
            return _insert(connection, finished=_after_all(connection), **values)

    def restart(self, id: int) -> None:
        """Say that a suggestion which was in flight when an earlier process died is evaluated once more."""
        with self._transaction() as connection:
            (attempts,) = connection.execute("SELECT max(attempts) + 1 FROM evaluation WHERE id = ?", [id]).fetchone()
            self._update_running(connection, id, attempts=attempts)
            _note(connection, f"restarted, attempt {attempts}", id)

    def abandon(self, id: int, reason: str) -> None:
        """Say that a suggestion will not be evaluated; the reason is stored as its cause."""
        with self._transaction() as connection:
            self._update_running(connection, id, status="abandoned", cause=reason)
            _note(connection, f"abandoned: {reason}", id)

    def running(self) -> list[tuple[int, Array]]:
        """Suggestions without an outcome, as (id, x) in the order they were made."""
        return [(id, _doubles(x)) for id, x, _, _ in self._rows("running", "id")]

    def done(self) -> list[tuple[int, Array, "Evaluation"]]:
        """Finished evaluations, as (id, x, evaluation) in the order in which they finished."""
        from .evaluation import Evaluation

        rows = [
            (id, _doubles(x), _doubles(outcome), cause) for id, x, outcome, cause in self._rows("done", "finished, id")
        ]
        return [(id, x, Evaluation(float(outcome[0]), outcome[1:], cause)) for id, x, outcome, cause in rows]

    def suggestion_count(self) -> int:
        """How many suggestions were started and not given up; initial points and what was told do not count."""
        query = "SELECT COUNT(*) FROM evaluation WHERE kind = 'suggestion' AND status IN ('running', 'done')"
        with self._transaction() as connection:
            return int(connection.execute(query).fetchone()[0])

    def _rows(self, status: str, order: str) -> list[tuple[int, bytes, bytes, str]]:
        query = f"SELECT id, x, outcome, cause FROM evaluation WHERE status = ? ORDER BY {order}"
        with self._transaction() as connection:
            return connection.execute(query, [status]).fetchall()

    def close(self) -> None:
        """Leave the file to other processes; closing twice does no harm."""
        if os.getpid() != self._owner:
            return
        with self._threads:
            for connection in (self._connection, self._lock):
                if connection is not None:
                    connection.close()
            self._connection = self._lock = None

    def __exit__(self, *_: object) -> None:
        self.close()

    def _point(self, x: Array, kind: str) -> dict[str, Any]:
        point = np.asarray(x, dtype="<f8")
        if point.shape != (self._inputs,):
            raise CMESError(f"x must have shape ({self._inputs},), got {point.shape}")
        if kind not in ("initial", "suggestion", "told"):
            raise CMESError(f"kind must be 'initial', 'suggestion' or 'told', got {kind!r}")
        return {"kind": kind, "x": point.tobytes(), "readable_x": _json(point), "started": _now()}

    def _outcome(self, evaluation: "Evaluation") -> dict[str, Any]:
        if np.shape(evaluation.c) != (self._outputs,):
            raise CMESError(f"the evaluation needs c of shape ({self._outputs},), got {np.shape(evaluation.c)}")
        outcome = np.append(evaluation.y, evaluation.c).astype("<f8")
        values = {"outcome": outcome.tobytes(), "readable_outcome": _json(outcome), "cause": evaluation.cause}
        return {"status": "done", **values}

    def _update_running(self, connection: sqlite3.Connection, id: int, **values: Any) -> None:
        assignments = ", ".join(f"{name} = ?" for name in values)
        query = f"UPDATE evaluation SET {assignments} WHERE id = ? AND status = 'running'"
        if connection.execute(query, [*values.values(), id]).rowcount == 1:
            return
        found = connection.execute("SELECT status, cause FROM evaluation WHERE id = ?", [id]).fetchone()
        if found is None:
            raise CMESError(f"{self._shown} has no evaluation {id}; pass an id that suggested returned")
        if found[0] == "done":
            raise CMESError(f"evaluation {id} of {self._shown} already has its outcome, which cannot be changed")
        raise CMESError(f"evaluation {id} of {self._shown} was given up ({found[1]}); store a late result with record")


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
    names = ["id", "kind", "status", "attempts", "cause", "started", "finished", "seconds", "x", "outcome"]
    with _reading(Path(path).resolve(), str(path)) as (connection, meta):
        rows = connection.execute(f"SELECT {', '.join(names)} FROM evaluation ORDER BY id").fetchall()
    types = dict.fromkeys(names, "O") | {"id": "i8", "attempts": "i8", "seconds": "f8"}
    table = {name: np.array([row[j] for row in rows], types[name]) for j, name in enumerate(names)}
    variables, feedback = _columns(meta["domain"]), meta["feedback"]
    X = _doubles(b"".join(table.pop("x"))).reshape(-1, len(variables))
    unobserved = np.full(1 + len(feedback), np.nan).tobytes()
    outcomes = _doubles(b"".join(o or unobserved for o in table.pop("outcome"))).reshape(-1, 1 + len(feedback))
    last = {name: table.pop(name) for name in names[4:8]}
    last |= {name: np.array([t and t[:26] for t in last[name]], "M8[us]") for name in ("started", "finished")}
    feasible = (table["status"] == "done") & (outcomes[:, 1:] <= 0).all(axis=1)
    taken = {*table, *last, "objective", "feasible"}
    for (name, variable), column in zip(variables, X.T, strict=True):
        values = _entries(column, variable["domain"]) if variable["type"] == "categorical" else column
        table[_free_name(name, "variable_", taken)] = values
    table["objective"] = outcomes[:, 0]
    for constraint, column in zip(feedback, outcomes.T[1:], strict=True):
        table[_free_name(constraint["name"], "constraint_", taken)] = column + constraint.get("upper", 0.0)
    table |= {"feasible": feasible} | last
    try:
        return table if as_dict else importlib.import_module("pandas").DataFrame(table)
    except ImportError:
        return table


def _described(domain: Any, known: Any, constraints: Any, seed: int, acquisition: str) -> dict[str, Any]:
    """What identifies a run, in the types of JSON."""
    variables, feedback = [], []
    for j, entry in enumerate(domain):
        name, kind, values = entry.get("name", f"var_{j}"), entry.get("type", "continuous"), entry["domain"]
        size = len(values[0]) if kind == "bandit" else entry.get("dimensionality", 1)
        variables.append({"name": name, "type": kind, "domain": values, "dimensionality": size})
    for c in constraints:
        rest = {"kind": "binary", "link": c.link} if c.binary else {"kind": "real", "upper": c.upper}
        feedback.append({"name": c.name} | rest)
    expressions = [entry.get("constraint", entry.get("constrain")) for entry in known or ()]  # GPyOpt takes both keys
    described: dict[str, Any] = {"domain": variables, "known constraints": expressions, "feedback": feedback}
    described |= {"seed": seed, "acquisition": acquisition}
    return dict(json.loads(json.dumps(described, default=_plain)))


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic | range):
        return list(value) if isinstance(value, range) else value.tolist()
    raise CMESError(f"a history cannot hold {value!r}; describe the problem with numbers and strings")


def _facts(described: dict[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Each part of a description, in words and as a value; names first, so that what follows belongs together."""
    for part, noun in (("domain", "variable"), ("feedback", "constraint")):
        yield part, f"the {noun}s", [item["name"] for item in described[part]]
        for item in described[part]:
            yield from ((part, f"{noun} {item['name']!r} of {key}", value) for key, value in item.items())
    for part in ("known constraints", "seed"):
        yield part, f"the {part}", described[part]


def _refuse_difference(stored: dict[str, Any], given: dict[str, Any], shown: str) -> None:
    for (part, what, old), (_, _, new) in zip(_facts(stored), _facts(given), strict=False):
        if old != new:
            was, got = _readable(old), _readable(new)
            raise CMESError(f"{shown} was made with {what} {was}, got {got}; pass another file, or the same {part}")


def _readable(value: Any) -> str:
    return f"({', '.join(map(_readable, value))})" if isinstance(value, list) else repr(value)


def _columns(variables: list[dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    """Name and variable of each coordinate of the objective space, named as GPyOpt expands them."""
    sizes = [(variable, variable["dimensionality"]) for variable in variables]
    return [(v["name"] if size == 1 else f"{v['name']}_{k + 1}", v) for v, size in sizes for k in range(size)]


def _free_name(name: str, prefix: str, taken: set[str]) -> str:
    while name in taken:
        name = prefix + name
    taken.add(name)
    return name


def _entries(column: Array, categories: list[Any]) -> npt.NDArray[Any]:
    """Entries of a categorical domain from their indices; what is no index stays as it is."""
    known = dict(enumerate(categories))
    numeric = all(isinstance(entry, int | float) for entry in categories)
    entries = np.fromiter((known.get(value, value) for value in column.tolist()), dtype=object, count=len(column))
    return entries.astype(float) if numeric else entries


def _is_new(path: Path) -> bool:
    return not path.exists() or (path.is_file() and path.stat().st_size == 0)


def _process_lock(path: Path, shown: str) -> sqlite3.Connection:
    """Keep other processes out until this one closes the lock or dies.

    It is SQLite's own lock on a second, empty file: unlike flock's it does not live on in forked workers.
    """
    lock = sqlite3.connect(f"{path}.lock", timeout=LOCK_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        lock.execute("PRAGMA journal_mode = OFF")
        lock.execute("BEGIN EXCLUSIVE")
    except sqlite3.OperationalError as error:
        lock.close()
        if "locked" not in str(error):
            raise
        raise CMESError(f"{shown} is open in another run; wait for it, close it, or pass another file") from error
    return lock


def _create(path: Path, described: dict[str, Any]) -> None:
    """Make the file under another name first, so that it is whole whenever it is seen."""
    draft = path.with_name(f"{path.name}.new")
    draft.unlink(missing_ok=True)
    meta = {"schema": SCHEMA_VERSION, "library": __version__, "created": _now()} | described
    with closing(sqlite3.connect(draft)) as connection, connection:
        connection.executescript(f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA journal_mode = WAL; {SCHEMA}")
        connection.executemany("INSERT INTO meta VALUES (?, ?)", [(key, json.dumps(v)) for key, v in meta.items()])
    os.replace(draft, path)


def _connected(path: Path) -> sqlite3.Connection:
    uri = f"{path.as_uri()}?mode=rw"
    connection = sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    for pragma in ("journal_mode = WAL", "synchronous = FULL", "fullfsync = ON", "foreign_keys = ON"):
        connection.execute(f"PRAGMA {pragma}")
    return connection


@contextmanager
def _reading(path: Path, shown: str, *, check: bool = False) -> Iterator[tuple[sqlite3.Connection, dict[str, Any]]]:
    """A read-only connection, and the description of the run."""
    # Only SQLite may open the file: a plain open and close would undo the locks this process has on it.
    if not path.is_file() or _is_new(path):
        raise CMESError(f"{shown} is {'empty' if path.is_file() else 'no file'}; pass the history of a run")
    try:
        # Where nothing can be put next to the file, SQLite reads it only if told that nobody is writing.
        writable = os.access(path.parent, os.W_OK) or Path(f"{path}-wal").exists()
        uri = f"{path.as_uri()}?{'mode=ro' if writable else 'immutable=1'}"
        with closing(sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None)) as connection:
            if connection.execute("PRAGMA application_id").fetchone() != (APPLICATION_ID,):
                raise CMESError(f"{shown} was made by another program; pass the history of a run, or a new file")
            meta = {key: json.loads(value) for key, value in connection.execute("SELECT key, value FROM meta")}
            if meta["schema"] > SCHEMA_VERSION:
                raise CMESError(f"{shown} was made by cmes_gpyopt {meta['library']}, this is {__version__}; update it")
            if check and (found := connection.execute("PRAGMA quick_check").fetchone()[0]) != "ok":
                raise sqlite3.DatabaseError(found)
            yield connection, meta
    except (sqlite3.Error, KeyError, json.JSONDecodeError) as error:
        raise CMESError(f"{shown} is not a history, or is damaged ({error}); pass another file") from error


def _insert(connection: sqlite3.Connection, **values: Any) -> int:
    marks = ", ".join("?" * len(values))
    cursor = connection.execute(f"INSERT INTO evaluation ({', '.join(values)}) VALUES ({marks})", [*values.values()])
    return int(cursor.lastrowid or 0)


def _note(connection: sqlite3.Connection, text: str, evaluation: int | None = None) -> None:
    connection.execute("INSERT INTO note VALUES (?, ?, ?)", [_now(), evaluation, text])


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="microseconds")


def _after_all(connection: sqlite3.Connection) -> str:
    """The time, or, where the clock has been set back, just after the last outcome: their order is that of a resumed run."""
    now, (last,) = _now(), connection.execute("SELECT max(finished) FROM evaluation").fetchone()
    if last is None or now > last:
        return now
    return (datetime.fromisoformat(last) + timedelta(microseconds=1)).isoformat(timespec="microseconds")


def _doubles(blob: bytes) -> Array:
    return np.frombuffer(blob, dtype="<f8").astype(float)


def _json(values: Array) -> str:
    """For people and other tools; what JSON has no number for is null."""
    return json.dumps([value if np.isfinite(value) else None for value in values.tolist()])
