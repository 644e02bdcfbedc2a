"""From a new memory to its document: ids, texts to embed, bodies."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime

import pytest

from memory_es.compose import LONG_TEXT, PASSAGE, Item, body, memory_id, texts_to_embed
from memory_es.documents import DOCUMENT_MODELS
from memory_es.schema import (
    AnyNewMemory,
    Kind,
    NewCatalogEntry,
    NewEpisode,
    NewFact,
    NewPlaybook,
)

NOW = datetime(2026, 3, 4, 5, 6, 7, 890123, tzinfo=UTC)
SECRET = "s" * 64

EVERY_FIELD: dict[Kind, AnyNewMemory] = {
    Kind.EPISODIC: NewEpisode(
        text="I saw the dentist",
        tags=("health", "travel, food"),
        metadata={"type": 1, "existing": True, "session_id": "s"},
        source="chat",
        external_id="e1",
        event_time=datetime(2026, 1, 2, tzinfo=UTC),
        expires_at=datetime(2027, 1, 2, tzinfo=UTC),
        speaker="Ana",
        role="user",
        session_id="s1",
        agent_id="a1",
        turn=3,
        event_type="message",
        idempotency_key="k1",
    ),
    Kind.SEMANTIC: NewFact(
        text="Ana is a nurse",
        fact_type="identity",
        confidence=0.9,
        source_episodes=("e1",),
        valid_from=datetime(2020, 1, 1, tzinfo=UTC),
        valid_to=datetime(2025, 1, 1, tzinfo=UTC),
    ),
    Kind.PROCEDURAL: NewPlaybook(
        text="Reset it", name="router", trigger="no network", description="d", steps=("a", "b")
    ),
    Kind.CATALOG: NewCatalogEntry(text="Ports", title="Manual", url="https://example.com/m"),
}


def compose(memory: AnyNewMemory, *, failed: bool = False) -> dict[str, object]:
    item = Item(0, memory, context="Bo: hello\nAna: I saw the dentist", id="x")
    vectors = None if failed else {text: f"v{n}" for n, text in enumerate(texts_to_embed(item))}
    return body(item, vectors, id_secret=SECRET, embedding_model="m", now=NOW)


@pytest.mark.parametrize("kind", list(Kind))
def test_a_body_is_a_document_of_its_kind_and_keeps_every_field_given(kind: Kind) -> None:
    memory = EVERY_FIELD[kind]
    document = DOCUMENT_MODELS[kind].model_validate(compose(memory))
    for name in type(memory).model_fields:
        given = getattr(memory, name)
        stored = getattr(document, name)
        if name == "steps":
            stored = tuple(step.text for step in stored)
        if name == "event_time" and given is None:
            given = NOW
        assert stored == given, name


def test_a_memory_with_only_its_text_has_the_time_of_writing_and_no_empty_fields() -> None:
    source = compose(NewFact(text="Ana is a nurse"))
    assert source["event_time"] == source["created_at"] == NOW.isoformat()
    assert source["fact_type"] == "world"
    assert source["confidence"] == 1.0
    assert set(source) == {
        "text",
        "kind",
        "revision",
        "schema_version",
        "content_hash",
        "embedding_model",
        "created_at",
        "event_time",
        "embedding",
        "fact_type",
        "confidence",
    }


def test_a_failed_embedder_flags_the_document_and_leaves_it_without_vectors() -> None:
    source = compose(NewEpisode(text="x" * (LONG_TEXT + 1)), failed=True)
    assert source["needs_embedding"] is True
    assert not {"embedding", "embedding_context", "passages"} & source.keys()


def test_a_text_without_a_vector_is_stored_without_one_and_without_a_flag() -> None:
    item = Item(0, NewEpisode(text=";)"), context=";)")
    source = body(item, {";)": None}, id_secret=SECRET, embedding_model="m", now=NOW)
    assert not {"embedding", "embedding_context", "needs_embedding"} & source.keys()


def test_a_long_text_has_passages_that_cover_it_and_a_short_one_has_none() -> None:
    text = " ".join(f"Sentence number {number} is here." for number in range(200))
    passages = compose(NewFact(text=text))["passages"]
    assert isinstance(passages, list)
    assert all(0 < part["end"] - part["start"] <= PASSAGE for part in passages)
    gaps = [text[a["end"] : b["start"]] for a, b in itertools.pairwise(passages)]
    assert not "".join(gaps).strip()
    assert (passages[0]["start"], passages[-1]["end"]) == (0, len(text))
    assert "passages" not in compose(NewFact(text="short"))


def ids(*memories: AnyNewMemory, secret: str = SECRET) -> list[str]:
    keys = itertools.count()
    return [memory_id(Item(0, memory), secret, lambda: str(next(keys))) for memory in memories]


def test_facts_are_the_same_by_their_text_alone_case_and_spacing_apart() -> None:
    same = ids(
        NewFact(text="Ana is a nurse"),
        NewFact(text=" ana  IS a nurse", tags=("t",), external_id="other"),
    )
    assert len(set(same)) == 1
    assert (
        len(set(ids(NewFact(text="Ana is a nurse"), NewPlaybook(name="n", text="Ana is a nurse"))))
        == 2
    )


def test_an_episode_is_the_same_by_key_or_by_the_callers_turn_and_never_by_text_alone() -> None:
    assert len(set(ids(NewEpisode(text="hi"), NewEpisode(text="hi")))) == 2
    turn = NewEpisode(text="hi", session_id="s", turn=1)
    assert len(set(ids(turn, turn))) == 1
    keyed = NewEpisode(text="hi", idempotency_key="k")
    assert len(set(ids(keyed, keyed.model_copy(update={"session_id": "s", "turn": 5})))) == 1
    numbered = [Item(0, turn, numbered=True) for _ in range(2)]
    keys = itertools.count()
    assert len({memory_id(item, SECRET, lambda: str(next(keys))) for item in numbered}) == 2


def test_an_id_needs_the_users_secret() -> None:
    fact = NewFact(text="Ana is a nurse")
    assert ids(fact) != ids(fact, secret="t" * 64)
