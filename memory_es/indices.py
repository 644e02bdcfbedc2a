"""Versioned indices behind aliases: set-up that may run at every deploy, and its check."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import elasticsearch
from elasticsearch import Elasticsearch

from memory_es.config import INSECURE, Settings
from memory_es.errors import AccessDenied, SetupError, Unavailable
from memory_es.placement import Placement, alias
from memory_es.schema import OWNED, SCHEMA_VERSION, Kind
from memory_es.store import translated
from memory_es.templates import COMPONENTS, USER, Layout, differs, index_names, render

FIRST_VERSION = "000001"


def placement_of(settings: Settings) -> Placement:
    """Where the deployment of these settings keeps its indices."""
    return Placement(settings.prefix, settings.isolation)


def install(service: Elasticsearch, settings: Settings, layout: Layout) -> list[str]:
    """Install what is missing or changed: pipeline, templates, indices, aliases.

    Returns:
        What it did, one line each; empty when everything was in place.

    Raises:
        SetupError: the live indices were made for something else (``check_layout``). Nothing is
            changed then.
    """
    placement = placement_of(settings)
    live = check_layout(service, placement, layout)
    changes = []
    with translated():
        for name, apply in _stale_templates(service, settings, layout):
            apply()
            changes.append(name)

        def create(index: str) -> list[str]:
            return _create(service, placement.index(index), by_template=index == "audit")

        missing = [index for index in placement.shared if placement.index(index) not in live]
        with ThreadPoolExecutor(len(placement.shared)) as pool:  # each waits for its shards
            for made in pool.map(create, missing):
                changes += made
        for index in detached(service, placement):
            service.indices.put_settings(
                index=index, settings={"index.final_pipeline": f"{placement.prefix}-stamp"}
            )
            changes.append(f"pipeline of index {index}")
    return changes


def install_user(service: Elasticsearch, placement: Placement, routing: str) -> None:
    """Make the index of a user's own, where each has one and this user has none yet."""
    if placement.by_index:
        with translated():
            name = placement.of_user(routing)
            if not service.indices.exists_alias(name=name):
                _create(service, name)


def drift(service: Elasticsearch, settings: Settings, layout: Layout) -> list[str]:
    """Names of templates and pipelines that differ from what this version installs."""
    with translated():
        return [name for name, _ in _stale_templates(service, settings, layout)]


def detached(service: Elasticsearch, placement: Placement) -> list[str]:
    """Live indices of memories with an owner whose writes the cluster does not stamp."""
    if placement.isolation == INSECURE:
        return []
    with translated():
        found = service.indices.get_settings(
            index=[f"{name}-*" for name in placement.everybody([*OWNED, "usage", "state"])],
            ignore_unavailable=True,
            filter_path="*.settings.index.final_pipeline,*.settings.index.uuid",
        ).body
    stamp = f"{placement.prefix}-stamp"
    return sorted(
        index
        for index, body in found.items()
        if body["settings"]["index"].get("final_pipeline") != stamp
    )


def _stale_templates(
    service: Elasticsearch, settings: Settings, layout: Layout
) -> list[tuple[str, Callable[[], Any]]]:
    """What is missing or differs, in the order of installation, each with its remedy."""
    rendered = render(settings, layout)
    placement = placement_of(settings)
    stale: list[tuple[str, Callable[[], Any]]] = []
    prefix = settings.prefix
    installed = _listed(service.cluster.get_component_template, "component_template", prefix)
    for component in COMPONENTS:
        name, body = f"{prefix}-{component}", rendered[f"component-{component}"]
        if differs(installed.get(name, []), body):
            put = partial(service.cluster.put_component_template, name=name, **body)
            stale.append((f"component template {name}", put))
    if "pipeline-stamp" in rendered:
        name, body = f"{prefix}-stamp", rendered["pipeline-stamp"]
        found = _or_empty(service.ingest.get_pipeline, id=name).get(name, {})
        if {key: found.get(key) for key in ("description", "processors")} != body:
            put = partial(service.ingest.put_pipeline, id=name, **body)
            stale.append((f"pipeline {name}", put))
    installed = _listed(service.indices.get_index_template, "index_template", prefix)
    for index in index_names(placement):
        name, body = alias(prefix, index), rendered[index]
        if differs(installed.get(name, []), body):
            put = partial(service.indices.put_index_template, name=name, **body)
            stale.append((f"index template {name}", put))
    return stale


def _listed(get: Callable[..., Any], what: str, prefix: str) -> dict[str, list[dict[str, Any]]]:
    """The templates of a prefix by name, in one request."""
    found = _or_empty(get, name=f"{prefix}-*")
    return {entry["name"]: [entry[what]] for entry in found.get(f"{what}s", [])}


def _create(service: Elasticsearch, name: str, *, by_template: bool = False) -> list[str]:
    """Make the first index of an alias, or the alias if only that is missing; says which.

    Args:
        by_template: the alias comes from the template. Who may call the alias API may remove
            whole indices by it, which the service must not do to the audit trail.
    """
    index = f"{name}-{FIRST_VERSION}"
    aliases = None if by_template else {name: {"is_write_index": True}}
    try:
        service.indices.create(index=index, aliases=aliases)
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


def live_layouts(service: Elasticsearch, placement: Placement) -> dict[str, dict[str, Any]]:
    """``_meta`` of each live index, by alias; empty when nothing is installed. Users' own
    indices are made from a template of the same ``_meta`` and left out."""
    names = {placement.index(name) for name in placement.shared}
    with translated():
        mappings = service.indices.get_mapping(
            index=sorted(names), ignore_unavailable=True, filter_path="*.mappings._meta"
        )
        aliases = service.indices.get_alias(
            index=[f"{placement.prefix}-*"], ignore_unavailable=True, filter_path="*.aliases"
        )
    return {
        name: mappings.body.get(index, {}).get("mappings", {}).get("_meta", {}).get("memory_es", {})
        for index, body in aliases.body.items()
        for name in body["aliases"].keys() & names
    }


def check_layout(
    service: Elasticsearch, placement: Placement, layout: Layout
) -> dict[str, dict[str, Any]]:
    """Compare the live indices with what is configured; returns ``live_layouts``.

    Raises:
        SetupError: ``isolation_mismatch``, ``model_mismatch``, ``languages_changed``,
            ``secret_mismatch`` or ``schema_mismatch``.
    """
    live = live_layouts(service, placement)
    for name, meta in live.items():
        require_fit(name, meta, layout)
    return live


def require_fit(name: str, meta: dict[str, Any], layout: Layout) -> None:
    """Compare what an index was made for with what is configured. Raises as ``check_layout``."""
    wanted = layout.meta()
    if meta.get("schema_version") != SCHEMA_VERSION or not wanted.keys() <= meta.keys():
        raise SetupError(
            f"the index behind {name} has schema version {meta.get('schema_version')},"
            f" this version of memory_es has {SCHEMA_VERSION}",
            code="schema_mismatch",
            remedy="Use another MEMORY_ES_PREFIX, or the version that made the index",
        )
    if meta["isolation"] != layout.isolation:
        raise SetupError(
            f"the index behind {name} was made for isolation={meta['isolation']}, configured is"
            f" {layout.isolation}",
            code="isolation_mismatch",
            remedy=f"Set MEMORY_ES_ISOLATION={meta['isolation']}, or use another MEMORY_ES_PREFIX",
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
    if layout.secret_check not in (None, meta["secret_check"]):
        raise SetupError(
            f"the index behind {name} was made with another deployment secret",
            code="secret_mismatch",
            remedy="Set MEMORY_ES_SECRET to that deployment's secret",
        )


def require_fit_for_user(
    client: Elasticsearch, placement: Placement, layout: Layout, routing: str
) -> None:
    """The same check with a user's own key, which sees that user's indices alone.

    Raises:
        SetupError: they do not exist, or were made for something else.
    """
    name = placement.index(Kind.SEMANTIC, routing)
    try:
        with translated():
            who = client.security.authenticate()
            if who["authentication_type"] != "api_key":  # nobody looked at the key
                raise SetupError(
                    "security is off on this cluster, or it lets everybody in",
                    code="security_off",
                    remedy="Ask whoever runs it; nothing would keep users apart",
                )
            found = client.indices.get_mapping(index=name, filter_path="*.mappings._meta").body
    except AccessDenied as error:
        if error.code != "forbidden":
            raise
        raise SetupError(
            f"this key does not open {name}",
            code="isolation_mismatch",
            remedy="Set MEMORY_ES_ISOLATION and MEMORY_ES_PREFIX as in the deployment that made it",
        ) from None
    for body in found.values():
        require_fit(name, body["mappings"].get("_meta", {}).get("memory_es", {}), layout)


def counts(service: Elasticsearch, placement: Placement) -> dict[str, int | None]:
    """Documents by kind, of all users; None where there is no index yet.

    Raises:
        Unavailable: a shard failed: the counts would be too small.
    """
    found: dict[str, int | None] = {}
    with translated():
        for kind in Kind:
            try:
                answer = service.count(
                    index=placement.everybody([kind]), query={"term": {"kind": str(kind)}}
                )
            except elasticsearch.NotFoundError:
                found[str(kind)] = None
                continue
            if answer["_shards"]["failed"]:
                raise Unavailable("not every shard could be counted", code="partial")
            found[str(kind)] = answer["count"]
    return found


def require_installed(service: Elasticsearch, settings: Settings, layout: Layout) -> None:
    """Check that every index is there and fits, and that the cluster stamps what is written.

    Raises:
        SetupError: one does not, or a template or pipeline is missing or altered.
    """
    require_complete(service, placement_of(settings), layout)
    require_stamped(service, settings, layout)


def require_complete(service: Elasticsearch, placement: Placement, layout: Layout) -> None:
    """Check that every index is there and fits. Raises SetupError."""
    live = check_layout(service, placement, layout)
    missing = [name for index in placement.shared if (name := placement.index(index)) not in live]
    if missing:
        raise SetupError(
            f"the memory indices do not exist here (missing: {', '.join(missing)})",
            code="not_initialised",
            remedy="Run `memory-es init`",
        )


def require_stamped(service: Elasticsearch, settings: Settings, layout: Layout) -> None:
    """Check that templates and pipeline are as installed and attached.

    Raises:
        SetupError: ``templates_altered`` or ``pipeline_detached``.
    """
    stale = drift(service, settings, layout)
    if stale:
        raise SetupError(
            f"missing, altered or of another version: {', '.join(stale)}",
            code="templates_altered",
            remedy="Run `memory-es init`, and find out who changed it",
        )
    loose = detached(service, placement_of(settings))
    if loose:
        raise SetupError(
            f"the pipeline that stamps the owner is detached from {', '.join(loose)}",
            code="pipeline_detached",
            remedy="Run `memory-es init`; until then anybody's writes could name any owner",
        )


def remove(service: Elasticsearch, placement: Placement) -> None:
    """Delete everything of one prefix: indices, templates, pipeline. For tests and evaluations."""
    with translated():
        # by exact names: a wildcard deletion may be forbidden, and could match too much
        indices = list(live_indices(service, placement))
        for start in range(0, len(indices), 50):
            service.indices.delete(index=indices[start : start + 50], ignore_unavailable=True)
        for index in index_names(placement):
            service.options(ignore_status=404).indices.delete_index_template(
                name=alias(placement.prefix, index)
            )
        for component in COMPONENTS:
            service.options(ignore_status=404).cluster.delete_component_template(
                name=f"{placement.prefix}-{component}"
            )
        service.options(ignore_status=404).ingest.delete_pipeline(id=f"{placement.prefix}-stamp")


def live_indices(service: Elasticsearch, placement: Placement) -> dict[str, Any]:
    """Concrete indices of a deployment with their aliases."""
    names = [*placement.shared, *([f"{USER}-*"] if placement.by_index else [])]
    found: dict[str, Any] = service.indices.get_alias(
        index=[f"{alias(placement.prefix, name)}-*" for name in names], ignore_unavailable=True
    ).body
    return found
