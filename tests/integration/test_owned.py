"""``owned(ids)``: the only way to change a memory, in both ways of isolation (CASEBOOK I5, F6)."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from memory_es import Memory, Platform
from memory_es.changes import Changes
from memory_es.credentials import UserCredentials
from memory_es.errors import Conflict, InvalidInput, NotFound
from memory_es.owned import owned
from memory_es.schema import OWNED, Kind
from memory_es.store import Scope, Store
from memory_es.text import document_id, identity, owner_id, routing
from memory_es.usage import Touch, apply_touches
from tests.backstage import admin_of
from tests.doubles import HashingEmbedder

NOW = datetime(2026, 3, 4, 12, tzinfo=UTC)


@pytest.fixture(scope="module", params=["dls", "index"])
def platform(new_platform: Callable[..., Platform], request: pytest.FixtureRequest) -> Platform:
    """A deployment in each way of isolation."""
    mode = str(request.param)
    on = "trial" if mode == "dls" else "basic"
    return new_platform(isolation=mode, on=on, embedder=HashingEmbedder())


@pytest.fixture
def changes(platform: Platform) -> Changes:
    return Changes(platform.service(), platform.placement)


@pytest.fixture
def other(platform: Platform) -> Memory:
    """Somebody else."""
    name = f"other-{uuid.uuid4().hex}"
    platform.add_user(name)
    return platform.for_user(name)


def remember(memory: Memory, text: str, kind: Kind = Kind.SEMANTIC) -> str:
    extra = {"name": text} if kind is Kind.PROCEDURAL else {}
    return str(memory.remember(text, kind, **extra).id)


def state(platform: Platform, memory: Memory) -> dict[str, int]:
    """The version of every document of a user."""
    admin, pattern = admin_of(platform), f"{platform.settings.prefix}-*"
    admin.indices.refresh(index=pattern)
    owner = {"term": {"owner.api_key.metadata.owner_id": owner_id(memory.user_id)}}
    hits = admin.search(index=pattern, query=owner, size=100, version=True)["hits"]["hits"]
    return {hit["_id"]: hit["_version"] for hit in hits}


def texts(memory: Memory, query: str, recipe: str = "lexical") -> list[str]:
    return [hit.text for hit in memory.recall(query, recipe=recipe, touch=False).hits]


def test_memories_come_in_order_each_once_with_their_kind(memory: Memory) -> None:
    ids = [remember(memory, f"the {kind} one", kind) for kind in OWNED]
    found = memory.owned([ids[2], ids[0], ids[1], ids[0]])
    assert [one.reference.id for one in found] == [ids[2], ids[0], ids[1]]
    assert [one.kind for one in found] == [OWNED[2], OWNED[0], OWNED[1]]
    assert all(one.seen.seq_no >= 0 and one.seen.primary_term >= 1 for one in found)
    assert [one.seen.source["text"] for one in found] == [
        f"the {kind} one" for kind in (OWNED[2], OWNED[0], OWNED[1])
    ]


def test_a_foreign_id_and_one_that_never_was_are_one_error(
    platform: Platform, memory: Memory, other: Memory, changes: Changes
) -> None:
    mine, theirs = remember(memory, "mine"), remember(other, "theirs")
    gone = remember(memory, "gone")
    [doomed] = memory.owned([gone])
    doomed.delete(changes)
    versions = state(platform, memory), state(platform, other)
    said = set()
    for wanted in (
        [theirs],
        ["0" * 40],
        [gone],
        ["x" * 600],
        ["*"],
        [mine, theirs],
        [theirs, mine],
    ):
        with pytest.raises(NotFound) as caught:
            memory.owned(wanted)
        said.add((str(caught.value), caught.value.code))
    assert said == {
        ("there is no such memory. Take an id that recall shows", "not_found"),
    }
    assert texts(other, "theirs") == ["theirs"]
    assert (state(platform, memory), state(platform, other)) == versions


def test_the_read_is_refused_without_a_user(platform: Platform, memory: Memory) -> None:
    id_ = remember(memory, "mine")
    nobody = Scope(Store(platform.service(), platform.placement), None, "")
    with pytest.raises(InvalidInput) as caught:
        owned(nobody, [id_])
    assert caught.value.field == "user"


@pytest.mark.parametrize("ids", [[], [""], [" "], ["\u200b"], [None], [7], ["ok", ""]])
def test_what_is_no_id_is_refused_with_the_field(memory: Memory, ids: list[str]) -> None:
    with pytest.raises(InvalidInput) as caught:
        memory.owned(ids)
    assert caught.value.field == "ids"


def test_a_change_is_bound_to_what_was_read(memory: Memory, changes: Changes) -> None:
    id_ = remember(memory, "drinks tea")
    [early], [late] = memory.owned([id_]), memory.owned([id_])
    early.update(changes, {"revision": 7})
    with pytest.raises(Conflict):
        late.update(changes, {"revision": 8})
    with pytest.raises(Conflict):
        late.delete(changes)
    [now] = memory.owned([id_])
    assert now.seen.source["revision"] == 7
    now.delete(changes)
    with pytest.raises(NotFound):
        now.update(changes, {"revision": 9})
    with pytest.raises(Conflict):
        now.delete(changes)
    assert texts(memory, "tea") == []


def test_of_many_changers_of_one_reading_exactly_one_succeeds(
    memory: Memory, changes: Changes
) -> None:
    id_ = remember(memory, "drinks tea")
    [seen] = memory.owned([id_])
    outcomes: list[str] = []
    ready = threading.Barrier(8)

    def change(number: int) -> None:
        ready.wait()
        try:
            seen.update(changes, {"revision": number})
        except Conflict:
            outcomes.append("late")
        else:
            outcomes.append("done")

    threads = [threading.Thread(target=change, args=(number,)) for number in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["done", *["late"] * 7]


def test_w21_a_changed_memory_is_still_found_by_its_vector(
    memory: Memory, changes: Changes
) -> None:
    for kind in OWNED:
        [one] = memory.owned([remember(memory, f"the heron stands in the {kind} reeds", kind)])
        one.update(changes, {"revision": 3})
    found = memory.recall("heron reeds", recipe="dense", touch=False).hits
    assert {hit.kind for hit in found if hit.kind is not Kind.CATALOG} == set(OWNED)


def test_f6_two_users_with_one_text_have_two_memories_and_one_can_go(
    memory: Memory, other: Memory, changes: Changes
) -> None:
    text = "the ferry leaves at nine"
    mine, theirs = remember(memory, text), remember(other, text)
    assert mine != theirs
    [one] = memory.owned([mine])
    one.delete(changes)
    assert texts(memory, "ferry") == []
    assert texts(other, "ferry") == [text]
    assert [kept.reference.id for kept in other.owned([theirs])] == [theirs]


def test_a_document_planted_under_a_foreign_id_is_its_planters_alone(
    platform: Platform, other: Memory, changes: Changes
) -> None:
    """Who learns an id, and even the secret behind it, changes only what is written with one's own
    key: on whatever shard it lies."""
    text = "the safe opens with 7 3 5"
    theirs = remember(other, text)
    secret = platform.for_user(other.user_id)._credentials().id_secret.get_secret_value()
    assert theirs == document_id(secret, Kind.SEMANTIC, identity(text), 0)
    before = state(platform, other)
    planted = False
    for _ in range(20):  # until one's documents lie on another shard than the other user's
        name = f"planter-{uuid.uuid4().hex}"
        key, _ = platform.add_user(name)
        planter = platform.for_user(name)
        planted = plant(platform, key, theirs)
        if planted:
            break
        with pytest.raises(NotFound):  # on the other's shard the id is taken
            planter.owned([theirs])
    assert planted
    [one] = planter.owned([theirs])
    assert one.seen.source["text"] == "planted"
    one.update(changes, {"revision": 5})
    assert state(platform, other) == before
    [again] = planter.owned([theirs])
    again.delete(changes)
    assert state(platform, other) == before
    [kept] = other.owned([theirs])
    assert kept.seen.source["text"] == text


def plant(platform: Platform, key: UserCredentials, id_: str) -> bool:
    """Write a document under this id with a user's key; whether the id was free."""
    place = routing(key.user_id)
    document = {
        "kind": "semantic",
        "text": "planted",
        "fact_type": "world",
        "confidence": 1.0,
        "content_hash": "x",
        "created_at": "2026-01-01T00:00:00Z",
        "event_time": "2026-01-01T00:00:00Z",
    }
    index = platform.placement.index(Kind.SEMANTIC, place)
    client = platform.client().options(api_key=key.api_key.get_secret_value())
    action = {"_index": index, "_id": id_, "routing": place}
    [item] = client.bulk(operations=[{"create": action}, document], refresh=True)["items"]
    assert item["create"]["status"] in {201, 409}
    return bool(item["create"]["status"] == 201)


def test_the_changes_of_one_user_leave_all_others_as_they_were(
    platform: Platform, memory: Memory, other: Memory, changes: Changes
) -> None:
    for number in range(3):
        remember(other, f"their fact {number}")
    before = state(platform, other)
    assert len(before) >= 3
    for number in range(3):
        [one] = memory.owned([remember(memory, f"my fact {number}")])
        one.update(changes, {"revision": number})
        [again] = memory.owned([one.reference.id])
        again.delete(changes)
    assert state(platform, other) == before


def test_i5_a_touch_of_a_foreign_id_reaches_no_row_of_its_owners(
    platform: Platform, memory: Memory, other: Memory
) -> None:
    rows = Store(platform.service(), platform.placement)
    id_ = remember(other, "the ferry leaves at nine")
    theirs = Touch(other.user_id, Kind.SEMANTIC, id_)
    apply_touches(rows, {theirs: 2}, NOW)
    before = rows.fetch([theirs.reference])[theirs.reference]
    with pytest.raises(NotFound):
        memory.owned([id_])
    apply_touches(rows, {Touch(memory.user_id, Kind.SEMANTIC, id_): 999}, NOW)
    assert rows.fetch([theirs.reference])[theirs.reference] == before
    assert before.source["use_count"] == 2


def test_i10_what_a_key_claims_about_use_is_refused(platform: Platform, memory: Memory) -> None:
    id_ = remember(memory, "the ferry leaves at nine")
    credentials, _ = platform.add_user(memory.user_id)
    key = platform.client().options(api_key=credentials.api_key.get_secret_value())
    touch = Touch(memory.user_id, Kind.SEMANTIC, id_)
    usage = {"_index": platform.placement.index("usage"), "_id": touch.reference.id}
    place = {"_index": platform.placement.index(Kind.SEMANTIC, routing(memory.user_id)), "_id": "x"}
    document = {"kind": "semantic", "text": "the ferry leaves at nine"}
    claims = {"use_count": 999_999}, {"pinned": True}, {"last_used_at": "2036-01-01T00:00:00Z"}
    where = {"routing": routing(memory.user_id)}
    for claim in claims:
        [item] = key.bulk(operations=[{"create": place | where}, document | claim])["items"]
        assert item["create"]["status"] == 400
        row = {"kind": "semantic"} | claim
        [item] = key.bulk(operations=[{"create": usage | where}, row])["items"]
        assert item["create"]["status"] == 403
    assert not Store(platform.service(), platform.placement).fetch([touch.reference])
    [hit] = memory.recall("ferry", touch=False).hits
    assert hit.priors.get("usage", 0) == 0
