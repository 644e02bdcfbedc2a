"""The labelled pairs of ``evals/duplicates``: as many and as balanced as their README says."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

import pytest

from memory_es import resources

FOLDER = resources.folder("evals") / "duplicates"
SAME = {"surface", "article", "form", "order", "paraphrase"}
DIFFERENT = {"word", "number", "negation", "name", "role", "scope", "detail"}


@pytest.fixture(scope="module")
def pairs() -> list[dict[str, Any]]:
    lines = (FOLDER / "pairs.jsonl").read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines]


def test_the_counts_are_those_of_the_readme(pairs: list[dict[str, Any]]) -> None:
    counts = Counter((pair["language"], pair["same"]) for pair in pairs)
    rows = re.findall(
        r"^\| (\w+) \| (\d+) \| (\d+) \| (\d+) \|$",
        (FOLDER / "README.md").read_text("utf-8"),
        re.MULTILINE,
    )
    assert len(rows) == 4
    for language, *figures in rows:
        same, different = counts[language, True], counts[language, False]
        assert [str(same + different), str(same), str(different)] == figures
    assert sum(counts.values()) == sum(int(row[1]) for row in rows)


def test_both_parts_have_every_kind_of_pair(pairs: list[dict[str, Any]]) -> None:
    for part in ("dev", "test"):
        kinds = {pair["difference"] for pair in pairs if pair["part"] == part}
        assert kinds == SAME | DIFFERENT
    assert {pair["part"] for pair in pairs} == {"dev", "test"}


def test_a_label_agrees_with_what_a_pair_differs_in(pairs: list[dict[str, Any]]) -> None:
    for pair in pairs:
        assert pair["difference"] in (SAME if pair["same"] else DIFFERENT), pair["id"]


def test_no_pair_is_there_twice_and_none_is_of_two_equal_texts(pairs: list[dict[str, Any]]) -> None:
    assert len({pair["id"] for pair in pairs}) == len(pairs)
    assert all(pair["a"] != pair["b"] and pair["a"].strip() and pair["b"].strip() for pair in pairs)
    texts = Counter(frozenset((pair["a"], pair["b"])) for pair in pairs)
    assert max(texts.values()) == 1
