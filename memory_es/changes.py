"""Changes to memories that exist, with the service credential: users' keys cannot.

Imported by ``owned`` alone, which has read each of them with the owner's key (and later by the
one operator module, which takes a user or an index, never ids). A test holds this.
"""

from __future__ import annotations

from typing import Any

from elasticsearch import Elasticsearch

from memory_es.placement import Placement
from memory_es.store import Reference, Stored, translated


class Changes:
    """Partial updates and deletions of exactly the version that was read."""

    def __init__(self, service: Elasticsearch, placement: Placement) -> None:
        self._service = service
        self._placement = placement

    def update(
        self, reference: Reference, seen: Stored, change: dict[str, Any], *, refresh: bool
    ) -> None:
        """Set some fields. Only ever partial: Elasticsearch 9.5 leaves vectors out of
        ``_source``, so that reading a document and indexing it again would erase them.

        Raises:
            Conflict: somebody changed it since.
            NotFound: somebody deleted it since.
        """
        with translated():
            self._service.update(
                index=self._placement.index(reference.index, reference.routing),
                id=reference.id,
                routing=reference.routing,
                doc=change,
                if_seq_no=seen.seq_no,
                if_primary_term=seen.primary_term,
                refresh=refresh,
            )

    def delete(self, reference: Reference, seen: Stored, *, refresh: bool) -> None:
        """Delete it.

        Raises:
            Conflict: somebody changed or deleted it since (Elasticsearch says the same of both).
        """
        with translated():
            self._service.delete(
                index=self._placement.index(reference.index, reference.routing),
                id=reference.id,
                routing=reference.routing,
                if_seq_no=seen.seq_no,
                if_primary_term=seen.primary_term,
                refresh=refresh,
            )
