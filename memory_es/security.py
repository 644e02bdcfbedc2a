"""Keys: one per user, its identity in metadata that the cluster stamps and filters by."""

from __future__ import annotations

from typing import Any

from elasticsearch import Elasticsearch
from pydantic import SecretStr

from memory_es.credentials import UserCredentials, check_user_id, key_name
from memory_es.errors import AccessDenied
from memory_es.queries import alias
from memory_es.schema import OWNED
from memory_es.store import translated
from memory_es.text import user_secret

OWNER_FIELD = "owner.api_key.metadata.user_id"

#: Named actions instead of ``read``, which would allow ``_explain`` and term vectors: these show
#: how often a word occurs among all users of a shard.
_READ = [
    "indices:data/read/search*",
    "indices:data/read/msearch*",
    "indices:data/read/get*",
    "indices:data/read/mget*",
    "indices:data/read/open_point_in_time",
    "indices:data/read/close_point_in_time",
    "indices:data/read/scroll*",
]
#: A refresh is no power that ``?refresh=true`` on a creation would not give.
_WRITE = ["create_doc", "indices:admin/refresh*"]


def _names(prefix: str, name: str) -> list[str]:
    """Alias and versioned indices: a key needs both (measured)."""
    return [alias(prefix, name), f"{alias(prefix, name)}-*"]


def role_of(user_id: str, prefix: str) -> dict[str, Any]:
    """Role descriptor of a user's key: read and create own memories, read own usage rows and
    the catalog; nothing else, and nothing of anybody else."""
    own = {"term": {OWNER_FIELD: user_id}}
    memories = [name for kind in OWNED for name in _names(prefix, kind)]
    return {
        "cluster": [],
        "indices": [
            {"names": memories, "privileges": [*_READ, *_WRITE], "query": own},
            {"names": _names(prefix, "usage"), "privileges": _READ, "query": own},
            {"names": _names(prefix, "catalog"), "privileges": _READ},
        ],
    }


def mint(
    service: Elasticsearch,
    user_id: str,
    *,
    prefix: str,
    deployment_secret: str,
    expiration: str | None = None,
) -> UserCredentials:
    """Make a key for a user: the only function that makes keys, because the stamp is only safe
    for keys with metadata. ``refresh=false`` takes 9 ms instead of a second, and the key works
    at once (DESIGN §4).

    Args:
        expiration: an Elasticsearch time span such as ``1h``; None: the key does not expire.

    Raises:
        InvalidInput: the user id is empty or breaks the rule of ``check_user_id``.
        AccessDenied: the service credential may not make keys.
    """
    check_user_id(user_id)
    with translated():
        answer = service.security.create_api_key(
            name=key_name(user_id),
            role_descriptors={"memory_user": role_of(user_id, prefix)},
            metadata={"user_id": user_id, "deployment": prefix},
            expiration=expiration,
            refresh=False,
        )
    return UserCredentials(
        user_id=user_id,
        key_id=answer["id"],
        api_key=SecretStr(answer["encoded"]),
        id_secret=SecretStr(user_secret(deployment_secret, user_id)),
    )


def invalidate(service: Elasticsearch, key_ids: list[str]) -> None:
    """End keys by id, at once."""
    if key_ids:
        with translated():
            service.security.invalidate_api_key(ids=key_ids)


def works(client: Elasticsearch, credentials: UserCredentials) -> bool:
    """Whether the cluster still takes a key.

    Raises:
        MemoryEsError: it could not be asked.
    """
    try:
        with translated():
            client.options(api_key=credentials.api_key.get_secret_value()).security.authenticate()
    except AccessDenied:
        return False
    return True


def keys_without_identity(service: Elasticsearch) -> list[str]:
    """Ids of live keys named like ours whose metadata names no user: the stamp would keep the
    owner that such a key writes into a body."""
    with translated():
        answer = service.security.get_api_key(active_only=True)
    return [
        key["id"]
        for key in answer["api_keys"]
        if key["name"].startswith("memory:") and not key.get("metadata", {}).get("user_id")
    ]
