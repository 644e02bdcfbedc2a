"""Evaluation on the real node: figures computed by hand, visibility, twins, leaks, clean-up."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from elasticsearch import Elasticsearch

from memory_es import Platform
from memory_es.corpus import Question
from memory_es.errors import InvalidInput, MemoryEsError, ModelError, NotFound
from memory_es.evaluate import MEASURES, Indexed, _foreign, summarise
from memory_es.models import Embedder, Vectors
from memory_es.requests import Hit, RecallResult
from memory_es.schema import Kind
from memory_es.suites import Suite, load_suite, named_suite
from tests.doubles import HashingEmbedder

#: nDCG of one relevant document at rank 2, and of two of which only one is found there.
SECOND = 1 / math.log2(3)
ONE_OF_TWO = SECOND / (1 + SECOND)
NewPlatform = Callable[..., Platform]
FIGURES = ("R@1", "R@5", "R@10", "R@80", "MRR", "nDCG@10")

CORPUS: list[dict[str, Any]] = [
    # ann: with one term, BM25 puts the shorter text first
    {"id": "a1", "user": "ann", "text": "marmot"},
    {"id": "a2", "user": "ann", "text": "marmot lichen"},
    {"id": "a3", "user": "ann", "text": "marmot lichen tundra"},
    {"id": "a4", "user": "ann", "text": "glacier"},
    # ben asks for the same and has something else
    {"id": "b1", "user": "ben", "text": "marmot quartz"},
    # cleo's memories have times and sessions, one fact has neither
    {
        "id": "c1",
        "user": "cleo",
        "text": "walrus",
        "timestamp": "2026-01-01T00:00:00",
        "session": "1",
    },
    {
        "id": "c2",
        "user": "cleo",
        "text": "walrus",
        "timestamp": "2026-01-02T00:00:00",
        "session": "2",
    },
    {
        "id": "c3",
        "user": "cleo",
        "text": "walrus",
        "timestamp": "2026-01-02T12:00:00",
        "session": "3",
    },
    {
        "id": "c4",
        "user": "cleo",
        "text": "walrus",
        "timestamp": "2026-01-03T00:00:00",
        "session": "4",
    },
    {"id": "c5", "user": "cleo", "text": "walrus moustache", "kind": "semantic"},
    # dora has a fact twice, and one that is longer
    {"id": "d1", "user": "dora", "text": "basalt", "kind": "semantic"},
    {"id": "d2", "user": "dora", "text": "Basalt", "kind": "semantic"},
    {"id": "d3", "user": "dora", "text": "basalt columns", "kind": "semantic"},
    # everybody's
    {"id": "k1", "kind": "catalog", "title": "Ferries", "text": "ferries leave hourly"},
]
AT_NOON = {"timestamp": "2026-01-02T12:00:00", "session": "2"}
QUERIES: list[dict[str, Any]] = [
    {"id": "q1", "user": "ann", "text": "marmot", "category": "first", "evidence": ["a1"]},
    {"id": "q2", "user": "ann", "text": "marmot", "category": "half", "evidence": ["a2", "a4"]},
    {"id": "q3", "user": "ann", "text": "lichen", "category": "half", "evidence": ["a3"]},
    {"id": "q4", "user": "ann", "text": "obsidian", "category": "none", "evidence": ["a4"]},
    {"id": "q5", "user": "ann", "text": "marmot", "category": "open", "evidence": []},
    {"id": "q6", "user": "ben", "text": "marmot", "category": "first", "evidence": ["b1"]},
    {"id": "v1", "user": "cleo", "text": "walrus", "category": "seen", "evidence": ["c1"]}
    | AT_NOON,
    {"id": "v2", "user": "cleo", "text": "walrus", "category": "same session", "evidence": ["c2"]}
    | AT_NOON,
    {"id": "v3", "user": "cleo", "text": "walrus", "category": "seen", "evidence": ["c3"]}
    | AT_NOON,
    {"id": "v4", "user": "cleo", "text": "walrus", "category": "later", "evidence": ["c4"]}
    | AT_NOON,
    {"id": "v5", "user": "cleo", "text": "walrus", "category": "seen", "evidence": ["c5"]}
    | AT_NOON,
    {"id": "v6", "user": "cleo", "text": "walrus", "category": "seen", "evidence": ["c2", "c4"]},
    {"id": "t1", "user": "dora", "text": "basalt", "category": "twin", "evidence": ["d1"]},
    {"id": "t2", "user": "dora", "text": "basalt", "category": "twin", "evidence": ["d2"]},
    {"id": "t3", "user": "dora", "text": "basalt", "category": "twin", "evidence": ["d1", "d2"]},
    {"id": "t4", "user": "dora", "text": "basalt", "category": "after twins", "evidence": ["d3"]},
    {"id": "k", "user": "ann", "text": "ferries", "category": "catalog", "evidence": ["k1"]},
    {"id": "e", "user": "erin", "text": "ferries", "category": "catalog", "evidence": ["k1"]},
]


def write_suite(
    folder: Path, corpus: Sequence[Mapping[str, Any]], queries: Sequence[Mapping[str, Any]]
) -> Path:
    """A suite in a folder; a question that no other suite has makes its fingerprint unique."""
    folder.mkdir(parents=True, exist_ok=True)
    mark = {"id": uuid.uuid4().hex, "user": str(corpus[0].get("user", "ann")), "text": "?"}
    for name, rows in (("corpus", corpus), ("queries", [*queries, mark])):
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (folder / f"{name}.jsonl").write_text(lines, "utf-8")
    return folder


def figures(summary: Mapping[str, Any]) -> tuple[float, ...]:
    return tuple(summary[name] for name in FIGURES)


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Suite:
    return load_suite(write_suite(tmp_path_factory.mktemp("suites") / "tiny", CORPUS, QUERIES))


@pytest.fixture(scope="module")
def told() -> list[tuple[str, int, int]]:
    """The progress that the run of ``report`` has told."""
    return []


@pytest.fixture(scope="module")
def report(platform: Platform, suite: Suite, told: list[tuple[str, int, int]]) -> dict[str, Any]:
    """One run with every recipe that works without a reranker."""
    return platform.evaluate(suite, advance=lambda *step: told.append(step))


# --- the contract ---------------------------------------------------------------------------


def assert_contract(report: dict[str, Any], recipes: set[str]) -> None:
    assert list(report) == [
        "suite",
        "queries",
        "recipes",
        "leaks",
        "swept",
        "latency_ms",
        "fingerprint",
    ]
    assert isinstance(report["queries"], int)
    assert isinstance(report["leaks"], int)
    assert set(report["recipes"]) == recipes
    for result in report["recipes"].values():
        assert {*FIGURES, "by_category"} <= set(result)
        for row in (result, *result["by_category"].values()):
            assert all(isinstance(row[name], float) and 0 <= row[name] <= 1 for name in FIGURES)
    for took in report["latency_ms"].values():
        assert set(took) == {"p50", "p95"}
        assert 0 <= took["p50"] <= took["p95"]
    assert json.loads(json.dumps(report)) == report


def test_the_report_keeps_its_contract(report: dict[str, Any], suite: Suite) -> None:
    assert_contract(report, {"bm25", "lexical", "dense", "hybrid"})
    assert report["suite"] == "tiny"
    assert report["queries"] == len(suite.questions) == len(QUERIES) + 1
    assert {"embed", "search", "fetch", "rank", "total"} <= set(report["latency_ms"])
    assert tuple(MEASURES) == FIGURES


def test_the_fingerprint_names_what_the_run_depended_on(
    report: dict[str, Any], suite: Suite, embedder: Embedder
) -> None:
    found = report["fingerprint"]
    assert found["corpus"] == suite.fingerprint
    assert found["embedding_model"] == embedder.name
    assert found["reranker"] is None
    assert found["priors"] is False
    assert found["now"] == "2026-01-03T00:00:00+00:00"


@pytest.mark.usefixtures("report")
def test_progress_is_told(told: list[tuple[str, int, int]], suite: Suite) -> None:
    number = len(suite.entries)
    assert told[:number] == [("index", done, number) for done in range(1, number + 1)]
    for recipe in ("bm25", "lexical", "dense", "hybrid"):
        assert (recipe, len(suite.questions), len(suite.questions)) in told
    assert told[-1] == ("sweep", len(suite.users), len(suite.users))


# --- the figures ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("category", "expected"),
    [
        ("first", (1, 1, 1, 1, 1, 1)),
        # q2: rank 2 of two, the other not found; q3: rank 2
        ("half", (0, 0.75, 0.75, 0.75, 0.5, (ONE_OF_TWO + SECOND) / 2)),
        ("none", (0, 0, 0, 0, 0, 0)),
        ("catalog", (1, 1, 1, 1, 1, 1)),
        ("twin", (1, 1, 1, 1, 1, 1)),
        ("after twins", (0, 1, 1, 1, 0.5, SECOND)),
    ],
)
def test_figures_are_those_computed_by_hand(
    report: dict[str, Any], category: str, expected: tuple[float, ...]
) -> None:
    found = report["recipes"]["bm25"]["by_category"][category]
    assert figures(found) == pytest.approx(expected, abs=1e-4)


def test_the_total_is_the_mean_over_questions_with_evidence(report: dict[str, Any]) -> None:
    result = report["recipes"]["bm25"]
    rows = result["by_category"].values()
    judged = sum(row["queries"] for row in rows)
    assert judged == sum(1 for query in QUERIES if query["evidence"])
    assert result["no_evidence"] == 2
    assert "open" not in result["by_category"]
    for name in FIGURES:
        mean = sum(row[name] * row["queries"] for row in rows) / judged
        assert result[name] == pytest.approx(mean, abs=1e-4)


@pytest.mark.parametrize("recipe", ["bm25", "lexical", "dense", "hybrid"])
def test_a_question_sees_what_was_there_at_its_time_in_other_sessions(
    report: dict[str, Any], recipe: str
) -> None:
    found = report["recipes"][recipe]["by_category"]
    assert found["seen"]["R@80"] == 1
    assert found["same session"]["R@80"] == 0
    assert found["later"]["R@80"] == 0


def test_nobody_sees_a_foreign_memory_and_the_catalog_is_none(report: dict[str, Any]) -> None:
    assert report["leaks"] == 0
    assert report["recipes"]["bm25"]["by_category"]["catalog"]["R@1"] == 1


def _hit(id_: str, owner: str | None, kind: Kind = Kind.EPISODIC) -> Hit:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    return Hit(
        id=id_,
        kind=kind,
        text="x",
        score=1,
        event_time=now,
        created_at=now,
        owner=owner,
        fields={},
        ranks={},
        fused=1,
    )


def test_a_leak_would_be_counted_by_the_stamp_and_by_the_corpus() -> None:
    indexed = Indexed({}, {}, {"1": "ann", "2": "ben", "k": None})

    def leaks(*hits: Hit) -> int:
        found = RecallResult(hits=hits, recipe="bm25", took_ms={}, searches=())
        return _foreign(found, indexed, "ann")

    assert leaks(_hit("1", "ann"), _hit("k", None, Kind.CATALOG)) == 0
    assert leaks(_hit("1", "ben")) == 1  # the cluster says that it is ben's
    assert leaks(_hit("2", "ann")) == 1  # the corpus does
    assert leaks(_hit("2", "ben"), _hit("3", "ann"), _hit("1", "ann")) == 2


# --- the arithmetic alone -------------------------------------------------------------------


def question(id_: str, category: str, *evidence: str) -> Question:
    return Question(id=id_, user="ann", text="?", category=category, evidence=evidence)


def ranking(*documents: str) -> dict[str, float]:
    return {document: float(-rank) for rank, document in enumerate(documents)}


def test_measures_of_a_run_are_those_computed_by_hand() -> None:
    many = [f"x{number}" for number in range(90)]
    questions = [
        question("top", "a", "r"),
        question("tenth", "a", "r"),
        question("eleventh", "b", "r"),
        question("deep", "b", "r"),
        question("too deep", "b", "r"),
        question("silent", "c", "r"),
        question("unasked", "c", "r"),
        question("open", "d"),
    ]
    run = {
        "top": ranking("r", *many[:3]),
        "tenth": ranking(*many[:9], "r"),
        "eleventh": ranking(*many[:10], "r"),
        "deep": ranking(*many[:79], "r"),
        "too deep": ranking(*many[:80], "r"),
        "silent": {},
        "open": ranking(*many),
    }
    result = summarise(questions, run)
    assert result["no_evidence"] == 1
    assert set(result["by_category"]) == {"a", "b", "c"}
    assert [result["by_category"][name]["queries"] for name in "abc"] == [2, 3, 2]
    assert figures(result["by_category"]["a"]) == pytest.approx(
        (0.5, 0.5, 1, 1, (1 + 1 / 10) / 2, (1 + 1 / math.log2(11)) / 2), abs=1e-4
    )
    assert figures(result["by_category"]["b"]) == pytest.approx(
        (0, 0, 0, 2 / 3, (1 / 11 + 1 / 80 + 1 / 81) / 3, 0), abs=1e-4
    )
    assert figures(result["by_category"]["c"]) == (0, 0, 0, 0, 0, 0)
    assert figures(result) == pytest.approx(
        (
            1 / 7,
            1 / 7,
            2 / 7,
            4 / 7,
            (1 + 1 / 10 + 1 / 11 + 1 / 80 + 1 / 81) / 7,
            (1 + 1 / math.log2(11)) / 7,
        ),
        abs=1e-4,
    )


def test_several_documents_of_evidence_count_by_their_share() -> None:
    result = summarise([question("q", "a", "r1", "r2", "r3")], {"q": ranking("r1", "x", "r2")})
    ideal = 1 + 1 / math.log2(3) + 1 / math.log2(4)
    expected = (1 / 3, 2 / 3, 2 / 3, 2 / 3, 1, (1 + 1 / math.log2(4)) / ideal)
    assert figures(result) == pytest.approx(expected, abs=1e-4)


def test_a_suite_without_any_evidence_gives_zeros_and_no_category() -> None:
    result = summarise([question("q", "a")], {"q": ranking("x")})
    assert figures(result) == (0, 0, 0, 0, 0, 0)
    assert result["by_category"] == {}
    assert result["no_evidence"] == 1


# --- what is left behind --------------------------------------------------------------------


def remains(service: Elasticsearch, suite: Suite) -> list[str]:
    """Everything on the cluster that carries the prefix of a suite's evaluations."""
    prefix = f"eval_{suite.fingerprint[:8]}_"
    found: list[str] = [*service.indices.get(index=f"{prefix}*", expand_wildcards="all").body]
    found += [entry["name"] for entry in service.indices.get_index_template()["index_templates"]]
    found += [
        entry["name"] for entry in service.cluster.get_component_template()["component_templates"]
    ]
    found += [*service.ingest.get_pipeline().body]
    found += [
        str(key["metadata"].get("deployment"))
        for key in service.security.get_api_key(active_only=True)["api_keys"]
    ]
    return [name for name in found if name.startswith(prefix)]


@pytest.mark.usefixtures("report")
def test_nothing_of_an_evaluation_remains(service: Elasticsearch, suite: Suite) -> None:
    assert remains(service, suite) == []


class Failing:
    """An embedder or reranker that fails from a given text on."""

    name = "failing"

    def __init__(self, inner: Embedder, *, stored: bool) -> None:
        self._inner = inner
        self._stored = stored
        self.dims = inner.dims

    def passages(self, texts: Sequence[str]) -> Vectors:
        if self._stored:
            raise ModelError(f"no vectors for {len(texts)} texts")
        return self._inner.passages(texts)

    def query(self, text: str) -> Vectors:
        raise ModelError(f"no vector for {len(text)} characters")

    def scores(self, query: str, texts: Sequence[str]) -> list[float]:
        raise ModelError(f"no scores for {len(texts)} texts and {len(query)} characters")


@pytest.mark.parametrize("part", ["documents", "reranker"])
def test_a_run_with_holes_is_an_error_and_leaves_nothing_behind(
    platform: Platform, service: Elasticsearch, tmp_path: Path, part: str
) -> None:
    small = load_suite(write_suite(tmp_path / "small", CORPUS[:2], QUERIES[:1]))
    broken = Failing(platform.embedder(), stored=part == "documents")
    embedder = platform.embedder() if part == "reranker" else broken
    settings = platform.settings.model_copy(update={"shards": 1})
    with (
        Platform(settings, embedder=embedder, reranker=broken) as holed,
        pytest.raises(MemoryEsError, match=r"no vector|not reranked"),
    ):
        holed.evaluate(small, ["reranked"])
    assert remains(service, small) == []


# --- from the shell -------------------------------------------------------------------------


def test_a_shell_prints_one_object_and_writes_it_to_a_file(
    environment: dict[str, str], platform: Platform, tmp_path: Path
) -> None:
    data = write_suite(tmp_path / "by shell", CORPUS, QUERIES)
    done = subprocess.run(
        [
            *(Path(sys.executable).with_name("memory-es"), "eval", "run", "--data", data, "--json"),
            *("--recipe", "bm25", "--recipe", "hybrid", "--out", tmp_path / "runs"),
        ],
        env=environment | {"MEMORY_ES_PREFIX": platform.settings.prefix},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert_contract(report, {"bm25", "hybrid"})
    assert report["suite"] == "by shell"
    assert report["leaks"] == 0
    assert figures(report["recipes"]["bm25"]["by_category"]["first"]) == (1, 1, 1, 1, 1, 1)
    [file] = (tmp_path / "runs").iterdir()
    assert json.loads(file.read_text("utf-8")) == report


# --- reading suites -------------------------------------------------------------------------


def test_a_fingerprint_tells_corpora_apart(tmp_path: Path) -> None:
    one = write_suite(tmp_path / "one", CORPUS, QUERIES)
    again = load_suite(one).fingerprint
    assert again == load_suite(one).fingerprint
    with (one / "corpus.jsonl").open("a") as file:
        file.write('{"id": "new", "user": "ann", "text": "one more"}\n')
    assert load_suite(one).fingerprint != again


@pytest.mark.parametrize(
    ("corpus", "queries", "error", "named"),
    [
        (CORPUS[:2] * 2, QUERIES[:1], InvalidInput, "'a1' is used twice"),
        (CORPUS[1:], QUERIES[:1], InvalidInput, "evidence 'a1'"),
        (CORPUS[:5], [QUERIES[0] | {"user": "ben"}], InvalidInput, "'a1' is no memory of 'ben'"),
        (CORPUS[:5], [{"id": "q", "user": "ann"}], InvalidInput, "queries.jsonl, line 1"),
        ([{"id": "a", "text": "x"}], QUERIES[:0], InvalidInput, "corpus.jsonl, line 1"),
    ],
)
def test_a_suite_that_cannot_be_measured_is_refused_and_the_place_is_named(
    tmp_path: Path,
    corpus: list[dict[str, Any]],
    queries: list[dict[str, Any]],
    error: type[MemoryEsError],
    named: str,
) -> None:
    folder = write_suite(tmp_path / "bad", corpus, queries)
    with pytest.raises(error, match=named):
        load_suite(folder)


def test_two_questions_of_one_id_are_refused(tmp_path: Path) -> None:
    folder = write_suite(tmp_path / "bad", CORPUS, [QUERIES[0], QUERIES[0]])
    with pytest.raises(InvalidInput, match="'q1' is used twice"):
        load_suite(folder)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"corpus\.jsonl"):
        load_suite(tmp_path)


# --- LoCoMo as published --------------------------------------------------------------------

LOCOMO = [
    {
        "sample_id": "conv-1",
        "conversation": {
            "speaker_a": "Ann",
            "speaker_b": "Ben",
            "session_1_date_time": "1:56 pm on 8 May, 2023",
            "session_1": [
                {"speaker": "Ann", "dia_id": "D1:1", "text": "I adopted a tortoise."},
                {
                    "speaker": "Ben",
                    "dia_id": "D1:2",
                    "text": "Look at mine!",
                    "img_url": ["https://example.org/1.jpg"],
                    "blip_caption": "a photo of a parrot",
                    "query": "parrot on a branch",
                },
            ],
            "session_2_date_time": "10:37 am on 27 June, 2023",
            "session_2": [{"speaker": "Ann", "dia_id": "D2:1", "text": "It is called Tank."}],
            "session_3_date_time": "9:00 am on 1 July, 2023",
        },
        "qa": [
            {"question": "Pets?", "answer": "both", "evidence": ["D1:1; D1:2"], "category": 1},
            {"question": "When?", "answer": "May", "evidence": ["D1:1"], "category": 2},
            {"question": "Why?", "answer": "-", "evidence": ["D1:1", "D2:1"], "category": 3},
            {"question": "Name?", "answer": "Tank", "evidence": ["D2:1", "D9:9"], "category": 4},
            {"question": "Dog?", "adversarial_answer": "Rex", "evidence": ["D2:1"], "category": 5},
            {"question": "Lost?", "answer": "-", "evidence": [], "category": 4},
        ],
    }
]


@pytest.fixture
def locomo(tmp_path: Path) -> Suite:
    file = tmp_path / "locomo10.json"
    file.write_text(json.dumps(LOCOMO), "utf-8")
    return load_suite(file)


def test_locomos_published_json_is_read(locomo: Suite) -> None:
    assert locomo.name == "locomo10"
    assert [
        (e.user, e.memory.external_id, e.memory.text, getattr(e.memory, "speaker", None))
        for e in locomo.entries
    ] == [
        ("conv-1", "conv-1:D1:1", "I adopted a tortoise.", "Ann"),
        ("conv-1", "conv-1:D1:2", "Look at mine! (a photo of a parrot)", "Ben"),
        ("conv-1", "conv-1:D2:1", "It is called Tank.", "Ann"),
    ]
    assert [entry.memory.event_time for entry in locomo.entries] == [
        datetime(2023, 5, 8, 13, 56, tzinfo=UTC),
        datetime(2023, 5, 8, 13, 56, tzinfo=UTC),
        datetime(2023, 6, 27, 10, 37, tzinfo=UTC),
    ]
    sessions = [getattr(entry.memory, "session_id", None) for entry in locomo.entries]
    assert sessions[0] == sessions[1] != sessions[2]


def test_what_the_pictures_of_locomo_were_searched_with_is_not_indexed(locomo: Suite) -> None:
    for entry in locomo.entries:
        assert "branch" not in entry.memory.model_dump_json()


def test_locomos_questions_have_their_category_and_evidence(locomo: Suite) -> None:
    assert [(q.text, q.category, q.evidence) for q in locomo.questions if q.evidence] == [
        ("Pets?", "multi-hop", ("conv-1:D1:1", "conv-1:D1:2")),
        ("When?", "temporal", ("conv-1:D1:1",)),
        ("Why?", "open-domain", ("conv-1:D1:1", "conv-1:D2:1")),
        ("Name?", "single-hop", ("conv-1:D2:1",)),
    ]
    assert "Dog?" not in {q.text for q in locomo.questions}


def test_another_json_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "other.json"
    for content in ("{", "[]x", '{"a": 1}', '[{"sample_id": 1}]'):
        file.write_text(content, "utf-8")
        with pytest.raises(InvalidInput, match=r"other\.json"):
            load_suite(file)


# --- the personas, as frozen ------------------------------------------------------------------


def test_words_alone_answer_few_of_the_personas_questions(new_platform: NewPlatform) -> None:
    """What makes the suite worth running: plain BM25 finds at most 60 in a hundred. Vectors play no
    part in that recipe, so words stand in for the model."""
    platform = new_platform(embedder=HashingEmbedder())
    report = platform.evaluate(named_suite("personas"), ["bm25"])
    assert report["queries"] == 252
    assert report["swept"] == 60
    assert report["leaks"] == 0
    found = report["recipes"]["bm25"]
    assert found["no_evidence"] == 24
    assert 0.3 < found["R@10"] <= 0.60
    assert len(found["by_category"]) == 9


def test_a_suite_of_one_user_is_not_swept(new_platform: NewPlatform) -> None:
    whole = named_suite("sample")
    one = whole.limited_to(["maya"])
    assert one.now == whole.now
    report = new_platform(embedder=HashingEmbedder()).evaluate(one, ["bm25"])
    assert (report["swept"], report["leaks"]) == (0, 0)
