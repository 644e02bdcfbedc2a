"""A property over drawn users, writes and ways of reading: nobody sees anything of anybody else.

``--probes N`` sets how many are drawn in each mode of isolation (1,000 here, 10,000 in
``scripts/soak``). The draw is derandomised: the same probes every time.
"""

from __future__ import annotations

import collections
import itertools
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import elasticsearch
import pytest
from elastic_transport import ObjectApiResponse
from elasticsearch import Elasticsearch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from memory_es import Memory, Platform, keyring
from memory_es.cli import app
from memory_es.credentials import UserCredentials
from memory_es.errors import MemoryEsError
from memory_es.queries import RECIPES
from memory_es.schema import OWNED, Kind
from memory_es.text import owner_id, routing, usage_id
from tests.attacks import FORBIDDEN, HOSTILE, READS, Probe, filled
from tests.doubles import HashingEmbedder

USERS = [*HOSTILE, *(f"user {number}" for number in range(50))][:50]
#: What everybody writes about, so that everybody's memories look alike.
SHARED = "lantern"
RECIPE_NAMES = [name for name, recipe in RECIPES.items() if not recipe.rerank]


def _search(**body: Any) -> Probe:
    return Probe("POST", "/{index}/_search", body)


_TEXT = "content.standard"
#: Ways of reading beside those of ``attacks``: oracles by statistics, several steps, other doors.
MORE: dict[str, Probe] = {
    "significant text": _search(
        query={"match": {_TEXT: SHARED}},
        aggs={"s": {"significant_text": {"field": _TEXT, "min_doc_count": 1}}},
    ),
    "significant terms against others": _search(
        aggs={
            "s": {
                "significant_terms": {
                    "field": "tags",
                    "min_doc_count": 1,
                    "background_filter": {"term": {"owner_id": "{owner}"}},
                }
            }
        }
    ),
    "more like a text": _search(
        query={
            "more_like_this": {
                "fields": [_TEXT],
                "like": ["{word} " + SHARED],
                "min_term_freq": 1,
                "min_doc_freq": 1,
                "minimum_should_match": 1,
            }
        }
    ),
    "phrase prefix": _search(query={"match_phrase_prefix": {_TEXT: "{stem}"}}),
    "terms by prefix": _search(query={"prefix": {_TEXT: {"value": "{stem}"}}}),
    "inner hits": _search(
        query={
            "nested": {
                "path": "passages",
                "query": {"match_all": {}},
                "inner_hits": {},
                "ignore_unmapped": True,
            }
        }
    ),
    "top hits of filters": _search(
        size=0,
        aggs={
            "f": {
                "filters": {"filters": {"w": {"match": {_TEXT: "{word}"}}}},
                "aggs": {"t": {"top_hits": {"size": 3, "_source": True}}},
            }
        },
    ),
    "adjacency": _search(
        size=0,
        aggs={
            "a": {
                "adjacency_matrix": {
                    "filters": {
                        "word": {"match": {_TEXT: "{word}"}},
                        "owner": {"term": {"owner_id": "{owner}"}},
                    }
                }
            }
        },
    ),
    "usage rows": Probe("POST", "/{prefix}-usage/_search", {"size": 1_000}),
    "a usage row": Probe("GET", "/{prefix}-usage/_doc/{usage}?routing={routing}"),
    "audit": Probe("POST", "/{prefix}-audit/_search", {}),
    "everything of the deployment": Probe("POST", "/{prefix}-*/_search", {"size": 1_000}),
    "every user's index": Probe(
        "POST", "/{prefix}-user-*/_search?ignore_unavailable=true", {"size": 1_000}
    ),
}
DIRECT = {**READS, **FORBIDDEN, **MORE}
#: Steps that are not one request.
DOORS = ("recall", "owned", "point in time", "scroll", "whoami", "remember", "command line")


@dataclass
class Person:
    """A user of the world with what only this user has."""

    user: str
    word: str
    credentials: UserCredentials
    memory: Memory
    client: Elasticsearch
    ids: dict[str, str] = field(default_factory=dict)


@dataclass
class World:
    """Everybody, and how to tell whose a piece of an answer is."""

    platform: Platform
    people: list[Person]
    owner_of_word: dict[str, str]
    owner_of_id: dict[str, str] = field(default_factory=dict)
    vector: list[float] = field(default_factory=list)
    writes: int = 0
    done: collections.Counter[str] = field(default_factory=collections.Counter)
    found: collections.Counter[str] = field(default_factory=collections.Counter)

    def write(self, by: Person, kind: Kind, number: int) -> None:
        """One more memory of a person, which only this person may ever see."""
        fields: dict[str, Any] = {"kind": kind, "tags": [by.word], "metadata": {"mark": by.word}}
        if kind is Kind.EPISODIC:
            fields |= {"session_id": f"{by.word}-s", "speaker": by.word}
        if kind is Kind.PROCEDURAL:
            fields |= {"name": f"{by.word} {number}", "steps": [f"light the {by.word}"]}
        text = f"the {SHARED} of {by.word} hangs at hook {number}"
        result = by.memory.remember(text, **fields)
        self.owner_of_id[str(result.id)] = by.user
        by.ids[kind] = str(result.id)
        self.writes += 1

    def leaks(self, answer: Any, reader: Person, request: str) -> set[str]:
        """What in an answer is somebody else's. A word, id or owner that stood in the request may
        be echoed, but never as a document, its source or a count."""
        others = {person.user for person in self.people} - {reader.user}
        owners = {owner_id(user) for user in others}
        found: set[str] = set()
        for node in _dicts(answer):
            whose = self.owner_of_id.get(str(node.get("_id")))
            read = node.get("found") is not False and "error" not in node
            if whose not in (None, reader.user) and read:
                found.add(f"document of {whose}")
            if "_source" in node or "fields" in node:
                text = json.dumps(node, ensure_ascii=False)
                found |= {
                    f"words of {user}"
                    for word, user in self.owner_of_word.items()
                    if user in others and word in text
                }
        for text in _strings(answer):
            if text in owners and json.dumps(text) not in request:
                found.add(f"owner {text}")
            if self.owner_of_id.get(text) in others and text not in request:
                found.add(f"id of {self.owner_of_id[text]}")
            found |= {
                f"word of {user}"
                for word, user in self.owner_of_word.items()
                if user in others and word in text and word not in request
            }
        return found


def _dicts(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        yield node
        for item in node.values():
            yield from _dicts(item)
    elif isinstance(node, list):
        for item in node:
            yield from _dicts(item)


def _strings(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        yield from (str(key) for key in node)
        for item in node.values():
            yield from _strings(item)
    elif isinstance(node, list):
        for item in node:
            yield from _strings(item)
    elif isinstance(node, str):
        yield node


@pytest.fixture(scope="module", params=["dls", "index"])
def world(new_platform: Callable[..., Platform], request: pytest.FixtureRequest) -> World:
    """Fifty users with a memory of each kind, and a catalog that belongs to all."""
    mode = str(request.param)
    platform = new_platform(
        isolation=mode, on="trial" if mode == "dls" else "basic", embedder=HashingEmbedder()
    )
    people = []
    for number, user in enumerate(USERS):
        credentials, _ = platform.add_user(user)
        people.append(
            Person(
                user,
                f"zq{number:02d}{'bcdfghjklm'[number % 10]}ux",
                credentials,
                platform.for_user(credentials),
                platform.client().options(api_key=credentials.api_key.get_secret_value()),
            )
        )
    made = World(platform, people, {person.word: person.user for person in people})
    made.vector = [float(value) for value in platform.embedder().query(SHARED)]
    for person in people:
        for kind in OWNED:
            made.write(person, kind, 0)
    platform.write_catalog([{"kind": "catalog", "text": f"A {SHARED} belongs to everybody"}])
    return made


def _values(world: World, reader: Person, victim: Person, kind: str, name: str) -> dict[str, Any]:
    placement = world.platform.placement
    place = routing(victim.user)
    target = placement.index(kind, place)
    patterns = {
        "alias": target,
        "index": f"{target}-000001",
        "pattern": f"{placement.everybody([Kind(kind)])[0]}*",
    }
    return {
        "index": patterns[name],
        "id": victim.ids[kind],
        "usage": usage_id(place, victim.ids[kind]),
        "routing": place,
        "user": victim.user,
        "owner": owner_id(victim.user),
        "attacker": owner_id(reader.user),
        "vector": world.vector,
        "state": placement.index("state"),
        "prefix": placement.prefix,
        "word": victim.word,
        "stem": victim.word[:4],
    }


def _direct(probe: Probe, reader: Person, values: dict[str, Any]) -> tuple[Any, str, int]:
    path, body = filled(probe.path, values), filled(probe.body, values)
    kind = "application/x-ndjson" if probe.path == "/_msearch" else "application/json"
    headers = {
        "accept": "application/json",
        "content-type": kind,
        "authorization": f"ApiKey {reader.credentials.api_key.get_secret_value()}",
    }
    answer = reader.client.transport.perform_request(probe.method, path, body=body, headers=headers)
    return answer.body, f"{path} {json.dumps(body, ensure_ascii=False)}", answer.meta.status


def _through_a_door(
    world: World, door: str, reader: Person, victim: Person, values: dict[str, Any]
) -> tuple[Any, str]:
    """The answer of a way of several steps, and what stood in the request."""
    query = f"the {SHARED} of {victim.word}"
    index, place = values["index"], values["routing"]
    try:
        if door == "recall":
            recipe = RECIPE_NAMES[len(victim.word + reader.user) % len(RECIPE_NAMES)]
            result = reader.memory.recall(query, 50, recipe=recipe, touch=False)
            return [_hit(hit.model_dump(mode="json")) for hit in result.hits], query
        if door == "owned":
            return [memory.seen.source for memory in reader.memory.owned([values["id"]])], ""
        if door == "whoami":
            return reader.memory.whoami(), ""
        if door == "remember":
            kind = OWNED[world.writes % 3]
            world.write(reader, kind, world.writes)
            return reader.ids[kind], ""
        if door == "command line":
            return _command(world, reader, query), query
        if door == "scroll":
            return _walk(reader.client.search(index=index, scroll="30s", size=100)), ""
        point = reader.client.open_point_in_time(index=index, keep_alive="30s")["id"]
        body = {"id": point, "keep_alive": "30s"}
        answer = reader.client.search(
            pit=body,
            size=100,
            query={"bool": {"should": [{"term": {"_routing": place}}, {"match_all": {}}]}},
        )
        reader.client.close_point_in_time(id=point)
        return _walk(answer), place
    except MemoryEsError as error:
        return {"error": str(error)}, query
    except elasticsearch.ApiError as error:  # refused, which it says without anybody's words
        return error.body, json.dumps(values, ensure_ascii=False)


def _hit(hit: dict[str, Any]) -> dict[str, Any]:
    return {"_id": hit["id"], "_source": {**hit["fields"], "text": hit["text"], "by": hit["owner"]}}


def _walk(answer: ObjectApiResponse[Any]) -> Any:
    return [{"_id": hit["_id"], "_source": hit["_source"]} for hit in answer["hits"]["hits"]]


def _command(world: World, reader: Person, query: str) -> Any:
    chosen = world.platform.settings
    keyring.save(chosen, reader.credentials)
    environment = {
        "MEMORY_ES_STATE_DIR": str(chosen.state_dir),
        "MEMORY_ES_PREFIX": chosen.prefix,
        "MEMORY_ES_ISOLATION": chosen.isolation,
    }
    arguments = ["recall", "--json", "--no-touch", "--recipe", "lexical", "-u", reader.user, query]
    done = CliRunner().invoke(app, arguments, env=environment, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return [_hit(hit) for hit in json.loads(done.stdout)["hits"]]


def test_no_probe_shows_anything_of_anybody_else(world: World, pytestconfig: pytest.Config) -> None:
    number = int(pytestconfig.getoption("--probes"))
    people = st.integers(0, len(world.people) - 1)
    ways = itertools.cycle([*DIRECT, *DOORS])  # every way equally often; the rest is drawn

    @settings(
        max_examples=number,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(
        pair=st.tuples(people, people),
        kind=st.sampled_from([str(kind) for kind in OWNED]),
        name=st.sampled_from(["alias", "index", "pattern"]),
    )
    def probe(pair: tuple[int, int], kind: str, name: str) -> None:
        way = next(ways)
        reader, victim = (world.people[number] for number in pair)
        values = _values(world, reader, victim, kind, name)
        if way in DOORS:
            answer, request = _through_a_door(world, way, reader, victim, values)
        else:
            answer, request, status = _direct(DIRECT[way], reader, values)
            assert status < 500 or "security_exception" in json.dumps(answer), answer
        assert world.leaks(answer, reader, request) == set(), (way, reader.user, victim.user)
        world.done[way] += 1
        world.found[way] += _shows(answer, reader, world)

    probe()
    assert sum(world.done.values()) >= number
    assert world.done.keys() == {*DIRECT, *DOORS}
    # a probe that finds nothing at all, not even its owner's, would prove nothing
    assert world.found["recall"] > 0
    assert world.found["everything"] > 0
    assert sum(1 for way in READS if world.found[way]) >= len(READS) // 2
    done = f"{sum(world.done.values())} probes, {world.writes} writes, {len(world.people)} users"
    sys.stdout.write(f"{world.platform.placement.isolation}: {done}, 0 leaks\n")


def _shows(answer: Any, reader: Person, world: World) -> bool:
    """Whether the reader's own memories are in an answer."""
    return any(
        world.owner_of_id.get(str(node.get("_id"))) == reader.user for node in _dicts(answer)
    )
