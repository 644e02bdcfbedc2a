"""Users: who may have keys, and the life of these keys from the operator's side.

A user is known to a deployment by a row of its state index, which the service alone writes: a
key is minted for known users only, so that a mistyped id is an error and a revoked user stays
out until added again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from elasticsearch import Elasticsearch
from pydantic import SecretStr

from memory_es import indices, security
from memory_es.config import INSECURE
from memory_es.credentials import Access, UserCredentials, check_user_id
from memory_es.documents import StateRow
from memory_es.errors import AccessDenied, Conflict, InvalidInput, NotFound, SetupError
from memory_es.placement import Placement
from memory_es.security import KeyInfo
from memory_es.store import Creation, Reference, Store, Stored
from memory_es.text import owner_id, routing, user_secret

Status = Literal["active", "revoked"]
#: The row that names the only user where nothing keeps users apart.
_SINGLE = Reference("state", "single-user", None)
_ATTEMPTS = 5


@dataclass(frozen=True)
class Users:
    """The users of one deployment, through the service credential."""

    service: Elasticsearch
    placement: Placement
    secret: SecretStr
    clock: Callable[[], datetime]

    def add(self, user_id: str) -> None:
        """Make a user known, also one that was revoked. Harmless for one that is.

        Raises:
            InvalidInput: the id breaks the rule of ``check_user_id``.
            SetupError: ``second_user``: nothing keeps users apart here, and there is one.
        """
        check_user_id(user_id)
        if self.placement.isolation == INSECURE:
            self._take_single(user_id)
        self._set(user_id, "active")
        indices.install_user(self.service, self.placement, routing(user_id))

    def require_active(self, user_id: str) -> None:
        """Refuse a user that is not known, or revoked.

        Raises:
            InvalidInput: see ``add``.
            AccessDenied: ``unknown_user`` or ``revoked``.
        """
        check_user_id(user_id)
        row = self._read(user_id)
        status = row.source["data"]["status"] if row else None
        if status == "active":
            return
        raise AccessDenied(
            f"the access of the user {user_id!r} was revoked"
            if status
            else f"the user {user_id!r} is not known here",
            code="revoked" if status else "unknown_user",
            remedy="Add the user with `memory-es users add USER`",
        )

    def inactive(self, user_ids: Iterable[str]) -> set[str]:
        """Which of these users are revoked or not known."""
        rows = {user: self._reference(user) for user in user_ids}
        found = self._store().fetch(list(rows.values()))
        active = {
            user
            for user, reference in rows.items()
            if (row := found.get(reference)) and row.source["data"]["status"] == "active"
        }
        return rows.keys() - active

    def mint(
        self,
        user_id: str,
        *,
        issued_by: str,
        expiration: str | None,
        access: Access = "write",
        purpose: str = "default",
        visible: bool = False,
    ) -> UserCredentials:
        """A new key for a known user.

        Raises:
            InvalidInput, AccessDenied: see ``require_active``.
        """
        self.require_active(user_id)
        if self.placement.isolation == INSECURE:
            if access == "read":
                raise InvalidInput(
                    "access",
                    "cannot be limited to reading: there are no keys with --insecure-single-user",
                    remedy="Leave --read-only out, or use a cluster with security",
                )
            secret = user_secret(self.secret.get_secret_value(), user_id)
            return UserCredentials(
                user_id=user_id, key_id="", api_key=SecretStr(""), id_secret=SecretStr(secret)
            )
        made = security.mint(
            self.service,
            user_id,
            placement=self.placement,
            deployment_secret=self.secret.get_secret_value(),
            issued_by=issued_by,
            access=access,
            expiration=expiration,
            purpose=purpose,
            visible=visible,
        )
        try:
            # A revocation that began meanwhile either sees this key or is seen here.
            self.require_active(user_id)
        except AccessDenied:
            security.invalidate(self.service, [made.key_id])
            raise
        return made

    def rotate(
        self, user_id: str, *, overlap: timedelta, issued_by: str, expiration: str, purpose: str
    ) -> tuple[UserCredentials, list[KeyInfo]]:
        """A new key in place of the live ones of the same purpose, which end after ``overlap``.

        Returns:
            The new credentials, and the keys that they replace.

        Raises:
            NotFound: no live key of that purpose.
            InvalidInput, AccessDenied: see ``require_active``.
        """
        self._require_keys()
        self.require_active(user_id)
        security.settle(self.service)
        before = [
            key for key in self.keys(user_id) if key.state == "live" and key.purpose == purpose
        ]
        if not before:
            raise NotFound(
                f"the user {user_id!r} has no live key for the purpose {purpose!r}",
                code="no_such_key",
                remedy="See `memory-es users list`; make one with `memory-es users add`",
            )
        if len({key.access for key in before}) > 1:
            raise InvalidInput(
                "purpose",
                f"the keys for {purpose!r} have different access",
                remedy="Revoke one of them by its id first",
            )
        access: Access = "read" if before[0].access == "read" else "write"
        made = self.mint(
            user_id,
            issued_by=issued_by,
            expiration=expiration,
            access=access,
            purpose=purpose,
            visible=True,
        )
        try:
            self._end(before, overlap)
        except BaseException:  # the new key never reaches anybody: it must not live on
            security.invalidate(self.service, [made.key_id])
            raise
        return made, before

    def _end(self, keys: list[KeyInfo], overlap: timedelta) -> None:
        if not overlap:
            return security.invalidate(self.service, [key.key_id for key in keys])
        now = self.clock()
        for key in keys:
            with contextlib.suppress(NotFound, SetupError):  # it has ended meanwhile
                security.end_later(self.service, key, overlap, now)
        return None

    def revoke(self, user_id: str | None, key_id: str | None = None) -> list[str]:
        """End every key of a user, or one; returns the ids ended. When this returns, none of them
        is taken any more, and (without ``key_id``) none is minted for this user.

        Args:
            user_id: None: whoever the key is for, also one that names nobody.

        Raises:
            InvalidInput: neither a user nor a key.
            NotFound: no such user, or no such key (of this user).
        """
        self._require_keys()
        if user_id is None and key_id is not None:
            security.invalidate(self.service, [key_id])
            return [key_id]
        user_id = check_user_id(user_id or "")
        if self._read(user_id) is None:
            raise NotFound(f"the user {user_id!r} is not known here", code="unknown_user")
        if key_id is None:
            self._set(user_id, "revoked")
        security.settle(self.service)
        # by the cluster's word alone: this host's clock may be wrong about what has expired
        live = [key.key_id for key in self.keys(user_id) if key.state != "revoked"]
        if key_id is not None:
            if key_id not in live:
                raise NotFound(
                    f"the user {user_id!r} has no live key {key_id}",
                    code="no_such_key",
                    remedy="See `memory-es users list`",
                )
            live = [key_id]
        security.invalidate(self.service, live)
        return live

    def keys(self, user_id: str | None = None) -> list[KeyInfo]:
        """Keys of a user, or of all, oldest first; never a secret."""
        self._require_keys()
        return security.keys_of(self.service, self.placement, user_id=user_id, now=self.clock())

    def _require_keys(self) -> None:
        if self.placement.isolation == INSECURE:
            raise SetupError(
                "there are no keys: this deployment runs with --insecure-single-user",
                code="insecure",
                remedy="Switch security on and make a deployment under another MEMORY_ES_PREFIX",
            )

    # --- rows ---

    def _store(self) -> Store:
        return Store(self.service, self.placement)

    def _reference(self, user_id: str) -> Reference:
        place = routing(user_id)
        return Reference("state", f"user-{place}", place)

    def _read(self, user_id: str) -> Stored | None:
        reference = self._reference(user_id)
        return self._store().fetch([reference]).get(reference)

    def _set(self, user_id: str, status: Status) -> None:
        reference, store = self._reference(user_id), self._store()
        for _ in range(_ATTEMPTS):
            now = self.clock()
            row = StateRow(
                owner={"api_key": {"metadata": {"owner_id": owner_id(user_id)}}},
                state_type="user",
                name=user_id,
                data={"status": status},
                updated_at=now,
            )
            seen = self._read(user_id)
            if seen is None:
                creation = Creation(reference, row.model_dump(mode="json", exclude_none=True))
                error = store.create([creation])[reference]
                if error is None:
                    return None
                if not isinstance(error, Conflict):
                    raise error
            elif seen.source["data"]["status"] == status:
                return None
            else:
                change = {"data": {"status": status}, "updated_at": now.isoformat()}
                try:
                    return store.update(reference, change, seen)
                except Conflict:
                    continue
        raise Conflict(f"the user {user_id!r} is being changed by others", code="contended")

    def _take_single(self, user_id: str) -> None:
        """Be the only user: whoever comes second is refused, also in a race."""
        store = self._store()
        row = StateRow(state_type="single-user", name=user_id, updated_at=self.clock())
        creation = Creation(_SINGLE, row.model_dump(mode="json", exclude_none=True))
        error = store.create([creation])[_SINGLE]
        if error is None:
            return
        found = store.fetch([_SINGLE]).get(_SINGLE)
        if found is None or not isinstance(error, Conflict):
            raise error
        if found.source["name"] != user_id:
            raise SetupError(
                "nothing would keep a second user apart: with --insecure-single-user there is one",
                code="second_user",
                remedy="Use a cluster with security on and another MEMORY_ES_PREFIX",
            )
