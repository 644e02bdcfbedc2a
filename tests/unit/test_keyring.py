from __future__ import annotations

import shlex
import stat
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pydantic import SecretStr

from memory_es.config import Settings
from memory_es.credentials import UserCredentials
from memory_es.errors import SetupError
from memory_es.keyring import (
    deployment_secret,
    from_file,
    keep_service_password,
    load,
    make_service_password,
    remove,
    save,
    service_password,
    write_private,
)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings.load(state_dir=tmp_path / "state", prefix="team")


def credentials(user_id: str) -> UserCredentials:
    return UserCredentials(
        user_id=user_id,
        key_id="k",
        api_key=SecretStr(f"key of {user_id}"),
        id_secret=SecretStr("s"),
    )


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_private_file_is_readable_by_its_owner_only_and_leaves_nothing_beside_it(
    tmp_path: Path,
) -> None:
    path = tmp_path / "deep" / "er" / "file"
    write_private(path, "one")
    write_private(path, "zwei ü")
    assert path.read_text("utf-8") == "zwei ü"
    assert mode(path) == 0o600
    assert list(path.parent.iterdir()) == [path]


def test_an_exclusive_write_leaves_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_private(path, "first", exclusive=True)
    write_private(path, "second", exclusive=True)
    assert path.read_text() == "first"
    assert mode(path) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_many_first_starts_agree_on_one_secret(settings: Settings) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = [
            secret.get_secret_value()
            for secret in pool.map(lambda _: deployment_secret(settings, create=True), range(16))
        ]
    assert len(set(made)) == 1
    assert len(made[0]) == 64
    assert mode(settings.state_dir / "secret") == 0o600
    assert deployment_secret(settings).get_secret_value() == made[0]


def test_the_setting_wins_over_the_file(settings: Settings, tmp_path: Path) -> None:
    deployment_secret(settings, create=True)
    given = Settings.load(state_dir=tmp_path / "state", secret=SecretStr("given " * 6))
    assert deployment_secret(given).get_secret_value() == "given " * 6


def test_without_a_secret_there_is_an_error_that_names_the_remedy(settings: Settings) -> None:
    with pytest.raises(SetupError, match="memory-es init") as caught:
        deployment_secret(settings)
    assert caught.value.code == "not_initialised"
    assert not settings.state_dir.exists()


@pytest.mark.parametrize("content", ["", " \n"])
def test_an_empty_secret_is_no_secret(content: str, settings: Settings) -> None:
    write_private(settings.state_dir / "secret", content)
    for create in (False, True):
        with pytest.raises(SetupError, match="secret"):
            deployment_secret(settings, create=create)


@pytest.mark.parametrize("user_id", ["sarah", "../x", "a/b", "*", "สมหญิง", "x" * 240, "con", "."])
def test_credentials_come_back_as_they_were_kept(user_id: str, settings: Settings) -> None:
    path = save(settings, credentials(user_id))
    assert load(settings, user_id) == credentials(user_id)
    assert mode(path) == 0o600
    assert path.parent == settings.state_dir / "users" / "team"


def test_users_whose_ids_look_alike_have_files_of_their_own(settings: Settings) -> None:
    users = ["sarah", "Sarah", "e\u0301", "\u00e9", "a", "a "]
    paths = {save(settings, credentials(user)) for user in users}
    assert len(paths) == len({str(path).lower() for path in paths}) == len(users)
    assert [load(settings, user) for user in users] == [credentials(user) for user in users]


def test_prefixes_keep_their_users_apart(settings: Settings, tmp_path: Path) -> None:
    save(settings, credentials("sarah"))
    other = Settings.load(state_dir=tmp_path / "state", prefix="other")
    assert load(other, "sarah") is None


def test_a_user_without_a_file_has_no_credentials(settings: Settings) -> None:
    assert load(settings, "sarah") is None


@pytest.mark.parametrize(
    "content", [b"", b"{", b"{}", b'"sarah"', b"\xff\xfe", b'{"user_id": "sarah", "key_id": 1}']
)
def test_a_damaged_file_is_an_error_that_names_it_and_shows_nothing(
    content: bytes, settings: Settings
) -> None:
    path = save(settings, credentials("sarah"))
    path.write_bytes(content)
    with pytest.raises(SetupError, match="damaged") as caught:
        load(settings, "sarah")
    assert str(path) in str(caught.value)
    assert "key of" not in str(caught.value)
    assert caught.value.code == "damaged_credentials"


def test_a_forgotten_user_has_no_credentials(settings: Settings) -> None:
    save(settings, credentials("sarah"))
    remove(settings, "sarah")
    remove(settings, "sarah")
    assert load(settings, "sarah") is None


def test_the_service_password_is_made_once_and_kept_by_prefix(
    settings: Settings, tmp_path: Path
) -> None:
    assert service_password(settings) is None
    made = make_service_password(settings)
    assert service_password(settings) == made
    assert len(made.get_secret_value()) > 40
    assert mode(settings.state_dir / "service" / "team") == 0o600
    assert service_password(Settings.load(state_dir=tmp_path / "state", prefix="other")) is None
    assert make_service_password(settings) == made
    new = make_service_password(settings, keep=False)
    assert new != made
    assert service_password(settings) == made
    keep_service_password(settings, new)
    assert service_password(settings) == new


def test_a_secret_that_could_be_guessed_is_refused(settings: Settings) -> None:
    weak = settings.model_copy(update={"secret": SecretStr("hunter2")})
    with pytest.raises(SetupError, match="openssl rand") as caught:
        deployment_secret(weak)
    assert caught.value.code == "weak_secret"
    assert "hunter2" not in str(caught.value)


def test_a_file_of_another_user_is_not_taken(settings: Settings) -> None:
    path = save(settings, credentials("sarah"))
    path.write_text(path.read_text().replace('"sarah"', '"bob"'))
    with pytest.raises(SetupError) as caught:
        load(settings, "sarah")
    assert caught.value.code == "damaged_credentials"


def test_many_that_make_the_first_password_agree_on_one(settings: Settings) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = set(pool.map(lambda _: make_service_password(settings), range(16)))
    assert len(made) == 1


def test_a_given_service_password_wins_and_is_not_replaced(settings: Settings) -> None:
    make_service_password(settings)
    given = settings.model_copy(update={"service_password": SecretStr("given")})
    assert service_password(given) == SecretStr("given")
    with pytest.raises(SetupError) as caught:
        make_service_password(given)
    assert caught.value.code == "password_given"


def test_an_empty_service_password_is_damage(settings: Settings) -> None:
    write_private(settings.state_dir / "service" / "team", " \n")
    with pytest.raises(SetupError) as caught:
        service_password(settings)
    assert caught.value.code == "damaged_secret"
    assert "MEMORY_ES_SERVICE_PASSWORD" in str(caught.value)


def store(settings: Settings, program: str) -> Settings:
    """Settings whose secret store is a line of Python that sees the name as ``name``."""
    python = shlex.quote(sys.executable)
    code = shlex.quote(f"import sys; name = sys.argv[1]; {program}")
    return settings.model_copy(update={"secret_command": f"{python} -c {code} {{name}}"})


def test_the_operators_store_is_asked_for_each_secret_by_its_name(settings: Settings) -> None:
    asked = store(settings, "print(f'  {name} of the store, which is long enough  ')")
    assert (
        deployment_secret(asked).get_secret_value() == "secret of the store, which is long enough"
    )
    found = service_password(asked)
    assert found is not None
    assert found.get_secret_value() == "service_password of the store, which is long enough"
    assert not settings.state_dir.exists()


@pytest.mark.parametrize(
    "program",
    ["print('hush'); sys.exit(3)", "pass", "print('   ')", "sys.stdout.buffer.write(b'\\xff')"],
)
def test_a_store_that_gives_nothing_is_an_error_that_shows_nothing(
    program: str, settings: Settings
) -> None:
    for ask in (deployment_secret, service_password):
        with pytest.raises(SetupError, match="MEMORY_ES_SECRET_COMMAND") as caught:
            ask(store(settings, program))
        assert caught.value.code == "secret_command"
        assert "hush" not in str(caught.value)


def test_a_store_that_does_not_answer_is_given_up(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memory_es.keyring._PATIENCE", 0.5)
    slow = store(settings, "print('hush', flush=True); import time; time.sleep(60)")
    started = time.monotonic()
    with pytest.raises(SetupError, match="TimeoutExpired") as caught:
        service_password(slow)
    assert time.monotonic() - started < 10
    assert caught.value.code == "secret_command"
    assert "hush" not in str(caught.value)


def test_a_given_secret_wins_and_the_store_is_not_asked(settings: Settings, tmp_path: Path) -> None:
    mark = tmp_path / "asked"
    given = store(settings, f"open({str(mark)!r}, 'w'); print('of the store' * 4)").model_copy(
        update={"secret": SecretStr("given " * 6), "service_password": SecretStr("given")}
    )
    assert deployment_secret(given) == SecretStr("given " * 6)
    assert service_password(given) == SecretStr("given")
    assert not mark.exists()


def test_a_service_password_of_the_store_is_not_replaced(settings: Settings) -> None:
    for keep in (True, False):
        with pytest.raises(SetupError, match="MEMORY_ES_SERVICE_PASSWORD") as caught:
            make_service_password(store(settings, "print(name)"), keep=keep)
        assert caught.value.code == "password_given"
    assert not settings.state_dir.exists()


@pytest.mark.parametrize("command", ["/no/such/program {name}", "'unclosed"])
def test_a_store_that_cannot_be_asked_is_an_error(command: str, settings: Settings) -> None:
    with pytest.raises(SetupError) as caught:
        deployment_secret(settings.model_copy(update={"secret_command": command}))
    assert caught.value.code == "secret_command"


def test_an_agent_reads_the_credentials_that_it_was_given(
    settings: Settings, tmp_path: Path
) -> None:
    path = save(settings, credentials("sarah"))
    assert from_file(path) == credentials("sarah")
    with pytest.raises(SetupError) as caught:
        from_file(tmp_path / "elsewhere.json")
    assert caught.value.code == "no_credentials"
    path.write_text("{}")
    with pytest.raises(SetupError) as caught:
        from_file(path)
    assert caught.value.code == "damaged_credentials"
    assert "users add USER --show" in str(caught.value)
