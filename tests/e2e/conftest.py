"""The installed command in processes of its own, on the run's node, under a prefix of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from memory_es import Platform, Settings
from tests.backstage import remove

#: Users with a key from the start; the last one never writes anything.
USERS = ("sarah", "tom, of \u0e40\u0e21\u0e37\u0e2d\u0e07 \u201cB\u201d", "newcomer")


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
    command: tuple[str, ...] = (str(Path(sys.executable).with_name("memory-es")),)

    def run(
        self, *arguments: str, given: bytes = b"", settings: Mapping[str, str] | None = None
    ) -> Done:
        done = subprocess.run(
            [*self.command, *arguments],
            input=given,
            env={**self.environment, **(settings or {})},
            capture_output=True,
            check=False,
        )
        return Done(done.returncode, done.stdout.decode(), done.stderr.decode())

    def __call__(self, *arguments: str, code: int = 0, **options: Any) -> str:
        """Standard output of a command that ends with ``code`` and complains of nothing."""
        done = self.run(*arguments, **options)
        assert (done.code, done.err) == (code, ""), done
        return done.out

    def json(self, *arguments: str, **options: Any) -> Any:
        return json.loads(self(*arguments, "--json", **options))


@pytest.fixture(scope="session")
def cli(
    environment: dict[str, str], new_prefix: Callable[[], str], state_dir: Path
) -> Iterator[Cli]:
    """A deployment made as a newcomer makes it: up, init, users add."""
    prefix = new_prefix()
    cli = Cli({**environment, "MEMORY_ES_PREFIX": prefix})
    for arguments in (["up"], ["init"], ["users", "add", *USERS]):
        done = cli.run(*arguments)
        assert done.code == 0, done
    yield cli
    remove(Platform(Settings.load(state_dir=state_dir, prefix=prefix)))
