"""Exceptions of the public interface."""


class CMESError(ValueError):
    """A call the library cannot act on; the message says what was expected, what came, and what to do."""


class Infeasible(Exception):
    """Raised by an objective to say that this evaluation failed: ``raise Infeasible("out of memory")``."""
