"""`memory-es index` on the real node: what a file of memories becomes, and what its bad lines."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from memory_es import Memory, Platform
from memory_es.cli import app
from memory_es.errors import InvalidInput, MemoryEsError, NotFound
from memory_es.placement import alias
from memory_es.text import owner_id
from tests.backstage import admin_of


@pytest.fixture(scope="module")
def deployment(new_platform: Callable[..., Platform]) -> Platform:
    """Of its own: the catalog is everybody's."""
    return new_platform()


@pytest.fixture
def owner(deployment: Platform, user: str) -> Memory:
    deployment.add_user(user)
    return deployment.for_user(user)


@pytest.fixture
def index(deployment: Platform) -> Callable[[Path], Result]:
    """Runs the command in this process, with the settings of the deployment."""
    settings = deployment.settings
    environment = {
        "MEMORY_ES_STATE_DIR": str(settings.state_dir),
        "MEMORY_ES_PREFIX": settings.prefix,
    }

    def run(file: Path) -> Result:
        return CliRunner().invoke(app, ["index", str(file), "--json"], env=environment)

    return run


@pytest.fixture
def corpus(tmp_path: Path) -> Callable[..., Path]:
    """Writes lines (objects, strings, bytes) into a file."""

    def write(*lines: dict[str, Any] | str | bytes, encoding: str = "utf-8") -> Path:
        path = tmp_path / "corpus.jsonl"
        raw = [
            line
            if isinstance(line, bytes)
            else (line if isinstance(line, str) else json.dumps(line)).encode(encoding)
            for line in lines
        ]
        path.write_bytes(b"\n".join(raw) + b"\n")
        return path

    return write


def report(result: Result) -> dict[str, Any]:
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


def documents(deployment: Platform, user: str | None, kind: str = "episodic") -> dict[str, Any]:
    """Everything of one user in an index, by corpus id, with its sequence number."""
    index = alias(deployment.settings.prefix, kind)
    es = admin_of(deployment)
    es.indices.refresh(index=index)
    query: dict[str, Any] = {"term": {"owner_id": owner_id(user)}} if user else {"match_all": {}}
    answer = es.search(index=index, query=query, size=1_000, seq_no_primary_term=True)
    return {
        hit["_source"]["external_id"]: hit["_source"] | {"_seq_no": hit["_seq_no"]}
        for hit in answer["hits"]["hits"]
    }


def test_every_kind_of_line_becomes_a_memory_of_its_user(
    deployment: Platform,
    owner: Memory,
    index: Callable[[Path], Result],
    corpus: Callable[..., Path],
) -> None:
    user = owner.user_id
    file = corpus(
        {
            "id": "t1",
            "user": user,
            "text": "Do you eat fish?",
            "session": "s1",
            "turn": 0,
            "speaker": "Ines",
        },
        {
            "id": "t2",
            "user": user,
            "text": "Never!",
            "session": "s1",
            "turn": 1,
            "speaker": "Rowan",
            "timestamp": "2026-03-04T23:30:00",
            "mood": "sure",
            "image_caption": "a crossed-out fish",
            "image_query": "vegetarian protest sign",
        },
        "",
        {"id": "f1", "user": user, "kind": "semantic", "text": "Rowan is vegetarian"},
        {
            "id": "p1",
            "user": user,
            "kind": "procedural",
            "name": "Brew tea",
            "text": "how to brew",
            "steps": ["boil", "wait"],
        },
        {"id": "c1", "kind": "catalog", "title": "Fish", "text": "Fish have fins"},
    )
    answer = report(index(file))
    assert (answer["created"], answer["duplicate"], answer["failed"]) == (5, 0, 0)
    assert answer["errors"] == []
    turns = documents(deployment, user)
    second = turns["t2"]
    assert second["text"] == "Never! (a crossed-out fish)"
    assert second["event_time"].startswith("2026-03-04T23:30:00")
    assert second["metadata"] == {"mood": "sure"}
    assert second["content_context"] == (
        "Ines: Do you eat fish?\nRowan: Never! (a crossed-out fish)"
    )
    assert set(turns) == {"t1", "t2"}
    assert set(documents(deployment, user, "semantic")) == {"f1"}
    assert set(documents(deployment, user, "procedural")) == {"p1"}
    assert documents(deployment, None, "catalog")["c1"]["title"] == "Fish"
    assert owner.recall("Rowan is vegetarian").hits[0].fields["external_id"] == "f1"


def test_a_second_run_writes_nothing_and_an_interrupted_one_is_completed(
    deployment: Platform,
    owner: Memory,
    index: Callable[[Path], Result],
    corpus: Callable[..., Path],
) -> None:
    lines: list[dict[str, Any]] = [
        {"id": f"m{n}", "user": owner.user_id, "text": f"message {n}", "session": "s"}
        for n in range(12)
    ]
    report(index(corpus(*lines[:5])))
    begun = documents(deployment, owner.user_id)
    assert len(begun) == 5
    completed = report(index(corpus(*lines)))
    assert (completed["created"], completed["duplicate"]) == (7, 5)
    found = documents(deployment, owner.user_id)
    assert len(found) == 12
    assert {name: found[name] for name in begun} == begun
    again = report(index(corpus(*lines)))
    assert (again["created"], again["duplicate"], again["failed"]) == (0, 12, 0)
    assert documents(deployment, owner.user_id) == found
    # each turn still follows its predecessor, also over the interruption
    for number in range(1, 12):
        context = found[f"m{number}"]["content_context"]
        assert context == f"message {number - 1}\nmessage {number}"
    order = [found[f"m{number}"]["turn"] for number in range(12)]
    assert order == sorted(set(order))


def test_w19_bad_lines_are_named_and_left_out_while_the_good_ones_are_written(
    deployment: Platform,
    owner: Memory,
    index: Callable[[Path], Result],
    corpus: Callable[..., Path],
) -> None:
    user = owner.user_id
    bad: dict[int, tuple[Any, str]] = {
        2: (f'{{"id": "b2", "user": "{user}", "text": "cut o', "is not JSON"),
        4: (
            json.dumps({"id": "b4", "user": user, "text": "ชา"}, ensure_ascii=False).encode(
                "cp874"
            ),
            "is not UTF-8",
        ),
        5: ('["a", "list"]', "is not a JSON object"),
        6: ({"user": user, "text": "without id"}, "id"),
        7: ({"id": "b7", "text": "without user"}, "user"),
        8: ({"id": "b8", "user": user}, "text"),
        9: ({"id": "b9", "user": user, "text": "\u200b"}, "text"),
        10: ({"id": "b10", "user": user, "text": "x", "tags": ["y" * 40_000]}, "tags"),
        11: ({"id": "b11", "user": user, "text": "x", "note": "a\0b"}, "metadata"),
        12: ({"id": "b12", "user": user, "text": "x", "timestamp": "soon"}, "timestamp"),
        13: ({"id": "b13", "user": user, "text": "x", "kind": "dream"}, "kind"),
        14: ({"id": "b14", "user": user, "text": "!", "kind": "semantic"}, "text"),
        15: ({"id": "b15", "user": " ", "text": "blank user"}, "user"),
        16: ({"id": "b16", "user": user, "text": "x", "metadata": "blue"}, "metadata"),
        17: (b"[" * 50_000, "JSON"),
        18: (b'{"id": "b18", "user": "u", "text": "x", "n": ' + b"9" * 5_000 + b"}", "JSON"),
    }
    good = {
        number: {"id": f"g{number}", "user": user, "text": f"good {number}"}
        for number in (1, 3, 19)
    }
    lines = [bad[number][0] if number in bad else good[number] for number in range(1, 20)]
    file = corpus(*lines)
    result = index(file)
    answer = report(result)
    assert result.exit_code == 1
    assert (answer["created"], answer["failed"]) == (3, len(bad))
    assert set(documents(deployment, user)) == {"g1", "g3", "g19"}
    assert len(answer["errors"]) == len(bad)
    for (number, (_, reason)), error in zip(bad.items(), answer["errors"], strict=True):
        assert error.startswith(f"{file}, line {number}: ")
        assert reason in error
        assert len(error) < 600
        assert error in " ".join(result.stderr.split("\n"))
    # mended, the rest is written and nothing twice
    mended = [
        {"id": f"m{number}", "user": user, "text": f"mended {number}"} if number in bad else line
        for number, line in enumerate(lines, start=1)
    ]
    answer = report(index(corpus(*mended)))
    assert (answer["created"], answer["duplicate"], answer["failed"]) == (len(bad), 3, 0)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-32"])
def test_w19_a_file_in_another_encoding_is_refused_by_name_and_line_and_nothing_is_written(
    encoding: str,
    deployment: Platform,
    owner: Memory,
    index: Callable[[Path], Result],
    tmp_path: Path,
) -> None:
    path = tmp_path / "corpus.jsonl"
    lines = [
        json.dumps({"id": f"m{n}", "user": owner.user_id, "text": "café"}, ensure_ascii=False)
        for n in range(3)
    ]
    path.write_text("\n".join(lines) + "\n", encoding=encoding)
    result = index(path)
    if isinstance(result.exception, InvalidInput):  # refused as a whole
        reason = str(result.exception)
        assert reason.startswith(f"{path}, line 1: ")
        assert "byte order mark" in reason
    else:  # no mark: every line is refused by itself
        answer = report(result)
        assert answer["created"] == 0
        assert answer["errors"][0].startswith(f"{path}, line 1: ")
        assert result.exit_code == 1
    assert documents(deployment, owner.user_id) == {}


def test_w11_a_corpus_is_cleaned_as_every_other_door_cleans(
    deployment: Platform,
    owner: Memory,
    index: Callable[[Path], Result],
    corpus: Callable[..., Path],
) -> None:
    dirty = "abc\u0000def \ud83d\u0007ghi\udc00"
    known = owner.remember(dirty, "semantic")
    file = corpus(
        {"id": "d1", "user": owner.user_id, "kind": "semantic", "text": dirty},
        {"id": "d\u00002", "user": owner.user_id, "text": dirty, "speaker": "Ro\ud800wan"},
        {"id": "d3", "user": owner.user_id, "text": "x", "note": "\ud800"},
        {"id": "d4", "user": owner.user_id, "text": "x", "\ud800": "note"},
    )
    answer = report(index(file))
    assert (answer["created"], answer["duplicate"], answer["failed"]) == (1, 1, 2)
    assert [error.split(": ")[0] for error in answer["errors"]] == [
        f"{file}, line {number}" for number in (3, 4)
    ]
    assert all("metadata" in error for error in answer["errors"])
    [fact] = owner.recall("abcdef", filters={"kinds": ["semantic"]}).hits
    assert fact.id == known.id
    stored = documents(deployment, owner.user_id)["d2"]
    assert (stored["text"], stored["speaker"]) == ("abcdef ghi", "Rowan")


def test_a_user_without_a_key_is_refused_before_anything_is_written(
    deployment: Platform,
    owner: Memory,
    index: Callable[[Path], Result],
    corpus: Callable[..., Path],
) -> None:
    file = corpus(
        {"id": "a", "user": owner.user_id, "text": "mine"},
        {"id": "b", "user": f"{owner.user_id}-unknown", "text": "whose?"},
    )
    result = index(file)
    assert isinstance(result.exception, MemoryEsError)
    assert result.exception.code == "unknown_user"
    assert "users add" in str(result.exception)
    assert documents(deployment, owner.user_id) == {}


def test_a_file_that_is_not_there_is_not_found(
    index: Callable[[Path], Result], tmp_path: Path
) -> None:
    result = index(tmp_path / "nowhere.jsonl")
    assert isinstance(result.exception, NotFound)
    assert "nowhere.jsonl" in str(result.exception)


def test_an_empty_file_is_no_memories(
    index: Callable[[Path], Result], corpus: Callable[..., Path]
) -> None:
    answer = report(index(corpus("", "  ")))
    assert (answer["created"], answer["duplicate"], answer["failed"]) == (0, 0, 0)
