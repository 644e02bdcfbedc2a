"""The public API: ``Platform`` for the operator, ``Memory`` for one user.

The one place that builds the object graph. Nothing is global; clock, ids, embedder and reranker
can be handed in.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Self

from elasticsearch import Elasticsearch
from pydantic import ValidationError

from memory_es import cluster, doctor, indices, keyring, node, security, store
from memory_es.config import Settings
from memory_es.credentials import UserCredentials, check_user_id
from memory_es.errors import AccessDenied, Conflict, Unavailable
from memory_es.evaluate import Advance, Bench, run_suite
from memory_es.models import Embedder, Progress, Reranker, load_embedder, load_reranker
from memory_es.queries import RECIPES
from memory_es.recall import recall
from memory_es.requests import RecallRequest, RecallResult, WriteResult
from memory_es.schema import AnyNewMemory, Kind, invalid_input, parse_new_memory
from memory_es.store import Store
from memory_es.suites import Suite
from memory_es.text import user_secret
from memory_es.usage import Touch, UsageRecorder
from memory_es.write import Scope, write

#: The name under which the catalog's document ids are derived: no user can have it (blank
#: edges are refused).
_CATALOG = " catalog "


def _now() -> datetime:
    return datetime.now(UTC)


def _new_id() -> str:
    return uuid.uuid4().hex


def _no_advance(_stage: str, _done: int, _of: int) -> None:
    return


def _silent(_message: str) -> None:
    return


class Platform:
    """A deployment of memory_es, as its operator sees it.

    Making one sends nothing. The first use checks the cluster (versions, licence, security,
    indices, model) and remembers a success; while Elasticsearch is down every call raises
    Unavailable, and works once it is up.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        embedder: Embedder | None = None,
        reranker: Reranker | None = None,
        clock: Callable[[], datetime] = _now,
        new_id: Callable[[], str] = _new_id,
        progress: Progress = _silent,
    ) -> None:
        self.settings = settings or Settings.load()
        self.clock = clock
        self.new_id = new_id
        self._progress = progress
        self._embedder = embedder
        self._reranker = reranker
        self._recorder: UsageRecorder | None = None
        self._client: Elasticsearch | None = None
        self._service: Elasticsearch | None = None
        self._checked = False
        self._lock = threading.RLock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Write the usage that is still in memory and close the connections."""
        with self._lock:
            recorder, self._recorder = self._recorder, None
            client, self._client = self._client, None
            self._service, self._checked = None, False
        if recorder is not None:
            recorder.close()
        if client is not None:
            client.close()

    # --- connections ---

    def client(self) -> Elasticsearch:
        """The client without credentials that all others derive from.

        Raises:
            Unavailable: no URL is configured and the embedded node does not run.
        """
        with self._lock:
            if self._client is None:
                self._client = store.connect(self._url(), self.settings)
            return self._client

    def _url(self) -> str:
        if self.settings.elasticsearch_url:
            return self.settings.elasticsearch_url
        running = node.status(self.settings.state_dir)
        if running is None:
            raise Unavailable(
                "the embedded Elasticsearch is not running",
                code="node_down",
                remedy="Start it with `memory-es up`, or set ELASTICSEARCH_URL",
            )
        return running.url

    def service(self) -> Elasticsearch:
        """The client with the service credential: set-up, keys and usage rows, nothing else.

        Raises:
            AccessDenied: no service credential is configured.
        """
        with self._lock:
            if self._service is None:
                user, password = self._service_login()
                self._service = self.client().options(basic_auth=(user, password))
            return self._service

    def _service_login(self) -> tuple[str, str]:
        settings = self.settings
        if settings.elasticsearch_username and settings.elasticsearch_password:
            return (
                settings.elasticsearch_username,
                settings.elasticsearch_password.get_secret_value(),
            )
        if settings.elasticsearch_url is None and (running := node.status(settings.state_dir)):
            return running.username, running.password.get_secret_value()
        raise AccessDenied(
            "there is no service credential for this cluster",
            code="no_service_credential",
            remedy="Set ELASTICSEARCH_USERNAME and ELASTICSEARCH_PASSWORD",
        )

    def _has_service(self) -> bool:
        settings = self.settings
        return settings.elasticsearch_url is None or settings.elasticsearch_password is not None

    def embedder(self) -> Embedder:
        """The embedder, loaded once. Raises ModelError or SetupError."""
        with self._lock:
            if self._embedder is None:
                self._embedder = load_embedder(self.settings, self._progress)
            return self._embedder

    def reranker(self) -> Reranker | None:
        """The configured reranker, loaded once. Raises ModelError."""
        with self._lock:
            if self._reranker is None:
                self._reranker = load_reranker(self.settings)
            return self._reranker

    def layout(self, *, create_secret: bool = False) -> indices.Layout:
        """What the configuration wants the indices to be made for."""
        embedder = self.embedder()
        secret = keyring.deployment_secret(self.settings, create=create_secret)
        return indices.Layout(
            languages=self.settings.languages,
            embedding_model=embedder.name,
            dims=embedder.dims,
            secret_check=indices.secret_check(secret.get_secret_value()),
        )

    # --- set-up ---

    def init(self) -> list[str]:
        """Install templates, indices and aliases; returns what changed (nothing: empty).

        Raises:
            SetupError: the cluster is not fit, or its indices were made for something else.
        """
        facts = cluster.cluster_facts(self.service(), self.clock())
        cluster.require_isolation(facts)
        return indices.install(self.service(), self.settings, self.layout(create_secret=True))

    def check(self) -> None:
        """Make sure once that the cluster is fit for use. Raises SetupError or Unavailable."""
        with self._lock:
            if not self._checked:
                facts = cluster.cluster_facts(self.service(), self.clock())
                cluster.require_isolation(facts)
                indices.require_installed(self.service(), self.settings.prefix, self.layout())
                self._checked = True

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
                "there is no key for this user here",
                code="no_key",
                remedy="Make one with `memory-es users add USER`",
            )
        return Memory(self, kept)

    def user_store(self, credentials: UserCredentials) -> Store:
        """Elasticsearch with a user's own key. Where a service credential is at hand, the
        cluster is checked first; an agent that holds only its key goes without."""
        if self._has_service():
            self.check()
        key = credentials.api_key.get_secret_value()
        return Store(self.client().options(api_key=key), self.settings.prefix)

    # --- catalog ---

    def write_catalog(
        self, entries: Iterable[Mapping[str, Any] | AnyNewMemory], *, refresh: bool = True
    ) -> Iterator[WriteResult]:
        """Write entries of the shared catalog; one result an entry, in order."""
        self.check()
        secret = keyring.deployment_secret(self.settings).get_secret_value()
        scope = Scope(
            Store(self.service(), self.settings.prefix), None, user_secret(secret, _CATALOG)
        )
        return write(
            scope,
            self.embedder(),
            entries,
            now=self.clock(),
            new_id=self.new_id,
            refresh=refresh,
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
        reranker = self.reranker()
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

    # --- usage ---

    def recorder(self) -> UsageRecorder | None:
        """Where recalls leave their touches; None without a service credential."""
        with self._lock:
            if self._recorder is None and self._has_service():
                rows = Store(self.service(), self.settings.prefix)
                self._recorder = UsageRecorder(rows, self.clock)
            return self._recorder


class Memory:
    """One user's memory, through that user's own key: the cluster keeps everybody else out."""

    def __init__(self, platform: Platform, credentials: UserCredentials) -> None:
        self._platform = platform
        self._credentials = credentials

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
        return Scope(
            self._platform.user_store(self._credentials),
            self._credentials.user_id,
            self._credentials.id_secret.get_secret_value(),
        )

    def remember(self, text: str, kind: str | Kind = Kind.EPISODIC, **fields: Any) -> WriteResult:
        """Write one memory; it is found by the next recall.

        Args:
            text: what to remember.
            kind: episodic (what happened), semantic (what is true), procedural (what works).
            fields: the fields of ``NewEpisode``, ``NewFact`` or ``NewPlaybook``.

        Raises:
            InvalidInput: a field is wrong; nothing was written.
            Conflict: the document's id is taken by one that this user may not see.
        """
        memory = parse_new_memory({"text": text, "kind": kind, **fields})
        [result] = self.remember_many([memory])
        if result.status == "failed":
            raise Conflict(result.error or "the write failed", code="write_failed")
        return result

    def remember_many(
        self, memories: Iterable[Mapping[str, Any] | AnyNewMemory], *, refresh: bool = True
    ) -> Iterator[WriteResult]:
        """Write any number of memories; yields one result an item, in order. An invalid item
        fails alone."""
        platform = self._platform
        return write(
            self._scope(),
            platform.embedder(),
            memories,
            now=platform.clock(),
            new_id=platform.new_id,
            refresh=refresh,
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
