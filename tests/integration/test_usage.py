"""Usage rows on the real node: what recalls leave behind, and who may leave it."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import elasticsearch
import pytest
from elasticsearch import Elasticsearch

from memory_es import Memory, Platform
from memory_es.documents import UsageRow
from memory_es.errors import Conflict, MemoryEsError
from memory_es.placement import Placement, alias
from memory_es.requests import WriteResult
from memory_es.schema import OWNED, Kind
from memory_es.store import Reference, Store
from memory_es.text import owner_id, routing, usage_id
from memory_es.usage import Touch, UsageRecorder, apply_touches
from tests.backstage import admin_of
from tests.doubles import HashingEmbedder

NOW = datetime(2026, 3, 4, 12, tzinfo=UTC)


class Desk:
    """The service's view of usage rows and of the memories themselves."""

    def __init__(self, platform: Platform) -> None:
        self.es = admin_of(platform)
        self.prefix = platform.settings.prefix
        self.store = Store(platform.service(), platform.placement)

    def row(self, touch: Touch) -> UsageRow | None:
        found = self.store.fetch([touch.reference]).get(touch.reference)
        return UsageRow.model_validate(found.source) if found else None

    def version(self, touch: Touch) -> int:
        """How often the row has been written."""
        answer = self.es.get(
            index=alias(self.prefix, "usage"),
            id=touch.reference.id,
            routing=touch.reference.routing,
        )
        return int(answer["_version"])

    def memories(self, user: str) -> dict[str, Any]:
        """Every memory of a user with version, sequence number and vectors."""
        names = [alias(self.prefix, kind) for kind in OWNED]
        self.es.indices.refresh(index=names)
        answer = self.es.search(
            index=names,
            query={"term": {"owner_id": owner_id(user)}},
            size=1_000,
            version=True,
            seq_no_primary_term=True,
            source={"exclude_vectors": False},
        )
        return {hit["_id"]: hit for hit in answer["hits"]["hits"]}

    def recorder(self, **options: Any) -> UsageRecorder:
        return UsageRecorder(self.store, lambda: NOW, **options)


@pytest.fixture
def desk(platform: Platform) -> Desk:
    return Desk(platform)


def touch_of(memory: Memory, result: WriteResult) -> Touch:
    assert result.kind
    assert result.id
    return Touch(memory.user_id, result.kind, result.id)


def made_up(user: str) -> Touch:
    return Touch(user, Kind.SEMANTIC, os.urandom(20).hex())


def drain(platform: Platform) -> None:
    recorder = platform.recorder()
    assert recorder
    recorder.drain()


# --- recall ------------------------------------------------------------------------------------


def test_a_recall_counts_each_of_its_hits_once_behind_the_call(
    platform: Platform, memory: Memory, desk: Desk
) -> None:
    found = memory.remember("The ferry leaves at noon", "semantic")
    missed = memory.remember("My bicycle is blue", "semantic")
    started = datetime.now(UTC)
    result = memory.recall("ferry", recipe="bm25")
    assert [hit.id for hit in result.hits] == [found.id]
    drain(platform)
    row = desk.row(touch_of(memory, found))
    assert row
    assert (row.use_count, row.kind, row.pinned) == (1, Kind.SEMANTIC, False)
    assert row.last_used_at
    assert started <= row.last_used_at <= datetime.now(UTC)
    assert row.owner["api_key"]["metadata"]["owner_id"] == owner_id(memory.user_id)
    assert desk.row(touch_of(memory, missed)) is None


def test_a_recall_without_touch_leaves_nothing(
    platform: Platform, memory: Memory, desk: Desk
) -> None:
    found = memory.remember("The ferry leaves at noon")
    assert memory.recall("ferry", touch=False).hits
    drain(platform)
    assert desk.row(touch_of(memory, found)) is None


def test_hits_of_the_catalog_are_not_counted(
    new_platform: Callable[..., Platform], user: str
) -> None:
    platform = new_platform()  # of its own: everybody would find the entry
    platform.add_user(user)
    memory = platform.for_user(user)
    [entry] = platform.write_catalog([{"kind": "catalog", "text": "The ferry manual"}])
    episode = memory.remember("The ferry leaves at noon")
    found = memory.recall("ferry", recipe="bm25").hits
    assert {hit.id for hit in found} == {entry.id, episode.id}
    drain(platform)
    index = alias(platform.settings.prefix, "usage")
    admin_of(platform).indices.refresh(index=index)
    rows = admin_of(platform).search(index=index)["hits"]["hits"]
    assert [row["_id"] for row in rows] == [touch_of(memory, episode).reference.id]


def test_twenty_threads_of_recalls_lose_no_count(platform: Platform, memory: Memory) -> None:
    with Platform(platform.settings, embedder=HashingEmbedder()) as busy:
        mine = busy.for_user(memory.user_id)
        results = mine.remember_many([{"text": f"The ferry {n} leaves"} for n in range(3)])
        start = threading.Barrier(20)

        def ask(_number: int) -> None:
            start.wait()
            for _ in range(10):
                only = {"kinds": ["episodic"]}
                assert len(mine.recall("ferry", recipe="bm25", filters=only).hits) == 3

        with ThreadPoolExecutor(20) as pool:
            list(pool.map(ask, range(20)))
        drain(busy)
        desk = Desk(busy)
        counts = [row.use_count for each in results if (row := desk.row(touch_of(mine, each)))]
    assert counts == [200, 200, 200]


def test_closing_the_platform_writes_what_is_counted(
    platform: Platform, memory: Memory, desk: Desk
) -> None:
    with Platform(platform.settings, embedder=HashingEmbedder()) as brief:
        found = brief.for_user(memory.user_id).remember("The ferry leaves at noon")
        assert brief.for_user(memory.user_id).recall("ferry", recipe="bm25").hits
    row = desk.row(touch_of(memory, found))
    assert row
    assert row.use_count == 1


def test_w21_a_touched_memory_is_unchanged_and_still_found_by_its_vector(
    platform: Platform, memory: Memory, desk: Desk
) -> None:
    memory.remember_many(
        [
            {"text": "We adopted a puppy named Biscuit", "session_id": "chat"},
            {"text": "Rowan drinks only green tea", "kind": "semantic"},
            {"name": "Restart the router", "steps": ["unplug it"], "kind": "procedural"},
        ]
    )
    before = desk.memories(memory.user_id)
    assert len(before) == 3
    for _ in range(3):
        assert len(memory.recall("What is the name of the puppy?", recipe="dense").hits) == 3
        drain(platform)
    assert desk.memories(memory.user_id) == before
    after = memory.recall("What is the name of the puppy?", recipe="dense")
    assert after.hits[0].text == "We adopted a puppy named Biscuit"
    assert not after.degraded


def test_r12_a_used_memory_comes_before_its_unused_twin(platform: Platform, memory: Memory) -> None:
    twins = [
        memory.remember("The ferry leaves at noon", idempotency_key=str(number))
        for number in range(2)
    ]
    last = memory.recall("ferry", touch=False).hits[-1]
    assert {hit.id for hit in memory.recall("ferry", touch=False).hits} == {t.id for t in twins}
    recorder = platform.recorder()
    assert recorder
    recorder.add([Touch(memory.user_id, last.kind, last.id)] * 40)
    recorder.drain()
    first = memory.recall("ferry", touch=False).hits[0]
    assert first.id == last.id
    assert first.priors["usage"] > 0


# --- who may leave a trace ---------------------------------------------------------------------


def test_a_user_touches_only_what_the_own_key_has_read(
    platform: Platform, memory: Memory, desk: Desk
) -> None:
    thief_id = f"thief-{os.urandom(8).hex()}"
    platform.add_user(thief_id)
    thief = platform.for_user(thief_id)
    mine = memory.remember("The ferry leaves at noon", "semantic")
    theirs = thief.remember("The ferry leaves at noon", "semantic")
    assert [hit.id for hit in thief.recall("The ferry leaves at noon").hits] == [theirs.id]
    assert not thief.recall(mine.id or "", recipe="bm25").hits
    drain(platform)
    assert desk.row(touch_of(memory, mine)) is None
    assert desk.row(touch_of(thief, theirs))


def test_usage_rows_are_read_by_their_owner_and_written_by_no_user(
    platform: Platform, memory: Memory, desk: Desk
) -> None:
    found = memory.remember("The ferry leaves at noon")
    touch = touch_of(memory, found)
    apply_touches(desk.store, {touch: 7}, NOW)
    thief_id = f"thief-{os.urandom(8).hex()}"
    own = platform.user_store(platform.add_user(memory.user_id)[0])
    thief = platform.user_store(platform.add_user(thief_id)[0])
    assert own.fetch([touch.reference])[touch.reference].source["use_count"] == 7
    assert thief.fetch([touch.reference]) == {}
    row = {"use_count": 999_999, "pinned": True, "kind": "episodic"}
    index, row_id = alias(desk.prefix, "usage"), touch.reference.id
    for key in (own, thief):
        client = key._client
        with pytest.raises(elasticsearch.AuthorizationException):
            client.create(index=index, id="new", document=row, routing=routing(memory.user_id))
        with pytest.raises(elasticsearch.AuthorizationException):
            client.index(index=index, id=row_id, document=row, routing=routing(memory.user_id))
        with pytest.raises(elasticsearch.AuthorizationException):
            client.update(index=index, id=row_id, doc=row, routing=routing(memory.user_id))
        with pytest.raises(elasticsearch.AuthorizationException):
            client.delete(index=index, id=row_id, routing=routing(memory.user_id))
    assert desk.version(touch) == 1


def test_i10_usage_claimed_in_a_memory_counts_for_nothing(
    platform: Platform, memory: Memory, desk: Desk
) -> None:
    found = memory.remember(
        "The ferry leaves at noon", metadata={"use_count": 999_999, "pinned": True}
    )
    [hit] = memory.recall("ferry", touch=False).hits
    assert hit.id == found.id
    assert hit.priors.get("usage", 0) == 0
    assert desk.row(touch_of(memory, found)) is None
    key = platform.user_store(platform.add_user(memory.user_id)[0])._client
    place = {"_index": alias(desk.prefix, "episodic"), "_id": "x"}
    document = {"text": "The ferry", "kind": "episodic", "use_count": 999_999}
    route = routing(memory.user_id)
    [item] = key.bulk(operations=[{"create": place | {"routing": route}}, document])["items"]
    assert item["create"]["status"] == 400  # strict mappings: there is no such field


# --- the recorder ------------------------------------------------------------------------------


def test_touches_are_coalesced_into_one_write_a_memory(desk: Desk, user: str) -> None:
    recorder = desk.recorder(interval=3_600)
    touches = [made_up(user) for _ in range(3)]
    for _ in range(50):
        recorder.add(touches)
    recorder.drain()
    rows = [desk.row(touch) for touch in touches]
    assert [row.use_count for row in rows if row] == [50, 50, 50]
    assert [desk.version(touch) for touch in touches] == [1, 1, 1]
    recorder.add(touches[:1])
    recorder.drain()
    assert [desk.version(touch) for touch in touches] == [2, 1, 1]
    recorder.drain()  # nothing new: nothing written
    assert [desk.version(touch) for touch in touches] == [2, 1, 1]
    recorder.close()


def test_touches_are_written_behind_the_call_without_being_asked(desk: Desk, user: str) -> None:
    recorder = desk.recorder(interval=0.05)
    touch = made_up(user)
    recorder.add([touch])
    waiting = threading.Event()
    for _ in range(200):
        if desk.row(touch):
            break
        waiting.wait(0.05)
    row = desk.row(touch)
    assert row
    assert row.use_count == 1
    recorder.close()


def test_a_recorder_that_nothing_was_given_to_starts_no_thread(desk: Desk) -> None:
    before = threading.active_count()
    recorder = desk.recorder()
    recorder.add([])
    assert threading.active_count() == before
    recorder.close()


def test_twenty_threads_on_one_recorder_lose_no_count(desk: Desk, user: str) -> None:
    recorder = desk.recorder(interval=0.01)
    touches = [made_up(user) for _ in range(5)]
    start = threading.Barrier(20)

    def work(_number: int) -> None:
        start.wait()
        for _ in range(10):
            recorder.add(touches)

    with ThreadPoolExecutor(20) as pool:
        list(pool.map(work, range(20)))
    recorder.close()
    rows = [desk.row(touch) for touch in touches]
    assert [row.use_count for row in rows if row] == [200] * 5


def test_processes_that_write_one_row_at_once_delay_counts_but_lose_none(
    desk: Desk, user: str
) -> None:
    recorders = [desk.recorder(interval=3_600) for _ in range(6)]
    touches = [made_up(user), made_up(user)]
    start = threading.Barrier(len(recorders))

    def work(recorder: UsageRecorder) -> None:
        start.wait()
        for _ in range(10):
            recorder.add(touches)
            with contextlib.suppress(Conflict):  # contended: kept for the next round
                recorder.drain()

    with ThreadPoolExecutor(len(recorders)) as pool:
        list(pool.map(work, recorders))
    for recorder in recorders:
        recorder.close()
    rows = [desk.row(touch) for touch in touches]
    assert [row.use_count for row in rows if row] == [60, 60]


def test_an_update_keeps_what_else_the_row_says_and_never_turns_time_back(
    desk: Desk, user: str
) -> None:
    touch = made_up(user)
    apply_touches(desk.store, {touch: 1}, NOW)
    seen = desk.store.fetch([touch.reference])[touch.reference]
    desk.store.update(touch.reference, {"pinned": True, "success_count": 3}, seen)
    apply_touches(desk.store, {touch: 2}, NOW - timedelta(days=1))
    row = desk.row(touch)
    assert row
    assert (row.use_count, row.pinned, row.success_count) == (3, True, 3)
    assert row.last_used_at == NOW
    apply_touches(desk.store, {touch: 1}, NOW + timedelta(days=1))
    row = desk.row(touch)
    assert row
    assert row.last_used_at == NOW + timedelta(days=1)


def test_one_row_that_cannot_be_written_keeps_no_other_from_being_counted_once(
    desk: Desk, user: str
) -> None:
    before, after = made_up(user), made_up(user)
    impossible = made_up("x" * 40_000)  # longer than a term of Lucene
    left = {before: 1, impossible: 1, after: 1}
    for _ in range(3):
        with pytest.raises(MemoryEsError):
            apply_touches(desk.store, left, NOW)
        assert set(left) == {impossible}
    rows = [desk.row(touch) for touch in (before, after)]
    assert [row.use_count for row in rows if row] == [1, 1]


def test_what_could_not_be_written_is_kept_for_the_next_time(
    platform: Platform, desk: Desk, user: str
) -> None:
    touch = made_up(user)
    wrong_password = platform.client().options(basic_auth=("elastic", "wrong"))
    refused = UsageRecorder(Store(wrong_password, platform.placement), lambda: NOW, interval=3_600)
    refused.add([touch, touch])
    for _ in range(2):
        with pytest.raises(MemoryEsError):
            refused.drain()
    refused._service = desk.store  # the credential was mended
    refused.add([touch])
    refused.drain()
    row = desk.row(touch)
    assert row
    assert row.use_count == 3
    refused.close()


@pytest.mark.parametrize("cause", ["refused", "not initialised"])
def test_closing_ends_quietly_when_the_rows_cannot_be_written(
    cause: str, platform: Platform, service: Elasticsearch, user: str
) -> None:
    if cause == "refused":
        store = Store(
            platform.client().options(basic_auth=("elastic", "wrong")), platform.placement
        )
    else:
        store = Store(platform.service(), Placement("neverinstalled", "dls"))
    recorder = UsageRecorder(store, lambda: NOW, interval=3_600)
    recorder.add([made_up(user)])
    recorder.close()
    assert not service.indices.exists(index="neverinstalled-usage")


def test_the_row_of_a_touch_lies_on_its_memorys_shard_under_an_id_bound_to_its_owner(
    user: str,
) -> None:
    touch = made_up(user)
    assert touch.reference == Reference("usage", usage_id(routing(user), touch.id), routing(user))
    other = Touch("somebody else", touch.kind, touch.id)
    assert other.reference.id != touch.reference.id


def test_who_learns_a_memorys_id_cannot_occupy_its_row(desk: Desk, user: str) -> None:
    theirs = Touch("somebody else", Kind.SEMANTIC, os.urandom(20).hex())
    thief = Touch(user, Kind.SEMANTIC, theirs.id)
    apply_touches(desk.store, {thief: 7}, NOW)
    apply_touches(desk.store, {theirs: 1}, NOW)
    rows = [desk.row(touch) for touch in (theirs, thief)]
    assert [row.use_count for row in rows if row] == [1, 7]
    assert [row.owner for row in rows if row] == [
        {"api_key": {"metadata": {"owner_id": owner_id(touch.user_id)}}}
        for touch in (theirs, thief)
    ]
