"""``memory-es`` as the tests run it: a process for each command, forked from one that has the
modules in memory already. A third of the time goes into importing them otherwise; the README's
commands are run as a user does.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MEMORY_ES = str(Path(sys.executable).with_name("memory-es"))
_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(
    ["memory_es.cli", "memory_es.platform", "memory_es.evaluate", "rich.table", "onnxruntime"]
)
_PATIENCE = 200


@dataclass(frozen=True)
class Done:
    """What a command left behind."""

    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Cli:
    """``memory-es`` with an environment: nothing of the caller's own leaks into it."""

    environment: Mapping[str, str]

    def run(
        self, *arguments: str, given: bytes = b"", settings: Mapping[str, str] | None = None
    ) -> Done:
        environment = {**self.environment, **(settings or {})}
        with tempfile.TemporaryDirectory() as folder:
            streams = [os.path.join(folder, name) for name in ("in", "out", "err")]  # noqa: PTH118
            Path(streams[0]).write_bytes(given)
            process = _SERVER.Process(target=_main, args=(arguments, environment, streams))
            process.start()
            process.join(_PATIENCE)
            if process.exitcode is None:
                process.kill()
                raise TimeoutError(arguments)
            out, err = (Path(name).read_bytes().decode() for name in streams[1:])
            return Done(process.exitcode, out, err)

    def __call__(self, *arguments: str, code: int = 0, **options: Any) -> str:
        """Standard output of a command that ends with ``code`` and complains of nothing."""
        done = self.run(*arguments, **options)
        assert (done.code, done.err) == (code, ""), done
        return done.out

    def json(self, *arguments: str, **options: Any) -> Any:
        return json.loads(self(*arguments, "--json", **options))


def run_apart(
    command: list[str], environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """A command in a process that shares nothing with ours, its output as text."""
    return subprocess.run(
        command,
        env=dict(environment),
        capture_output=True,
        text=True,
        check=False,
        timeout=_PATIENCE,
    )


def _main(arguments: tuple[str, ...], environment: dict[str, str], streams: list[str]) -> None:
    """In the process of the command: its streams, its environment, its entry point."""
    modes = (os.O_RDONLY, os.O_WRONLY | os.O_CREAT, os.O_WRONLY | os.O_CREAT)
    for number, (name, mode) in enumerate(zip(streams, modes, strict=True)):
        os.dup2(os.open(name, mode, 0o600), number)
    sys.stdin, sys.stdout, sys.stderr = (
        os.fdopen(number, mode, encoding="utf-8", closefd=False)
        for number, mode in enumerate(("r", "w", "w"))
    )
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()  # TZ
    sys.argv = ["memory-es", *arguments]
    from memory_es.cli import main

    main()
