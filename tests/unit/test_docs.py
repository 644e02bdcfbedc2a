"""The documents' generated parts are what the code says now."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from memory_es import corpus
from memory_es.config import Settings
from memory_es.corpus import Question
from memory_es.schema import NEW_MODELS
from scripts import docs

FILES = sorted(docs.DOCS.glob("*.md"))
#: Sub-fields that say by their name what they are, and the pipeline's own nesting.
_ANALYZED = re.compile(r"\.(standard|exact|english)`$|^`owner\.api_key")
WRITTEN = (
    *FILES,
    *(docs.DOCS / "decisions").glob("*.md"),
    *docs.DOCS.parent.glob("*.md"),
    *docs.DOCS.parent.glob("evals/*/*.md"),
)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_generated_parts_are_those_of_the_code(file: Path) -> None:
    text = file.read_text("utf-8")
    assert text == docs.filled(text), "run `python -m scripts.docs` and commit what it writes"


def test_each_part_stands_in_a_document() -> None:
    found = {name for file in FILES for _, name, _ in docs._PART.findall(file.read_text("utf-8"))}
    assert found == set(docs.PARTS)


def test_a_part_that_is_out_of_date_is_made_anew() -> None:
    old = "# By hand\n<!-- generated: settings -->\nstale\n<!-- end -->\nby hand too\n"
    new = docs.filled(old)
    assert "stale" not in new
    assert new.startswith("# By hand\n<!-- generated: settings -->\n")
    assert new.endswith("<!-- end -->\nby hand too\n")
    for name in Settings.model_fields:
        assert f"{name.upper()}`" in new


def test_every_field_that_is_stored_is_explained() -> None:
    """A field without a comment stops the generator, or leaves its row without a meaning."""
    for line in docs.model().splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) == 3 and cells[0].startswith("`") and not _ANALYZED.search(cells[0]):
            assert cells[2], line


def test_links_between_documents_lead_somewhere() -> None:
    for file in WRITTEN:
        for link in re.findall(r"\]\((?!https?:)([^)#]+)", file.read_text("utf-8")):
            assert (file.parent / link).exists(), f"{file.name}: {link}"


@pytest.mark.parametrize("file", WRITTEN, ids=lambda file: file.name)
def test_no_document_has_a_figure_left_to_fill_in(file: Path) -> None:
    assert not re.findall(r"\{[A-Z]+\}|TODO|TBD", file.read_text("utf-8"))


def test_the_corpus_format_names_every_key_that_a_line_may_have() -> None:
    text = (docs.DOCS / "corpus-format.md").read_text("utf-8")
    lines, questions = text.split("## queries.jsonl")
    first_cells = re.findall(r"^\| (.*?) \|", lines, re.MULTILINE)
    named = set(re.findall(r"`(\w+)`", " ".join(first_cells)))
    fields = {field for model in NEW_MODELS.values() for field in model.model_fields}
    keys = {corpus._KEYS.get(field, field) for field in fields} | corpus._APART
    assert named == keys - {"image_query"}  # explained below the table
    of_questions = " ".join(re.findall(r"^\| (.*?) \|", questions, re.MULTILINE))
    assert set(re.findall(r"`(\w+)`", of_questions)) == set(Question.model_fields)
