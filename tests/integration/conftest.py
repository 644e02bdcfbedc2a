"""The real node, the real default model, and a deployment of the worker's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from elasticsearch import Elasticsearch

from memory_es import Memory, Platform, Settings, artifacts, node
from memory_es.models import Embedder, load_embedder
from tests.backstage import admin_of, admin_of_node, remove


def _silent(_message: str) -> None:
    return


@pytest.fixture(scope="session")
def start_node(state_dir: Path) -> Callable[[str], node.NodeInfo]:
    """Starts a node, once for the run, safe from several workers at once: ``trial`` (the one of
    nearly all tests), ``basic`` (that licence), ``insecure`` (security off)."""

    def start(name: str) -> node.NodeInfo:
        folder = state_dir if name == "trial" else state_dir / name
        info, _ = node.up(
            folder,
            Settings.load().cache_dir,
            heap="1g" if name == "trial" else "512m",
            license="basic" if name == "basic" else "trial",
            security=name != "insecure",
            progress=_silent,
        )
        if name != "insecure":
            _make_security_index(info)
        return info

    return start


def _make_security_index(info: node.NodeInfo) -> None:
    """Once for a new node, so that workers that start at once do not meet half of it."""
    with artifacts.locked(info.state_dir / "warm.lock", lambda: None):
        if not (info.state_dir / "warm").exists():
            admin_of_node(info).security.put_role(name="warm", cluster=[])
            (info.state_dir / "warm").touch()


@pytest.fixture(scope="session")
def running_node(start_node: Callable[[str], node.NodeInfo]) -> node.NodeInfo:
    """The node of nearly all tests, started by the first that needs it."""
    return start_node("trial")


@pytest.fixture(scope="session")
def embedder() -> Embedder:
    """The default model, really."""
    return load_embedder(Settings.load(), _silent)


@pytest.fixture(scope="session")
def made() -> list[Platform]:
    """Deployments of the present module."""
    return []


@pytest.fixture(scope="module", autouse=True)
def _removed_with_its_module(made: list[Platform]) -> Iterator[None]:
    """Hundreds of indices that nobody needs any more slow a node down."""
    yield
    while made:
        remove(made.pop())


@pytest.fixture(scope="session")
def new_platform(
    start_node: Callable[[str], node.NodeInfo],
    new_prefix: Callable[[], str],
    embedder: Embedder,
    made: list[Platform],
) -> Callable[..., Platform]:
    """Makes deployments on a node (3 shards, own prefix, initialised). ``on`` names the node, the
    other keyword arguments are settings. All that they made is removed after the module, and
    nothing else."""

    def make(
        *,
        init: bool = True,
        on: str = "trial",
        embedder: Embedder = embedder,
        **overrides: object,
    ) -> Platform:
        folder = start_node(on).state_dir
        settings = Settings.load(
            **({"state_dir": folder, "prefix": new_prefix(), "shards": 3} | overrides)
        )
        platform = Platform(settings, embedder=embedder)
        made.append(platform)
        if init:
            platform.init()
        return platform

    return make


@pytest.fixture(scope="session")
def platform(new_platform: Callable[..., Platform], made: list[Platform]) -> Iterator[Platform]:
    """The worker's deployment. Tests keep apart by their users."""
    platform = new_platform()
    made.remove(platform)  # it stays
    yield platform
    remove(platform)


@pytest.fixture
def memory(platform: Platform, user: str) -> Memory:
    """The memory of a user that no other test has."""
    platform.add_user(user)
    return platform.for_user(user)


@pytest.fixture(scope="session")
def service(platform: Platform) -> Elasticsearch:
    """An administrator's client, to look behind the scenes and to plant what nobody else may."""
    return admin_of(platform)
