"""A deployment as code sees it: connections, models, the check before first use.

The one place that builds the object graph. Nothing is global; clock, ids, embedder and reranker
can be handed in.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Self

from elasticsearch import Elasticsearch

from memory_es import cluster, indices, keyring, node, store
from memory_es.config import Settings
from memory_es.credentials import UserCredentials
from memory_es.errors import AccessDenied, Unavailable
from memory_es.models import Embedder, Progress, Reranker, load_embedder, load_reranker
from memory_es.store import Store
from memory_es.usage import UsageRecorder


def _now() -> datetime:
    return datetime.now(UTC)


def _new_id() -> str:
    return uuid.uuid4().hex


def _silent(_message: str) -> None:
    return


class Deployment:
    """Connections and models of one deployment.

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
            Unavailable: see ``client``.
            AccessDenied: no service credential is configured.
        """
        with self._lock:
            if self._service is None:
                client = self.client()  # first: where no node runs, that is what to say
                self._service = client.options(basic_auth=self._service_login())
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

    def check(self) -> None:
        """Make sure once that the cluster is fit for use. An agent that holds only its user's
        key cannot ask, and goes without.

        Raises:
            SetupError: it is not.
            Unavailable: it does not answer.
        """
        with self._lock:
            if not self._checked and self._has_service():
                facts = cluster.cluster_facts(self.service(), self.clock())
                cluster.require_isolation(facts)
                indices.require_installed(self.service(), self.settings.prefix, self.layout())
                self._checked = True

    def user_store(self, credentials: UserCredentials) -> Store:
        """Elasticsearch with a user's own key."""
        key = credentials.api_key.get_secret_value()
        return Store(self.client().options(api_key=key), self.settings.prefix)

    def recorder(self) -> UsageRecorder | None:
        """Where recalls leave their touches; None without a service credential."""
        with self._lock:
            if self._recorder is None and self._has_service():
                rows = Store(self.service(), self.settings.prefix)
                self._recorder = UsageRecorder(rows, self.clock)
            return self._recorder
