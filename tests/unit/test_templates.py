"""Index templates against the models of what is stored: field by field, both ways, all depths."""

from __future__ import annotations

import json
import types
from collections.abc import Iterator
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal, Union, get_args, get_origin

import pytest
from pydantic import BaseModel

from memory_es import resources
from memory_es.audit import AuditEvent
from memory_es.config import Isolation, Settings
from memory_es.documents import DOCUMENT_MODELS, DateRange, StateRow, UsageRow
from memory_es.errors import InvalidInput
from memory_es.placement import SERVING, Placement
from memory_es.schema import OWNED, SCHEMA_VERSION
from memory_es.templates import (
    Layout,
    available_languages,
    index_names,
    render,
    secret_check,
)

LAYOUT = Layout("dls", ("english", "thai"), "some-model", 384, "0123456789abcdef")
INDICES = index_names(Placement("unit", "dls"))
MODELS: dict[str, type[BaseModel]] = {
    **{str(kind): model for kind, model in DOCUMENT_MODELS.items()},
    "usage": UsageRow,
    "state": StateRow,
    "audit": AuditEvent,
}
#: What Elasticsearch fills itself: the target of ``copy_to`` and the short name of the owner.
DERIVED = {"content": "text", "owner_id": "alias"}
#: Types of a mapping that may hold a type of a model.
FITTING = {
    str: {"keyword", "text"},
    bool: {"boolean"},
    int: {"integer", "long"},
    float: {"float"},
    datetime: {"date"},
    DateRange: {"date_range"},
    dict: {"object", "flattened"},
    list: {"dense_vector"},
}


def rendered(**settings: Any) -> dict[str, dict[str, Any]]:
    isolation = settings.get("isolation", LAYOUT.isolation)
    layout = Layout(
        isolation,
        settings.pop("languages", LAYOUT.languages),
        LAYOUT.embedding_model,
        settings.pop("dims", LAYOUT.dims),
        LAYOUT.secret_check,
    )
    return render(Settings.load(**({"prefix": "unit"} | settings)), layout)


def properties(index: str) -> dict[str, Any]:
    """The fields of an index: its own and those of the component templates that it names."""
    templates = rendered()
    found: dict[str, Any] = {}
    for component in templates[index].get("composed_of", ()):
        name = component.removeprefix("unit-")
        found |= templates[f"component-{name}"]["template"]["mappings"]["properties"]
    found |= templates[index]["template"]["mappings"]["properties"]
    return found


def inner(annotation: Any) -> Any:
    """The type of one value: without None, of a tuple's items, of a literal's values."""
    origin = get_origin(annotation)
    if origin is tuple:
        return inner(get_args(annotation)[0])
    if origin is Literal:
        return type(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        several = [part for part in get_args(annotation) if part is not type(None)]
        vectors = [part for part in several if get_origin(part) is list]
        return inner((vectors or several)[0])  # a vector comes as base64 or as numbers
    return origin or annotation


def differences(model: type[BaseModel], fields: dict[str, Any], path: str = "") -> Iterator[str]:
    """What a model and a mapping do not have in common, at any depth."""
    known = set(model.model_fields)
    derived = set() if path else {name for name in DERIVED if name in fields}
    yield from (f"{path}{name}: not in the template" for name in known - set(fields))
    yield from (f"{path}{name}: not in the model" for name in set(fields) - known - derived)
    for name in known & set(fields):
        mapping, kind = fields[name], inner(model.model_fields[name].annotation)
        if isinstance(kind, type) and issubclass(kind, BaseModel) and kind is not DateRange:
            if mapping["type"] != "nested" or mapping["dynamic"] != "strict":
                yield f"{path}{name}: objects are nested and strict"
            yield from differences(kind, mapping["properties"], f"{path}{name}.")
            continue
        if isinstance(kind, type) and issubclass(kind, StrEnum):
            kind = str
        if mapping["type"] not in FITTING[kind]:
            yield f"{path}{name}: {kind} in the model, {mapping['type']} in the template"


@pytest.mark.parametrize("index", INDICES)
def test_every_field_of_the_model_is_mapped_and_every_mapped_field_is_in_the_model(
    index: str,
) -> None:
    assert sorted(differences(MODELS[index], properties(index))) == []


def test_the_comparison_itself_notices_a_field_on_either_side_at_any_depth() -> None:
    fields = properties("procedural")
    del fields["trigger"]
    fields["extra"] = {"type": "keyword"}
    fields["version"] = {"type": "date"}
    fields["steps"] = fields["steps"] | {"properties": {"texts": {"type": "text"}}}
    assert sorted(differences(MODELS["procedural"], fields)) == [
        "extra: not in the model",
        "steps.text: not in the template",
        "steps.texts: not in the model",
        "trigger: not in the template",
        f"version: {int} in the model, date in the template",
    ]


def test_the_models_cover_every_index() -> None:
    assert set(MODELS) == set(INDICES)


@pytest.mark.parametrize("index", INDICES)
def test_mappings_are_strict_and_name_what_they_were_made_for(index: str) -> None:
    mappings = rendered()[index]["template"]["mappings"]
    assert mappings["dynamic"] == "strict"
    assert mappings["_meta"] == {
        "memory_es": {
            "schema_version": SCHEMA_VERSION,
            "isolation": "dls",
            "languages": ["english", "thai"],
            "embedding_model": "some-model",
            "dims": 384,
            "secret_check": "0123456789abcdef",
        }
    }


@pytest.mark.parametrize("index", [name for name in INDICES if name not in ("catalog", "audit")])
def test_everything_owned_is_stamped_and_sorted_by_its_owner(index: str) -> None:
    templates = rendered(shards=3)
    assert "unit-owner" in templates[index]["composed_of"]
    settings = templates["component-owner"]["template"]["settings"]["index"]
    assert settings["final_pipeline"] == "unit-stamp"
    assert settings["number_of_shards"] == 3
    assert settings["sort.field"] == ["owner.api_key.metadata.owner_id"]
    owner = properties(index)["owner"]
    while "properties" in owner:
        assert owner["dynamic"] is False
        owner = next(iter(owner["properties"].values()))
    # by the doc values alone a key's role sees that a document has no second owner
    assert owner == {"type": "keyword", "fields": {"values": {"type": "keyword", "index": False}}}


EVERY_LANGUAGE = tuple(available_languages())


def test_an_index_of_ones_own_has_the_fields_of_every_kind_on_one_shard() -> None:
    templates = rendered(isolation="index", shards=3, languages=EVERY_LANGUAGE)
    kinds = rendered(languages=EVERY_LANGUAGE)
    own = templates["user"]
    assert own["index_patterns"] == ["unit-user-*"]
    assert own["template"]["settings"] == {"index": {"number_of_shards": 1}}
    assert own["composed_of"] == ["unit-shared", "unit-owner"]
    assert own["template"]["mappings"]["_meta"]["memory_es"]["isolation"] == "index"
    fields = own["template"]["mappings"]["properties"]
    for kind in OWNED:
        assert kind not in templates
        for name, mapping in kinds[kind]["template"]["mappings"]["properties"].items():
            assert fields[name] == mapping
    components = [templates[f"component-{name}"] for name in ("shared", "owner")]
    known = [fields, *(part["template"]["mappings"]["properties"] for part in components)]
    limit = components[0]["template"]["settings"]["index"]["mapping.total_fields.limit"]
    assert len(EVERY_LANGUAGE) == 7
    assert sum(_fields_below(part) for part in known) < limit == 200


def _fields_below(properties: dict[str, Any]) -> int:
    return sum(
        1 + len(field.get("fields", {})) + _fields_below(field.get("properties", {}))
        for field in properties.values()
    )


def test_without_security_nothing_is_stamped() -> None:
    templates = rendered(isolation="insecure-single-user")
    assert "pipeline-stamp" not in templates
    settings = templates["component-owner"]["template"]["settings"]["index"]
    assert "final_pipeline" not in settings


@pytest.mark.parametrize("isolation", ["dls", "index", "insecure-single-user"])
def test_what_serves_is_there_whatever_keeps_users_apart(isolation: Isolation) -> None:
    names = index_names(Placement("unit", isolation))
    assert {"catalog", *SERVING} <= set(names) <= set(rendered(isolation=isolation))
    assert ("user" in names) == (isolation == "index")


def test_the_catalog_has_no_owner() -> None:
    assert "unit-owner" not in rendered()["catalog"]["composed_of"]


def test_each_language_gives_its_sub_field_and_its_analyzers() -> None:
    templates = rendered()
    for field in (properties("semantic")["content"], properties("episodic")["content_context"]):
        assert set(field["fields"]) == {"standard", "exact", "english", "thai"}
        assert field["fields"]["thai"]["analyzer"] == "memory_thai"
        assert field["fields"]["thai"]["search_analyzer"] == "memory_thai_search"
    analyzers = templates["component-shared"]["template"]["settings"]["analysis"]["analyzer"]
    wanted = {f"memory_{name}{end}" for name in ("english", "thai") for end in ("", "_search")}
    assert wanted | {"memory_exact"} == set(analyzers)


@pytest.mark.parametrize("language", available_languages())
def test_every_language_file_brings_its_two_analyzers_and_the_filters_that_they_name(
    language: str,
) -> None:
    templates = rendered(languages=(language,))
    analysis = templates["component-shared"]["template"]["settings"]["analysis"]
    for analyzer in (f"memory_{language}", f"memory_{language}_search"):
        for name in analysis["analyzer"][analyzer]["filter"]:
            if name.startswith("memory_"):
                assert name in analysis["filter"], f"{analyzer} names {name}, which is nowhere"


def test_an_unknown_language_is_refused_and_the_known_ones_are_named() -> None:
    with pytest.raises(InvalidInput, match=r"MEMORY_ES_LANGUAGES.*klingon.*english.*thai"):
        rendered(languages=("klingon",))


def test_texts_are_copied_into_what_bm25_reads() -> None:
    copied = {
        index: {
            path
            for path, mapping in _walk(properties(index))
            if mapping.get("copy_to") == "content"
        }
        for index in ("episodic", "semantic", "procedural", "catalog")
    }
    shared = {"text", "tags"}
    assert copied == {
        "episodic": shared,
        "semantic": shared,
        "procedural": shared | {"name", "trigger", "description", "steps.text"},
        "catalog": shared | {"title"},
    }


def test_vectors_have_the_models_dimensions_and_are_flat_for_a_user_hnsw_for_the_catalog() -> None:
    for index, wanted in (("episodic", "bbq_flat"), ("catalog", "bbq_hnsw")):
        vectors = [m for _, m in _walk(properties(index)) if m.get("type") == "dense_vector"]
        assert len(vectors) == {"episodic": 3, "catalog": 2}[index]
        assert {vector["dims"] for vector in vectors} == {384}
        assert {vector["index_options"]["type"] for vector in vectors} == {wanted}


def test_a_model_too_small_for_bbq_gets_plain_vectors() -> None:
    templates = rendered(dims=32)
    shared = templates["component-shared"]["template"]["mappings"]["properties"]
    assert shared["embedding"]["index_options"] == {"type": "flat"}
    catalog = templates["catalog"]["template"]["mappings"]["properties"]
    assert catalog["embedding"]["index_options"] == {"type": "hnsw"}


def test_metadata_cannot_explode_the_mapping() -> None:
    for kind in DOCUMENT_MODELS:
        assert properties(kind)["metadata"] == {"type": "flattened", "ignore_above": 8191}


def test_no_placeholder_is_left_and_the_prefix_names_everything() -> None:
    text = json.dumps(rendered(prefix="other"))
    assert "{{" not in text
    assert "unit" not in text
    for index in INDICES:
        assert rendered(prefix="other")[index]["index_patterns"] == [f"other-{index}-*"]


def test_a_change_of_a_setting_changes_the_hash_of_what_it_touches() -> None:
    before, after = rendered(shards=3), rendered(shards=5)
    changed = {
        name for name, body in before.items() if body.get("_meta") != after[name].get("_meta")
    }
    assert changed == {"component-owner"}


def test_templates_are_readable_json_files() -> None:
    folder = resources.folder("index_templates")
    for path in folder.rglob("*.json"):
        text = path.read_text("utf-8")
        assert len(text.splitlines()) > 3, f"{path.name} is one long line"
        json.loads(text)


def test_the_secret_check_tells_secrets_apart_without_telling_them() -> None:
    check = secret_check("correct horse battery staple")
    assert check == secret_check("correct horse battery staple")
    assert check != secret_check("correct horse battery stable")
    assert not {"correct", "horse", "battery", "staple"} & set(check.split())
    assert len(check) == 16


def _walk(fields: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    for name, mapping in fields.items():
        yield f"{path}{name}", mapping
        yield from _walk(mapping.get("properties", {}), f"{path}{name}.")
