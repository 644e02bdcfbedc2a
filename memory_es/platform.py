"""The public API for the operator: ``Platform``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from elasticsearch import Elasticsearch

from memory_es import chain, cluster, doctor, indices, keyring, security, service_account
from memory_es.config import EVALUATION, INSECURE, time_span
from memory_es.credentials import Access, UserCredentials, check_user_id
from memory_es.deployment import Deployment
from memory_es.errors import AccessDenied, ModelError, SetupError
from memory_es.memory import Memory, OnResult, audited, collect, ignore_result
from memory_es.queries import RECIPES, recipe_named
from memory_es.requests import WriteResult
from memory_es.schema import AnyNewMemory
from memory_es.security import KeyInfo
from memory_es.store import Scope, Store
from memory_es.text import CATALOG_OWNER, user_secret
from memory_es.users import Users
from memory_es.write import write

if TYPE_CHECKING:
    from memory_es.evaluate import Advance
    from memory_es.suites import Suite


def _no_advance(_stage: str, _done: int, _of: int) -> None:
    return


class Platform(Deployment):
    """A deployment of memory_es, as its operator sees it: set-up, users, catalog, evaluation."""

    # --- set-up ---

    def init(self, *, rotate: bool = False) -> list[str]:
        """Install the service account, templates, indices and aliases; returns what changed
        (nothing: empty).

        Args:
            rotate: give the service account a new password.

        Raises:
            SetupError: the cluster is not fit, or its indices were made for something else.
            AccessDenied: there is neither an administrator's credential nor the service's.
        """
        admin, settings = self.admin(), self.settings
        if admin is None and not self.has_service():
            raise AccessDenied(
                "init needs an administrator here the first time",
                code="no_admin",
                remedy="Set ELASTICSEARCH_USERNAME and ELASTICSEARCH_PASSWORD for this one call",
            )
        first = admin or self.service()
        cluster.require_fit(first, self.clock(), settings.isolation)
        layout = self.layout(create_secret=True)
        indices.check_layout(first, self.placement, layout)
        changes = []
        if admin is not None and settings.isolation != INSECURE:
            changes = self._install_account(admin, rotate=rotate)
        elif rotate:
            raise AccessDenied(
                "only an administrator can change the service account's password",
                code="no_admin",
                remedy="Set ELASTICSEARCH_USERNAME and ELASTICSEARCH_PASSWORD for this one call",
            )
        return changes + indices.install(self.service(), settings, layout)

    def _install_account(self, admin: Elasticsearch, *, rotate: bool) -> list[str]:
        # on a new cluster another host's first call may be making the security index: 503 till then
        admin = admin.options(max_retries=10)
        password = keyring.service_password(self.settings)
        given = self.settings.service_password or self.settings.secret_command
        if rotate and not given:
            password = keyring.make_service_password(self.settings, keep=False)
        elif password is None and service_account.exists(admin, self.placement):
            # whoever makes the account keeps its password first: look again
            password = keyring.service_password(self.settings)
            if password is None:
                raise service_account.password_unknown(self.placement)
        elif password is None:
            password = keyring.make_service_password(self.settings)
        changes = service_account.install(
            admin, self.placement, password=password.get_secret_value(), rotate=rotate
        )
        if rotate and not given:  # not before: a cluster that refuses must not cost the old one
            keyring.keep_service_password(self.settings, password)
        self.forget_service()
        return changes

    def diagnose(self, *, security: bool = False) -> list[doctor.Check]:
        """What ``memory-es doctor`` prints: every check with its verdict and remedy; with
        ``security`` also the chain of isolation, tried on the live cluster.
        """
        checks = doctor.diagnose(
            service=self.service, layout=self.layout, settings=self.settings, now=self.clock()
        )
        if security:
            checks += chain.diagnose(self.users, self.settings, self.new_id)
        return checks

    def status(self) -> dict[str, Any]:
        """Where the cluster is, its version and licence, how many memories there are.

        Raises:
            Unavailable: it does not answer.
        """
        service = self.service() if self.has_service() else self.admin() or self.service()
        facts = cluster.cluster_facts(service, self.clock())
        days = facts.licence_days
        return {
            "url": self._url(),
            "elasticsearch": facts.server_version,
            "licence": facts.licence,
            "licence_days": None if days is None else round(days, 1),
            "isolation": self.settings.isolation,
            "prefix": self.settings.prefix,
            **indices.counts(service, self.placement),
        }

    def node_facts(self) -> cluster.ClusterFacts:
        """Version and licence, asked as the node's administrator. Raises Unavailable."""
        return cluster.cluster_facts(self.admin() or self.service(), self.clock())

    # --- users ---

    def add_user(
        self,
        user_id: str,
        *,
        issued_by: str = "python",
        access: Access = "write",
        expiration: str | None = None,
        purpose: str = "default",
    ) -> tuple[UserCredentials, bool]:
        """Make a user known, with a key kept in the state folder, unless a kept one works.

        Args:
            issued_by: who asks, for the listing.
            access: ``read``: the key may recall, not remember.
            expiration: a time span such as ``12h``; None: the setting ``key_expiry``.
            purpose: what the key is for, for the listing.

        Returns:
            The credentials, and whether they are new.

        Raises:
            InvalidInput: the user id breaks the rule of ``check_user_id``.
        """
        self._expiry(expiration)  # also where a kept key makes it needless
        self.check()
        users = self.users()
        users.add(user_id)
        insecure = self.settings.isolation == INSECURE
        kept = keyring.load(self.settings, user_id)
        if kept is not None and not (insecure or security.works(self.client(), kept)):
            kept = None
        if kept is not None and kept.access == access:
            return kept, False
        made = self._new_key(
            users,
            user_id,
            issued_by=issued_by,
            access=access,
            expiration=expiration,
            purpose=purpose,
        )
        keyring.save(self.settings, made)
        if kept is not None:  # of the other access: nobody would have it any more
            with self.acting("keys_ended", user_id) as act:
                act.ids.append(kept.key_id)
                security.invalidate(self.service(), act.ids)
        return made, True

    def mint(
        self,
        user_id: str,
        *,
        issued_by: str = "python",
        access: Access = "write",
        expiration: str | None = None,
        purpose: str = "default",
    ) -> UserCredentials:
        """Make a user known and make a key for an agent elsewhere, without keeping it; the
        arguments are those of ``add_user``."""
        self.check()
        users = self.users()
        users.add(user_id)
        options = {"issued_by": issued_by, "access": access, "purpose": purpose}
        return self._new_key(users, user_id, expiration=expiration, **options)

    def _new_key(
        self, users: Users, user_id: str, *, expiration: str | None = None, **options: Any
    ) -> UserCredentials:
        with self.acting("key_made", user_id) as act:
            made = users.mint(user_id, expiration=self._expiry(expiration), visible=True, **options)
            act.key_id = made.key_id
        return made

    def _expiry(self, wanted: str | None) -> str:
        time_span("expires", wanted := wanted or self.settings.key_expiry)
        return wanted

    def rotate_user(
        self,
        user_id: str,
        *,
        overlap: str = "1h",
        issued_by: str = "python",
        expiration: str | None = None,
        purpose: str = "default",
        keep: bool = True,
    ) -> tuple[UserCredentials, list[KeyInfo]]:
        """A new key in place of the user's live ones of one purpose.

        Args:
            overlap: how long the old ones stay valid, ``0m`` for not at all.
            keep: put the new one into the state folder.

        Returns:
            The new credentials, and the keys that end.

        Raises:
            NotFound: there is no live key of that purpose.
        """
        check_user_id(user_id)
        self.check()
        span = timedelta() if overlap in ("0", "0m") else time_span("overlap", overlap)
        with self.acting("keys_ended", user_id) as ended, self.acting("key_made", user_id) as act:
            made, before = self.users().rotate(
                user_id,
                overlap=span,
                issued_by=issued_by,
                expiration=self._expiry(expiration),
                purpose=purpose,
            )
            act.key_id = made.key_id
            ended.ids.extend(key.key_id for key in before)
        if keep:
            keyring.save(self.settings, made)
        return made, before

    def revoke_user(self, user_id: str | None, key_id: str | None = None) -> list[str]:
        """End every key of a user, or one of them, or (None) one by its id alone; returns the ids
        ended. When this returns, no process that holds one can use it.

        Raises:
            NotFound: no such user, or no such live key of this user.
        """
        user_id = user_id if user_id is None else check_user_id(user_id)
        self.check()
        with self.acting("keys_ended", user_id) as act:
            ended = self.users().revoke(user_id, key_id)
            act.ids.extend(ended)
        kept = keyring.load(self.settings, user_id) if user_id is not None else None
        if kept is not None and kept.key_id in ended:
            keyring.remove(self.settings, kept.user_id)
        return ended

    def list_keys(self, user_id: str | None = None) -> list[KeyInfo]:
        """Keys of a user, or of everybody, oldest first; never a secret."""
        self.check()
        return self.users().keys(user_id)

    def for_user(self, user: str | UserCredentials) -> Memory:
        """The memory of one user, through that user's own key.

        Args:
            user: credentials that the caller holds, or a user id. Of an id the key is the one kept
                in the state folder (``add_user``), or, in a process with the service credential, a
                short-lived one made on demand.

        Raises:
            InvalidInput: no or a bad user id.
            AccessDenied: there is no key for this user, and none may be made.
        """
        user_id = check_user_id(user.user_id if isinstance(user, UserCredentials) else user)
        if self.settings.isolation == INSECURE:  # no key could tell one user from another
            self.check()
            self.users().require_active(user_id)
        elif isinstance(user, UserCredentials) and not user.api_key.get_secret_value():
            raise AccessDenied("the credentials have no key", code="unauthenticated")
        if isinstance(user, UserCredentials):
            return Memory(self, user.user_id, lambda: user)
        given = self.settings.credentials
        if given is not None:
            own = keyring.from_file(given)
            if own.user_id != user:
                raise AccessDenied(
                    f"the credentials in {given} are not those of {user!r}",
                    code="no_key",
                    remedy="Leave the user out, or unset MEMORY_ES_CREDENTIALS",
                )
            return Memory(self, user, lambda: own)
        kept = keyring.load(self.settings, user)
        if kept is not None:
            return Memory(self, user, lambda: kept)
        if not self.has_service():
            raise AccessDenied(
                f"there is no key for the user {user!r} here",
                code="no_key",
                remedy="Make one with `memory-es users add USER`",
            )
        self.check()
        self.minted().of(user)  # says now that the user is not known, or was revoked
        return Memory(self, user, lambda: self.minted().of(user))

    def memory_of(self, user_id: str | None) -> Memory:
        """The memory of a user, or (None) of whose credentials are given by the settings.

        Raises:
            InvalidInput: neither is there.
            AccessDenied: see ``for_user``.
        """
        given = self.settings.credentials
        if user_id is None and given is not None:
            return self.for_user(keyring.from_file(given))
        return self.for_user(user_id or "")

    # --- catalog ---

    def write_catalog(
        self,
        entries: Iterable[Mapping[str, Any] | AnyNewMemory],
        *,
        refresh: bool = True,
        on_result: OnResult = ignore_result,
    ) -> list[WriteResult]:
        """Write entries of the shared catalog; see ``Memory.remember_many``."""
        self.check()
        scope = Scope(
            Store(self.service(), self.placement),
            None,
            user_secret(self.secret().get_secret_value(), CATALOG_OWNER),
        )
        with self.acting("catalog", None) as act:
            return collect(
                write(
                    scope,
                    self.embedder(),
                    entries,
                    now=self.clock(),
                    new_id=self.new_id,
                    refresh=refresh,
                    refuse_suspicious=self.settings.suspicious == "refuse",
                ),
                audited(act, on_result),
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
        if self.settings.isolation == INSECURE:
            raise SetupError(
                "an evaluation needs keys, and there are none with --insecure-single-user",
                code="insecure",
                remedy="Use the embedded node (`memory-es up`) or another cluster with security",
            )
        prefix = f"{self.settings.prefix}{EVALUATION}{suite.fingerprint[:8]}_{self.new_id()[:8]}"
        service = self.service()
        cluster.require_fit(service, self.clock(), self.settings.isolation)
        bench = Bench(
            service=service,
            client=self.client(),
            settings=self.settings.model_copy(update={"prefix": prefix}),
            embedder=self.embedder(),
            reranker=reranker,
        )
        return run_suite(bench, suite, recipes or runnable, priors=priors, advance=advance)
