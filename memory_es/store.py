"""Elasticsearch behind a few verbs: search, fetch, create, refresh. Bodies in, plain results out.

The only place where the client's errors become ours. Memories that exist are changed in
``changes`` alone; the store changes only the rows that serve them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import elastic_transport
import elasticsearch
from elastic_transport import Urllib3HttpNode
from elastic_transport.client_utils import DEFAULT
from elasticsearch import Elasticsearch, helpers

from memory_es.config import INSECURE, Settings
from memory_es.errors import (
    AccessDenied,
    Conflict,
    MemoryEsError,
    NotFound,
    SetupError,
    Unavailable,
)
from memory_es.placement import SERVING, Placement
from memory_es.queries import Search
from memory_es.text import owner_id, routing

_RETRY_STATUS = (429, 502, 503, 504)


class _SilentNode(Urllib3HttpNode):
    """The client's own connection, which at DEBUG would log whole requests and answers: memory
    texts, new keys. Whatever a server's logging is configured to, this one says nothing."""

    def _log_request(self, *_args: Any, **_more: Any) -> None:
        """Nothing."""


def connect(url: str, settings: Settings) -> Elasticsearch:
    """A client without credentials: each use adds its own, so that nothing can fall back on
    the service's. No request is sent."""
    # The client refuses a CA bundle where there is no TLS, as with the embedded node.
    ca_certs = settings.elasticsearch_ca_certs if url.startswith("https:") else None
    return Elasticsearch(
        url,
        ca_certs=str(ca_certs) if ca_certs else DEFAULT,
        request_timeout=settings.request_timeout,
        retry_on_status=_RETRY_STATUS,
        retry_on_timeout=True,
        max_retries=4,
        retry_backoff_base=0.1,  # the client's own default does not wait at all
        retry_backoff_cap=5.0,
        node_class=_SilentNode,
        serializers={"application/json": elasticsearch.OrjsonSerializer()},
    )


def translate(error: Exception) -> MemoryEsError:
    """Our error for any error of the client. Never carries a request body."""
    if isinstance(error, elastic_transport.ConnectionTimeout):
        return Unavailable(
            "Elasticsearch did not answer in time",
            code="timeout",
            remedy="Try again, or raise MEMORY_ES_REQUEST_TIMEOUT",
        )
    if isinstance(error, elastic_transport.TlsError):
        return SetupError(
            "the cluster's TLS certificate is not trusted",
            code="tls",
            remedy="Name its CA bundle in ELASTICSEARCH_CA_CERTS",
        )
    if isinstance(error, elastic_transport.SerializationError):
        return Unavailable("Elasticsearch sent an answer that cannot be read", code="bad_answer")
    if isinstance(error, elastic_transport.TransportError):
        return Unavailable(
            "Elasticsearch cannot be reached",
            remedy="Start it (`memory-es up`) or check ELASTICSEARCH_URL",
        )
    if isinstance(error, elasticsearch.UnsupportedProductError):
        return SetupError(
            "the server is not Elasticsearch 9",
            code="unsupported_server",
            remedy="Point ELASTICSEARCH_URL at Elasticsearch 9",
        )
    if isinstance(error, elastic_transport.ApiError):
        cause = error.body.get("error", {}) if isinstance(error.body, dict) else {}
        reason = cause if isinstance(cause, dict) else {"reason": str(cause)}
        return _from_status(error.meta.status, reason)
    if isinstance(error, (helpers.BulkIndexError, helpers.ScanError)):
        return Unavailable("Elasticsearch answered only in part", code="partial")
    raise TypeError(f"{type(error).__name__} is not an error of the Elasticsearch client")


def _from_status(status: int, cause: Mapping[str, Any]) -> MemoryEsError:
    kind = str(cause.get("type", ""))
    reason = str(cause.get("reason", ""))
    if "current license is non-compliant" in reason:
        return SetupError(
            "the cluster's licence does not allow document-level security",
            code="licence_expired",
            remedy="Start a fresh embedded node (`memory-es down`, another MEMORY_ES_STATE_DIR)"
            " or install a Platinum, Enterprise or trial licence",
        )
    if status == 401:
        return AccessDenied(
            "the cluster refuses the credentials (revoked, expired or wrong)",
            code="unauthenticated",
            remedy="A user needs a new key (`memory-es users add USER`); an operator checks"
            " MEMORY_ES_SERVICE_PASSWORD or, for init, ELASTICSEARCH_PASSWORD",
        )
    if status == 403 or kind == "security_exception":  # an item of an mget has no status
        return AccessDenied("the cluster forbids this with these credentials", code="forbidden")
    if kind == "index_not_found_exception":
        return SetupError(
            "the memory indices do not exist here",
            code="not_initialised",
            remedy="Run `memory-es init`",
        )
    if status == 404:
        return NotFound("there is no such memory")
    if status == 409:
        return Conflict("the memory changed meanwhile", remedy="Read it again and retry")
    if status == 429 or status >= 500:
        return Unavailable(f"Elasticsearch is overloaded or failing (HTTP {status}, {kind})")
    return SetupError(
        f"Elasticsearch refused the request (HTTP {status}, {kind})",
        code="refused",
        remedy="Run `memory-es doctor`",
    )


@contextmanager
def translated() -> Iterator[None]:
    """Turn the client's errors into ours, without its traceback (it holds headers and bodies)."""
    try:
        yield
    except (
        elastic_transport.TransportError,
        elastic_transport.ApiError,
        helpers.BulkIndexError,
        helpers.ScanError,
    ) as error:
        raise translate(error) from None


@dataclass(frozen=True)
class LegAnswer:
    """What one search of an msearch found: (id, score) best first, or why it failed."""

    search: Search
    hits: tuple[tuple[str, float], ...]
    failure: MemoryEsError | None = None


@dataclass(frozen=True)
class Reference:
    """Where a document is: the index by its short name, id, routing (None: none is used)."""

    index: str
    id: str
    routing: str | None


@dataclass(frozen=True)
class Stored:
    """A document as read: source and the sequence numbers that bind a later change to it."""

    source: dict[str, Any]
    seq_no: int
    primary_term: int


@dataclass(frozen=True)
class Scope:
    """For whom a write or recall is done, with that user's own credential.

    ``user_id`` is None for the catalog alone, which an operator writes. ``usage`` reads usage rows
    where the user's own key cannot: with isolation by index they lie in an index of the service's,
    and are read for exactly the memories that the user's key has found.
    """

    store: Store
    user_id: str | None
    id_secret: str = field(repr=False)
    usage: Store | None = None

    @cached_property
    def routing(self) -> str | None:
        """Shard routing of this user's documents."""
        return None if self.user_id is None else routing(self.user_id)

    @property
    def stamp(self) -> dict[str, Any] | None:
        """The owner to write into a body: only where no cluster stamps it, since its security is
        off and there is one user."""
        if self.user_id is None or self.store.placement.isolation != INSECURE:
            return None
        return {"api_key": {"metadata": {"owner_id": owner_id(self.user_id)}}}


@dataclass(frozen=True)
class Creation:
    """A document to create."""

    reference: Reference
    source: dict[str, Any]


class Store:
    """Documents of one deployment, through one credential."""

    def __init__(self, client: Elasticsearch, placement: Placement) -> None:
        self._client = client
        self.placement = placement

    def search(self, index: str, body: dict[str, Any], routing: str) -> list[dict[str, Any]]:
        """Sources of the hits of one search.

        Raises:
            Unavailable: a shard failed: a shorter list would be a wrong answer.
        """
        with translated():
            answer = self._client.search(
                index=self.placement.index(index, routing), routing=routing, body=body
            )
        if failure := _shard_failure(answer.body):
            raise failure
        return [hit["_source"] for hit in answer["hits"]["hits"]]

    def search_all(self, searches: Sequence[Search]) -> list[LegAnswer]:
        """One ``_msearch``, answers in order. A failed item or shard is an answer with its
        failure, never a shorter list."""
        if not searches:
            return []
        lines: list[dict[str, Any]] = []
        for search in searches:
            lines += [search.header, search.body]
        with translated():
            answer = self._client.msearch(searches=lines)
        return [
            LegAnswer(search, (), failure)
            if (failure := _item_failure(item))
            else LegAnswer(
                search, tuple((hit["_id"], hit["_score"]) for hit in item["hits"]["hits"])
            )
            for search, item in zip(searches, answer["responses"], strict=True)
        ]

    def fetch(
        self, references: Sequence[Reference], *, fields: list[str] | None = None
    ) -> dict[Reference, Stored]:
        """The documents that exist and that this credential may see, in one ``_mget``.
        Realtime: sees writes that no search sees yet.

        Args:
            fields: the fields wanted of each; None: all but vectors.
        """
        if not references:
            return {}
        docs: list[dict[str, Any]] = [
            {"_index": self.placement.index(reference.index, reference.routing)}
            | {"_id": reference.id}
            | ({"routing": reference.routing} if reference.routing else {})
            | ({} if fields is None else {"_source": fields or False})
            for reference in references
        ]
        with translated():
            answer = self._client.mget(docs=docs)
        found: dict[Reference, Stored] = {}
        for reference, doc in zip(references, answer["docs"], strict=True):
            if "error" in doc:
                raise _from_status(doc.get("status", 500), doc["error"])
            if doc.get("found"):
                found[reference] = Stored(
                    doc.get("_source", {}), doc["_seq_no"], doc["_primary_term"]
                )
        return found

    def create(self, creations: Iterable[Creation]) -> dict[Reference, MemoryEsError | None]:
        """Create documents in bulk (``op_type=create``); per document None or its error.
        Items refused with 429 are sent again with growing pauses (the client's helper)."""
        outcome: dict[Reference, MemoryEsError | None] = {}
        places: dict[str, Reference] = {}
        actions = []
        for creation in creations:
            reference = creation.reference
            places[reference.id] = reference
            actions.append(
                {
                    "_op_type": "create",
                    "_index": self.placement.index(reference.index, reference.routing),
                    "_id": reference.id,
                    "_source": creation.source,
                }
                | ({"routing": reference.routing} if reference.routing else {})
            )
        with translated():
            for done, item in helpers.streaming_bulk(
                self._client,
                actions,
                chunk_size=1_000,
                raise_on_error=False,
                raise_on_exception=True,
                max_retries=4,
                initial_backoff=0.1,
                max_backoff=5,
            ):
                entry = item["create"]
                outcome[places[entry["_id"]]] = (
                    None if done else _from_status(entry["status"], _cause(entry.get("error")))
                )
        return outcome

    def update(
        self, reference: Reference, change: dict[str, Any], seen: Stored, *, refresh: bool = False
    ) -> None:
        """Partial update of exactly the version of a row that was read. Rows that serve only: a
        memory is changed through ``owned``.

        Raises:
            Conflict: somebody changed it since.
        """
        if reference.index not in SERVING:
            raise ValueError(f"{reference.index} is no index of rows")
        with translated():
            self._client.update(
                index=self.placement.index(reference.index),
                id=reference.id,
                routing=reference.routing,
                doc=change,
                if_seq_no=seen.seq_no,
                if_primary_term=seen.primary_term,
                refresh=refresh,
            )

    def refresh(self, names: Iterable[str], routing: str | None = None) -> None:
        """Make everything written so far visible to searches (one owner's, where each has an
        index)."""
        targets = dict.fromkeys(self.placement.index(name, routing) for name in names)
        with translated():
            self._client.indices.refresh(index=list(targets))


def _cause(error: Any) -> dict[str, Any]:
    return error if isinstance(error, dict) else {"reason": str(error)}


def _item_failure(item: Mapping[str, Any]) -> MemoryEsError | None:
    if "error" in item:
        return _from_status(item.get("status", 500), _cause(item["error"]))
    return _shard_failure(item)


def _shard_failure(answer: Mapping[str, Any]) -> MemoryEsError | None:
    """A shard can fail with HTTP 200 (for instance by a clause on a field that it lacks)."""
    shards = answer.get("_shards", {})
    if not shards.get("failed") and not answer.get("timed_out"):
        return None
    failures = shards.get("failures") or [{}]
    kind = _cause(failures[0].get("reason")).get("type", "timed out")
    return Unavailable(
        f"{shards.get('failed')} of {shards.get('total')} shards failed ({kind})", code="partial"
    )
