"""What is stored: one model an index. A test compares each with its index template by field."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import Field, JsonValue

from memory_es.schema import SCHEMA_VERSION, Frozen, Kind


class Passage(Frozen):
    """Part of a long text, as character offsets into ``embedded_text``; its vector beside it."""

    start: int
    end: int
    embedding: str | list[float]


class DateRange(Frozen):
    """A resolved date mention, inclusive on both sides."""

    gte: datetime
    lte: datetime


class Step(Frozen):
    """One step of a playbook."""

    text: str


class Document(Frozen):
    """Fields of every memory document. Vectors are base64 of big-endian float32 on the way in."""

    kind: Kind
    text: str
    tags: tuple[str, ...] = ()
    metadata: dict[str, JsonValue] = Field(default_factory=dict)
    source: str | None = None
    external_id: str | None = None
    embedding: str | list[float] | None = None
    embedding_model: str | None = None
    needs_embedding: bool = False
    passages: tuple[Passage, ...] = ()
    content_hash: str
    content_words_hash: str | None = None
    revision: int = 0
    schema_version: int = SCHEMA_VERSION
    created_at: datetime
    event_time: datetime
    expires_at: datetime | None = None
    supersedes: tuple[str, ...] = ()
    supersedes_pending: bool = False
    superseded_by: str | None = None
    superseded_at: datetime | None = None
    retracted: bool = False
    claimed_by: str | None = None
    claimed_until: datetime | None = None
    suspicious: bool = False


class OwnedDocument(Document):
    """A document of one user: the cluster stamps whose it is."""

    owner: dict[str, Any] | None = None


class EpisodicDocument(OwnedDocument):
    """A document of the episodic index."""

    kind: Literal[Kind.EPISODIC] = Kind.EPISODIC
    content_context: str
    embedding_context: str | list[float] | None = None
    speaker: str | None = None
    role: str | None = None
    session_id: str | None = None
    agent_id: str | None = None
    turn: int | None = None
    event_type: str | None = None
    idempotency_key: str | None = None
    resolved_dates: tuple[DateRange, ...] = ()


class SemanticDocument(OwnedDocument):
    """A document of the semantic index."""

    kind: Literal[Kind.SEMANTIC] = Kind.SEMANTIC
    fact_type: str
    confidence: float
    source_episodes: tuple[str, ...] = ()
    valid_from: datetime | None = None
    valid_to: datetime | None = None


class ProceduralDocument(OwnedDocument):
    """A document of the procedural index."""

    kind: Literal[Kind.PROCEDURAL] = Kind.PROCEDURAL
    name: str
    trigger: str | None = None
    description: str | None = None
    steps: tuple[Step, ...] = ()
    version: int = 1


class CatalogDocument(Document):
    """A document of the catalog index. It has no owner."""

    kind: Literal[Kind.CATALOG] = Kind.CATALOG
    title: str | None = None
    url: str | None = None


class UsageRow(Frozen):
    """How one memory has been used; its id is the memory's. Written by the service only."""

    owner: dict[str, Any]
    kind: Kind
    use_count: int = 0
    last_used_at: datetime | None = None
    pinned: bool = False
    success_count: int = 0
    failure_count: int = 0


class StateRow(Frozen):
    """A row of the service's own state: a session, watermark, lease, journal or tombstone."""

    owner: dict[str, Any] | None = None
    state_type: str
    name: str
    data: dict[str, JsonValue] = Field(default_factory=dict)
    updated_at: datetime
    expires_at: datetime | None = None


AnyDocument = EpisodicDocument | SemanticDocument | ProceduralDocument | CatalogDocument
DOCUMENT_MODELS: dict[Kind, type[AnyDocument]] = {
    Kind.EPISODIC: EpisodicDocument,
    Kind.SEMANTIC: SemanticDocument,
    Kind.PROCEDURAL: ProceduralDocument,
    Kind.CATALOG: CatalogDocument,
}
