"""Writes the generated parts of the documents: `python -m scripts.docs`; a test compares them.

A part stands between `<!-- generated: NAME -->` and `<!-- end -->` in a file of `docs/`; the rest
of the file is written by hand.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType, NoneType
from typing import Any, Literal, get_args, get_origin

import click
import typer
from pydantic import FilePath, SecretStr
from pydantic.fields import FieldInfo

from memory_es import audit, cli, documents, templates
from memory_es.config import Settings, variables

DOCS = Path(__file__).parents[1] / "docs"
_PART = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
_WIDTH = 96


# --- settings -----------------------------------------------------------------------------

#: Defaults that depend on the machine, in words.
_COMPUTED = {
    "state_dir": "the user's data folder; `/var/lib/memory_es` for root",
    "cache_dir": "the user's cache folder; `/var/cache/memory_es` for root",
}


def settings() -> str:
    """A table of every setting: its variables, what it may be, its default, what it is."""
    rows = [
        (
            " or ".join(f"`{variable}`" for variable in variables(name)),
            _values(field),
            _default(name, field),
            str(field.description),
        )
        for name, field in Settings.model_fields.items()
    ]
    return _table(("variable", "values", "default", "what"), rows)


def _values(field: FieldInfo) -> str:
    """The choices, bounds and type that the model holds its values to."""
    kinds = [kind for kind in get_args(field.annotation) or [field.annotation] if kind != NoneType]
    if get_origin(field.annotation) is Literal:
        return ", ".join(f"`{choice}`" for choice in kinds)
    bounds = {
        sign: getattr(limit, name)
        for limit in field.metadata
        for name, sign in (("ge", ">="), ("gt", ">"), ("le", "<="))
        if hasattr(limit, name)
    }
    limits = ", ".join(f"{sign} {value:g}" for sign, value in bounds.items())
    return f"{_TYPES[kinds[0]]} {limits}".strip()


_TYPES: dict[Any, str] = {
    str: "text",
    SecretStr: "secret",
    int: "whole number",
    float: "number",
    Path: "path",
    FilePath: "file that exists",
}


def _default(name: str, field: FieldInfo) -> str:
    if field.default_factory is not None:
        return _COMPUTED[name]
    value = field.default
    if value is None:
        return "none"
    return f"`{','.join(value) if isinstance(value, tuple) else value}`"


# --- commands -----------------------------------------------------------------------------


def commands() -> str:
    """The help of every command, as it prints it."""
    root = typer.main.get_command(cli.app)
    return "\n".join(
        f"## {' '.join(path)}\n\n```text\n{text}\n```\n" for path, text in _helps(root, ())
    )


def _helps(command: Any, above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    path = (*above, str(command.name))
    context = click.Context(command, info_name=" ".join(path), terminal_width=_WIDTH)
    yield path, "\n".join(line.rstrip() for line in command.get_help(context).splitlines())
    for inner in getattr(command, "commands", {}).values():
        yield from _helps(inner, path)


# --- data model ---------------------------------------------------------------------------

#: The model that each template is compared with, and what the index is for.
TEMPLATES: dict[str, tuple[type, str]] = {
    "component-shared": (documents.Document, "Fields of every memory, of the catalog too"),
    "component-owner": (documents.OwnedDocument, "Fields of every index but catalog and audit"),
    "episodic": (documents.EpisodicDocument, "What happened. A user's key reads and adds"),
    "semantic": (documents.SemanticDocument, "What is true. A user's key reads and adds"),
    "procedural": (documents.ProceduralDocument, "What works. A user's key reads and adds"),
    "catalog": (documents.CatalogDocument, "Shared knowledge. Every key reads, the service writes"),
    "usage": (
        documents.UsageRow,
        "How memories are used. Its owner's key reads, the service writes",
    ),
    "state": (documents.StateRow, "The service's own rows: users, and what is going on"),
    "audit": (audit.AuditEvent, "Who did what. The service adds, no user's key reads"),
}


def model() -> str:
    """A table for every template: fields, their mapping, what they mean."""
    layout = templates.Layout("dls", ("english",), "MODEL", 384, None)
    rendered = templates.render(Settings(prefix="memory"), layout)
    del rendered["pipeline-stamp"]
    if set(TEMPLATES) != set(rendered):
        raise ValueError(f"a template is not described: {set(TEMPLATES) ^ set(rendered)}")
    comments = _comments(documents) | _comments(audit)
    sections = []
    for name, (of, what) in TEMPLATES.items():
        meanings = _meanings(of, comments)
        body = rendered[name]
        rows = [
            (f"`{path}`", mapping, _meaning(path, meanings))
            for path, mapping in _flat(body["template"]["mappings"].get("properties", {}))
        ]
        made_of = ", ".join(f"`{part}`" for part in body.get("composed_of", ()))
        made = f", with the fields of {made_of}" if made_of else ""
        sections.append(f"## `memory-{name}`\n\n{what}{made}.\n\n{_table(_COLUMNS, rows)}")
    return "\n".join(sections).replace("memory-component-", "memory-")


_COLUMNS: tuple[str, ...] = ("field", "mapping", "what")
_PARTS = {"passages": "Passage", "steps": "Step"}
#: What is in the mapping and in no model: made by Elasticsearch from other fields.
_DERIVED = {
    "content": "All that BM25 searches, gathered from other fields.",
    "owner_id": "Short name of `owner.api_key.metadata.owner_id`.",
}


def _meanings(of: type, comments: dict[str, dict[str, str]]) -> dict[str, str]:
    """By path: the comments of a model, of its bases and of the models in it."""
    found = dict(_DERIVED)
    for base in reversed(of.__mro__):
        found |= comments.get(base.__name__, {})
    for field, inner in _PARTS.items():
        found |= {f"{field}.{name}": text for name, text in comments[inner].items()}
    return found


def _meaning(path: str, meanings: dict[str, str]) -> str:
    return meanings.get(path, "") if "." in path else meanings[path]


def _flat(fields: dict[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """Path and mapping of each field, sub-field and inner field."""
    for name, body in fields.items():
        path = f"{above}{name}"
        shown = {key: part for key, part in body.items() if key not in _STRUCTURE}
        extra = ", ".join(f"{key} {json.dumps(part)}" for key, part in shown.items())
        yield path, f"{body.get('type', 'object')}{' · ' if extra else ''}{extra}"
        yield from _flat(body.get("fields", {}), f"{path}.")
        yield from _flat(body.get("properties", {}), f"{path}.")


_STRUCTURE = {"type", "fields", "properties"}


def _comments(module: ModuleType) -> dict[str, dict[str, str]]:
    """By class and field: the `#:` comment above it."""
    source = inspect.getsource(module)
    lines = source.splitlines()
    found: dict[str, dict[str, str]] = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef):
            for field in node.body:
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                    above = lines[field.lineno - 2].strip()
                    if above.startswith("#: "):
                        found.setdefault(node.name, {})[field.target.id] = above[3:]
    return found


# --- files --------------------------------------------------------------------------------


def _table(columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    cells = [columns, ("---",) * len(columns), *rows]
    return "".join(
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |\n" for row in cells
    )


PARTS: dict[str, Callable[[], str]] = {
    "settings": settings,
    "commands": commands,
    "model": model,
}


def filled(text: str) -> str:
    """A document with its generated parts made anew."""
    return _PART.sub(lambda part: f"{part[1]}\n{PARTS[part[2]]()}\n{part[3]}", text)


def main() -> None:
    """Write every document that has a generated part."""
    for file in sorted(DOCS.glob("*.md")):
        text = file.read_text("utf-8")
        file.write_text(filled(text), "utf-8")


if __name__ == "__main__":
    main()
