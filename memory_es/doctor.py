"""The check-up of a deployment: every finding with its verdict and the command that mends it."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from elasticsearch import Elasticsearch

from memory_es import cluster, indices
from memory_es.config import INSECURE, Settings
from memory_es.errors import MemoryEsError, Unavailable
from memory_es.schema import Kind
from memory_es.store import translated
from memory_es.templates import Layout


@dataclass(frozen=True)
class Check:
    """One finding."""

    name: str
    verdict: Literal["ok", "warning", "failed"]
    detail: str


def run_checks(
    checks: Iterable[tuple[str, Callable[[], Check]]], *, needed: Container[str]
) -> list[Check]:
    """Run checks in order; stop after a failed one that the others need."""
    found: list[Check] = []
    for name, check in checks:
        try:
            found.append(check())
        except MemoryEsError as error:
            found.append(Check(name, "failed", str(error)))
        if found[-1].verdict == "failed" and name in needed:
            break
    return found


def diagnose(
    *,
    service: Callable[[], Elasticsearch],
    layout: Callable[[], Layout],
    settings: Settings,
    now: datetime,
) -> list[Check]:
    """Run every check. One that cannot run because an earlier one failed is left out."""
    return run_checks(
        (
            ("cluster", lambda: _cluster(service(), now)),
            ("licence", lambda: _licence(service(), settings, now)),
            ("indices", lambda: _indices(service(), settings, layout())),
            ("templates", lambda: _templates(service(), settings, layout())),
            ("vectors", lambda: _vectors(service(), settings)),
        ),
        needed={"cluster", "indices"},
    )


def _cluster(service: Elasticsearch, now: datetime) -> Check:
    facts = cluster.cluster_facts(service, now)
    detail = f"Elasticsearch {facts.server_version}, client {facts.client_version}"
    return Check("cluster", "ok", detail)


def _licence(service: Elasticsearch, settings: Settings, now: datetime) -> Check:
    facts = cluster.require_fit(service, now, settings.isolation)
    security = "on" if facts.security else "OFF: nothing keeps users apart"
    known = f"{facts.licence}, security {security}"
    if settings.isolation == INSECURE:
        return Check("licence", "warning", known)
    if facts.licence_days is None:
        return Check("licence", "ok", known)
    detail = f"{facts.licence}, {facts.licence_days:.0f} days left, security {security}"
    if facts.licence_days > cluster.WARN_DAYS or settings.isolation == "index":
        return Check("licence", "ok", detail)
    return Check(
        "licence",
        "warning",
        f"{detail}. After it, recall and remember are refused: plan a licence or a fresh node",
    )


def _indices(service: Elasticsearch, settings: Settings, layout: Layout) -> Check:
    indices.require_complete(service, indices.placement_of(settings), layout)
    found = indices.counts(service, indices.placement_of(settings))
    counts = ", ".join(f"{kind} {count}" for kind, count in found.items())
    return Check("indices", "ok", f"{layout.embedding_model}; {counts}")


def _templates(service: Elasticsearch, settings: Settings, layout: Layout) -> Check:
    indices.require_stamped(service, settings, layout)
    return Check("templates", "ok", "as this version of memory_es installs them, and attached")


def _vectors(service: Elasticsearch, settings: Settings) -> Check:
    names = indices.placement_of(settings).everybody(Kind)
    with translated():
        answer = service.count(index=names, query={"term": {"needs_embedding": True}})
    if answer["_shards"]["failed"]:
        raise Unavailable("not every shard could be counted", code="partial")
    if answer["count"]:
        return Check(
            "vectors", "warning", f"{answer['count']} memories have no vector yet (BM25 finds them)"
        )
    return Check("vectors", "ok", "every memory that can have a vector has one")
