"""Keys: one per user, its identity in metadata that the cluster stamps and filters by."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from elasticsearch import Elasticsearch
from pydantic import SecretStr

from memory_es.credentials import UserCredentials, check_user_id, key_name
from memory_es.errors import AccessDenied, NotFound
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
    "indices:data/read/open_reader_context*",
    "indices:data/read/close_point_in_time",
    "indices:data/read/scroll*",
]
#: Creation in bulk, by its actions. The privilege ``create_doc`` would also let a key change
#: mappings (``PUT /_mapping`` answered 200: measured), and ``indices:data/write/index``, which a
#: creation outside of a bulk needs, means every action that begins so: overwriting too. A refresh
#: is no power that ``?refresh=true`` on a creation would not give.
_WRITE = [
    "indices:data/write/bulk*",
    "indices:data/write/index:op_type/create",
    "indices:admin/refresh*",
]


def _names(prefix: str, name: str) -> list[str]:
    """Alias and versioned indices: a key needs both (measured)."""
    return [alias(prefix, name), f"{alias(prefix, name)}-*"]


def role_of(user_id: str, prefix: str) -> dict[str, Any]:
    """Role descriptor of a user's key: read and create own memories, read own usage rows and
    the catalog; nothing else, and nothing of anybody else.

    A memory is one's own if its *only* owner is oneself. The stamp replaces ``owner``'s parts but
    not a second spelling of them: a body with ``"owner.api_key.metadata.user_id": "victim"`` was
    stored with both owners and found by the victim (measured). ``values`` has doc values alone,
    so its ranges are checked on the few memories that the term has found.
    """
    own = {
        "bool": {
            "filter": [{"term": {OWNER_FIELD: user_id}}],
            "must_not": [
                {"range": {f"{OWNER_FIELD}.values": {"lt": user_id}}},
                {"range": {f"{OWNER_FIELD}.values": {"gt": user_id}}},
            ],
        }
    }
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


def invalidate(service: Elasticsearch, key_ids: Iterable[str]) -> None:
    """End keys by id. When this returns, none of them is taken any more.

    Elasticsearch finds a key to end by a search, and answers 200 when it finds none: a key made
    within the last second (``refresh=false``) stayed valid (measured). So it is asked again
    until every one is ended. Keys that were ended before count as ended.

    Raises:
        NotFound: an id that is no key.
    """
    left = set(key_ids)
    for pause in (0.0, 0.2, 0.4, 0.8, 1.6, 3.2):
        if not left:
            return
        time.sleep(pause)
        with translated():
            left -= {*service.security.invalidate_api_key(ids=sorted(left))["invalidated_api_keys"]}
            if left:
                found = service.security.query_api_keys(
                    query={"ids": {"values": sorted(left)}}, size=len(left)
                )
                left -= {key["id"] for key in found["api_keys"] if key["invalidated"]}
    if left:
        raise NotFound(f"there are no keys {', '.join(sorted(left))}", code="no_such_key")


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
