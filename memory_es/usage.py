"""Usage rows: touched behind the call, coalesced, written by the service."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from memory_es.behind import Behind
from memory_es.documents import UsageRow
from memory_es.errors import Conflict
from memory_es.schema import Kind
from memory_es.store import Creation, Reference, Store
from memory_es.text import owner_id, routing, usage_id

#: Attempts at a row that others change at the same time.
_ATTEMPTS = 20


@dataclass(frozen=True)
class Touch:
    """Which memory was used: only ids that the user's own key has just read get here."""

    user_id: str
    kind: Kind
    id: str

    @property
    def reference(self) -> Reference:
        """Its usage row, on the shard of its memory."""
        place = routing(self.user_id)
        return Reference("usage", usage_id(place, self.id), place)


def apply_touches(service: Store, left: dict[Touch, int], now: datetime) -> None:
    """Add to ``use_count`` and set ``last_used_at``, losing no increment: each row is changed
    only as it was read, and read again after a conflict. What is written is taken out of
    ``left``, so that after an error the rest, and only the rest, can be tried again.

    Raises:
        MemoryEsError: Elasticsearch fails, or a row was contended to the end.
    """
    for _ in range(_ATTEMPTS):
        if not left:
            return
        rows = service.fetch([touch.reference for touch in left])
        missing = [touch for touch in left if touch.reference not in rows]
        outcome = service.create(
            [Creation(touch.reference, _new_row(touch, left[touch], now)) for touch in missing],
        )
        errors = {touch: outcome[touch.reference] for touch in missing}
        for touch in [touch for touch, error in errors.items() if error is None]:
            del left[touch]
        for error in errors.values():
            if error is not None and not isinstance(error, Conflict):
                raise error
        for touch in left.keys() - set(missing):
            seen = rows[touch.reference]
            row = UsageRow.model_validate(seen.source)
            newest = max(filter(None, [row.last_used_at, now]))
            change = {"use_count": row.use_count + left[touch], "last_used_at": newest.isoformat()}
            with contextlib.suppress(Conflict):
                service.update(touch.reference, change, seen)
                del left[touch]
    if left:
        raise Conflict(f"{len(left)} usage rows stayed contended", code="contended")


def _owner(touch: Touch) -> dict[str, Any]:
    return {"api_key": {"metadata": {"owner_id": owner_id(touch.user_id)}}}


def _new_row(touch: Touch, count: int, now: datetime) -> dict[str, Any]:
    row = UsageRow(owner=_owner(touch), kind=touch.kind, use_count=count, last_used_at=now)
    return row.model_dump(mode="json")


class UsageRecorder:
    """Gathers touches and writes them behind the call, so that recall never waits. What failed
    is kept for the next round."""

    def __init__(
        self, service: Store, clock: Callable[[], datetime], *, interval: float = 0.5
    ) -> None:
        self._service = service
        self._clock = clock
        self._pending: dict[Touch, int] = {}
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._behind = Behind("usage", self.drain, interval=interval)

    def add(self, touches: Iterable[Touch]) -> None:
        """Count one use of each memory. Returns at once."""
        with self._lock:
            for touch in touches:
                self._pending[touch] = self._pending.get(touch, 0) + 1
            if not self._pending:
                return
        self._behind.wake()

    def drain(self) -> None:
        """Write everything counted so far. Raises MemoryEsError; what failed is kept."""
        with self._writing:
            with self._lock:
                batch, self._pending = self._pending, {}
            if not batch:
                return
            try:
                apply_touches(self._service, batch, self._clock())
            except BaseException:
                with self._lock:
                    for touch, count in batch.items():
                        self._pending[touch] = self._pending.get(touch, 0) + count
                raise

    def close(self) -> None:
        """Write what is left and stop the thread."""
        self._behind.close()
