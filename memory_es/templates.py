"""Index templates and the pipeline as they should be, and whether installed ones are. No I/O but
reading the package's own files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memory_es import resources
from memory_es.config import INSECURE, Isolation, Settings
from memory_es.errors import InvalidInput
from memory_es.placement import Placement
from memory_es.schema import OWNED, SCHEMA_VERSION

#: Component templates, in the order of installation.
COMPONENTS = ("owner", "shared")
#: The template of a user's own index, where each has one.
USER = "user"
#: Better Binary Quantization packs 8 dimensions a byte and wants at least 64 (Elasticsearch docs).
_BBQ_MIN_DIMS = 64


@dataclass(frozen=True)
class Layout:
    """What the indices of a deployment are made for. Stored in each index's ``_meta``: a live
    index made for another model, other languages or another isolation is refused, never silently
    mixed.

    ``secret_check`` is None for an agent that does not have the deployment's secret.
    """

    isolation: Isolation
    languages: tuple[str, ...]
    embedding_model: str
    dims: int
    secret_check: str | None

    def meta(self) -> dict[str, Any]:
        """The form in which it is stored."""
        return {
            "schema_version": SCHEMA_VERSION,
            "isolation": self.isolation,
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
    """Every template and the pipeline that this deployment uses with its placeholders filled, by
    file name (no suffix).

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
    placement = Placement(settings.prefix, layout.isolation)
    if placement.by_index:
        rendered[USER] = _user_template(rendered, settings.prefix)
        for kind in OWNED:
            del rendered[kind]
    if layout.isolation == INSECURE:  # no security, no identity to stamp
        del rendered["pipeline-stamp"]
        del rendered["component-owner"]["template"]["settings"]["index"]["final_pipeline"]
    for body in rendered.values():
        if "template" in body:
            digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
            body["_meta"] = {"memory_es": {"hash": digest[:16]}}
    for name in index_names(placement):
        rendered[name]["template"]["mappings"]["_meta"] = {"memory_es": layout.meta()}
    return rendered


def index_names(placement: Placement) -> tuple[str, ...]:
    """Names of the index templates of a deployment."""
    return (*placement.shared, *((USER,) if placement.by_index else ()))


def _user_template(rendered: Mapping[str, dict[str, Any]], prefix: str) -> dict[str, Any]:
    """One index for all kinds of one user: the fields of each kind, on one shard."""
    body: dict[str, Any] = json.loads(json.dumps(rendered[OWNED[0]]))
    for kind in OWNED[1:]:
        _merge(body["template"]["mappings"], rendered[kind]["template"]["mappings"])
    body["index_patterns"] = [f"{prefix}-{USER}-*"]
    body["template"]["settings"] = {"index": {"number_of_shards": 1}}
    return body


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
                filled[_filled_text(key, values)] = _fill(item, values, languages)
        return filled
    if isinstance(node, list):
        return [_fill(item, values, languages) for item in node]
    if isinstance(node, str):
        if node in values:
            return values[node]  # keeps numbers numbers
        return _filled_text(node, values)
    return node


def _filled_text(text: str, values: Mapping[str, Any]) -> str:
    for placeholder, value in values.items():
        text = text.replace(placeholder, str(value))
    return text


def _merge(target: dict[str, Any], extra: Mapping[str, Any]) -> None:
    for key, value in extra.items():
        if isinstance(value, Mapping):
            target.setdefault(key, {}).update(value)


def differs(before: list[dict[str, Any]], body: dict[str, Any]) -> bool:
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
