"""Live keys that break the isolation of a deployment, whoever made them."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable
from typing import Any

from elasticsearch import Elasticsearch

from memory_es import security
from memory_es.credentials import key_name
from memory_es.placement import SERVING, Placement
from memory_es.schema import Frozen, Kind
from memory_es.store import translated
from memory_es.text import owner_id

#: Privileges on the cluster by which the stamp, the templates or keys can be changed.
_POWERS = {
    "all",
    "manage",
    "manage_security",
    "manage_api_key",
    "manage_pipeline",
    "manage_ingest_pipelines",
    "manage_index_templates",
}
#: Operators of Lucene's regular expressions that others do not have, or read otherwise.
_LUCENE_ONLY = re.compile(r"[~<>&@#\"]")


class BadKey(Frozen):
    """A live key that breaks the isolation of a deployment, or may."""

    key_id: str
    reason: str
    certain: bool


def bad_keys(service: Elasticsearch, placement: Placement) -> list[BadKey]:
    """Live keys, of anybody, that reach this deployment's indices and should not as they do.

    Without metadata that names the owner, the stamp keeps the owner that such a key writes into a
    body; with other powers than ``role_of``'s, it reads or writes more than its user's. A key
    without role descriptors has all powers of whoever made it: it may be an administrator's, so
    that it is not certainly bad.
    """
    security.settle(service)
    with translated():
        answer = service.security.get_api_key(active_only=True)
        live = service.indices.get_alias(
            index=[f"{name}-*" for name in placement.everybody([*Kind, *SERVING])],
            ignore_unavailable=True,
        ).body
    names = {*live, *(alias for body in live.values() for alias in body["aliases"])}
    found = (_judge(key, placement, names) for key in answer["api_keys"])
    return [bad for bad in found if bad is not None]


def _judge(key: dict[str, Any], placement: Placement, live: Collection[str]) -> BadKey | None:
    metadata = key.get("metadata") or {}
    roles = key.get("role_descriptors") or {}
    user, access = metadata.get("user_id"), metadata.get("access")
    if metadata.get("deployment") == placement.prefix and isinstance(user, str) and user:
        wanted = security.role_of(user, placement, "read" if access == "read" else "write")
        if metadata.get("owner_id") != owner_id(user) or key["name"] != key_name(user):
            return BadKey(key_id=key["id"], reason="names two owners", certain=True)
        if {name: _powers(role) for name, role in roles.items()} != {
            security.ROLE: _powers(wanted)
        }:
            return BadKey(
                key_id=key["id"], reason="has other powers than a user's key", certain=True
            )
        return None
    grants = [grant for role in roles.values() for grant in role.get("indices", [])]
    if any(_covers(name, live) for grant in grants for name in grant["names"]):
        return BadKey(key_id=key["id"], reason="reaches memories without an identity", certain=True)
    run_as = [name for role in roles.values() for name in role.get("run_as", [])]
    if run_as:
        return BadKey(key_id=key["id"], reason="may act as another user", certain=True)
    powers = {name for role in roles.values() for name in role.get("cluster", [])} & _POWERS
    if powers:
        reason = f"may {', '.join(sorted(powers))} on the cluster"
        return BadKey(key_id=key["id"], reason=reason, certain=False)
    if not roles:
        return BadKey(key_id=key["id"], reason="has all powers of its maker", certain=False)
    return None


def _powers(role: dict[str, Any]) -> Any:
    """A role descriptor in a form that can be compared: Elasticsearch adds empty parts."""
    grants = [
        (sorted(grant["names"]), sorted(grant["privileges"]), _query_of(grant))
        for grant in role.get("indices", [])
    ]
    others = {
        name: part
        for name, part in role.items()
        if part and name not in ("indices", "transient_metadata")
    }
    return sorted(grants, key=repr), others


def _query_of(grant: dict[str, Any]) -> Any:
    """A query comes back as a string of JSON."""
    query = grant.get("query")
    field_security = grant.get("field_security")
    parsed = json.loads(query) if isinstance(query, str) else query
    return parsed if not field_security else (parsed, field_security)


def _covers(pattern: str, names: Iterable[str]) -> bool:
    """Whether an index name in a role covers one of these: a name, a pattern with ``*`` and ``?``,
    or a regular expression between slashes. One in Lucene's own spelling counts as covering."""
    if pattern.startswith("/"):
        try:
            spelt = re.compile(pattern.strip("/"))
        except re.error:
            return True
        if _LUCENE_ONLY.search(pattern):
            return True
    else:
        parts = (".*" if c == "*" else "." if c == "?" else re.escape(c) for c in pattern)
        spelt = re.compile("".join(parts))
    return any(spelt.fullmatch(name) for name in names)
