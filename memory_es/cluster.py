"""The cluster before it is used: versions, licence, security."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import version

import elasticsearch
from elasticsearch import Elasticsearch

from memory_es.config import INSECURE, Isolation
from memory_es.errors import AccessDenied, SetupError
from memory_es.store import translate, translated

#: The first server with all that we use: packed vectors in documents and queries, vectors left out
#: of `_source`. The client is of the same major version.
MINIMUM = (9, 5)
#: Days before a licence ends from which every report warns.
WARN_DAYS = 7


@dataclass(frozen=True)
class ClusterFacts:
    """What the start-up check reads of a cluster."""

    server_version: str
    client_version: str
    licence: str
    licence_days: float | None
    security: bool


def cluster_facts(service: Elasticsearch, now: datetime) -> ClusterFacts:
    """Versions, licence and security of the cluster.

    The version is asked of ``_nodes`` (the embedded distribution has no ``GET /``), through the
    transport with plain JSON headers: an older server refuses the client's versioned ones.

    Raises:
        SetupError: ``version_mismatch``: server and client have different major versions.
    """
    client_version = version("elasticsearch")
    headers = {**service._headers, "accept": "application/json"}  # noqa: SLF001 -- no public way
    with translated():
        answer = service.transport.perform_request(
            "GET", "/_nodes/_local/info?filter_path=nodes.*.version", headers=headers
        )
    if answer.meta.status in (401, 403):
        with translated():
            service.cluster.health()  # raises the client's error for these credentials
    nodes = answer.body.get("nodes", {}) if isinstance(answer.body, dict) else {}
    versions = sorted({str(node["version"]) for node in nodes.values()})
    if not versions:
        raise SetupError(
            f"the server at this URL does not answer as Elasticsearch (HTTP {answer.meta.status})",
            code="unsupported_server",
            remedy="Check ELASTICSEARCH_URL",
        )
    server = tuple(int(part) for part in versions[0].split(".")[:2])
    if not MINIMUM <= server < (MINIMUM[0] + 1, 0):
        raise SetupError(
            f"the server is Elasticsearch {versions[0]}, the client is {client_version}",
            code="version_mismatch",
            remedy=f"Use a server of version {MINIMUM[0]}.{MINIMUM[1]} or a later {MINIMUM[0]}",
        )
    with translated():
        licence = service.license.get(filter_path="license").body["license"]
    expiry = licence.get("expiry_date_in_millis")
    return ClusterFacts(
        server_version=versions[0],
        client_version=client_version,
        licence=licence["type"]
        if licence["status"] == "active"
        else f"{licence['type']} (expired)",
        licence_days=(expiry / 1000 - now.timestamp()) / 86_400 if expiry else None,
        security=_security_on(service),
    )


def _security_on(service: Elasticsearch) -> bool:
    """Without security the server has no such endpoint and answers 400 or 405."""
    try:
        service.security.authenticate()
    except elasticsearch.ApiError as error:
        if error.status_code in (400, 405):
            return False
        raise translate(error) from None
    return True


def require_fit(service: Elasticsearch, now: datetime, isolation: Isolation) -> ClusterFacts:
    """The facts of a cluster that is fit for this way of isolation.

    Raises:
        SetupError: it is not (``cluster_facts``, ``require_isolation``).
    """
    try:
        facts = cluster_facts(service, now)
    except AccessDenied:
        if isolation == INSECURE:
            raise _security_is_on() from None
        raise
    require_isolation(facts, isolation)
    return facts


def _security_is_on() -> SetupError:
    return SetupError(
        "security is on on this cluster: there is no need to go without",
        code="security_on",
        remedy="Leave --insecure-single-user out",
    )


def require_isolation(facts: ClusterFacts, isolation: Isolation) -> None:
    """Refuse a cluster that would not keep users apart in the way that is configured.

    Raises:
        SetupError: ``security_off``, ``security_on``, ``licence`` or ``licence_expired``.
    """
    if isolation == INSECURE:
        if facts.security:
            raise _security_is_on()
        return
    if not facts.security:
        raise SetupError(
            "security is off on this cluster: nothing would keep users apart",
            code="security_off",
            remedy="Set xpack.security.enabled: true, or use the embedded node (`memory-es up`);"
            " on a laptop of one user there is --insecure-single-user",
        )
    if isolation == "dls" and facts.licence not in ("trial", "platinum", "enterprise"):
        raise SetupError(
            f"the licence {facts.licence} does not allow document-level security",
            code="licence_expired" if "expired" in facts.licence else "licence",
            remedy="Use isolation by index, which every licence allows (MEMORY_ES_ISOLATION=index"
            " and another MEMORY_ES_PREFIX), a trial, Platinum or Enterprise licence, or a fresh"
            " embedded node (another MEMORY_ES_STATE_DIR)",
        )
