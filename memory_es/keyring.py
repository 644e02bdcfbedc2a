"""Secrets on disk, readable by their owner only: users' credentials, the deployment's secret."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from pathlib import Path

from pydantic import SecretStr, ValidationError

from memory_es.config import Settings
from memory_es.credentials import UserCredentials
from memory_es.errors import SetupError


def deployment_secret(settings: Settings, *, create: bool = False) -> SecretStr:
    """The secret that document ids derive from: the setting, else the state folder's file.

    Raises:
        SetupError: there is none and ``create`` is false, or the file is damaged.
    """
    if settings.secret is not None:
        return settings.secret
    path = settings.state_dir / "secret"
    if not path.exists():
        if not create:
            raise SetupError(
                "this deployment has no secret yet",
                code="not_initialised",
                remedy="Run `memory-es init`, or set MEMORY_ES_SECRET to the deployment's",
            )
        write_private(path, secrets.token_hex(32), exclusive=True)
    secret = path.read_text("utf-8").strip()
    if not secret:
        raise SetupError(
            f"the deployment's secret in {path} is empty",
            code="damaged_secret",
            remedy="Write it there again, or set MEMORY_ES_SECRET to it",
        )
    return SecretStr(secret)


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
    try:
        return UserCredentials.model_validate_json(path.read_text("utf-8"))
    except FileNotFoundError:
        return None
    except (ValidationError, UnicodeDecodeError):
        raise SetupError(
            f"the credentials file {path} is damaged",
            code="damaged_credentials",
            remedy="Delete it and run `memory-es users add` again",
        ) from None
