"""What callers hand in: new memories of each kind, and the types that check them.

Everything is frozen. Strings are cleaned (``text.clean``) before validation, so every door
treats NUL bytes and lone surrogates the same way. Times are UTC; naive times mean UTC.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    ValidationError,
    field_validator,
    model_validator,
)

from memory_es.errors import InvalidInput, complaint
from memory_es.text import clean, has_words, is_blank

SCHEMA_VERSION = 1
MAX_TEXT = 1_000_000  # characters; a longer text is a document, not a memory
MAX_KEYWORD = 1_024  # bytes; Lucene's own limit for a term is 32,766
MAX_METADATA_DEPTH = 20  # Elasticsearch's depth_limit of `flattened`
MAX_K = 1_000
MAX_TURN = 2**31 - 1  # Elasticsearch's `integer`


class Kind(StrEnum):
    """The kinds of memory, one index each."""

    EPISODIC = "episodic"
    SEMANTIC = "semantic"
    PROCEDURAL = "procedural"
    CATALOG = "catalog"


OWNED = (Kind.EPISODIC, Kind.SEMANTIC, Kind.PROCEDURAL)


def clean_value(value: Any) -> Any:
    """Validator: strings are cleaned, anything else is left to the type's own check; bytes are
    refused (pydantic would decode them, uncleaned)."""
    if isinstance(value, (bytes, bytearray)):
        raise ValueError("is bytes; decode it to text first")  # noqa: TRY004
    return clean(value) if isinstance(value, str) else value


def _keyword(value: str) -> str:
    if is_blank(value):
        raise ValueError("is empty")
    if len(value.encode()) > MAX_KEYWORD:
        raise ValueError(f"is longer than {MAX_KEYWORD} bytes; put long text into `text`")
    return value


def visible(value: str) -> str:
    """Validator: refuses a text without a visible character."""
    if is_blank(value):
        raise ValueError("is empty; give at least one visible character")
    return value


def _utc(value: datetime) -> datetime:
    try:
        return (value.replace(tzinfo=UTC) if value.tzinfo is None else value).astimezone(UTC)
    except OverflowError:
        raise ValueError("is outside the years 1 to 9999 in UTC") from None


def _metadata(value: dict[str, JsonValue]) -> dict[str, JsonValue]:
    _check_metadata(value, "", 1)
    return value


def _check_metadata(value: Any, path: str, depth: int) -> None:
    if isinstance(value, dict):
        if depth > MAX_METADATA_DEPTH:
            raise ValueError(f"is nested deeper than {MAX_METADATA_DEPTH} levels at {path[:80]}")
        for key, item in value.items():
            inner = f"{path}.{key}" if path else key
            if (
                not key
                or "\0" in key
                or clean_surrogates(key) != key
                or len(inner.encode()) > MAX_KEYWORD
            ):
                raise ValueError(
                    "has a key that is empty, has a NUL or a lone surrogate or is over"
                    f" {MAX_KEYWORD} bytes under {path[:80] or 'the top'}"
                )
            _check_metadata(item, inner, depth + 1)
    elif isinstance(value, list):
        for item in value:
            _check_metadata(item, path, depth)
    elif isinstance(value, str) and ("\0" in value or clean_surrogates(value) != value):
        raise ValueError(f"has a NUL or a lone surrogate at {path[:80]}")
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"has a number that JSON cannot carry at {path[:80]}")
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError(f"has a number beyond 64 bits at {path[:80]}; store it as a string")


def clean_surrogates(value: str) -> str:
    """The text without lone surrogates, which UTF-8 cannot carry."""
    return value.encode("utf-8", "ignore").decode()


Keyword = Annotated[str, BeforeValidator(clean_value), AfterValidator(_keyword)]
Text = Annotated[
    str, BeforeValidator(clean_value), Field(max_length=MAX_TEXT), AfterValidator(visible)
]
Timestamp = Annotated[datetime, AfterValidator(_utc)]
Metadata = Annotated[dict[str, JsonValue], AfterValidator(_metadata)]
Unit = Annotated[float, Field(ge=0, le=1)]


class Frozen(BaseModel):
    """Base of every model here: immutable, unknown fields refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


# --- what callers hand in -----------------------------------------------------------------


class NewMemory(Frozen):
    """What every new memory may carry."""

    text: Text
    tags: tuple[Keyword, ...] = ()
    metadata: Metadata = Field(default_factory=dict)
    source: Keyword | None = None
    external_id: Keyword | None = None
    event_time: Timestamp | None = None
    expires_at: Timestamp | None = None

    @property
    def embedded_text(self) -> str:
        """The text that its vector is made of: what BM25 reads too."""
        return self.text


class NewEpisode(NewMemory):
    """Something that happened: a turn of a conversation, an event."""

    kind: Literal[Kind.EPISODIC] = Kind.EPISODIC
    speaker: Keyword | None = None
    role: Keyword | None = None
    session_id: Keyword | None = None
    agent_id: Keyword | None = None
    turn: Annotated[int, Field(ge=0, le=MAX_TURN)] | None = None
    event_type: Keyword | None = None
    idempotency_key: Keyword | None = None

    @property
    def embedded_text(self) -> str:
        """The turn with its speaker: questions name people (measured on LoCoMo-dev's first
        conversation: R@10 0.68 with the speaker, 0.21 without)."""
        return f"{self.speaker}: {self.text}" if self.speaker else self.text

    @model_validator(mode="after")
    def _turn_needs_session(self) -> Self:
        if self.turn is not None and self.session_id is None:
            raise ValueError("turn: has no meaning without session_id; give both")
        return self


class _Worded(NewMemory):
    @field_validator("text")
    @classmethod
    def _words(cls, value: str) -> str:
        if not has_words(value):
            raise ValueError("has only punctuation; say the fact in words")
        return value


class NewFact(_Worded):
    """Something that is true: a stable statement about the user or the world."""

    kind: Literal[Kind.SEMANTIC] = Kind.SEMANTIC
    fact_type: Literal["identity", "constraint", "preference", "world"] = "world"
    confidence: Unit = 1.0
    source_episodes: tuple[Keyword, ...] = ()
    valid_from: Timestamp | None = None
    valid_to: Timestamp | None = None


class NewPlaybook(_Worded):
    """Something that works: a named procedure. ``text`` defaults to its description or name."""

    kind: Literal[Kind.PROCEDURAL] = Kind.PROCEDURAL
    name: Keyword
    trigger: Text | None = None
    description: Text | None = None
    steps: tuple[Text, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _default_text(cls, data: Any) -> Any:
        if isinstance(data, dict) and not data.get("text"):
            return {**data, "text": data.get("description") or data.get("name")}
        return data

    @property
    def embedded_text(self) -> str:
        """Name, trigger, description, text and steps, a line each, none twice."""
        parts = [self.name, self.trigger, self.description, self.text, *self.steps]
        return "\n".join(dict.fromkeys(part for part in parts if part))


class NewCatalogEntry(NewMemory):
    """Shared knowledge, written by an operator and readable by every user."""

    kind: Literal[Kind.CATALOG] = Kind.CATALOG
    title: Keyword | None = None
    url: Keyword | None = None

    @property
    def embedded_text(self) -> str:
        """Title and text."""
        return f"{self.title}\n{self.text}" if self.title else self.text


AnyNewMemory = NewEpisode | NewFact | NewPlaybook | NewCatalogEntry
NEW_MODELS: dict[Kind, type[AnyNewMemory]] = {
    Kind.EPISODIC: NewEpisode,
    Kind.SEMANTIC: NewFact,
    Kind.PROCEDURAL: NewPlaybook,
    Kind.CATALOG: NewCatalogEntry,
}


def parse_kind(value: Any) -> Kind:
    """The kind of that name. Raises InvalidInput naming the choices."""
    try:
        return Kind(value)
    except ValueError:
        choices = ", ".join(Kind)
        raise InvalidInput("kind", f"{value!r} is none of {choices}") from None


def parse_new_memory(fields: Mapping[str, Any]) -> AnyNewMemory:
    """Build the new memory of ``fields["kind"]`` (default episodic).

    Raises:
        InvalidInput: a field is wrong; the message names it and says what is allowed.
    """
    if not isinstance(fields, Mapping):
        raise InvalidInput("memory", "is not an object with fields such as text and kind")
    model = NEW_MODELS[parse_kind(fields.get("kind", Kind.EPISODIC))]
    try:
        return model.model_validate(dict(fields))
    except ValidationError as error:
        raise invalid_input(error) from None


def invalid_input(error: ValidationError) -> InvalidInput:
    """The first complaint of pydantic as one line that names the field. It never quotes the
    input: that is memory text, and messages end up in logs."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    message = complaint(first["type"], first["msg"])
    field = ".".join(str(part) for part in first["loc"][:2])[:80]
    if not field:  # a validator of the whole model names its field itself
        field, _, message = message.partition(": ")
    return InvalidInput(field, message)
