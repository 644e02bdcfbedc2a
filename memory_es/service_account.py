"""The service account: the native user and role with which everything but ``init`` works."""

from __future__ import annotations

from typing import Any

import elasticsearch
from elasticsearch import Elasticsearch

from memory_es.config import EVALUATION
from memory_es.errors import AccessDenied, SetupError
from memory_es.placement import Placement
from memory_es.schema import OWNED
from memory_es.store import translated
from memory_es.templates import USER

#: Own keys alone: a key made by another user cannot be changed or ended with it. ``read_security``
#: shows the keys of others, for ``doctor``.
_CLUSTER = [
    "manage_own_api_key",
    "read_security",
    "manage_index_templates",
    "manage_ingest_pipelines",
    "monitor",
]
#: To make an index with its alias, and to see what is there.
_SET_UP = ["create_index", "indices:admin/aliases", "view_index_metadata"]
#: To make the audit index, whose alias comes from its template, and to add to it. The privilege
#: ``create_doc`` would allow changing its mapping, the alias API removing it (both measured).
_APPEND = [
    "create_index",
    "view_index_metadata",
    "indices:data/write/bulk*",
    "indices:data/write/index:op_type/create",
]


def name(prefix: str) -> str:
    """Name of the account's user, and of its role."""
    return f"{prefix}_service"


def role(placement: Placement) -> dict[str, Any]:
    """What the service may do: keys of its own making, this deployment's templates, pipeline and
    indices. It must itself have what it grants to users' keys. The audit trail it may only
    append to.
    """
    kept = [USER if placement.by_index and kind in OWNED else str(kind) for kind in OWNED]
    memories = [*dict.fromkeys(kept), "catalog", "usage", "state"]
    repair = ["indices:admin/settings/update", "maintenance"]
    grants = [
        {
            "names": [f"{placement.prefix}-{kind}{end}" for kind in memories for end in ("", "-*")],
            "privileges": [*_SET_UP, *repair, "read", "write"]
            + (["delete_index"] if placement.by_index else []),
        },
        {
            "names": [f"{placement.prefix}-audit", f"{placement.prefix}-audit-*"],
            "privileges": _APPEND,
        },
        {
            "names": [f"{placement.prefix}{EVALUATION}*"],
            "privileges": ["manage", "read", "write"],
        },
    ]
    return {"cluster": _CLUSTER, "indices": grants}


def install(
    admin: Elasticsearch, placement: Placement, *, password: str, rotate: bool
) -> list[str]:
    """Make the account, or bring its role up to date; returns what changed.

    Args:
        admin: a client that may manage security.
        password: the account's password.
        rotate: give an account that exists this password.

    Raises:
        SetupError: ``service_password_unknown``: the account exists with another password.
    """
    account = name(placement.prefix)
    changes = []
    with translated():
        if drift(admin, placement):
            admin.security.put_role(name=account, **role(placement))
            changes.append(f"role {account}")
        try:
            user = admin.security.get_user(username=account)[account]
        except elasticsearch.NotFoundError:
            admin.security.put_user(username=account, password=password, roles=[account])
            changes.append(f"service account {account}")
            user, rotate = {"roles": [account], "enabled": True}, False
        if user["roles"] != [account] or not user["enabled"]:
            admin.security.put_user(username=account, roles=[account], enabled=True)
            changes.append(f"service account {account}")
        if rotate:
            admin.security.change_password(username=account, password=password)
            return [*changes, f"password of {account}"]
    if not takes(admin, placement, password):  # nor if another host made it at the same moment
        raise password_unknown(placement)
    return changes


def exists(admin: Elasticsearch, placement: Placement) -> bool:
    """Whether the account was made before, perhaps from another host."""
    with translated():
        try:
            admin.security.get_user(username=name(placement.prefix))
        except elasticsearch.NotFoundError:
            return False
    return True


def password_unknown(placement: Placement) -> SetupError:
    """The error of a host that does not have the password of the account."""
    return SetupError(
        f"the service account {name(placement.prefix)} exists, with a password that this host does"
        " not have",
        code="service_password_unknown",
        remedy="Set MEMORY_ES_SERVICE_PASSWORD (and MEMORY_ES_SECRET) as on the host that made it,"
        " or give it a new one everywhere with `memory-es init --rotate`",
    )


def takes(client: Elasticsearch, placement: Placement, password: str) -> bool:
    """Whether the cluster takes this password for the account."""
    try:
        with translated():
            client.options(basic_auth=(name(placement.prefix), password)).security.authenticate()
    except AccessDenied:
        return False
    return True


def drift(reader: Elasticsearch, placement: Placement) -> bool:
    """Whether the account's role is missing or has other powers than this version gives it."""
    account = name(placement.prefix)
    with translated():
        try:
            found = reader.security.get_role(name=account)[account]
        except elasticsearch.NotFoundError:
            return True
    return bool(_comparable(found) != _comparable(role(placement)))


def _comparable(role: dict[str, Any]) -> Any:
    """A role with its lists in one order and without what is empty: Elasticsearch adds that."""
    grants = [
        grant | {"names": sorted(grant["names"]), "privileges": sorted(grant["privileges"])}
        for grant in role["indices"]
    ]
    powers = role | {"cluster": sorted(role["cluster"]), "indices": []}
    for part in ("metadata", "transient_metadata", "description"):  # these give no power
        powers.pop(part, None)
    return _filled(powers), sorted(map(_filled, grants), key=str)


def _filled(parts: dict[str, Any]) -> list[tuple[str, Any]]:
    return sorted((name, part) for name, part in parts.items() if part)


def remove(admin: Elasticsearch, placement: Placement) -> None:
    """Delete the account and its role. Keys that it made stay valid: end them by id first."""
    account = name(placement.prefix)
    with translated():
        admin.options(ignore_status=404).security.delete_user(username=account)
        admin.options(ignore_status=404).security.delete_role(name=account)
