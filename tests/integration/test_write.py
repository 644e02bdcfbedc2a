"""The write path on the real node. W…, I… and S… are the cases of the casebook."""

from __future__ import annotations

import functools
import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import elasticsearch
import pytest
from elasticsearch import Elasticsearch

from memory_es import Memory, Platform, node
from memory_es.changes import Changes
from memory_es.compose import Item, memory_id
from memory_es.errors import Conflict, InvalidInput
from memory_es.placement import alias
from memory_es.requests import RecallResult, WriteResult
from memory_es.schema import MAX_METADATA_DEPTH, MAX_TURN, NewCatalogEntry, NewFact
from memory_es.store import Reference
from memory_es.text import owner_id, routing, user_secret
from tests.backstage import admin_of
from tests.doubles import BlankEmbedder, FailingEmbedder, HashingEmbedder

ZERO_WIDTH = "\u200b"
GERMAN_SUMMER = timezone(timedelta(hours=2))


class Shelf:
    """One user's documents, as the service sees them behind the scenes."""

    def __init__(self, platform: Platform, user: str) -> None:
        self.es = admin_of(platform)
        self.user = user
        self.prefix = platform.settings.prefix

    def get(self, result: WriteResult) -> dict[str, Any]:
        """The whole document with its vectors."""
        source: dict[str, Any] = self.raw(result)["_source"]
        return source

    def raw(self, result: WriteResult) -> dict[str, Any]:
        assert result.kind
        assert result.id
        answer = self.es.get(
            index=alias(self.prefix, result.kind),
            id=result.id,
            routing=routing(self.user),
            source_exclude_vectors=False,
        )
        found: dict[str, Any] = answer.body
        return found

    def count(self, kind: str = "*") -> int:
        """How many memories the user has, of one kind or of all three."""
        names = [alias(self.prefix, kind)]
        if kind == "*":
            names = [alias(self.prefix, own) for own in ("episodic", "semantic", "procedural")]
        self.es.indices.refresh(index=names)
        return int(
            self.es.count(index=names, query={"term": {"owner_id": owner_id(self.user)}})["count"]
        )

    def plant(self, kind: str, id_: str, owner: str, route: str, text: str) -> None:
        """A document of any owner under any id: only the service can do that."""
        now = "2026-01-01T00:00:00Z"
        self.es.create(
            index=alias(self.prefix, kind),
            id=id_,
            routing=route,
            document={
                "owner": {"api_key": {"metadata": {"owner_id": owner_id(owner)}}},
                "kind": kind,
                "text": text,
                "content_hash": "planted",
                "created_at": now,
                "event_time": now,
                "schema_version": 1,
                "revision": 0,
            },
            refresh=True,
        )


@pytest.fixture
def shelf(platform: Platform, user: str) -> Shelf:
    return Shelf(platform, user)


@pytest.fixture
def another(platform: Platform) -> Callable[[], Memory]:
    """Makes memories of further users."""

    def make() -> Memory:
        name = f"other-{os.urandom(8).hex()}"
        platform.add_user(name)
        return platform.for_user(name)

    return make


@pytest.fixture
def swift(platform: Platform, memory: Memory) -> Iterator[Memory]:
    """The same user's memory with a fast embedder, where there is much to write."""
    with Platform(platform.settings, embedder=HashingEmbedder()) as fast:
        yield fast.for_user(memory.user_id)


@pytest.fixture(scope="module")
def library(new_platform: Callable[..., Platform]) -> Platform:
    """Another deployment, for what everybody in it would see: the catalog, the check-up."""
    return new_platform()


@pytest.fixture
def bangkok() -> Iterator[None]:
    """A host whose local time is seven hours ahead."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = "Asia/Bangkok"
    time.tzset()
    yield
    if before is None:
        del os.environ["TZ"]
    else:
        os.environ["TZ"] = before
    time.tzset()


def fact_id(platform: Platform, user: str, text: str) -> str:
    """The id that a user's fact gets."""
    secret = platform.add_user(user)[0].id_secret.get_secret_value()
    return memory_id(Item(0, NewFact(text=text)), secret, lambda: "unused")


def planted_by(
    key: Elasticsearch, index: str, id_: str, route: str, document: dict[str, Any]
) -> int:
    """HTTP status of a creation with a user's key, behind our back."""
    action = {"create": {"_index": index, "_id": id_, "routing": route}}
    [item] = key.bulk(operations=[action, document], refresh=True)["items"]
    return int(item["create"]["status"])


def texts(result: RecallResult) -> list[str]:
    assert not result.degraded
    return [hit.text for hit in result.hits]


# --- one memory, one document ------------------------------------------------------------------


def test_w1_twenty_writers_of_one_fact_leave_one_document(
    platform: Platform, memory: Memory, shelf: Shelf
) -> None:
    start = threading.Barrier(20)

    def write(_number: int) -> WriteResult:
        own = platform.for_user(memory.user_id)
        start.wait()
        return own.remember("Rowan takes oat milk in coffee", "semantic")

    with ThreadPoolExecutor(20) as pool:
        results = list(pool.map(write, range(20)))
    assert len({result.id for result in results}) == 1
    assert sorted(result.status for result in results) == ["created"] + ["duplicate"] * 19
    assert shelf.count() == 1
    assert texts(memory.recall("oat milk in coffee")) == ["Rowan takes oat milk in coffee"]


def test_w2_a_fact_told_again_is_known_and_leaves_the_first_as_it_was(
    memory: Memory, shelf: Shelf
) -> None:
    first = memory.remember("Rowan takes oat milk in coffee", "semantic")
    before = shelf.raw(first)
    again = [
        memory.remember(text, "semantic", confidence=0.2)
        for text in ("Rowan takes oat milk in coffee", "  rowan takes OAT milk\nin coffee ")
    ]
    assert first.status == "created"
    assert [(result.status, result.id) for result in again] == [("duplicate", first.id)] * 2
    assert shelf.raw(first) == before
    assert shelf.count() == 1


def test_w2_composed_and_decomposed_letters_are_one_fact(memory: Memory) -> None:
    first = memory.remember("Zoé's cafe\u0301 opens at nine", "semantic")
    second = memory.remember("Zoe\u0301's café opens at nine", "semantic")
    assert second.status == "duplicate"
    assert second.id == first.id


def test_w2_the_same_words_said_twice_in_a_session_are_two_episodes(
    memory: Memory, shelf: Shelf
) -> None:
    said = [memory.remember("ok thanks", session_id="chat", speaker="Rowan") for _ in range(2)]
    assert [result.status for result in said] == ["created", "created"]
    assert [shelf.get(result)["turn"] for result in said] == [0, 1]
    assert shelf.count("episodic") == 2
    both = [{"text": "ok thanks", "session_id": "chat"}] * 2
    assert [result.status for result in memory.remember_many(both)] == ["created", "created"]
    assert shelf.count("episodic") == 4


def test_w2_one_numbered_turn_posted_twice_is_one_episode(memory: Memory, shelf: Shelf) -> None:
    first = memory.remember("ok thanks", session_id="chat", turn=4)
    second = memory.remember("ok thanks", session_id="chat", turn=4)
    other_session = memory.remember("ok thanks", session_id="chat2", turn=4)
    assert (second.status, second.id) == ("duplicate", first.id)
    assert other_session.status == "created"
    assert shelf.count("episodic") == 2


def test_twins_in_one_batch_are_written_once_and_reported_each(
    memory: Memory, shelf: Shelf
) -> None:
    facts = [{"kind": "semantic", "text": text} for text in ("likes tea", "has a cat", "Likes tea")]
    results = memory.remember_many(facts)
    assert [result.status for result in results] == ["created", "created", "duplicate"]
    assert results[2].id == results[0].id
    assert shelf.count() == 2


def test_twins_far_apart_in_a_long_batch_are_written_once(swift: Memory, shelf: Shelf) -> None:
    facts = [{"kind": "semantic", "text": f"fact {number % 700}"} for number in range(1_400)]
    results = swift.remember_many(facts)
    assert [result.status for result in results] == ["created"] * 700 + ["duplicate"] * 700
    assert [result.id for result in results[:700]] == [result.id for result in results[700:]]
    assert shelf.count() == 700


def test_w12_an_idempotency_key_makes_a_retry_harmless(memory: Memory, shelf: Shelf) -> None:
    posts = [
        memory.remember("my flight is at noon", session_id="chat", idempotency_key="msg-17")
        for _ in range(3)
    ]
    assert [post.status for post in posts] == ["created", "duplicate", "duplicate"]
    assert len({post.id for post in posts}) == 1
    memory.remember("my flight is at noon", session_id="chat", idempotency_key="msg-18")
    assert shelf.count("episodic") == 2


@pytest.mark.parametrize("named_by", ["turn", "idempotency_key", "external_id"])
def test_w12_a_conversation_replayed_five_times_stays_as_long_as_it_was(
    named_by: str, swift: Memory, shelf: Shelf
) -> None:
    conversation = [
        {
            "text": "ok" if number % 3 else f"message {number}",
            "session_id": "chat",
            named_by: number if named_by == "turn" else f"m{number}",
        }
        for number in range(100)
    ]
    for replay in range(5):
        results = swift.remember_many(conversation)
        expected = "duplicate" if replay else "created"
        assert {result.status for result in results} == {expected}
    assert shelf.count("episodic") == 100


# --- ids that somebody else has taken ----------------------------------------------------------


def test_w13_a_strangers_document_under_a_facts_id_fails_the_write_and_stays_as_it_is(
    platform: Platform, memory: Memory, another: Callable[[], Memory], shelf: Shelf
) -> None:
    text = "allergic to penicillin"
    id_ = fact_id(platform, memory.user_id, text)
    stranger = another().user_id
    shelf.plant("semantic", id_, stranger, routing(memory.user_id), "planted")

    with pytest.raises(Conflict, match="taken by a document that you may not see"):
        memory.remember(text, "semantic")
    several = [{"kind": "semantic", "text": each} for each in ("has a cat", text, "has a dog")]
    results = memory.remember_many(several)
    assert [result.status for result in results] == ["created", "failed", "created"]
    assert "taken" in (results[1].error or "")
    assert results[1].id is None

    planted = shelf.es.get(
        index=alias(shelf.prefix, "semantic"), id=id_, routing=routing(memory.user_id)
    )
    assert planted["_source"]["text"] == "planted"
    assert planted["_source"]["owner"]["api_key"]["metadata"]["owner_id"] == owner_id(stranger)
    assert planted["_version"] == 1
    # in words that make another id it can be said
    assert memory.remember(f"Is {text}", "semantic").status == "created"
    assert all("planted" not in hit.text for hit in memory.recall(text).hits)


def test_w13_nobody_overwrites_a_document_whose_id_they_know(
    platform: Platform, memory: Memory, another: Callable[[], Memory], shelf: Shelf
) -> None:
    mine = memory.remember("allergic to penicillin", "semantic")
    before = shelf.raw(mine)
    thief = another()
    key = platform.user_store(platform.add_user(thief.user_id)[0])
    body = {"kind": "semantic", "text": "not allergic to anything", "content_hash": "x"}
    body |= {"created_at": "2026-01-01", "event_time": "2026-01-01"}
    client = key._client
    index = alias(shelf.prefix, "semantic")
    assert mine.id
    for route in (routing(memory.user_id), routing(thief.user_id)):
        status = planted_by(client, index, mine.id, route, body)
        # routed to himself he mostly reaches another shard, where the id is free
        assert status == 409 or (status == 201 and route == routing(thief.user_id))
        with pytest.raises(elasticsearch.AuthorizationException):
            client.index(index=index, id=mine.id, routing=route, document=body)
    assert shelf.raw(mine) == before
    assert memory.remember("allergic to penicillin", "semantic").status == "duplicate"
    assert texts(memory.recall("allergic")) == ["allergic to penicillin"]


def test_i9_the_id_of_a_fact_cannot_be_guessed_or_tested_for(
    platform: Platform, memory: Memory, another: Callable[[], Memory], shelf: Shelf
) -> None:
    text = "is pregnant"
    thief = another()
    key = platform.user_store(platform.add_user(thief.user_id)[0])._client
    fact = Item(0, NewFact(text=text))
    guesses = [
        fact_id(platform, thief.user_id, text),
        memory_id(fact, "", lambda: ""),
        memory_id(fact, memory.user_id, lambda: ""),
        memory_id(fact, user_secret("", memory.user_id), lambda: ""),
        hashlib.sha256(text.encode()).hexdigest(),
        hashlib.sha256(text.encode()).hexdigest()[:40],
        hashlib.sha1(text.encode()).hexdigest(),  # noqa: S324
    ]
    mine = memory.remember(text, "semantic")
    assert mine.status == "created"
    assert mine.id not in guesses
    body = {
        "kind": "semantic",
        "text": "x",
        "content_hash": "x",
        "created_at": "2026-01-01",
        "event_time": "2026-01-01",
    }
    # every guess is free on the victim's shard, whether the fact is there or not: no oracle
    index, route = alias(shelf.prefix, "semantic"), routing(memory.user_id)
    assert {planted_by(key, index, guess, route, body) for guess in guesses} == {201}
    assert memory.remember(text, "semantic").id == mine.id
    assert shelf.count("semantic") == 1


def test_the_same_fact_of_two_users_is_two_documents_with_unlike_ids_and_hashes(
    memory: Memory, another: Callable[[], Memory], shelf: Shelf, platform: Platform
) -> None:
    other = another()
    mine, yours = (each.remember("has a twin", "semantic") for each in (memory, other))
    assert mine.status == yours.status == "created"
    assert mine.id != yours.id
    hashes = (shelf.get(mine), Shelf(platform, other.user_id).get(yours))
    assert hashes[0]["content_hash"] != hashes[1]["content_hash"]


# --- what callers may say ----------------------------------------------------------------------


def test_w7_an_owner_in_the_metadata_is_metadata(
    memory: Memory, another: Callable[[], Memory], shelf: Shelf
) -> None:
    other = another()
    forged = {
        "user_id": other.user_id,
        "owner": {"api_key": {"metadata": {"user_id": other.user_id}}},
    }
    result = memory.remember("the safe's code is 4711", "semantic", metadata=forged)
    stored = shelf.get(result)
    assert stored["metadata"] == forged
    assert stored["owner"]["api_key"]["metadata"]["user_id"] == memory.user_id
    assert other.recall("the safe's code").hits == ()
    [hit] = memory.recall("the safe's code").hits
    assert hit.owner == memory.user_id
    assert hit.fields["metadata"] == forged


@pytest.mark.parametrize("field", ["owner", "owner_id", "pinned", "superseded_by", "embedding"])
def test_fields_that_are_not_the_callers_are_refused_by_name(field: str, memory: Memory) -> None:
    with pytest.raises(InvalidInput) as refused:
        memory.remember("hello", **{field: "u2"})
    assert refused.value.field == field


@pytest.mark.parametrize(
    "metadata",
    [
        {"type": 1, "existing": True, "session_id": "s"},
        {"n": None, "empty": {}, "list": [], "text": "", "mixed": [[1, [2]], {"x": [None, True]}]},
        {"a": 1, "a.b": 2, "a..c": 3, ".": 4, " ": 5, "a.": 6, "ключ": "значение"},
        {"float": 1.0, "huge": 1e300, "tiny": 5e-324, "third": 1 / 3, "whole": 3},
        {"most": 2**63 - 1, "least": -(2**63), "beyond_double": 2**53 + 1},
        {"long": "x" * 40_000, "emoji": "😀" * 8_191, "thai": "ก" * 8_191},
        {"k" * 1_024: "ก" * 8_191},
        {"lines": "a\nb\tc", "quotes": "\"'\\", "null_like": "null"},
    ],
    ids=lambda metadata: str(next(iter(metadata)))[:20],
)
def test_w8_metadata_comes_back_exactly_as_given(
    metadata: dict[str, Any], memory: Memory, shelf: Shelf
) -> None:
    result = memory.remember("the piano was tuned", metadata=metadata)
    [hit] = memory.recall("piano").hits
    for found in (shelf.get(result)["metadata"], hit.fields["metadata"]):
        assert found == metadata
        assert repr(sorted(found.items())) == repr(sorted(metadata.items()))  # 1 is not 1.0


def nested(levels: int, leaf: Any = "leaf") -> dict[str, Any]:
    value: dict[str, Any] = {"k": leaf}
    for _ in range(levels - 1):
        value = {"k": value}
    return value


def test_metadata_as_deep_as_allowed_is_stored_and_found(memory: Memory) -> None:
    memory.remember("deep", metadata=nested(MAX_METADATA_DEPTH))
    memory.remember("deep in lists", metadata={"k": [[[[nested(MAX_METADATA_DEPTH - 1)]]]]})
    path = ".".join("k" * MAX_METADATA_DEPTH)
    found = memory.recall("deep", filters={"metadata": {path: "leaf"}})
    assert {hit.text for hit in found.hits} == {"deep", "deep in lists"}


UNSTORABLE: dict[str, Any] = {
    "one level too deep": nested(MAX_METADATA_DEPTH + 1),
    "a hundred levels": nested(100),
    "five thousand levels": nested(5_000),
    "NUL in a key": {"a\0b": 1},
    "NUL in an inner key": {"a": {"b\0": 1}},
    "surrogate in a key": {"a\ud800": 1},
    "surrogate in an inner key": {"a": [{"b\ud800": "x\0"}]},
    "NUL": {"a": "x\0y"},
    "surrogate": {"a": ["x\udfff"]},
    "NaN": {"a": float("nan")},
    "infinity": {"a": [float("inf")]},
    "over 64 bits": {"a": 2**63},
    "under 64 bits": {"a": -(2**63) - 1},
    "empty key": {"": 1},
    "long key": {"k" * 1_025: 1},
    "long path": {"k" * 1_000: {"l" * 24: 1}},
    "bytes": {"a": b"bytes"},
    "object": {"a": object()},
    "number as key": {1: "a"},
    "string": "text",
    "list": ["a"],
}


@pytest.mark.parametrize("metadata", UNSTORABLE.values(), ids=UNSTORABLE.keys())
def test_w11_metadata_that_cannot_be_stored_is_refused_and_only_it(
    metadata: Any, memory: Memory, shelf: Shelf
) -> None:
    with pytest.raises(InvalidInput) as refused:
        memory.remember("hello", metadata=metadata)
    assert refused.value.field.split(".")[0] == "metadata"
    assert len(str(refused.value)) < 400
    str(refused.value).encode()  # can be printed and logged
    batch = [{"text": "first"}, {"text": "hello", "metadata": metadata}, {"text": "last"}]
    results = memory.remember_many(batch)
    assert [result.status for result in results] == ["created", "failed", "created"]
    assert (results[1].error or "").startswith("metadata")
    assert shelf.count() == 2


@pytest.mark.parametrize("kind", ["episodic", "semantic", "procedural"])
@pytest.mark.parametrize(
    "blank", ["", "   ", "\n\t", ZERO_WIDTH, "\u2060\ufeff", "\u00a0\u3000", "\0", "\ud800"]
)
def test_w9_a_text_without_anything_visible_is_one_clear_error(
    blank: str, kind: str, memory: Memory, shelf: Shelf
) -> None:
    named = {"name": "brew", "description": blank} if kind == "procedural" else {}
    with pytest.raises(InvalidInput, match="empty") as refused:
        memory.remember(blank or ZERO_WIDTH, kind, **named)
    assert refused.value.field in {"text", "description"}
    assert shelf.count() == 0


@pytest.mark.parametrize("kind", ["semantic", "procedural"])
@pytest.mark.parametrize("text", ["!?…", ";)", "—", "«»", f"-{ZERO_WIDTH}-"])
def test_w9_a_fact_or_playbook_of_punctuation_is_refused(
    text: str, kind: str, memory: Memory, shelf: Shelf
) -> None:
    named = {"name": "brew"} if kind == "procedural" else {}
    with pytest.raises(InvalidInput, match="only punctuation") as refused:
        memory.remember(text, kind, **named)
    assert refused.value.field == "text"
    assert shelf.count() == 0


@pytest.mark.parametrize("text", [";)", "👍", "🫨", "?", "…", "π", "가"])
def test_w9_an_episode_of_one_sign_is_stored_as_it_was_said(
    text: str, memory: Memory, shelf: Shelf
) -> None:
    result = memory.remember(text, session_id="chat", speaker="Rowan")
    assert result.status == "created"
    assert shelf.get(result)["text"] == text
    assert text in texts(memory.recall("what did Rowan say?"))


def test_w9_in_a_batch_only_what_is_wrong_fails_and_says_where_and_why(
    memory: Memory, shelf: Shelf
) -> None:
    batch: list[Any] = [
        {"text": "first"},
        {"text": ""},
        {"text": ZERO_WIDTH, "kind": "semantic"},
        {"text": "?!", "kind": "semantic"},
        {"text": ";)"},
        {"kind": "semantic"},
        {"text": "x", "kind": "dream"},
        {"text": "x", "turn": 3},
        {"text": "x", "session_id": "s", "turn": -1},
        {"text": "x", "session_id": "s", "turn": 2**31},
        {"text": "x", "event_time": "yesterday"},
        {"text": "x", "kind": "semantic", "confidence": 1.5},
        {"text": "x", "kind": "semantic", "confidence": float("nan")},
        {"text": "x", "event_time": "0001-01-01T00:00:00+14:00"},
        {"text": "x", "kind": "procedural"},
        {"text": b"bytes\0"},
        {"text": "x", "kind": "catalog"},
        {"text": "x", 1: 2},
        "not an object",
        None,
        {"text": "last"},
    ]
    results = memory.remember_many(batch)
    assert [result.position for result in results] == list(range(len(batch)))
    good = [result.position for result in results if result.status == "created"]
    assert [batch[position]["text"] for position in good] == ["first", ";)", "last"]
    bad = [result for result in results if result.status != "created"]
    assert {result.status for result in bad} == {"failed"}
    assert all(result.error and result.id is None for result in bad)
    fields = [(result.error or "").split(":")[0] for result in bad]
    assert fields[:14] == [
        "text", "text", "text", "text", "kind", "turn", "turn", "turn", "event_time",
        "confidence", "confidence", "event_time", "name", "text",
    ]  # fmt: skip
    assert shelf.count() == 3


def test_w10_one_bad_document_among_1200_fails_alone_with_its_position(
    swift: Memory, shelf: Shelf
) -> None:
    documents = [{"text": f"note {number}", "external_id": f"n{number}"} for number in range(1_200)]
    documents[2]["text"] = "  "
    told: list[WriteResult] = []
    results = swift.remember_many(iter(documents), on_result=told.append)
    assert told == results
    assert [result.position for result in results] == list(range(1_200))
    [failed] = [result for result in results if result.status != "created"]
    assert (failed.position, failed.status) == (2, "failed")
    assert "text: is empty" in (failed.error or "")
    assert shelf.count() == 1_199


def test_w11_nul_and_lone_surrogates_are_cleaned_the_same_way_by_one_and_by_many(
    memory: Memory, shelf: Shelf
) -> None:
    dirty = "abc\u0000def \ud83d\u0007ghi\udc00"
    fact = memory.remember(dirty, "semantic", tags=["a\0b"], source="s\udfffr\x1b")
    stored = shelf.get(fact)
    assert (stored["text"], stored["tags"], stored["source"]) == ("abcdef ghi", ["ab"], "sr")
    [again] = memory.remember_many([{"kind": "semantic", "text": dirty}])
    clean = memory.remember("abcdef ghi", "semantic")
    assert again.id == clean.id == fact.id
    episode = memory.remember(dirty, speaker="Ro\0wan", session_id="ch\ud800at")
    stored = shelf.get(episode)
    assert (stored["text"], stored["speaker"], stored["session_id"]) == (
        "abcdef ghi",
        "Rowan",
        "chat",
    )
    playbook = memory.remember("", "procedural", name="br\0ew", steps=["gri\ud800nd", "pour\0"])
    stored = shelf.get(playbook)
    assert (stored["name"], stored["text"]) == ("brew", "brew")
    assert [step["text"] for step in stored["steps"]] == ["grind", "pour"]


def test_w11_joiners_that_a_script_needs_and_line_breaks_stay(memory: Memory, shelf: Shelf) -> None:
    text = "گربه\u200cی من نارنجی است\n\tو خوابالو"
    assert shelf.get(memory.remember(text))["text"] == text


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("tags.0", {"tags": ["x" * 40_000]}),
        ("tags.1", {"tags": ["ok", "ก" * 342]}),
        ("name", {"kind": "procedural", "name": "x" * 40_000}),
        ("session_id", {"session_id": "x" * 40_000}),
        ("speaker", {"speaker": "x" * 40_000}),
        ("source", {"source": "x" * 40_000}),
        ("external_id", {"external_id": "x" * 40_000}),
        ("idempotency_key", {"idempotency_key": "x" * 40_000}),
        ("source_episodes.0", {"kind": "semantic", "source_episodes": ["x" * 40_000]}),
    ],
)
def test_w14_a_keyword_too_long_for_lucene_is_refused_by_the_name_of_its_field(
    field: str, fields: dict[str, Any], memory: Memory, shelf: Shelf
) -> None:
    with pytest.raises(InvalidInput, match="longer than 1024 bytes") as refused:
        memory.remember("hello", **fields)
    assert refused.value.field == field
    assert len(str(refused.value)) < 200
    results = memory.remember_many([{"text": "a"}, {"text": "hello", **fields}, {"text": "b"}])
    assert [result.status for result in results] == ["created", "failed", "created"]
    assert (results[1].error or "").startswith(f"{field}: ")
    assert shelf.count() == 2


def test_w14_a_keyword_of_just_the_limit_is_stored_and_found(memory: Memory) -> None:
    tag = "ก" * 341 + "x"  # 1,024 bytes
    memory.remember("tagged", tags=[tag], source=tag, session_id=tag, speaker=tag)
    [hit] = memory.recall("tagged", filters={"tags": [tag], "session_id": tag}).hits
    assert hit.fields["tags"] == [tag]


def test_a_tag_with_a_comma_is_one_tag(memory: Memory) -> None:
    memory.remember("a trip to Porto", tags=["travel, food"])
    for tag, hits in (("travel, food", 1), ("travel", 0), ("food", 0)):
        assert len(memory.recall("Porto", filters={"tags": [tag]}).hits) == hits


# --- times -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("bangkok")
@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (datetime(2026, 3, 4, 23, 30), datetime(2026, 3, 4, 23, 30, tzinfo=UTC)),  # noqa: DTZ001
        ("2026-03-04T23:30:00", datetime(2026, 3, 4, 23, 30, tzinfo=UTC)),
        ("2026-03-04", datetime(2026, 3, 4, tzinfo=UTC)),
        ("2026-03-04T23:30:00.123456+09:00", datetime(2026, 3, 4, 14, 30, 0, 123456, tzinfo=UTC)),
        (
            datetime(2026, 3, 4, 1, 0, tzinfo=GERMAN_SUMMER),
            datetime(2026, 3, 3, 23, 0, tzinfo=UTC),
        ),
        (datetime(1969, 7, 20, 20, 17, tzinfo=UTC), datetime(1969, 7, 20, 20, 17, tzinfo=UTC)),
        ("0001-01-01T00:00:00Z", datetime(1, 1, 1, tzinfo=UTC)),
        (
            "9999-12-31T23:59:59.999999Z",
            datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
        ),
    ],
    ids=str,
)
def test_times_mean_utc_and_come_back_equal_wherever_the_host_is(
    given: str | datetime, meant: datetime, memory: Memory
) -> None:
    memory.remember("the roof was mended", event_time=given)
    memory.remember("the roof leaks", "semantic", valid_from=given, event_time=given)
    hits = memory.recall("roof").hits
    assert [hit.event_time for hit in hits] == [meant, meant]
    [fact] = [hit for hit in hits if hit.kind == "semantic"]
    assert datetime.fromisoformat(fact.fields["valid_from"]) == meant
    second = timedelta(seconds=1)
    if meant.year not in {1, 9999}:
        inside = {"since": meant - second, "until": meant + second}
        assert len(memory.recall("roof", filters=inside).hits) == 2
        assert not memory.recall("roof", filters={"since": meant + second}).hits
        assert not memory.recall("roof", filters={"until": meant - second}).hits


@pytest.mark.usefixtures("bangkok")
def test_a_memory_without_a_time_happened_now_by_the_platforms_clock(
    platform: Platform, memory: Memory
) -> None:
    now = datetime(2026, 8, 13, 23, 30, 1, 5, tzinfo=UTC)
    with Platform(platform.settings, embedder=HashingEmbedder(), clock=lambda: now) as clocked:
        mine = clocked.for_user(memory.user_id)
        mine.remember("the kettle boiled")
        [hit] = mine.recall("kettle", recipe="bm25").hits
    assert hit.event_time == hit.created_at == now


@pytest.mark.usefixtures("bangkok")
def test_f7_a_memory_expires_at_its_moment_whatever_the_zone_of_the_host(
    platform: Platform, memory: Memory
) -> None:
    moment = datetime(2026, 8, 13, 14, 30, tzinfo=UTC)
    memory.remember("the code is 1234", expires_at="2026-08-13T23:30:00+09:00")
    for shift, visible in ((-60, True), (60, False)):
        at = moment + timedelta(seconds=shift)
        clock = functools.partial(lambda time: time, at)
        with Platform(platform.settings, embedder=HashingEmbedder(), clock=clock) as then:
            found = then.for_user(memory.user_id).recall("code", recipe="bm25")
            assert bool(found.hits) is visible


@pytest.mark.parametrize("kind", ["semantic", "procedural"])
def test_what_has_expired_is_live_again_when_it_is_stated_anew(
    memory: Memory, shelf: Shelf, kind: str
) -> None:
    fields = {"kind": kind, "name": "parking"} if kind == "procedural" else {"kind": kind}
    past = "2026-01-01T00:00:00Z"
    first = memory.remember("park behind the mill", expires_at=past, **fields)
    again = memory.remember("Park behind  the mill", expires_at=past, **fields)
    live = memory.remember("park behind the mill", **fields)
    twin = memory.remember("park behind the mill", **fields)
    assert [first.status, again.status, live.status, twin.status] == [
        "created",
        "created",
        "created",
        "duplicate",
    ]
    assert len({first.id, again.id, live.id}) == 3
    assert twin.id == live.id
    assert [shelf.get(result)["revision"] for result in (first, again, live)] == [0, 1, 2]
    [hit] = memory.recall("where do I park?", filters={"kinds": (kind,)}).hits
    assert hit.id == live.id


# --- turns and their context --------------------------------------------------------------------


def contexts(shelf: Shelf, results: list[WriteResult]) -> list[str]:
    return [shelf.get(result)["content_context"] for result in results]


def test_a_turn_carries_the_one_before_it_with_both_speakers(memory: Memory, shelf: Shelf) -> None:
    results = memory.remember_many(
        [
            {"text": "Do you eat fish?", "speaker": "Ines", "session_id": "chat"},
            {"text": "Never.", "speaker": "Rowan", "session_id": "chat"},
            {"text": "Noted", "role": "assistant", "session_id": "chat"},
            {"text": "nobody's", "session_id": "chat"},
        ]
    )
    assert contexts(shelf, results) == [
        "Ines: Do you eat fish?",
        "Ines: Do you eat fish?\nRowan: Never.",
        "Rowan: Never.\nassistant: Noted",
        "assistant: Noted\nnobody's",
    ]
    assert all(len(shelf.get(result)["embedding_context"]) == 384 for result in results)
    assert memory.recall("who eats no fish?", recipe="lexical").hits[0].text in {
        "Never.",
        "Do you eat fish?",
    }


def test_the_preceding_turn_is_found_across_calls(memory: Memory, shelf: Shelf) -> None:
    results = [memory.remember(text, speaker="Rowan", session_id="chat") for text in ("one", "two")]
    results += memory.remember_many(
        [{"text": text, "speaker": "Rowan", "session_id": "chat"} for text in ("three", "four")]
    )
    assert contexts(shelf, results) == [
        "Rowan: one",
        "Rowan: one\nRowan: two",
        "Rowan: two\nRowan: three",
        "Rowan: three\nRowan: four",
    ]
    assert [shelf.get(result)["turn"] for result in results] == [0, 1, 2, 3]


def turn(number: int | None, session: str = "chat", text: str | None = None) -> dict[str, Any]:
    fields = {"text": text or f"{session} {number}", "session_id": session}
    return fields if number is None else fields | {"turn": number}


def test_numbered_turns_out_of_order_find_their_predecessors(memory: Memory, shelf: Shelf) -> None:
    results = memory.remember_many([turn(number) for number in (3, 0, 2, 7, 1)])
    assert contexts(shelf, results) == [
        "chat 2\nchat 3",
        "chat 0",
        "chat 1\nchat 2",
        "chat 3\nchat 7",
        "chat 0\nchat 1",
    ]
    late = memory.remember_many([turn(number) for number in (5, 6, 20, 10)])
    assert contexts(shelf, late) == [
        "chat 3\nchat 5",
        "chat 5\nchat 6",
        "chat 10\nchat 20",
        "chat 7\nchat 10",
    ]


def test_turns_out_of_order_in_a_long_batch_find_their_predecessors(
    swift: Memory, shelf: Shelf
) -> None:
    # the second half comes first: more than what the write path takes at once
    numbers = [*range(600, 1_200), *range(600)]
    results = swift.remember_many([turn(number) for number in numbers])
    by_number = {
        number: shelf.get(results[numbers.index(number)])["content_context"]
        for number in (1, 2, 300, 599, 601, 1_199)
    }
    assert by_number == {number: f"chat {number - 1}\nchat {number}" for number in by_number}


def test_two_sessions_that_interleave_keep_their_own_thread(memory: Memory, shelf: Shelf) -> None:
    posts = [turn(None, session, f"{session}{n}") for n in range(3) for session in ("a", "b")]
    results = memory.remember_many(posts)
    assert contexts(shelf, results) == ["a0", "b0", "a0\na1", "b0\nb1", "a1\na2", "b1\nb2"]
    assert [shelf.get(result)["turn"] for result in results] == [0, 0, 1, 1, 2, 2]


def test_another_users_session_of_the_same_name_is_another_session(
    memory: Memory, another: Callable[[], Memory], shelf: Shelf
) -> None:
    another().remember("theirs", session_id="chat")
    mine = memory.remember("mine", session_id="chat")
    assert shelf.get(mine)["content_context"] == "mine"
    assert shelf.get(mine)["turn"] == 0


def test_unnumbered_turns_follow_the_numbered_ones(memory: Memory, shelf: Shelf) -> None:
    results = memory.remember_many([turn(0), turn(1), turn(None, text="then")])
    assert shelf.get(results[2])["turn"] == 2
    assert shelf.get(results[2])["content_context"] == "chat 1\nthen"
    after = memory.remember("later", session_id="chat")
    assert shelf.get(after)["turn"] == 3
    assert shelf.get(after)["content_context"] == "then\nlater"


def test_two_turns_of_one_number_share_their_predecessor(memory: Memory, shelf: Shelf) -> None:
    results = memory.remember_many([turn(0), turn(1, text="asked"), turn(1, text="answered")])
    assert contexts(shelf, results) == ["chat 0", "chat 0\nasked", "chat 0\nanswered"]


def test_a_session_goes_on_after_the_last_number_there_is(memory: Memory, shelf: Shelf) -> None:
    memory.remember("last", session_id="chat", turn=MAX_TURN)
    beyond = memory.remember("beyond", session_id="chat")
    assert shelf.get(beyond)["content_context"] == "last\nbeyond"


def test_a_turn_without_session_has_only_itself_as_context(memory: Memory, shelf: Shelf) -> None:
    results = memory.remember_many([{"text": "one", "speaker": "R"}, {"text": "two"}])
    assert contexts(shelf, results) == ["R: one", "two"]


def test_the_context_of_a_long_turn_is_its_end(swift: Memory, shelf: Shelf) -> None:
    swift.remember("start " + "blah " * 2_000 + "the end", session_id="chat")
    after = swift.remember("indeed", session_id="chat")
    context = shelf.get(after)["content_context"]
    assert context.endswith("the end\nindeed")
    assert len(context) < 1_100


# --- vectors -----------------------------------------------------------------------------------


def test_every_kind_is_found_by_its_vector(memory: Memory, shelf: Shelf) -> None:
    episode = memory.remember("We adopted a puppy named Biscuit on Sunday", session_id="chat")
    fact = memory.remember("Rowan drinks only green tea", "semantic")
    playbook = memory.remember(
        "", "procedural", name="Restart the router", steps=["unplug it", "wait", "plug it in"]
    )
    for query, wanted in (
        ("What is the name of the puppy?", episode),
        ("What does Rowan drink?", fact),
        ("How do I reboot the router?", playbook),
    ):
        assert memory.recall(query, recipe="dense").hits[0].id == wanted.id
    for result in (episode, fact, playbook):
        assert shelf.get(result)["embedding_model"] == "intfloat/e5-small-v2"
        assert len(shelf.get(result)["embedding"]) == 384


def test_a_fact_in_the_last_sentence_of_a_long_turn_is_found_by_its_vector(
    memory: Memory, shelf: Shelf
) -> None:
    memory.remember_many(
        [
            {"text": f"Today I {verb} the {thing} and went to bed at {hour}"}
            for hour, verb in enumerate(("painted", "cleaned", "sold"), start=9)
            for thing in ("boat", "fence", "bike", "stove", "door", "attic", "shed", "lamp", "sofa",
                          "roof")
        ]
    )  # fmt: skip
    filler = "The meeting about the new warehouse went on and on without any decision. "
    long = filler * 830
    long = long[:59_900] + ". By the way, my blood type is AB negative."
    result = memory.remember(long, session_id="chat")
    found = memory.recall("What is my blood group?", recipe="dense")
    assert found.hits[0].id == result.id
    passages = shelf.get(result)["passages"]
    assert 60 < len(passages) < 200
    assert passages[0]["start"] == 0
    assert long[passages[-1]["start"] : passages[-1]["end"]].endswith("AB negative.")
    assert all(part["end"] - part["start"] <= 800 for part in passages)


def flagged(platform: Platform) -> int:
    """How many memories wait for their vector, as the check-up says."""
    [vectors] = [check for check in platform.diagnose() if check.name == "vectors"]
    if vectors.verdict == "ok":
        return 0
    assert vectors.verdict == "warning"
    return int(vectors.detail.split()[0])


def test_w16_a_text_whose_vector_is_zero_is_stored_without_one(
    library: Platform, user: str
) -> None:
    unembedded = flagged(library)
    with Platform(library.settings, embedder=BlankEmbedder()) as blank:
        blank.add_user(user)
        memory = blank.for_user(user)
        long = "A long tale of the harbour. " * 100
        results = memory.remember_many(
            [{"text": "the harbour froze", "session_id": "s"}, {"text": long}]
        )
        shelf = Shelf(blank, user)
        for result in results:
            assert (result.status, result.needs_embedding) == ("created", False)
            stored = shelf.get(result)
            vectors = {"embedding", "embedding_context"} & stored.keys()
            assert not vectors
            assert not stored.get("passages")
        answer = memory.recall("harbour")
        assert {hit.id for hit in answer.hits} == {result.id for result in results}
        assert answer.degraded == ("no vector search: the query has no vector",)
        assert flagged(library) == unembedded


def test_w15_while_the_embedder_fails_memories_are_stored_flagged_counted_and_found(
    library: Platform, user: str
) -> None:
    unembedded = flagged(library)
    failing = FailingEmbedder()
    with Platform(library.settings, embedder=failing) as platform:
        platform.add_user(user)
        memory = platform.for_user(user)
        ten = memory.remember_many(
            [{"text": f"parcel {number} arrived", "session_id": "s"} for number in range(9)]
            + [{"text": "a long letter about whales. " * 100}]
        )
        assert {(result.status, result.needs_embedding) for result in ten} == {("created", True)}
        failing.broken = False
        fine = memory.remember("parcel 99 arrived")
        assert (fine.status, fine.needs_embedding) == ("created", False)

        shelf = Shelf(platform, user)
        assert shelf.get(ten[0])["needs_embedding"] is True
        assert not {"embedding", "embedding_context", "passages"} & shelf.get(ten[9]).keys()
        assert "needs_embedding" not in shelf.get(fine)
        assert flagged(platform) == unembedded + 10

        assert memory.recall("parcel 7", recipe="lexical").hits[0].text == "parcel 7 arrived"
        assert memory.recall("whales", recipe="bm25").hits[0].id == ten[9].id
        failing.broken = True
        degraded = memory.recall("parcel 7")
        assert degraded.hits[0].text == "parcel 7 arrived"
        assert degraded.degraded == ("no vector search: the model is out of memory",)
        # told again while flagged: still known, still one
        again = memory.remember("parcel 98", "semantic")
        assert memory.remember("parcel 98", "semantic").id == again.id
        assert shelf.count("semantic") == 1


def test_w21_after_a_partial_update_a_memory_is_still_found_by_its_vectors(
    platform: Platform, memory: Memory, shelf: Shelf
) -> None:
    long = "Nothing much happened at the office. " * 45 + "My sister Ines plays the cello."
    results = memory.remember_many(
        [
            {"text": "We adopted a puppy named Biscuit", "session_id": "chat"},
            {"text": long, "session_id": "chat"},
            {"text": "Rowan drinks only green tea", "kind": "semantic"},
        ]
    )
    before = [shelf.get(result) for result in results]
    changes = Changes(platform.service(), platform.placement)
    for result in results:
        assert result.kind
        assert result.id
        reference = Reference(result.kind, result.id, routing(memory.user_id))
        [mine] = memory.owned([result.id])
        assert mine.reference == reference
        mine.update(changes, {"claimed_by": "a test"})
        with pytest.raises(Conflict):
            mine.update(changes, {"claimed_by": "a late one"})
    for result, document in zip(results, before, strict=True):
        assert shelf.get(result) == document | {"claimed_by": "a test"}
        assert shelf.raw(result)["_version"] == 2
    for query, wanted in (
        ("What is the name of the puppy?", results[0]),
        ("Which instrument does my sister play?", results[1]),
        ("What does Rowan drink?", results[2]),
    ):
        hit = memory.recall(query, recipe="dense").hits[0]
        assert hit.id == wanted.id
        assert hit.owner == memory.user_id
    episode = memory.recall("What is the name of the puppy?", recipe="dense").hits[0]
    assert {"knn_text", "knn_context"} <= episode.ranks.keys()


# --- texts of every shape -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "a" * 60_000,
        "a1-" * 20_000,
        "x1" * 30_000,
        "a." * 30_000,
        "." * 60_000,
        "แมวของฉันชื่อส้ม" * 4_000,
        "9" * 60_000,
        "http://" + "a/" * 30_000,
        "iVBORw0KGgo+AAA/NSUhEUg" * 2_600,
    ],
    ids=lambda text: text[:8],
)
def test_a_text_without_spaces_is_stored_at_once_and_harms_nobody(
    text: str, swift: Memory, state_dir: Any
) -> None:
    started = time.monotonic()
    result = swift.remember(text, metadata={"shape": "odd"})
    assert time.monotonic() - started < 25  # a busy machine included; it was minutes
    assert result.status == "created"
    assert node.status(state_dir) is not None
    swift.remember("an ordinary note about E-1043")
    [first] = swift.recall("E-1043", k=1, recipe="lexical").hits
    assert first.text == "an ordinary note about E-1043"


def test_a_text_of_a_million_characters_is_stored_and_a_longer_one_refused(
    swift: Memory, shelf: Shelf
) -> None:
    text = ("The tide table of the harbour says nothing. " * 23_000)[:999_980] + " zanzibar is far"
    result = swift.remember(text)
    assert shelf.get(result)["text"] == text
    assert swift.recall("zanzibar", recipe="bm25").hits[0].id == result.id
    with pytest.raises(InvalidInput) as refused:
        swift.remember("x" * 1_000_001)
    assert refused.value.field == "text"


# --- the catalog --------------------------------------------------------------------------------


def test_the_catalog_is_written_by_the_platform_and_read_by_everyone(library: Platform) -> None:
    entries: list[Any] = [
        {
            "kind": "catalog",
            "text": "Descale the machine once a month",
            "title": "Care of the machine",
            "url": "https://example.org/care",
            "external_id": "doc-1",
            "tags": ["manual"],
        },
        NewCatalogEntry(text="The machine is guaranteed for two years"),
    ]
    results = library.write_catalog(entries)
    assert [result.status for result in results] == ["created", "created"]
    assert {result.kind for result in results} == {"catalog"}
    for reader in ("Rowan", "Ines"):
        library.add_user(reader)
        for recipe in ("lexical", "dense", "hybrid"):
            answer = library.for_user(reader).recall("how often to descale?", recipe=recipe)
            assert answer.hits[0].id == results[0].id
            assert answer.hits[0].owner is None
            assert answer.hits[0].fields["title"] == "Care of the machine"
    again = library.write_catalog(entries)
    assert [(result.status, result.id) for result in again] == [
        ("duplicate", result.id) for result in results
    ]


def test_the_catalog_takes_nothing_from_users_and_users_nothing_without_an_owner(
    library: Platform,
) -> None:
    credentials, _ = library.add_user("Rowan")
    memory = library.for_user("Rowan")
    with pytest.raises(InvalidInput, match=r"the catalog .* is written by an operator") as refused:
        memory.remember("free beer for all", "catalog")
    assert refused.value.field == "kind"
    [failed] = memory.remember_many([{"text": "free beer for all", "kind": "catalog"}])
    assert failed.status == "failed"
    [ownerless] = library.write_catalog([{"text": "whose is this?", "kind": "episodic"}])
    assert ownerless.status == "failed"
    key = library.user_store(credentials)._client
    document = {
        "kind": "catalog",
        "text": "free beer for all",
        "content_hash": "x",
        "created_at": "2026-01-01",
        "event_time": "2026-01-01",
    }
    for name in ("catalog", "catalog-000001", "usage", "state"):
        with pytest.raises(elasticsearch.AuthorizationException):
            key.create(index=alias(library.settings.prefix, name), id="beer", document=document)
        index = alias(library.settings.prefix, name)
        assert planted_by(key, index, "beer", routing("Rowan"), document) == 403
    assert memory.recall("free beer", recipe="bm25").hits == ()


def test_writing_nothing_is_nothing(platform: Platform, memory: Memory) -> None:
    assert memory.remember_many([]) == []
    assert platform.write_catalog(iter(())) == []
