"""Index templates, versioned indices, aliases: set-up that may run at every deploy."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import elasticsearch
from elasticsearch import Elasticsearch

from memory_es import resources
from memory_es.config import Settings
from memory_es.errors import InvalidInput, SetupError
from memory_es.queries import alias
from memory_es.schema import SCHEMA_VERSION, Kind
from memory_es.store import translated

#: Every index of a deployment: the kinds, then what serves them.
INDICES = (*(str(kind) for kind in Kind), "usage", "state")
FIRST_VERSION = "000001"
_COMPONENTS = ("owner", "shared")
#: Better Binary Quantization packs 8 dimensions a byte and wants at least 64 (Elasticsearch docs).
_BBQ_MIN_DIMS = 64


@dataclass(frozen=True)
class Layout:
    """What the indices of a deployment are made for. Stored in each index's ``_meta``: a live
    index made for another model or other languages is refused, never silently mixed."""

    languages: tuple[str, ...]
    embedding_model: str
    dims: int
    secret_check: str

    def meta(self) -> dict[str, Any]:
        """The form in which it is stored."""
        return {
            "schema_version": SCHEMA_VERSION,
            "languages": list(self.languages),
            "embedding_model": self.embedding_model,
            "dims": self.dims,
            "secret_check": self.secret_check,
        }


def secret_check(secret: str) -> str:
    """A fingerprint by which two hosts notice that their deployment secrets differ."""
    return hashlib.sha256(f"memory_es secret check:{secret}".encode()).hexdigest()[:16]


def available_languages() -> list[str]:
    """Languages that have an analyzer file."""
    return sorted(
        path.stem for path in (resources.folder("index_templates") / "languages").glob("*.json")
    )


def render(settings: Settings, layout: Layout) -> dict[str, dict[str, Any]]:
    """Every template and the pipeline with its placeholders filled, by file name (no suffix).

    Raises:
        InvalidInput: a language without an analyzer file.
    """
    folder = resources.folder("index_templates")
    bbq = layout.dims >= _BBQ_MIN_DIMS
    values = {
        "{{prefix}}": settings.prefix,
        "{{shards}}": settings.shards,
        "{{dims}}": layout.dims,
        "{{vector_index}}": "bbq_flat" if bbq else "flat",
        "{{catalog_vector_index}}": "bbq_hnsw" if bbq else "hnsw",
    }
    rendered = {
        path.stem: _fill(json.loads(path.read_text("utf-8")), values, layout.languages)
        for path in sorted(folder.glob("*.json"))
    }
    analysis = rendered["component-shared"]["template"]["settings"]["analysis"]
    for language in layout.languages:
        _merge(analysis, _language_analysis(folder, language))
    for body in rendered.values():
        if "template" in body:
            digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
            body["_meta"] = {"memory_es": {"hash": digest[:16]}}
    for name in INDICES:
        rendered[name]["template"]["mappings"]["_meta"] = {"memory_es": layout.meta()}
    return rendered


def _language_analysis(folder: Path, language: str) -> dict[str, Any]:
    names = available_languages()
    if language not in names:
        raise InvalidInput(
            "MEMORY_ES_LANGUAGES", f"{language!r} has no analyzer", remedy=f"Use {', '.join(names)}"
        )
    analysis: dict[str, Any] = json.loads(
        (folder / "languages" / f"{language}.json").read_text("utf-8")
    )
    return analysis


def _fill(node: Any, values: Mapping[str, Any], languages: tuple[str, ...]) -> Any:
    """Fill placeholders. A key ``{{language}}`` is repeated for each language."""
    if isinstance(node, dict):
        filled: dict[str, Any] = {}
        for key, item in node.items():
            if key == "{{language}}":
                for language in languages:
                    filled[language] = _fill(item, {**values, key: language}, languages)
            else:
                filled[key] = _fill(item, values, languages)
        return filled
    if isinstance(node, list):
        return [_fill(item, values, languages) for item in node]
    if isinstance(node, str):
        if node in values:
            return values[node]  # keeps numbers numbers
        for placeholder, value in values.items():
            node = node.replace(placeholder, str(value))
    return node


def _merge(target: dict[str, Any], extra: Mapping[str, Any]) -> None:
    for key, value in extra.items():
        target.setdefault(key, {}).update(value)


def install(service: Elasticsearch, settings: Settings, layout: Layout) -> list[str]:
    """Install what is missing or changed: pipeline, templates, indices, aliases.

    Returns:
        What it did, one line each; empty when everything was in place.

    Raises:
        SetupError: the live indices were made for other languages, another model or another
            deployment secret. Nothing is changed then.
    """
    live = check_layout(service, settings.prefix, layout)
    changes = []
    with translated():
        for name, apply in _stale_templates(service, settings, layout):
            apply()
            changes.append(name)
        for index in INDICES:
            name = alias(settings.prefix, index)
            if name not in live:
                changes += _create(service, name)
    return changes


def drift(service: Elasticsearch, settings: Settings, layout: Layout) -> list[str]:
    """Names of templates and pipelines that differ from what this version installs."""
    with translated():
        return [name for name, _ in _stale_templates(service, settings, layout)]


def _stale_templates(
    service: Elasticsearch, settings: Settings, layout: Layout
) -> list[tuple[str, Callable[[], Any]]]:
    """What is missing or differs, in the order of installation, each with its remedy."""
    rendered = render(settings, layout)
    stale: list[tuple[str, Callable[[], Any]]] = []
    for component in _COMPONENTS:
        name, body = f"{settings.prefix}-{component}", rendered[f"component-{component}"]
        found = _or_empty(service.cluster.get_component_template, name=name)
        before = [entry["component_template"] for entry in found.get("component_templates", [])]
        if _differs(before, body):
            put = partial(service.cluster.put_component_template, name=name, **body)
            stale.append((f"component template {name}", put))
    name, body = f"{settings.prefix}-stamp", rendered["pipeline-stamp"]
    installed = _or_empty(service.ingest.get_pipeline, id=name).get(name, {})
    if any(installed.get(field) != value for field, value in body.items()):
        stale.append((f"pipeline {name}", partial(service.ingest.put_pipeline, id=name, **body)))
    for index in INDICES:
        name, body = alias(settings.prefix, index), rendered[index]
        found = _or_empty(service.indices.get_index_template, name=name)
        before = [entry["index_template"] for entry in found.get("index_templates", [])]
        if _differs(before, body):
            put = partial(service.indices.put_index_template, name=name, **body)
            stale.append((f"index template {name}", put))
    return stale


def _create(service: Elasticsearch, name: str) -> list[str]:
    """Make the first index of an alias, or the alias if only that is missing; says which."""
    index = f"{name}-{FIRST_VERSION}"
    try:
        service.indices.create(index=index, aliases={name: {"is_write_index": True}})
    except elasticsearch.BadRequestError as error:
        if error.error != "resource_already_exists_exception":
            raise
        if service.indices.exists_alias(name=name):
            return []  # another `init` was faster
        service.indices.put_alias(index=index, name=name, is_write_index=True)
        return [f"alias {name} of index {index}"]
    return [f"index {index} behind alias {name}"]


def _or_empty(call: Callable[..., Any], **names: str) -> dict[str, Any]:
    try:
        body: dict[str, Any] = call(**names).body
    except elasticsearch.NotFoundError:
        return {}
    return body


def _differs(before: list[dict[str, Any]], body: dict[str, Any]) -> bool:
    """Whether a template is missing or altered. Whole bodies are compared, not their hashes:
    whoever edits a template by hand leaves its ``_meta`` as it was."""
    return not before or any(
        _flat(before[0].get(key)) != _flat(value) for key, value in body.items()
    )


def _flat(node: Any, path: str = "") -> dict[str, str]:
    """Leaves by dotted path, as strings: Elasticsearch gives settings back nested, quoted and
    all under ``index``."""
    if isinstance(node, dict):
        flat: dict[str, str] = {}
        for key, value in node.items():
            flat |= _flat(value, path if (path, key) == (".settings", "index") else f"{path}.{key}")
        return flat
    if isinstance(node, bool):
        return {path: str(node).lower()}
    return {path: str(node)}


def live_layouts(service: Elasticsearch, prefix: str) -> dict[str, dict[str, Any]]:
    """``_meta`` of each live index, by alias; empty when nothing is installed."""
    with translated():
        answer = service.indices.get_mapping(
            index=[alias(prefix, name) for name in INDICES],
            ignore_unavailable=True,
            filter_path="*.mappings._meta",
        )
        names = service.indices.get_alias(
            index=[f"{prefix}-*"], ignore_unavailable=True, filter_path="*.aliases"
        )
    found = {}
    ours = {alias(prefix, name) for name in INDICES}
    for index, body in names.body.items():
        for name in body["aliases"].keys() & ours:
            meta = answer.body.get(index, {}).get("mappings", {}).get("_meta", {})
            found[name] = meta.get("memory_es", {})
    return found


def check_layout(service: Elasticsearch, prefix: str, layout: Layout) -> dict[str, dict[str, Any]]:
    """Compare the live indices with what is configured; returns ``live_layouts``.

    Raises:
        SetupError: ``model_mismatch``, ``languages_changed``, ``secret_mismatch`` or
            ``schema_mismatch``.
    """
    live = live_layouts(service, prefix)
    wanted = layout.meta()
    for name, meta in live.items():
        if meta.get("schema_version") != SCHEMA_VERSION or not wanted.keys() <= meta.keys():
            raise SetupError(
                f"the index behind {name} has schema version {meta.get('schema_version')},"
                f" this version of memory_es has {SCHEMA_VERSION}",
                code="schema_mismatch",
                remedy="Use another MEMORY_ES_PREFIX, or the version that made the index",
            )
        if (meta["embedding_model"], meta["dims"]) != (layout.embedding_model, layout.dims):
            raise SetupError(
                f"the index behind {name} was made by the embedding model"
                f" {meta['embedding_model']} ({meta['dims']} dimensions), configured is"
                f" {layout.embedding_model} ({layout.dims})",
                code="model_mismatch",
                remedy=f"Set MEMORY_ES_EMBEDDING_MODEL={meta['embedding_model']},"
                " or use another MEMORY_ES_PREFIX",
            )
        if meta["languages"] != wanted["languages"]:
            raise SetupError(
                f"the index behind {name} was made for the languages"
                f" {','.join(meta['languages'])}, configured are {','.join(layout.languages)}",
                code="languages_changed",
                remedy=f"Set MEMORY_ES_LANGUAGES={','.join(meta['languages'])},"
                " or use another MEMORY_ES_PREFIX",
            )
        if meta["secret_check"] != layout.secret_check:
            raise SetupError(
                f"the indices of prefix {prefix} were made with another deployment secret",
                code="secret_mismatch",
                remedy="Set MEMORY_ES_SECRET to that deployment's secret",
            )
    return live


def counts(service: Elasticsearch, prefix: str) -> dict[str, int | None]:
    """Documents by kind, of all users; None where there is no index yet."""
    found: dict[str, int | None] = {}
    with translated():
        for kind in Kind:
            try:
                found[str(kind)] = service.count(index=alias(prefix, kind))["count"]
            except elasticsearch.NotFoundError:
                found[str(kind)] = None
    return found


def require_installed(service: Elasticsearch, prefix: str, layout: Layout) -> None:
    """Check that every index is there and fits. Raises SetupError."""
    live = check_layout(service, prefix, layout)
    missing = [name for index in INDICES if (name := alias(prefix, index)) not in live]
    if missing:
        raise SetupError(
            f"the memory indices do not exist here (missing: {', '.join(missing)})",
            code="not_initialised",
            remedy="Run `memory-es init`",
        )


def remove(service: Elasticsearch, prefix: str) -> None:
    """Delete everything of one prefix: indices, templates, pipeline. For tests and evaluations."""
    with translated():
        # by exact names: a wildcard deletion may be forbidden, and could match too much
        indices = list(live_indices(service, prefix))
        if indices:
            service.indices.delete(index=indices, ignore_unavailable=True)
        for index in INDICES:
            service.options(ignore_status=404).indices.delete_index_template(
                name=alias(prefix, index)
            )
        for component in _COMPONENTS:
            service.options(ignore_status=404).cluster.delete_component_template(
                name=f"{prefix}-{component}"
            )
        service.options(ignore_status=404).ingest.delete_pipeline(id=f"{prefix}-stamp")


def live_indices(service: Elasticsearch, prefix: str) -> dict[str, Any]:
    """Concrete indices of a prefix."""
    found: dict[str, Any] = service.indices.get_alias(
        index=[f"{alias(prefix, name)}-*" for name in INDICES], ignore_unavailable=True
    ).body
    return found
