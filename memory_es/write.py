"""The one write path: validate, normalise, identify, look for duplicates, embed, create.

Every door and every kind goes through ``write``: a turn, a fact, a playbook, a catalog entry,
one or a hundred thousand.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from elasticsearch.helpers import pack_dense_vector

from memory_es.documents import DOCUMENT_MODELS, AnyDocument, Passage, Step
from memory_es.errors import InvalidInput, MemoryEsError, ModelError
from memory_es.models import Embedder, Vectors
from memory_es.queries import preceding_turn
from memory_es.requests import WriteResult
from memory_es.schema import (
    AnyNewMemory,
    Kind,
    NewCatalogEntry,
    NewEpisode,
    NewFact,
    NewMemory,
    NewPlaybook,
    parse_new_memory,
)
from memory_es.store import Creation, Reference, Store
from memory_es.text import document_id, identity, passages, routing

T = TypeVar("T")

#: Items that are embedded and sent together.
CHUNK = 256
#: A text longer than this many characters also gets a vector for each passage of at most
#: PASSAGE characters: the embedder reads 512 tokens, about 2,000 characters of English.
LONG_TEXT = 1_500
PASSAGE = 800
#: Characters of the preceding turn's end that go into a turn's context.
CONTEXT_TAIL = 1_000


@dataclass(frozen=True)
class Scope:
    """For whom a write or recall is done, with that user's own credential.

    ``user_id`` is None for the catalog alone, which an operator writes.
    """

    store: Store
    user_id: str | None
    id_secret: str

    @property
    def routing(self) -> str | None:
        """Shard routing of this user's documents."""
        return None if self.user_id is None else routing(self.user_id)


@dataclass(frozen=True)
class _Turn:
    """The last known turn of a session."""

    number: int
    line: str


@dataclass
class _Item:
    """One item on its way through the path."""

    position: int
    memory: AnyNewMemory
    context: str = ""
    numbered: bool = False  # its turn number was given here, not by the caller
    id: str = ""

    def reference(self, scope: Scope) -> Reference:
        return Reference(self.memory.kind, self.id, scope.routing)


def write(
    scope: Scope,
    embedder: Embedder,
    memories: Iterable[Mapping[str, Any] | AnyNewMemory],
    *,
    now: datetime,
    new_id: Callable[[], str],
    refresh: bool,
) -> Iterator[WriteResult]:
    """Write memories; yields one result an item, in the order given, chunk by chunk.

    An invalid item fails alone. If the embedder fails, the documents are stored with
    ``needs_embedding`` and found by BM25 meanwhile.

    Args:
        now: becomes ``created_at``, and ``event_time`` where an item has none.
        new_id: gives an idempotency key to an episode that has neither key nor turn.
        refresh: make the writes visible to the next search (once, at the end).

    Raises:
        MemoryEsError: Elasticsearch fails as a whole; what was yielded before is stored.
    """
    sessions: dict[str, _Turn] = {}
    touched: set[str] = set()
    for chunk in _chunks(enumerate(memories), CHUNK):
        results, items = _parse(scope, chunk)
        _place_turns(scope, items, sessions)
        for item in items:
            item.id = _id(scope, item, new_id)
        results |= _store(scope, embedder, items, now)
        touched |= {
            result.kind for result in results.values() if result.status == "created" and result.kind
        }
        yield from (results[position] for position, _ in chunk)
    if refresh and touched:
        scope.store.refresh(sorted(touched))


def _chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    iterator = iter(items)
    while chunk := list(itertools.islice(iterator, size)):
        yield chunk


def _parse(
    scope: Scope, chunk: Sequence[tuple[int, Mapping[str, Any] | AnyNewMemory]]
) -> tuple[dict[int, WriteResult], list[_Item]]:
    results: dict[int, WriteResult] = {}
    items: list[_Item] = []
    for position, raw in chunk:
        try:
            memory = raw if isinstance(raw, NewMemory) else parse_new_memory(dict(raw))
            _check_owner(scope, memory)
            items.append(_Item(position, memory))
        except InvalidInput as error:
            results[position] = WriteResult(position=position, status="failed", error=str(error))
    return results, items


def _check_owner(scope: Scope, memory: AnyNewMemory) -> None:
    if (memory.kind is Kind.CATALOG) != (scope.user_id is None):
        raise InvalidInput(
            "kind",
            "the catalog has no owner and is written by an operator alone",
            remedy="Write it through the platform, without a user",
        )


# --- turns ------------------------------------------------------------------------------------


def _place_turns(scope: Scope, items: list[_Item], sessions: dict[str, _Turn]) -> None:
    """Number the turns that have no number, and give each episode its context: the preceding
    turn of its session and itself, each with its speaker, in one text (DESIGN §6)."""
    by_session: dict[str, list[tuple[_Item, NewEpisode]]] = {}
    for item in items:
        if isinstance(item.memory, NewEpisode):
            if item.memory.session_id is None:
                item.context = _line(item.memory)
            else:
                by_session.setdefault(item.memory.session_id, []).append((item, item.memory))
    for session, episodes in by_session.items():
        # unnumbered turns follow in the order given; the sort is stable
        for item, episode in sorted(
            episodes, key=lambda pair: -1 if pair[1].turn is None else pair[1].turn
        ):
            last = sessions.get(session)
            number = episode.turn
            if last is None or (number is not None and number != last.number + 1):
                last = _stored_turn(scope, session, number) or _earlier(last, number)
            if number is None:
                number = last.number + 1 if last else 0
                item.memory = episode.model_copy(update={"turn": number})
                item.numbered = True
            line = _line(episode)
            item.context = f"{last.line}\n{line}" if last else line
            if session not in sessions or number >= sessions[session].number:
                sessions[session] = _Turn(number, line[-CONTEXT_TAIL:])


def _earlier(last: _Turn | None, number: int | None) -> _Turn | None:
    return last if last and (number is None or last.number < number) else None


def _stored_turn(scope: Scope, session: str, before: int | None) -> _Turn | None:
    if scope.user_id is None or scope.routing is None:
        return None
    body = preceding_turn(session, scope.user_id, before)
    found = scope.store.search(Kind.EPISODIC, body, scope.routing)
    if not found:
        return None
    turn = found[0]
    who = turn.get("speaker") or turn.get("role")
    line = f"{who}: {turn['text']}" if who else turn["text"]
    return _Turn(turn["turn"], line[-CONTEXT_TAIL:])


def _line(episode: NewEpisode) -> str:
    who = episode.speaker or episode.role
    return f"{who}: {episode.text}" if who else episode.text


# --- identity ---------------------------------------------------------------------------------


def _id(scope: Scope, item: _Item, new_id: Callable[[], str]) -> str:
    """HMAC id. An episode is itself once: (key, or the caller's session and turn, or a new key;
    text). Facts and playbooks are their normalised text: twenty writers make one document."""
    memory = item.memory
    if isinstance(memory, NewEpisode):
        key = memory.idempotency_key or memory.external_id
        if key is not None:
            place: tuple[str | int, ...] = ("key", key)
        elif memory.session_id is not None and memory.turn is not None and not item.numbered:
            place = ("turn", memory.session_id, memory.turn)
        else:
            place = ("new", new_id())
        return document_id(scope.id_secret, memory.kind, *place, memory.text)
    if isinstance(memory, NewCatalogEntry) and memory.external_id:
        return document_id(scope.id_secret, memory.kind, memory.external_id)
    revision = 0
    return document_id(scope.id_secret, memory.kind, identity(memory.embedded_text), revision)


# --- storing ----------------------------------------------------------------------------------


def _store(
    scope: Scope, embedder: Embedder, items: list[_Item], now: datetime
) -> dict[int, WriteResult]:
    """Duplicates by id, then embed and create the rest. A conflict at creation is a writer that
    was faster: the document is read with the user's own key, and if it cannot be seen the write
    has failed (a stranger's document under our id must never make a fact vanish)."""
    first: dict[str, _Item] = {}
    for item in items:
        first.setdefault(item.id, item)
    references = {id_: item.reference(scope) for id_, item in first.items()}
    known = set(scope.store.fetch(list(references.values()), source=False))
    fresh = [item for id_, item in first.items() if references[id_] not in known]
    documents = _documents(scope, embedder, fresh, now)
    outcome = scope.store.create(
        (
            Creation(references[item.id], _source(document))
            for item, document in zip(fresh, documents, strict=True)
        ),
        refresh=False,
    )
    conflicts = [
        ref for ref, error in outcome.items() if error is not None and error.code == "conflict"
    ]
    seen = set(scope.store.fetch(conflicts, source=False)) if conflicts else set()
    flagged = {
        item.id for item, document in zip(fresh, documents, strict=True) if document.needs_embedding
    }
    return {
        item.position: _result(
            item,
            created=first[item.id] is item and references[item.id] in outcome,
            error=outcome.get(references[item.id]),
            duplicate=references[item.id] in seen,
            flagged=item.id in flagged,
        )
        for item in items
    }


def _result(
    item: _Item, *, created: bool, error: MemoryEsError | None, duplicate: bool, flagged: bool
) -> WriteResult:
    common = {
        "position": item.position,
        "kind": item.memory.kind,
        "external_id": item.memory.external_id,
    }
    if error is None or duplicate:
        status = "created" if created and error is None else "duplicate"
        return WriteResult(
            **common, status=status, id=item.id, needs_embedding=flagged and status == "created"
        )
    reason = (
        "the id is taken by a document that you may not see"
        if error.code == "conflict"
        else str(error)
    )
    return WriteResult(**common, status="failed", error=reason)


def _source(document: AnyDocument) -> dict[str, Any]:
    """The stored form: without what is empty, but always with what names its own version."""
    source = document.model_dump(mode="json", exclude_defaults=True)
    return source | {
        "kind": document.kind,
        "revision": document.revision,
        "schema_version": document.schema_version,
    }


def _documents(
    scope: Scope, embedder: Embedder, items: list[_Item], now: datetime
) -> list[AnyDocument]:
    """Documents with their vectors: all texts of the chunk in one call of the embedder."""
    parts = {
        item.position: passages(item.memory.embedded_text, size=PASSAGE)
        if len(item.memory.embedded_text) > LONG_TEXT
        else []
        for item in items
    }
    texts: dict[str, None] = {}
    for item in items:
        text = item.memory.embedded_text
        texts[text] = None
        if item.context:
            texts[item.context] = None
        for start, end in parts[item.position]:
            texts[text[start:end]] = None
    vectors = _embed(embedder, list(texts))
    return [
        _document(scope, embedder.name, item, parts[item.position], vectors, now) for item in items
    ]


def _embed(embedder: Embedder, texts: list[str]) -> dict[str, str | None] | None:
    """Packed vector of each text, None for a text without one; None if the embedder failed."""
    if not texts:
        return {}
    try:
        vectors: Vectors = embedder.passages(texts)
    except ModelError:
        return None
    return {
        text: pack_dense_vector(vector) if vector.any() else None
        for text, vector in zip(texts, vectors, strict=True)
    }


def _document(
    scope: Scope,
    model: str,
    item: _Item,
    parts: list[tuple[int, int]],
    vectors: dict[str, str | None] | None,
    now: datetime,
) -> AnyDocument:
    memory = item.memory
    text = memory.embedded_text
    found = vectors or {}
    fields: dict[str, Any] = {
        "kind": memory.kind,
        "text": memory.text,
        "tags": memory.tags,
        "metadata": memory.metadata,
        "source": memory.source,
        "external_id": memory.external_id,
        "embedding": found.get(text),
        "embedding_model": model,
        "needs_embedding": vectors is None,
        "passages": tuple(
            Passage(start=start, end=end, embedding=vector)
            for start, end in parts
            if (vector := found.get(text[start:end]))
        ),
        "content_hash": document_id(scope.id_secret, "content", identity(text)),
        "created_at": now,
        "event_time": memory.event_time or now,
        "expires_at": memory.expires_at,
    }
    if isinstance(memory, NewEpisode):
        fields |= memory.model_dump(include=_EPISODE_FIELDS)
        fields |= {"content_context": item.context, "embedding_context": found.get(item.context)}
    elif isinstance(memory, NewFact):
        fields |= memory.model_dump(include=_FACT_FIELDS)
    elif isinstance(memory, NewPlaybook):
        fields |= memory.model_dump(include={"name", "trigger", "description"})
        fields["steps"] = tuple(Step(text=step) for step in memory.steps)
    else:
        fields |= memory.model_dump(include={"title", "url"})
    return DOCUMENT_MODELS[memory.kind].model_construct(**fields)


_EPISODE_FIELDS = {
    "speaker",
    "role",
    "session_id",
    "agent_id",
    "turn",
    "event_type",
    "idempotency_key",
}
_FACT_FIELDS = {"fact_type", "confidence", "source_episodes", "valid_from", "valid_to"}
