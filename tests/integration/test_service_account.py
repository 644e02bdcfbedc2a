"""The service account on the real node: everything works with it and nothing with ``elastic``,
each of its privileges is needed, and what it may not do is refused."""

from __future__ import annotations

import base64
import dataclasses
import json
import traceback
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from elasticsearch import Elasticsearch
from pydantic import SecretStr

from memory_es import Platform, Settings, keyring, security, service_account
from memory_es.errors import AccessDenied, MemoryEsError, SetupError
from memory_es.placement import Placement
from memory_es.suites import Suite, named_suite
from tests.backstage import admin_of
from tests.doubles import HashingEmbedder
from tests.proxy import Proxy

NewPlatform = Callable[..., Platform]
MODES = {"dls": "trial", "index": "basic"}
#: What the grants of the role are for, in their order.
SECTIONS = ("memories", "audit", "evaluation")
TEXT = "I drink only green tea"


@pytest.fixture(scope="module")
def deployment(new_platform: NewPlatform) -> Callable[[str], Platform]:
    """The deployment of a way of isolation, with an audit index: made once."""
    made: dict[str, Platform] = {}

    def of(mode: str) -> Platform:
        if mode not in made:
            made[mode] = new_platform(
                isolation=mode, on=MODES[mode], audit="index", embedder=HashingEmbedder()
            )
        return made[mode]

    return of


@pytest.fixture
def platform(deployment: Callable[[str], Platform]) -> Platform:
    """The deployment where the way of isolation does not matter."""
    return deployment("dls")


def name_of(platform: Platform) -> str:
    return service_account.name(platform.settings.prefix)


def remote(platform: Platform, url: str | None = None, **changes: Any) -> Settings:
    """Settings of another process, which reaches the cluster by its URL: without the embedded
    node's own file, so that no administrator is near unless ``changes`` names one."""
    return platform.settings.model_copy(
        update={"elasticsearch_url": url or str(platform.status()["url"]), **changes}
    )


# --- the scenario: everything that the service account is for ---------------------------------


@dataclass(frozen=True)
class Day:
    """One working day with the service credential: each step is a process of its own."""

    platform: Platform
    settings: Settings

    @property
    def user(self) -> str:
        """A new user."""
        return f"user-{uuid.uuid4().hex}"

    def process(self) -> Platform:
        return Platform(self.settings, embedder=HashingEmbedder())

    def check(self) -> None:
        with self.process() as here:
            here.check()
            here.status()

    def add(self) -> None:
        with self.process() as here:
            assert here.add_user(self.user)[1]

    def mint(self) -> None:
        """For an agent elsewhere, and on demand."""
        user = self.user
        with self.process() as here:
            here.mint(user, access="read")
            here.for_user(user).recall("tea", touch=False)

    def remember(self) -> None:
        user = self.user
        with self.process() as here:
            here.add_user(user)
            here.for_user(user).remember(TEXT, "semantic")
            assert here.for_user(user).recall("tea").hits
            recorder = here.recorder()
            assert recorder
            recorder.drain()
            assert here.for_user(user).recall("tea", recipe="lexical", priors=True).hits

    def audit(self) -> None:
        with self.process() as here:
            with here.acting("recall", self.user):
                pass
            here.trail().drain()

    def catalog(self) -> None:
        with self.process() as here:
            text = f"ferries leave hourly {uuid.uuid4().hex}"
            [result] = here.write_catalog([{"kind": "catalog", "text": text}])
            assert result.status == "created"

    def keys(self) -> None:
        user = self.user
        with self.process() as here:
            here.add_user(user)
            assert here.list_keys(user) is not None
            here.rotate_user(user, overlap="1h")
            here.rotate_user(user, overlap="0")
            here.revoke_user(user)

    def doctor(self) -> None:
        """Whatever a check was forbidden: that the role differs is no news while it does."""
        with self.process() as here:
            for check in here.diagnose(security=True):
                if "forbids" in check.detail:
                    raise AccessDenied(f"{check.name}: {check.detail}")

    def evaluate(self) -> None:
        with self.process() as here:
            here.evaluate(trimmed(), ["lexical"])

    def init(self) -> None:
        with self.process() as here:
            here.init()

    def init_after_loss(self, kind: str) -> None:
        """An index is gone."""
        index = self.platform.placement.index(kind)
        admin_of(self.platform).indices.delete(index=f"{index}-000001")
        self.init()

    def init_after_detachment(self) -> None:
        """A live index is not stamped any more."""
        admin_of(self.platform).indices.put_settings(
            index=self.platform.placement.index("usage"),
            settings={"index.final_pipeline": "_none"},
        )
        self.init()

    def init_after_template(self) -> None:
        """A template is gone."""
        admin_of(self.platform).indices.delete_index_template(
            name=self.platform.placement.index("audit")
        )
        self.init()


def trimmed() -> Suite:
    """The sample suite with two memories and a question of each of two users."""
    suite = named_suite("sample")
    users = suite.users[:2]
    questions = [
        next(q for q in suite.questions if q.user == user and q.evidence) for user in users
    ]
    wanted = {id_ for question in questions for id_ in question.evidence}
    entries = [entry for entry in suite.entries if entry.memory.external_id in wanted]
    assert entries
    return dataclasses.replace(suite, entries=entries, questions=questions)


Step = Callable[[Day], None]


def _lost(kind: str) -> Step:
    return lambda day: day.init_after_loss(kind)


#: What fails without each privilege. One that is not here has no test, and fails its own.
NEEDED: dict[str, dict[str, Step]] = {
    "cluster": {
        "manage_own_api_key": Day.mint,
        "read_security": Day.doctor,
        "manage_index_templates": Day.init_after_template,
        "manage_ingest_pipelines": Day.check,
        "monitor": Day.check,
    },
    "memories": {
        "create_index": _lost("usage"),
        "indices:admin/aliases": _lost("usage"),
        "view_index_metadata": Day.check,
        "indices:admin/settings/update": Day.init_after_detachment,
        "maintenance": Day.catalog,
        "read": Day.add,
        "write": Day.add,
        "delete_index": Day.doctor,
    },
    "audit": {
        "create_index": _lost("audit"),
        "view_index_metadata": Day.check,
        "indices:data/write/bulk*": Day.audit,
        "indices:data/write/index:op_type/create": Day.audit,
    },
    "evaluation": {"manage": Day.evaluate, "read": Day.evaluate, "write": Day.evaluate},
}
#: Every day, and after each loss.
SCENARIO: tuple[Step, ...] = (
    Day.check,
    Day.add,
    Day.mint,
    Day.remember,
    Day.audit,
    Day.catalog,
    Day.keys,
    Day.doctor,
    Day.evaluate,
)
REPAIRS: tuple[Step, ...] = (
    Day.init,
    _lost("usage"),
    _lost("audit"),
    Day.init_after_detachment,
    Day.init_after_template,
)


def privileges() -> Iterator[tuple[str, str, str]]:
    """Mode, section and privilege: every one that a role has, read from the role itself."""
    for mode in MODES:
        role = service_account.role(Placement("any", "dls" if mode == "dls" else "index"))
        sections = dict(zip(SECTIONS, role["indices"], strict=True))
        yield from ((mode, "cluster", privilege) for privilege in role["cluster"])
        for section, grant in sections.items():
            yield from ((mode, section, privilege) for privilege in grant["privileges"])


def test_each_privilege_has_its_step_and_nothing_else_does() -> None:
    held: dict[str, set[str]] = {section: set() for section in NEEDED}
    for _, section, privilege in privileges():
        held[section].add(privilege)
    assert held == {section: set(steps) for section, steps in NEEDED.items()}


@pytest.mark.parametrize("mode", MODES)
def test_nothing_but_init_uses_an_administrator(
    deployment: Callable[[str], Platform], mode: str
) -> None:
    """The administrator's password is at hand all day, and nobody takes it."""
    platform = deployment(mode)
    password = _node_password(platform)
    with Proxy(str(platform.status()["url"])) as proxy:
        settings = remote(
            platform,
            proxy.url,
            elasticsearch_username="elastic",
            elasticsearch_password=SecretStr(password),
        )
        for step in SCENARIO:
            step(Day(platform, settings))
        assert _logins(proxy) == {name_of(platform)}
        proxy.seen.clear()
        for step in REPAIRS:  # init itself takes an administrator only if there is one
            step(Day(platform, remote(platform, proxy.url)))
        assert _logins(proxy) == {name_of(platform)}


def _node_password(platform: Platform) -> str:
    found = json.loads((platform.settings.state_dir / "credentials.json").read_text("utf-8"))
    return str(found["password"])


def _logins(proxy: Proxy) -> set[str]:
    """Who asked by a password; every request had some credential."""
    assert proxy.seen
    users = set()
    for asked in proxy.seen:
        scheme, _, value = asked.headers["authorization"].partition(" ")
        assert scheme in {"Basic", "ApiKey"}
        if scheme == "Basic":
            users.add(base64.b64decode(value).decode().partition(":")[0])
    return users


@pytest.mark.parametrize(("mode", "section", "privilege"), list(privileges()))
def test_the_work_fails_without_each_privilege(
    deployment: Callable[[str], Platform], mode: str, section: str, privilege: str
) -> None:
    step = NEEDED[section][privilege]
    platform = deployment(mode)
    admin, settings = admin_of(platform), remote(platform)
    role = service_account.role(platform.placement)
    sections = dict(zip(SECTIONS, role["indices"], strict=True))
    held = role["cluster"] if section == "cluster" else sections[section]["privileges"]
    less = json.loads(json.dumps(role))
    narrowed = (
        less["cluster"]
        if section == "cluster"
        else less["indices"][SECTIONS.index(section)]["privileges"]
    )
    narrowed.remove(privilege)
    assert len(narrowed) == len(held) - 1
    admin.security.put_role(name=name_of(platform), **less)
    try:
        with pytest.raises(MemoryEsError) as caught:
            step(Day(platform, settings))
        assert isinstance(caught.value, (AccessDenied, SetupError)), caught.value
    finally:
        admin.security.put_role(name=name_of(platform), **role)
        Day(platform, settings).init()


# --- what it may not do -----------------------------------------------------------------------


def ask(client: Elasticsearch, method: str, path: str, body: Any = None) -> int:
    """The status of a raw request."""
    plain = "application/json"
    headers = {**client._headers, "accept": plain, "content-type": plain}
    return client.transport.perform_request(method, path, body=body, headers=headers).meta.status


def test_it_is_no_superuser(platform: Platform, new_platform: NewPlatform) -> None:
    admin, service = admin_of(platform), platform.service()
    name = name_of(platform)
    assert admin.security.get_user(username=name)[name]["roles"] == [name]
    who = service.security.authenticate()
    assert (who["username"], who["roles"]) == (name, [name])
    role = admin.security.get_role(name=name)[name]
    assert {"all", "manage", "manage_security", "manage_api_key"}.isdisjoint(role["cluster"])
    assert role["run_as"] == []

    other = new_platform(embedder=HashingEmbedder())
    theirs = other.mint("ann")
    foreign = other.placement.index("state")
    for method, path, body in (
        ("PUT", f"/_security/user/{name}2", {"password": "long enough", "roles": ["superuser"]}),
        ("PUT", f"/_security/role/{name}", {"cluster": ["all"]}),
        ("PUT", "/_security/user/elastic/_password", {"password": "long enough"}),
        ("PUT", "/_cluster/settings", {"persistent": {"action.destructive_requires_name": None}}),
        ("DELETE", "/_security/api_key", {"ids": [theirs.key_id]}),
        ("GET", f"/{foreign}/_search", None),
        ("DELETE", f"/{foreign}-000001", None),
        ("PUT", f"/{name}", None),
    ):
        assert ask(service, method, path, body) == 403, path
    assert security.works(other.client(), theirs)


@pytest.mark.parametrize("mode", MODES)
def test_the_audit_trail_is_append_only(deployment: Callable[[str], Platform], mode: str) -> None:
    platform = deployment(mode)
    admin, service = admin_of(platform), platform.service()
    user = f"user-{uuid.uuid4().hex}"
    credentials, _ = platform.add_user(user)
    platform.trail().drain()
    name = platform.placement.index("audit")
    index = f"{name}-000001"
    admin.indices.refresh(index=name)
    found = admin.search(index=name, query={"term": {"key_id": credentials.key_id}})["hits"]["hits"]
    [row] = found
    before = admin.indices.get(index=name).body
    for target in (name, index):
        for method, path, body in (
            ("POST", f"/{target}/_update/{row['_id']}", {"doc": {"count": 9}}),
            ("PUT", f"/{target}/_doc/{row['_id']}", row["_source"]),
            ("DELETE", f"/{target}/_doc/{row['_id']}", None),
            ("PUT", f"/{target}/_mapping", {"_meta": {"mine": True}}),
            ("PUT", f"/{target}/_settings", {"index.blocks.read": True}),
            ("PUT", f"/{target}/_block/write", None),
            ("POST", f"/{target}/_close", None),
            ("DELETE", f"/{index}/_alias/{name}", None),
            ("POST", "/_aliases", {"actions": [{"remove_index": {"index": index}}]}),
            ("DELETE", f"/{index}", None),
        ):
            assert ask(service, method, path, body) == 403, (method, path, body)
    for target in (name, index):  # and a user's key does not even read it
        key = platform.client().options(api_key=credentials.api_key.get_secret_value())
        assert ask(key, "GET", f"/{target}/_search") == 403
    assert admin.indices.get(index=name).body == before
    assert admin.get(index=name, id=row["_id"])["_source"] == row["_source"]


# --- init -------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_a_second_init_changes_nothing(deployment: Callable[[str], Platform], mode: str) -> None:
    platform = deployment(mode)
    before = keyring.service_password(platform.settings)
    assert platform.init() == []
    assert keyring.service_password(platform.settings) == before


@pytest.mark.parametrize(
    "widened",
    [
        {"run_as": ["elastic"]},
        {"applications": [{"application": "kibana", "privileges": ["all"], "resources": ["*"]}]},
        {"global": {"application": {"manage": {"applications": ["*"]}}}},
    ],
    ids=lambda part: next(iter(part)),
)
def test_any_power_that_the_role_should_not_have_is_seen(
    platform: Platform, widened: dict[str, Any]
) -> None:
    admin, name = admin_of(platform), name_of(platform)
    role = service_account.role(platform.placement)
    assert not service_account.drift(admin, platform.placement)
    grant = role["indices"][0] | {"allow_restricted_indices": True}
    for altered in (role | widened, role | {"indices": [grant, *role["indices"][1:]]}):
        admin.security.put_role(
            name=name, **{_PYTHON.get(key, key): altered[key] for key in altered}
        )
        assert service_account.drift(admin, platform.placement)
        assert platform.init() == [f"role {name}"]


#: How the client spells a field whose name is a keyword of Python.
_PYTHON = {"global": "global_"}


def test_init_gives_a_role_that_was_altered_its_powers_back(platform: Platform) -> None:
    admin, name = admin_of(platform), name_of(platform)
    role = service_account.role(platform.placement)
    admin.security.put_role(name=name, **(role | {"cluster": [*role["cluster"], "manage"]}))
    assert platform.init() == [f"role {name}"]
    assert platform.init() == []
    admin.security.put_user(username=name, roles=[name, "superuser"], enabled=True)
    assert platform.init() == [f"service account {name}"]
    assert admin.security.get_user(username=name)[name]["roles"] == [name]


def test_init_with_a_wrong_administrator_is_refused(platform: Platform) -> None:
    settings = remote(
        platform, elasticsearch_username="elastic", elasticsearch_password=SecretStr("wrong-one")
    )
    with Platform(settings, embedder=HashingEmbedder()) as other:
        with pytest.raises(AccessDenied) as caught:
            other.init()
        assert caught.value.code == "unauthenticated"
        other.check()  # which needs none


def host(platform: Platform, folder: Path, **changes: Any) -> Settings:
    """Another host with an administrator's password and the deployment's secret."""
    return remote(
        platform,
        state_dir=folder,
        secret=platform.secret(),
        elasticsearch_username="elastic",
        elasticsearch_password=SecretStr(_node_password(platform)),
        **changes,
    )


def test_an_account_of_another_host_is_not_taken_over(platform: Platform, tmp_path: Path) -> None:
    with Platform(host(platform, tmp_path), embedder=HashingEmbedder()) as other:
        with pytest.raises(SetupError) as caught:
            other.init()
        assert caught.value.code == "service_password_unknown"
        assert "--rotate" in str(caught.value)
    assert not list(tmp_path.rglob("*"))
    wrong = host(platform, tmp_path, service_password=SecretStr("not-the-one"))
    with Platform(wrong, embedder=HashingEmbedder()) as other:
        with pytest.raises(SetupError) as caught:
            other.init()
        assert caught.value.code == "service_password_unknown"
    with Platform(platform.settings, embedder=HashingEmbedder()) as here:
        here.check()


def test_a_host_with_the_password_needs_no_administrator(
    platform: Platform, tmp_path: Path
) -> None:
    settings = remote(
        platform,
        state_dir=tmp_path,
        secret=platform.secret(),
        service_password=keyring.service_password(platform.settings),
    )
    with Platform(settings, embedder=HashingEmbedder()) as other:
        assert other.init() == []
        with pytest.raises(AccessDenied) as caught:
            other.init(rotate=True)
        assert caught.value.code == "no_admin"
        user = f"user-{uuid.uuid4().hex}"
        other.mint(user)
        assert other.for_user(user).remember(TEXT).status == "created"


def test_rotation_gives_a_new_password_and_the_old_one_stops(
    new_platform: NewPlatform, tmp_path: Path
) -> None:
    platform = new_platform(embedder=HashingEmbedder())
    old = keyring.service_password(platform.settings)
    assert old
    settings = remote(platform, state_dir=tmp_path, secret=platform.secret(), service_password=old)
    with Platform(settings, embedder=HashingEmbedder()) as other:
        other.check()
        kept = other.mint("ann")
        assert platform.init(rotate=True) == [f"password of {name_of(platform)}"]
        new = keyring.service_password(platform.settings)
        assert new
        assert new != old
        with pytest.raises(AccessDenied) as caught:
            other.list_keys()
        assert caught.value.code == "unauthenticated"
    platform.check()
    assert platform.list_keys("ann")
    assert security.works(platform.client(), kept)  # users' keys are not of the password


def test_another_host_may_give_the_account_a_new_password(
    new_platform: NewPlatform, tmp_path: Path
) -> None:
    platform = new_platform(embedder=HashingEmbedder())
    with Platform(host(platform, tmp_path), embedder=HashingEmbedder()) as other:
        assert other.init(rotate=True) == [f"password of {name_of(platform)}"]
        other.check()
    with (
        Platform(platform.settings, embedder=HashingEmbedder()) as here,
        pytest.raises(AccessDenied),
    ):
        here.check()


# --- where the password comes from ------------------------------------------------------------


def test_the_password_of_a_setting_is_the_accounts(new_platform: NewPlatform) -> None:
    first, second = SecretStr(f"first-{uuid.uuid4().hex}"), SecretStr(f"second-{uuid.uuid4().hex}")
    platform = new_platform(embedder=HashingEmbedder(), service_password=first)
    platform.add_user("ann")
    folder = platform.settings.state_dir / "service"
    assert not (folder / platform.settings.prefix).exists()
    changed = platform.settings.model_copy(update={"service_password": second})
    with Platform(changed, embedder=HashingEmbedder()) as other:
        with pytest.raises(SetupError) as caught:
            other.init()
        assert caught.value.code == "service_password_unknown"
        assert other.init(rotate=True) == [f"password of {name_of(platform)}"]
        assert other.list_keys("ann")


STORE = """#!/bin/sh
case "$1" in
  secret) echo {secret} ;;
  service_password) echo {password} ;;
  *) echo "no such secret" >&2; exit 4 ;;
esac
"""


def test_secrets_come_from_the_operators_store(new_platform: NewPlatform, tmp_path: Path) -> None:
    password, secret = f"password-{uuid.uuid4().hex}", f"secret-{uuid.uuid4().hex}"
    store = tmp_path / "my store"
    store.write_text(STORE.format(secret=secret, password=password), "utf-8")
    store.chmod(0o700)
    platform = new_platform(
        embedder=HashingEmbedder(), secret_command=f"'{store}' {{name}}", audit="index"
    )
    platform.mint("ann")
    assert platform.for_user("ann").remember(TEXT).status == "created"
    assert platform.secret().get_secret_value() == secret
    assert platform.init() == []
    name = name_of(platform)
    service = platform.client().options(basic_auth=(name, password))
    assert service.security.authenticate()["username"] == name
    assert not (platform.settings.state_dir / "service" / platform.settings.prefix).exists()

    store.write_text(f"#!/bin/sh\necho {password}\necho {secret} >&2\nexit 4\n", "utf-8")
    with Platform(platform.settings, embedder=HashingEmbedder()) as other:
        with pytest.raises(SetupError, match="ended with 4") as caught:
            other.check()
        assert caught.value.code == "secret_command"
        shown = "".join(traceback.format_exception(caught.value))
        assert password not in shown
        assert secret not in shown
    store.write_text(STORE.format(secret=secret, password=password), "utf-8")  # to clean up by


# --- nothing shows a secret -------------------------------------------------------------------


def _errors(platform: Platform, tmp_path: Path) -> Iterator[Callable[[], object]]:
    """Calls that fail with a secret in hand: the service's, a user's, an administrator's."""
    planted: dict[str, Any] = {
        "service_password": SecretStr("hidden-password-1"),
        "secret": SecretStr("hidden-secret-2"),
        "elasticsearch_username": "elastic",
        "elasticsearch_password": SecretStr("hidden-admin-3"),
    }
    settings = remote(platform, state_dir=tmp_path, **planted)
    other = Platform(settings, embedder=HashingEmbedder())
    yield other.init
    yield other.check
    yield other.list_keys
    made = platform.mint("ann")
    platform.revoke_user("ann")
    yield lambda: platform.for_user(made).recall("tea")
    yield lambda: platform.for_user(made).remember(TEXT)
    yield lambda: platform.for_user(made).whoami()
    down = settings.model_copy(update={"elasticsearch_url": "http://127.0.0.1:9"})
    yield Platform(down, embedder=HashingEmbedder()).list_keys
    file = tmp_path / "credentials.json"
    file.write_text('{"user_id": "ann", "api_key": "hidden-key-4", "id_secret": ', "utf-8")
    yield lambda: keyring.from_file(file)
    file.write_text('{"user_id": "ann", "api_key": "hidden-key-4", "id_secret": 5}', "utf-8")
    yield lambda: keyring.from_file(file)


def test_no_error_shows_a_secret(platform: Platform, tmp_path: Path) -> None:
    for call in _errors(platform, tmp_path):
        with pytest.raises(MemoryEsError) as caught:
            call()
        error: BaseException | None = caught.value
        shown = "".join(traceback.format_exception(caught.value))
        while error is not None:  # also of what it hides behind it
            shown += repr(error) + str(error) + repr(vars(error))
            error = error.__context__
        assert "hidden-" not in shown
        for kept in keyring_secrets(platform):
            assert kept not in shown


def keyring_secrets(platform: Platform) -> list[str]:
    password = keyring.service_password(platform.settings)
    assert password
    return [
        password.get_secret_value(),
        platform.secret().get_secret_value(),
        _node_password(platform),
    ]


def test_no_object_shows_a_secret(platform: Platform) -> None:
    password = keyring.service_password(platform.settings)
    settings = platform.settings.model_copy(
        update={
            "service_password": password,
            "secret": platform.secret(),
            "elasticsearch_password": SecretStr(_node_password(platform)),
        }
    )
    credentials = platform.mint("bob")
    hidden = [
        *keyring_secrets(platform),
        credentials.api_key.get_secret_value(),
        credentials.id_secret.get_secret_value(),
    ]
    with Platform(settings, embedder=HashingEmbedder()) as other:
        objects = [
            settings,
            settings.model_dump(),
            settings.model_dump_json(),
            credentials,
            credentials.model_dump_json(),
            other,
            other.users(),
            other.for_user(credentials),
            other.placement,
            other.service(),
            other.list_keys(),
        ]
        for shown in objects:
            for text in (repr(shown), str(shown), f"{shown}"):
                assert not [secret for secret in hidden if secret in text], type(shown)
