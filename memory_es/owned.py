"""The way to a document that exists: read with its owner's key, changed with the service's.

A user's key may not change anything, so that it can be handed out; the service's may change
everything, so that it must not be told what. ``owned`` joins them: the read with the user's own
key is the proof of ownership, and the sequence number binds the change to what was read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from memory_es.changes import Changes
from memory_es.errors import InvalidInput, NotFound
from memory_es.schema import OWNED, Kind
from memory_es.store import Reference, Scope, Stored
from memory_es.text import is_blank


@dataclass(frozen=True)
class Owned:
    """A memory that its owner's key has just read."""

    kind: Kind
    reference: Reference
    seen: Stored

    def update(self, service: Changes, change: dict[str, Any], *, refresh: bool = True) -> None:
        """Set some fields of exactly what was read.

        Raises:
            Conflict: somebody changed it since.
            NotFound: somebody deleted it since.
        """
        service.update(self.reference, self.seen, change, refresh=refresh)

    def delete(self, service: Changes, *, refresh: bool = True) -> None:
        """Delete exactly what was read.

        Raises:
            Conflict: somebody changed or deleted it since.
        """
        service.delete(self.reference, self.seen, refresh=refresh)


def owned(scope: Scope, ids: Sequence[str]) -> list[Owned]:
    """The memories of these ids, in order, each once, read in one ``_mget`` by the user's key.

    Raises:
        InvalidInput: no user, no id, or a blank one.
        NotFound: an id that the user does not own or that never was: the same error for both.
    """
    if scope.user_id is None:
        raise InvalidInput("user", "is empty", remedy="Name the user whose memories you mean")
    wanted = list(dict.fromkeys(ids))
    if not wanted or any(not isinstance(id_, str) or is_blank(id_) for id_ in wanted):
        raise InvalidInput("ids", "has no id, or an empty one", remedy="Give ids as recall shows")
    kinds = OWNED[:1] if scope.store.placement.by_index else OWNED  # one index holds all kinds
    places = {id_: [Reference(kind, id_, scope.routing) for kind in kinds] for id_ in wanted}
    found = scope.store.fetch([place for own in places.values() for place in own])
    memories = []
    for own in places.values():
        here = [place for place in own if place in found]
        if not here:
            raise NotFound("there is no such memory", remedy="Take an id that recall shows")
        memories += [
            Owned(_kind(scope, place, found[place]), place, found[place]) for place in here
        ]
    return memories


def _kind(scope: Scope, place: Reference, seen: Stored) -> Kind:
    claimed = seen.source.get("kind")
    if scope.store.placement.by_index and claimed in OWNED:
        return Kind(claimed)
    return Kind(place.index)
