"""The check-up of a deployment: every finding with its verdict and the command that mends it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from elasticsearch import Elasticsearch

from memory_es import cluster, indices, security
from memory_es.config import Settings
from memory_es.errors import MemoryEsError
from memory_es.queries import alias
from memory_es.schema import Kind
from memory_es.store import translated


@dataclass(frozen=True)
class Check:
    """One finding."""

    name: str
    verdict: Literal["ok", "warning", "failed"]
    detail: str


def diagnose(
    *,
    service: Callable[[], Elasticsearch],
    layout: Callable[[], indices.Layout],
    settings: Settings,
    now: datetime,
) -> list[Check]:
    """Run every check. One that cannot run because an earlier one failed is left out."""
    checks: list[Check] = []

    def run(name: str, check: Callable[[], Check]) -> bool:
        try:
            checks.append(check())
        except MemoryEsError as error:
            checks.append(Check(name, "failed", str(error)))
        return checks[-1].verdict != "failed"

    if run("cluster", lambda: _cluster(service(), now)):
        run("licence", lambda: _licence(service(), now))
        if run("indices", lambda: _indices(service(), settings, layout())):
            run("templates", lambda: _templates(service(), settings, layout()))
            run("vectors", lambda: _vectors(service(), settings.prefix))
        run("keys", lambda: _keys(service()))
    return checks


def _cluster(service: Elasticsearch, now: datetime) -> Check:
    facts = cluster.cluster_facts(service, now)
    detail = f"Elasticsearch {facts.server_version}, client {facts.client_version}"
    return Check("cluster", "ok", detail)


def _licence(service: Elasticsearch, now: datetime) -> Check:
    facts = cluster.cluster_facts(service, now)
    cluster.require_isolation(facts)
    if facts.licence_days is None:
        return Check("licence", "ok", f"{facts.licence}, security on")
    detail = f"{facts.licence}, {facts.licence_days:.0f} days left, security on"
    if facts.licence_days > cluster.WARN_DAYS:
        return Check("licence", "ok", detail)
    return Check(
        "licence",
        "warning",
        f"{detail}. After it, recall and remember are refused: plan a licence or a fresh node",
    )


def _indices(service: Elasticsearch, settings: Settings, layout: indices.Layout) -> Check:
    indices.require_installed(service, settings.prefix, layout)
    found = indices.counts(service, settings.prefix)
    counts = ", ".join(f"{kind} {count}" for kind, count in found.items())
    return Check("indices", "ok", f"{layout.embedding_model}; {counts}")


def _templates(service: Elasticsearch, settings: Settings, layout: indices.Layout) -> Check:
    stale = indices.drift(service, settings, layout)
    if stale:
        return Check("templates", "warning", f"{', '.join(stale)} differ. Run `memory-es init`")
    return Check("templates", "ok", "as this version of memory_es installs them")


def _vectors(service: Elasticsearch, prefix: str) -> Check:
    names = [alias(prefix, kind) for kind in Kind]
    with translated():
        missing = service.count(index=names, query={"term": {"needs_embedding": True}})["count"]
    if missing:
        return Check(
            "vectors", "warning", f"{missing} memories have no vector yet (BM25 finds them)"
        )
    return Check("vectors", "ok", "every memory that can have a vector has one")


def _keys(service: Elasticsearch) -> Check:
    bad = security.keys_without_identity(service)
    if bad:
        return Check(
            "keys", "failed", f"keys without a user: {', '.join(bad)}. Invalidate them by id"
        )
    return Check("keys", "ok", "every key names its user")
