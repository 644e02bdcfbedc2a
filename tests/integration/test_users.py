"""Users and their keys on the real node: made, listed, rotated, revoked, made on demand, and held
by an agent that has nothing else."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from memory_es import Platform, Settings, keyring, security
from memory_es.credentials import UserCredentials
from memory_es.errors import AccessDenied, InvalidInput, MemoryEsError, NotFound, SetupError
from memory_es.minted import LIFETIME, MARGIN
from memory_es.models import Embedder
from memory_es.text import owner_id
from tests.backstage import admin_of
from tests.commands import Cli
from tests.doubles import HashingEmbedder
from tests.proxy import Asked, Proxy, Reply

NewPlatform = Callable[..., Platform]
MODES = {"dls": "trial", "index": "basic"}


@pytest.fixture(scope="module", params=MODES)
def either(new_platform: NewPlatform, request: pytest.FixtureRequest) -> Platform:
    """A deployment under each way of isolation."""
    return new_platform(isolation=request.param, on=MODES[request.param])


@pytest.fixture
def server(either: Platform, embedder: Embedder) -> Iterator[Platform]:
    """A server process of that deployment: no user's key is kept where it looks for them."""
    with Platform(either.settings, embedder=embedder) as platform:
        yield platform


def url_of(platform: Platform) -> str:
    return str(platform.status()["url"])


def cli_of(platform: Platform) -> Cli:
    """The command as the operator of a deployment runs it."""
    settings = platform.settings
    return Cli(
        os.environ
        | {
            "MEMORY_ES_STATE_DIR": str(settings.state_dir),
            "MEMORY_ES_PREFIX": settings.prefix,
            "MEMORY_ES_ISOLATION": settings.isolation,
            "COLUMNS": "300",  # tables are not folded
        }
    )


def entry(platform: Platform, key_id: str) -> dict[str, Any]:
    """A key as the cluster has it."""
    security.settle(platform.service())
    [found] = admin_of(platform).security.get_api_key(id=key_id)["api_keys"]
    return dict(found)


def live(platform: Platform, user: str, purpose: str | None = None) -> list[str]:
    """Ids of a user's keys that the cluster takes, as an administrator sees them."""
    security.settle(platform.service())
    found = admin_of(platform).security.get_api_key(active_only=True)["api_keys"]
    return [
        key["id"]
        for key in found
        if key["metadata"].get("user_id") == user
        and key["metadata"].get("deployment") == platform.settings.prefix
        and purpose in (None, key["metadata"]["purpose"])
    ]


def works(platform: Platform, credentials: UserCredentials) -> bool:
    """Whether Elasticsearch itself takes a key now."""
    return security.works(platform.client(), credentials)


def secrets_of(credentials: UserCredentials) -> list[str]:
    """Every spelling of what must not be shown: the key, its secret half, the id secret."""
    encoded = credentials.api_key.get_secret_value()
    half = base64.b64decode(encoded).decode().split(":")[1]
    return [encoded, half, credentials.id_secret.get_secret_value()]


def texts(platform: Platform, who: str | UserCredentials, query: str = "tea") -> list[str]:
    return [hit.text for hit in platform.for_user(who).recall(query, touch=False).hits]


def until(days: float) -> Any:
    """About so many days from now."""
    return pytest.approx(time.time() + days * 86_400, abs=120)


# --- add ------------------------------------------------------------------------------------


def test_a_user_added_twice_keeps_one_key(platform: Platform, user: str) -> None:
    first, new = platform.add_user(user)
    again, new_again = platform.add_user(user)
    assert (new, new_again, again) == (True, False, first)
    assert live(platform, user) == [first.key_id]


def test_a_key_says_whose_it_is_who_issued_it_and_for_what(platform: Platform, user: str) -> None:
    made, _ = platform.add_user(user, issued_by="olga", purpose="phone", access="read")
    assert entry(platform, made.key_id)["metadata"] == {
        "user_id": user,
        "owner_id": owner_id(user),
        "deployment": platform.settings.prefix,
        "access": "read",
        "purpose": "phone",
        "issued_by": "olga",
    }


def test_a_key_ends_after_ninety_days_unless_told_otherwise(platform: Platform, user: str) -> None:
    default, _ = platform.add_user(user)
    short = platform.mint(user, expiration="12h")
    assert entry(platform, default.key_id)["expiration"] / 1_000 == until(90)
    assert entry(platform, short.key_id)["expiration"] / 1_000 == until(0.5)
    assert default.expires_at is not None
    assert default.expires_at.timestamp() == until(90)


def test_the_setting_decides_how_long_keys_are_valid(platform: Platform, user: str) -> None:
    settings = platform.settings.model_copy(update={"key_expiry": "7d"})
    with Platform(settings, embedder=platform.embedder()) as other:
        made, _ = other.add_user(user)
    assert entry(platform, made.key_id)["expiration"] / 1_000 == until(7)


@pytest.mark.parametrize("span", ["soon", "0d", "-1d", "1w", ""])
def test_a_span_that_is_none_is_refused_and_makes_no_key(
    platform: Platform, user: str, span: str
) -> None:
    platform.mint(user)
    before = live(platform, user)
    with pytest.raises(InvalidInput, match="expires"):
        platform.mint(user, expiration=span or "forever")
    with pytest.raises(InvalidInput, match="overlap"):
        platform.rotate_user(user, overlap=span)
    assert live(platform, user) == before


def test_a_kept_key_that_is_over_is_replaced(platform: Platform, user: str) -> None:
    first, _ = platform.add_user(user)
    platform.revoke_user(user, first.key_id)
    keyring.save(platform.settings, first)  # as on a second host, which does not know
    second, new = platform.add_user(user)
    assert (new, live(platform, user)) == (True, [second.key_id])


# --- access ---------------------------------------------------------------------------------


def test_a_read_only_key_recalls_and_cannot_remember(either: Platform, user: str) -> None:
    writer = either.mint(user)
    reader = either.mint(user, access="read")
    either.for_user(writer).remember("I drink tea", "semantic")
    assert texts(either, reader) == ["I drink tea"]
    with pytest.raises(AccessDenied, match="forbids") as caught:
        either.for_user(reader).remember("I drink coffee", "semantic")
    assert (caught.value.code, caught.value.exit_code) == ("forbidden", 5)
    with pytest.raises(AccessDenied):
        either.for_user(reader).remember_many([{"text": "I drink mate"}])
    assert texts(either, writer) == ["I drink tea"]


def test_the_command_of_a_read_only_user_ends_with_the_code_of_refusal(
    platform: Platform, user: str
) -> None:
    cli = cli_of(platform)
    assert "has a new key" in cli("users", "add", user, "--read-only")
    assert cli("recall", "tea", "--user", user) == "Nothing is known about that.\n"
    refused = cli.run("remember", "I drink tea", "--user", user)
    assert (refused.code, refused.out) == (5, "")
    assert refused.err.startswith("error [forbidden]: ")
    [row] = cli.json("users", "list", user)
    assert row["access"] == "read"


# --- list -----------------------------------------------------------------------------------


def test_a_key_is_in_the_list_as_soon_as_it_is_made(either: Platform, user: str) -> None:
    made = [either.add_user(user)[0], either.mint(user, purpose="phone")]
    assert {key.key_id for key in either.list_keys(user)} == {key.key_id for key in made}


def test_the_list_shows_last_rotation_and_end_and_never_a_secret(
    platform: Platform, user: str
) -> None:
    made = [
        platform.add_user(user, issued_by="olga")[0],
        platform.mint(user, purpose="phone", expiration="12h", access="read"),
    ]
    made.append(platform.rotate_user(user)[0])
    cli = cli_of(platform)
    shown, as_json = cli("users", "list", user), cli("users", "list", user, "--json")
    for credentials in made:
        assert credentials.key_id in shown
        for secret in secrets_of(credentials):
            assert secret not in shown + as_json
    rows = {row["key_id"]: row for row in json.loads(as_json)}
    assert list(rows) == [credentials.key_id for credentials in made]  # oldest first
    for credentials in made:
        row, known = rows[credentials.key_id], entry(platform, credentials.key_id)
        assert (row["user_id"], row["state"]) == (user, "live")
        assert datetime.fromisoformat(row["created_at"]).timestamp() * 1_000 == known["creation"]
        assert datetime.fromisoformat(row["expires_at"]).timestamp() * 1_000 == known["expiration"]
    assert [row["purpose"] for row in rows.values()] == ["default", "phone", "default"]
    assert [row["issued_by"] for row in rows.values()] == ["olga", "python", "python"]


def test_keys_that_are_over_are_listed_on_request(platform: Platform, user: str) -> None:
    brief = platform.mint(user, expiration="1s")
    revoked, kept = platform.mint(user), platform.mint(user)
    platform.revoke_user(user, revoked.key_id)
    time.sleep(1.2)
    states = {key.key_id: key.state for key in platform.list_keys(user)}
    assert states == {brief.key_id: "expired", revoked.key_id: "revoked", kept.key_id: "live"}
    cli = cli_of(platform)
    assert [row["key_id"] for row in cli.json("users", "list", user)] == [kept.key_id]
    assert len(cli.json("users", "list", user, "--ended")) == 3


def test_the_list_of_everybody_is_of_this_deployment_alone(
    platform: Platform, new_platform: NewPlatform, user: str
) -> None:
    other = new_platform(embedder=HashingEmbedder())
    here, there = platform.mint(user), other.mint(user)
    for each in (platform, other):
        security.settle(each.service())
    assert there.key_id in {key.key_id for key in other.list_keys()}
    assert there.key_id not in {key.key_id for key in platform.list_keys()}
    assert [key.key_id for key in platform.list_keys(user)] == [here.key_id]
    with pytest.raises(NotFound):
        platform.revoke_user(user, there.key_id)
    assert works(other, there)


def test_keys_are_listed_page_by_page_none_left_out_or_twice(
    platform: Platform, user: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ThreadPoolExecutor(8) as pool:  # several in one millisecond
        made = {key.key_id for key in pool.map(lambda _: platform.mint(user), range(40))}
    security.settle(platform.service())
    monkeypatch.setattr("memory_es.security._PAGE", 7)
    listed = platform.list_keys(user)
    assert sorted(key.key_id for key in listed) == sorted(made)
    assert [key.created_at for key in listed] == sorted(key.created_at for key in listed)


# --- rotate ---------------------------------------------------------------------------------


def test_a_rotated_key_works_until_the_overlap_is_over(either: Platform, user: str) -> None:
    old, _ = either.add_user(user)
    either.for_user(user).remember("I drink tea", "semantic")
    new, replaced = either.rotate_user(user, overlap="1h")
    assert [key.key_id for key in replaced] == [old.key_id]
    assert entry(either, old.key_id)["expiration"] / 1_000 == until(1 / 24)
    assert entry(either, new.key_id)["expiration"] / 1_000 == until(90)
    assert texts(either, old) == texts(either, new) == ["I drink tea"]
    assert keyring.load(either.settings, user) == new

    newest, _ = either.rotate_user(user, overlap="1s")
    time.sleep(1.5)
    for over in (old, new):
        with pytest.raises(AccessDenied, match="refuses the key"):
            either.for_user(over).recall("tea")
    assert texts(either, newest) == ["I drink tea"]


@pytest.mark.parametrize("overlap", ["0", "0m"])
def test_without_an_overlap_the_old_key_ends_at_once(
    platform: Platform, user: str, overlap: str
) -> None:
    old = platform.mint(user)
    new, _ = platform.rotate_user(user, overlap=overlap)
    assert (works(platform, old), works(platform, new)) == (False, True)


def test_only_keys_of_the_same_purpose_are_rotated(platform: Platform, user: str) -> None:
    phone, laptop = (platform.mint(user, purpose=purpose) for purpose in ("phone", "laptop"))
    new, replaced = platform.rotate_user(user, purpose="phone", overlap="0")
    assert [key.key_id for key in replaced] == [phone.key_id]
    assert (works(platform, phone), works(platform, laptop)) == (False, True)
    assert entry(platform, laptop.key_id)["expiration"] / 1_000 == until(90)
    assert entry(platform, new.key_id)["metadata"]["purpose"] == "phone"
    with pytest.raises(NotFound, match="no live key for the purpose 'watch'"):
        platform.rotate_user(user, purpose="watch")
    assert len(live(platform, user)) == 2


def test_rotation_keeps_what_the_key_may_do(platform: Platform, user: str) -> None:
    platform.mint(user, access="read")
    new, _ = platform.rotate_user(user)
    assert (new.access, entry(platform, new.key_id)["metadata"]["access"]) == ("read", "read")
    with pytest.raises(AccessDenied):
        platform.for_user(new).remember("I drink tea")


def test_an_old_key_that_ends_sooner_is_not_prolonged(platform: Platform, user: str) -> None:
    brief = platform.mint(user, expiration="10m")
    before = entry(platform, brief.key_id)["expiration"]
    platform.rotate_user(user, overlap="12h")
    assert entry(platform, brief.key_id)["expiration"] == before


def test_a_key_made_a_moment_ago_is_rotated_too(platform: Platform, user: str) -> None:
    made = [platform.mint(user) for _ in range(3)]
    _, replaced = platform.rotate_user(user, overlap="0")
    assert {key.key_id for key in replaced} == {key.key_id for key in made}
    assert not any(works(platform, key) for key in made)


def test_a_new_key_that_reaches_nobody_does_not_live_on(platform: Platform, user: str) -> None:
    """The cluster fails once the new key is made: the old one goes on, the new one is ended."""
    old, _ = platform.add_user(user)
    ending: list[Asked] = []

    def answer(asked: Asked) -> Reply | None:
        if asked.method == "DELETE" and not ending:
            ending.append(asked)
            return Reply(500, b"{}")
        return None

    with Proxy(url_of(platform), answer=answer) as proxy:
        settings = platform.settings.model_copy(update={"elasticsearch_url": proxy.url})
        with (
            Platform(settings, embedder=platform.embedder()) as through,
            pytest.raises(MemoryEsError),
        ):
            through.rotate_user(user, overlap="0")
    assert ending
    assert live(platform, user) == [old.key_id]
    assert works(platform, old)


@pytest.mark.parametrize("bad", ["", "\ud800", "x" * 600])
def test_a_bad_user_id_is_one_error_everywhere(platform: Platform, bad: str) -> None:
    for call in (platform.rotate_user, platform.revoke_user, platform.add_user, platform.mint):
        with pytest.raises(InvalidInput) as caught:
            call(bad)
        assert caught.value.field == "user"


def test_the_keys_of_an_unknown_user_are_not_rotated(platform: Platform, user: str) -> None:
    with pytest.raises(AccessDenied) as caught:
        platform.rotate_user(user)
    assert caught.value.code == "unknown_user"
    assert live(platform, user) == []


def test_the_command_rotates_and_says_when_the_old_key_ends(platform: Platform, user: str) -> None:
    cli = cli_of(platform)
    old, _ = platform.add_user(user)
    shown = cli("users", "rotate", user, "--overlap", "30m")
    assert "within 30m" in shown
    assert old.key_id in shown
    agent = UserCredentials.model_validate_json(
        cli("users", "rotate", user, "--overlap", "0", "--show")
    )
    assert live(platform, user) == [agent.key_id]
    assert texts(platform, agent) == []


# --- revoke ---------------------------------------------------------------------------------


def test_a_revoked_key_is_refused_at_once_however_new_it_is(either: Platform, user: str) -> None:
    for _ in range(5):
        made = either.mint(user)
        assert either.revoke_user(user) == [made.key_id]
        assert not works(either, made)
        with pytest.raises(AccessDenied) as caught:
            either.for_user(made).recall("tea")
        assert (caught.value.code, caught.value.exit_code) == ("unauthenticated", 5)


def test_a_user_who_is_added_again_finds_the_same_memories(either: Platform, user: str) -> None:
    first, _ = either.add_user(user)
    written = either.for_user(user).remember("I drink tea", "semantic")
    assert either.revoke_user(user) == [first.key_id]
    assert keyring.load(either.settings, user) is None
    with pytest.raises(AccessDenied) as caught:
        either.for_user(user)
    assert caught.value.code == "revoked"
    second, new = either.add_user(user)
    assert new
    assert second.id_secret == first.id_secret
    [hit] = either.for_user(user).recall("tea").hits
    assert (hit.id, hit.text) == (written.id, "I drink tea")
    assert either.for_user(user).remember("I drink tea", "semantic").status == "duplicate"
    assert not works(either, first)


def test_one_key_is_revoked_by_its_id_and_the_user_stays(either: Platform, user: str) -> None:
    lost, kept = either.mint(user), either.mint(user)
    assert either.revoke_user(user, lost.key_id) == [lost.key_id]
    assert (works(either, lost), works(either, kept)) == (False, True)
    assert either.for_user(user).recall("tea").hits == ()
    with pytest.raises(NotFound):  # it is over
        either.revoke_user(user, lost.key_id)


def test_a_key_is_revoked_by_its_id_alone(platform: Platform, user: str) -> None:
    lost, left = platform.mint(user), platform.mint(user)
    cli = cli_of(platform)
    assert cli.json("users", "revoke", "--key", lost.key_id) == {
        "user": None,
        "ended": [lost.key_id],
    }
    assert (works(platform, lost), works(platform, left)) == (False, True)
    nameless = platform.service().security.create_api_key(name="nameless", refresh=False)
    assert platform.revoke_user(None, nameless["id"]) == [nameless["id"]]
    with pytest.raises(NotFound):
        platform.revoke_user(None, "of-nobody")
    nobody = cli.run("users", "revoke")
    assert (nobody.code, "user: is empty" in nobody.err) == (2, True)


def test_a_key_of_another_user_is_not_revoked(platform: Platform, user: str) -> None:
    other = f"other-{user}"
    mine, theirs = platform.mint(user), platform.mint(other)
    for wrong in (theirs.key_id, "no-such-key", ""):
        with pytest.raises(NotFound) as caught:
            platform.revoke_user(user, wrong)
        assert caught.value.code == "no_such_key"
    assert works(platform, theirs)
    assert works(platform, mine)


def test_an_unknown_user_cannot_be_revoked(platform: Platform, user: str) -> None:
    with pytest.raises(NotFound) as caught:
        platform.revoke_user(user)
    assert caught.value.code == "unknown_user"
    done = cli_of(platform).run("users", "revoke", user)
    assert (done.code, done.out) == (4, "")
    assert done.err.startswith("error [unknown_user]: ")


#: A process that holds a key and recalls at every line that it gets.
HOLDER = """
import sys
from memory_es import Memory
from memory_es.errors import MemoryEsError

platform = Memory.connect()
memory = platform.memory_of(None)
for line in sys.stdin:
    try:
        print([hit.text for hit in memory.recall(line.strip()).hits], flush=True)
    except MemoryEsError as error:
        print(type(error).__name__, error.code, flush=True)
        sys.exit(error.exit_code)
"""


def test_a_running_process_fails_at_its_next_call_after_the_revocation(
    either: Platform, user: str, tmp_path: Path
) -> None:
    agent = Agent.of(either, either.mint(user), tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER],
        env=agent.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin
        assert process.stdout
        said = []
        for revoke in (False, False, True):
            if revoke:
                either.revoke_user(user)
            process.stdin.write("tea\n")
            process.stdin.flush()
            said.append(process.stdout.readline().strip())
        assert process.wait(timeout=30) == 5
    assert said == ["[]", "[]", "AccessDenied unauthenticated"]


def test_commands_of_a_revoked_user_end_with_the_code_of_refusal(
    platform: Platform, user: str
) -> None:
    platform.add_user(user)
    cli = cli_of(platform)
    assert cli.json("users", "revoke", user)["ended"] == [
        key.key_id for key in platform.list_keys(user)
    ]
    for command in (("recall", "tea"), ("remember", "tea"), ("users", "whoami")):
        done = cli.run(*command, "--user", user)
        assert (done.code, done.out) == (5, ""), done
        assert done.err.startswith("error [revoked]: ")


def test_no_key_that_is_made_during_a_revocation_outlives_it(either: Platform, user: str) -> None:
    """Eight threads make keys as fast as they can while the user is revoked."""
    either.mint(user)
    users, made, refused = either.users(), [], []
    begun = threading.Barrier(9)

    def mint() -> None:
        begun.wait()
        for _ in range(1_000):
            try:
                made.append(
                    users.mint(user, issued_by="server", expiration=LIFETIME, purpose="on demand")
                )
            except AccessDenied as error:
                refused.append(error.code)
                return

    with ThreadPoolExecutor(8) as pool:
        threads = [pool.submit(mint) for _ in range(8)]
        begun.wait()
        time.sleep(0.3)
        either.revoke_user(user)
        after = list(made)
        for key in after[-20:]:
            assert not works(either, key)
        for thread in threads:
            thread.result()
    assert refused == ["revoked"] * 8
    assert len(made) >= 8
    assert not [key.key_id for key in made if works(either, key)]
    assert live(either, user) == []


# --- whoami ---------------------------------------------------------------------------------


def test_a_key_is_told_who_it_is(either: Platform, user: str) -> None:
    made, _ = either.add_user(user, issued_by="olga", purpose="phone", access="read")
    facts = either.for_user(user).whoami()
    assert {name: facts[name] for name in ("user", "key_id", "access", "state")} == {
        "user": user,
        "key_id": made.key_id,
        "access": "read",
        "state": "live",
    }
    assert (facts["issued_by"], facts["purpose"]) == ("olga", "phone")
    assert datetime.fromisoformat(facts["expires_at"]) == made.expires_at
    assert not [secret for secret in secrets_of(made) if secret in str(facts)]
    either.revoke_user(user)
    with pytest.raises(AccessDenied, match="was revoked or is wrong"):
        either.for_user(made).whoami()


# --- on demand ------------------------------------------------------------------------------


def test_a_server_makes_a_short_key_when_it_first_needs_one(
    either: Platform, server: Platform, user: str
) -> None:
    either.for_user(either.mint(user)).remember("I drink tea", "semantic")
    memory = server.for_user(user)
    assert [hit.text for hit in memory.recall("tea").hits] == ["I drink tea"]
    assert memory.remember("I drink mate", "semantic").status == "created"
    [key_id] = live(either, user, "on demand")
    known = entry(either, key_id)
    assert known["expiration"] - known["creation"] == 15 * 60 * 1_000
    assert known["metadata"]["issued_by"] == "server"
    assert memory.whoami()["key_id"] == key_id
    assert keyring.load(server.settings, user) is None


def test_many_threads_get_one_key(either: Platform, server: Platform, user: str) -> None:
    either.mint(user)
    with ThreadPoolExecutor(16) as pool:
        ready = threading.Barrier(16)

        def recall(_number: int) -> tuple[Any, ...]:
            ready.wait()
            return server.for_user(user).recall("tea", touch=False).hits

        assert list(pool.map(recall, range(16))) == [()] * 16
    assert len(live(either, user, "on demand")) == 1


@dataclass
class Clock:
    """Real time, and what was added to it."""

    ahead: timedelta = timedelta()

    def __call__(self) -> datetime:
        return datetime.now(UTC) + self.ahead


def test_a_key_made_on_demand_is_renewed_before_it_ends(
    either: Platform, embedder: Embedder, user: str
) -> None:
    either.mint(user)
    clock = Clock()
    with Platform(either.settings, embedder=embedder, clock=clock) as server:
        memory = server.for_user(user)
        first = memory.whoami()["key_id"]
        clock.ahead = timedelta(minutes=15) - MARGIN - timedelta(minutes=5)
        assert memory.whoami()["key_id"] == first
        clock.ahead += timedelta(minutes=6)
        second = memory.whoami()["key_id"]
        assert second != first
        clock.ahead = timedelta()  # the cluster's clock did not move
        assert memory.whoami()["key_id"] == second
        assert memory.recall("tea").hits == ()


def test_a_key_made_on_demand_that_is_refused_is_dropped(
    either: Platform, server: Platform, user: str
) -> None:
    either.mint(user)
    memory = server.for_user(user)
    first = memory.whoami()["key_id"]
    either.revoke_user(user, first)
    with pytest.raises(AccessDenied) as caught:
        memory.recall("tea")
    assert caught.value.code == "unauthenticated"
    assert memory.recall("tea").hits == ()
    assert memory.whoami()["key_id"] != first

    either.revoke_user(user)
    codes = []
    for _ in range(2):
        with pytest.raises(AccessDenied) as caught:
            memory.recall("tea")
        codes.append(caught.value.code)
    assert codes == ["unauthenticated", "revoked"]


def test_keys_made_on_demand_end_with_the_process(
    either: Platform, embedder: Embedder, user: str
) -> None:
    names = [f"{user}-{number}" for number in range(3)]
    kept = [either.mint(name) for name in names]
    with Platform(either.settings, embedder=embedder) as server:
        for name in names:
            server.for_user(name).recall("tea")
        held = [server.minted().of(name) for name in names]
        assert all(works(either, key) for key in held)
    assert not any(works(either, key) for key in held)
    assert [live(either, name) for name in names] == [[key.key_id] for key in kept]


def test_a_key_that_was_renewed_ends_with_the_process_too(
    either: Platform, embedder: Embedder, user: str
) -> None:
    either.mint(user)
    clock = Clock()
    with Platform(either.settings, embedder=embedder, clock=clock) as server:
        held = [server.minted().of(user)]
        clock.ahead = timedelta(minutes=14)
        held.append(server.minted().of(user))
    assert held[0] != held[1]
    assert [works(either, key) for key in held] == [False, False]


def test_an_unknown_user_is_refused_and_nothing_is_made(
    either: Platform, server: Platform, user: str
) -> None:
    indices = set(admin_of(either).indices.get_alias(index=f"{either.settings.prefix}-*").body)
    with pytest.raises(AccessDenied) as caught:
        server.for_user(user)
    assert caught.value.code == "unknown_user"
    assert live(either, user) == []
    after = set(admin_of(either).indices.get_alias(index=f"{either.settings.prefix}-*").body)
    assert after == indices


# --- an agent that holds its credentials and nothing else -------------------------------------


@dataclass(frozen=True)
class Agent:
    """What an agent elsewhere has: a file, the URL, an empty state folder."""

    settings: Settings
    environment: dict[str, str]

    @classmethod
    def of(cls, platform: Platform, credentials: UserCredentials, folder: Path) -> Agent:
        file = folder / f"{uuid.uuid4().hex}.json"
        file.write_text(json.dumps(credentials.revealed()), "utf-8")
        settings = Settings.load(
            elasticsearch_url=url_of(platform),
            state_dir=folder / "state",
            credentials=file,
            prefix=platform.settings.prefix,
            isolation=platform.settings.isolation,
        )
        environment = os.environ | {
            "ELASTICSEARCH_URL": str(settings.elasticsearch_url),
            "MEMORY_ES_STATE_DIR": str(settings.state_dir),
            "MEMORY_ES_CREDENTIALS": str(file),
            "MEMORY_ES_PREFIX": settings.prefix,
            "MEMORY_ES_ISOLATION": settings.isolation,
        }
        return cls(settings, environment)


@pytest.fixture
def agent(either: Platform, user: str, tmp_path: Path) -> Agent:
    """The agent of ``user``, who has a memory."""
    credentials = either.mint(user, purpose="agent")
    either.for_user(credentials).remember("I drink tea", "semantic")
    return Agent.of(either, credentials, tmp_path)


def test_an_agent_recalls_and_remembers_with_its_key_alone(
    either: Platform, agent: Agent, embedder: Embedder, user: str
) -> None:
    with Platform(agent.settings, embedder=embedder) as there:
        assert not there.has_service()
        memory = there.memory_of(None)
        written = memory.remember("I drink mate", "semantic")
        assert {hit.text for hit in memory.recall("what do I drink?").hits} == {
            "I drink tea",
            "I drink mate",
        }
        assert memory.whoami()["user"] == user
        assert memory.user_id == user
        assert [found.reference.id for found in memory.owned([str(written.id)])] == [written.id]
    assert not agent.settings.state_dir.exists()
    assert sorted(texts(either, either.mint(user))) == ["I drink mate", "I drink tea"]


def test_an_agent_is_refused_other_users_and_the_operators_work(
    either: Platform, agent: Agent, embedder: Embedder, user: str
) -> None:
    other = f"other-{user}"
    either.mint(other)
    with Platform(agent.settings, embedder=embedder) as there:
        assert there.for_user(user).recall("tea").hits
        with pytest.raises(AccessDenied) as caught:
            there.for_user(other)
        assert caught.value.code == "no_key"
        operator: list[Callable[[], Any]] = [
            lambda: there.add_user(user),
            lambda: there.mint(other),
            lambda: there.rotate_user(user),
            lambda: there.revoke_user(user),
            there.list_keys,
            there.status,
            lambda: there.write_catalog([{"kind": "catalog", "text": "tea is hot"}]),
        ]
        for call in operator:
            with pytest.raises(SetupError, match="password is not here"):
                call()
        with pytest.raises(AccessDenied) as caught:
            there.init()
        assert caught.value.code == "no_admin"
        verdicts = [check.verdict for check in there.diagnose(security=True)]
        assert set(verdicts) == {"failed"}
    assert len(live(either, user)) == 1


def test_an_agents_commands_need_its_file_alone(either: Platform, agent: Agent, user: str) -> None:
    cli = Cli(agent.environment)
    assert cli("remember", "I drink mate", "--kind", "semantic").startswith("Remembered")
    assert "I drink mate" in cli("recall", "what do I drink?")
    assert cli.json("users", "whoami")["user"] == user
    for command, code in (
        (("recall", "tea", "--user", f"other-{user}"), 5),
        (("users", "add", user), 3),
        (("users", "list"), 3),
        (("init",), 5),
    ):
        done = cli.run(*command)
        assert (done.code, done.out) == (code, ""), done
        assert done.err.startswith("error [no")
    either.revoke_user(user)
    done = cli.run("recall", "tea")
    assert (done.code, done.out) == (5, "")
    assert done.err.startswith("error [unauthenticated]: ")


def test_an_agent_is_told_that_its_key_has_expired(
    either: Platform, embedder: Embedder, user: str, tmp_path: Path
) -> None:
    agent = Agent.of(either, either.mint(user, expiration="1s"), tmp_path)
    time.sleep(1.2)
    with (
        Platform(agent.settings, embedder=embedder) as there,
        pytest.raises(AccessDenied, match="expired on"),
    ):
        there.memory_of(None).recall("tea")


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"languages": ("english", "german")}, "languages_changed"),
        ({"prefix": "elsewhere"}, "isolation_mismatch"),
        ({"isolation": "other"}, "isolation_mismatch"),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
def test_an_agent_with_wrong_settings_is_refused(
    agent: Agent, embedder: Embedder, change: dict[str, Any], code: str
) -> None:
    if "isolation" in change:
        change = {"isolation": "index" if agent.settings.isolation == "dls" else "dls"}
    settings = agent.settings.model_copy(update=change)
    with Platform(settings, embedder=embedder) as there:
        for call in (
            lambda: there.memory_of(None).recall("tea"),
            lambda: there.memory_of(None).remember("I drink mate"),
        ):
            with pytest.raises(MemoryEsError) as caught:
                call()
            assert isinstance(caught.value, (SetupError, AccessDenied))
            assert caught.value.code == code


@pytest.mark.parametrize("model", [("another/model", 384), ("intfloat/e5-small-v2", 128)])
def test_an_agent_with_another_model_is_refused(agent: Agent, model: tuple[str, int]) -> None:
    with Platform(agent.settings, embedder=HashingEmbedder(*model)) as there:
        memory = there.memory_of(None)
        for call in (lambda: memory.recall("tea"), lambda: memory.remember("I drink mate")):
            with pytest.raises(SetupError) as caught:
                call()
            assert caught.value.code == "model_mismatch"
