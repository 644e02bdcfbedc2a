"""The local Elasticsearch: one process on 127.0.0.1 whose data live in ``state_dir``.

``state_dir`` holds::

    lock               taken while a node is started or stopped
    node.json          which process is ours (0600)
    credentials.json   the password of ``elastic`` (0600), kept as long as the data
    boot.log           what the start printed
    config/            rewritten at every start; the node may read it, not change it
    data/ logs/ tmp/ snapshots/   the node's own

Elasticsearch refuses to run as root. Started by root, it runs as ``nobody``, which owns the
node's own folders and nothing else.

Two facts make this safe against crashes. The lock belongs to the kernel, so a killed caller
frees it; and every process of a node carries the folder's name (in its arguments or
environment), so one that nobody recorded is still found before a second is started.
"""

from __future__ import annotations

import base64
import json
import os
import re
import socket
import subprocess
import time
import urllib.error
import urllib.request
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil  # type: ignore[import-untyped]  # ships no types
from pydantic import BaseModel, ConfigDict, SecretStr

from memory_es import artifacts, node_files
from memory_es.errors import SetupError
from memory_es.node_files import Credentials, License, credentials

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Credentials", "License", "NodeInfo", "credentials", "down", "status", "up"]

_START_TIMEOUT = 120.0
#: How long the node may refuse its own password: the security index may still be recovering.
_REFUSAL_TIMEOUT = 20.0

#: Loopback must not go through a proxy that the environment names.
_HTTP = urllib.request.build_opener(urllib.request.ProxyHandler({}))

#: Lines that tell why a start failed; the last one is nearest to the cause.
_CAUSE = re.compile(
    r"(Likely root cause|Caused by|bootstrap check failure|^[\w.$]+(Exception|Error)\b|"
    r"^Error|^Unrecognized|insufficient memory|Address already in use)"
)


class NodeInfo(BaseModel):
    """A running node of ours and how to talk to it."""

    model_config = ConfigDict(frozen=True)

    url: str
    pid: int
    username: str
    password: SecretStr
    version: str
    state_dir: Path
    started_at: datetime
    log_path: Path


def up(
    state_dir: Path,
    cache_dir: Path,
    *,
    heap: str = "1g",
    port: int | None = None,
    license: License = "trial",  # noqa: A002 - the word of Elasticsearch and its users
    progress: Callable[[str], None] = lambda _line: None,
) -> tuple[NodeInfo, bool]:
    """Start the node, or return the one that runs. The flag says whether it was started now.

    Data, password and, where it is still free, the port survive a restart. ``license`` matters
    for the first start on new data only. Two calls at once start one node: the second waits.

    Raises:
        SetupError: ``java_missing``, ``port_taken``, ``state_dir_unreachable``,
            ``state_dir_unwritable``, ``node_died``, ``node_slow``, ``password_refused``, and
            what ``artifacts.ensure_distribution`` raises.
    """
    state_dir = state_dir.absolute()
    node_files.make_state_dir(state_dir)
    with node_files.locked(state_dir):
        running = status(state_dir)
        if running is not None:
            return running, False
        distribution = artifacts.ensure_distribution(cache_dir.absolute(), progress)
        java = artifacts.find_java()
        for path in (state_dir, distribution / "bin" / "elasticsearch", java / "bin" / "java"):
            node_files.require_reachable(path)
        for leftover in _processes(state_dir):  # the caller that started it was killed
            _stop(leftover, timeout=30)
        node_files.make_own_folders(state_dir)
        chosen = _choose_port(state_dir, port)
        for last_try in (False, True):
            node_files.write_config(
                state_dir, distribution, java, heap=heap, port=chosen, license=license
            )
            progress(f"Starting Elasticsearch {_version(distribution)} on 127.0.0.1:{chosen}")
            try:
                return _start(state_dir, distribution, java, chosen), True
            except SetupError as error:
                if last_try or port is not None or "Address already in use" not in error.message:
                    raise
                chosen = _free_port()  # somebody took it between our probe and the node
    raise AssertionError  # the loop returns or raises


def down(state_dir: Path, *, timeout: float = 30) -> bool:
    """Stop the node if it runs; return whether there was one to stop. The data stay.

    The process gets SIGTERM and, after ``timeout`` seconds, SIGKILL.
    """
    state_dir = state_dir.absolute()
    if not state_dir.is_dir():
        return False
    with node_files.locked(state_dir):
        found = _processes(state_dir)
        for process in found:
            _stop(process, timeout)
        return bool(found)


def status(state_dir: Path) -> NodeInfo | None:
    """Return the node if its process runs and is ours. Asks the system, not the network."""
    state_dir = state_dir.absolute()
    record = node_files.read_json(state_dir / "node.json")
    login = credentials(state_dir)
    process = _recorded(record, state_dir)
    if process is None or login is None:
        return None
    return NodeInfo(
        url=record["url"],
        pid=process.pid,
        username=login.username,
        password=login.password,
        version=record["version"],
        state_dir=state_dir,
        started_at=datetime.fromtimestamp(record["create_time"], UTC),
        log_path=node_files.log_path(state_dir),
    )


# --- processes -------------------------------------------------------------------------------


def _recorded(record: dict[str, Any], state_dir: Path) -> psutil.Process | None:
    """The process of ``node.json``, unless its number now belongs to another (after a reboot)."""
    try:
        process = psutil.Process(record["pid"])
        # Linux derives this time from the clock at boot, which may be corrected by seconds.
        same_age = abs(process.create_time() - record["create_time"]) < 10
        alive = process.status() != psutil.STATUS_ZOMBIE
    except (KeyError, TypeError, ValueError, psutil.Error):
        return None
    return process if same_age and alive and _is_ours(process, state_dir) else None


def _is_ours(process: psutil.Process, state_dir: Path) -> bool:
    try:
        if node_files.mark(state_dir) in process.cmdline():
            return True
        # The launcher has no such argument. Its environment is ours to read, or it is not ours.
        return bool(process.environ().get(node_files.NODE_VARIABLE) == str(state_dir))
    except (psutil.Error, OSError):
        return False


def _processes(state_dir: Path) -> list[psutil.Process]:
    return [
        process
        for process in psutil.process_iter()
        if process.pid != os.getpid() and _is_ours(process, state_dir) and not _gone(process)
    ]


def _gone(process: psutil.Process) -> bool:
    # A container's first process may never collect its children: a zombie counts as gone.
    try:
        return not process.is_running() or bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def _stop(process: psutil.Process, timeout: float) -> None:
    for send, patience in ((process.terminate, timeout), (process.kill, 10.0)):
        try:
            send()
        except psutil.NoSuchProcess:
            return
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            if _gone(process):
                return
            time.sleep(0.05)


# --- starting --------------------------------------------------------------------------------


def _version(distribution: Path) -> str:
    return distribution.name.split("-")[1]


def _port_is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _choose_port(state_dir: Path, port: int | None) -> int:
    if port is None:
        last = node_files.read_json(state_dir / "node.json").get("port")
        return last if isinstance(last, int) and _port_is_free(last) else _free_port()
    if not _port_is_free(port):
        raise SetupError(
            f"port {port} on 127.0.0.1 is in use",
            code="port_taken",
            remedy="Choose another port, or none: a free one is picked then",
        )
    return port


def _start(state_dir: Path, distribution: Path, java: Path, port: int) -> NodeInfo:
    deadline = time.monotonic() + _START_TIMEOUT
    url = f"http://127.0.0.1:{port}"
    boot_log = state_dir / "boot.log"
    user = node_files.run_as()
    owner: dict[str, Any] = {}
    if user is not None:
        owner = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    try:
        descriptor = os.open(boot_log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as log:
            # -d: the launcher returns when the node listens, and leaves it without a terminal.
            launcher = subprocess.Popen(
                [distribution / "bin" / "elasticsearch", "-d"],
                env=node_files.environment(state_dir, java),
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                **owner,
            )
        try:
            code = launcher.wait(timeout=_START_TIMEOUT)
        except subprocess.TimeoutExpired:
            raise _slow(boot_log) from None
        process = next(iter(_processes(state_dir)), None)
        if code != 0 or process is None:
            raise _died(boot_log)
        _await_health(url, state_dir, process, deadline)
        record = {
            "pid": process.pid,
            "create_time": process.create_time(),
            "port": port,
            "url": url,
            "version": _version(distribution),
        }
        node_files.write(state_dir / "node.json", json.dumps(record))
    except BaseException:  # also Ctrl-C: no half-started node stays behind
        for leftover in _processes(state_dir):
            _stop(leftover, timeout=5)
        raise
    found = status(state_dir)
    if found is None:
        raise _died(boot_log)
    return found


def _await_health(
    url: str, state_dir: Path, process: psutil.Process, deadline: float
) -> None:
    """Wait until the shards are there and the licence is: DLS is refused before that."""
    login = credentials(state_dir)
    if login is None:
        raise AssertionError(state_dir)  # written before the start
    refused_since: float | None = None
    while time.monotonic() < deadline:
        if _gone(process):
            raise _died(node_files.log_path(state_dir))
        code, health = _get(f"{url}/_cluster/health?wait_for_status=yellow&timeout=2s", login)
        if code == 200 and health.get("timed_out") is False:
            code, licence = _get(f"{url}/_license", login)
            if code == 200 and licence.get("license"):
                return
        if code == 401:
            refused_since = refused_since or time.monotonic()
            if time.monotonic() - refused_since > _REFUSAL_TIMEOUT:
                raise SetupError(
                    "the node refuses the password in credentials.json",
                    code="password_refused",
                    remedy="If the password of elastic was changed, write the new one there;"
                    " otherwise start on an empty state folder",
                )
        time.sleep(0.1)
    raise _slow(node_files.log_path(state_dir))


def _get(url: str, login: Credentials) -> tuple[int, dict[str, Any]]:
    """Status and body; (0, {}) while nothing useful answers."""
    pair = f"{login.username}:{login.password.get_secret_value()}"
    token = base64.b64encode(pair.encode()).decode()
    request = urllib.request.Request(url, headers={"Authorization": f"Basic {token}"})  # noqa: S310 - our own http://127.0.0.1
    try:
        with _HTTP.open(request, timeout=10) as answer:
            body = json.load(answer)
            return int(answer.status), body if isinstance(body, dict) else {}
    except urllib.error.HTTPError as error:
        with error:
            return error.code, {}
    except (OSError, ValueError):
        return 0, {}


def _slow(log: Path) -> SetupError:
    return SetupError(
        f"Elasticsearch was not ready within {_START_TIMEOUT:.0f} s; its log is {log}",
        code="node_slow",
        remedy="Look at the end of that log, then try again",
    )


def _died(log: Path) -> SetupError:
    return SetupError(
        f"Elasticsearch stopped while starting: {last_words(log)} (log: {log})",
        code="node_died",
        remedy="Mend the cause that the log names, then try again",
    )


def last_words(log: Path) -> str:
    """The line of a log that names the cause, else its last one."""
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        return str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    causes = [line for line in lines if _CAUSE.search(line)]
    return (causes or lines or ["nothing was logged"])[-1][:500]
