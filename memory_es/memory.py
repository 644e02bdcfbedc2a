"""The public API for one user: ``Memory``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from memory_es import security
from memory_es.audit import Act, Action
from memory_es.config import Settings
from memory_es.credentials import UserCredentials
from memory_es.deployment import Deployment
from memory_es.errors import (
    AccessDenied,
    Conflict,
    InvalidInput,
    MemoryEsError,
    SetupError,
    Unavailable,
)
from memory_es.owned import Owned, owned
from memory_es.recall import recall
from memory_es.requests import RecallRequest, RecallResult, WriteResult
from memory_es.schema import AnyNewMemory, Kind, invalid_input, parse_new_memory
from memory_es.store import Scope, Store
from memory_es.usage import Touch
from memory_es.write import check_owner, write

if TYPE_CHECKING:
    from memory_es.platform import Platform

#: The error of a single write by the code of its result; anything else may work later.
_FAILURES: dict[str, type[MemoryEsError]] = {
    "conflict": Conflict,
    "forbidden": AccessDenied,
    "unauthenticated": AccessDenied,
    "refused": SetupError,
    "licence_expired": SetupError,
    "not_initialised": SetupError,
}

OnResult = Callable[[WriteResult], None]


def ignore_result(_result: WriteResult) -> None:
    """Tell nobody."""


def collect(results: Iterator[WriteResult], on_result: OnResult) -> list[WriteResult]:
    """All results, each told as it comes."""
    collected = []
    for result in results:
        collected.append(result)
        on_result(result)
    return collected


def audited(act: Act, on_result: OnResult) -> OnResult:
    """Note each result for the audit trail as it comes: what is stored before a failure too."""

    def told(result: WriteResult) -> None:
        if result.status == "created":
            act.ids.append(str(result.id))
        elif result.status == "failed" and act.outcome == "ok":
            act.outcome = str(result.code)
        on_result(result)

    return told


def _refused(credentials: UserCredentials, now: datetime) -> AccessDenied:
    """Why the cluster takes a key no more, as far as its holder can know."""
    end = credentials.expires_at
    why = (
        f"expired on {end:%Y-%m-%d %H:%M} UTC" if end and end <= now else "was revoked or is wrong"
    )
    return AccessDenied(
        f"the cluster refuses the key of the user {credentials.user_id!r}: it {why}",
        code="unauthenticated",
        remedy="Make a new one with `memory-es users add USER`",
    )


class Memory:
    """One user's memory, through that user's own key: the cluster keeps everybody else out."""

    def __init__(
        self, platform: Deployment, user_id: str, credentials: Callable[[], UserCredentials]
    ) -> None:
        self._platform = platform
        self._user_id = user_id
        self._credentials = credentials
        self._own: tuple[UserCredentials, Scope] | None = None

    @staticmethod
    def connect(settings: Settings | None = None) -> Platform:
        """The deployment of these settings (default: the environment's): ``.for_user(id)``
        gives a Memory."""
        from memory_es.platform import Platform

        return Platform(settings)

    @property
    def user_id(self) -> str:
        """Whose memory this is."""
        return self._user_id

    def _scope(self, credentials: UserCredentials) -> Scope:
        if self._own is None or self._own[0] != credentials:
            platform = self._platform
            apart = platform.placement.by_index and platform.has_service()
            scope = Scope(
                platform.user_store(credentials),
                credentials.user_id,
                credentials.id_secret.get_secret_value(),
                Store(platform.service(), platform.placement) if apart else None,
            )
            self._own = (credentials, scope)
        return self._own[1]

    @contextmanager
    def _acting(self, action: Action) -> Iterator[tuple[Scope, Act]]:
        """The user's scope, and what the audit trail shall name."""
        platform = self._platform
        with platform.acting(action, self._user_id) as act:
            credentials = self._credentials()
            act.key_id = credentials.key_id
            try:
                platform.check(credentials)
                yield self._scope(credentials), act
            except AccessDenied as error:
                if error.code == "unauthenticated":
                    platform.drop_minted(credentials)
                    raise _refused(credentials, platform.clock()) from None
                raise

    def whoami(self) -> dict[str, Any]:
        """What the cluster says of the key in use, asked with that key: user, key id, access,
        purpose, who issued it, when it was made and ends. Never the key.

        Raises:
            AccessDenied: the cluster takes it no more.
        """
        credentials = self._credentials()
        if not credentials.key_id:
            return {"user": self._user_id, "key_id": None, "access": "write"}
        platform = self._platform
        try:
            key = security.own_key(platform.client(), credentials)
        except AccessDenied:
            raise _refused(credentials, platform.clock()) from None
        info = security.key_info(key, platform.clock())
        return {"user": info.user_id, **info.model_dump(mode="json", exclude={"user_id"})}

    def owned(self, ids: Sequence[str]) -> list[Owned]:
        """Memories of this user by id, read with the user's own key: what may be changed.

        Raises:
            InvalidInput: no id, or a blank one.
            NotFound: one is not this user's, or never was.
        """
        with self._acting("read") as (scope, act):
            found = owned(scope, ids)
            act.ids.extend(memory.reference.id for memory in found)
            return found

    def remember(self, text: str, kind: str | Kind = Kind.EPISODIC, **fields: Any) -> WriteResult:
        """Write one memory; it is found by the next recall.

        Args:
            text: what to remember.
            kind: episodic (what happened), semantic (what is true), procedural (what works).
            fields: the fields of ``NewEpisode``, ``NewFact`` or ``NewPlaybook``.

        Raises:
            InvalidInput: a field is wrong; nothing was written.
            Conflict: the document's id is taken by one that this user may not see.
            Unavailable: Elasticsearch cannot take it now.
        """
        memory = parse_new_memory({"text": text, "kind": kind, **fields})
        check_owner(memory, self.user_id)
        [result] = self.remember_many([memory])
        if result.status == "failed":
            if result.code == "suspicious":
                raise InvalidInput(
                    "text", str(result.error).removeprefix("text: "), code="suspicious"
                )
            raise _FAILURES.get(str(result.code), Unavailable)(str(result.error), code=result.code)
        return result

    def remember_many(
        self,
        memories: Iterable[Mapping[str, Any] | AnyNewMemory],
        *,
        refresh: bool = True,
        on_result: OnResult = ignore_result,
    ) -> list[WriteResult]:
        """Write any number of memories. An invalid item fails alone.

        Args:
            memories: new memories, or their fields; an iterator is read chunk by chunk.
            refresh: False leaves it to Elasticsearch when searches see them (within seconds).
            on_result: told each result as it comes, for progress.

        Returns:
            One result an item, in order.

        Raises:
            Unavailable: Elasticsearch fails; what ``on_result`` was told is stored.
        """
        platform = self._platform
        with self._acting("remember") as (scope, act):
            return collect(
                write(
                    scope,
                    platform.embedder(),
                    memories,
                    now=platform.clock(),
                    new_id=platform.new_id,
                    refresh=refresh,
                    refuse_suspicious=platform.settings.suspicious == "refuse",
                ),
                audited(act, on_result),
            )

    def recall(self, query: str, k: int = 10, **options: Any) -> RecallResult:
        """The memories that answer a question, best first, each with its reasons.

        Args:
            query: the question, used verbatim.
            k: how many at most, 1 to 1,000.
            options: the other fields of ``RecallRequest``, for instance ``filters``.

        Raises:
            InvalidInput: a blank query, a bad k or filter.
            Unavailable: Elasticsearch cannot answer.
        """
        try:
            request = RecallRequest(query=query, k=k, **options)
        except ValidationError as error:
            raise invalid_input(error) from None
        platform = self._platform
        with self._acting("recall") as (scope, act):
            result = recall(
                scope,
                platform.embedder(),
                platform.reranker() if request.recipe == "reranked" else None,
                request,
                languages=platform.settings.languages,
                now=platform.clock(),
            )
            act.ids.extend(hit.id for hit in result.hits)
        if request.touch and (recorder := platform.recorder()):
            recorder.add(
                Touch(self.user_id, hit.kind, hit.id)
                for hit in result.hits
                if hit.kind is not Kind.CATALOG
            )
        return result
