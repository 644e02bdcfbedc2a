"""What the local node finds on disk: its folders, its configuration, its password.

Root never writes into a folder that the node's unprivileged user owns, so a link planted there
leads nowhere: ``config`` belongs to the caller, and the node may only read it.
"""

from __future__ import annotations

import errno
import json
import os
import pwd
import re
import secrets
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, SecretStr

from memory_es.errors import SetupError

License = Literal["trial", "basic"]

#: Set for every process of a node, so that one is recognised whoever started it.
NODE_VARIABLE = "MEMORY_ES_NODE"

_UNPRIVILEGED = "nobody"
_OWN_FOLDERS = ("data", "logs", "tmp", "snapshots")
_KEYSTORE_TIMEOUT = 120.0


class Credentials(BaseModel):
    """The superuser of the embedded node."""

    model_config = ConfigDict(frozen=True)

    username: str
    password: SecretStr


class Owner(NamedTuple):
    """The user and group that the node runs as."""

    user: int
    group: int


@dataclass(frozen=True)
class Launch:
    """One start: where, with what, and how."""

    state_dir: Path
    distribution: Path
    java: Path
    heap: str
    port: int
    license: License
    security: bool = True

    @property
    def version(self) -> str:
        """The Elasticsearch version, which the distribution's folder is named after."""
        return self.distribution.name.split("-")[1]


def credentials(state_dir: Path) -> Credentials | None:
    """Return the node's superuser, or ``None`` before the first start."""
    found = read_json(state_dir / "credentials.json")
    try:
        return Credentials(username=found["username"], password=SecretStr(found["password"]))
    except KeyError:
        return None


def log_path(state_dir: Path) -> Path:
    """Return the node's current log."""
    return state_dir / "logs" / "memory_es.log"


def mark(state_dir: Path) -> str:
    """Return the Java argument that tells a node's process from all others."""
    return f"-Dmemory_es.state_dir={state_dir}"


def run_as() -> Owner | None:
    """Return whom the node runs as if not as the caller: Elasticsearch refuses root."""
    if os.geteuid() != 0:
        return None
    try:
        found = pwd.getpwnam(_UNPRIVILEGED)
    except KeyError:  # a minimal image without it; the number is what counts
        return Owner(65534, 65534)
    return Owner(found.pw_uid, found.pw_gid)


def as_owner() -> dict[str, Any]:
    """Return the arguments with which ``subprocess`` runs something as the node's user."""
    owner = run_as()
    return {} if owner is None else {"user": owner.user, "group": owner.group, "extra_groups": []}


def make_state_dir(state_dir: Path) -> None:
    """Create the state folder, closed to others.

    Raises:
        SetupError: ``state_dir_unwritable``.
    """
    try:
        state_dir.mkdir(parents=True, exist_ok=True)
        # The unprivileged user passes through on the way to its own folders, but may not list.
        state_dir.chmod(0o700 if run_as() is None else 0o711)
    except OSError as error:
        raise unwritable(state_dir, error) from error


def unwritable(state_dir: Path, error: OSError) -> SetupError:
    """Describe a failure to write below the state folder."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return SetupError(
        f"cannot write to the state folder {state_dir}: {error.strerror or error}",
        code="disk_full" if full else "state_dir_unwritable",
        remedy="Free some space on its disk"
        if full
        else "Set MEMORY_ES_STATE_DIR to a folder of yours",
    )


def require_reachable(path: Path, variable: str) -> None:
    """Check that whoever runs the node can get at ``path``, which ``variable`` moves.

    Raises:
        SetupError: ``state_dir_unreachable``, or ``cache_dir_unreachable`` and so on, after
            the variable.
    """
    if run_as() is None:
        return
    # Only trying tells: there are ACLs and mount options beside the permission bits.
    tried = subprocess.run(
        ["/bin/sh", "-c", 'test -x "$1"', "sh", path], cwd="/", check=False, **as_owner()
    )
    if tried.returncode != 0:
        raise SetupError(
            f"{path} cannot be reached by the user {_UNPRIVILEGED}, who runs the node because"
            " Elasticsearch refuses root",
            code=variable.removeprefix("MEMORY_ES_").lower() + "_unreachable",
            remedy=f"Set {variable} to a folder whose parents everyone may enter (not below"
            " /root), or run as an ordinary user",
        )


def make_own_folders(state_dir: Path) -> None:
    """Create the folders that the node writes to, and give them to whoever runs it."""
    owner = run_as()
    for name in _OWN_FOLDERS:
        folder = state_dir / name
        folder.mkdir(mode=0o700, exist_ok=True)
        if owner is None or folder.stat().st_uid == owner.user:
            continue
        # New, or used by another user before. By descriptor, so that no link leads outside.
        for _path, folders, files, here in os.fwalk(folder, follow_symlinks=False):
            for entry in (*folders, *files):
                os.chown(entry, *owner, dir_fd=here, follow_symlinks=False)
        os.chown(folder, *owner, follow_symlinks=False)


def write(path: Path, text: str, mode: int = 0o600, group: int = -1) -> None:
    """Replace ``path`` in one step; at no moment may more people read it than ``mode`` says."""
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
    """Return the object in ``path``, empty if there is none that can be read."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def require_same_security(state_dir: Path, *, security: bool) -> None:
    """Refuse to serve data that were made with security on to everybody, or the reverse.

    Raises:
        SetupError: ``security_changed``.
    """
    try:
        before = (state_dir / "config" / "elasticsearch.yml").read_text("utf-8")
    except OSError:
        return  # the first start
    if f"xpack.security.enabled: {json.dumps(not security)}" in before.splitlines():
        raise SetupError(
            f"the data in {state_dir} were made with security {'off' if security else 'on'}",
            code="security_changed",
            remedy="Use another MEMORY_ES_STATE_DIR"
            + (", or --insecure-single-user" if security else ", or leave that option out"),
        )


def write_config(launch: Launch) -> None:
    """Write the node's configuration folder anew, and its keystore if there is none.

    Raises:
        SetupError: ``node_died``: the keystore could not be made.
    """
    owner = run_as()
    group = -1 if owner is None else owner.group
    config = launch.state_dir / "config"
    options = config / "jvm.options.d"
    for folder in (config, options):
        folder.mkdir(exist_ok=True)
        os.chown(folder, -1, group)
        folder.chmod(0o750)
    for source in (launch.distribution / "config").iterdir():
        if source.is_file() and source.name not in ("elasticsearch.yml", "jvm.options"):
            write(config / source.name, source.read_text(encoding="utf-8"), 0o640, group)
    # JSON values are YAML values: no path can break out of its quotes.
    settings = [f"{key}: {json.dumps(value)}\n" for key, value in _settings(launch).items()]
    write(config / "elasticsearch.yml", "".join(settings), 0o640, group)
    shipped = (launch.distribution / "config" / "jvm.options").read_text(encoding="utf-8")
    # No 2 GB of collector logs, and no heap dump: it would hold memories in clear text.
    kept = [line for line in shipped.splitlines() if not re.match(r"-Xlog:gc|-XX:\+Heap", line)]
    write(config / "jvm.options", "\n".join(kept) + "\n", 0o640, group)
    own = [
        f"-Xms{launch.heap}",
        f"-Xmx{launch.heap}",
        "-XX:-AlwaysPreTouch",  # a laptop's memory is taken when it is needed, not at boot
        mark(launch.state_dir),
    ]
    write(options / "memory_es.options", "\n".join(own) + "\n", 0o640, group)
    _write_keystore(launch, group)


def _settings(launch: Launch) -> dict[str, Any]:
    return {
        "cluster.name": "memory_es",
        "node.name": "memory_es",
        "path.data": str(launch.state_dir / "data"),
        "path.logs": str(launch.state_dir / "logs"),
        "path.repo": [str(launch.state_dir / "snapshots")],
        "network.host": "127.0.0.1",
        "http.port": launch.port,
        "transport.port": "0",  # any: nobody calls a single node
        "discovery.type": "single-node",
        "xpack.security.enabled": launch.security,
        # Nothing leaves the machine.
        "xpack.security.http.ssl.enabled": False,
        "xpack.security.transport.ssl.enabled": False,
        "xpack.license.self_generated.type": launch.license,
        # The defaults are percentages: a laptop's disk that is 95 % full, with 50 GB free, would
        # make every index read-only. Bytes still stop the writes before the disk is really full,
        # which switching the check off would not: a full disk can damage an index.
        "cluster.routing.allocation.disk.watermark.low": "500mb",
        "cluster.routing.allocation.disk.watermark.high": "300mb",
        "cluster.routing.allocation.disk.watermark.flood_stage": "200mb",
    }


def _write_keystore(launch: Launch, group: int) -> None:
    """Put the password where the node takes it from.

    Made anew for every distribution: a newer Elasticsearch would want to upgrade the file, in a
    folder that it may not write to.
    """
    keystore = launch.state_dir / "config" / "elasticsearch.keystore"
    made_by = launch.state_dir / "config" / "keystore.json"
    login = credentials(launch.state_dir)
    current = {"distribution": launch.distribution.name}
    if login is not None and keystore.exists() and read_json(made_by) == current:
        return
    if login is None:
        login = Credentials(username="elastic", password=SecretStr(secrets.token_urlsafe(24)))
        secret = {"username": login.username, "password": login.password.get_secret_value()}
        write(launch.state_dir / "credentials.json", json.dumps(secret))
    keystore.unlink(missing_ok=True)
    tool = launch.distribution / "bin" / "elasticsearch-keystore"
    made = subprocess.run(
        [tool, "add", "--stdin", "--force", "bootstrap.password"],
        env=environment(launch),
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
            remedy=f"Remove {keystore.parent} and try again",
        )
    os.chown(keystore, -1, group)
    keystore.chmod(0o640)
    write(made_by, json.dumps(current))


def environment(launch: Launch) -> dict[str, str]:
    """Return the node's environment, a short one.

    The caller's Java options, proxies and secrets are not the node's business.
    """
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
        "LANG": "C.UTF-8",
        "HOME": str(launch.state_dir / "tmp"),
        "ES_JAVA_HOME": str(launch.java),
        "ES_PATH_CONF": str(launch.state_dir / "config"),
        "ES_TMPDIR": str(launch.state_dir / "tmp"),
        NODE_VARIABLE: str(launch.state_dir),
    }
