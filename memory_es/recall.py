"""Recall: one msearch over every kind and leg, fusion, reranking, priors, reasons."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

from elasticsearch.helpers import pack_dense_vector

from memory_es.documents import UsageRow
from memory_es.errors import AccessDenied, InvalidInput, MemoryEsError, ModelError, SetupError
from memory_es.models import Embedder, Reranker
from memory_es.queries import (
    DENSE,
    RANK_CONSTANT,
    WINDOW,
    Leg,
    Recipe,
    active_legs,
    recipe_named,
    searches,
)
from memory_es.ranking import (
    blend,
    contenders,
    ordered,
    priors,
    ranks_by_score,
    rrf,
    with_priors,
)
from memory_es.requests import Hit, RecallRequest, RecallResult
from memory_es.schema import OWNED, Kind
from memory_es.store import LegAnswer, Reference, Scope, Stored
from memory_es.text import usage_id

#: Fields of a document that a hit shows besides those that it names.
_HIDDEN = {
    "text",
    "kind",
    "owner",
    "event_time",
    "created_at",
    "content_context",
    "content_hash",
    "passages",
    "embedding",
    "embedding_context",
}


class _Key(NamedTuple):
    """A memory among those of all kinds. A tuple: hundreds are hashed a few times each."""

    kind: Kind
    id: str


@dataclass
class _Course:
    """What a recall gathers on its way: time a stage and what went wrong."""

    took_ms: dict[str, float] = field(default_factory=dict)
    degraded: list[str] = field(default_factory=list)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.took_ms[name] = (time.perf_counter() - started) * 1_000


def recall(
    scope: Scope,
    embedder: Embedder,
    reranker: Reranker | None,
    request: RecallRequest,
    *,
    languages: tuple[str, ...],
    now: datetime,
) -> RecallResult:
    """The memories that answer a question, best first, each with its reasons.

    Args:
        now: the time that expiry and recency are judged by.

    Raises:
        InvalidInput: an unknown recipe, or a scope without a user.
        ModelError: ``reranked`` without a reranker, or a failed embedder where all is vectors.
        AccessDenied: the cluster refuses the user's key.
        Unavailable: Elasticsearch does not answer, or every leg failed.
    """
    if scope.user_id is None:
        raise InvalidInput("user", "is empty", remedy="Name the user whose memories you mean")
    course = _Course()
    started = time.perf_counter()
    recipe = recipe_named(request.recipe)
    if recipe.rerank and reranker is None:
        raise ModelError(
            f"the recipe {recipe.name} needs a reranker",
            code="no_reranker",
            remedy="Set MEMORY_ES_RERANKER_MODEL to a cross-encoder's name or folder",
        )
    vector = _query_vector(embedder, recipe, request.query, course)
    items = searches(
        request,
        placement=scope.store.placement,
        user_id=scope.user_id,
        languages=languages,
        vector=vector,
        now=now,
    )
    with course.stage("search"):
        answers = scope.store.search_all(items)
    _note_failures(answers, course)
    rankings = _rankings(answers)
    fused = _fuse(rankings, recipe, request)
    hits = _hits(scope, reranker if recipe.rerank else None, request, fused, rankings, now, course)
    course.took_ms["total"] = (time.perf_counter() - started) * 1_000
    return RecallResult(
        hits=tuple(hits),
        recipe=recipe.name,
        degraded=tuple(course.degraded),
        took_ms=course.took_ms,
        searches=tuple({"header": item.header, "body": item.body} for item in items),
    )


def _query_vector(embedder: Embedder, recipe: Recipe, query: str, course: _Course) -> str | None:
    if not DENSE & recipe.weights.keys():
        return None
    with course.stage("embed"):
        try:
            vector = embedder.query(query)
        except ModelError as error:
            if recipe.weights.keys() <= DENSE:
                raise  # nothing would be left to search by
            course.degraded.append(f"no vector search: {error.message}")
            return None
    if not vector.any():
        course.degraded.append("no vector search: the query has no vector")
        return None
    packed: str = pack_dense_vector(vector)
    return packed


def _note_failures(answers: list[LegAnswer], course: _Course) -> None:
    """A failed leg degrades the answer, also one that an index refuses (it lacks the field); a
    refused key, a broken set-up or a failure of all legs is an error: never an empty list in
    place of one."""
    failures = [answer for answer in answers if answer.failure]
    for answer in failures:
        error: MemoryEsError | None = answer.failure
        broken = isinstance(error, (AccessDenied, SetupError)) and error.code != "refused"
        if broken or len(failures) == len(answers):
            raise error or AssertionError
        course.degraded.append(f"{answer.search.leg} of {answer.search.kind}: {error}")


def _rankings(answers: list[LegAnswer]) -> dict[str, dict[_Key, int]]:
    """Per leg, the rank of each memory. Lexical legs rank within their kind: BM25 scores of
    different indices do not compare. Dense legs rank over all kinds at once: cosines of one
    model do, and they keep an unrelated kind's best memory from the top."""
    rankings: dict[str, dict[_Key, int]] = {}
    dense: dict[Leg, dict[_Key, float]] = {}
    for answer in answers:
        kind, leg = answer.search.kind, answer.search.leg
        scores = {_Key(kind, id_): score for id_, score in answer.hits}
        if leg in DENSE:
            dense.setdefault(leg, {}).update(scores)
        else:
            rankings.setdefault(leg, {}).update(ranks_by_score(scores))
    return rankings | {leg: ranks_by_score(scores) for leg, scores in dense.items()}


def _fuse(
    rankings: Mapping[str, dict[_Key, int]], recipe: Recipe, request: RecallRequest
) -> dict[_Key, float]:
    fused: dict[_Key, float] = {}
    for kind in request.filters.kinds:
        weights = {str(leg): w for leg, w in active_legs(recipe, kind, request.query).items()}
        own = {
            leg: {key: rank for key, rank in rankings.get(leg, {}).items() if key.kind is kind}
            for leg in weights
        }
        fused |= rrf(own, weights, constant=RANK_CONSTANT)
    return fused


def _reference(scope: Scope, key: _Key) -> Reference:
    return Reference(key.kind, key.id, scope.routing if key.kind in OWNED else None)


def _usage_row(scope: Scope, key: _Key) -> Reference:
    place = str(scope.routing)
    return Reference("usage", usage_id(place, key.id), place)


def _hits(
    scope: Scope,
    reranker: Reranker | None,
    request: RecallRequest,
    fused: dict[_Key, float],
    rankings: Mapping[str, dict[_Key, int]],
    now: datetime,
    course: _Course,
) -> list[Hit]:
    order = ordered(fused, tie={key: key.id for key in fused})
    if reranker is not None:
        order = order[: max(WINDOW, request.k)]
    elif request.priors:
        order = contenders(order, fused, request.k)
    else:
        order = order[: request.k]
    with course.stage("fetch"):
        wanted = [_reference(scope, key) for key in order]
        rows = [_usage_row(scope, key) for key in order if key.kind in OWNED]
        if not request.priors:
            rows = []
        apart = scope.store.placement.by_index
        found = scope.store.fetch(wanted if apart else wanted + rows)
        if apart and scope.usage is not None:
            seen = [_usage_row(scope, key) for key in order if _reference(scope, key) in found]
            found |= scope.usage.fetch([row for row in seen if row in rows])
    documents = {key: found[ref] for key in order if (ref := _reference(scope, key)) in found}
    strange = {key for key, document in documents.items() if not _readable(document)}
    if strange:
        course.degraded.append(f"{len(strange)} documents left out: not written by memory_es")
    # those that are missing were forgotten since the search
    order = [key for key in order if key in documents and key not in strange]
    scores, reranked = _rerank(reranker, request, order, fused, documents, course)
    with course.stage("rank"):
        reasons: dict[_Key, dict[str, float]] = {}
        if request.priors:
            for key in order:
                usage = found.get(_usage_row(scope, key))
                reasons[key] = _priors(key, documents[key], usage, now)
                scores[key] = with_priors(scores[key], reasons[key])
        best = ordered(scores, tie={key: key.id for key in scores})[: request.k]
        return [
            _hit(
                key,
                documents[key],
                score=scores[key],
                fused=fused[key],
                rerank=reranked.get(key),
                ranks={leg: ranks[key] for leg, ranks in rankings.items() if key in ranks},
                reasons=reasons.get(key, {}),
            )
            for key in best
        ]


def _rerank(
    reranker: Reranker | None,
    request: RecallRequest,
    order: list[_Key],
    fused: dict[_Key, float],
    documents: Mapping[_Key, Stored],
    course: _Course,
) -> tuple[dict[_Key, float], dict[_Key, float]]:
    """Scores to rank by, and the reranker's raw ones (empty if it did not run)."""
    plain = {key: fused[key] for key in order}
    if reranker is None or not order:
        return plain, {}
    with course.stage("rerank"):
        try:
            raw = reranker.scores(request.query, [documents[key].source["text"] for key in order])
        except ModelError as error:
            course.degraded.append(f"not reranked: {error.message}")
            return plain, {}
    scored = dict(zip(order, raw, strict=True))
    by_score = ordered(scored, tie={key: key.id for key in scored})
    return blend(order, by_score), scored


def _readable(document: Stored) -> bool:
    """Whether a document has what every memory has: a user's own key can write others by hand."""
    try:
        _time(document, "event_time")
        _time(document, "created_at")
    except (KeyError, TypeError, ValueError):
        return False
    return isinstance(document.source.get("text"), str)


def _time(document: Stored, name: str) -> datetime:
    value = datetime.fromisoformat(document.source[name])
    return value if value.tzinfo else value.replace(tzinfo=UTC)


def _priors(key: _Key, document: Stored, usage: Stored | None, now: datetime) -> dict[str, float]:
    confidence = document.source.get("confidence")
    return priors(
        kind=key.kind,
        event_time=_time(document, "event_time"),
        usage=UsageRow.model_validate(usage.source) if usage else None,
        confidence=confidence if isinstance(confidence, (int, float)) else None,
        now=now,
    )


def _hit(
    key: _Key,
    document: Stored,
    *,
    score: float,
    fused: float,
    rerank: float | None,
    ranks: dict[str, int],
    reasons: dict[str, float],
) -> Hit:
    source = document.source
    return Hit(
        id=key.id,
        kind=key.kind,
        text=source["text"],
        score=score,
        event_time=_time(document, "event_time"),
        created_at=_time(document, "created_at"),
        owner=_owner(source),
        fields={name: value for name, value in source.items() if name not in _HIDDEN},
        ranks=ranks,
        fused=fused,
        rerank=rerank,
        priors=reasons,
    )


def _owner(source: Mapping[str, Any]) -> str | None:
    """The user id of the owner that the cluster has stamped."""
    owner = source.get("owner", {}).get("api_key", {}).get("metadata", {}).get("owner_id")
    return owner.removeprefix("user:") if isinstance(owner, str) else None
