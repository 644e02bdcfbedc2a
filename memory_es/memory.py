"""The public API: ``Platform`` for the operator, ``Memory`` for one user."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from memory_es import cluster, doctor, indices, keyring, security
from memory_es.config import Settings
from memory_es.credentials import UserCredentials, check_user_id
from memory_es.deployment import Deployment
from memory_es.errors import (
    AccessDenied,
    Conflict,
    MemoryEsError,
    ModelError,
    SetupError,
    Unavailable,
)
from memory_es.queries import RECIPES, recipe_named
from memory_es.recall import recall
from memory_es.requests import RecallRequest, RecallResult, WriteResult
from memory_es.schema import AnyNewMemory, Kind, invalid_input, parse_new_memory
from memory_es.store import Scope, Store
from memory_es.text import CATALOG_OWNER, user_secret
from memory_es.usage import Touch
from memory_es.write import check_owner, write

if TYPE_CHECKING:
    from memory_es.evaluate import Advance
    from memory_es.suites import Suite

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


def _no_advance(_stage: str, _done: int, _of: int) -> None:
    return


def _ignore(_result: WriteResult) -> None:
    return


def _collect(results: Iterator[WriteResult], on_result: OnResult) -> list[WriteResult]:
    collected = []
    for result in results:
        collected.append(result)
        on_result(result)
    return collected


class Platform(Deployment):
    """A deployment of memory_es, as its operator sees it: set-up, users, catalog, evaluation."""

    # --- set-up ---

    def init(self) -> list[str]:
        """Install templates, indices and aliases; returns what changed (nothing: empty).

        Raises:
            SetupError: the cluster is not fit, or its indices were made for something else.
        """
        facts = cluster.cluster_facts(self.service(), self.clock())
        cluster.require_isolation(facts)
        return indices.install(self.service(), self.settings, self.layout(create_secret=True))

    def diagnose(self) -> list[doctor.Check]:
        """What ``memory-es doctor`` prints: every check with its verdict and remedy."""
        return doctor.diagnose(
            service=self.service, layout=self.layout, settings=self.settings, now=self.clock()
        )

    def status(self) -> dict[str, Any]:
        """Where the cluster is, its version and licence, how many memories there are.

        Raises:
            Unavailable: it does not answer.
        """
        facts = cluster.cluster_facts(self.service(), self.clock())
        days = facts.licence_days
        return {
            "url": self._url(),
            "elasticsearch": facts.server_version,
            "licence": facts.licence,
            "licence_days": None if days is None else round(days, 1),
            "prefix": self.settings.prefix,
            **indices.counts(self.service(), self.settings.prefix),
        }

    # --- users ---

    def add_user(self, user_id: str) -> tuple[UserCredentials, bool]:
        """Make a key for a user and keep it in the state folder, unless a kept one works.

        Returns:
            The credentials, and whether they are new.

        Raises:
            InvalidInput: the user id breaks the rule of ``check_user_id``.
        """
        self.check()
        check_user_id(user_id)
        kept = keyring.load(self.settings, user_id)
        if kept is not None and security.works(self.client(), kept):
            return kept, False
        made = self.mint(user_id)
        keyring.save(self.settings, made)
        return made, True

    def mint(self, user_id: str, *, expiration: str | None = None) -> UserCredentials:
        """Make a key for a user without keeping it: for a server that has its own store."""
        self.check()
        return security.mint(
            self.service(),
            user_id,
            prefix=self.settings.prefix,
            deployment_secret=keyring.deployment_secret(self.settings).get_secret_value(),
            expiration=expiration,
        )

    def for_user(self, user: str | UserCredentials) -> Memory:
        """The memory of one user, through that user's own key.

        Args:
            user: a user id whose key is kept in the state folder (``add_user``), or credentials
                that the caller holds.

        Raises:
            InvalidInput: no or a bad user id.
            AccessDenied: no key is kept for this user.
        """
        if isinstance(user, UserCredentials):
            return Memory(self, user)
        check_user_id(user)
        kept = keyring.load(self.settings, user)
        if kept is None:
            raise AccessDenied(
                f"there is no key for the user {user!r} here",
                code="no_key",
                remedy="Make one with `memory-es users add USER`",
            )
        return Memory(self, kept)

    # --- catalog ---

    def write_catalog(
        self,
        entries: Iterable[Mapping[str, Any] | AnyNewMemory],
        *,
        refresh: bool = True,
        on_result: OnResult = _ignore,
    ) -> list[WriteResult]:
        """Write entries of the shared catalog; see ``Memory.remember_many``."""
        self.check()
        secret = keyring.deployment_secret(self.settings).get_secret_value()
        scope = Scope(
            Store(self.service(), self.settings.prefix), None, user_secret(secret, CATALOG_OWNER)
        )
        return _collect(
            write(
                scope,
                self.embedder(),
                entries,
                now=self.clock(),
                new_id=self.new_id,
                refresh=refresh,
            ),
            on_result,
        )

    # --- evaluation ---

    def evaluate(
        self,
        suite: Suite,
        recipes: Sequence[str] | None = None,
        *,
        priors: bool = False,
        advance: Advance = _no_advance,
    ) -> dict[str, Any]:
        """Measure recall on a suite, in indices of its own that are removed afterwards.

        Args:
            recipes: names of ``queries.RECIPES``; None: all that can run here.
            advance: told (stage, done, of).

        Returns:
            See ``evaluate.run_suite``.
        """
        from memory_es.evaluate import Bench, run_suite  # measuring needs scipy; recall does not

        reranker = self.reranker()
        for name in recipes or ():
            if recipe_named(name).rerank and reranker is None:
                raise ModelError(
                    f"the recipe {name} needs a reranker",
                    code="no_reranker",
                    remedy="Set MEMORY_ES_RERANKER_MODEL to a cross-encoder's name or folder",
                )
        runnable = [name for name, recipe in RECIPES.items() if reranker or not recipe.rerank]
        prefix = f"eval_{suite.fingerprint[:8]}_{self.new_id()[:8]}"
        service = self.service()
        cluster.require_isolation(cluster.cluster_facts(service, self.clock()))
        bench = Bench(
            service=service,
            client=self.client(),
            settings=self.settings.model_copy(update={"prefix": prefix}),
            embedder=self.embedder(),
            reranker=reranker,
        )
        return run_suite(bench, suite, recipes or runnable, priors=priors, advance=advance)


class Memory:
    """One user's memory, through that user's own key: the cluster keeps everybody else out."""

    def __init__(self, platform: Platform, credentials: UserCredentials) -> None:
        self._platform = platform
        self._credentials = credentials
        self._own: Scope | None = None

    @staticmethod
    def connect(settings: Settings | None = None) -> Platform:
        """The deployment of these settings (default: the environment's): ``.for_user(id)``
        gives a Memory."""
        return Platform(settings)

    @property
    def user_id(self) -> str:
        """Whose memory this is."""
        return self._credentials.user_id

    def _scope(self) -> Scope:
        self._platform.check()
        if self._own is None:
            self._own = Scope(
                self._platform.user_store(self._credentials),
                self._credentials.user_id,
                self._credentials.id_secret.get_secret_value(),
            )
        return self._own

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
            raise _FAILURES.get(str(result.code), Unavailable)(str(result.error), code=result.code)
        return result

    def remember_many(
        self,
        memories: Iterable[Mapping[str, Any] | AnyNewMemory],
        *,
        refresh: bool = True,
        on_result: OnResult = _ignore,
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
        return _collect(
            write(
                self._scope(),
                platform.embedder(),
                memories,
                now=platform.clock(),
                new_id=platform.new_id,
                refresh=refresh,
            ),
            on_result,
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
        result = recall(
            self._scope(),
            platform.embedder(),
            platform.reranker() if request.recipe == "reranked" else None,
            request,
            languages=platform.settings.languages,
            now=platform.clock(),
        )
        if request.touch and (recorder := platform.recorder()):
            recorder.add(
                Touch(self.user_id, hit.kind, hit.id)
                for hit in result.hits
                if hit.kind is not Kind.CATALOG
            )
        return result


__all__ = ["Memory", "Platform"]
