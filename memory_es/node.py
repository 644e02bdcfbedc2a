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
from dataclasses import replace
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil  # type: ignore[import-untyped]  # ships no types
from pydantic import BaseModel, ConfigDict, SecretStr

from memory_es import artifacts, node_files
from memory_es.config import HEAP
from memory_es.errors import InvalidInput, SetupError
from memory_es.node_files import Credentials, Launch, License, credentials

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Credentials", "License", "NodeInfo", "credentials", "down", "status", "up"]

#: A loaded machine of two cores took 71 s once; a node that dies is noticed at once.
_START_TIMEOUT = 180.0
#: How long the node may refuse its own password: the security index may still be recovering.
_REFUSAL_TIMEOUT = 20.0

#: Loopback must not go through a proxy that the environment names.
_HTTP = urllib.request.build_opener(urllib.request.ProxyHandler({}))

#: Lines that tell why a start failed, of Elasticsearch and of the JVM.
_CAUSE = re.compile(
    r"Likely root cause|^Caused by: |^[\w.$]+(Exception|Error): |bootstrap check failure|"
    r"Too small|insufficient memory|Could not reserve|Unrecognized VM option|Permission denied"
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
    license: License = "trial",  # noqa: A002 -- the word of Elasticsearch and its users
    security: bool = True,
    progress: Callable[[str], None] = lambda _line: None,
) -> tuple[NodeInfo, bool]:
    """Start the node, or return the one that runs. The flag says whether it was started now.

    Data, password and, where it is still free, the port survive a restart. A running node is
    returned as it is, whatever heap or port is asked for; ``license`` matters for the first
    start on new data only. ``security=False`` is for one user's laptop. Two calls at once start
    one node: the second waits.

    Raises:
        InvalidInput: ``heap`` is not a size such as ``512m`` or ``2g``.
        SetupError: ``java_missing``, ``port_taken``, ``state_dir_unreachable``,
            ``state_dir_unwritable``, ``cache_dir_unreachable``, ``java_home_unreachable``,
            ``node_died``, ``node_slow``, ``password_refused``, and what
            ``artifacts.ensure_distribution`` raises.
    """
    if not HEAP.fullmatch(heap):
        raise InvalidInput("heap", f"{heap!r} is not a size such as 512m or 2g")
    state_dir = state_dir.resolve()  # one node, however the path is spelt
    node_files.make_state_dir(state_dir)
    with artifacts.locked(
        state_dir / "lock", lambda: progress("Waiting for another process that starts the node")
    ):
        node_files.require_same_security(state_dir, security=security)
        running = status(state_dir)
        if running is not None:
            return running, False
        for leftover in _processes(state_dir):  # whoever started it was killed
            _stop(leftover, timeout=30)
        try:
            return _start(
                Launch(
                    state_dir=state_dir,
                    distribution=artifacts.ensure_distribution(cache_dir.resolve(), progress),
                    java=artifacts.find_java(),
                    heap=heap,
                    port=_choose_port(state_dir, port),
                    license=license,
                    security=security,
                ),
                progress,
                may_move=port is None,
            ), True
        except OSError as error:
            raise node_files.unwritable(state_dir, error) from error


def down(state_dir: Path, *, timeout: float = 30) -> bool:
    """Stop the node if it runs; return whether there was one to stop. The data stay.

    The process gets SIGTERM and, after ``timeout`` seconds, SIGKILL.
    """
    state_dir = state_dir.resolve()
    if not state_dir.is_dir():
        return False
    with artifacts.locked(state_dir / "lock", lambda: None):
        found = _processes(state_dir)
        for process in found:
            _stop(process, timeout)
        return bool(found)


def status(state_dir: Path) -> NodeInfo | None:
    """Return the node if its process runs and is ours. Asks the system, not the network."""
    state_dir = state_dir.resolve()
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
    """Return the process of ``node.json``, unless its number now belongs to another one."""
    try:
        process = psutil.Process(record["pid"])
    except (KeyError, TypeError, ValueError, psutil.Error):
        return None
    return process if _is_ours(process, state_dir) and not _gone(process) else None


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


def _start(launch: Launch, progress: Callable[[str], None], *, may_move: bool) -> NodeInfo:
    node_files.require_reachable(launch.state_dir, "MEMORY_ES_STATE_DIR")
    elasticsearch = launch.distribution / "bin" / "elasticsearch"
    node_files.require_reachable(elasticsearch, "MEMORY_ES_CACHE_DIR")
    node_files.require_reachable(launch.java / "bin" / "java", "JAVA_HOME")
    node_files.make_own_folders(launch.state_dir)
    node_files.write_config(launch)
    progress(f"Starting Elasticsearch {launch.version} on 127.0.0.1:{launch.port}")
    try:
        return _boot(launch)
    except BaseException as error:  # also Ctrl-C: no half-started node stays behind
        for leftover in _processes(launch.state_dir):
            _stop(leftover, timeout=5)
        if not may_move or "Address already in use" not in str(error):
            raise
    # Somebody took the port between our probe and the node.
    return _start(replace(launch, port=_free_port()), progress, may_move=False)


def _boot(launch: Launch) -> NodeInfo:
    deadline = time.monotonic() + _START_TIMEOUT
    boot_log = launch.state_dir / "boot.log"
    code = _run_launcher(launch, boot_log)
    process = next(iter(_processes(launch.state_dir)), None)
    if code != 0 or process is None:
        raise _died(boot_log)
    url = f"http://127.0.0.1:{launch.port}"
    _await_health(url, launch.state_dir, process, deadline)
    record = {
        "pid": process.pid,
        "create_time": process.create_time(),
        "port": launch.port,
        "url": url,
        "version": launch.version,
    }
    node_files.write(launch.state_dir / "node.json", json.dumps(record))
    found = status(launch.state_dir)
    if found is None:
        raise _died(node_files.log_path(launch.state_dir))
    return found


def _run_launcher(launch: Launch, boot_log: Path) -> int:
    descriptor = os.open(boot_log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as log:
        launcher = subprocess.Popen(
            # -d: it returns when the node listens, and leaves the node without a terminal.
            [launch.distribution / "bin" / "elasticsearch", "-d"],
            env=node_files.environment(launch),
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            **node_files.as_owner(),
        )
    try:
        return launcher.wait(timeout=_START_TIMEOUT)
    except subprocess.TimeoutExpired:
        raise _slow(boot_log) from None
    finally:
        if launcher.poll() is None:  # it took too long, or the caller was interrupted
            launcher.kill()
            launcher.wait()


def _await_health(url: str, state_dir: Path, process: psutil.Process, deadline: float) -> None:
    """Wait until the shards are there and the licence is: DLS is refused before that."""
    log = node_files.log_path(state_dir)
    login = credentials(state_dir)
    refused_since: float | None = None
    while login is not None and time.monotonic() < deadline:
        if _gone(process):
            raise _died(log)
        code, health = _get(f"{url}/_cluster/health?wait_for_status=yellow&timeout=2s", login)
        if code == HTTPStatus.OK and health.get("timed_out") is False:
            code, licence = _get(f"{url}/_license", login)
            if code == HTTPStatus.OK and licence.get("license"):
                return
        if code == HTTPStatus.UNAUTHORIZED:
            refused_since = refused_since or time.monotonic()
            if time.monotonic() - refused_since > _REFUSAL_TIMEOUT:
                raise SetupError(
                    f"the node refuses the password in {state_dir / 'credentials.json'}",
                    code="password_refused",
                    remedy="If somebody changed the password of elastic, write the new one into"
                    " that file",
                )
        time.sleep(0.1)
    raise _slow(log)


def _get(url: str, login: Credentials) -> tuple[int, dict[str, Any]]:
    """Status and body; (0, {}) while nothing useful answers."""
    pair = f"{login.username}:{login.password.get_secret_value()}"
    token = base64.b64encode(pair.encode()).decode()
    request = urllib.request.Request(url, headers={"Authorization": f"Basic {token}"})  # noqa: S310 -- our own loopback address
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
        f"Elasticsearch stopped while starting: {_last_words(log)} (log: {log})",
        code="node_died",
        remedy="Mend the cause that the log names, then try again",
    )


def _last_words(log: Path) -> str:
    """Return the line of a log that names the cause, else its last one."""
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        return str(error)
    text = text.partition("ERROR: Elasticsearch did not exit")[0]  # what follows is the shutdown
    lines = [line.strip(" \t#") for line in text.splitlines() if line.strip(" \t#")]
    causes = [line for line in lines if _CAUSE.search(line)]
    return (causes or lines or ["nothing was logged"])[-1][:500]
