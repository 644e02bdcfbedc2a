"""The chain that keeps users apart, tried link by link on a live cluster: ``doctor --security``.

Every link is looked at as it is now, and then tried: two users of the moment write and probe.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import elasticsearch
from elasticsearch import Elasticsearch

from memory_es import cluster, indices, key_review, security, service_account
from memory_es.config import INSECURE, Settings
from memory_es.credentials import UserCredentials
from memory_es.doctor import Check, run_checks
from memory_es.documents import SemanticDocument
from memory_es.placement import Placement
from memory_es.schema import OWNED, Kind
from memory_es.store import translated
from memory_es.text import owner_id, routing
from memory_es.users import Users

#: How long the keys of the two users are valid if this process is killed.
_LIFETIME = "10m"
_SHOWN = 10


def diagnose(
    users: Callable[[], Users], settings: Settings, new_id: Callable[[], str]
) -> list[Check]:
    """Run every check of the chain. One that cannot run because an earlier one failed is left
    out."""
    if settings.isolation == INSECURE:
        return [
            Check(
                "isolation",
                "failed",
                "nothing keeps users apart: --insecure-single-user. Use a cluster with security",
            )
        ]
    return run_checks(
        (
            ("security", lambda: _security(users(), settings)),
            ("service account", lambda: _account(users())),
            ("user keys", lambda: _keys(users())),
            ("live probe", lambda: _probe(users(), new_id)),
            ("suspicious texts", lambda: _suspicious(users())),
        ),
        # whoever may not be asked, or keeps nobody apart, cannot be probed
        needed={"security"},
    )


def _security(users: Users, settings: Settings) -> Check:
    facts = cluster.require_fit(users.service, users.clock(), settings.isolation)
    return Check("security", "ok", f"on, licence {facts.licence}, isolation={settings.isolation}")


def _account(users: Users) -> Check:
    with translated():
        who = users.service.security.authenticate().body
    if who["roles"] != [service_account.name(users.placement.prefix)]:
        roles = ", ".join(who["roles"])
        return Check("service account", "failed", f"has other roles: {roles}. Run `memory-es init`")
    if service_account.drift(users.service, users.placement):
        return Check(
            "service account", "failed", "its role was altered. Run `memory-es init` as operator"
        )
    return Check("service account", "ok", f"{who['username']}, with the powers it needs alone")


def _keys(users: Users) -> Check:
    bad = key_review.bad_keys(users.service, users.placement)
    certain = [f"{key.key_id} {key.reason}" for key in bad if key.certain]
    live = [key for key in users.keys() if key.state == "live"]  # noqa: SIM118 -- no mapping
    out = users.inactive({key.user_id for key in live if key.user_id})
    certain += [f"{key.key_id} is of a user who was revoked" for key in live if key.user_id in out]
    if certain:
        return Check(
            "user keys",
            "failed",
            f"{'; '.join(certain[:_SHOWN])} ({len(certain)} in all). End each with"
            " `memory-es users revoke --key ID`; what an administrator made, as administrator",
        )
    doubtful = [f"{key.key_id} {key.reason}" for key in bad]
    if doubtful:
        return Check(
            "user keys",
            "warning",
            f"{'; '.join(doubtful[:_SHOWN])} ({len(doubtful)} in all): an administrator's? Each can"
            " read and write every memory",
        )
    return Check("user keys", "ok", "each live key names its user and reaches nothing else")


def _suspicious(users: Users) -> Check:
    with translated():
        answer = users.service.search(
            index=users.placement.everybody(Kind),
            query={"term": {"suspicious": True}},
            size=_SHOWN,
            source=False,
            track_total_hits=True,
        )
    total = answer["hits"]["total"]["value"]
    if not total:
        return Check("suspicious texts", "ok", "no memory is flagged")
    ids = ", ".join(hit["_id"] for hit in answer["hits"]["hits"])
    return Check(
        "suspicious texts",
        "warning",
        f"{total} memories look like instructions or carry secrets, for instance {ids}",
    )


# --- the live probe ---------------------------------------------------------------------------


def _probe(users: Users, new_id: Callable[[], str]) -> Check:
    """A forged write must be stamped, a foreign read find nothing, a change be refused."""
    names = [f"doctor {new_id()[:12]} {part}" for part in ("one", "two")]
    made: list[UserCredentials] = []
    try:
        for name in names:
            indices.install_user(users.service, users.placement, routing(name))
            made.append(
                security.mint(
                    users.service,
                    name,
                    placement=users.placement,
                    deployment_secret=users.secret.get_secret_value(),
                    issued_by="doctor",
                    expiration=_LIFETIME,
                    purpose="probe",
                )
            )
        faults = _try(users, made, new_id())
    finally:
        _clean_up(users, names)
        security.invalidate(users.service, [key.key_id for key in made])
    if faults:
        return Check("live probe", "failed", "; ".join(faults))
    return Check("live probe", "ok", "forged write stamped, foreign read 404, change refused")


def _try(users: Users, made: list[UserCredentials], id_: str) -> list[str]:
    writer, reader = made
    placement, place = users.placement, routing(writer.user_id)
    index = placement.index(Kind.SEMANTIC, place)
    keys = [
        users.service.options(api_key=key.api_key.get_secret_value(), ignore_status=(403, 404))
        for key in made
    ]
    by_writer, by_reader = keys
    document = _document(reader.user_id, users)
    with translated():
        answer = by_writer.bulk(
            operations=[{"create": {"_index": index, "_id": id_, "routing": place}}, document],
            refresh=True,
        )
        if answer.get("errors", True):
            return ["a user's key cannot write"]
        stored = users.service.get(index=index, id=id_, routing=place)["_source"]
        foreign_get = by_reader.get(index=index, id=id_, routing=place)
        foreign_search = by_reader.search(index=index, query={"ids": {"values": [id_]}})
        own_get = by_writer.get(index=index, id=id_, routing=place)
        change = by_writer.update(index=index, id=id_, routing=place, doc={"revision": 7})
    faults = []
    stamp = stored.get("owner", {}).get("api_key", {}).get("metadata", {}).get("owner_id")
    if stamp != owner_id(writer.user_id):
        faults.append("a forged owner was stored as written: the pipeline does not stamp")
    if own_get.meta.status != 200:
        faults.append("a user cannot read an own memory")
    expected = {403, 404} if placement.by_index else {404}
    if foreign_get.meta.status not in expected:
        faults.append(f"a foreign memory was read (HTTP {foreign_get.meta.status})")
    if foreign_search.meta.status == 200 and foreign_search["hits"]["hits"]:
        faults.append("a foreign memory was found by a search")
    if change.meta.status != 403:
        faults.append(f"a user's key may change memories (HTTP {change.meta.status})")
    return faults


def _document(victim: str, users: Users) -> dict[str, Any]:
    now = users.clock()
    document = SemanticDocument(
        text="written by memory-es doctor",
        fact_type="world",
        confidence=1.0,
        content_hash="doctor",
        created_at=now,
        event_time=now,
        owner={"api_key": {"metadata": {"owner_id": owner_id(victim)}}},
    )
    return document.model_dump(mode="json", exclude_defaults=True) | {"kind": "semantic"}


def _clean_up(users: Users, names: list[str]) -> None:
    for name in names:
        place = routing(name)
        if users.placement.by_index:
            _delete_index(users.service, users.placement, place)
        else:
            _delete_documents(users.service, users.placement, place)


def _delete_index(service: Elasticsearch, placement: Placement, place: str) -> None:
    with translated():
        try:
            found = service.indices.get_alias(index=placement.of_user(place)).body
        except elasticsearch.NotFoundError:
            return
        for index in found:
            service.indices.delete(index=index)


def _delete_documents(service: Elasticsearch, placement: Placement, place: str) -> None:
    """What the probe wrote: everything under its own routing, in whatever index."""
    with translated():
        for kind in OWNED:
            index = placement.index(kind)
            answer = service.search(
                index=index, routing=place, query={"term": {"content_hash": "doctor"}}, size=100
            )
            for hit in answer["hits"]["hits"]:
                if hit.get("_routing") == place:
                    service.delete(index=index, id=hit["_id"], routing=place, refresh=True)
