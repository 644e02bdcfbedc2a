"""Request bodies as pure functions, and the named recipes of search.

A *leg* is one way of ranking one kind of memory. A *recipe* is a set of weighted legs; recall,
the command line and the evaluation use the same list, so they cannot differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any

import orjson

from memory_es.errors import InvalidInput
from memory_es.placement import Placement
from memory_es.requests import Filters, RecallRequest
from memory_es.schema import OWNED, Kind
from memory_es.text import codes, matching_languages, owner_id, routing

#: Hits taken from each leg. DESIGN §6: the fused window holds 0.91 of LoCoMo's evidence.
WINDOW = 80
#: RRF's k. 60 in Cormack et al. 2009; on LoCoMo-dev 10 gives R@10 0.768, 30 gives 0.760, 60 gives
#: 0.737 (docs/decisions/001-fusion.md).
RANK_CONSTANT = 10
#: Candidates a shard collects before rescoring: the most that Elasticsearch allows. At or above a
#: user's number of memories the search is exact over them alone and does not walk the rest of
#: the shard (DESIGN §3); below 10,000 memories the greater number costs nothing.
NUM_CANDIDATES = 10_000
#: The catalog has a graph, where each candidate is paid for.
CATALOG_CANDIDATES = 500
#: Characters of a query that the lexical legs analyze: a longer one exceeds Lucene's clause
#: limit, and its embedding is cut at the model's length anyway.
MAX_LEXICAL = 2_000


class Leg(StrEnum):
    """The ways of ranking. The value is the leg's name in explanations."""

    STANDARD = "bm25_standard"  # standard analyzer, the turn alone: the baseline
    TEXT = "bm25_text"  # language analyzers, the turn alone
    CONTEXT = "bm25_context"  # language analyzers, the preceding turn and the turn
    EXACT = "bm25_exact"  # identifiers only; sent when the query has one
    VECTOR = "knn_text"  # vectors of the text and of its passages
    VECTOR_CONTEXT = "knn_context"  # vectors of the turn with the preceding one


DENSE = frozenset({Leg.VECTOR, Leg.VECTOR_CONTEXT})
#: Legs over fields that only episodes have (a clause on a missing field fails the shard), and the
#: leg that stands in for each, with its weight, in the other kinds.
_EPISODIC_ONLY = {Leg.CONTEXT: Leg.TEXT, Leg.VECTOR_CONTEXT: Leg.VECTOR}


@dataclass(frozen=True)
class Recipe:
    """A named search: weights of its legs, whether a cross-encoder reranks, what it is for."""

    name: str
    weights: Mapping[Leg, float]
    about: str
    rerank: bool = False


#: Context finds more (R@10), the turn alone finds it first (R@1): a quarter keeps both.
#: An identifier in the query weighs as much as both vectors, which cannot tell it from its
#: neighbours (with 1, a near-miss won where the identifier was the whole query: CASEBOOK R5).
_LEXICAL = {Leg.CONTEXT: 1.0, Leg.TEXT: 0.25, Leg.EXACT: 2.0}
_DENSE = {Leg.VECTOR: 1.0, Leg.VECTOR_CONTEXT: 1.0}

RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe("bm25", {Leg.STANDARD: 1.0}, "BM25, standard analyzer, the text alone: baseline"),
        Recipe("lexical", _LEXICAL, "BM25 with language analyzers, context and identifiers"),
        Recipe("dense", _DENSE, "vectors of the text and of the text in context"),
        Recipe("hybrid", {**_LEXICAL, **_DENSE}, "lexical and dense legs fused by RRF"),
        Recipe(
            "reranked",
            {**_LEXICAL, **_DENSE},
            "hybrid, its window reranked by the cross-encoder",
            rerank=True,
        ),
    )
}


#: What `recall` uses unless told otherwise.
DEFAULT_RECIPE = "hybrid"


def recipe_named(name: str) -> Recipe:
    """The recipe of that name. Raises InvalidInput naming the choices."""
    try:
        return RECIPES[name]
    except KeyError:
        raise InvalidInput("recipe", f"{name!r} is none of {', '.join(RECIPES)}") from None


@dataclass(frozen=True)
class Search:
    """One item of an ``_msearch``: its leg and kind, header and body."""

    kind: Kind
    leg: Leg
    header: dict[str, Any]
    body: dict[str, Any]


def active_legs(recipe: Recipe, kind: Kind, query: str) -> dict[Leg, float]:
    """Weights of the recipe's legs that apply to this kind and query."""
    weights = dict(recipe.weights)
    if not codes(query[:MAX_LEXICAL]):
        weights.pop(Leg.EXACT, None)
    if kind is not Kind.EPISODIC:
        for leg, stand_in in _EPISODIC_ONLY.items():
            if leg in weights:
                weights[stand_in] = weights.get(stand_in, 0.0) + weights.pop(leg)
    return weights


def searches(
    request: RecallRequest,
    *,
    placement: Placement,
    user_id: str,
    languages: tuple[str, ...],
    vector: str | None,
    now: datetime,
) -> list[Search]:
    """The ``_msearch`` of a recall: one item per (kind, leg). Dense legs are left out when
    there is no query vector.

    Args:
        vector: packed as base64 of big-endian float32: a quarter of a JSON list's bytes.
    """
    recipe = recipe_named(request.recipe)
    size = max(WINDOW, request.k)
    items = []
    for kind in request.filters.kinds:
        if request.filters.session_id and kind is not Kind.EPISODIC:
            continue  # only episodes belong to a session
        place = routing(user_id)
        header: dict[str, Any] = {"index": placement.index(kind, place)}
        conditions = filter_clause(request.filters, kind, user_id, now)
        if kind in OWNED:
            header["routing"] = place
            if placement.by_index:  # one index holds all kinds of one user
                conditions["filter"].append({"term": {"kind": str(kind)}})
        for leg in active_legs(recipe, kind, request.query):
            if leg in DENSE:
                if vector is None:
                    continue
                query = _dense_query(leg, kind, vector, conditions, size)
            else:
                query = {
                    "bool": {"must": [lexical_query(leg, request.query, languages)], **conditions}
                }
            body = {"query": query, "size": size, "_source": False, "track_total_hits": False}
            items.append(Search(kind, leg, header, body))
    return items


def filter_clause(filters: Filters, kind: Kind, user_id: str, now: datetime) -> dict[str, Any]:
    """The non-scoring part of a bool query: what every hit must and must not be.

    The owner stands here although the cluster enforces it too: it narrows the search before
    the security filter does (2 ms less, DESIGN §3).
    """
    must: list[dict[str, Any]] = []
    must_not: list[dict[str, Any]] = [{"range": {"expires_at": {"lte": now.isoformat()}}}]
    if kind in OWNED:
        must.append({"term": {"owner_id": owner_id(user_id)}})
    if not filters.include_superseded:
        must_not.append({"exists": {"field": "superseded_by"}})
    must.extend({"term": {"tags": tag}} for tag in filters.tags)
    must.extend(_flattened(f"metadata.{key}", value) for key, value in filters.metadata.items())
    bounds = {"gte": filters.since, "lte": filters.until}
    if any(bounds.values()):
        span = {name: time.isoformat() for name, time in bounds.items() if time}
        must.append({"range": {"event_time": span}})
    if filters.session_id:
        must.append({"term": {"session_id": filters.session_id}})
    if filters.exclude_session:
        must_not.append({"term": {"session_id": filters.exclude_session}})
    return {"filter": must, "must_not": must_not}


def _flattened(field: str, value: str | float) -> dict[str, Any]:
    """A ``flattened`` field compares values as texts. A number has the text that orjson wrote
    (``store.connect``; the catalog's), or Java's, once the stamping pipeline has rewritten the
    document: 1e-07 goes out as 1e-7 and is indexed as 1.0E-7 (measured)."""
    if isinstance(value, bool):
        return {"term": {field: str(value).lower()}}
    if isinstance(value, float):
        written, rewritten = orjson.dumps(value).decode(), _java(value)
        if written != rewritten:
            return {"terms": {field: [written, rewritten]}}
    return {"term": {field: str(value)}}


def _java(value: float) -> str:
    """A number as Java's ``Double.toString`` writes it: with an exponent outside [1e-3, 1e7)."""
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    mantissa, _, exponent = f"{Decimal(repr(value)).normalize():E}".partition("E")
    return f"{mantissa if '.' in mantissa else mantissa + '.0'}E{int(exponent)}"


def lexical_query(leg: Leg, text: str, languages: tuple[str, ...]) -> dict[str, Any]:
    """The scoring clause of a BM25 leg. Language sub-fields are chosen by the query's script
    and combined by the best match, never by a sum (measured: sums lose, DESIGN §6)."""
    text = text[:MAX_LEXICAL]
    if leg is Leg.STANDARD:
        return {"match": {"content.standard": {"query": text}}}
    if leg is Leg.EXACT:
        return {"match": {"content.exact": {"query": " ".join(codes(text))}}}
    field = "content_context" if leg is Leg.CONTEXT else "content"
    clauses = [
        {"match": {f"{field}.{language}": {"query": text}}}
        for language in matching_languages(text, languages)
    ]
    return clauses[0] if len(clauses) == 1 else {"dis_max": {"queries": clauses}}


def _dense_query(
    leg: Leg, kind: Kind, vector: str, conditions: dict[str, Any], size: int
) -> dict[str, Any]:
    """A kNN clause; for the text, the better of the whole text's vector and its best passage."""
    candidates = CATALOG_CANDIDATES if kind is Kind.CATALOG else NUM_CANDIDATES

    def knn(field: str) -> dict[str, Any]:
        return {
            "knn": {
                "field": field,
                "query_vector": vector,
                "k": size,
                "num_candidates": max(candidates, size),
                "filter": {"bool": conditions},
            }
        }

    if leg is Leg.VECTOR_CONTEXT:
        return knn("embedding_context")
    passages = {"path": "passages", "query": knn("passages.embedding"), "score_mode": "max"}
    return {"dis_max": {"queries": [knn("embedding"), {"nested": passages}]}}


def preceding_turn(session_id: str, user_id: str, before: int | None) -> dict[str, Any]:
    """Body that finds the last turn of a session, or the last one before a given turn."""
    conditions: list[dict[str, Any]] = [
        {"term": {"owner_id": owner_id(user_id)}},
        {"term": {"session_id": session_id}},
        {"exists": {"field": "turn"}},
    ]
    if before is not None:
        conditions.append({"range": {"turn": {"lt": before}}})
    return {
        "query": {"bool": {"filter": conditions}},
        "sort": [{"turn": "desc"}],
        "size": 1,
        "_source": ["turn", "speaker", "role", "text"],
        "track_total_hits": False,
    }
