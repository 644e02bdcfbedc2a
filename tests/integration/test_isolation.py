"""Isolation enforced by the cluster, on three shards: CASEBOOK I1-I4, I6, I9, I10.

The attacker is a user whose raw key talks to Elasticsearch itself. Every probe is sent twice:
with the victim's key it must find something (or it would prove nothing), with the attacker's it
must find nothing of the victim.
"""

from __future__ import annotations

import hashlib
import json
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import elasticsearch
import pytest
from elasticsearch import Elasticsearch
from pydantic import SecretStr

from memory_es import Memory, Platform, security
from memory_es.credentials import UserCredentials
from memory_es.errors import AccessDenied, Conflict, InvalidInput, NotFound
from memory_es.placement import alias
from memory_es.queries import RECIPES
from memory_es.requests import Hit, RecallResult
from memory_es.schema import OWNED, Kind
from memory_es.store import Store
from memory_es.text import document_id, identity, routing
from memory_es.usage import Touch, apply_touches

NewPlatform = Callable[..., Platform]
PLAIN = [name for name, recipe in RECIPES.items() if not recipe.rerank]
#: Words, tags and names that only the victim's memories have.
SECRET = "quagga"
NAMES = ["alias", "index"]


@pytest.fixture(scope="module")
def platform(new_platform: NewPlatform) -> Platform:
    """A deployment of this module's own, so that documents can be counted."""
    return new_platform()


@pytest.fixture(scope="module")
def service(platform: Platform) -> Elasticsearch:
    """The service's client on this deployment."""
    return platform.service()


@dataclass
class Person:
    """A user, the raw key and what was written."""

    id: str
    credentials: UserCredentials
    memory: Memory
    client: Elasticsearch
    ids: dict[str, str] = field(default_factory=dict)
    vector: list[float] = field(default_factory=list)

    @property
    def routing(self) -> str:
        return routing(self.id)

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
    return Person(user, credentials, platform.for_user(credentials), client)


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
    store = Store(platform.service(), platform.settings.prefix)
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
    answer = platform.service().search_shards(
        index=alias(platform.settings.prefix, "episodic"), routing=routing(user)
    )
    return int(answer["shards"][0][0]["shard"])


def index_name(platform: Platform, kind: str, name: str) -> str:
    """An index by its alias or by its own name."""
    return alias(platform.settings.prefix, kind) + ("-000001" if name == "index" else "")


def own(result: RecallResult) -> list[Hit]:
    """The hits without the catalog's, which belong to everybody."""
    return [hit for hit in result.hits if hit.kind is not Kind.CATALOG]


def marks(victim: Person) -> set[str]:
    return {SECRET, "Zephyrine", "orangery", victim.id, *victim.ids.values()}


def leaked(answer: str, victim: Person, request: str) -> set[str]:
    """What of the victim stands in an answer without having stood in the request."""
    return {mark for mark in marks(victim) if mark in answer and mark not in request}


# --- I3: reading ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Probe:
    """A request for data of the victim. ``{index}``, ``{id}``, … are filled in."""

    method: str
    path: str
    body: Any = None


def _search(**body: Any) -> Probe:
    return Probe("POST", "/{index}/_search", body)


def _aggregate(**aggregation: Any) -> Probe:
    return _search(size=0, aggs={"probe": aggregation})


READS: dict[str, Probe] = {
    "everything": _search(query={"match_all": {}}),
    "everything by routing": Probe("POST", "/{index}/_search?routing={routing}", {}),
    "query string": Probe("GET", "/{index}/_search?q=*&routing={routing}"),
    "exact words": _search(query={"match": {"content.english": "quagga"}}),
    "phrase": _search(query={"match_phrase": {"content.standard": "quagga"}}),
    "simple query string": _search(
        query={"simple_query_string": {"query": "quag*", "fields": ["content.*"]}}
    ),
    "wildcard": _search(query={"wildcard": {"content.standard": "quag*"}}),
    "fuzzy": _search(query={"fuzzy": {"content.standard": "quaggo"}}),
    "regular expression": _search(query={"regexp": {"content.standard": "quag.."}}),
    "owner": _search(query={"term": {"user_id": "{user}"}}),
    "owner's own field": _search(query={"term": {"owner.api_key.metadata.user_id": "{user}"}}),
    "owner or anything": _search(
        query={"bool": {"should": [{"term": {"user_id": "{user}"}}, {"match_all": {}}]}}
    ),
    "owner by prefix": _search(query={"prefix": {"user_id": "victim"}}),
    "not mine": _search(query={"bool": {"must_not": {"term": {"user_id": "{attacker}"}}}}),
    "owner exists": _search(query={"exists": {"field": "user_id"}}),
    "ids": _search(query={"ids": {"values": ["{id}"]}}),
    "terms lookup": _search(
        query={
            "terms": {
                "content_hash": {
                    "index": "{index}",
                    "id": "{id}",
                    "path": "content_hash",
                    "routing": "{routing}",
                }
            }
        }
    ),
    "knn query": _search(
        query={"knn": {"field": "embedding", "query_vector": "{vector}", "k": 50}}
    ),
    "knn section": _search(
        knn={"field": "embedding", "query_vector": "{vector}", "k": 50, "num_candidates": 1000}
    ),
    "knn retriever": _search(
        retriever={
            "knn": {
                "field": "embedding",
                "query_vector": "{vector}",
                "k": 50,
                "num_candidates": 1000,
                "filter": {"term": {"user_id": "{user}"}},
            }
        }
    ),
    "function score": _search(query={"function_score": {"random_score": {}}}),
    "sorted": _search(query={"match_all": {}}, sort=["user_id"], track_total_hits=True),
    "fields": _search(fields=["*"], docvalue_fields=["user_id"], stored_fields=["_routing"]),
    "highlight": _search(
        query={"match": {"content.standard": "quagga"}}, highlight={"fields": {"*": {}}}
    ),
    "explained": _search(query={"match": {"content.standard": "quagga"}}, explain=True),
    "collapsed": _search(collapse={"field": "user_id", "inner_hits": {"name": "all"}}),
    "rescored": _search(
        rescore={"query": {"rescore_query": {"match": {"content.standard": "quagga"}}}}
    ),
    "global aggregation": _aggregate(
        **{"global": {}, "aggs": {"who": {"terms": {"field": "user_id"}}}}
    ),
    "owners": _aggregate(terms={"field": "user_id", "size": 1_000}),
    "owners in the order of terms": _aggregate(
        terms={"field": "user_id", "order": {"_key": "asc"}}
    ),
    "owners that are missing": _aggregate(terms={"field": "user_id", "missing": "nobody"}),
    "owners without documents": _aggregate(terms={"field": "user_id", "min_doc_count": 0}),
    "rare owners": _aggregate(rare_terms={"field": "user_id", "max_doc_count": 100}),
    "hashes": _aggregate(terms={"field": "content_hash", "size": 1_000}),
    "significant hashes": _aggregate(
        significant_terms={"field": "content_hash", "min_doc_count": 1}
    ),
    "composite": _aggregate(composite={"sources": [{"who": {"terms": {"field": "user_id"}}}]}),
    "number of owners": _aggregate(cardinality={"field": "user_id"}),
    "filters": _aggregate(
        filters={"filters": {"victim": {"term": {"user_id": "{user}"}}}},
        aggs={"top": {"top_hits": {"size": 10}}},
    ),
    "sampled": _aggregate(sampler={"shard_size": 100}, aggs={"t": {"top_hits": {"size": 10}}}),
    "count": Probe("POST", "/{index}/_count", {"query": {"term": {"user_id": "{user}"}}}),
    "get": Probe("GET", "/{index}/_doc/{id}?routing={routing}"),
    "get not in real time": Probe("GET", "/{index}/_doc/{id}?routing={routing}&realtime=false"),
    "source": Probe("GET", "/{index}/_source/{id}?routing={routing}"),
    "mget": Probe("POST", "/{index}/_mget", {"docs": [{"_id": "{id}", "routing": "{routing}"}]}),
    "msearch": Probe(
        "POST",
        "/_msearch",
        [
            {"index": "{index}", "routing": "{routing}"},
            {"query": {"match": {"content.standard": "quagga"}}},
            {"index": "*", "ignore_unavailable": True},
            {"query": {"ids": {"values": ["{id}"]}}},
        ],
    ),
    "scroll": Probe("POST", "/{index}/_search?scroll=1m", {"size": 100}),
    "all indices": Probe("POST", "/_search", {"query": {"ids": {"values": ["{id}"]}}}),
    "all indices by a wildcard": Probe(
        "POST", "/*/_search?routing={routing}", {"query": {"ids": {"values": ["{id}"]}}}
    ),
}
_REFUSED: dict[str, tuple[str, str, Any]] = {
    "explain": (
        "POST",
        "/{index}/_explain/{id}?routing={routing}",
        {"query": {"match_all": {}}},
    ),
    "term vectors": ("GET", "/{index}/_termvectors/{id}?routing={routing}&fields=*", None),
    "term vectors of a text": (
        "POST",
        "/{index}/_termvectors?routing={routing}",
        {"doc": {"text": "quagga"}, "term_statistics": True, "fields": ["content.standard"]},
    ),
    "many term vectors": ("POST", "/{index}/_mtermvectors", {"ids": ["{id}"]}),
    "terms of a field": ("POST", "/{index}/_terms_enum", {"field": "user_id", "string": "v"}),
    "field capabilities": ("GET", "/{index}/_field_caps?fields=*", None),
    "mapping": ("GET", "/{index}/_mapping", None),
    "settings": ("GET", "/{index}/_settings", None),
    "statistics": ("GET", "/{index}/_stats", None),
    "segments": ("GET", "/{index}/_segments", None),
    "shards": ("GET", "/{index}/_search_shards?routing={routing}", None),
    "validation": ("GET", "/{index}/_validate/query?q=quagga&explain=true", None),
    "rank evaluation": (
        "POST",
        "/{index}/_rank_eval",
        {
            "requests": [
                {
                    "id": "q",
                    "request": {"query": {"match_all": {}}},
                    "ratings": [{"_index": "{index}", "_id": "{id}", "rating": 1}],
                }
            ],
            "metric": {"precision": {}},
        },
    ),
    "more like this": (
        "POST",
        "/{index}/_search",
        {
            "query": {
                "more_like_this": {
                    "fields": ["content.standard"],
                    "like": [{"_index": "{index}", "_id": "{id}", "routing": "{routing}"}],
                    "min_term_freq": 1,
                    "min_doc_freq": 1,
                }
            }
        },
    ),
    "suggestions": (
        "POST",
        "/{index}/_search",
        {"suggest": {"s": {"text": "quaggo", "term": {"field": "content.standard"}}}},
    ),
    "profile": ("POST", "/{index}/_search", {"profile": True, "query": {"match_all": {}}}),
    "cluster state": ("GET", "/_cluster/state", None),
    "node statistics": ("GET", "/_nodes/stats", None),
    "all indices listed": ("GET", "/_cat/indices", None),
    "other keys": ("GET", "/_security/api_key", None),
    "users": ("GET", "/_security/user", None),
    "security index": ("GET", "/.security/_search", None),
    "snapshots": ("GET", "/_snapshot", None),
    "tasks": ("GET", "/_tasks", None),
    "templates": ("GET", "/_index_template", None),
    "pipelines": ("GET", "/_ingest/pipeline", None),
    "state rows": ("GET", "/{state}/_search", None),
    "a key of one's own making": (
        "POST",
        "/_security/api_key",
        {"name": "mine", "metadata": {"user_id": "{user}"}},
    ),
    "running as another": ("GET", "/_security/user/elastic", None),
}
FORBIDDEN = {name: Probe(*request) for name, request in _REFUSED.items()}


def filled(node: Any, values: dict[str, Any]) -> Any:
    if isinstance(node, dict):
        return {key: filled(item, values) for key, item in node.items()}
    if isinstance(node, list):
        return [filled(item, values) for item in node]
    if isinstance(node, str):
        if node.startswith("{") and node[1:-1] in values:
            return values[node[1:-1]]
        for name, value in values.items():
            node = node.replace("{" + name + "}", str(value))
    return node


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
    index = index_name(platform, kind, name)
    values = {
        "index": index,
        "id": victim.ids["semantic" if kind == "usage" else kind],
        "routing": victim.routing,
        "user": victim.id,
        "attacker": attacker.id,
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
    number = '"count": 1' in answer or '"value": 1' in answer
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


def test_counts_count_ones_own(platform: Platform, victim: Person, attacker: Person) -> None:
    for kind in OWNED:
        for name in NAMES:
            index = index_name(platform, kind, name)
            assert attacker.client.count(index=index)["count"] == 1
            assert victim.client.count(index=index)["count"] == 1
            foreign = {"term": {"user_id": victim.id}}
            assert attacker.client.count(index=index, query=foreign)["count"] == 0
            owners = attacker.client.search(
                index=index,
                size=0,
                aggs={
                    "owners": {"terms": {"field": "user_id"}},
                    "n": {"value_count": {"field": "kind"}},
                    "victim": {"filter": foreign},
                    "number": {"cardinality": {"field": "user_id"}},
                },
            )["aggregations"]
            assert [bucket["key"] for bucket in owners["owners"]["buckets"]] == [attacker.id]
            assert owners["n"]["value"] == owners["number"]["value"] == 1
            assert owners["victim"]["doc_count"] == 0


def test_a_point_in_time_and_a_scroll_show_ones_own(
    platform: Platform, victim: Person, attacker: Person
) -> None:
    index = alias(platform.settings.prefix, "semantic")
    for by in (attacker, victim):
        point = by.client.open_point_in_time(index=index, keep_alive="1m")["id"]
        hits = by.client.search(pit={"id": point, "keep_alive": "1m"}, size=1_000)["hits"]["hits"]
        assert {hit["_id"] for hit in hits} == {by.ids["semantic"]}
        by.client.close_point_in_time(id=point)
        page = by.client.search(index=index, scroll="1m", size=1)
        found = [hit["_id"] for hit in page["hits"]["hits"]]
        page = by.client.scroll(scroll_id=page["_scroll_id"], scroll="1m")
        assert [*found, *page["hits"]["hits"]] == [by.ids["semantic"]]


def test_a_scroll_or_point_in_time_of_another_user_cannot_be_read_on(
    platform: Platform, victim: Person, attacker: Person
) -> None:
    index = alias(platform.settings.prefix, "semantic")
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
    "as it is": lambda user: {"owner": {"api_key": {"metadata": {"user_id": user}}}},
    "many": lambda user: {"owner": {"api_key": {"metadata": {"user_id": [user, "x"]}}}},
    "a list of owners": lambda user: {"owner": [{"api_key": {"metadata": {"user_id": user}}}]},
    "a list of keys": lambda user: {"owner": {"api_key": [{"metadata": {"user_id": user}}]}},
    "dots": lambda user: {"owner.api_key.metadata.user_id": user},
    "dots to the metadata": lambda user: {"owner.api_key.metadata": {"user_id": user}},
    "dots to the key": lambda user: {"owner.api_key": {"metadata": {"user_id": user}}},
    "dots inside": lambda user: {"owner": {"api_key.metadata.user_id": user}},
    "dots inside to the metadata": lambda user: {"owner": {"api_key.metadata": {"user_id": user}}},
    "dots inside the key": lambda user: {"owner": {"api_key": {"metadata.user_id": user}}},
    "both": lambda user: {
        "owner": {"api_key": {"metadata": {"user_id": user}, "metadata.user_id": [user]}},
        "owner.api_key.metadata.user_id": [user, user],
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
    index, text = index_name(platform, "semantic", name), "the safest bank is planted"
    document = _document(text=text) | FORGED[way](victim.id)
    options = {"pipeline": pipeline} if pipeline else {}
    planted = plant(attacker, index, victim.routing, document, **options)
    assert planted["status"] == 201, planted
    try:
        stamp = _owner_of(service, index, planted["_id"], victim.routing)
        assert stamp["api_key"]["metadata"]["user_id"] == attacker.id
        with pytest.raises(elasticsearch.NotFoundError):
            victim.client.get(index=index, id=planted["_id"], routing=victim.routing)
        by_id = {"ids": {"values": [planted["_id"]]}}
        assert victim.client.count(index=index, query=by_id)["count"] == 0
        for recipe in ("bm25", "lexical"):
            found = victim.memory.recall("which bank is safest?", recipe=recipe, touch=False)
            assert text not in {hit.text for hit in found.hits}
    finally:
        service.delete(index=index, id=planted["_id"], routing=victim.routing, refresh=True)


def test_an_owner_given_under_its_short_name_is_refused(
    platform: Platform, victim: Person, attacker: Person
) -> None:
    index = alias(platform.settings.prefix, "semantic")
    for claim in ({"user_id": victim.id}, {"owner.api_key.metadata.user_id.values": victim.id}):
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
            query={"terms": {"owner.api_key.metadata.user_id": [victim.id, attacker.id]}},
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


WRITES: dict[str, Probe] = {
    "overwrite": Probe("PUT", "/{index}/_doc/{id}?routing={routing}", {"kind": "semantic"}),
    "overwrite its own": Probe("PUT", "/{index}/_doc/{mine}?routing={place}", {"kind": "x"}),
    "update": Probe("POST", "/{index}/_update/{id}?routing={routing}", {"doc": {"revision": 7}}),
    "update its own": Probe(
        "POST", "/{index}/_update/{mine}?routing={place}", {"doc": {"kind": "x"}}
    ),
    "upsert": Probe(
        "POST",
        "/{index}/_update/{id}?routing={routing}",
        {"doc": {"revision": 7}, "doc_as_upsert": True},
    ),
    "delete": Probe("DELETE", "/{index}/_doc/{id}?routing={routing}"),
    "delete its own": Probe("DELETE", "/{index}/_doc/{mine}?routing={place}"),
    "delete by query": Probe("POST", "/{index}/_delete_by_query", {"query": {"match_all": {}}}),
    "update by query": Probe("POST", "/{index}/_update_by_query", {"query": {"match_all": {}}}),
    "reindex": Probe(
        "POST", "/_reindex", {"source": {"index": "{index}"}, "dest": {"index": "{index}-copy"}}
    ),
    "creation outside of a bulk": Probe("POST", "/{index}/_doc?routing={place}", {"kind": "x"}),
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
        "index": index_name(platform, "semantic", name),
        "alias": alias(platform.settings.prefix, "semantic"),
        "stamp": f"{platform.settings.prefix}-stamp",
        "id": victim.ids["semantic"],
        "routing": victim.routing,
        "mine": attacker.ids["semantic"],
        "place": attacker.routing,
        "key": victim.credentials.key_id,
    }
    sent = WRITES[probe]
    status, answer = attacker.ask(sent.method, filled(sent.path, values), filled(sent.body, values))
    assert 400 <= status < 500, f"{status}: {answer}"
    assert status != 409, answer
    assert security.works(platform.client(), victim.credentials)


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("name", NAMES)
def test_a_bulk_changes_and_deletes_nothing(
    platform: Platform, victim: Person, attacker: Person, name: str
) -> None:
    index = index_name(platform, "semantic", name)
    operations: list[dict[str, Any]] = []
    for by in (victim, attacker):
        place = {"_index": index, "_id": by.ids["semantic"], "routing": by.routing}
        operations += [{"delete": place}]
        operations += [{"update": place}, {"doc": {"revision": 7}}]
        operations += [{"index": place}, _document()]
    others = [index_name(platform, row, name) for row in ("usage", "state", "catalog")]
    for other in (*others, f"{alias(platform.settings.prefix, 'semantic')}-000099", "elsewhere"):
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


@pytest.mark.parametrize("nobody", ["", " ", "\t", "\u200b", None, 7, b"ann", [], "a\nb", " ann"])
def test_no_user_is_an_error_on_every_way_in(platform: Platform, nobody: Any) -> None:
    for call in (platform.for_user, platform.add_user, platform.mint):
        with pytest.raises(InvalidInput) as caught:
            call(nobody)
        assert caught.value.field == "user"


def test_an_unknown_user_is_refused(platform: Platform) -> None:
    with pytest.raises(AccessDenied) as caught:
        platform.for_user("somebody that nobody added")
    assert caught.value.code == "no_key"
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
    platform: Platform, service: Elasticsearch, user: str
) -> None:
    credentials, _ = platform.add_user(user)
    memory = platform.for_user(credentials)
    memory.remember("drinks tea", kind="semantic")
    assert own(memory.recall("tea", touch=False))
    security.invalidate(service, [credentials.key_id])
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
    for recipe in PLAIN:
        assert own(memory.recall(f"the {SECRET} sleeps", recipe=recipe)) == []
    result = memory.remember("planted under another name", kind="semantic")
    owner = _owner_of(
        platform.service(),
        alias(platform.settings.prefix, "semantic"),
        str(result.id),
        victim.routing,
    )
    assert owner["api_key"]["metadata"]["user_id"] == attacker.id
    assert not any(
        "planted" in hit.text for hit in victim.memory.recall("planted name", touch=False).hits
    )
    platform.service().delete(
        index=alias(platform.settings.prefix, "semantic"),
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


def test_keys_are_kept_readable_by_their_owner_only(state_dir: Path, attacker: Person) -> None:
    files = list((state_dir / "users").rglob("*.json"))
    assert files
    for file in files:
        assert file.stat().st_mode & 0o777 == 0o600
        assert attacker.id not in file.name


def test_a_keys_role_names_one_owner_and_one_prefix(platform: Platform, attacker: Person) -> None:
    role = security.role_of(attacker.id, platform.settings.prefix)
    assert role["cluster"] == []
    for grant in role["indices"]:
        assert all(name.startswith(f"{platform.settings.prefix}-") for name in grant["names"])
        owned = not any(name.endswith(("-catalog", "-catalog-*")) for name in grant["names"])
        assert ("query" in grant) == owned
        if owned:  # the owner is this one, and there is no other
            assert grant["query"]["bool"]["filter"] == [
                {"term": {security.OWNER_FIELD: attacker.id}}
            ]
            assert grant["query"]["bool"]["must_not"] == [
                {"range": {f"{security.OWNER_FIELD}.values": {bound: attacker.id}}}
                for bound in ("lt", "gt")
            ]
    granted = {name for grant in role["indices"] for name in grant["names"]}
    assert f"{platform.settings.prefix}-state" not in granted


# --- I6: hostile user ids -------------------------------------------------------------------

HOSTILE = [
    "ann",
    "Ann",
    "ANN",
    "ann smith",
    "ann,bob",
    "bob,ann",
    "bob",
    ",",
    '"ann"',
    "'ann'",
    "ann\\",
    '"},{"match_all":{}}',
    "*",
    "?",
    "_all",
    "_",
    "-ann",
    "+ann",
    ".",
    "..",
    "../ann",
    "ann/../bob",
    "/etc/passwd",
    "%61nn",
    "ann%2Cbob",
    "{{ann}}",
    "{{_user.metadata.user_id}}",
    "${jndi:ldap://x}",
    "null",
    "true",
    "0",
    "memory:ann",
    "a" * 200,
    "a" * 199 + "b",
    "ä" * 100,
    "\u00e9",  # é as one character
    "e\u0301",  # and as two: another user
    "王小明",
    "สมชาย",
    "علی",
    "\N{FOX FACE}",
    "\N{FOX FACE}" * 120,
    "a\u200bb",
    "ab",
    "ß",
    "ss",
    "i",
    "\u0130",
    "\u0131",
]


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
            everything = by.client.search(
                index=alias(platform.settings.prefix, kind), size=100, routing=by.routing
            )
            assert [hit["_id"] for hit in everything["hits"]["hits"]] == [by.ids[kind]], by.id
            anywhere = by.client.search(index=alias(platform.settings.prefix, kind), size=100)
            assert [hit["_id"] for hit in anywhere["hits"]["hits"]] == [by.ids[kind]], by.id
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
        row = by.client.get(
            index=alias(platform.settings.prefix, "usage"), id=id_, routing=by.routing
        )
        assert row["_source"]["owner"]["api_key"]["metadata"]["user_id"] == user


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
        service.get(
            index=alias(platform.settings.prefix, "semantic"), id=str(found.id), routing=by.routing
        )["_source"]
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
        platform.service().delete(
            index=alias(platform.settings.prefix, kind), id=id_, routing=by.routing, refresh=True
        )


def test_a_document_planted_under_a_foreign_id_never_makes_a_fact_vanish(
    platform: Platform, service: Elasticsearch, victim: Person, attacker: Person
) -> None:
    text = "the safe opens with 7 3 5"
    secret = victim.credentials.id_secret.get_secret_value()
    stolen = document_id(secret, Kind.SEMANTIC, identity(text), 0)  # as if the secret had leaked
    index = alias(platform.settings.prefix, "semantic")
    assert plant(attacker, index, victim.routing, _document(), stolen)["status"] == 201
    with pytest.raises(Conflict) as caught:
        victim.memory.remember(text, kind="semantic")
    assert caught.value.code == "conflict"
    [result] = victim.memory.remember_many([{"kind": "semantic", "text": text}])
    assert result.status == "failed"
    assert result.id is None
    assert "may not see" in str(result.error)
    assert _owner_of(service, index, stolen, victim.routing)["api_key"]["metadata"]["user_id"] == (
        attacker.id
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
    index = alias(platform.settings.prefix, "semantic")
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
    platform: Platform, attacker: Person, claim: dict[str, Any]
) -> None:
    index = alias(platform.settings.prefix, "semantic")
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
    outcome = plant(by, alias(platform.settings.prefix, "semantic"), by.routing, written)
    assert outcome["status"] == 201
    result = by.memory.recall("what did I plant?", touch=False)
    assert "I planted a walnut tree" in {hit.text for hit in result.hits}
    for hit in result.hits:
        assert 0 <= hit.score <= 1
        assert all(-1 <= value <= 1 for value in hit.priors.values())


def test_a_foreign_id_and_one_that_never_was_look_the_same(
    platform: Platform, victim: Person, attacker: Person
) -> None:
    answers = []
    for id_ in (victim.ids["semantic"], "0" * 40):
        status, body = attacker.ask(
            "GET",
            f"/{alias(platform.settings.prefix, 'semantic')}/_doc/{id_}?routing={victim.routing}",
        )
        answers.append((status, body.replace(id_, "ID")))
    assert answers[0] == answers[1]
