"""``--insecure-single-user`` on a node with security off: one user, said at every call, and no way
from there into a deployment that keeps users apart or back."""

from __future__ import annotations

import json
import os
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from memory_es import Platform, Settings, indices
from memory_es.config import INSECURE, Isolation
from memory_es.errors import AccessDenied, InvalidInput, MemoryEsError, SetupError
from memory_es.placement import Placement
from memory_es.suites import named_suite
from memory_es.text import owner_id
from tests.backstage import admin_of
from tests.commands import Cli, Done
from tests.doubles import HashingEmbedder

NewPlatform = Callable[..., Platform]
OWNER = "sarah"


@pytest.fixture(scope="module")
def platform(new_platform: NewPlatform) -> Platform:
    """A laptop's deployment, and its only user."""
    made = new_platform(on="insecure", isolation=INSECURE, embedder=HashingEmbedder())
    assert made.add_user(OWNER)[1]
    return made


def reopened(platform: Platform, **changes: Any) -> Platform:
    """The same deployment in another process, with other settings."""
    settings = platform.settings.model_copy(update=changes)
    return Platform(settings, embedder=HashingEmbedder())


# --- the one user -----------------------------------------------------------------------------


def test_nobody_is_told_to_be_limited_to_reading(platform: Platform) -> None:
    with pytest.raises(InvalidInput, match="there are no keys") as caught:
        platform.add_user(OWNER, access="read")
    assert caught.value.field == "access"
    assert not platform.add_user(OWNER)[1]


def test_its_user_remembers_and_recalls(platform: Platform) -> None:
    assert platform.init() == []
    memory = platform.for_user(OWNER)
    fact = f"the parcel {uuid.uuid4().hex} waits at the baker's"
    written = memory.remember(fact, "semantic")
    hits = [hit for hit in memory.recall("where is the parcel?").hits if hit.text == fact]
    assert [(hit.id, hit.owner) for hit in hits] == [(written.id, OWNER)]
    assert memory.remember(fact, "semantic").status == "duplicate"
    for kind, fields in (("episodic", {}), ("procedural", {"name": f"post {uuid.uuid4().hex}"})):
        assert memory.remember("take the parcel", kind, **fields).status == "created"
    [owned] = memory.owned([str(written.id)])
    assert owned.seen.source["owner"]["api_key"]["metadata"]["owner_id"] == owner_id(OWNER)
    recorder = platform.recorder()
    assert recorder
    recorder.drain()
    used = admin_of(platform).count(index=platform.placement.index("usage"))
    assert used["_shards"]["failed"] == 0


def test_its_user_is_known_without_a_key(platform: Platform) -> None:
    with reopened(platform) as other:
        credentials, _ = other.add_user(OWNER)
        assert (credentials.key_id, credentials.api_key.get_secret_value()) == ("", "")
        assert other.for_user(OWNER).whoami() == {
            "user": OWNER,
            "key_id": None,
            "access": "write",
        }


def _state_rows(platform: Platform) -> int:
    index = platform.placement.index("state")
    admin_of(platform).indices.refresh(index=index)
    return int(admin_of(platform).count(index=index)["count"])


def test_a_second_user_is_refused(platform: Platform) -> None:
    before = _state_rows(platform)
    for other in ("tom", "Sarah", "sarah2"):
        for call in (platform.add_user, platform.mint):
            with pytest.raises(SetupError) as caught:
                call(other)
            assert caught.value.code == "second_user"
        with pytest.raises(MemoryEsError) as refused:
            platform.for_user(other).remember("mine", "semantic")
        assert isinstance(refused.value, (SetupError, AccessDenied))
    assert _state_rows(platform) == before  # no row of any of them


def test_of_many_who_come_first_at_once_one_is_let_in(new_platform: NewPlatform) -> None:
    made = new_platform(on="insecure", isolation=INSECURE, embedder=HashingEmbedder())
    ready = threading.Barrier(8)

    def add(number: int) -> str:
        ready.wait()
        try:
            made.add_user(f"user {number}")
        except SetupError as error:
            return error.code
        return "in"

    with ThreadPoolExecutor(8) as pool:
        outcomes = sorted(pool.map(add, range(8)))
    assert outcomes == ["in", *["second_user"] * 7]


def test_a_user_whose_credentials_come_from_elsewhere_is_refused(platform: Platform) -> None:
    """Credentials are made by hand here: nothing in the cluster would notice."""
    own, _ = platform.add_user(OWNER)
    forged = own.model_copy(update={"user_id": "tom"})
    fact = f"planted {uuid.uuid4().hex}"
    with pytest.raises((SetupError, AccessDenied)):
        platform.for_user(forged).remember(fact, "semantic")


# --- what there is not ------------------------------------------------------------------------


def test_what_needs_keys_says_that_there_are_none(platform: Platform) -> None:
    calls: list[Callable[[], object]] = [
        platform.list_keys,
        lambda: platform.rotate_user(OWNER),
        lambda: platform.revoke_user(OWNER),
        lambda: platform.evaluate(named_suite("sample"), ["lexical"]),
    ]
    for call in calls:
        with pytest.raises(SetupError, match="--insecure-single-user") as caught:
            call()
        assert caught.value.code == "insecure"
        assert caught.value.remedy
    assert platform.for_user(OWNER).recall("anything").recipe == "hybrid"


def test_doctor_does_not_call_it_secure(platform: Platform) -> None:
    checks = {check.name: check for check in platform.diagnose(security=True)}
    assert checks["licence"].verdict == "warning"
    assert "OFF" in checks["licence"].detail
    assert checks["isolation"].verdict == "failed"
    rest = {name for name, check in checks.items() if check.verdict == "ok"}
    assert {"cluster", "indices", "templates", "vectors"} <= rest


@pytest.fixture
def laptop(platform: Platform) -> Cli:
    """The command on that laptop; the option is given with each call."""
    return Cli(
        os.environ
        | {
            "MEMORY_ES_STATE_DIR": str(platform.settings.state_dir),
            "MEMORY_ES_PREFIX": platform.settings.prefix,
        }
    )


def run(laptop: Cli, *arguments: str) -> Done:
    return laptop.run("--insecure-single-user", *arguments)


def test_the_command_says_at_every_call_what_is_given_up(laptop: Cli) -> None:
    expected = {
        ("status",): 0,
        ("doctor", "--security"): 3,
        ("users", "add", OWNER): 0,
        ("remember", "--user", OWNER, "I moved to Leeds in May"): 0,
        ("recall", "--user", OWNER, "where do I live?"): 0,
        ("users", "add", "tom"): 3,
        ("users", "list"): 3,
        ("users", "rotate", OWNER): 3,
        ("users", "revoke", OWNER): 3,
    }
    for arguments, code in expected.items():
        done = run(laptop, *arguments)
        assert done.code == code, (arguments, done)
        first, *rest = done.err.splitlines()
        assert first.startswith("warning: --insecure-single-user: "), arguments
        for lost in ("no keys", "no isolation", "no stamp", "second user"):
            assert lost in first
        if code == 3 and arguments[0] == "users":
            assert rest[0].startswith(
                "error [second_user]" if arguments[1] == "add" else "error [insecure]"
            )


def test_the_warning_does_not_mix_with_what_programs_read(laptop: Cli) -> None:
    done = run(laptop, "recall", "--user", OWNER, "where do I live?", "--json")
    assert "hits" in json.loads(done.out)


def test_without_the_option_the_command_refuses_that_node(laptop: Cli) -> None:
    done = laptop.run("init")
    assert (done.code, done.out) == (3, "")
    assert done.err.startswith("error [security_off]: ")
    assert "--insecure-single-user" in done.err


# --- no way in and no way out -----------------------------------------------------------------


@pytest.mark.parametrize("mode", ["dls", "index"])
def test_it_cannot_be_opened_as_a_deployment_that_keeps_users_apart(
    platform: Platform, mode: Isolation
) -> None:
    with reopened(platform, isolation=mode, service_password=SecretStr("of-no-use")) as other:
        for call in (other.init, other.check, lambda: other.for_user(OWNER).recall("tea")):
            with pytest.raises(SetupError) as caught:
                call()
            assert caught.value.code == "security_off"
        layout = other.layout()
    # and where security is switched on later, its indices are refused too
    with pytest.raises(SetupError) as caught:
        indices.check_layout(admin_of(platform), Placement(platform.settings.prefix, mode), layout)
    assert caught.value.code == "isolation_mismatch"


@pytest.mark.parametrize(("mode", "on"), [("dls", "trial"), ("index", "basic")])
def test_a_deployment_that_keeps_users_apart_is_not_opened_without(
    new_platform: NewPlatform, mode: str, on: str
) -> None:
    made = new_platform(on=on, isolation=mode, embedder=HashingEmbedder())
    made.add_user(OWNER)
    made.for_user(OWNER).remember("I drink tea", "semantic")
    with reopened(made, isolation=INSECURE) as other:
        for call in (
            other.init,
            other.check,
            lambda: other.add_user(OWNER),
            lambda: other.for_user(OWNER).recall("tea"),
        ):
            with pytest.raises(SetupError) as caught:
                call()
            assert caught.value.code == "security_on"
        with pytest.raises(SetupError) as caught:
            indices.check_layout(admin_of(made), other.placement, other.layout())
        assert caught.value.code == "isolation_mismatch"


def test_nothing_is_made_on_a_cluster_with_security_on(
    start_node: Callable[[str], Any], new_prefix: Callable[[], str], tmp_path: Path
) -> None:
    node = start_node("trial")
    settings = Settings.load(
        elasticsearch_url=node.url, state_dir=tmp_path, prefix=new_prefix(), isolation=INSECURE
    )
    with Platform(settings, embedder=HashingEmbedder()) as platform:
        with pytest.raises(SetupError) as caught:
            platform.init()
        assert caught.value.code == "security_on"
    assert not list(tmp_path.iterdir())
    cli = Cli(
        os.environ
        | {
            "MEMORY_ES_STATE_DIR": str(tmp_path),
            "ELASTICSEARCH_URL": node.url,
            "MEMORY_ES_PREFIX": settings.prefix,
        }
    )
    done = run(cli, "init")
    assert (done.code, done.out) == (3, "")
    assert "error [security_on]" in done.err
