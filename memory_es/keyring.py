"""Secrets on disk, readable by their owner only: users' credentials, the deployment's secret."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shlex
import subprocess
from pathlib import Path

from pydantic import SecretStr, ValidationError

from memory_es.config import Settings
from memory_es.credentials import UserCredentials
from memory_es.errors import SetupError

#: Characters: every user's key shows a hash that a guess of the secret can be tried on.
LEAST_SECRET = 32
#: Seconds that the operator's secret store may take.
_PATIENCE = 30


def deployment_secret(settings: Settings, *, create: bool = False) -> SecretStr:
    """The secret that document ids derive from: the setting, the operator's store, else the
    state folder's file.

    Raises:
        SetupError: there is none and ``create`` is false, or it cannot be read.
    """
    given = _given(settings, settings.secret, "secret")
    path = settings.state_dir / "secret"
    if given is None and create:
        write_private(path, secrets.token_hex(32), exclusive=True)
    found = given or _kept(path, "deployment's secret", "MEMORY_ES_SECRET")
    if found is None:
        raise SetupError(
            "this deployment has no secret yet",
            code="not_initialised",
            remedy="Run `memory-es init`, or set MEMORY_ES_SECRET to the deployment's",
        )
    if len(found.get_secret_value()) < LEAST_SECRET:
        raise SetupError(
            "the deployment's secret is too short: ids of memories could be guessed",
            code="weak_secret",
            remedy=f"Use at least {LEAST_SECRET} random characters, such as `openssl rand -hex 32`",
        )
    return found


def service_password(settings: Settings) -> SecretStr | None:
    """The service account's password, from the same places; None if there is none.

    Raises:
        SetupError: it cannot be read.
    """
    return _given(settings, settings.service_password, "service_password") or _kept(
        _service_path(settings), "service account's password", "MEMORY_ES_SERVICE_PASSWORD"
    )


def make_service_password(settings: Settings, *, keep: bool = True) -> SecretStr:
    """A new password for the service account, kept in the state folder. Of many that make the
    first one at once, all get the same.

    Args:
        keep: False: only make it up; ``keep_service_password`` once the cluster has taken it.

    Raises:
        SetupError: the password comes from the environment or a secret store: it is changed there.
    """
    if settings.service_password is not None or settings.secret_command is not None:
        raise SetupError(
            "the service account's password is given by your settings",
            code="password_given",
            remedy="Change it there (MEMORY_ES_SERVICE_PASSWORD or the secret store), then run"
            " `memory-es init --rotate`",
        )
    password = secrets.token_urlsafe(32)
    if not keep:
        return SecretStr(password)
    path = _service_path(settings)
    write_private(path, password, exclusive=True)
    return SecretStr(path.read_text("utf-8").strip())


def keep_service_password(settings: Settings, password: SecretStr) -> None:
    """Keep a password in place of the one before."""
    write_private(_service_path(settings), password.get_secret_value())


def _service_path(settings: Settings) -> Path:
    return settings.state_dir / "service" / settings.prefix


def _given(settings: Settings, value: SecretStr | None, name: str) -> SecretStr | None:
    """A secret of the environment or of the operator's store."""
    if value is not None or settings.secret_command is None:
        return value
    try:
        command = [part.replace("{name}", name) for part in shlex.split(settings.secret_command)]
        done = subprocess.run(command, capture_output=True, timeout=_PATIENCE, check=False)
        printed = done.stdout.decode().strip()
        failed = f"ended with {done.returncode}" if done.returncode else None
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        printed, failed = "", type(error).__name__
    if failed or not printed:
        raise SetupError(
            f"the secret store gave no {name} ({failed or 'it printed nothing'})",
            code="secret_command",
            remedy="Try the command of MEMORY_ES_SECRET_COMMAND by hand",
        )
    return SecretStr(printed)


def _kept(path: Path, what: str, setting: str) -> SecretStr | None:
    try:
        kept = path.read_text("utf-8").strip()
    except FileNotFoundError:
        return None
    if not kept:
        raise SetupError(
            f"the {what} in {path} is empty",
            code="damaged_secret",
            remedy=f"Write it there again, or set {setting} to it",
        )
    return SecretStr(kept)


def write_private(path: Path, content: str, *, exclusive: bool = False) -> None:
    """Write a file of mode 0600 whole or not at all.

    Args:
        exclusive: leave a file that is already there as it is.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(content)
        if exclusive:
            try:
                os.link(temporary, path)
            except FileExistsError:
                return
        else:
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _path(settings: Settings, user_id: str) -> Path:
    """Named by a hash: a user id may hold any character, and two may differ in case alone."""
    name = hashlib.sha256(user_id.encode()).hexdigest()[:32]
    return settings.state_dir / "users" / settings.prefix / f"{name}.json"


def save(settings: Settings, credentials: UserCredentials) -> Path:
    """Keep a user's credentials; returns the file."""
    path = _path(settings, credentials.user_id)
    write_private(path, json.dumps(credentials.revealed(), ensure_ascii=False))
    return path


def load(settings: Settings, user_id: str) -> UserCredentials | None:
    """The kept credentials of a user, or None.

    Raises:
        SetupError: the file is damaged.
    """
    path = _path(settings, user_id)
    remedy = f"Delete {path} and run `memory-es users add` again"
    try:
        kept = _parse(path, remedy)
    except FileNotFoundError:
        return None
    if kept.user_id != user_id:
        raise SetupError(
            f"the credentials file {path} is another user's",
            code="damaged_credentials",
            remedy=remedy,
        )
    return kept


def remove(settings: Settings, user_id: str) -> None:
    """Forget the kept credentials of a user."""
    _path(settings, user_id).unlink(missing_ok=True)


def from_file(path: Path) -> UserCredentials:
    """The credentials that an agent was given.

    Raises:
        SetupError: there is no such file, or it is none of ours.
    """
    remedy = "Write there what `memory-es users add USER --show` prints"
    try:
        return _parse(path, remedy)
    except FileNotFoundError:
        raise SetupError(
            f"there is no credentials file {path}", code="no_credentials", remedy=remedy
        ) from None


def _parse(path: Path, remedy: str) -> UserCredentials:
    try:
        return UserCredentials.model_validate_json(path.read_text("utf-8"))
    except (ValidationError, UnicodeDecodeError, IsADirectoryError):
        raise SetupError(
            f"the credentials file {path} is damaged", code="damaged_credentials", remedy=remedy
        ) from None
