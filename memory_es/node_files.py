"""What the local node finds on disk: its folders, its configuration, its password.

Root never writes into a folder that the node's unprivileged user owns, so a link planted there
leads nowhere: ``config`` belongs to the caller and is only readable for the node.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pwd
import re
import secrets
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, SecretStr

from memory_es.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import Iterator

License = Literal["trial", "basic"]

_UNPRIVILEGED = "nobody"
_OWN_FOLDERS = ("data", "logs", "tmp", "snapshots")
_KEYSTORE_TIMEOUT = 120.0

#: Set for every process of a node, so that one is recognised whoever started it.
NODE_VARIABLE = "MEMORY_ES_NODE"


class Credentials(BaseModel):
    """The superuser of the embedded node."""

    model_config = ConfigDict(frozen=True)

    username: str
    password: SecretStr


def credentials(state_dir: Path) -> Credentials | None:
    """Return the node's superuser, or ``None`` before the first start."""
    found = read_json(state_dir / "credentials.json")
    if not found:
        return None
    return Credentials(username=found["username"], password=SecretStr(found["password"]))


def log_path(state_dir: Path) -> Path:
    return state_dir / "logs" / "memory_es.log"


def mark(state_dir: Path) -> str:
    """The Java argument that tells a node's process from all others."""
    return f"-Dmemory_es.state_dir={state_dir}"


def run_as() -> pwd.struct_passwd | None:
    return pwd.getpwnam(_UNPRIVILEGED) if os.geteuid() == 0 else None


def make_state_dir(state_dir: Path) -> None:
    try:
        state_dir.mkdir(parents=True, exist_ok=True)
        # nobody must pass through on the way to its own folders, but may not list.
        state_dir.chmod(0o700 if run_as() is None else 0o711)
    except OSError as error:
        raise SetupError(
            f"cannot use the state folder {state_dir}: {error.strerror or error}",
            code="state_dir_unwritable",
            remedy="Set MEMORY_ES_STATE_DIR to a folder of yours",
        ) from error


@contextlib.contextmanager
def locked(state_dir: Path) -> Iterator[None]:
    descriptor = os.open(state_dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def require_reachable(path: Path) -> None:
    """The unprivileged user must be able to get at ``path``: only trying tells (ACLs, mounts)."""
    user = run_as()
    if user is None:
        return
    test = subprocess.run(
        ["test", "-x", path],
        user=user.pw_uid,
        group=user.pw_gid,
        extra_groups=[],
        cwd="/",
        check=False,
    )
    if test.returncode != 0:
        raise SetupError(
            f"the user {_UNPRIVILEGED}, who runs the node, cannot reach {path}",
            code="state_dir_unreachable",
            remedy="Set MEMORY_ES_STATE_DIR and MEMORY_ES_CACHE_DIR to folders outside /root whose"
            " parents everyone may enter, or run as an ordinary user",
        )


def make_own_folders(state_dir: Path) -> None:
    user = run_as()
    for name in _OWN_FOLDERS:
        folder = state_dir / name
        folder.mkdir(mode=0o700, exist_ok=True)
        if user is not None and folder.stat().st_uid != user.pw_uid:
            # New, or last used by another user. Descriptors, so that no link leads outside.
            for _path, folders, files, descriptor in os.fwalk(folder, follow_symlinks=False):
                for entry in (*folders, *files):
                    os.chown(
                        entry, user.pw_uid, user.pw_gid, dir_fd=descriptor, follow_symlinks=False
                    )
            os.chown(folder, user.pw_uid, user.pw_gid, follow_symlinks=False)


def write(path: Path, text: str, mode: int = 0o600, group: int = -1) -> None:
    """Replace ``path`` in one step, never readable by more than ``mode`` says."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # 0600
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
            os.fchown(file.fileno(), -1, group)
            os.fchmod(file.fileno(), mode)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def write_config(
    state_dir: Path, distribution: Path, java: Path, *, heap: str, port: int, license: License  # noqa: A002
) -> None:
    user = run_as()
    group = -1 if user is None else user.pw_gid
    config = state_dir / "config"
    options = config / "jvm.options.d"
    options.mkdir(parents=True, exist_ok=True)
    for folder in (config, options):
        os.chown(folder, -1, group)
        folder.chmod(0o750)
    for source in (distribution / "config").iterdir():
        if source.is_file():
            write(config / source.name, source.read_text(encoding="utf-8"), 0o640, group)
    settings: dict[str, Any] = {
        "cluster.name": "memory_es",
        "node.name": "memory_es",
        "path.data": str(state_dir / "data"),
        "path.logs": str(state_dir / "logs"),
        "path.repo": [str(state_dir / "snapshots")],
        "network.host": "127.0.0.1",
        "http.port": port,
        "transport.port": "0",  # any: a single node is never called
        "discovery.type": "single-node",
        "xpack.security.enabled": True,
        # Loopback only: nothing leaves the machine.
        "xpack.security.http.ssl.enabled": False,
        "xpack.security.transport.ssl.enabled": False,
        "xpack.license.self_generated.type": license,
        # The defaults are percentages: a laptop disk that is 95 % full with 50 GB free would turn
        # every index read-only. Bytes still stop the node before the disk is really full.
        "cluster.routing.allocation.disk.watermark.low": "500mb",
        "cluster.routing.allocation.disk.watermark.high": "300mb",
        "cluster.routing.allocation.disk.watermark.flood_stage": "200mb",
    }
    # JSON values are YAML values: no path can break out of its quotes.
    lines = [f"{key}: {json.dumps(value)}\n" for key, value in settings.items()]
    write(config / "elasticsearch.yml", "".join(lines), 0o640, group)
    jvm = (distribution / "config" / "jvm.options").read_text(encoding="utf-8")
    # No 2 GB of collector logs, and no heap dump, which would hold memories in clear text.
    kept = [line for line in jvm.splitlines() if not re.match(r"-Xlog:gc|-XX:\+HeapDump", line)]
    write(config / "jvm.options", "\n".join(kept) + "\n", 0o640, group)
    own = [f"-Xms{heap}", f"-Xmx{heap}", "-XX:-AlwaysPreTouch", mark(state_dir)]
    write(options / "memory_es.options", "\n".join(own) + "\n", 0o640, group)
    _write_keystore(state_dir, distribution, java, group)


def _write_keystore(state_dir: Path, distribution: Path, java: Path, group: int) -> None:
    """Put the password where the node takes it from at its first start.

    Rebuilt for every distribution: a newer Elasticsearch would want to upgrade the file, in a
    folder that it may not write to.
    """
    keystore = state_dir / "config" / "elasticsearch.keystore"
    made_by = state_dir / "config" / ".keystore-made-by"
    login = credentials(state_dir)
    if login is not None and keystore.exists() and made_by.exists():
        if made_by.read_text(encoding="utf-8") == distribution.name:
            return
    if login is None:
        login = Credentials(username="elastic", password=SecretStr(secrets.token_urlsafe(24)))
        secret = {"username": login.username, "password": login.password.get_secret_value()}
        write(state_dir / "credentials.json", json.dumps(secret))
    keystore.unlink(missing_ok=True)
    made = subprocess.run(
        [distribution / "bin" / "elasticsearch-keystore", "add", "-x", "-f", "bootstrap.password"],
        env=environment(state_dir, java),
        cwd="/",
        input=login.password.get_secret_value(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=_KEYSTORE_TIMEOUT,
        check=False,
    )
    if made.returncode != 0:
        raise SetupError(
            f"the node's keystore could not be made: {made.stdout.strip()[-300:]}",
            code="node_died",
            remedy="Run it again; if it stays, remove the folder config in the state folder",
        )
    os.chown(keystore, -1, group)
    keystore.chmod(0o640)
    write(made_by, distribution.name)


def environment(state_dir: Path, java: Path) -> dict[str, str]:
    """A short one: the caller's JVM options, proxies and secrets are not the node's business."""
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
        "LANG": "C.UTF-8",
        "HOME": str(state_dir / "tmp"),
        "ES_JAVA_HOME": str(java),
        "ES_PATH_CONF": str(state_dir / "config"),
        "ES_TMPDIR": str(state_dir / "tmp"),
        NODE_VARIABLE: str(state_dir),
    }
