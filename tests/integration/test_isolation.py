"""Isolation enforced by the cluster, on three shards: CASEBOOK I1-I4, I6, I9, I10.

The attacker is a user whose raw key talks to Elasticsearch itself. Every probe is sent twice:
with the victim's key it must find something (or it would prove nothing), with the attacker's it
must find nothing of the victim.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
import pkgutil
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import elasticsearch
import pytest
import typer
from elasticsearch import Elasticsearch
from pydantic import SecretStr
from typer.testing import CliRunner

import memory_es
from memory_es import Memory, Platform, security
from memory_es.cli import app
from memory_es.credentials import UserCredentials
from memory_es.errors import AccessDenied, Conflict, InvalidInput, NotFound
from memory_es.owned import owned
from memory_es.placement import Placement
from memory_es.queries import RECIPES
from memory_es.recall import recall
from memory_es.requests import Hit, RecallRequest, RecallResult
from memory_es.schema import OWNED, Kind
from memory_es.store import Scope, Store
from memory_es.text import document_id, identity, owner_id, routing, usage_id
from memory_es.turns import place_turns
from memory_es.usage import Touch, apply_touches
from memory_es.write import write
from tests.attacks import ALONE, FORBIDDEN, HOSTILE, READS, Probe, filled
from tests.backstage import admin_of
from tests.doubles import HashingEmbedder

NewPlatform = Callable[..., Platform]
PLAIN = [name for name, recipe in RECIPES.items() if not recipe.rerank]
#: Words, tags and names that only the victim's memories have.
SECRET = "quagga"
NAMES = ["alias", "index"]


@pytest.fixture(scope="module", params=["dls", "index"])
def platform(new_platform: NewPlatform, request: pytest.FixtureRequest) -> Platform:
    """A deployment of this module's own, so that documents can be counted: users kept apart by
    document-level security, and by an index each on a node with the basic licence."""
    mode = str(request.param)
    return new_platform(isolation=mode, on="trial" if mode == "dls" else "basic")


@pytest.fixture(scope="module")
def service(platform: Platform) -> Elasticsearch:
    """An administrator's client on this deployment."""
    return admin_of(platform)


@dataclass
class Person:
    """A user, the raw key and what was written."""

    id: str
    credentials: UserCredentials
    memory: Memory
    client: Elasticsearch
    placement: Placement
    ids: dict[str, str] = field(default_factory=dict)
    vector: list[float] = field(default_factory=list)

    @property
    def routing(self) -> str:
        return routing(self.id)

    def index(self, kind: str, name: str = "alias") -> str:
        """Where this person's memories of a kind are: by alias, or by the index's own name."""
        return self.placement.index(kind, self.routing) + ("-000001" if name == "index" else "")

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, str]:
        """Status and raw answer of a request with this person's key."""
        headers = {"accept": "application/json", "content-type": "application/json"}
        if isinstance(body, list):
            headers["content-type"] = "application/x-ndjson"
        headers |= {"authorization": f"ApiKey {self.credentials.api_key.get_secret_value()}"}
        answer = self.client.transport.perform_request(method, path, body=body, headers=headers)
        return answer.meta.status, json.dumps(answer.body, ensure_ascii=False)


def person(platform: Platform, user: str) -> Person:
    credentials, _ = platform.add_user(user)
    client = platform.client().options(api_key=credentials.api_key.get_secret_value())
    return Person(user, credentials, platform.for_user(credentials), client, platform.placement)


@pytest.fixture(scope="module")
def victim(platform: Platform) -> Person:
    """A user with a memory of each kind, a long one, and usage rows."""
    found = person(platform, f"victim-{uuid.uuid4().hex}")
    rows: list[dict[str, Any]] = [
        {
            "kind": "episodic",
            "text": f"the {SECRET} sleeps behind the orangery",
            "session_id": f"{SECRET}-session",
            "speaker": f"{SECRET}-speaker",
        },
        {
            "kind": "semantic",
            "text": f"her {SECRET} is called Zephyrine",
            "tags": [f"{SECRET}-tag"],
            "metadata": {"pet": f"{SECRET}-metadata"},
        },
        {"kind": "procedural", "name": f"{SECRET}-name", "steps": [f"brush the {SECRET}"]},
    ]
    for result in found.memory.remember_many(rows):
        assert result.status == "created"
        found.ids[str(result.kind)] = found.ids.get(str(result.kind), str(result.id))
    near = platform.embedder().query(f"the {SECRET} sleeps behind the orangery")
    found.vector = [float(value) for value in near]
    touched = {Touch(found.id, Kind(kind), id_): 41 for kind, id_ in found.ids.items()}
    store = Store(platform.service(), platform.placement)
    apply_touches(store, touched, datetime.now(UTC))
    store.refresh(["usage"])
    return found


@pytest.fixture(scope="module")
def attacker(platform: Platform, victim: Person) -> Person:
    """A user on the victim's shard (any two of four users on three shards may share one)."""
    shard = _shard(platform, victim.id)
    names = (f"attacker-{uuid.uuid4().hex}" for _ in range(1_000))
    found = person(platform, next(name for name in names if _shard(platform, name) == shard))
    for kind in OWNED:
        extra = {"name": "whistle"} if kind is Kind.PROCEDURAL else {}
        found.ids[kind] = str(found.memory.remember("I whistle at noon", kind, **extra).id)
    return found


def _shard(platform: Platform, user: str) -> int:
    if platform.placement.by_index:
        return 0
    answer = platform.service().search_shards(
        index=platform.placement.index("episodic"), routing=routing(user)
    )
    return int(answer["shards"][0][0]["shard"])


def index_name(platform: Platform, kind: str, name: str) -> str:
    """A shared index by its alias or by its own name."""
    return platform.placement.index(kind) + ("-000001" if name == "index" else "")


def own(result: RecallResult) -> list[Hit]:
    """The hits without the catalog's, which belong to everybody."""
    return [hit for hit in result.hits if hit.kind is not Kind.CATALOG]


def marks(victim: Person) -> set[str]:
    return {SECRET, "Zephyrine", "orangery", victim.id, *victim.ids.values()}


def leaked(answer: str, victim: Person, request: str) -> set[str]:
    """What of the victim stands in an answer without having stood in the request."""
    return {mark for mark in marks(victim) if mark in answer and mark not in request}


# --- I3: reading ----------------------------------------------------------------------------


def send(
    probe: Probe,
    by: Person,
    victim: Person,
    attacker: Person,
    platform: Platform,
    kind: str,
    name: str,
) -> tuple[int, str, str]:
    """Status, answer, and the request as sent."""
    values = {
        "index": victim.index(kind, name),
        "id": usage_id(victim.routing, victim.ids["semantic"])
        if kind == "usage"
        else victim.ids[kind],
        "routing": victim.routing,
        "user": victim.id,
        "owner": owner_id(victim.id),
        "attacker": owner_id(attacker.id),
        "vector": victim.vector,
        "state": index_name(platform, "state", name),
    }
    path, body = filled(probe.path, values), filled(probe.body, values)
    status, answer = by.ask(probe.method, path, body)
    return status, answer, f"{path} {json.dumps(body)}"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", [*OWNED])
@pytest.mark.parametrize("probe", READS)
def test_a_key_reads_nothing_of_another_user(
    platform: Platform, victim: Person, attacker: Person, probe: str, kind: str, name: str
) -> None:
    sent = (READS[probe],)
    status, answer, request = send(*sent, victim, victim, attacker, platform, kind, name)
    assert status == 200, answer
    number = any(f'"{name}": {n}' in answer for name in ("count", "value") for n in (1, 3))
    assert leaked(answer, victim, request) or number, f"the probe finds nothing: {answer}"

    status, answer, request = send(*sent, attacker, victim, attacker, platform, kind, name)
    assert status in {200, 403, 404}, answer
    assert leaked(answer, victim, request) == set()
    assert '"found": true' not in answer
    assert '"hits": [{' not in answer or attacker.ids[kind] in answer


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("probe", ["get", "source", "mget", "ids", "owner", "everything", "scroll"])
def test_usage_rows_of_another_user_are_not_read_either(
    platform: Platform, victim: Person, attacker: Person, probe: str, name: str
) -> None:
    sent = (READS[probe],)
    status, answer, _ = send(*sent, victim, victim, attacker, platform, "usage", name)
    if platform.placement.by_index:  # one index for all: read by the service alone
        for by in (victim, attacker):
            status, answer, _ = send(*sent, by, victim, attacker, platform, "usage", name)
            assert status == 403 or '"security_exception"' in answer
            assert "use_count" not in answer
        return
    assert status == 200
    assert '"use_count": 41' in answer
    status, answer, request = send(*sent, attacker, victim, attacker, platform, "usage", name)
    assert status in {200, 404}
    assert leaked(answer, victim, request) == set()
    assert "use_count" not in answer


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("probe", FORBIDDEN)
def test_what_could_show_more_than_documents_is_refused_to_every_key(
    platform: Platform, victim: Person, attacker: Person, probe: str, name: str
) -> None:
    status, answer, request = send(
        FORBIDDEN[probe], attacker, victim, attacker, platform, "semantic", name
    )
    assert 400 <= status < 500, f"{status}: {answer}"
    assert leaked(answer, victim, request) == set()
    if platform.placement.by_index and probe not in ALONE:  # nor in the index of one's own
        status, answer, _ = send(
            FORBIDDEN[probe], attacker, attacker, attacker, platform, "semantic", name
        )
        assert 400 <= status < 500, f"{status}: {answer}"


@pytest.mark.parametrize("name", NAMES)
def test_a_key_sees_the_mapping_of_its_own_index_which_tells_nothing_of_others(
    platform: Platform, victim: Person, attacker: Person, name: str
) -> None:
    status, answer = attacker.ask("GET", f"/{attacker.index('semantic', name)}/_mapping")
    assert status == 200
    assert '"embedding_model"' in answer
    assert leaked(answer, victim, "") == set()
    if platform.placement.by_index:
        assert attacker.ask("GET", f"/{victim.index('semantic', name)}/_mapping")[0] == 403


def test_counts_count_ones_own(victim: Person, attacker: Person) -> None:
    for kind in OWNED:
        for name in NAMES:
            index, of_kind = attacker.index(kind, name), {"term": {"kind": str(kind)}}
            assert attacker.client.count(index=index, query=of_kind)["count"] == 1
            theirs = victim.index(kind, name)
            assert victim.client.count(index=theirs, query=of_kind)["count"] == 1
            foreign = {"term": {"owner_id": owner_id(victim.id)}}
            assert attacker.client.count(index=index, query=foreign)["count"] == 0
            owners = attacker.client.search(
                index=index,
                query=of_kind,
                size=0,
                aggs={
                    "owners": {"terms": {"field": "owner_id"}},
                    "n": {"value_count": {"field": "kind"}},
                    "victim": {"filter": foreign},
                    "number": {"cardinality": {"field": "owner_id"}},
                },
            )["aggregations"]
            assert [bucket["key"] for bucket in owners["owners"]["buckets"]] == [
                owner_id(attacker.id)
            ]
            assert owners["n"]["value"] == owners["number"]["value"] == 1
            assert owners["victim"]["doc_count"] == 0


def test_a_point_in_time_and_a_scroll_show_ones_own(
    platform: Platform, victim: Person, attacker: Person
) -> None:
    for by in (attacker, victim):
        index = by.index("semantic")
        mine = set(by.ids.values()) if platform.placement.by_index else {by.ids["semantic"]}
        point = by.client.open_point_in_time(index=index, keep_alive="1m")["id"]
        hits = by.client.search(pit={"id": point, "keep_alive": "1m"}, size=1_000)["hits"]["hits"]
        assert {hit["_id"] for hit in hits} == mine
        by.client.close_point_in_time(id=point)
        page = by.client.search(index=index, scroll="1m", size=1)
        found = [hit["_id"] for hit in page["hits"]["hits"]]
        while page["hits"]["hits"]:
            page = by.client.scroll(scroll_id=page["_scroll_id"], scroll="1m")
            found += [hit["_id"] for hit in page["hits"]["hits"]]
        assert sorted(found) == sorted(mine)


def test_a_scroll_or_point_in_time_of_another_user_cannot_be_read_on(
    victim: Person, attacker: Person
) -> None:
    index = victim.index("semantic")
    page = victim.client.search(index=index, scroll="1m", size=1)
    with pytest.raises(elasticsearch.ApiError) as caught:
        attacker.client.scroll(scroll_id=page["_scroll_id"])
    assert caught.value.status_code in {403, 404}
    point = victim.client.open_point_in_time(index=index, keep_alive="1m")["id"]
    try:
        answer = attacker.client.search(pit={"id": point}).body
    except elasticsearch.ApiError as error:
        answer = {"refused": error.status_code}
    assert leaked(json.dumps(answer), victim, "") == set()


def test_recall_finds_nothing_of_another_user(victim: Person, attacker: Person) -> None:
    for query in (
        f"the {SECRET} sleeps behind the orangery",
        f"her {SECRET} is called Zephyrine",
        victim.id,
        victim.ids["semantic"],
        f"{SECRET}-tag",
    ):
        for recipe in PLAIN:
            found = attacker.memory.recall(query, recipe=recipe, touch=False)
            assert {hit.owner for hit in own(found)} <= {attacker.id}
            assert leaked(found.model_dump_json(exclude={"searches"}), victim, "") == set()
            narrow: tuple[dict[str, Any], ...] = (
                {"tags": [f"{SECRET}-tag"]},
                {"session_id": f"{SECRET}-session"},
                {"metadata": {"pet": f"{SECRET}-metadata"}},
            )
            for filters in narrow:
                found = attacker.memory.recall(query, recipe=recipe, filters=filters, touch=False)
                assert found.hits == ()
    assert victim.memory.recall(SECRET, touch=False).hits


# --- I4: writing ----------------------------------------------------------------------------


def _document(**fields: Any) -> dict[str, Any]:
    return {
        "kind": "semantic",
        "text": "a planted fact",
        "fact_type": "world",
        "confidence": 1.0,
        "content_hash": "planted",
        "created_at": "2026-01-01T00:00:00Z",
        "event_time": "2026-01-01T00:00:00Z",
    } | fields


def _owner_of(service: Elasticsearch, index: str, id_: str, place: str) -> Any:
    return service.get(index=index, id=id_, routing=place)["_source"]["owner"]


def plant(
    by: Person,
    index: str,
    place: str,
    document: dict[str, Any],
    id_: str | None = None,
    **options: str,
) -> dict[str, Any]:
    """The outcome of one creation with a person's own key."""
    action = {"_index": index, "_id": id_ or uuid.uuid4().hex, "routing": place} | options
    answer = by.client.bulk(operations=[{"create": action}, document], refresh=True)
    created: dict[str, Any] = answer["items"][0]["create"]
    return created


#: Ways to write the victim into ``owner``. The stamp is set beside what stands there, so that a
#: second spelling of the same field survives it.
FORGED: dict[str, Callable[[str], dict[str, Any]]] = {
    "as it is": lambda owner: {"owner": {"api_key": {"metadata": {"owner_id": owner}}}},
    "many": lambda owner: {"owner": {"api_key": {"metadata": {"owner_id": [owner, "x"]}}}},
    "a list of owners": lambda owner: {"owner": [{"api_key": {"metadata": {"owner_id": owner}}}]},
    "a list of keys": lambda owner: {"owner": {"api_key": [{"metadata": {"owner_id": owner}}]}},
    "dots": lambda owner: {"owner.api_key.metadata.owner_id": owner},
    "dots to the metadata": lambda owner: {"owner.api_key.metadata": {"owner_id": owner}},
    "dots to the key": lambda owner: {"owner.api_key": {"metadata": {"owner_id": owner}}},
    "dots inside": lambda owner: {"owner": {"api_key.metadata.owner_id": owner}},
    "dots inside to the metadata": lambda owner: {
        "owner": {"api_key.metadata": {"owner_id": owner}}
    },
    "dots inside the key": lambda owner: {"owner": {"api_key": {"metadata.owner_id": owner}}},
    "both": lambda owner: {
        "owner": {"api_key": {"metadata": {"owner_id": owner}, "metadata.owner_id": [owner]}},
        "owner.api_key.metadata.owner_id": [owner, owner],
    },
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("pipeline", [None, "_none"])
@pytest.mark.parametrize("way", FORGED)
def test_a_forged_owner_is_overwritten_by_the_cluster_and_brings_nothing_to_the_victim(
    platform: Platform,
    service: Elasticsearch,
    victim: Person,
    attacker: Person,
    way: str,
    pipeline: str | None,
    name: str,
) -> None:
    index, text = attacker.index("semantic", name), "the safest bank is planted"
    document = _document(text=text) | FORGED[way](owner_id(victim.id))
    options = {"pipeline": pipeline} if pipeline else {}
    planted = plant(attacker, index, victim.routing, document, **options)
    assert planted["status"] == 201, planted
    try:
        stamp = _owner_of(service, index, planted["_id"], victim.routing)
        assert stamp["api_key"]["metadata"]["owner_id"] == owner_id(attacker.id)
        refusal = 403 if platform.placement.by_index else 404
        path = f"/{index}/_doc/{planted['_id']}?routing={victim.routing}"
        assert victim.ask("GET", path)[0] == refusal
        by_id = {"ids": {"values": [planted["_id"]]}}
        theirs = victim.index("semantic", name)
        assert victim.client.count(index=theirs, query=by_id)["count"] == 0
        for recipe in ("bm25", "lexical"):
            found = victim.memory.recall("which bank is safest?", recipe=recipe, touch=False)
            assert text not in {hit.text for hit in found.hits}
    finally:
        service.delete(index=index, id=planted["_id"], routing=victim.routing, refresh=True)


def test_an_owner_given_under_its_short_name_is_refused(victim: Person, attacker: Person) -> None:
    index = attacker.index("semantic")
    for claim in (
        {"owner_id": owner_id(victim.id)},
        {f"{security.OWNER_FIELD}.values": owner_id(victim.id)},
    ):
        assert plant(attacker, index, victim.routing, _document(**claim))["status"] == 400


@pytest.fixture
def untouched(
    platform: Platform, service: Elasticsearch, victim: Person, attacker: Person
) -> Iterator[None]:
    """Everything of both users is afterwards as it was, versions included."""

    def state() -> dict[str, Any]:
        service.indices.refresh(index=f"{platform.settings.prefix}-*")
        found = service.search(
            index=f"{platform.settings.prefix}-*",
            query={
                "terms": {
                    "owner.api_key.metadata.owner_id": [owner_id(victim.id), owner_id(attacker.id)]
                }
            },
            size=1_000,
            seq_no_primary_term=True,
            version=True,
        )
        return {
            f"{hit['_index']} {hit['_id']}": (hit["_version"], hit["_seq_no"], hit["_source"])
            for hit in found["hits"]["hits"]
        }

    before = state()
    assert len(before) >= 9
    yield
    assert state() == before


#: ``{index}`` is the victim's and then the attacker's; ``{own}`` the attacker's.
WRITES: dict[str, Probe] = {
    "overwrite": Probe("PUT", "/{index}/_doc/{id}?routing={routing}", {"kind": "semantic"}),
    "overwrite its own": Probe("PUT", "/{own}/_doc/{mine}?routing={place}", {"kind": "x"}),
    "update": Probe("POST", "/{index}/_update/{id}?routing={routing}", {"doc": {"revision": 7}}),
    "update its own": Probe(
        "POST", "/{own}/_update/{mine}?routing={place}", {"doc": {"kind": "x"}}
    ),
    "upsert": Probe(
        "POST",
        "/{index}/_update/{id}?routing={routing}",
        {"doc": {"revision": 7}, "doc_as_upsert": True},
    ),
    "delete": Probe("DELETE", "/{index}/_doc/{id}?routing={routing}"),
    "delete its own": Probe("DELETE", "/{own}/_doc/{mine}?routing={place}"),
    "delete by query": Probe("POST", "/{index}/_delete_by_query", {"query": {"match_all": {}}}),
    "update by query": Probe("POST", "/{index}/_update_by_query", {"query": {"match_all": {}}}),
    "reindex": Probe(
        "POST", "/_reindex", {"source": {"index": "{index}"}, "dest": {"index": "{index}-copy"}}
    ),
    "creation outside of a bulk": Probe("POST", "/{own}/_doc?routing={place}", {"kind": "x"}),
    "another index of the pattern": Probe("PUT", "/{alias}-000099"),
    "automatic index": Probe("POST", "/{alias}-000099/_doc", {"kind": "semantic"}),
    "index deletion": Probe("DELETE", "/{index}"),
    "closing": Probe("POST", "/{index}/_close"),
    "mapping": Probe("PUT", "/{index}/_mapping", {"dynamic": "true"}),
    "settings": Probe("PUT", "/{index}/_settings", {"index": {"final_pipeline": "_none"}}),
    "alias": Probe(
        "POST", "/_aliases", {"actions": [{"add": {"index": "{index}", "alias": "evil"}}]}
    ),
    "pipeline": Probe("PUT", "/_ingest/pipeline/{stamp}", {"processors": []}),
    "template": Probe("PUT", "/_index_template/evil", {"index_patterns": ["*"], "priority": 999}),
    "rollover": Probe("POST", "/{alias}/_rollover"),
    "force merge": Probe("POST", "/{index}/_forcemerge"),
    "cache": Probe("POST", "/{index}/_cache/clear"),
    "key invalidation": Probe("DELETE", "/_security/api_key", {"ids": ["{key}"]}),
}


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("probe", WRITES)
def test_a_key_changes_and_deletes_nothing(
    platform: Platform, victim: Person, attacker: Person, probe: str, name: str
) -> None:
    values = {
        "own": attacker.index("semantic", name),
        "alias": attacker.index("semantic"),
        "stamp": f"{platform.settings.prefix}-stamp",
        "id": victim.ids["semantic"],
        "routing": victim.routing,
        "mine": attacker.ids["semantic"],
        "place": attacker.routing,
        "key": victim.credentials.key_id,
    }
    sent = WRITES[probe]
    for target in {victim.index("semantic", name), attacker.index("semantic", name)}:
        values["index"] = target
        path, body = filled(sent.path, values), filled(sent.body, values)
        status, answer = attacker.ask(sent.method, path, body)
        assert 400 <= status < 500, f"{status}: {answer}"
        assert status != 409, answer
    assert security.works(platform.client(), victim.credentials)


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("name", NAMES)
def test_a_bulk_changes_and_deletes_nothing(
    platform: Platform, victim: Person, attacker: Person, name: str
) -> None:
    operations: list[dict[str, Any]] = []
    for by in (victim, attacker):
        place = {
            "_index": by.index("semantic", name),
            "_id": by.ids["semantic"],
            "routing": by.routing,
        }
        operations += [{"delete": place}]
        operations += [{"update": place}, {"doc": {"revision": 7}}]
        operations += [{"index": place}, _document()]
    others = [index_name(platform, row, name) for row in ("usage", "state", "catalog")]
    for other in (*others, f"{attacker.index('semantic')}-000099", "elsewhere"):
        target = {"_index": other, "_id": victim.ids["semantic"]}
        operations += [{"create": target}, {"kind": "semantic"}]
    status, answer = attacker.ask("POST", "/_bulk", operations)
    assert status in {200, 403}
    if status == 200:
        items = [entry for item in json.loads(answer)["items"] for entry in item.values()]
        assert len(items) == 11
        assert {item["status"] for item in items} == {403}


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("target", ["usage", "state", "catalog"])
def test_a_key_writes_no_usage_no_state_and_no_catalog(
    platform: Platform, attacker: Person, target: str, name: str
) -> None:
    index = index_name(platform, target, name)
    row, at = attacker.ids["semantic"], f"routing={attacker.routing}"
    document = {"kind": "semantic"}
    requests: tuple[tuple[str, str, Any], ...] = (
        ("POST", f"/{index}/_doc?{at}", document),
        ("PUT", f"/{index}/_create/{row}?{at}", document),
        ("POST", f"/{index}/_update/{row}?{at}", {"doc": document, "doc_as_upsert": True}),
        ("DELETE", f"/{index}/_doc/{row}?{at}", None),
    )
    for method, path, body in requests:
        status, answer = attacker.ask(method, path, body)
        assert status == 403, answer
    assert plant(attacker, index, attacker.routing, document, row)["status"] == 403


def test_every_key_reads_the_catalog(
    platform: Platform, victim: Person, attacker: Person, user: str
) -> None:
    entry = {"kind": "catalog", "external_id": user, "text": "The heron line runs at night"}
    [written] = platform.write_catalog([entry])
    for by in (victim, attacker):
        found = by.memory.recall("when does the heron line run?", touch=False)
        assert written.id in {hit.id for hit in found.hits}


# --- I1, I2: without a key, or with a bad one -----------------------------------------------


def _of_a_scope() -> set[str]:
    """Every public function of the package that reads or writes for the user of a scope."""
    found = set()
    for module in pkgutil.iter_modules(memory_es.__path__):
        names = vars(importlib.import_module(f"memory_es.{module.name}"))
        for name, function in names.items():
            if name.startswith("_") or not inspect.isfunction(function):
                continue
            if function.__module__ == f"memory_es.{module.name}" and any(
                str(parameter.annotation) == "Scope"
                for parameter in inspect.signature(function).parameters.values()
            ):
                found.add(f"{module.name}.{name}")
    return found


def test_i1_every_way_to_read_and_write_refuses_nobody(platform: Platform) -> None:
    nobody = Scope(Store(platform.service(), platform.placement), None, "secret")
    now, embedder = datetime.now(UTC), HashingEmbedder()
    options: dict[str, Any] = {"now": now, "new_id": lambda: "x", "refresh": False}
    ways: dict[str, Callable[[], Any]] = {
        "recall.recall": lambda: recall(
            nobody, embedder, None, RecallRequest(query="tea"), languages=("english",), now=now
        ),
        "owned.owned": lambda: owned(nobody, ["0" * 40]),
        "write.write": lambda: [
            result.code
            for result in write(
                nobody, embedder, [{"text": "tea"}, {"kind": "semantic"}], **options
            )
        ],
        # reads nothing of nobody's: the first turn of a conversation has no turn before it
        "turns.place_turns": lambda: place_turns(nobody, [], {}),
    }
    assert ways.keys() == _of_a_scope()
    for name in ("recall.recall", "owned.owned"):
        with pytest.raises(InvalidInput) as caught:
            ways[name]()
        assert caught.value.field == "user"
    assert ways["write.write"]() == ["invalid_input", "invalid_input"]
    assert ways["turns.place_turns"]() is None


def test_i1_every_command_for_a_user_refuses_nobody() -> None:
    asks = {
        " ".join(path)
        for path, command in _commands(typer.main.get_command(app), ())
        if any(parameter.name in {"user", "user_id"} for parameter in command.params)
    }
    assert asks == {
        "remember",
        "recall",
        "users list",
        "users rotate",
        "users revoke",
        "users whoami",
    }
    for command in (["recall", "x"], ["remember", "x"], ["users", "whoami"]):
        done = CliRunner().invoke(app, command, env={"MEMORY_ES_USER": ""})
        assert isinstance(done.exception, InvalidInput)
        assert done.exception.field == "user"


def _commands(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    groups: dict[str, Any] = getattr(command, "commands", {})
    for name, below in groups.items():
        yield from _commands(below, (*path, name))
    if not groups:
        yield path, command


@pytest.mark.parametrize("nobody", ["", " ", "\t", "\u200b", None, 7, b"ann", [], "a\nb", " ann"])
def test_no_user_is_an_error_on_every_way_in(platform: Platform, nobody: Any) -> None:
    for call in (platform.for_user, platform.add_user, platform.mint):
        with pytest.raises(InvalidInput) as caught:
            call(nobody)
        assert caught.value.field == "user"


def test_an_unknown_user_is_refused(platform: Platform) -> None:
    with pytest.raises(AccessDenied) as caught:
        platform.for_user("somebody that nobody added")
    assert caught.value.code == "unknown_user"
    assert "users add" in str(caught.value)


def _every_use(memory: Memory) -> Iterator[Callable[[], Any]]:
    yield from (lambda recipe=recipe: memory.recall("tea", recipe=recipe) for recipe in PLAIN)
    yield lambda: memory.remember("drinks tea")
    yield lambda: memory.remember("drinks tea", session_id="s")
    yield lambda: list(memory.remember_many([{"text": "drinks tea", "kind": "semantic"}]))


def _assert_refused(platform: Platform, credentials: UserCredentials) -> None:
    for use in _every_use(platform.for_user(credentials)):
        with pytest.raises(AccessDenied) as caught:
            use()
        assert caught.value.code == "unauthenticated"
        assert credentials.api_key.get_secret_value() not in str(caught.value)


def test_a_revoked_key_is_refused_at_once_and_the_service_never_steps_in(
    platform: Platform, user: str
) -> None:
    credentials, _ = platform.add_user(user)
    memory = platform.for_user(credentials)
    memory.remember("drinks tea", kind="semantic")
    assert own(memory.recall("tea", touch=False))
    security.invalidate(platform.service(), [credentials.key_id])
    _assert_refused(platform, credentials)
    renewed, new = platform.add_user(user)  # a new key opens the same memory
    assert new
    assert renewed.id_secret == credentials.id_secret
    assert len(own(platform.for_user(user).recall("tea", touch=False))) == 1


def test_a_key_is_ended_in_the_second_in_which_it_was_made(platform: Platform, user: str) -> None:
    made = [platform.mint(user) for _ in range(3)]
    security.invalidate(platform.service(), [credentials.key_id for credentials in made])
    for credentials in made:
        assert not security.works(platform.client(), credentials)
    security.invalidate(platform.service(), [made[0].key_id])  # once more does no harm


def test_ending_a_key_that_never_was_is_an_error(platform: Platform) -> None:
    with pytest.raises(NotFound, match="nosuchkey") as caught:
        security.invalidate(platform.service(), ["nosuchkey"])
    assert caught.value.code == "no_such_key"
    security.invalidate(platform.service(), [])


def test_an_expired_key_is_refused(platform: Platform, user: str) -> None:
    credentials = platform.mint(user, expiration="1s")
    memory = platform.for_user(credentials)
    assert own(memory.recall("tea", touch=False)) == []
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and security.works(platform.client(), credentials):
        time.sleep(0.1)
    _assert_refused(platform, credentials)


@pytest.mark.parametrize("key", ["", "nonsense", "bm9uc2Vuc2U6bm9uc2Vuc2U="])
def test_a_key_that_is_none_is_refused(platform: Platform, user: str, key: str) -> None:
    wrong = UserCredentials(
        user_id=user, key_id="x", api_key=SecretStr(key), id_secret=SecretStr("y")
    )
    with pytest.raises(AccessDenied) as caught:
        platform.for_user(wrong).recall("tea")
    assert caught.value.code == "unauthenticated"
    with pytest.raises(AccessDenied):
        platform.for_user(wrong).remember("tea")


def test_a_key_under_another_name_opens_nothing_of_that_name(
    platform: Platform, victim: Person, attacker: Person
) -> None:
    posing = attacker.credentials.model_copy(update={"user_id": victim.id})
    memory = platform.for_user(posing)
    if platform.placement.by_index:  # the other's index does not open to this key
        for use in _every_use(memory):
            with pytest.raises(AccessDenied) as caught:
                use()
            assert caught.value.code == "forbidden"
        return
    for recipe in PLAIN:
        assert own(memory.recall(f"the {SECRET} sleeps", recipe=recipe)) == []
    result = memory.remember("planted under another name", kind="semantic")
    owner = _owner_of(
        platform.service(),
        victim.index("semantic"),
        str(result.id),
        victim.routing,
    )
    assert owner["api_key"]["metadata"]["owner_id"] == owner_id(attacker.id)
    assert not any(
        "planted" in hit.text for hit in victim.memory.recall("planted name", touch=False).hits
    )
    platform.service().delete(
        index=victim.index("semantic"),
        id=str(result.id),
        routing=victim.routing,
        refresh=True,
    )


def test_a_secret_is_never_shown(attacker: Person) -> None:
    credentials = attacker.credentials
    for shown in (
        repr(credentials),
        str(credentials),
        f"{credentials}",
        credentials.model_dump_json(),
        str(credentials.model_dump()),
        repr([credentials]),
    ):
        assert credentials.api_key.get_secret_value() not in shown
        assert credentials.id_secret.get_secret_value() not in shown
    assert credentials.revealed()["api_key"] == credentials.api_key.get_secret_value()


def test_keys_are_kept_readable_by_their_owner_only(platform: Platform, attacker: Person) -> None:
    settings = platform.settings
    files = list((settings.state_dir / "users" / settings.prefix).glob("*.json"))
    assert files
    for file in files:
        assert file.stat().st_mode & 0o777 == 0o600
        assert attacker.id not in file.name


def test_a_keys_role_names_one_owner_and_one_prefix(platform: Platform, attacker: Person) -> None:
    placement = platform.placement
    role = security.role_of(attacker.id, placement)
    assert role["cluster"] == []
    granted = {name for grant in role["indices"] for name in grant["names"]}
    assert all(name.startswith(f"{placement.prefix}-") for name in granted)
    assert not any("-state" in name or "-audit" in name for name in granted)
    if placement.by_index:
        own = placement.of_user(attacker.routing)
        catalog = placement.index("catalog")
        assert granted == {own, f"{own}-*", catalog, f"{catalog}-*"}
        return
    for grant in role["indices"]:
        owned = not any(name.endswith(("-catalog", "-catalog-*")) for name in grant["names"])
        assert ("query" in grant) == owned
        if owned:  # the owner is this one, and there is no other
            assert grant["query"]["bool"]["filter"] == [
                {"term": {security.OWNER_FIELD: owner_id(attacker.id)}}
            ]
            assert grant["query"]["bool"]["must_not"] == [
                {"range": {f"{security.OWNER_FIELD}.values": {bound: owner_id(attacker.id)}}}
                for bound in ("lt", "gt")
            ]


# --- I6: hostile user ids -------------------------------------------------------------------


def test_hostile_user_ids_are_separate_users(platform: Platform) -> None:
    people = [person(platform, user) for user in HOSTILE]
    for number, by in enumerate(people):
        rows: list[dict[str, Any]] = [
            {"text": f"my lucky number is {number}", "kind": "semantic"},
            {"text": f"today I saw number {number}", "session_id": "one"},
        ]
        for result in by.memory.remember_many(rows, refresh=False):
            by.ids[str(result.kind)] = str(result.id)
    platform.service().indices.refresh(index=f"{platform.settings.prefix}-*")
    assert len({by.ids["semantic"] for by in people}) == len(HOSTILE)
    assert len({by.credentials.key_id for by in people}) == len(HOSTILE)
    for by in people:
        found = own(by.memory.recall("what is my lucky number?", 50, touch=False))
        assert {hit.id for hit in found} == set(by.ids.values()), by.id
        assert {hit.owner for hit in found} == {by.id}
        for kind in ("semantic", "episodic"):
            of_kind = {"term": {"kind": kind}}
            [pattern] = platform.placement.everybody([Kind(kind)])
            for where, place in (
                (by.index(kind), by.routing),
                (by.index(kind), None),
                (pattern, None),  # a wildcard means one's own
            ):
                found_there = by.client.search(index=where, routing=place, query=of_kind, size=100)
                ids = [hit["_id"] for hit in found_there["hits"]["hits"]]
                assert ids == [by.ids[kind]], (by.id, where)
    if not platform.placement.by_index:
        assert len({_shard(platform, by.id) for by in people}) == 3
    for by in people:  # and their keys are found again by their names
        again, new = platform.add_user(by.id)
        assert not new
        assert again == by.credentials


def test_a_touched_memory_of_a_hostile_user_has_its_usage_row(platform: Platform) -> None:
    for user in ("ann,bob,carl", '"}},{"match_all":{}}', "**"):
        by = person(platform, user)
        id_ = str(by.memory.remember("touch me", kind="semantic").id)
        by.memory.recall("touch me")
        recorder = platform.recorder()
        assert recorder is not None
        recorder.drain()
        reader = platform.service() if platform.placement.by_index else by.client
        row = reader.get(
            index=platform.placement.index("usage"),
            id=usage_id(by.routing, id_),
            routing=by.routing,
        )
        assert row["_source"]["owner"]["api_key"]["metadata"]["owner_id"] == owner_id(user)


@pytest.mark.parametrize(
    "user",
    [
        "",
        " ",
        "\u2028",
        "\u200b",
        "ann ",
        "\tann",
        "ann\x00bob",
        "ann\nbob",
        "ann\x7f",
        "ann\ud800",
        "a" * 248,
        '"' * 124,
        "\N{FOX FACE}" * 124,
    ],
)
def test_other_user_ids_are_refused_by_one_rule_everywhere(platform: Platform, user: str) -> None:
    for call in (platform.for_user, platform.add_user, platform.mint):
        with pytest.raises(InvalidInput) as caught:
            call(user)
        assert caught.value.field == "user"


@pytest.mark.parametrize("user", ["a" * 247, '"' * 123, "\N{FOX FACE}" * 123])
def test_the_longest_user_ids_work(platform: Platform, user: str) -> None:
    by = person(platform, user)
    by.memory.remember("short and sweet", kind="semantic")
    assert [hit.owner for hit in own(by.memory.recall("short", touch=False))] == [user]


# --- I9: ids --------------------------------------------------------------------------------


def test_equal_texts_of_two_users_are_two_documents(
    platform: Platform, victim: Person, attacker: Person
) -> None:
    ids = [
        by.memory.remember("the ferry leaves at nine", kind="semantic").id
        for by in (victim, attacker)
    ]
    assert ids[0] != ids[1]
    _remove(platform, "semantic", [(str(ids[0]), victim), (str(ids[1]), attacker)])


def test_an_id_cannot_be_computed_without_the_users_secret(
    attacker: Person, victim: Person
) -> None:
    text = f"her {SECRET} is called Zephyrine"
    normal = identity(text)
    guesses = {
        hashlib.sha256(text.encode()).hexdigest()[:40],
        hashlib.sha256(normal.encode()).hexdigest()[:40],
        document_id(attacker.credentials.id_secret.get_secret_value(), Kind.SEMANTIC, normal, 0),
        document_id("", Kind.SEMANTIC, normal, 0),
        document_id(victim.id, Kind.SEMANTIC, normal, 0),
        document_id(victim.credentials.key_id, Kind.SEMANTIC, normal, 0),
    }
    assert victim.ids["semantic"] not in guesses
    secret = victim.credentials.id_secret.get_secret_value()
    assert victim.ids["semantic"] == document_id(secret, Kind.SEMANTIC, normal, 0)


def test_no_document_carries_a_hash_that_another_user_could_compare(
    service: Elasticsearch, platform: Platform, victim: Person, attacker: Person
) -> None:
    result = [
        by.memory.remember("same words for both", kind="semantic") for by in (victim, attacker)
    ]
    sources = [
        service.get(index=by.index("semantic"), id=str(found.id), routing=by.routing)["_source"]
        for found, by in zip(result, (victim, attacker), strict=True)
    ]
    assert sources[0]["content_hash"] != sources[1]["content_hash"]
    for by, source in zip((victim, attacker), sources, strict=True):
        assert by.credentials.id_secret.get_secret_value() not in json.dumps(source)
    _remove(
        platform,
        "semantic",
        [(str(found.id), by) for found, by in zip(result, (victim, attacker), strict=True)],
    )


def _remove(platform: Platform, kind: str, places: list[tuple[str, Person]]) -> None:
    for id_, by in places:
        platform.service().delete(index=by.index(kind), id=id_, routing=by.routing, refresh=True)


def test_a_document_planted_under_a_foreign_id_never_makes_a_fact_vanish(
    platform: Platform, service: Elasticsearch, victim: Person, attacker: Person
) -> None:
    text = "the safe opens with 7 3 5"
    secret = victim.credentials.id_secret.get_secret_value()
    stolen = document_id(secret, Kind.SEMANTIC, identity(text), 0)  # as if the secret had leaked
    index = victim.index("semantic")
    planted = plant(attacker, index, victim.routing, _document(), stolen)
    if platform.placement.by_index:
        assert planted["status"] == 403
        return
    assert planted["status"] == 201
    with pytest.raises(Conflict) as caught:
        victim.memory.remember(text, kind="semantic")
    assert caught.value.code == "conflict"
    [result] = victim.memory.remember_many([{"kind": "semantic", "text": text}])
    assert result.status == "failed"
    assert result.id is None
    assert "may not see" in str(result.error)
    assert _owner_of(service, index, stolen, victim.routing)["api_key"]["metadata"]["owner_id"] == (
        owner_id(attacker.id)
    )
    service.delete(index=index, id=stolen, routing=victim.routing, refresh=True)
    assert victim.memory.remember(text, kind="semantic").status == "created"
    _remove(platform, "semantic", [(stolen, victim)])


# --- I10: planted claims --------------------------------------------------------------------


def test_claims_about_another_users_memories_change_nothing_for_that_user(
    platform: Platform, victim: Person, attacker: Person
) -> None:
    queries = (SECRET, "who sleeps behind the orangery?", "what is she called?")

    def seen() -> list[list[tuple[str, dict[str, int]]]]:
        return [
            [(hit.id, hit.ranks) for hit in victim.memory.recall(q, recipe=r, touch=False).hits]
            for q in queries
            for r in PLAIN
        ]

    before = seen()
    assert all(before)
    index = attacker.index("semantic")
    planted: list[dict[str, Any]] = [
        {"supersedes": list(victim.ids.values()), "supersedes_pending": True},
        {"superseded_by": victim.ids["semantic"], "retracted": True},
        {"source_episodes": [victim.ids["episodic"]], "confidence": 1e9},
        {"claimed_by": victim.id, "claimed_until": "2036-01-01T00:00:00Z"},
        {"external_id": victim.ids["semantic"], "tags": [f"{SECRET}-tag"]},
        {"text": f"the {SECRET} " * 50},
    ]
    made = []
    for place in (victim.routing, attacker.routing):
        for claim in planted:
            answer = plant(attacker, index, place, _document(**claim))
            assert answer["status"] == 201
            made.append((answer["_id"], place))
    assert seen() == before
    for id_, place in made:
        platform.service().delete(index=index, id=id_, routing=place)
    platform.service().indices.refresh(index=index)


@pytest.mark.parametrize(
    "claim",
    [
        {"pinned": True},
        {"use_count": 999_999},
        {"last_used_at": "2036-01-01T00:00:00Z"},
        {"success_count": 7},
        {"score": 1},
        {"passages": [{"start": 0, "end": 1, "owner": "x"}]},
    ],
)
def test_fields_that_a_memory_does_not_have_are_refused(
    attacker: Person, claim: dict[str, Any]
) -> None:
    index = attacker.index("semantic")
    outcome = plant(attacker, index, attacker.routing, _document(**claim))
    assert outcome["status"] == 400
    assert outcome["error"]["type"] == "strict_dynamic_mapping_exception"


@pytest.mark.parametrize(
    "claim",
    [
        {"text": None},
        {"event_time": None},
        {"created_at": None},
        {"confidence": -1e9},
        {"confidence": 1e9},
        {"event_time": 1_767_225_600_000},
        {"event_time": "2026"},
        {"event_time": "2026-01-01T00:00:00"},
        {"text": ["two", "texts"]},
        {"confidence": "0.5"},
        {"confidence": [0.5, 0.7]},
        {"kind": "catalog"},
        {"owner": "nobody"},
        {"tags": "one"},
    ],
)
def test_a_document_that_a_key_wrote_by_hand_does_not_break_its_owners_recall(
    platform: Platform, user: str, claim: dict[str, Any]
) -> None:
    by = person(platform, user)
    by.memory.remember("I planted a walnut tree", kind="semantic")
    document = _document(text="I planted a fact") | claim
    written = {key: value for key, value in document.items() if value is not None}
    outcome = plant(by, by.index("semantic"), by.routing, written)
    assert outcome["status"] == 201
    result = by.memory.recall("what did I plant?", touch=False)
    assert "I planted a walnut tree" in {hit.text for hit in result.hits}
    for hit in result.hits:
        assert 0 <= hit.score <= 1
        assert all(-1 <= value <= 1 for value in hit.priors.values())


def test_a_foreign_id_and_one_that_never_was_look_the_same(
    victim: Person, attacker: Person
) -> None:
    answers = []
    for id_ in (victim.ids["semantic"], "0" * 40):
        status, body = attacker.ask(
            "GET",
            f"/{victim.index('semantic')}/_doc/{id_}?routing={victim.routing}",
        )
        answers.append((status, body.replace(id_, "ID")))
    assert answers[0] == answers[1]
