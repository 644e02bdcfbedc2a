"""What the statistics of a word tell a user's key about a word that only somebody else wrote.

Elasticsearch's document-level security filters documents, not the statistics of terms, which a
shard keeps for all. docs/security.md says what is left; these tests hold it to that.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from elasticsearch import ApiError, Elasticsearch

from memory_es import Memory, Platform
from memory_es.schema import Kind
from memory_es.text import routing
from tests.doubles import HashingEmbedder

FIELD = "content.standard"
#: How many of the other's memories have the word.
TIMES = 4


@dataclass
class Pair:
    """Two users on one shard: one wrote ``word`` four times; the other asks."""

    platform: Platform
    memory: Memory
    client: Elasticsearch
    index: str
    place: str
    word: str

    def search(self, **body: Any) -> dict[str, Any]:
        answer = self.client.search(index=self.index, routing=self.place, **body)
        found: dict[str, Any] = answer.body
        return found

    def texts(self, **query: Any) -> list[str]:
        return [hit["_source"]["text"] for hit in self.search(query=query)["hits"]["hits"]]


@pytest.fixture(scope="module", params=["dls", "index"])
def platform(new_platform: Callable[..., Platform], request: pytest.FixtureRequest) -> Platform:
    """One shard: everybody shares its statistics, where they are shared at all."""
    mode = str(request.param)
    on = "trial" if mode == "dls" else "basic"
    return new_platform(isolation=mode, on=on, shards=1, embedder=HashingEmbedder())


@pytest.fixture
def pair(platform: Platform) -> Pair:
    mark = uuid.uuid4().hex[:8]
    other, asking = f"other {mark}", f"asking {mark}"
    platform.add_user(other)
    credentials, _ = platform.add_user(asking)
    word = f"zq{mark}"
    platform.for_user(other).remember_many(
        [{"kind": "semantic", "text": f"the {word} number {n} sleeps"} for n in range(TIMES)]
    )
    memory = platform.for_user(asking)
    memory.remember(f"my dog whistles at noon{mark}", kind="semantic")
    memory.remember(f"my cat {word[:-1]}{_after(word)} whistles", kind="semantic")
    place = routing(asking)
    key = credentials.api_key.get_secret_value()
    return Pair(
        platform,
        memory,
        platform.client().options(api_key=key),
        platform.placement.index(Kind.SEMANTIC, place),
        place,
        word,
    )


def _after(word: str) -> str:
    """A letter that makes a neighbour of the word, behind it in the order of terms."""
    return chr(ord(word[-1]) + 1) if word[-1] not in "9f" else "z"


def _aggregation(pair: Pair, **aggregation: Any) -> dict[str, Any]:
    found = pair.search(query={"match_all": {}}, size=0, aggs={"s": aggregation})
    result: dict[str, Any] = found["aggregations"]["s"]
    return result


def test_no_call_tells_the_frequency_of_a_word_that_only_another_wrote(pair: Pair) -> None:
    match = {"match": {FIELD: pair.word}}
    assert pair.search(query=match, explain=True)["hits"]["hits"] == []
    beside = {"bool": {"must": [{"match_all": {}}], "should": [match]}}
    explained = json.dumps(pair.search(query=beside, explain=True)["hits"]["hits"])
    assert "number of documents containing term" not in explained
    assert pair.search(query={"match_all": {}}, size=0, aggs={"s": {"filter": match}})[
        "aggregations"
    ]["s"] == {"doc_count": 0}
    text: dict[str, Any] = {"field": FIELD, "min_doc_count": 1, "source_fields": ["text"]}
    for background in ({}, {"background_filter": match}):
        counted = _aggregation(pair, significant_text={**text, **background})
        assert counted["bg_count"] <= 2  # one's own
        assert pair.word not in json.dumps(counted)
    refusals: list[Callable[[], Any]] = [
        lambda: pair.client.termvectors(
            index=pair.index,
            routing=pair.place,
            doc={"text": pair.word},
            term_statistics=True,
            fields=[FIELD],
        ),
        lambda: pair.client.explain(index=pair.index, id="x", routing=pair.place, query=match),
        lambda: pair.client.terms_enum(index=pair.index, field=FIELD, string=pair.word),
    ]
    for refused in refusals:
        with pytest.raises(ApiError) as caught:
            refused()
        assert caught.value.status_code == 403


def test_once_one_has_written_the_word_too_explain_and_scores_show_the_shards_frequency(
    pair: Pair,
) -> None:
    pair.memory.remember(f"I wrote {pair.word} as well", kind="semantic")
    match = {"match": {FIELD: pair.word}}
    [hit] = pair.search(query=match, explain=True)["hits"]["hits"]
    shown = re.findall(
        r'"value": (\d+), "description": "n, number of documents containing term',
        json.dumps(hit["_explanation"]),
    )
    shared = not pair.platform.placement.by_index
    assert shown == [str(1 + TIMES if shared else 1)]
    counted = pair.search(
        query=match,
        size=0,
        aggs={
            "s": {
                "significant_text": {
                    "field": FIELD,
                    "min_doc_count": 1,
                    "source_fields": ["text"],
                }
            }
        },
    )["aggregations"]["s"]
    assert counted["bg_count"] == 3  # background counts are filtered: one's own memories
    assert {bucket["bg_count"] for bucket in counted["buckets"]} == {1}


def _threshold(pair: Pair, most: int) -> bool:
    """Whether the word is known to be in more than ``most`` documents: ``more_like_this`` drops a
    word above its threshold, so that a memory without it matches."""
    like = f"{pair.word} {pair.texts(match={FIELD: 'dog'})[0].split()[-1]}"
    return bool(
        pair.texts(
            more_like_this={
                "fields": [FIELD],
                "like": [like],
                "min_term_freq": 1,
                "min_doc_freq": 1,
                "max_doc_freq": most,
                "minimum_should_match": "100%",
            }
        )
    )


def test_thresholds_and_expansions_tell_of_words_where_a_shard_is_shared_and_only_there(
    pair: Pair,
) -> None:
    """The residue under document-level security: by yes and no, of a word that was guessed."""
    shared = not pair.platform.placement.by_index
    answers = [_threshold(pair, most) for most in (TIMES - 1, TIMES)]
    assert answers == ([True, False] if shared else [True, True])
    neighbour = pair.texts(match={FIELD: "cat"})[0]
    stem = pair.word[:-1]
    first = {"prefix": {FIELD: {"value": stem, "rewrite": "top_terms_1"}}}
    one_off = {"fuzzy": {FIELD: {"value": f"{stem}!", "fuzziness": 1, "max_expansions": 1}}}
    for query in (first, one_off):
        assert (pair.texts(**query) == [neighbour]) is not shared
