"""Who may do what, read from the source: changes, keys, the administrator."""

from __future__ import annotations

import ast
import importlib.util
import inspect
from pathlib import Path

import grimp
import pytest
from elasticsearch import Elasticsearch

import memory_es
from memory_es.placement import Placement
from memory_es.schema import OWNED
from memory_es.store import Reference, Store, Stored

PACKAGE = Path(memory_es.__file__).parent
#: The one module beside ``owned`` that may change memories, once it exists: it takes a user or an
#: index, never ids.
OPERATOR = "memory_es.operator"


def calls(name: str) -> set[str]:
    """``module.function`` of each place where a method of that name is called."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text("utf-8"))
        for function in ast.walk(tree):
            if not isinstance(function, ast.FunctionDef):
                continue
            for node in ast.walk(function):
                if (
                    isinstance(node, ast.Call)
                    and isinstance(node.func, ast.Attribute)
                    and node.func.attr == name
                ):
                    found.add(f"{path.stem}.{function.name}")
    return found


def test_memories_are_changed_by_what_their_owners_key_has_read_alone() -> None:
    importers = grimp.build_graph("memory_es").find_modules_that_directly_import(
        "memory_es.changes"
    )
    assert importers <= {"memory_es.owned", OPERATOR}
    assert "memory_es.owned" in importers


def test_the_operators_module_takes_no_ids_of_users() -> None:
    if importlib.util.find_spec(OPERATOR) is None:
        assert not (PACKAGE / "operator.py").exists()
        return
    module = importlib.import_module(OPERATOR)
    for _, function in inspect.getmembers(module, inspect.isfunction):
        assert not {"id", "ids", "memory_id"} & inspect.signature(function).parameters.keys()


def test_keys_are_made_in_two_places_and_only_one_gives_powers() -> None:
    assert calls("create_api_key") == {"security.mint", "security.settle"}
    assert calls("grant_api_key") == calls("update_api_key") - {"security.end_later"} == set()


def test_documents_are_updated_and_deleted_where_it_is_meant() -> None:
    assert calls("delete_by_query") == calls("update_by_query") == calls("reindex") == set()
    owners = {place for place in calls("update") if place.split(".")[0] in {"owned", "changes"}}
    assert owners == {"owned.update", "changes.update"}
    assert {place for place in calls("delete") if not place.startswith("chain.")} == {
        "owned.delete",
        "changes.delete",
        "indices.remove",
    }


def test_the_administrator_is_asked_for_by_set_up_and_by_what_needs_no_deployment() -> None:
    assert calls("admin") == {"platform.init", "platform.node_facts", "platform.status"}


@pytest.mark.parametrize("kind", [*OWNED, "catalog"])
def test_the_store_changes_no_memory(kind: str) -> None:
    store = Store(Elasticsearch("http://127.0.0.1:9"), Placement("t", "dls"))
    with pytest.raises(ValueError, match="no index of rows"):
        store.update(Reference(kind, "x", "r"), {"revision": 7}, Stored({}, 1, 1))
