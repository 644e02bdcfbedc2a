"""The corpus format: JSON lines of memories and questions, read with errors that name the line.

Each line of ``corpus.jsonl`` is one memory; only ``id``, ``user`` and ``text`` are
required. Naive times are UTC. Keys that the format does not know become metadata.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, ConfigDict, ValidationError

from memory_es.credentials import check_user_id
from memory_es.errors import InvalidInput, NotFound
from memory_es.schema import (
    NEW_MODELS,
    AnyNewMemory,
    Frozen,
    Keyword,
    Kind,
    Text,
    Timestamp,
    invalid_input,
    parse_kind,
    parse_new_memory,
    visible,
)

#: Keys of a line and the fields that they become.
_RENAMED = {"id": "external_id", "timestamp": "event_time", "session": "session_id"}
_KEYS = {field: key for key, field in _RENAMED.items()}
#: Keys that are neither a field nor metadata by themselves. `image_query` is left out: an artefact
#: of LoCoMo's making (the query by which its images were found) that leaks what the picture shows.
_APART = {"kind", "user", "metadata", "image_caption", "image_query"}


@dataclass(frozen=True)
class CorpusEntry:
    """One memory of a corpus: whose it is (None: the catalog) and what it is."""

    line: int
    user: str | None
    memory: AnyNewMemory


class Question(Frozen):
    """One question of a suite and the corpus ids that answer it."""

    model_config = ConfigDict(coerce_numbers_to_str=True)

    id: Keyword
    user: Annotated[str, AfterValidator(visible)]  # as it is: users differ in any code point
    text: Text
    category: str = "all"
    evidence: tuple[Keyword, ...] = ()
    timestamp: Timestamp | None = None
    session: Keyword | None = None


def read_corpus(
    path: Path, on_error: Callable[[InvalidInput], None] | None = None
) -> Iterator[CorpusEntry]:
    """The memories of a corpus, in order. Blank lines are passed over.

    Args:
        on_error: takes the error of a bad line, and reading goes on; None: it is raised.

    Raises:
        NotFound: no such file.
        InvalidInput: a bad line; names file, line and field. A byte order mark is always raised:
            no line of such a file is what it seems.
    """
    for number, raw in _lines(path):
        where = f"{path}, line {number}"
        try:
            yield entry(number, _parse(where, raw))
        except InvalidInput as error:
            if not error.message.startswith(where):
                error = InvalidInput(where, error.message, remedy=error.remedy)
            if on_error is None or error.code == "byte_order_mark":
                raise error from None
            on_error(error)


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        with path.open("rb") as file:
            yield from ((n, raw) for n, raw in enumerate(file, start=1) if raw.strip())
    except OSError as error:
        raise NotFound(
            f"cannot read {path}: {error.strerror}",
            code="no_file",
            remedy="Name a file of JSON lines (docs/corpus-format.md)",
        ) from None


def _parse(where: str, raw: bytes) -> dict[str, Any]:
    if raw.startswith((b"\xff\xfe", b"\xfe\xff", b"\xef\xbb\xbf")):
        raise InvalidInput(
            where,
            "begins with a byte order mark",
            code="byte_order_mark",
            remedy="Save the file as UTF-8 without one; nothing was read",
        )
    try:
        value = json.loads(raw.decode("utf-8"))
    except UnicodeDecodeError:
        raise InvalidInput(where, "is not UTF-8", remedy="Convert the file to UTF-8") from None
    except json.JSONDecodeError as error:
        raise InvalidInput(
            where,
            f"is not JSON ({error.msg}, column {error.colno})",
            remedy="Write one whole JSON object a line",
        ) from None
    except (RecursionError, ValueError):  # json's own limits: nesting, 4,300 digits
        raise InvalidInput(where, "is not JSON of usual size: too deep, or a long number") from None
    if not isinstance(value, dict):
        raise InvalidInput(where, "is not a JSON object")
    return value


def entry(line: int, fields: dict[str, Any]) -> CorpusEntry:
    """One line of a corpus as a memory.

    Raises:
        InvalidInput: a field is missing or wrong.
    """
    present = {key: value for key, value in fields.items() if value is not None}
    kind = parse_kind(present.get("kind", Kind.EPISODIC))
    for required in ("id", "text") if kind is Kind.CATALOG else ("id", "user", "text"):
        if required not in present:
            raise InvalidInput(required, "is missing")
    try:
        memory = parse_new_memory(_values(kind, present))
    except InvalidInput as error:  # name the key of the line, not the field that it became
        reason = error.message.removeprefix(f"{error.field}: ")
        raise InvalidInput(_KEYS.get(error.field, error.field), reason) from None
    user = None if kind is Kind.CATALOG else check_user_id(_label("user", present["user"]))
    return CorpusEntry(line, user, memory)


def _values(kind: Kind, present: dict[str, Any]) -> dict[str, Any]:
    """A line's keys as fields of its kind; what is none of them goes to metadata."""
    known = NEW_MODELS[kind].model_fields
    values: dict[str, Any] = {"kind": kind}
    extra: dict[str, Any] = {}
    for key in (key for key in present if key not in _APART):
        if _RENAMED.get(key) in known:
            values[_RENAMED[key]] = present[key]  # wins over the field's own name
        elif key in known:
            values.setdefault(key, present[key])
        else:
            extra[key] = present[key]
    caption = present.get("image_caption")
    if caption and isinstance(values["text"], str):
        values["text"] = f"{values['text']} ({caption})"
    metadata = present.get("metadata", {})
    if not isinstance(metadata, dict):
        raise InvalidInput("metadata", "is not an object")
    if "turn" in values and "session_id" not in values:
        extra["turn"] = values.pop("turn")  # has no meaning without a session, but is kept
    if extra or metadata:
        values["metadata"] = {**extra, **metadata}
    values["external_id"] = _label("id", present["id"])
    return values


def _label(key: str, value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise InvalidInput(key, "is neither text nor a whole number")
    return str(value)


def read_questions(path: Path) -> Iterator[Question]:
    """The questions of a suite, in order.

    Raises:
        NotFound: no such file.
        InvalidInput: a bad line; the message names file, line and field.
    """
    for number, raw in _lines(path):
        where = f"{path}, line {number}"
        fields = _parse(where, raw)
        known = {
            key: value
            for key, value in fields.items()
            if key in Question.model_fields and value is not None
        }
        try:
            yield Question.model_validate(known)
        except ValidationError as error:
            raise InvalidInput(where, str(invalid_input(error))) from None


# --- LoCoMo as published ------------------------------------------------------------------------

_LOCOMO_CATEGORIES = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop"}
_LOCOMO_TIME = "%I:%M %p on %d %B, %Y"


def read_locomo(path: Path) -> tuple[list[CorpusEntry], list[Question]]:
    """LoCoMo's published JSON: a turn is a memory, a conversation is a user. Adversarial
    questions (category 5, no answer) are left out, as is usual.

    Raises:
        InvalidInput: the file has another form.
    """
    try:
        samples = json.loads(path.read_text("utf-8"))
        if not isinstance(samples, list):
            raise TypeError("no list of conversations")  # noqa: TRY301
        pairs = [_locomo_sample(sample) for sample in samples]
    except InvalidInput as error:
        raise InvalidInput(str(path), error.message) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidInput(
            str(path),
            f"is not LoCoMo's JSON ({type(error).__name__}: {error})",
            remedy="A suite of JSON lines is a folder with corpus.jsonl and queries.jsonl: name the"
            " folder",
        ) from None
    return [e for entries, _ in pairs for e in entries], [q for _, asked in pairs for q in asked]


def _locomo_sample(sample: dict[str, Any]) -> tuple[list[CorpusEntry], list[Question]]:
    user = str(sample["sample_id"])
    conversation = sample["conversation"]
    entries: list[CorpusEntry] = []
    number = 1
    while turns := conversation.get(f"session_{number}"):
        told = datetime.strptime(conversation[f"session_{number}_date_time"], _LOCOMO_TIME).replace(
            tzinfo=UTC
        )
        for index, turn in enumerate(turns):
            fields = {
                "id": f"{user}:{turn['dia_id']}",
                "user": user,
                "speaker": turn["speaker"],
                "timestamp": told,
                "session": f"{user}:S{number}",
                "turn": index,
                "text": turn["text"],
                "image_caption": turn.get("blip_caption"),
            }
            entries.append(entry(len(entries) + 1, fields))
        number += 1
    known = {item.memory.external_id for item in entries}
    questions = []
    for index, asked in enumerate(sample["qa"]):
        category = _LOCOMO_CATEGORIES.get(asked["category"])
        named = [
            part for raw in asked.get("evidence", []) for part in raw.replace(";", " ").split()
        ]
        evidence = tuple(dict.fromkeys(f"{user}:{part}" for part in named))
        evidence = tuple(id_ for id_ in evidence if id_ in known)
        if category is not None:
            questions.append(
                Question(
                    id=f"{user}:q{index}",
                    user=user,
                    text=asked["question"],
                    category=category,
                    evidence=evidence,
                )
            )
    return entries, questions
