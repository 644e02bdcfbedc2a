"""From a new memory to the document that is stored: its id, the texts to embed, its body.
Pure functions; the write path does the I/O around them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

from memory_es.schema import (
    SCHEMA_VERSION,
    AnyNewMemory,
    Kind,
    NewCatalogEntry,
    NewEpisode,
    NewFact,
    NewPlaybook,
)
from memory_es.screen import Finding
from memory_es.text import document_id, identity, passages

#: A text longer than this many characters also gets a vector for each passage of at most
#: PASSAGE characters: the embedder reads 512 tokens, about 2,000 characters of English.
LONG_TEXT = 1_500
PASSAGE = 800
#: Kinds that are known by their text, and so can be stated anew.
REVISED = frozenset({Kind.SEMANTIC, Kind.PROCEDURAL})


@dataclass
class Item:
    """One memory on its way through the write path."""

    position: int
    memory: AnyNewMemory
    context: str = ""  # of an episode: the preceding turn and itself, with speakers
    numbered: bool = False  # its turn number was given by the write path, not by the caller
    suspicious: tuple[Finding, ...] = ()  # what its text looks like
    revision: int = 0  # of a fact or playbook: how often it was stated anew
    id: str = ""

    @cached_property
    def identity(self) -> str:
        """The normalised text that the memory is known by."""
        return identity(self.memory.embedded_text)


def memory_id(item: Item, id_secret: str, new_id: Callable[[], str]) -> str:
    """HMAC id of a memory.

    An episode is itself once: (idempotency key or corpus id, else the caller's session and
    turn, else a new key; text). Facts and playbooks are their normalised text, so that twenty
    writers of one fact make one document. A catalog entry is its corpus id, or its text.
    """
    memory = item.memory
    if isinstance(memory, NewEpisode):
        key = memory.idempotency_key or memory.external_id
        if key is not None:
            place: tuple[str | int, ...] = ("key", key)
        elif memory.session_id is not None and memory.turn is not None and not item.numbered:
            place = ("turn", memory.session_id, memory.turn)
        else:
            place = ("new", new_id())
        return document_id(id_secret, memory.kind, *place, memory.text)
    if isinstance(memory, NewCatalogEntry) and memory.external_id:
        return document_id(id_secret, memory.kind, memory.external_id)
    return document_id(id_secret, memory.kind, item.identity, item.revision)


def parts(item: Item) -> list[tuple[int, int]]:
    """Passages of a long text as (start, end) in ``embedded_text``; none for a short one."""
    text = item.memory.embedded_text
    return passages(text, size=PASSAGE) if len(text) > LONG_TEXT else []


def texts_to_embed(item: Item) -> Iterator[str]:
    """Every text that a document has a vector of."""
    text = item.memory.embedded_text
    yield text
    if item.context:
        yield item.context
    for start, end in parts(item):
        yield text[start:end]


def body(
    item: Item,
    vectors: Mapping[str, str | None] | None,
    *,
    id_secret: str,
    embedding_model: str,
    stamp: dict[str, Any] | None = None,
    now: datetime,
) -> dict[str, Any]:
    """The stored form of a memory, without empty fields; ``documents`` has its model.

    Args:
        vectors: packed vector of each text, None for a text without one (all zeros); None: the
            embedder failed, and the document is flagged ``needs_embedding``.
        stamp: the owner, where the cluster does not set it.
        now: ``created_at``, and ``event_time`` where the memory has none.
    """
    memory = item.memory
    text = memory.embedded_text
    found = vectors or {}
    created = now.isoformat()
    source = memory.model_dump(mode="json", exclude_defaults=True)
    source |= {
        "kind": str(memory.kind),
        "revision": item.revision,
        "schema_version": SCHEMA_VERSION,
        "content_hash": document_id(id_secret, "content", item.identity),
        "embedding_model": embedding_model,
        "created_at": created,
    }
    source.setdefault("event_time", created)
    if item.suspicious:
        source["suspicious"] = True
    if stamp is not None:
        source["owner"] = stamp
    _put(source, "embedding", found.get(text))
    if vectors is None:
        source["needs_embedding"] = True
    if memory.kind is Kind.EPISODIC:
        source["content_context"] = item.context
        _put(source, "embedding_context", found.get(item.context))
    elif isinstance(memory, NewFact):
        source |= {"fact_type": memory.fact_type, "confidence": memory.confidence}
    elif isinstance(memory, NewPlaybook):
        source |= {"steps": [{"text": step} for step in memory.steps], "version": 1}
    if len(text) > LONG_TEXT and vectors is not None:
        source["passages"] = [
            {"start": start, "end": end, "embedding": vector}
            for start, end in parts(item)
            if (vector := vectors.get(text[start:end]))
        ]
    return source


def _put(source: dict[str, Any], name: str, value: str | None) -> None:
    if value is not None:
        source[name] = value
