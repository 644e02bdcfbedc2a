"""The one write path: validate, normalise, identify, look for duplicates, embed, create.

Every door and every kind goes through ``write``: a turn, a fact, a playbook, a catalog entry,
one or a hundred thousand.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

from elasticsearch.helpers import pack_dense_vector

from memory_es.compose import REVISED, Item, body, memory_id, texts_to_embed
from memory_es.errors import InvalidInput, MemoryEsError, ModelError
from memory_es.models import Embedder
from memory_es.requests import WriteResult
from memory_es.schema import AnyNewMemory, Kind, NewMemory, parse_new_memory
from memory_es.screen import LOOKS, Finding, findings
from memory_es.store import Creation, Reference, Scope, Stored
from memory_es.turns import Turn, place_turns

T = TypeVar("T")

#: Items that are embedded and sent together.
CHUNK = 500


@dataclass
class _Chunk:
    """A chunk on its way: what is decided already, and what is to be created."""

    positions: list[int]
    results: dict[int, WriteResult] = field(default_factory=dict)
    items: list[Item] = field(default_factory=list)
    creations: list[Creation] = field(default_factory=list)


def write(
    scope: Scope,
    embedder: Embedder,
    memories: Iterable[Mapping[str, Any] | AnyNewMemory],
    *,
    now: datetime,
    new_id: Callable[[], str],
    refresh: bool,
    refuse_suspicious: bool = False,
) -> Iterator[WriteResult]:
    """Write memories; yields one result an item, in the order given, chunk by chunk. One chunk
    is prepared and embedded while the one before is sent.

    An invalid item fails alone. If the embedder fails, the documents are stored with
    ``needs_embedding`` and found by BM25 meanwhile.

    Args:
        now: becomes ``created_at``, and ``event_time`` where an item has none.
        new_id: gives an idempotency key to an episode that has neither key nor turn.
        refresh: make the writes visible to the next search (once, at the end).
        refuse_suspicious: let an item fail whose text looks like an instruction or carries a
            secret; otherwise it is stored and flagged.

    Raises:
        MemoryEsError: Elasticsearch fails as a whole; what was yielded before is stored.
    """
    sessions: dict[str, list[Turn]] = {}
    touched: set[str] = set()
    with ThreadPoolExecutor(max_workers=1) as sender:
        sending: Future[list[WriteResult]] | None = None
        for numbered in _chunks(enumerate(memories), CHUNK):
            chunk = _parse(scope, numbered, refuse_suspicious=refuse_suspicious)
            place_turns(scope, chunk.items, sessions)
            for item in chunk.items:
                item.id = memory_id(item, scope.id_secret, new_id)
            _prepare(scope, embedder, chunk, now)
            if sending is not None:
                yield from _noting(sending.result(), touched)
            sending = sender.submit(_send, scope, chunk)
        if sending is not None:
            yield from _noting(sending.result(), touched)
    if refresh and touched:
        scope.store.refresh(sorted(touched), scope.routing)


def _noting(results: list[WriteResult], touched: set[str]) -> list[WriteResult]:
    """A duplicate counts too: the writer that was faster may not have refreshed yet."""
    touched |= {str(result.kind) for result in results if result.status != "failed"}
    return results


def _chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    iterator = iter(items)
    while chunk := list(itertools.islice(iterator, size)):
        yield chunk


def _parse(
    scope: Scope,
    numbered: Sequence[tuple[int, Mapping[str, Any] | AnyNewMemory]],
    *,
    refuse_suspicious: bool,
) -> _Chunk:
    chunk = _Chunk([position for position, _ in numbered])
    for position, raw in numbered:
        try:
            memory = raw if isinstance(raw, NewMemory) else parse_new_memory(raw)
            check_owner(memory, scope.user_id)
            looks = _screened(memory, refuse=refuse_suspicious)
            chunk.items.append(Item(position, memory, suspicious=looks))
        except InvalidInput as error:
            chunk.results[position] = WriteResult(
                position=position, status="failed", error=str(error), code=error.code
            )
    return chunk


def _screened(memory: AnyNewMemory, *, refuse: bool) -> tuple[Finding, ...]:
    looks = findings(memory.embedded_text)
    if looks and refuse:
        raise InvalidInput(
            "text",
            f"looks like {' and '.join(LOOKS[look] for look in looks)}",
            code="suspicious",
            remedy="This deployment refuses such texts (MEMORY_ES_SUSPICIOUS)",
        )
    return looks


def check_owner(memory: AnyNewMemory, user_id: str | None) -> None:
    """The catalog has no owner, everything else has one. Raises InvalidInput."""
    if (memory.kind is Kind.CATALOG) != (user_id is None):
        raise InvalidInput(
            "kind",
            "the catalog has no owner and is written by an operator alone",
            remedy="Write it through the platform, without a user",
        )


def _reference(scope: Scope, item: Item) -> Reference:
    return Reference(item.memory.kind, item.id, scope.routing)


def _prepare(scope: Scope, embedder: Embedder, chunk: _Chunk, now: datetime) -> None:
    """Find duplicates by id, embed the rest in one call, compose the bodies."""
    known = _known(scope, chunk.items, now)
    first: dict[str, Item] = {}
    for item in chunk.items:
        first.setdefault(item.id, item)
    references = {item.id: _reference(scope, item) for item in first.values()}
    fresh = [item for item in first.values() if references[item.id] not in known]
    vectors = _embed(embedder, dict.fromkeys(text for i in fresh for text in texts_to_embed(i)))
    chunk.creations = [
        Creation(
            references[item.id],
            body(
                item,
                vectors,
                id_secret=scope.id_secret,
                embedding_model=embedder.name,
                stamp=scope.stamp,
                now=now,
            ),
        )
        for item in fresh
    ]


def _known(scope: Scope, items: Sequence[Item], now: datetime) -> set[Reference]:
    """Documents that are there already. A fact whose document has expired becomes its next
    revision: stated anew, it is live again under an id of its own."""
    known: set[Reference] = set()
    left = list(items)
    while left:
        found = scope.store.fetch(
            list({_reference(scope, item) for item in left}), fields=["expires_at"]
        )
        expired = {ref for ref, stored in found.items() if _expired(stored, now)}
        known |= found.keys() - expired
        left = [
            item
            for item in left
            if item.memory.kind in REVISED and _reference(scope, item) in expired
        ]
        for item in left:
            item.revision += 1
            item.id = memory_id(item, scope.id_secret, _no_new_id)
    return known


def _expired(stored: Stored, now: datetime) -> bool:
    end = stored.source.get("expires_at")
    return end is not None and datetime.fromisoformat(end) <= now


def _no_new_id() -> str:
    raise AssertionError("a fact is identified by its text")


def _embed(embedder: Embedder, texts: Iterable[str]) -> dict[str, str | None] | None:
    """Packed vector of each text, None for a text without one; None if the embedder failed."""
    distinct = list(texts)
    if not distinct:
        return {}
    try:
        vectors = embedder.passages(distinct)
    except ModelError:
        return None
    return {
        text: pack_dense_vector(vector) if vector.any() else None
        for text, vector in zip(distinct, vectors, strict=True)
    }


def _send(scope: Scope, chunk: _Chunk) -> list[WriteResult]:
    """Create a chunk's documents; one result an item.

    A conflict is a writer that was faster: the document is read with the user's own key, and if
    it cannot be seen the write has failed (a stranger's document under our id must never make
    a fact vanish as a duplicate).
    """
    outcome = scope.store.create(chunk.creations)
    conflicts = [ref for ref, error in outcome.items() if error and error.code == "conflict"]
    seen = scope.store.fetch(conflicts, fields=[])
    flagged = {
        creation.reference for creation in chunk.creations if creation.source.get("needs_embedding")
    }
    settled: set[Reference] = set()
    for item in chunk.items:
        reference = _reference(scope, item)
        error = outcome.get(reference)
        created = reference in outcome and error is None and reference not in settled
        settled.add(reference)
        chunk.results[item.position] = _result(
            item,
            created=created,
            error=None if reference in seen else error,
            flagged=created and reference in flagged,
        )
    return [chunk.results[position] for position in chunk.positions]


def _result(
    item: Item, *, created: bool, error: MemoryEsError | None, flagged: bool
) -> WriteResult:
    reason = str(error) if error else None
    if error and error.code == "conflict":
        reason = "the id is taken by a document that you may not see"
    return WriteResult(
        position=item.position,
        status="failed" if error else "created" if created else "duplicate",
        kind=item.memory.kind,
        id=None if error else item.id,
        external_id=item.memory.external_id,
        needs_embedding=flagged,
        suspicious=item.suspicious,
        error=reason,
        code=error.code if error else None,
    )
