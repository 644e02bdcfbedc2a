"""The audit trail: who did what to which memories and when. Ids, counts and key ids, never text.

Every event is a log line (logger ``memory_es.audit``, one JSON object); by setting it also goes to
an index that users' keys cannot read and that the service itself can only append to.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from memory_es.behind import Behind
from memory_es.schema import Frozen
from memory_es.store import Creation, Reference, Store
from memory_es.text import owner_id

_log = logging.getLogger(__name__)

Action = Literal["recall", "remember", "read", "catalog", "key_made", "keys_ended"]
#: Ids of one event that are kept; ``count`` has all of them.
MAX_IDS = 1_000


@dataclass
class Act:
    """Something that is being done: what of it the audit trail shall name once it is over."""

    key_id: str | None = None
    ids: list[str] = field(default_factory=list)
    outcome: str = "ok"


class AuditEvent(Frozen):
    """One thing that was done."""

    #: When it was done.
    at: datetime
    #: What was done.
    action: Action
    #: Whose memories or keys; none for the catalog, and for keys that are ended by their ids alone.
    owner_id: str | None
    #: The key that was used, made or ended.
    key_id: str | None
    #: The memories, or the keys that ended: the first 1,000.
    ids: tuple[str, ...]
    #: How many there were.
    count: int
    #: `ok`, the code of the (first) error, or the name of the exception that ended it.
    outcome: str


def event(
    action: Action,
    *,
    at: datetime,
    user_id: str | None,
    key_id: str | None = None,
    ids: Sequence[str] = (),
    outcome: str = "ok",
) -> AuditEvent:
    """An event about these ids."""
    return AuditEvent(
        at=at,
        action=action,
        owner_id=None if user_id is None else owner_id(user_id),
        key_id=key_id,
        ids=tuple(ids[:MAX_IDS]),
        count=len(ids),
        outcome=outcome,
    )


class AuditTrail:
    """Takes events: a log line at once, a row of the index behind the call.

    Rows that Elasticsearch could not take are kept and sent again with the same id, so that none
    is there twice.
    """

    def __init__(self, rows: Store | None, *, interval: float = 0.5) -> None:
        self._rows = rows
        self._pending: dict[str, AuditEvent] = {}
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._behind = Behind("audit", self.drain, interval=interval)

    def add(self, what: AuditEvent) -> None:
        """Note an event. Returns at once."""
        _log.info("%s", what.model_dump_json())
        if self._rows is None:
            return
        with self._lock:
            self._pending[uuid.uuid4().hex] = what
        self._behind.wake()

    def drain(self) -> None:
        """Write everything noted so far. Raises MemoryEsError; what failed is kept."""
        if self._rows is None:
            return
        with self._writing:
            with self._lock:
                batch = dict(self._pending)
            outcome = self._rows.create(
                Creation(Reference("audit", id_, None), what.model_dump(mode="json"))
                for id_, what in batch.items()
            )
            done = {
                reference.id
                for reference, error in outcome.items()
                if error is None or error.code == "conflict"
            }
            with self._lock:
                for id_ in done:
                    del self._pending[id_]
            failed = [error for error in outcome.values() if error and error.code != "conflict"]
            if failed:
                raise failed[0]

    def close(self) -> None:
        """Write what is left and stop the thread."""
        self._behind.close()
