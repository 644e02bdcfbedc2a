"""The command in processes of its own, on the run's node, under a prefix of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from memory_es import Platform, Settings
from tests.backstage import remove
from tests.commands import Cli

#: Users with a key from the start; the last one never writes anything.
USERS = ("sarah", "tom, of \u0e40\u0e21\u0e37\u0e2d\u0e07 \u201cB\u201d", "newcomer")


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
