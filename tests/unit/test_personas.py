"""The suite of three lives: frozen, and as hard as its README says."""

from __future__ import annotations

import hashlib
import re
import statistics
from collections import Counter, defaultdict
from datetime import timedelta

import pytest

from memory_es.errors import InvalidInput
from memory_es.schema import OWNED, Kind
from memory_es.suites import Suite, named_suite
from scripts.overlap import overlap, overlaps

README = "README.md"


@pytest.fixture(scope="module")
def personas() -> Suite:
    return named_suite("personas")


def readme() -> str:
    from memory_es import resources

    return (resources.folder("evals") / "personas" / README).read_text("utf-8")


def test_the_files_are_those_that_were_frozen() -> None:
    from memory_es import resources

    frozen = re.findall(r"^([0-9a-f]{64})  (\S+)$", readme(), re.MULTILINE)
    assert [name for _, name in frozen] == ["corpus.jsonl", "queries.jsonl"]
    for digest, name in frozen:
        file = resources.folder("evals") / "personas" / name
        assert hashlib.sha256(file.read_bytes()).hexdigest() == digest, name


def test_each_user_has_a_life_of_every_kind(personas: Suite) -> None:
    assert sorted(personas.users) == ["anong", "davi", "rhona"]
    counts = Counter((entry.user, entry.memory.kind) for entry in personas.entries)
    assert counts[None, Kind.CATALOG] == 60
    for user in personas.users:
        own = [entry.memory for entry in personas.entries if entry.user == user]
        assert len(own) == 250
        assert all(counts[user, kind] >= 18 for kind in OWNED)
        times = [memory.event_time for memory in own if memory.event_time]
        assert max(times) - min(times) > timedelta(days=18 * 30)
    texts = Counter((entry.user, entry.memory.embedded_text) for entry in personas.entries)
    assert max(texts.values()) == 1


def test_the_questions_share_few_words_with_their_answers(personas: Suite) -> None:
    assert len(personas.questions) == 252
    asked = Counter(question.category for question in personas.questions)
    assert len(asked) == 10
    assert min(asked.values()) >= 24
    found = defaultdict(list)
    for question, share in overlaps(personas):
        found[question.category].append(share)
        found["all with an answer"].append(share)
    assert statistics.median(found["all with an answer"]) <= 0.25
    for category, shares in found.items():  # the table of the README
        row = f"| {category} | {len(shares)} | {statistics.median(shares):.2f} |"
        assert row in readme()


def test_overlap_is_the_share_of_content_words() -> None:
    assert overlap("Where do the sheep graze?", ["sheep graze", "the cows"]) == 0.5
    assert overlap("Is it?", ["it is"]) == 0


def test_a_suite_may_be_limited_to_users(personas: Suite) -> None:
    dev = personas.limited_to(["anong"])
    assert dev.users == ["anong"]
    assert (len(dev.entries), len(dev.questions)) == (310, 84)
    assert dev.fingerprint != personas.fingerprint
    assert personas.limited_to(["davi", "rhona"]).users == ["rhona", "davi"]
    with pytest.raises(InvalidInput, match=r"has no 'bob'\. Use rhona, davi, anong"):
        personas.limited_to(["anong", "bob"])
