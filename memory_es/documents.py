"""What is stored: one model an index. A test compares each with its index template by field;
``docs/data-model.md`` takes the comments that begin with ``#:``."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import Field, JsonValue

from memory_es.schema import SCHEMA_VERSION, Frozen, Kind


class Passage(Frozen):
    """Part of a long text, as character offsets into ``embedded_text``; its vector beside it."""

    #: First character, counted in the text that was embedded.
    start: int
    #: One past the last.
    end: int
    #: The passage's vector.
    embedding: str | list[float]


class DateRange(Frozen):
    """A resolved date mention, inclusive on both sides."""

    #: First moment.
    gte: datetime
    #: Last moment.
    lte: datetime


class Step(Frozen):
    """One step of a playbook."""

    #: What to do.
    text: str


class Document(Frozen):
    """Fields of every memory document. Vectors are base64 of big-endian float32 on the way in."""

    #: episodic, semantic, procedural or catalog.
    kind: Kind
    #: What is remembered, as it was given; also copied to `content`.
    text: str
    #: The caller's labels; searched with the text.
    tags: tuple[str, ...] = ()
    #: The caller's own keys. Stored as one field, so that no number of them grows the mapping.
    metadata: dict[str, JsonValue] = Field(default_factory=dict)
    #: Where it came from, in the caller's words.
    source: str | None = None
    #: Its id where it came from, for instance in a corpus.
    external_id: str | None = None
    #: Vector of the text (of an episode: with its speaker).
    embedding: str | list[float] | None = None
    #: Name of the model that made the vectors.
    embedding_model: str | None = None
    #: The embedder failed: only BM25 finds it.
    needs_embedding: bool = False
    #: Parts of a text longer than the model's window, with a vector each.
    passages: tuple[Passage, ...] = ()
    #: HMAC of what makes it the same memory; the user's secret is the key.
    content_hash: str
    #: HMAC of its words alone, for near duplicates.
    content_words_hash: str | None = None
    #: How often it was stated anew after it had ended.
    revision: int = 0
    #: Version of this model that wrote it.
    schema_version: int = SCHEMA_VERSION
    #: When it was stored.
    created_at: datetime
    #: When it happened or was said; `created_at` if not told.
    event_time: datetime
    #: From then on recall passes it over.
    expires_at: datetime | None = None
    #: Ids of facts that this one replaced.
    supersedes: tuple[str, ...] = ()
    #: The replacement is not finished.
    supersedes_pending: bool = False
    #: Id of the fact that replaced this one; recall passes it over.
    superseded_by: str | None = None
    #: When it was replaced.
    superseded_at: datetime | None = None
    #: It was wrong, not only overtaken.
    retracted: bool = False
    #: Id of the fact that is about to replace this one.
    claimed_by: str | None = None
    #: When that claim lapses.
    claimed_until: datetime | None = None
    #: It looks like an instruction or carries a secret.
    suspicious: bool = False


class OwnedDocument(Document):
    """A document of one user: the cluster stamps whose it is."""

    #: Identity of the key that wrote it, stamped by the pipeline, whatever the body said.
    owner: dict[str, Any] | None = None


class EpisodicDocument(OwnedDocument):
    """A document of the episodic index."""

    kind: Literal[Kind.EPISODIC] = Kind.EPISODIC
    #: The turn with the one before it, for BM25.
    content_context: str
    #: Vector of the turn with the one before it.
    embedding_context: str | list[float] | None = None
    #: Who said it.
    speaker: str | None = None
    #: user, assistant, or what the caller calls it.
    role: str | None = None
    #: The conversation.
    session_id: str | None = None
    #: The agent that took part.
    agent_id: str | None = None
    #: Place in the session, from 0.
    turn: int | None = None
    #: What kind of event, if it is no turn.
    event_type: str | None = None
    #: The caller's key: the same one twice is one document.
    idempotency_key: str | None = None
    #: Days that the text names, relative ones counted from `event_time`.
    resolved_dates: tuple[DateRange, ...] = ()


class SemanticDocument(OwnedDocument):
    """A document of the semantic index."""

    kind: Literal[Kind.SEMANTIC] = Kind.SEMANTIC
    #: identity, constraint, preference or world.
    fact_type: str
    #: 0 to 1.
    confidence: float
    #: Ids of the episodes it was drawn from.
    source_episodes: tuple[str, ...] = ()
    #: True from then on.
    valid_from: datetime | None = None
    #: True until then.
    valid_to: datetime | None = None


class ProceduralDocument(OwnedDocument):
    """A document of the procedural index."""

    kind: Literal[Kind.PROCEDURAL] = Kind.PROCEDURAL
    #: What the playbook is called.
    name: str
    #: The situation that calls for it.
    trigger: str | None = None
    #: More about it.
    description: str | None = None
    #: What to do, in order.
    steps: tuple[Step, ...] = ()
    #: Which version of the playbook.
    version: int = 1


class CatalogDocument(Document):
    """A document of the catalog index. It has no owner."""

    kind: Literal[Kind.CATALOG] = Kind.CATALOG
    #: Heading.
    title: str | None = None
    #: Where it is from.
    url: str | None = None


class UsageRow(Frozen):
    """How one memory has been used; its id is the memory's. Written by the service only."""

    #: Whose row it is, written by the service.
    owner: dict[str, Any]
    #: Kind of the memory.
    kind: Kind
    #: How often it was recalled.
    use_count: int = 0
    #: When it was recalled last.
    last_used_at: datetime | None = None
    #: Kept on top by its user.
    pinned: bool = False
    #: How often it helped.
    success_count: int = 0
    #: How often it did not.
    failure_count: int = 0


class StateRow(Frozen):
    """A row of the service's own state: a session, watermark, lease, journal or tombstone."""

    #: Whose row it is, if anybody's.
    owner: dict[str, Any] | None = None
    #: What kind of row.
    state_type: str
    #: What it is about.
    name: str
    #: Its content, not searched.
    data: dict[str, JsonValue] = Field(default_factory=dict)
    #: When it was written last.
    updated_at: datetime
    #: From then on it means nothing.
    expires_at: datetime | None = None


AnyDocument = EpisodicDocument | SemanticDocument | ProceduralDocument | CatalogDocument
DOCUMENT_MODELS: dict[Kind, type[AnyDocument]] = {
    Kind.EPISODIC: EpisodicDocument,
    Kind.SEMANTIC: SemanticDocument,
    Kind.PROCEDURAL: ProceduralDocument,
    Kind.CATALOG: CatalogDocument,
}
