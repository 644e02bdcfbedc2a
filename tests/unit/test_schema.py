from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from memory_es.errors import InvalidInput
from memory_es.requests import RecallRequest
from memory_es.schema import (
    MAX_K,
    MAX_KEYWORD,
    MAX_METADATA_DEPTH,
    MAX_TEXT,
    NEW_MODELS,
    Kind,
    NewCatalogEntry,
    NewEpisode,
    NewFact,
    NewPlaybook,
    invalid_input,
    parse_kind,
    parse_new_memory,
)

#: What a message must never carry.
SECRET = "xyzzy-my-private-words"
#: Valid values of the fields that every memory needs, by kind.
MINIMAL: dict[Kind, dict[str, Any]] = {
    kind: {"kind": kind, "text": SECRET} | ({"name": "n"} if kind is Kind.PROCEDURAL else {})
    for kind in Kind
}


def refusal(**fields: Any) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        parse_new_memory(fields)
    return caught.value


# --- defaults ---


@pytest.mark.parametrize("kind", Kind)
def test_each_kind_is_parsed_into_its_model(kind: Kind) -> None:
    memory = parse_new_memory(MINIMAL[kind])
    assert type(memory) is NEW_MODELS[kind]
    assert memory.kind is kind
    assert (memory.tags, memory.metadata, memory.event_time) == ((), {}, None)


def test_a_memory_is_an_episode_unless_said_otherwise() -> None:
    assert parse_new_memory({"text": "a"}) == NewEpisode(text="a")


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"description": "Bleed the radiators"}, "Bleed the radiators"),
        ({}, "heating"),
        ({"text": "", "description": "Bleed"}, "Bleed"),
        ({"text": "Own words", "description": "Bleed"}, "Own words"),
    ],
)
def test_the_text_of_a_playbook_defaults_to_its_description_or_name(
    fields: dict[str, Any], text: str
) -> None:
    assert parse_new_memory({"kind": "procedural", "name": "heating", **fields}).text == text


def test_what_is_embedded_holds_every_text_of_a_memory_once() -> None:
    playbook = NewPlaybook(
        name="heating", trigger="cold", description="Bleed", text="Bleed", steps=("shut", "open")
    )
    assert playbook.embedded_text == "heating\ncold\nBleed\nshut\nopen"
    assert NewCatalogEntry(text="body", title="Title").embedded_text == "Title\nbody"
    assert NewCatalogEntry(text="body").embedded_text == "body"
    assert NewFact(text="likes tea").embedded_text == "likes tea"


def test_models_are_frozen() -> None:
    with pytest.raises(ValidationError):
        NewEpisode(text="a").text = "b"  # type: ignore[misc]


# --- refusals: the field is named, the text is not quoted ---

BAD: list[tuple[Kind, dict[str, Any], str]] = [
    *(
        (kind, fields, field)
        for kind in Kind
        for fields, field in (
            ({"text": 5}, "text"),
            ({"text": None}, "text"),
            ({"tags": "one"}, "tags"),
            ({"tags": ("ok", "")}, "tags.1"),
            ({"tags": ("x" * 40_000,)}, "tags.0"),
            ({"source": "x" * 1_025}, "source"),
            ({"source": "\u200b"}, "source"),
            ({"external_id": ""}, "external_id"),
            ({"metadata": "one"}, "metadata"),
            ({"metadata": {"when": datetime(2026, 1, 1, tzinfo=UTC)}}, "metadata.when"),
            ({"event_time": "yesterday"}, "event_time"),
            ({"event_time": "9999-12-31T23:59:59-05:00"}, "event_time"),
            ({"expires_at": "0001-01-01T00:00:00+05:00"}, "expires_at"),
            ({"user_id": "somebody"}, "user_id"),
            ({"owner": {"api_key": {}}}, "owner"),
        )
        if not (kind is Kind.PROCEDURAL and fields == {"text": None})
    ),
    *((Kind.EPISODIC, {"text": text}, "text") for text in ("", "   ", "\u200b", "\x00")),
    *((Kind.SEMANTIC, {"text": text}, "text") for text in ("", "...", ";)", "\u200b")),
    (Kind.PROCEDURAL, {"text": "..."}, "text"),
    (Kind.EPISODIC, {"turn": 3}, "turn"),
    (Kind.EPISODIC, {"session_id": "s", "turn": -1}, "turn"),
    (Kind.EPISODIC, {"session_id": "s", "turn": 2**31}, "turn"),
    (Kind.EPISODIC, {"session_id": " "}, "session_id"),
    (Kind.EPISODIC, {"idempotency_key": ""}, "idempotency_key"),
    (Kind.SEMANTIC, {"confidence": 1.1}, "confidence"),
    (Kind.SEMANTIC, {"confidence": float("nan")}, "confidence"),
    (Kind.SEMANTIC, {"fact_type": "opinion"}, "fact_type"),
    (Kind.SEMANTIC, {"session_id": "s"}, "session_id"),
    (Kind.PROCEDURAL, {"name": "x" * 40_000}, "name"),
    (Kind.PROCEDURAL, {"name": None}, "name"),
    (Kind.PROCEDURAL, {"steps": ("do it", " ")}, "steps.1"),
    (Kind.PROCEDURAL, {"trigger": ""}, "trigger"),
    (Kind.CATALOG, {"title": ""}, "title"),
]


@pytest.mark.parametrize(("kind", "fields", "field"), BAD)
def test_a_refusal_names_the_field_in_one_line_and_quotes_no_text(
    kind: Kind, fields: dict[str, Any], field: str
) -> None:
    error = refusal(**{**MINIMAL[kind], **fields})
    assert error.field == field
    assert str(error).startswith(f"{field}: ")
    assert SECRET not in str(error)
    assert "\n" not in str(error)
    assert len(str(error)) < 300


def test_a_text_of_a_million_characters_is_taken_and_a_longer_one_refused() -> None:
    assert len(parse_new_memory({"text": "a" * MAX_TEXT}).text) == MAX_TEXT
    assert refusal(text="a" * (MAX_TEXT + 1)).field == "text"


def test_a_keyword_is_bounded_by_its_bytes() -> None:
    fits = "ก" * (MAX_KEYWORD // 3)
    assert parse_new_memory({"text": "a", "tags": (fits,)}).tags == (fits,)
    assert "1024 bytes" in str(refusal(text="a", tags=(fits + "กก",)))


def test_an_unknown_kind_is_refused_with_the_choices() -> None:
    assert refusal(text="a", kind="dream").field == "kind"
    choices: list[Any] = ["", "EPISODIC", None, 3, [], {}]
    for bad in choices:
        with pytest.raises(InvalidInput, match="episodic, semantic, procedural, catalog"):
            parse_kind(bad)


def test_an_episode_of_punctuation_is_stored() -> None:
    assert parse_new_memory({"text": ";)"}).text == ";)"


def test_the_same_cleaning_holds_for_every_text_and_keyword() -> None:
    dirty, clean = " a\x00b\ud800e\u0301 ", "ab\u00e9"
    episode = parse_new_memory(
        {"text": dirty, "tags": [dirty], "speaker": dirty, "session_id": dirty, "source": dirty}
    )
    assert isinstance(episode, NewEpisode)
    values = {episode.text, *episode.tags, episode.speaker, episode.session_id, episode.source}
    assert values == {clean}


# --- times ---


@pytest.mark.parametrize(
    ("given_", "hour"),
    [
        ("2026-03-04T12:00:00", 12),
        ("2026-03-04T12:00:00Z", 12),
        ("2026-03-04T12:00:00+09:00", 3),
        (datetime(2026, 3, 4, 12), 12),  # noqa: DTZ001 -- a naive time means UTC
        (datetime(2026, 3, 4, 12, tzinfo=timezone(timedelta(hours=-5))), 17),
    ],
)
def test_times_are_normalised_to_utc_and_naive_ones_mean_it(given_: Any, hour: int) -> None:
    found = parse_new_memory({"text": "a", "event_time": given_, "expires_at": given_})
    assert found.event_time == found.expires_at == datetime(2026, 3, 4, hour, tzinfo=UTC)
    assert found.event_time is not None
    assert found.event_time.utcoffset() == timedelta(0)


@given(st.datetimes(timezones=st.timezones()) | st.datetimes())
def test_any_time_is_taken_in_utc_or_refused(time: datetime) -> None:
    try:
        found = parse_new_memory({"text": "a", "event_time": time}).event_time
    except InvalidInput as error:
        assert error.field == "event_time"  # noqa: PT017 -- either outcome is right
        return
    assert found is not None
    assert found.tzinfo is UTC
    assert found == (time if time.tzinfo else time.replace(tzinfo=UTC))


# --- metadata ---

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8", exclude_characters="\x00")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["user_id", "owner", "type", "existing", "k"]), json_values))
def test_metadata_comes_out_exactly_as_it_went_in(metadata: dict[str, Any]) -> None:
    found = parse_new_memory({"text": "a", "metadata": metadata}).metadata
    assert json.dumps(found) == json.dumps(metadata)


def nested(depth: int) -> dict[str, Any]:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value}
    return {"m": value}


@pytest.mark.parametrize(
    "metadata",
    [
        {"a": float("nan")},
        {"a": [1, float("inf")]},
        {"a": 2**63},
        {"a": {"b": -(2**63) - 1}},
        {"a": "x\x00y"},
        {"a": ["\ud800"]},
        {"": 1},
        {"a": {"": 1}},
        {"a\x00b": 1},
        {"k" * (MAX_KEYWORD + 1): 1},
        {"k" * 600: {"k" * 600: 1}},
        nested(MAX_METADATA_DEPTH),
        nested(5_000),
        {1: 2},
    ],
)
def test_metadata_that_cannot_be_stored_is_refused_briefly(metadata: dict[Any, Any]) -> None:
    error = refusal(text="a", metadata=metadata)
    assert error.field.split(".")[0] == "metadata"
    assert len(str(error)) < 400


def test_metadata_may_be_as_deep_as_elasticsearch_allows() -> None:
    # measured on 9.5.2: 20 objects inside one another, lists not counted
    deepest = {**nested(MAX_METADATA_DEPTH - 1), "list": [[[1]]]}
    assert parse_new_memory({"text": "a", "metadata": deepest}).metadata == deepest


# --- the recall request ---


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"query": ""}, "query"),
        ({"query": " \u200b\n"}, "query"),
        ({"query": "\x00"}, "query"),
        ({"query": 5}, "query"),
        ({"k": 0}, "k"),
        ({"k": -1}, "k"),
        ({"k": MAX_K + 1}, "k"),
        ({"k": 10_001}, "k"),
        ({"k": 2.5}, "k"),
        ({"filters": {"kinds": ("dream",)}}, "filters.kinds"),
        ({"filters": {"kinds": ()}}, "filters"),
        ({"filters": {"since": "soon"}}, "filters.since"),
        ({"mode": "fast"}, "mode"),
    ],
)
def test_a_bad_recall_request_names_its_field(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationError) as caught:
        RecallRequest(**{"query": SECRET, **fields})
    error = invalid_input(caught.value)
    assert error.field.startswith(field)
    assert SECRET not in str(error)


def test_a_query_is_used_verbatim_but_for_cleaning() -> None:
    request = RecallRequest(query=" What, did\nI  SAY?\x00 ")
    assert request.query == "What, did\nI  SAY?"
    assert (request.k, request.recipe, request.filters.kinds) == (10, "hybrid", tuple(Kind))
