"""Users' keys: minted, listed, ended. Their identity stands in metadata that the cluster stamps
onto what they write and filters by."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Literal

from elasticsearch import Elasticsearch
from pydantic import SecretStr

from memory_es.credentials import Access, UserCredentials, check_user_id, key_name
from memory_es.errors import AccessDenied, NotFound
from memory_es.placement import Placement
from memory_es.schema import OWNED, Frozen
from memory_es.store import translated
from memory_es.text import owner_id, routing, user_secret

OWNER_FIELD = "owner.api_key.metadata.owner_id"
#: The name of the only role descriptor of a user's key.
ROLE = "memory_user"
#: The name of keys that give no right and are made for their refresh.
SETTLING = "memory_es settle"
_PAGE = 1_000

#: Named actions instead of ``read``, which would allow ``_explain`` and term vectors: these show
#: how often a word occurs among all users of a shard. The mapping tells an agent that holds only
#: its key which model its index was made for.
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
_MAPPING = "indices:admin/mappings/get*"
#: Creation in bulk, by its actions. The privilege ``create_doc`` would also let a key change
#: mappings (``PUT /_mapping`` answered 200: measured), and ``indices:data/write/index``, which a
#: creation outside of a bulk needs, means every action that begins so: overwriting too. A refresh
#: is no power that ``?refresh=true`` on a creation would not give.
_WRITE = [
    "indices:data/write/bulk*",
    "indices:data/write/index:op_type/create",
    "indices:admin/refresh*",
]


def _names(name: str) -> list[str]:
    """Alias and versioned indices: a key needs both (measured)."""
    return [name, f"{name}-*"]


def role_of(user_id: str, placement: Placement, access: Access = "write") -> dict[str, Any]:
    """Role descriptor of a user's key: read and (``write``) create own memories, read the catalog
    and, where usage rows can be told apart, one's own; nothing else, and nothing of anybody else.

    With document-level security a memory is one's own if its *only* owner is oneself. The stamp
    replaces ``owner``'s parts but not a second spelling of them: a body with
    ``"owner.api_key.metadata.owner_id": "victim"`` was stored with both owners and found by the
    victim (measured). ``values`` has doc values alone, so its ranges are checked on the few
    memories that the term has found.

    With isolation by index the key is limited to the name of the user's own index.
    """
    powers = [*_READ, _MAPPING, *(_WRITE if access == "write" else [])]
    catalog = {"names": _names(placement.index("catalog")), "privileges": _READ}
    if placement.by_index:
        own = {"names": _names(placement.of_user(routing(user_id))), "privileges": powers}
        return {"cluster": [], "indices": [own, catalog]}
    owner = owner_id(user_id)
    query = {
        "bool": {
            "filter": [{"term": {OWNER_FIELD: owner}}],
            "must_not": [
                {"range": {f"{OWNER_FIELD}.values": {"lt": owner}}},
                {"range": {f"{OWNER_FIELD}.values": {"gt": owner}}},
            ],
        }
    }
    memories = [name for kind in OWNED for name in _names(placement.index(kind))]
    return {
        "cluster": [],
        "indices": [
            {"names": memories, "privileges": powers, "query": query},
            {"names": _names(placement.index("usage")), "privileges": _READ, "query": query},
            catalog,
        ],
    }


def mint(
    service: Elasticsearch,
    user_id: str,
    *,
    placement: Placement,
    deployment_secret: str,
    issued_by: str,
    access: Access = "write",
    expiration: str | None = None,
    purpose: str = "default",
    visible: bool = False,
) -> UserCredentials:
    """Make a key for a user: the only function that makes keys with powers, because the stamp is
    only safe for keys with metadata. ``refresh=false`` takes 9 ms instead of a second, and the
    key works at once (DESIGN §4).

    Args:
        issued_by: who asked for it, for the listing.
        expiration: an Elasticsearch time span such as ``1h``; None: the key does not expire.
        purpose: what it is for, for the listing.
        visible: have this key and all before it found by searches when this returns.

    Raises:
        InvalidInput: the user id is empty or breaks the rule of ``check_user_id``.
        AccessDenied: the service credential may not make keys.
    """
    check_user_id(user_id)
    with translated():
        answer = service.security.create_api_key(
            name=key_name(user_id),
            role_descriptors={ROLE: role_of(user_id, placement, access)},
            metadata={
                "owner_id": owner_id(user_id),
                "user_id": user_id,
                "deployment": placement.prefix,
                "access": access,
                "purpose": purpose,
                "issued_by": issued_by,
            },
            expiration=expiration,
            refresh=visible,
        )
    return UserCredentials(
        user_id=user_id,
        key_id=answer["id"],
        api_key=SecretStr(answer["encoded"]),
        id_secret=SecretStr(user_secret(deployment_secret, user_id)),
        access=access,
        expires_at=_time(answer.get("expiration")),
    )


class KeyInfo(Frozen):
    """A key as the operator sees it. No secret is in it: the cluster keeps none."""

    user_id: str | None
    key_id: str
    access: str | None
    purpose: str | None
    issued_by: str | None
    created_at: datetime
    expires_at: datetime | None
    state: Literal["live", "expired", "revoked"]


def keys_of(
    service: Elasticsearch, placement: Placement, *, user_id: str | None = None, now: datetime
) -> list[KeyInfo]:
    """The keys of a deployment, or of one of its users, oldest first. One that was made within
    the last second may be missing; ``settle`` first where that matters."""
    conditions = [{"term": {"metadata.deployment": placement.prefix}}]
    if user_id is not None:
        conditions.append({"term": {"metadata.user_id": user_id}})
    return [key_info(key, now) for key in _query(service, {"bool": {"filter": conditions}})]


def _query(service: Elasticsearch, query: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every key that a query finds, page by page, oldest first. Nothing that keys can be sorted by
    is unique: a page begins at the last one's moment, and what was seen is left out."""
    seen: set[str] = set()
    since = 0
    while True:
        made = {"range": {"creation": {"gte": since}}}
        with translated():
            page = service.security.query_api_keys(
                query={"bool": {"filter": [query, made]}}, size=_PAGE, sort=["creation"]
            )["api_keys"]
        fresh = [key for key in page if key["id"] not in seen]
        yield from fresh
        if len(page) < _PAGE or not fresh:
            return
        seen.update(key["id"] for key in fresh)
        since = page[-1]["creation"]


def key_info(key: dict[str, Any], now: datetime) -> KeyInfo:
    """A key as Elasticsearch describes it."""
    metadata = key.get("metadata") or {}
    expires_at = _time(key.get("expiration"))
    expired = expires_at is not None and expires_at <= now
    return KeyInfo(
        **{name: metadata.get(name) for name in ("user_id", "access", "purpose", "issued_by")},
        key_id=key["id"],
        created_at=datetime.fromtimestamp(key["creation"] / 1_000, UTC),
        expires_at=expires_at,
        state="revoked" if key["invalidated"] else "expired" if expired else "live",
    )


def _time(millis: int | None) -> datetime | None:
    return None if millis is None else datetime.fromtimestamp(millis / 1_000, UTC)


def settle(service: Elasticsearch) -> None:
    """Have every key that was made before this call found by searches when it returns.

    Elasticsearch finds keys to list or to end by a search, and keys are made without waiting for
    a refresh. Only a write refreshes that index: a key without any right that ends by itself
    (60 ms; waiting for the next refresh takes a second: measured).
    """
    with translated():
        service.security.create_api_key(
            name=SETTLING, role_descriptors={"none": {}}, expiration="1s", refresh=True
        )


def _hastened(service: Elasticsearch, call: Callable[[], Any]) -> Any:
    """The answer to a change of a key. Elasticsearch gives it at the next refresh, which it leaves
    to the clock: up to a second, in which the change is not in force (measured). Here it comes
    about at once.
    """
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(call)
        while not wait([answer], timeout=0.03).done:
            settle(service)
        return answer.result()


def invalidate(service: Elasticsearch, key_ids: Iterable[str]) -> None:
    """End keys by id. When this returns, none of them is taken any more. Keys that were ended
    before count as ended.

    Raises:
        NotFound: an id that is no key of the service's.
    """
    left = set(key_ids)
    if not left:
        return
    for attempt in range(2):
        if attempt:
            settle(service)  # it answers 200 also when it finds none
        with translated():
            call = partial(service.security.invalidate_api_key, ids=sorted(left), owner=True)
            ended = _hastened(service, call)
        left -= {*ended["invalidated_api_keys"]}
        left -= {key["id"] for key in _query(service, _ended(left))} if left else set()
        if not left:
            return
    raise NotFound(f"there are no keys {', '.join(sorted(left))}", code="no_such_key")


def _ended(key_ids: Iterable[str]) -> dict[str, Any]:
    by_id = {"ids": {"values": sorted(key_ids)}}
    return {"bool": {"filter": [by_id, {"term": {"invalidated": True}}]}}


def end_later(service: Elasticsearch, key: KeyInfo, span: timedelta, now: datetime) -> None:
    """Let a key end after a time span, if it does not end sooner by itself."""
    if key.expires_at is None or key.expires_at > now + span:
        with translated():
            left = f"{int(span.total_seconds())}s"
            call = partial(service.security.update_api_key, id=key.key_id, expiration=left)
            _hastened(service, call)


def own_key(client: Elasticsearch, credentials: UserCredentials) -> dict[str, Any]:
    """What the cluster says of a key, asked with that key itself: it may see itself, no other.

    A key made within the last second is not found yet (it is looked for by a search) and is asked
    for again.

    Raises:
        AccessDenied: it takes it no more.
        NotFound: it knows no such key.
    """
    mine = client.options(api_key=credentials.api_key.get_secret_value())
    for pause in (0.0, 0.4, 0.8, 1.6):
        time.sleep(pause)
        try:
            with translated():
                found = mine.security.get_api_key(id=credentials.key_id, owner=True)["api_keys"]
        except NotFound:
            continue
        if found:
            key: dict[str, Any] = found[0]
            return key
    raise NotFound("the cluster does not know this key", code="no_such_key")


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
