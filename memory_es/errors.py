"""The one tree of errors that callers see.

::

    MemoryEsError
    ├── InvalidInput   a value of yours is wrong; names the field          exit 2
    ├── SetupError     the installation must be mended first               exit 3
    ├── NotFound       no such memory, user or file (or not yours)         exit 4
    ├── AccessDenied   no key, or a key that the cluster refuses           exit 5
    ├── Conflict       somebody else changed it first                      exit 6
    ├── Unavailable    Elasticsearch cannot answer now; try again          exit 7
    └── ModelError     an embedder or reranker failed                      exit 8

Every error has a stable ``code`` that programs may match, a ``remedy`` (what to do next, one
sentence) and ``retryable``. Messages never carry memory text or keys.
"""

from __future__ import annotations

from typing import ClassVar


class MemoryEsError(Exception):
    """Base of every error that this package raises on purpose.

    ``str(error)`` is one line: the message, then the remedy.
    """

    exit_code: ClassVar[int] = 1
    retryable: ClassVar[bool] = False
    default_code: ClassVar[str] = "error"

    def __init__(self, message: str, *, code: str | None = None, remedy: str | None = None) -> None:
        self.message = message
        self.code = code or self.default_code
        self.remedy = remedy
        super().__init__(f"{message}. {remedy}" if remedy else message)


class InvalidInput(MemoryEsError):
    """A value given by the caller is wrong. ``field`` names it."""

    exit_code = 2
    default_code = "invalid_input"

    def __init__(
        self, field: str, message: str, *, code: str | None = None, remedy: str | None = None
    ) -> None:
        self.field = field
        super().__init__(f"{field}: {message}", code=code, remedy=remedy)


#: pydantic's complaints by type, in words that say what to do; those of dates begin alike.
_COMPLAINTS = {
    "missing": "is missing",
    "extra_forbidden": "is not known here; leave it out",
    "date": "is no date; write it like 2026-05-01 or 2026-05-01T18:30:00Z",
    "int_parsing": "is no whole number",
    "int_from_float": "is no whole number",
    "float_parsing": "is no number",
    "string_type": "is not text",
}


def complaint(kind: str, message: str) -> str:
    """What pydantic found wrong (its error's type and message), to stand behind a field's name."""
    if kind.startswith(("date_", "datetime_")):
        kind = "date"
    plain = message.removeprefix("Value error, ").removeprefix("Input ").removeprefix("String ")
    return _COMPLAINTS.get(kind, plain)


class SetupError(MemoryEsError):
    """The installation or the cluster is not ready: a version, a licence, a template, a tool."""

    exit_code = 3
    default_code = "setup"


class NotFound(MemoryEsError):
    """It does not exist, or belongs to somebody else: both look the same on purpose."""

    exit_code = 4
    default_code = "not_found"


class AccessDenied(MemoryEsError):
    """No key for this user, or the cluster refuses the key."""

    exit_code = 5
    default_code = "access_denied"


class Conflict(MemoryEsError):
    """The state changed between reading and writing."""

    exit_code = 6
    default_code = "conflict"


class Unavailable(MemoryEsError):
    """Elasticsearch does not answer, or only in part. Trying again may work."""

    exit_code = 7
    retryable = True
    default_code = "unavailable"


class ModelError(MemoryEsError):
    """An embedder or reranker could not be loaded or failed."""

    exit_code = 8
    default_code = "model"
