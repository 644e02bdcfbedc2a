"""One real Elasticsearch for the whole run, one index prefix for each worker."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import leaks

_STATE = "TESTS_OF_MEMORY_ES"
#: Nodes beside the one with a trial licence, each in a folder below its state folder.
OTHER_NODES = ("basic", "insecure")
_LONG = {"test_readme.py": -3, "test_isolation.py": -2, "test_recall.py": -1}


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--probes``: how many the property test of isolation draws in each mode."""
    parser.addoption("--probes", default="1000", help="probes of isolation in each mode")


def pytest_configure(config: pytest.Config) -> None:
    """The controller names the run's state folder; its workers inherit the environment. Everything
    that is logged at DEBUG goes to a file of the process, which the controller searches at the
    end."""
    if not hasattr(config, "workerinput"):
        for name in list(os.environ):
            if name.startswith(("ELASTICSEARCH_", "MEMORY_ES_")):
                del os.environ[name]
        os.environ["HF_HUB_OFFLINE"] = "1"
        os.environ[_STATE] = tempfile.mkdtemp(prefix="memory_es_tests_")
        Path(os.environ[_STATE]).chmod(0o711)  # the node's unprivileged user must get through
    leaks.log_everything(Path(os.environ[_STATE]))


@pytest.hookimpl(trylast=True)  # after the order was shuffled
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files that take longest go first: else a worker ends up alone with one of them."""
    items.sort(key=lambda item: _LONG.get(item.path.name, 0))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """CASEBOOK I8: no memory text and no secret in any line that the run has logged."""
    if not hasattr(session.config, "workerinput"):
        found = leaks.in_logs(Path(os.environ[_STATE]))
        if found:
            sys.stderr.write("\nLEAKED INTO A LOG:\n" + "\n".join(found) + "\n")
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_unconfigure(config: pytest.Config) -> None:
    """The controller stops the nodes that the run has started."""
    if not hasattr(config, "workerinput"):
        from memory_es import node

        state = Path(os.environ[_STATE])
        for folder in (state, *(state / name for name in OTHER_NODES)):
            node.down(folder)
        shutil.rmtree(state)


@pytest.fixture(scope="session")
def state_dir() -> Path:
    """The run's state folder: the node's data, the users' keys."""
    return Path(os.environ[_STATE])


@pytest.fixture
def user() -> str:
    """A user that no other test has."""
    return f"user-{uuid.uuid4().hex}"


@pytest.fixture(scope="session")
def new_prefix() -> Callable[[], str]:
    """Makes index prefixes that nothing else uses."""
    return lambda: f"t{uuid.uuid4().hex[:12]}"


@pytest.fixture(scope="session")
def environment(state_dir: Path) -> dict[str, str]:
    """Environment of a subprocess that uses the run's node."""
    return dict(os.environ) | {"MEMORY_ES_STATE_DIR": str(state_dir)}
