"""Exceptions of the public interface."""


class CMESError(ValueError):
    """A call the library cannot act on; the message says what was expected, what came, and what to do."""


class Infeasible(Exception):
    """Raised by an objective to say that this evaluation failed: ``raise Infeasible("out of memory")``.

    Parameters
    ----------
    reason : str
        Recorded as the cause.
    constraint : str, optional
        Name of the binary constraint that failed; the first one by default.
    """

    def __init__(self, reason: str = "", constraint: str | None = None) -> None:
        super().__init__(reason)
        self.constraint = constraint

    def __reduce__(self) -> tuple[type, tuple[str, str | None]]:
        return type(self), (str(self), self.constraint)
