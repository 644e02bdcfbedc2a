from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from memory_es.corpus import CorpusEntry, entry, read_corpus, read_questions
from memory_es.errors import InvalidInput, MemoryEsError, NotFound
from memory_es.schema import NewCatalogEntry, NewEpisode, NewFact, NewPlaybook
from memory_es.suites import load_suite

LINE = {"id": "m1", "user": "sarah", "text": "likes tea"}


def write(path: Path, *lines: dict[str, Any] | str | bytes) -> Path:
    raw = [
        line
        if isinstance(line, bytes)
        else (line if isinstance(line, str) else json.dumps(line, ensure_ascii=False)).encode()
        for line in lines
    ]
    path.write_bytes(b"\n".join(raw) + b"\n")
    return path


def lines_of(path: Path) -> tuple[list[CorpusEntry], list[InvalidInput]]:
    errors: list[InvalidInput] = []
    return list(read_corpus(path, errors.append)), errors


# --- one line ---


def test_id_user_and_text_are_enough() -> None:
    assert entry(7, LINE) == CorpusEntry(7, "sarah", NewEpisode(text="likes tea", external_id="m1"))


def test_every_field_of_a_turn_finds_its_place() -> None:
    found = entry(
        1,
        {
            **LINE,
            "kind": "episodic",
            "speaker": "Sarah",
            "role": "user",
            "session": "s1",
            "turn": 4,
            "timestamp": "2026-03-04T12:00:00",
            "expires_at": "2027-01-01T00:00:00+02:00",
            "tags": ["travel, food"],
            "event_type": "message",
            "agent_id": "a1",
        },
    )
    assert found.memory == NewEpisode(
        text="likes tea",
        external_id="m1",
        speaker="Sarah",
        role="user",
        session_id="s1",
        turn=4,
        event_time=datetime(2026, 3, 4, 12, tzinfo=UTC),
        expires_at=datetime(2026, 12, 31, 22, tzinfo=UTC),
        tags=("travel, food",),
        event_type="message",
        agent_id="a1",
    )


@pytest.mark.parametrize(
    ("fields", "memory"),
    [
        (
            {"kind": "semantic", "fact_type": "preference", "confidence": 0.5},
            NewFact(text="likes tea", external_id="m1", fact_type="preference", confidence=0.5),
        ),
        (
            {"kind": "procedural", "name": "tea", "steps": ["boil", "pour"], "trigger": "thirst"},
            NewPlaybook(
                text="likes tea",
                external_id="m1",
                name="tea",
                steps=("boil", "pour"),
                trigger="thirst",
            ),
        ),
        (
            {"kind": "catalog", "title": "Tea", "url": "https://tea.example"},
            NewCatalogEntry(
                text="likes tea", external_id="m1", title="Tea", url="https://tea.example"
            ),
        ),
    ],
)
def test_each_kind_takes_its_own_fields(fields: dict[str, Any], memory: object) -> None:
    assert entry(1, {**LINE, **fields}).memory == memory


def test_the_catalog_needs_no_user_and_has_none() -> None:
    for fields in ({}, {"user": "sarah"}):
        found = entry(1, {"id": "c1", "kind": "catalog", "text": "shared", **fields})
        assert found.user is None


def test_unknown_keys_go_to_the_metadata_beside_what_is_given_there() -> None:
    found = entry(
        1, {**LINE, "mood": "glad", "user_id": "x", "title": "t", "metadata": {"owner": {"a": 1}}}
    )
    assert found.memory.metadata == {
        "mood": "glad",
        "user_id": "x",
        "title": "t",  # a field of the catalog, not of an episode
        "owner": {"a": 1},
    }


def test_a_caption_is_appended_and_the_image_query_ignored() -> None:
    found = entry(1, {**LINE, "image_caption": "a green pot", "image_query": "teapot photo"})
    assert found.memory.text == "likes tea (a green pot)"
    assert found.memory.metadata == {}


def test_nulls_are_as_good_as_absent() -> None:
    names = ("kind", "speaker", "session", "turn", "timestamp", "tags", "metadata", "mood")
    nulls = dict.fromkeys((*names, "image_caption"), None)
    assert entry(1, {**LINE, **nulls}) == entry(1, LINE)


def test_a_number_may_be_an_id_and_a_turn_needs_its_session() -> None:
    found = entry(1, {**LINE, "id": 12, "user": 7, "turn": 3})
    assert isinstance(found.memory, NewEpisode)
    assert (found.user, found.memory.external_id, found.memory.turn) == ("7", "12", None)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"id": None}, "id"),
        ({"user": None}, "user"),
        ({"text": None}, "text"),
        ({"kind": "catalog", "text": None}, "text"),
        ({"id": " "}, "id"),
        ({"id": {"a": 1}}, "id"),
        ({"user": " "}, "user"),
        ({"user": "a\x00b"}, "user"),
        ({"user": "x" * 300}, "user"),
        ({"text": "   "}, "text"),
        ({"text": 5}, "text"),
        ({"text": 5, "image_caption": "a pot"}, "text"),
        ({"kind": "dream"}, "kind"),
        ({"kind": ["semantic"]}, "kind"),
        ({"timestamp": "yesterday"}, "timestamp"),
        ({"session": ""}, "session"),
        ({"session": "s", "turn": "first"}, "turn"),
        ({"metadata": "blue"}, "metadata"),
        ({"metadata": [1]}, "metadata"),
        ({"mood": float("nan")}, "metadata"),
        ({"kind": "semantic", "confidence": 7}, "confidence"),
        ({"kind": "procedural"}, "name"),
        ({"tags": "travel"}, "tags"),
    ],
)
def test_a_bad_line_names_the_key_that_it_has(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        entry(1, {**LINE, **fields})
    assert caught.value.field == field
    assert "likes tea" not in str(caught.value)


# --- a file ---


def test_entries_come_in_order_with_their_line_and_blank_lines_are_passed_over(
    tmp_path: Path,
) -> None:
    path = write(tmp_path / "c.jsonl", LINE, "", "  ", {**LINE, "id": "m2"}, b"\r")
    assert [(e.line, e.memory.external_id) for e in read_corpus(path)] == [(1, "m1"), (4, "m2")]


BAD_LINES: list[tuple[bytes, str]] = [
    (b'{"id": "m2", "user": "sarah", "te', "is not JSON"),
    (b"{'id': 'm2'}", "is not JSON"),
    (b'["m2"]', "is not a JSON object"),
    (b'"m2"', "is not a JSON object"),
    (b'{"id": "m2", "user": "sarah"}', "text: is missing"),
    ('{"id": "m2", "user": "สมชาย", "text": "ชา"}'.encode("cp874"), "is not UTF-8"),
    ("\ufeff".encode() + json.dumps(LINE).encode(), "begins with a byte order mark"),
    (json.dumps(LINE).encode("utf-16"), "begins with a byte order mark"),
    (b"[" * 100_000, "is not JSON"),
    (b'{"id": "m2", "user": "sarah", "text": "a", "n": ' + b"9" * 5_000 + b"}", "is not JSON"),
    (b'{"id": "m2", "user": "sarah", "text": "a", "n": NaN}', "metadata"),
]


@pytest.mark.parametrize(("bad", "reason"), BAD_LINES)
def test_an_error_names_the_file_and_the_line(bad: bytes, reason: str, tmp_path: Path) -> None:
    path = write(tmp_path / "c.jsonl", LINE, bad, {**LINE, "id": "m3"})
    with pytest.raises(InvalidInput) as caught:
        list(read_corpus(path))
    assert str(caught.value).startswith(f"{path}, line 2: ")
    assert str(caught.value).count(str(path)) == 1
    assert reason in str(caught.value)
    assert "likes tea" not in str(caught.value)


@pytest.mark.parametrize(("bad", "reason"), [pair for pair in BAD_LINES if b"\xfe" not in pair[0]])
def test_the_good_lines_around_a_bad_one_can_be_kept(
    bad: bytes, reason: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "c.jsonl", LINE, bad, {**LINE, "id": "m3"})
    if "byte order mark" in reason:  # nothing of such a file is what it seems
        with pytest.raises(InvalidInput, match="byte order mark"):
            lines_of(path)
        return
    entries, errors = lines_of(path)
    assert [e.memory.external_id for e in entries] == ["m1", "m3"]
    assert [error.field for error in errors] == [f"{path}, line 2"]


def test_a_file_that_is_not_there_is_not_found(tmp_path: Path) -> None:
    file = write(tmp_path / "c.jsonl", LINE)
    for path in (tmp_path / "none.jsonl", tmp_path, file / "inner.jsonl", tmp_path / ("x" * 300)):
        with pytest.raises(NotFound) as caught:
            list(read_corpus(path))
        assert str(path) in str(caught.value)


# --- questions, suites ---

QUESTION = {"id": "q1", "user": "sarah", "text": "What does she like?", "evidence": ["m1"]}


def suite(tmp_path: Path, corpus: list[Any], questions: list[Any]) -> Path:
    write(tmp_path / "corpus.jsonl", *corpus)
    write(tmp_path / "queries.jsonl", *questions)
    return tmp_path


def test_a_question_needs_id_user_and_text_and_may_be_asked_at_a_time(tmp_path: Path) -> None:
    asked = {"timestamp": "2026-03-04", "session": "s9", "category": "temporal", "extra": 1}
    plain = {key: QUESTION[key] for key in ("id", "user", "text")}
    path = write(tmp_path / "q.jsonl", plain, {**QUESTION, **asked})
    first, second = read_questions(path)
    assert (first.category, first.evidence, first.timestamp) == ("all", (), None)
    assert (second.category, second.evidence, second.session) == ("temporal", ("m1",), "s9")
    assert second.timestamp == datetime(2026, 3, 4, tzinfo=UTC)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"id": None}, "id"),
        ({"user": ""}, "user"),
        ({"text": " "}, "text"),
        ({"evidence": "m1"}, "evidence"),
    ],
)
def test_a_bad_question_names_file_line_and_field(
    fields: dict[str, Any], field: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "q.jsonl", QUESTION, {**QUESTION, **fields})
    with pytest.raises(InvalidInput, match=f"line 2: {field}: "):
        list(read_questions(path))


def test_a_suite_knows_its_users_and_its_own_now(tmp_path: Path) -> None:
    loaded = load_suite(
        suite(
            tmp_path,
            [
                {**LINE, "timestamp": "2026-03-04T12:00:00+02:00"},
                {"id": "c", "kind": "catalog", "text": "t"},
            ],
            [
                {**QUESTION, "evidence": ["m1", "c"]},
                {**QUESTION, "id": "q2", "user": "tom", "evidence": []},
            ],
        )
    )
    assert loaded.users == ["sarah", "tom"]
    assert loaded.now == datetime(2026, 3, 4, 10, tzinfo=UTC)
    assert loaded.name == tmp_path.name


def test_ids_and_users_match_however_they_are_composed_and_numbered(tmp_path: Path) -> None:
    line = {"id": 12, "user": "Zoe\u0308", "text": "likes tea"}
    asked = {"id": 1, "user": "Zoe\u0308", "text": "What?", "evidence": [12]}
    loaded = load_suite(suite(tmp_path, [line], [asked]))
    assert loaded.users == ["Zoe\u0308"]


@pytest.mark.parametrize(
    ("corpus", "questions", "reason"),
    [
        ([LINE, LINE], [QUESTION], "'m1' is used twice"),
        ([LINE], [QUESTION, QUESTION], "'q1' is used twice"),
        ([LINE], [{**QUESTION, "evidence": ["m9"]}], "'m9'"),
        ([LINE, {**LINE, "id": "m2", "user": "tom"}], [{**QUESTION, "evidence": ["m2"]}], "'m2'"),
    ],
)
def test_a_suite_that_contradicts_itself_is_refused(
    corpus: list[Any], questions: list[Any], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInput, match=reason):
        load_suite(suite(tmp_path, corpus, questions))


def test_a_suite_without_questions_is_not_found(tmp_path: Path) -> None:
    write(tmp_path / "corpus.jsonl", LINE)
    with pytest.raises(NotFound, match=r"queries\.jsonl"):
        load_suite(tmp_path)


#: The form in which LoCoMo is published, with words of our own.
LOCOMO = {
    "sample_id": "conv-1",
    "conversation": {
        "speaker_a": "Ann",
        "session_1_date_time": "1:56 pm on 8 May, 2023",
        "session_1": [
            {"speaker": "Ann", "dia_id": "D1:1", "text": "Look at my pot"},
            {
                "speaker": "Bo",
                "dia_id": "D1:2",
                "text": "Mine is here",
                "blip_caption": "a photo of a green pot",
                "query": "green pot on a shelf",
                "img_url": ["https://pots.example/1.jpg"],
            },
        ],
        "session_2_date_time": "12:09 am on 13 September, 2023",
        "session_2": [{"speaker": "Ann", "dia_id": "D2:1", "text": "It broke"}],
    },
    "qa": [
        {"question": "Who broke it?", "answer": "-", "evidence": ["D2:1; D1:1"], "category": 1},
        {"question": "When?", "answer": "-", "evidence": ["D2:1", "D2:1"], "category": 2},
        {"question": "Is it blue?", "adversarial_answer": "-", "evidence": [], "category": 5},
    ],
}


def test_locomo_as_published_becomes_a_suite(tmp_path: Path) -> None:
    path = tmp_path / "locomo.json"
    path.write_text(json.dumps([LOCOMO]))
    loaded = load_suite(path)
    turns = [each.memory for each in loaded.entries]
    assert all(isinstance(turn, NewEpisode) for turn in turns)
    assert loaded.users == ["conv-1"]
    assert [(turn.external_id, turn.text) for turn in turns] == [
        ("conv-1:D1:1", "Look at my pot"),
        ("conv-1:D1:2", "Mine is here (a photo of a green pot)"),
        ("conv-1:D2:1", "It broke"),
    ]
    assert turns[0] == NewEpisode(
        text="Look at my pot",
        external_id="conv-1:D1:1",
        speaker="Ann",
        session_id="conv-1:S1",
        turn=0,
        event_time=datetime(2023, 5, 8, 13, 56, tzinfo=UTC),
    )
    assert loaded.now == datetime(2023, 9, 13, 0, 9, tzinfo=UTC)
    assert [(q.id, q.category, q.evidence) for q in loaded.questions] == [
        ("conv-1:q0", "multi-hop", ("conv-1:D2:1", "conv-1:D1:1")),
        ("conv-1:q1", "temporal", ("conv-1:D2:1",)),
    ]


@pytest.mark.parametrize(
    "content",
    ["", "[", "{}", "[1]", '[{"sample_id": "a"}]', "[" * 100_000, '["x"]', '{"a": 1}', '"text"'],
)
def test_a_file_that_is_not_locomo_is_refused_by_name(content: str, tmp_path: Path) -> None:
    path = tmp_path / "locomo.json"
    path.write_text(content)
    with pytest.raises(MemoryEsError, match=str(path)):
        load_suite(path)
