"""Recall measured: recall@k, MRR and nDCG by recipe and category, leaks, latency."""

from __future__ import annotations

import hashlib
import json
import platform as system
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import elasticsearch
import ir_measures
import numpy as np
from ir_measures import RR, Measure, Qrel, R, ScoredDoc, nDCG

from memory_es import indices, security
from memory_es.config import Settings
from memory_es.corpus import Question
from memory_es.errors import AccessDenied, InvalidInput, ModelError, Unavailable
from memory_es.models import Embedder, Reranker
from memory_es.placement import Placement
from memory_es.queries import DEFAULT_RECIPE, RECIPES
from memory_es.recall import recall
from memory_es.requests import Filters, RecallRequest, RecallResult
from memory_es.schema import Kind
from memory_es.store import Scope, Store
from memory_es.suites import Suite
from memory_es.templates import Layout, secret_check
from memory_es.text import CATALOG_OWNER, routing, user_secret
from memory_es.write import write

MEASURES: dict[str, Measure] = {
    "R@1": R @ 1,
    "R@5": R @ 5,
    "R@10": R @ 10,
    "R@80": R @ 80,
    "MRR": RR,
    "nDCG@10": nDCG @ 10,
}
DEPTH = 80
#: Foreign questions that each user asks in the cross-user sweep.
SWEEP = 20
_SECRET = "evaluation"  # noqa: S105 -- ids of a throwaway deployment protect nothing

Advance = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Bench:
    """Where an evaluation runs: a deployment of its own on the cluster, under its own prefix."""

    service: elasticsearch.Elasticsearch
    client: elasticsearch.Elasticsearch
    settings: Settings
    embedder: Embedder
    reranker: Reranker | None

    @property
    def placement(self) -> Placement:
        """Where its indices are."""
        return indices.placement_of(self.settings)


@dataclass(frozen=True)
class Indexed:
    """A suite in its indices: each user's scope, the stored document of each corpus id (twins
    that were merged share one) and its owner."""

    scopes: Mapping[str, Scope]
    documents: Mapping[str, str]
    owners: Mapping[str, str | None]


def run_suite(
    bench: Bench,
    suite: Suite,
    recipes: Sequence[str],
    *,
    priors: bool,
    advance: Advance,
) -> dict[str, Any]:
    """Index a suite, ask its questions under each recipe, measure, and sweep across users.

    Returns:
        The object that ``eval run --json`` prints and the run file keeps. ``latency_ms`` is that
        of ``hybrid`` where it was asked, else of the last recipe.

    Raises:
        InvalidInput: a memory of the suite was refused; names it.
        MemoryEsError: the cluster fails. The indices of the evaluation are removed in any case.
    """
    layout = Layout(
        isolation=bench.settings.isolation,
        languages=bench.settings.languages,
        embedding_model=bench.embedder.name,
        dims=bench.embedder.dims,
        secret_check=secret_check(_SECRET),
    )
    keys: list[str] = []
    try:
        indices.install(bench.service, bench.settings, layout)
        scopes = _scopes(bench, suite.users, keys)
        indexed = _index(bench, suite, scopes, advance)
        results = {
            name: _ask(bench, suite, indexed, name, priors=priors, advance=advance)
            for name in recipes
        }
        leaks = _sweep(bench, suite, indexed, recipes[-1], advance)
    finally:
        try:
            security.invalidate(bench.service, keys)
        finally:
            indices.remove(bench.service, bench.placement)
    questions = [_by_document(question, indexed) for question in suite.questions]
    timed = DEFAULT_RECIPE if DEFAULT_RECIPE in results else recipes[-1]
    stages: dict[str, list[float]] = {}
    for name, asked in results.items():
        for question, result in zip(suite.questions, asked.values(), strict=True):
            leaks += _foreign(result, indexed, question.user)
            for stage, took in result.took_ms.items() if name == timed else ():
                stages.setdefault(stage, []).append(took)
    return {
        "suite": suite.name,
        "queries": len(suite.questions),
        "recipes": {name: summarise(questions, _run_of(asked)) for name, asked in results.items()},
        "leaks": leaks,
        "swept": _swept(suite),
        "latency_ms": {
            stage: {
                "p50": round(float(np.percentile(values, 50)), 2),
                "p95": round(float(np.percentile(values, 95)), 2),
            }
            for stage, values in stages.items()
        },
        "fingerprint": fingerprint(bench, suite, priors=priors),
    }


def _scopes(bench: Bench, users: Iterable[str], keys: list[str]) -> dict[str, Scope]:
    scopes = {}
    for user in users:
        indices.install_user(bench.service, bench.placement, routing(user))
        credentials = security.mint(
            bench.service,
            user,
            placement=bench.placement,
            deployment_secret=_SECRET,
            issued_by="evaluation",
            expiration="1d",
        )
        keys.append(credentials.key_id)
        client = bench.client.options(api_key=credentials.api_key.get_secret_value())
        scopes[user] = Scope(
            Store(client, bench.placement),
            user,
            credentials.id_secret.get_secret_value(),
            Store(bench.service, bench.placement),
        )
    return scopes


def _index(bench: Bench, suite: Suite, scopes: Mapping[str, Scope], advance: Advance) -> Indexed:
    """Write the corpus, each user's with that user's key. A memory without a time has been known
    from the beginning: every question may see it."""
    catalog = Scope(
        Store(bench.service, bench.placement), None, user_secret(_SECRET, CATALOG_OWNER)
    )
    groups: dict[str | None, list[Any]] = {}
    for entry in suite.entries:
        groups.setdefault(entry.user, []).append(entry.memory)
    times = [entry.memory.event_time for entry in suite.entries if entry.memory.event_time]
    times += [question.timestamp for question in suite.questions if question.timestamp]
    documents: dict[str, str] = {}
    owners: dict[str, str | None] = {}
    done = 0
    for user, memories in groups.items():
        scope = catalog if user is None else scopes[user]
        for result in write(
            scope,
            bench.embedder,
            memories,
            now=min(times, default=suite.now),
            new_id=_no_new_id,
            refresh=True,
        ):
            if result.code == "forbidden":
                raise AccessDenied(str(result.error), code=result.code)
            if result.id is None:
                raise InvalidInput(str(result.external_id), f"was refused: {result.error}")
            if result.needs_embedding:
                raise ModelError(f"{result.external_id} has no vector: the embedder failed")
            documents[str(result.external_id)] = result.id
            owners[result.id] = user
            done += 1
            advance("index", done, len(suite.entries))
    return Indexed(scopes, documents, owners)


def _no_new_id() -> str:
    raise AssertionError("every memory of a corpus has an id of its own")


def _ask(
    bench: Bench,
    suite: Suite,
    indexed: Indexed,
    recipe: str,
    *,
    priors: bool,
    advance: Advance,
) -> dict[str, RecallResult]:
    results = {}
    for position, question in enumerate(suite.questions, start=1):
        results[question.id] = _recall(
            bench, indexed.scopes[question.user], question, recipe, suite, priors=priors
        )
        advance(recipe, position, len(suite.questions))
    return results


def _recall(
    bench: Bench, scope: Scope, question: Question, recipe: str, suite: Suite, *, priors: bool
) -> RecallResult:
    filters = Filters(until=question.timestamp, exclude_session=question.session)
    result = recall(
        scope,
        bench.embedder,
        bench.reranker,
        RecallRequest(
            query=question.text,
            k=DEPTH,
            recipe=recipe,
            filters=filters,
            priors=priors,
            touch=False,
        ),
        languages=bench.settings.languages,
        now=suite.now,
    )
    if result.degraded:
        raise Unavailable(f"a degraded answer cannot be measured: {result.degraded[0]}")
    return result


def _sweep(bench: Bench, suite: Suite, indexed: Indexed, recipe: str, advance: Advance) -> int:
    """Every user asks what others asked: any memory of another is a leak."""
    leaks = 0
    for position, (user, scope) in enumerate(indexed.scopes.items(), start=1):
        for question in _of_others(suite, user):
            result = _recall(bench, scope, question, recipe, suite, priors=False)
            leaks += _foreign(result, indexed, user)
        advance("sweep", position, len(indexed.scopes))
    return leaks


def _of_others(suite: Suite, user: str) -> list[Question]:
    return [question for question in suite.questions if question.user != user][:SWEEP]


def _swept(suite: Suite) -> int:
    """How many foreign questions the sweep asks: none in a suite of one user."""
    return sum(len(_of_others(suite, user)) for user in suite.users)


def _foreign(result: RecallResult, indexed: Indexed, user: str) -> int:
    """Hits that belong to somebody other than ``user`` by the corpus or by the cluster's stamp."""
    return sum(
        1
        for hit in result.hits
        if hit.kind is not Kind.CATALOG
        and (hit.owner != user or indexed.owners.get(hit.id) != user)
    )


def _by_document(question: Question, indexed: Indexed) -> Question:
    """A question whose evidence are stored documents: a merged twin counts under both ids."""
    found = dict.fromkeys(indexed.documents[id_] for id_ in question.evidence)
    return question.model_copy(update={"evidence": tuple(found)})


def _run_of(asked: Mapping[str, RecallResult]) -> dict[str, dict[str, float]]:
    """Scores of documents by question, strictly falling by rank."""
    return {
        question: {hit.id: float(-position) for position, hit in enumerate(result.hits)}
        for question, result in asked.items()
    }


def summarise(
    questions: Sequence[Question], run: Mapping[str, Mapping[str, float]]
) -> dict[str, Any]:
    """The measures of a run, over all questions with evidence and by category.

    A question that found nothing counts as zero. Questions without evidence are counted apart,
    under ``no_evidence``.
    """
    judged = [question for question in questions if question.evidence]
    qrels = [Qrel(q.id, document, 1) for q in judged for document in q.evidence]
    scored = [
        ScoredDoc(question, document, score)
        for question, documents in run.items()
        for document, score in documents.items()
    ]
    values: dict[str, dict[str, float]] = {q.id: dict.fromkeys(MEASURES, 0.0) for q in judged}
    names = {measure: name for name, measure in MEASURES.items()}
    for metric in ir_measures.iter_calc(MEASURES.values(), qrels, scored):
        values[metric.query_id][names[metric.measure]] = metric.value
    categories = sorted({question.category for question in judged})
    return {
        **_means(values.values()),
        "by_category": {
            category: {
                **_means(values[q.id] for q in judged if q.category == category),
                "queries": sum(1 for q in judged if q.category == category),
            }
            for category in categories
        },
        "no_evidence": len(questions) - len(judged),
    }


def _means(rows: Iterable[Mapping[str, float]]) -> dict[str, float]:
    table = list(rows)
    return {
        name: round(sum(row[name] for row in table) / len(table), 4) if table else 0.0
        for name in MEASURES
    }


def fingerprint(bench: Bench, suite: Suite, *, priors: bool) -> dict[str, Any]:
    """What a run depended on. Runs over different corpora must never be compared."""
    recipes = {name: dict(recipe.weights) for name, recipe in RECIPES.items()}
    return {
        "corpus": suite.fingerprint,
        "embedding_model": bench.embedder.name,
        "reranker": bench.reranker.name if bench.reranker else None,
        "languages": list(bench.settings.languages),
        "priors": priors,
        "now": suite.now.isoformat(),
        "recipes": hashlib.sha256(json.dumps(recipes, sort_keys=True).encode()).hexdigest()[:16],
        "client": version("elasticsearch"),
        "python": system.python_version(),
    }
