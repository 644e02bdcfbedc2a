"""Who may do what, read from the source: changes, keys, the administrator."""

from __future__ import annotations

import ast
import importlib.util
import inspect
from pathlib import Path
from types import ModuleType

import grimp
import pytest
from elasticsearch import Elasticsearch

import memory_es
from memory_es.placement import Placement
from memory_es.schema import OWNED
from memory_es.security import settle
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


def mentions(name: str) -> set[str]:
    """``module.function`` of each place that reaches for an attribute of that name, also without
    calling it, or has the name in a string; ``module`` alone outside of functions."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text("utf-8"))
        inside = {
            node: function.name
            for function in ast.walk(tree)
            if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
            for node in ast.walk(function)
        }
        found |= {
            f"{path.stem}.{inside[node]}" if node in inside else path.stem
            for node in ast.walk(tree)
            if (isinstance(node, ast.Attribute) and node.attr == name)
            or (isinstance(node, ast.Constant) and node.value == name)
        }
    return found


def strings() -> set[str]:
    """Every string of the package."""
    return {
        node.value
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


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
    own = [thing for thing in vars(module).values() if _of(thing, module)]
    methods = [each for thing in own if inspect.isclass(thing) for each in vars(thing).values()]
    for function in filter(inspect.isfunction, own + methods):
        assert not {"id", "ids", "memory_id"} & inspect.signature(function).parameters.keys()


def _of(thing: object, module: ModuleType) -> bool:
    return getattr(thing, "__module__", None) == module.__name__


def test_keys_are_made_in_two_places_and_only_one_gives_powers() -> None:
    assert mentions("create_api_key") == {"security.mint", "security.settle"}
    assert mentions("update_api_key") == {"security.end_later"}
    for other in ("grant_api_key", "bulk_update_api_keys", "clone_api_key"):
        assert mentions(other) == set()
    # nor by a request of one's own: the only one asks for the cluster's version
    assert mentions("perform_request") == {"cluster.cluster_facts"}
    assert not [text for text in strings() if text.startswith(("/_security", "_security"))]


def test_a_key_that_settles_has_no_powers() -> None:
    source = ast.parse(inspect.getsource(settle))
    [made] = [
        node
        for node in ast.walk(source)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "create_api_key"
    ]
    given = {word.arg: word.value for word in made.keywords}
    assert ast.literal_eval(given["role_descriptors"]) == {"none": {}}
    assert "metadata" not in given


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
    assert mentions("admin") == {"platform.init", "platform.node_facts", "platform.status"}


@pytest.mark.parametrize("kind", [*OWNED, "catalog"])
def test_the_store_changes_no_memory(kind: str) -> None:
    store = Store(Elasticsearch("http://127.0.0.1:9"), Placement("t", "dls"))
    with pytest.raises(ValueError, match="no index of rows"):
        store.update(Reference(kind, "x", "r"), {"revision": 7}, Stored({}, 1, 1))
