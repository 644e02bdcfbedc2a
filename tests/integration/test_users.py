"""Users and their keys: made, listed, rotated, revoked, minted on demand, handed to an agent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from memory_es import Memory, Platform, Settings, UserCredentials, keyring, security
from memory_es.errors import AccessDenied, InvalidInput, NotFound, SetupError
from memory_es.security import KeyInfo
from tests.doubles import HashingEmbedder

NewPlatform = Callable[..., Platform]


@pytest.fixture(scope="module", params=["dls", "index"])
def platform(new_platform: NewPlatform, request: pytest.FixtureRequest) -> Platform:
    """A deployment in each way of isolation."""
    mode = str(request.param)
    on = "trial" if mode == "dls" else "basic"
    return new_platform(isolation=mode, on=on, embedder=HashingEmbedder())


def live(platform: Platform, user: str) -> list[KeyInfo]:
    """The user's live keys, those made a moment ago included."""
    security.settle(platform.service())
    return [key for key in platform.list_keys(user) if key.state == "live"]


def works(platform: Platform, credentials: UserCredentials) -> bool:
    return security.works(platform.client(), credentials)


class Host:
    """A machine of its own: what it holds, and the command there."""

    def __init__(self, platform: Platform, folder: Path, **variables: str) -> None:
        chosen = platform.settings
        kept = {key: value for key, value in os.environ.items() if not key.startswith("MEMORY_ES_")}
        self.environment = kept | {
            "MEMORY_ES_STATE_DIR": str(folder),
            "MEMORY_ES_CACHE_DIR": str(chosen.cache_dir),
            "MEMORY_ES_PREFIX": chosen.prefix,
            "MEMORY_ES_ISOLATION": chosen.isolation,
            **variables,
        }

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(Path(sys.executable).with_name("memory-es")), *arguments]
        return subprocess.run(
            command, env=self.environment, capture_output=True, text=True, check=False
        )


@pytest.fixture
def operator(platform: Platform) -> Host:
    """The host that made the deployment."""
    return Host(platform, platform.settings.state_dir)


# --- add and list ---------------------------------------------------------------------------


def test_a_new_key_says_whose_it_is_for_what_and_until_when(platform: Platform, user: str) -> None:
    before = datetime.now(UTC)
    credentials, new = platform.add_user(user, issued_by="olga", purpose="phone")
    assert new
    [key] = live(platform, user)
    assert (key.user_id, key.key_id, key.access) == (user, credentials.key_id, "write")
    assert (key.purpose, key.issued_by) == ("phone", "olga")
    assert key.expires_at == credentials.expires_at
    assert key.expires_at is not None
    assert abs(key.expires_at - before - timedelta(days=90)) < timedelta(minutes=1)
    assert platform.add_user(user) == (credentials, False)


@pytest.mark.parametrize("span", ["0d", "soon", "1w", ""])
def test_a_bad_expiry_makes_no_key(platform: Platform, user: str, span: str) -> None:
    if span:
        with pytest.raises(InvalidInput) as caught:
            platform.mint(user, expiration=span)
        assert caught.value.field == "expires"
        assert live(platform, user) == []
    else:  # none given: the setting
        assert platform.mint(user, expiration=span).expires_at is not None


def test_a_read_only_key_recalls_and_does_not_remember(platform: Platform, user: str) -> None:
    platform.add_user(user)
    platform.for_user(user).remember("I row on Sundays", kind="semantic")
    reader = platform.for_user(platform.mint(user, access="read"))
    assert [hit.text for hit in reader.recall("row", recipe="lexical").hits] == ["I row on Sundays"]
    with pytest.raises(AccessDenied) as caught:
        reader.remember("I swim too", kind="semantic")
    assert caught.value.code == "forbidden"
    assert len(platform.for_user(user).recall("swim", recipe="lexical", touch=False).hits) <= 1
    assert reader.whoami()["access"] == "read"


def test_the_listing_shows_keys_and_never_a_secret(
    platform: Platform, user: str, operator: Host
) -> None:
    credentials, _ = platform.add_user(user, purpose="phone")
    security.settle(platform.service())
    for arguments in (("users", "list", user), ("users", "list", "--json"), ("users", "list")):
        done = operator(*arguments)
        assert done.returncode == 0, done.stderr
        for secret in (credentials.api_key, credentials.id_secret):
            assert secret.get_secret_value() not in done.stdout + done.stderr
    [key] = json.loads(operator("users", "list", user, "--json").stdout)
    assert key["key_id"] == credentials.key_id
    assert key["purpose"] == "phone"
    assert key["created_at"] < key["expires_at"]
    assert "api_key" not in key
    assert "There are no keys" in operator("users", "list", f"{user}-unknown").stdout


# --- rotate ---------------------------------------------------------------------------------


def test_a_rotated_key_stays_valid_for_the_overlap(platform: Platform, user: str) -> None:
    old, _ = platform.add_user(user, access="read", expiration="30d")
    made, replaced = platform.rotate_user(user, overlap="1h", expiration="60d")
    assert [key.key_id for key in replaced] == [old.key_id]
    assert works(platform, old)
    assert works(platform, made)
    assert made.access == "read"
    assert made.id_secret == old.id_secret
    ends = {key.key_id: key.expires_at for key in live(platform, user)}
    now = datetime.now(UTC)
    for key_id, span in ((old.key_id, timedelta(hours=1)), (made.key_id, timedelta(days=60))):
        end = ends[key_id]
        assert end is not None
        assert abs(end - now - span) < timedelta(minutes=1)
    assert keyring.load(platform.settings, user) == made


def test_without_an_overlap_the_old_key_ends_at_once(platform: Platform, user: str) -> None:
    old, _ = platform.add_user(user)
    made, _ = platform.rotate_user(user, overlap="0")
    assert not works(platform, old)
    assert works(platform, made)


def test_a_key_that_ends_sooner_is_not_prolonged(platform: Platform, user: str) -> None:
    old, _ = platform.add_user(user, expiration="20m")
    platform.rotate_user(user, overlap="12h")
    [kept] = [key for key in live(platform, user) if key.key_id == old.key_id]
    assert kept.expires_at == old.expires_at


def test_only_keys_of_the_same_purpose_are_replaced(platform: Platform, user: str) -> None:
    phone, desk = (platform.mint(user, purpose=purpose) for purpose in ("phone", "desk"))
    _, replaced = platform.rotate_user(user, overlap="0", purpose="phone", keep=False)
    assert [key.key_id for key in replaced] == [phone.key_id]
    assert not works(platform, phone)
    assert works(platform, desk)
    assert keyring.load(platform.settings, user) is None


def test_what_cannot_be_rotated_says_why(platform: Platform, user: str) -> None:
    with pytest.raises(AccessDenied) as unknown:
        platform.rotate_user(user)
    assert unknown.value.code == "unknown_user"
    platform.add_user(user)
    with pytest.raises(NotFound) as none:
        platform.rotate_user(user, purpose="submarine")
    assert none.value.code == "no_such_key"
    with pytest.raises(InvalidInput) as span:
        platform.rotate_user(user, overlap="a while")
    assert span.value.field == "overlap"


# --- revoke ---------------------------------------------------------------------------------


def test_a_process_that_holds_a_revoked_key_fails_at_its_next_call(
    platform: Platform, user: str, operator: Host
) -> None:
    held, _ = platform.add_user(user)
    minted = platform.mint(user)  # in the same second: no search finds it yet
    memory = platform.for_user(held)
    memory.remember("I play the oboe", kind="semantic")
    done = operator("users", "revoke", user, "--json")
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout)["ended"]) == {held.key_id, minted.key_id}
    for credentials in (held, minted):
        with pytest.raises(AccessDenied) as caught:
            platform.for_user(credentials).recall("oboe")
        assert caught.value.code == "unauthenticated"
        assert user in str(caught.value)
    refused = operator("recall", "--user", user, "oboe")
    assert refused.returncode == 5
    assert "revoked" in refused.stderr
    again, new = platform.add_user(user)  # opens the same memories
    assert new
    hits = platform.for_user(again).recall("oboe", recipe="lexical").hits
    assert [hit.text for hit in hits] == ["I play the oboe"]


def test_one_key_can_be_revoked_alone(platform: Platform, user: str) -> None:
    kept, _ = platform.add_user(user)
    other = platform.mint(user)
    assert platform.revoke_user(user, other.key_id) == [other.key_id]
    assert not works(platform, other)
    assert works(platform, kept)
    assert platform.for_user(user).recall("anything", recipe="lexical").hits == ()


def test_what_cannot_be_revoked_says_why(platform: Platform, user: str) -> None:
    with pytest.raises(NotFound) as unknown:
        platform.revoke_user(user)
    assert unknown.value.code == "unknown_user"
    platform.add_user(user)
    theirs, _ = platform.add_user(f"{user}-other")
    with pytest.raises(NotFound) as foreign:
        platform.revoke_user(user, theirs.key_id)
    assert foreign.value.code == "no_such_key"
    assert works(platform, theirs)


def test_no_key_that_is_minted_during_a_revocation_outlives_it(
    platform: Platform, user: str
) -> None:
    users = platform.users()
    users.add(user)
    made: list[UserCredentials] = []
    refusals: list[AccessDenied] = []
    ready = threading.Barrier(7)

    def mint() -> None:
        ready.wait()
        while not refusals:
            try:
                made.append(users.mint(user, issued_by="race", expiration="15m"))
            except AccessDenied as error:
                refusals.append(error)

    threads = [threading.Thread(target=mint) for _ in range(6)]
    for thread in threads:
        thread.start()
    ready.wait()
    time.sleep(0.3)
    users.revoke(user)
    for thread in threads:
        thread.join()
    assert made
    assert {error.code for error in refusals} == {"revoked"}
    assert [key for key in made if works(platform, key)] == []
    assert live(platform, user) == []


# --- whoami ---------------------------------------------------------------------------------


def test_a_key_is_asked_of_with_itself(platform: Platform, user: str, operator: Host) -> None:
    credentials, _ = platform.add_user(user, issued_by="olga", purpose="phone")
    facts = platform.for_user(user).whoami()
    assert facts["user"] == user
    assert facts["key_id"] == credentials.key_id
    assert (facts["purpose"], facts["issued_by"]) == ("phone", "olga")
    assert facts["expires_at"]
    done = operator("users", "whoami", "--user", user, "--json")
    assert json.loads(done.stdout) == facts
    assert credentials.api_key.get_secret_value() not in done.stdout
    platform.revoke_user(user)
    with pytest.raises(AccessDenied) as caught:
        platform.for_user(credentials).whoami()
    assert caught.value.code == "unauthenticated"


# --- on demand ------------------------------------------------------------------------------


def server(platform: Platform, tmp_path: Path, **options: Any) -> Platform:
    """A process on another host with the service credential and no keys of users."""
    chosen = platform.settings
    password = keyring.service_password(chosen)
    settings = Settings.load(
        state_dir=tmp_path / "server",
        cache_dir=chosen.cache_dir,
        elasticsearch_url=platform.status()["url"],
        service_password=password,
        secret=platform.secret(),
        prefix=chosen.prefix,
        isolation=chosen.isolation,
    )
    return Platform(settings, embedder=HashingEmbedder(), **options)


def test_a_server_mints_one_short_lived_key_a_user_and_ends_it_at_shutdown(
    platform: Platform, user: str, tmp_path: Path
) -> None:
    platform.users().add(user)
    with server(platform, tmp_path) as other:

        def use(number: int) -> Memory:
            memory = other.for_user(user)
            memory.remember(f"lap {number}", kind="semantic")
            return memory

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(use, range(16)))
        [key] = live(platform, user)
        assert (key.purpose, key.issued_by) == ("on demand", "server")
        assert key.expires_at is not None
        assert key.expires_at - key.created_at == timedelta(minutes=15)
        assert not (tmp_path / "server" / "users").exists()
    assert live(platform, user) == []


def test_a_key_on_demand_is_renewed_shortly_before_it_ends(
    platform: Platform, user: str, tmp_path: Path
) -> None:
    platform.users().add(user)
    ahead = timedelta()
    with server(platform, tmp_path, clock=lambda: datetime.now(UTC) + ahead) as other:
        memory = other.for_user(user)
        first = memory.whoami()["key_id"]
        ahead = timedelta(minutes=12)
        assert memory.whoami()["key_id"] == first
        ahead = timedelta(minutes=13, seconds=30)
        assert memory.whoami()["key_id"] != first
        memory.remember("still here", kind="semantic")


def test_a_server_whose_key_was_revoked_fails_once_and_stays_out(
    platform: Platform, user: str, tmp_path: Path
) -> None:
    platform.users().add(user)
    with server(platform, tmp_path) as other:
        memory = other.for_user(user)
        memory.remember("drinks tea", kind="semantic")
        platform.revoke_user(user)
        codes = []
        for _ in range(2):
            with pytest.raises(AccessDenied) as caught:
                memory.recall("tea", recipe="lexical")
            codes.append(caught.value.code)
        assert codes == ["unauthenticated", "revoked"]
        platform.users().add(user)
        assert memory.recall("tea", recipe="lexical").hits


def test_nobody_who_was_not_added_gets_a_key(platform: Platform, user: str, tmp_path: Path) -> None:
    with server(platform, tmp_path) as other:
        with pytest.raises(AccessDenied) as caught:
            other.for_user(user)
        assert caught.value.code == "unknown_user"
        assert "users add" in str(caught.value)
    assert live(platform, user) == []


# --- an agent that holds its own key and nothing else ---------------------------------------


@pytest.fixture
def agent(platform: Platform, user: str, operator: Host, tmp_path: Path) -> Host:
    """A host with one user's credentials, the cluster's address and an empty state folder."""
    done = operator("users", "add", user, "--show", "--purpose", "agent", "--expires", "2d")
    assert done.returncode == 0, done.stderr
    file = tmp_path / "agent.key.json"
    file.write_text(done.stdout)
    return Host(
        platform,
        tmp_path / "agent",
        MEMORY_ES_CREDENTIALS=str(file),
        ELASTICSEARCH_URL=platform.status()["url"],
    )


def test_an_agent_with_its_key_alone_recalls_and_remembers_and_no_more(
    platform: Platform, user: str, agent: Host
) -> None:
    assert agent("remember", "I moved to Leeds", "--kind", "semantic").returncode == 0
    found = agent("recall", "Leeds", "--recipe", "lexical", "--json")
    assert found.returncode == 0, found.stderr
    assert [hit["text"] for hit in json.loads(found.stdout)["hits"]] == ["I moved to Leeds"]
    assert json.loads(agent("users", "whoami", "--json").stdout)["purpose"] == "agent"
    for arguments in (("recall", "--user", "somebody", "x"), ("remember", "-u", "other", "x")):
        done = agent(*arguments)
        assert done.returncode == 5
        assert "not those of" in done.stderr
    refused_here = (["users", "list"], ["users", "add", "mallory"], ["init"], ["doctor"])
    for command in refused_here:
        done = agent(*command)
        assert done.returncode in {3, 5}, done.stdout
        assert "memory-es init" in done.stdout + done.stderr
    platform.revoke_user(user)
    refused = agent("recall", "Leeds")
    assert refused.returncode == 5
    assert "[unauthenticated]" in refused.stderr


@pytest.mark.parametrize(
    ("setting", "value", "code"),
    [
        ("MEMORY_ES_LANGUAGES", "english,thai", "languages_changed"),
        ("MEMORY_ES_ISOLATION", "other", "isolation"),
    ],
)
def test_an_agent_of_another_making_is_refused(
    platform: Platform, agent: Host, setting: str, value: str, code: str
) -> None:
    if value == "other":
        value = "index" if platform.settings.isolation == "dls" else "dls"
    agent.environment[setting] = value
    done = agent("recall", "--recipe", "lexical", "anything")
    assert done.returncode in {3, 5}
    if code == "isolation":  # the indices of that way are not there for this key
        assert "error [" in done.stderr
    else:
        assert f"[{code}]" in done.stderr


def test_an_agent_with_another_model_is_refused(
    platform: Platform, user: str, tmp_path: Path
) -> None:
    credentials = platform.mint(user)
    settings = Settings.load(
        state_dir=tmp_path,
        elasticsearch_url=platform.status()["url"],
        prefix=platform.settings.prefix,
        isolation=platform.settings.isolation,
    )
    with (
        Platform(settings, embedder=HashingEmbedder(name="another", dims=128)) as other,
        pytest.raises(SetupError) as caught,
    ):
        other.for_user(credentials).recall("anything")
    assert caught.value.code == "model_mismatch"


@pytest.mark.parametrize("arguments", [("recall", "x"), ("remember", "x"), ("users", "whoami")])
def test_without_a_user_and_without_credentials_the_command_says_so(
    operator: Host, arguments: tuple[str, ...]
) -> None:
    done = operator(*arguments)
    assert done.returncode == 2
    assert "user: is empty" in done.stderr


def test_credentials_are_shown_one_user_at_a_time(operator: Host) -> None:
    done = operator("users", "add", "ann", "bob", "--show")
    assert done.returncode == 2
    assert "name one user" in done.stderr
