from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.commands import MEMORY_ES, Cli, run_apart

from .conftest import USERS

SARAH, TOM, NEWCOMER = USERS
MEASURES = {"R@1", "R@5", "R@10", "R@80", "MRR", "nDCG@10"}


# --- the operator's commands ---


def test_starting_twice_is_harmless_and_says_so(cli: Cli) -> None:
    found = cli.json("up")
    assert found == {
        "url": found["url"],
        "pid": found["pid"],
        "started": False,
        "licence_days": pytest.approx(30, abs=1),
    }
    # and speaks of that node, not of the cluster that the settings name
    elsewhere = {
        "ELASTICSEARCH_URL": "http://127.0.0.1:1",
        "ELASTICSEARCH_USERNAME": "elastic",
        "ELASTICSEARCH_PASSWORD": "hush",
    }
    again = cli.json("up", settings=elsewhere)
    assert (again["url"], again["pid"]) == (found["url"], found["pid"])
    assert again["licence_days"] == pytest.approx(found["licence_days"], abs=0.1)


def test_status_shows_the_cluster_and_the_memories(cli: Cli) -> None:
    facts = cli.json("status")
    assert facts["url"].startswith("http://127.0.0.1:")
    assert facts["elasticsearch"].startswith("9.")
    assert (facts["licence"], facts["licence_days"]) == ("trial", pytest.approx(30, abs=1))
    assert facts["prefix"] == cli.environment["MEMORY_ES_PREFIX"]
    assert {"episodic", "semantic", "procedural", "catalog"} <= facts.keys()


def test_doctor_finds_a_new_deployment_in_order(cli: Cli) -> None:
    checks = {check["name"]: check["verdict"] for check in cli.json("doctor")}
    assert checks == dict.fromkeys(("cluster", "licence", "indices", "templates", "vectors"), "ok")


def test_doctor_ends_with_the_set_up_code_where_init_is_missing(cli: Cli) -> None:
    checks = cli.json("doctor", code=3, settings={"MEMORY_ES_PREFIX": "never_made"})
    [failed] = [check for check in checks if check["verdict"] == "failed"]
    assert failed["name"] == "cluster"
    assert "memory-es init" in failed["detail"]


def test_init_may_run_at_every_deploy(cli: Cli) -> None:
    assert cli("init") == "Everything is in place.\n"


def test_users_keep_the_key_that_they_have(cli: Cli) -> None:
    rows = cli.json("users", "add", SARAH, TOM)
    assert [(row["user"], row["new"]) for row in rows] == [(SARAH, False), (TOM, False)]
    assert all(row["key_id"] for row in rows)


# --- memories ---


@pytest.mark.parametrize(
    ("user", "text", "query"),
    [
        (SARAH, "I drink only green tea, never coffee ☕", "what do I drink?"),
        (TOM, 'แมวของฉันชื่อส้ม 🐈\nและ "มันชอบปลา" \\o/', "แมวของฉันชื่อส้ม"),
    ],
)
def test_what_is_remembered_is_recalled_letter_for_letter(
    cli: Cli, user: str, text: str, query: str
) -> None:
    written = cli.json("remember", "--user", user, "--kind", "semantic", text)
    assert (written["status"], written["kind"]) == ("created", "semantic")
    answer = cli.json("recall", "--user", user, query, "-k", "3")
    hit = answer["hits"][0]
    assert (hit["id"], hit["text"], hit["owner"]) == (written["id"], text, user)
    assert (answer["recipe"], answer["degraded"]) == ("hybrid", [])
    assert "searches" not in answer


def test_text_comes_from_standard_input_and_the_user_from_the_environment(cli: Cli) -> None:
    me = {"MEMORY_ES_USER": SARAH}
    text = "Ich wohne in Köln, seit März\nund ziehe nicht um"
    written = cli.json("remember", "-", given=f"\n{text}\n".encode(), settings=me)
    answer = cli.json("recall", "wohne Köln März", settings=me)
    assert {hit["id"]: hit["text"] for hit in answer["hits"]}[written["id"]] == text


def test_a_fact_that_is_known_already_is_not_written_again(cli: Cli) -> None:
    fact = ("remember", "--user", SARAH, "--kind", "semantic")
    first = cli(*fact, "My bicycle is red")
    assert first.startswith("Remembered (semantic, ")
    assert cli(*fact, "my  bicycle is RED ") == first.replace("Remembered", "Known already")


def test_recall_explains_each_hit_and_prints_the_searches_sent(cli: Cli) -> None:
    cli(
        *("remember", "--user", SARAH, "--kind", "procedural", "--name", "reset kiln"),
        *("--step", "switch it off at the wall", "--step", "wait ten minutes", "--tag", "kiln"),
        *("--at", "2026-03-04T12:00:00+09:00", "what to do about E-1043"),
    )
    recall = ("recall", "--user", SARAH, "how do I reset E-1043?", "--tag", "kiln", "--explain")
    shown = cli(*recall)
    for reason in ("bm25_text #1", "bm25_exact #1", "knn_text #1", "fused 1.000", "recency"):
        assert reason in shown
    assert "2026-03-04" in shown
    assert re.search(r"took: embed \d+ ms, search \d+ ms", shown)
    assert re.search(r'"query_vector": ".{8}…"', shown)
    answer = cli.json(*recall)
    [hit] = answer["hits"]
    assert hit["fields"]["steps"] == [
        {"text": "switch it off at the wall"},
        {"text": "wait ten minutes"},
    ]
    assert hit["event_time"] == "2026-03-04T03:00:00Z"
    for search in answer["searches"]:
        assert {"term": {"tags": "kiln"}} in _conditions(search["body"])


def _conditions(node: Any) -> list[Any]:
    """Every condition of every filter in a body."""
    if isinstance(node, list):
        return [each for item in node for each in _conditions(item)]
    if not isinstance(node, dict):
        return []
    own = node["filter"] if isinstance(node.get("filter"), list) else []
    return [*own, *_conditions(list(node.values()))]


def test_nothing_known_is_an_answer(cli: Cli) -> None:
    # of any kind but the catalog, which is everybody's
    own = [part for kind in ("episodic", "semantic", "procedural") for part in ("--kind", kind)]
    recall = ("recall", "--user", NEWCOMER, "anything?", *own)
    assert cli(*recall) == "Nothing is known about that.\n"


def test_a_corpus_is_indexed_once_and_its_bad_lines_are_named(cli: Cli, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    lines: list[dict[str, Any]] = [
        {"id": "a", "user": TOM, "text": "the bees swarmed", "session": "s", "turn": 0},
        {"id": "b", "user": TOM, "text": " "},
        {"id": "c", "user": SARAH, "kind": "semantic", "text": "keeps bees", "mood": "glad"},
        {"id": "d", "kind": "catalog", "text": "Bees swarm in May", "title": "Bees"},
    ]
    corpus.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    done = cli.run("index", str(corpus), "--json")
    report = json.loads(done.out)
    assert done.code == 1
    assert (report["created"], report["duplicate"], report["failed"]) == (3, 0, 1)
    assert report["errors"] == [
        f"{corpus}, line 2: text: is empty; give at least one visible character"
    ]
    assert done.err == f"error: {report['errors'][0]}\n"
    again = cli.run("index", str(corpus))
    assert again.out.startswith("0 written, 3 already there, 1 refused (")


def test_the_reader_of_the_output_may_leave(cli: Cli) -> None:
    with subprocess.Popen(
        [MEMORY_ES, "status", "--json"],
        env=dict(cli.environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout
        assert process.stderr
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1  # done in part


def test_a_recall_with_the_default_models_imports_neither_torch_nor_its_libraries(
    cli: Cli,
) -> None:
    script = """
import sys
from memory_es.cli import main
try:
    main()
except SystemExit as end:
    assert not end.code
assert "onnxruntime" in sys.modules
print(sorted({"torch", "transformers", "sentence_transformers", "scipy"} & set(sys.modules)))
"""
    words = ["recall", "--user", NEWCOMER, "anything?"]
    done = run_apart([sys.executable, "-c", script, *words], cli.environment)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


# --- evaluation ---


def test_eval_prints_the_object_that_programs_rest_on(cli: Cli, tmp_path: Path) -> None:
    report = cli.json(
        *("eval", "run", "--suite", "sample", "--recipe", "bm25", "--out", str(tmp_path / "runs"))
    )
    assert report.keys() == {
        "suite",
        "queries",
        "recipes",
        "leaks",
        "swept",
        "latency_ms",
        "fingerprint",
    }
    assert (report["suite"], report["queries"], report["leaks"]) == ("sample", 60, 0)
    assert report["recipes"].keys() == {"bm25"}
    scores = report["recipes"]["bm25"]
    assert scores.keys() >= MEASURES | {"by_category"}
    for row in (scores, *scores["by_category"].values()):
        assert row.keys() >= MEASURES
        assert all(0 <= row[name] <= 1 for name in MEASURES)
        assert row["R@1"] <= row["R@5"] <= row["R@10"] <= row["R@80"]
    assert scores["R@10"] > 0.3
    assert {"search", "total"} <= report["latency_ms"].keys()
    for stage in report["latency_ms"].values():
        assert 0 <= stage["p50"] <= stage["p95"]
    assert report["fingerprint"]
    [run_file] = (tmp_path / "runs").iterdir()
    assert json.loads(run_file.read_text("utf-8")) == report


# --- errors: an exit code, one line on stderr, what to do ---

RECALL = ("recall", "--user", SARAH)
REMEMBER = ("remember", "--user", SARAH)


@pytest.mark.parametrize(
    ("arguments", "settings", "code", "says"),
    [
        (("recall", "--user", "nobody", "tea"), {}, 5, r"\[unknown_user\].*memory-es users add"),
        ((*RECALL, " \u200b "), {}, 2, "query: .*at least one visible character"),
        ((*RECALL, "tea", "-k", "0"), {}, 2, "k: .*greater than or equal to 1"),
        ((*RECALL, "tea", "--kind", "dream"), {}, 2, "kinds.*episodic.*catalog"),
        ((*RECALL, "tea", "--recipe", "magic"), {}, 2, "recipe: 'magic' is none of bm25"),
        ((*RECALL, "tea", "--recipe", "reranked"), {}, 8, "MEMORY_ES_RERANKER_MODEL"),
        ((*REMEMBER, "  "), {}, 2, "text: .*at least one visible character"),
        ((*REMEMBER, "tea", "--kind", "dream"), {}, 2, "kind: 'dream' is none of episodic"),
        (("index", "/no/such.jsonl"), {}, 4, r"/no/such\.jsonl"),
        (("eval", "run", "--suite", "nope"), {}, 4, "Use one of .*sample"),
        (("users", "add", "x"), {"MEMORY_ES_PREFIX": "never_made"}, 3, "memory-es init"),
        (("down",), {"MEMORY_ES_SHARDS": "many"}, 2, "MEMORY_ES_SHARDS: is no whole number"),
        (("down",), {"MEMORY_ES_HEAP": "lots"}, 2, "MEMORY_ES_HEAP: .*512m or 2g"),
        (
            (*RECALL, "tea", "--since", "lately"),
            {},
            2,
            r"filters\.since: is no date",
        ),
        ((*REMEMBER, "tea", "--at", "yesterday"), {}, 2, "event_time: is no date; write it like"),
        ((*REMEMBER, "tea", "--kind", "procedural"), {}, 2, "name: is missing"),
        ((*REMEMBER, "tea", "--name", "x"), {}, 2, "name: is not known here; leave it out"),
        (("users", "add", ""), {}, 2, "user: is empty. Name the user"),
        (("users", "add", SARAH, "--expires", "3w"), {}, 2, "expires: '3w' .*12h or 90d"),
        (("users", "rotate", SARAH, "--overlap", "1y"), {}, 2, "overlap: '1y' .*12h or 90d"),
        (("users", "whoami"), {}, 2, "user: is empty"),
        (("users", "revoke", "nobody"), {}, 4, "'nobody' is not known here"),
        (("eval", "run"), {}, 2, "give either --suite NAME or --data PATH"),
        (("eval", "run", "--data", "/no/such"), {}, 4, "/no/such/corpus"),
        (("eval", "run", "--data", "evals/sample/corpus.jsonl"), {}, 2, "name the folder"),
        (("index", "evals"), {}, 4, "Is a directory. Name a file of JSON lines"),
        (("eval", "run", "--suite", "sample", "--out", "/proc/x"), {}, 3, "/proc/x.*Use a path"),
        (("recall", "tea"), {"MEMORY_ES_CREDENTIALS": "/"}, 3, "damaged. Write there what"),
        (("eval", "run", "--suite", "sample", "--user", "bob"), {}, 2, "Use maya, tomas"),
        (
            ("recall", "tea"),
            {"MEMORY_ES_CREDENTIALS": "/no/key"},
            3,
            "/no/key.*users add USER",
        ),
        ((*REMEMBER, "tea"), {"MEMORY_ES_EMBEDDING_MODEL": "/no/model"}, 8, "no folder /no/model"),
        (("users", "list"), {"MEMORY_ES_SERVICE_PASSWORD": "no"}, 5, "MEMORY_ES_SERVICE_PASSWORD"),
        (("init",), {"MEMORY_ES_LANGUAGES": "thai"}, 3, "Set MEMORY_ES_LANGUAGES=english"),
        (
            ("status",),
            {
                "ELASTICSEARCH_URL": "http://127.0.0.1:1",
                "ELASTICSEARCH_USERNAME": "elastic",
                "ELASTICSEARCH_PASSWORD": "hush",
            },
            7,
            r"cannot be reached.*memory-es up",
        ),
    ],
)
def test_an_error_has_its_exit_code_and_one_line_that_says_what_to_do(
    cli: Cli, arguments: tuple[str, ...], settings: dict[str, str], code: int, says: str
) -> None:
    done = cli.run(*arguments, settings=settings)
    assert (done.code, done.out) == (code, "")
    assert re.fullmatch(r"error \[[a-z_]+\]: .+\n", done.err)
    assert re.search(says, done.err)
    assert "hush" not in done.err


def test_no_command_tells_its_debug_log_what_was_said(cli: Cli, state_dir: Path) -> None:
    """CASEBOOK I8: the run's end searches what stands here for every text and secret."""
    said = "The heron on the weathervane is called Cornelius"
    lines = []
    for arguments in (
        ("users", "rotate", SARAH, "--overlap", "1h"),
        (*REMEMBER, said, "--kind", "semantic"),
        (*RECALL, said, "--prompt"),
        ("recall", "--user", "nobody", said),
        ("doctor", "--security"),
    ):
        lines.append(cli.run(*arguments, settings={"MEMORY_ES_LOG_LEVEL": "DEBUG"}).err)
        assert "elastic_transport" in lines[-1]
        assert said not in lines[-1]
    (state_dir / "logged" / "commands.log").write_text("".join(lines), "utf-8")


def test_without_a_node_every_command_says_how_to_start_one(cli: Cli, tmp_path: Path) -> None:
    empty = {"MEMORY_ES_STATE_DIR": str(tmp_path)}
    for arguments in (("status",), ("users", "add", "x")):
        done = cli.run(*arguments, settings=empty)
        assert (done.code, done.out) == (7, "")
        assert re.fullmatch(r"error \[node_down\]: .*`memory-es up`.*\n", done.err)
    assert cli("down", settings=empty) == "It was not running.\n"
    assert list(tmp_path.iterdir()) in ([], [tmp_path / "lock"])


def test_standard_input_that_is_not_utf8_is_refused(cli: Cli) -> None:
    done = cli.run(*REMEMBER, "-", given="ชา".encode("cp874"))
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error [invalid_input]: text: standard input is not UTF-8. ")


def test_a_missing_user_is_asked_for(cli: Cli) -> None:
    done = cli.run("recall", "tea")
    assert (done.code, done.out) == (2, "")
    assert "user: is empty" in done.err


def test_a_missing_argument_is_explained_by_the_usage(cli: Cli) -> None:
    done = cli.run("recall", "--user", "sarah")
    assert (done.code, done.out) == (2, "")
    assert "Usage: memory-es recall" in done.err
    assert "query" in done.err
