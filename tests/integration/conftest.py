"""The real node, the real default model, and a deployment of the worker's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from elasticsearch import Elasticsearch

from memory_es import Memory, Platform, Settings, indices, node
from memory_es.models import Embedder, load_embedder


def _silent(_message: str) -> None:
    return


@pytest.fixture(scope="session")
def running_node(state_dir: Path) -> node.NodeInfo:
    """Started by the first test that needs it; safe from several workers at once."""
    settings = Settings.load()
    info, _ = node.up(state_dir, settings.cache_dir, heap="1g", progress=_silent)
    return info


@pytest.fixture(scope="session")
def embedder() -> Embedder:
    """The default model, really."""
    return load_embedder(Settings.load(), _silent)


@pytest.fixture(scope="session")
def new_platform(
    running_node: node.NodeInfo,
    state_dir: Path,
    new_prefix: Callable[[], str],
    embedder: Embedder,
) -> Iterator[Callable[..., Platform]]:
    """Makes deployments on the node (3 shards, own prefix, initialised). Keyword arguments are
    settings. All that they made is removed after the run, and nothing else."""
    assert running_node.url
    made: list[Platform] = []

    def make(*, init: bool = True, **overrides: object) -> Platform:
        settings = Settings.load(
            **({"state_dir": state_dir, "prefix": new_prefix(), "shards": 3} | overrides)
        )
        platform = Platform(settings, embedder=embedder)
        made.append(platform)
        if init:
            platform.init()
        return platform

    yield make
    for platform in made:
        indices.remove(platform.service(), platform.settings.prefix)
        platform.close()


@pytest.fixture(scope="session")
def platform(new_platform: Callable[..., Platform]) -> Platform:
    """The worker's deployment. Tests keep apart by their users."""
    return new_platform()


@pytest.fixture
def memory(platform: Platform, user: str) -> Memory:
    """The memory of a user that no other test has."""
    platform.add_user(user)
    return platform.for_user(user)


@pytest.fixture(scope="session")
def service(platform: Platform) -> Elasticsearch:
    """The service's client, to look behind the scenes."""
    return platform.service()
