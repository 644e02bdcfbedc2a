from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from memory_es.errors import InvalidInput
from memory_es.placement import Placement
from memory_es.queries import (
    DENSE,
    MAX_LEXICAL,
    NUM_CANDIDATES,
    RECIPES,
    WINDOW,
    Leg,
    Search,
    active_legs,
    filter_clause,
    preceding_turn,
    recipe_named,
    searches,
)
from memory_es.requests import Filters, RecallRequest
from memory_es.schema import OWNED, Kind
from memory_es.text import routing

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)
VECTOR = "PxmZmj9MzM0="
#: The conditions of every search of u1: its owner, not expired, not superseded.
OWN: dict[str, Any] = {
    "filter": [{"term": {"owner_id": "user:u1"}}],
    "must_not": [
        {"range": {"expires_at": {"lte": "2026-06-01T12:00:00+00:00"}}},
        {"exists": {"field": "superseded_by"}},
    ],
}
SHARED: dict[str, Any] = {**OWN, "filter": []}


def ask(
    query: str,
    recipe: str = "hybrid",
    *,
    languages: tuple[str, ...] = ("english",),
    vector: str | None = VECTOR,
    k: int = 10,
    **filters: Any,
) -> list[Search]:
    request = RecallRequest(query=query, recipe=recipe, k=k, filters=Filters(**filters))
    return searches(
        request,
        placement=Placement("memory", "dls"),
        user_id="u1",
        languages=languages,
        vector=vector,
        now=NOW,
    )


def body_of(leg: Leg, kind: Kind, query: str = "tea from E-1043", **options: Any) -> dict[str, Any]:
    recipe = "bm25" if leg is Leg.STANDARD else "hybrid"
    [found] = [
        item for item in ask(query, recipe, **options) if (item.leg, item.kind) == (leg, kind)
    ]
    return found.body


def whole(query: dict[str, Any], size: int = 80) -> dict[str, Any]:
    return {"query": query, "size": size, "_source": False, "track_total_hits": False}


def knn(field: str, conditions: dict[str, Any], size: int = 80) -> dict[str, Any]:
    return {
        "knn": {
            "field": field,
            "query_vector": "PxmZmj9MzM0=",
            "k": size,
            "num_candidates": 500 if conditions == SHARED else 10_000,
            "filter": {"bool": conditions},
        }
    }


# --- bodies ---

_TEXT = "tea from E-1043"


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize(
    ("leg", "scoring"),
    [
        (Leg.STANDARD, {"match": {"content.standard": {"query": _TEXT}}}),
        (Leg.TEXT, {"match": {"content.english": {"query": _TEXT}}}),
        (Leg.EXACT, {"match": {"content.exact": {"query": "E-1043"}}}),
    ],
)
def test_the_body_of_a_lexical_leg(leg: Leg, scoring: dict[str, Any], kind: Kind) -> None:
    conditions = OWN if kind in OWNED else SHARED
    assert body_of(leg, kind) == whole({"bool": {"must": [scoring], **conditions}})


def test_the_body_of_the_context_leg() -> None:
    scoring = {"match": {"content_context.english": {"query": _TEXT}}}
    assert body_of(Leg.CONTEXT, Kind.EPISODIC) == whole({"bool": {"must": [scoring], **OWN}})


@pytest.mark.parametrize("kind", Kind)
def test_the_body_of_the_vector_leg_takes_the_better_of_text_and_best_passage(kind: Kind) -> None:
    conditions = OWN if kind in OWNED else SHARED
    assert body_of(Leg.VECTOR, kind) == whole(
        {
            "dis_max": {
                "queries": [
                    knn("embedding", conditions),
                    {
                        "nested": {
                            "path": "passages",
                            "query": knn("passages.embedding", conditions),
                            "score_mode": "max",
                        }
                    },
                ]
            }
        }
    )


def test_the_body_of_the_vector_in_context_leg() -> None:
    assert body_of(Leg.VECTOR_CONTEXT, Kind.EPISODIC) == whole(knn("embedding_context", OWN))


def test_several_matching_languages_combine_by_the_best_never_by_a_sum() -> None:
    query = "what did Tom say about ส้ม"
    languages = ("english", "thai", "cjk")
    for leg, field in ((Leg.TEXT, "content"), (Leg.CONTEXT, "content_context")):
        scoring = {
            "dis_max": {
                "queries": [
                    {"match": {f"{field}.english": {"query": query}}},
                    {"match": {f"{field}.thai": {"query": query}}},
                ]
            }
        }
        assert body_of(leg, Kind.EPISODIC, query, languages=languages) == whole(
            {"bool": {"must": [scoring], **OWN}}
        )


def test_headers_name_the_alias_and_route_to_the_users_shard_but_for_the_catalog() -> None:
    headers = {item.kind: item.header for item in ask("tea")}
    assert headers == {
        **{kind: {"index": f"memory-{kind}", "routing": routing("u1")} for kind in OWNED},
        Kind.CATALOG: {"index": "memory-catalog"},
    }


@pytest.mark.parametrize(("k", "size"), [(1, WINDOW), (80, 80), (81, 81), (1_000, 1_000)])
def test_each_leg_has_a_window_of_its_own_that_holds_k(k: int, size: int) -> None:
    for item in ask("tea", k=k):
        assert item.body["size"] == size
    dense = body_of(Leg.VECTOR_CONTEXT, Kind.EPISODIC, k=k)["query"]["knn"]
    assert (dense["k"], dense["num_candidates"]) == (size, max(NUM_CANDIDATES, size))


def test_a_long_query_is_cut_for_the_lexical_legs() -> None:
    query = "word " * 10_000 + "E-1043"
    for item in ask(query, vector=None):
        [clause] = item.body["query"]["bool"]["must"]
        [match] = clause["match"].values()
        assert match == {"query": query[:MAX_LEXICAL]}
    assert Leg.EXACT not in {item.leg for item in ask(query)}


def _values(node: Any, name: str) -> Iterator[Any]:
    if isinstance(node, dict):
        for key, value in node.items():
            if key == name:
                yield value
            yield from _values(value, name)
    elif isinstance(node, list):
        for value in node:
            yield from _values(value, name)


def test_a_body_carries_the_query_vector_once_for_each_field_that_it_searches() -> None:
    sent = {(item.leg, item.kind): [*_values(item.body, "query_vector")] for item in ask(_TEXT)}
    for (leg, _), vectors in sent.items():
        fields = {Leg.VECTOR: 2, Leg.VECTOR_CONTEXT: 1}.get(leg, 0)
        assert vectors == [VECTOR] * fields


@given(st.text(min_size=1).filter(str.strip), st.sampled_from(list(RECIPES)))
def test_any_query_makes_bodies_that_json_can_carry(query: str, recipe: str) -> None:
    try:
        found = ask(query, recipe)
    except ValueError:  # only invisible characters: refused by the request
        return
    for item in found:
        assert orjson.loads(orjson.dumps([item.header, item.body])) == [item.header, item.body]


# --- recipes and their legs ---


def test_the_recipes_and_their_legs() -> None:
    lexical = {Leg.CONTEXT, Leg.TEXT, Leg.EXACT}
    assert {name: set(recipe.weights) for name, recipe in RECIPES.items()} == {
        "bm25": {Leg.STANDARD},
        "lexical": lexical,
        "dense": DENSE,
        "hybrid": lexical | DENSE,
        "reranked": lexical | DENSE,
    }
    assert [name for name, recipe in RECIPES.items() if recipe.rerank] == ["reranked"]
    assert all(recipe.name == name and recipe.about for name, recipe in RECIPES.items())


def test_an_unknown_recipe_is_refused_with_the_choices() -> None:
    with pytest.raises(InvalidInput, match=r"'magic' is none of bm25, lexical, dense, hybrid"):
        recipe_named("magic")


@pytest.mark.parametrize(
    ("recipe", "query", "episodic", "others"),
    [
        ("bm25", "tea", {Leg.STANDARD}, {Leg.STANDARD}),
        ("bm25", "E-1043", {Leg.STANDARD}, {Leg.STANDARD}),
        ("lexical", "tea", {Leg.CONTEXT, Leg.TEXT}, {Leg.TEXT}),
        ("lexical", "E-1043", {Leg.CONTEXT, Leg.TEXT, Leg.EXACT}, {Leg.TEXT, Leg.EXACT}),
        ("dense", "E-1043", {Leg.VECTOR, Leg.VECTOR_CONTEXT}, {Leg.VECTOR}),
        (
            "hybrid",
            "in 2026",
            {Leg.CONTEXT, Leg.TEXT, Leg.VECTOR, Leg.VECTOR_CONTEXT},
            {Leg.TEXT, Leg.VECTOR},
        ),
        (
            "reranked",
            "E-1043",
            {Leg.CONTEXT, Leg.TEXT, Leg.EXACT, Leg.VECTOR, Leg.VECTOR_CONTEXT},
            {Leg.TEXT, Leg.EXACT, Leg.VECTOR},
        ),
    ],
)
def test_the_legs_of_each_kind(
    recipe: str, query: str, episodic: set[Leg], others: set[Leg]
) -> None:
    found = ask(query, recipe)
    for kind in Kind:
        legs = [item.leg for item in found if item.kind is kind]
        assert set(legs) == (episodic if kind is Kind.EPISODIC else others)
        assert len(legs) == len(set(legs))
        assert set(active_legs(RECIPES[recipe], kind, query)) == set(legs)


@pytest.mark.parametrize("query", ["tea", "E-1043"])
@pytest.mark.parametrize("recipe", RECIPES)
def test_every_kind_has_the_same_weight_in_all(recipe: str, query: str) -> None:
    totals = {sum(active_legs(RECIPES[recipe], kind, query).values()) for kind in Kind}
    assert len(totals) == 1
    left_out = RECIPES[recipe].weights.get(Leg.EXACT, 0.0) if query == "tea" else 0.0
    assert totals == {sum(RECIPES[recipe].weights.values()) - left_out}


@pytest.mark.parametrize("recipe", RECIPES)
def test_without_a_query_vector_only_the_dense_legs_are_missing(recipe: str) -> None:
    lexical = [item for item in ask(_TEXT, recipe) if item.leg not in DENSE]
    assert ask(_TEXT, recipe, vector=None) == lexical


def test_only_the_wanted_kinds_are_searched() -> None:
    kinds = (Kind.SEMANTIC, Kind.CATALOG)
    assert {item.kind for item in ask("tea", kinds=kinds)} == set(kinds)


def test_a_session_filter_searches_episodes_alone() -> None:
    assert {item.kind for item in ask("tea", session_id="s1")} == {Kind.EPISODIC}


# --- filters ---


def clause(kind: Kind = Kind.EPISODIC, **filters: Any) -> dict[str, Any]:
    return filter_clause(Filters(**filters), kind, "u1", NOW)


def test_without_filters_there_are_the_owner_expiry_and_supersession() -> None:
    for kind in OWNED:
        assert clause(kind) == OWN
    assert clause(Kind.CATALOG) == SHARED


def test_each_filter_adds_its_condition() -> None:
    found = clause(
        tags=("travel, food", "home"),
        metadata={"place": "Home Office"},
        since=datetime(2026, 1, 1),  # noqa: DTZ001 -- a naive time means UTC
        until="2026-03-01T02:00:00+02:00",
        session_id="s1",
        exclude_session="s2",
    )
    assert found == {
        "filter": [
            {"term": {"owner_id": "user:u1"}},
            {"term": {"tags": "travel, food"}},
            {"term": {"tags": "home"}},
            {"term": {"metadata.place": "Home Office"}},
            {
                "range": {
                    "event_time": {
                        "gte": "2026-01-01T00:00:00+00:00",
                        "lte": "2026-03-01T00:00:00+00:00",
                    }
                }
            },
            {"term": {"session_id": "s1"}},
        ],
        "must_not": [*OWN["must_not"], {"term": {"session_id": "s2"}}],
    }


@pytest.mark.parametrize(("bound", "name"), [({"since": NOW}, "gte"), ({"until": NOW}, "lte")])
def test_a_time_range_may_be_open(bound: dict[str, Any], name: str) -> None:
    assert clause(**bound)["filter"][1:] == [{"range": {"event_time": {name: NOW.isoformat()}}}]


def test_superseded_memories_are_found_on_request_but_never_expired_ones() -> None:
    assert clause(include_superseded=True)["must_not"] == OWN["must_not"][:1]


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (True, "true"),
        (False, "false"),
        (1, "1"),
        (-7, "-7"),
        (2.0, "2.0"),
        (0.1, "0.1"),
        ("1", "1"),
        ("True", "True"),
        ("Home Office", "Home Office"),
        (2**63, "9223372036854775808"),
    ],
)
def test_metadata_is_compared_with_the_json_form_of_a_value(value: Any, stored: str) -> None:
    assert clause(metadata={"x": value})["filter"][1:] == [{"term": {"metadata.x": stored}}]


@pytest.mark.parametrize(
    ("value", "texts"),
    [
        (1e-07, ["1e-7", "1.0E-7"]),
        (1e20, ["1e+20", "1.0E20"]),
        (12_345_678.5, ["12345678.5", "1.23456785E7"]),
        (-0.00012, ["-0.00012", "-1.2E-4"]),
    ],
)
def test_a_number_is_compared_with_each_text_that_it_may_have_been_stored_as(
    value: float, texts: list[str]
) -> None:
    # the client's, and Java's, which an ingest pipeline leaves behind
    assert clause(metadata={"x": value})["filter"][1:] == [{"terms": {"metadata.x": texts}}]


@example(1e-07)
@example(1e20)
@given(
    st.one_of(
        st.booleans(),
        st.integers(-(2**63), 2**63 - 1),
        st.floats(allow_nan=False, allow_infinity=False),
    )
)
def test_metadata_is_found_under_the_form_in_which_the_client_sends_it(value: float) -> None:
    sent = orjson.dumps({"x": value}).removeprefix(b'{"x":').removesuffix(b"}").decode()
    [found] = clause(metadata={"x": value})["filter"][1:]
    wanted = found["terms"] if "terms" in found else found["term"]
    assert sent in ([wanted["metadata.x"]] if "term" in found else wanted["metadata.x"])


def test_filters_are_checked_where_they_are_made() -> None:
    for bad, field in (
        ({"kinds": ()}, "kinds"),
        ({"since": NOW, "until": datetime(2026, 1, 1, tzinfo=UTC)}, "since"),
        ({"tags": ("",)}, "tags"),
        ({"tags": ("x" * 1_025,)}, "tags"),
        ({"metadata": {"x": float("nan")}}, "metadata"),
        ({"metadata": {"x": None}}, "metadata"),
        ({"colour": "red"}, "colour"),
    ):
        with pytest.raises(ValueError, match=field):
            Filters(**bad)


# --- the preceding turn ---


@pytest.mark.parametrize(("before", "more"), [(None, []), (0, [{"range": {"turn": {"lt": 0}}}])])
def test_the_body_that_finds_a_preceding_turn(
    before: int | None, more: list[dict[str, Any]]
) -> None:
    assert preceding_turn("s1", "u1", before) == {
        "query": {
            "bool": {
                "filter": [
                    {"term": {"owner_id": "user:u1"}},
                    {"term": {"session_id": "s1"}},
                    {"exists": {"field": "turn"}},
                    *more,
                ]
            }
        },
        "sort": [{"turn": "desc"}],
        "size": 1,
        "_source": ["turn", "speaker", "role", "text"],
        "track_total_hits": False,
    }
