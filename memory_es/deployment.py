"""A deployment as code sees it: connections, models, the check before first use.

The one place that builds the object graph. Nothing is global; clock, ids, embedder and reranker
can be handed in.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Self

from elasticsearch import Elasticsearch
from pydantic import SecretStr

from memory_es import cluster, indices, keyring, node, security, service_account, store
from memory_es.audit import Act, Action, AuditTrail, event
from memory_es.config import INSECURE, Settings
from memory_es.credentials import UserCredentials
from memory_es.errors import MemoryEsError, SetupError, Unavailable
from memory_es.minted import LIFETIME, MintedKeys
from memory_es.models import Embedder, Progress, Reranker, load_embedder, load_reranker
from memory_es.placement import Placement
from memory_es.store import Store
from memory_es.templates import Layout, secret_check
from memory_es.text import routing
from memory_es.usage import UsageRecorder
from memory_es.users import Users

#: How long a cluster that was found fit is taken for fit: the check is four requests.
CHECKED_FOR = timedelta(minutes=1)


def _now() -> datetime:
    return datetime.now(UTC)


def _new_id() -> str:
    return uuid.uuid4().hex


def _silent(_message: str) -> None:
    return


class Deployment:
    """Connections and models of one deployment.

    Making one sends nothing. The first use checks the cluster (versions, licence, security,
    indices, model) and remembers a success for a minute; while Elasticsearch is down every call
    raises Unavailable, and works once it is up.
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
        self._trail: AuditTrail | None = None
        self._minted: MintedKeys | None = None
        self._secret: SecretStr | None = None
        self._holds_service: bool | None = None
        self._client: Elasticsearch | None = None
        self._service: Elasticsearch | None = None
        self._checked: dict[str | None, datetime] = {}  # by an agent's key; None: the service's
        self._lock = threading.RLock()
        self._checking = threading.Lock()  # held over requests, as the other must not be

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Write the usage and the audit events that are still in memory, end the keys that were
        made on demand, and close the connections."""
        with self._lock:
            minted, self._minted = self._minted, None
        if minted is not None:  # first: it leaves an event
            minted.close()
        with self._lock:
            behind = (self._recorder, self._trail)
            client, self._client = self._client, None
            self._recorder = self._trail = None
            self._service, self._holds_service, self._secret = None, None, None
            self._checked.clear()
        for part in behind:
            if part is not None:
                part.close()
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
        """The client with the service account: keys, users' rows, usage, set-up; nothing that a
        user asks for.

        Raises:
            Unavailable: see ``client``.
            SetupError: its password is not here.
        """
        with self._lock:
            if self._service is None:
                client = self.client()  # first: where no node runs, that is what to say
                if self.settings.isolation == INSECURE:
                    self._service = client
                    return client
                password = keyring.service_password(self.settings)
                if password is None:
                    raise SetupError(
                        "the service account's password is not here",
                        code="not_initialised",
                        remedy="Run `memory-es init`, or set MEMORY_ES_SERVICE_PASSWORD as on the"
                        " host that did",
                    )
                login = (service_account.name(self.settings.prefix), password.get_secret_value())
                self._service = client.options(basic_auth=login)
            return self._service

    def admin(self) -> Elasticsearch | None:
        """The client with an administrator's credential, for ``init`` alone: the configured one,
        or the embedded node's own. None if there is none.

        Raises:
            Unavailable: see ``client``.
        """
        client, settings = self.client(), self.settings
        if settings.isolation == INSECURE:
            return client
        if settings.elasticsearch_username and settings.elasticsearch_password:
            password = settings.elasticsearch_password.get_secret_value()
            return client.options(basic_auth=(settings.elasticsearch_username, password))
        if settings.elasticsearch_url is None and (running := node.status(settings.state_dir)):
            login = (running.username, running.password.get_secret_value())
            return client.options(basic_auth=login)
        return None

    def has_service(self) -> bool:
        """Whether this process holds the service credential. An agent holds its own key alone."""
        with self._lock:
            if self._holds_service is None:
                self._holds_service = (
                    self.settings.isolation == INSECURE
                    or keyring.service_password(self.settings) is not None
                )
            return self._holds_service

    def secret(self, *, create: bool = False) -> SecretStr:
        """The deployment's secret, read once. Raises SetupError."""
        with self._lock:
            if self._secret is None:
                self._secret = keyring.deployment_secret(self.settings, create=create)
            return self._secret

    @property
    def placement(self) -> Placement:
        """Where this deployment keeps its indices."""
        return indices.placement_of(self.settings)

    def users(self) -> Users:
        """The users of this deployment. Raises as ``service`` and ``secret``."""
        return Users(self.service(), self.placement, self.secret(), self.clock)

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

    def layout(self, *, create_secret: bool = False, agent: bool = False) -> Layout:
        """What the configuration wants the indices to be made for.

        Args:
            agent: without the deployment's secret.
        """
        embedder = self.embedder()
        check = (
            None if agent else secret_check(self.secret(create=create_secret).get_secret_value())
        )
        return Layout(
            isolation=self.settings.isolation,
            languages=self.settings.languages,
            embedding_model=embedder.name,
            dims=embedder.dims,
            secret_check=check,
        )

    def check(self, credentials: UserCredentials | None = None) -> None:
        """Make sure that the cluster is fit for use, and still is a minute later.

        Args:
            credentials: of an agent that holds nothing else: its key sees less, and checks that.

        Raises:
            SetupError: it is not.
            Unavailable: it does not answer.
        """
        alone = credentials is not None and not self.has_service()
        of_key = credentials.key_id if credentials is not None and alone else None
        with self._checking:
            now = self.clock()
            before = self._checked.get(of_key)
            if before is not None and abs(now - before) < CHECKED_FOR:
                return
            self._checked.pop(of_key, None)
            if credentials is None or not alone:
                cluster.require_fit(self.service(), now, self.settings.isolation)
                indices.require_installed(self.service(), self.settings, self.layout())
            else:
                indices.require_fit_for_user(
                    self.client().options(api_key=credentials.api_key.get_secret_value()),
                    self.placement,
                    self.layout(agent=True),
                    routing(credentials.user_id),
                )
            self._checked[of_key] = now

    def user_store(self, credentials: UserCredentials) -> Store:
        """Elasticsearch with a user's own key (with none, where security is off)."""
        if self.settings.isolation == INSECURE:
            return Store(self.client(), self.placement)
        key = credentials.api_key.get_secret_value()
        return Store(self.client().options(api_key=key), self.placement)

    def minted(self) -> MintedKeys:
        """Short-lived keys made on demand. Raises as ``service``."""
        with self._lock:
            if self._minted is None:
                users = self.users()

                def mint(user_id: str) -> UserCredentials:
                    with self.acting("key_made", user_id) as act:
                        made = users.mint(
                            user_id, issued_by="server", expiration=LIFETIME, purpose="on demand"
                        )
                        act.key_id = made.key_id
                    return made

                def end(key_ids: list[str]) -> None:
                    with self.acting("keys_ended", None) as act:
                        act.ids.extend(key_ids)
                        security.invalidate(users.service, key_ids)

                self._minted = MintedKeys(mint, end, self.clock)
            return self._minted

    def drop_minted(self, credentials: UserCredentials) -> None:
        """Forget a key made on demand that the cluster refused."""
        with self._lock:
            if self._minted is not None:
                self._minted.drop(credentials)

    def forget_service(self) -> None:
        """Read the service credential anew: it was just made or changed."""
        with self._lock:
            self._service, self._holds_service = None, None

    def recorder(self) -> UsageRecorder | None:
        """Where recalls leave their touches; None without the service credential."""
        with self._lock:
            if self._recorder is None and self.has_service():
                self._recorder = UsageRecorder(Store(self.service(), self.placement), self.clock)
            return self._recorder

    def trail(self) -> AuditTrail:
        """Where calls leave their audit events."""
        with self._lock:
            if self._trail is None:
                kept = self.settings.audit == "index" and self.has_service()
                self._trail = AuditTrail(Store(self.service(), self.placement) if kept else None)
            return self._trail

    @contextmanager
    def acting(self, action: Action, user_id: str | None) -> Iterator[Act]:
        """Do something that leaves an event in the audit trail, however it ends."""
        act = Act()
        try:
            yield act
        except BaseException as error:
            act.outcome = error.code if isinstance(error, MemoryEsError) else type(error).__name__
            raise
        finally:
            self.trail().add(
                event(
                    action,
                    at=self.clock(),
                    user_id=user_id,
                    key_id=act.key_id or None,
                    ids=act.ids,
                    outcome=act.outcome,
                )
            )
