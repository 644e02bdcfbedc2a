"""Bulk indexing against its floor, as ratios from one run.

- without embedding: our write path (validation, ids, duplicate check, bodies) against the
  client's `elasticsearch.helpers.bulk` with the very same bodies;
- with embedding: our write path against encoding the same texts and nothing else.

    .venv/bin/python -m scripts.bench_index [--documents 20000] [--embedded 1000]
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Sequence
from datetime import UTC, datetime

import numpy as np
from elasticsearch import helpers

from memory_es import Platform
from memory_es.models import Embedder, Vectors, unit
from memory_es.placement import alias
from memory_es.schema import Kind, NewFact
from memory_es.text import owner_id, routing
from scripts.throwaway import throwaway

SEED = 20_261_130
ROUNDS = 3
_WORDS = ("garden", "violin", "harbour", "ticket", "sister", "kettle", "river", "market", "coffee")


class RandomVectors:
    """An embedder without a model: vectors drawn at random, as fast as memory allows."""

    name = "random"
    dims = 384

    def __init__(self) -> None:
        self._rows: Vectors = unit(np.random.default_rng(SEED).normal(size=(4_096, self.dims)))

    def passages(self, texts: Sequence[str]) -> Vectors:
        """See Embedder."""
        rows: Vectors = self._rows[np.arange(len(texts)) % len(self._rows)]
        return rows

    def query(self, _text: str) -> Vectors:
        """See Embedder."""
        first: Vectors = self._rows[0]
        return first


def texts(count: int) -> list[str]:
    """Distinct sentences of chat length."""
    draw = random.Random(SEED)  # noqa: S311 -- not cryptography
    return [f"{number}: {' '.join(draw.choices(_WORDS, k=14))}" for number in range(count)]


def write_all(platform: Platform, user: str, facts: Sequence[NewFact]) -> float:
    """Seconds that our write path takes."""
    memory = platform.for_user(platform.mint(user))
    started = time.perf_counter()
    results = list(memory.remember_many(facts))
    took = time.perf_counter() - started
    assert all(result.status == "created" for result in results)  # noqa: S101
    return took


def bulk_all(platform: Platform, user: str, source_user: str, count: int) -> float:
    """Seconds that helpers.bulk takes for the bodies that the write path stored."""
    service = platform.service()
    index = alias(platform.settings.prefix, Kind.SEMANTIC)
    hits = helpers.scan(
        service,
        index=index,
        query={
            "query": {"term": {"owner_id": owner_id(source_user)}},
            "_source": {"exclude_vectors": False},
        },
        size=1_000,
    )
    actions = []
    for hit in hits:
        source = hit["_source"]
        del source["owner"]
        source["embedding"] = helpers.pack_dense_vector(source["embedding"])
        actions.append(
            {
                "_op_type": "create",
                "_index": index,
                "_id": f"{user}-{hit['_id']}",
                "routing": routing(user),
                "_source": source,
            }
        )
    assert len(actions) == count, "the floor must do the same work"  # noqa: S101
    key = platform.mint(user).api_key.get_secret_value()
    client = platform.client().options(api_key=key)
    started = time.perf_counter()
    helpers.bulk(client, actions)
    client.indices.refresh(index=index)
    return time.perf_counter() - started


def without_embedding(count: int) -> list[float]:
    """Ratio of rates (ours over helpers.bulk) of each round."""
    facts = [NewFact(text=text) for text in texts(count)]
    ratios = []
    with throwaway(RandomVectors(), embedding_model="random") as platform:
        write_all(platform, "warm", facts)
        for number in range(ROUNDS):
            ours = write_all(platform, f"ours{number}", facts)
            theirs = bulk_all(platform, f"bulk{number}", f"ours{number}", count)
            ratios.append(theirs / ours)
            print(
                f"without embedding: ours {count / ours:,.0f} documents/s,"
                f" helpers.bulk {count / theirs:,.0f}: ratio {theirs / ours:.2f}"
            )
    return ratios


def with_embedding(count: int) -> list[float]:
    """Ratio of rates (ours over encoding alone) of each round."""
    ratios = []
    with throwaway() as platform:
        embedder: Embedder = platform.embedder()
        facts = [NewFact(text=text) for text in texts(count)]
        write_all(platform, "warm", facts[:100])
        for number in range(ROUNDS):
            started = time.perf_counter()
            for start in range(0, count, 256):
                embedder.passages([fact.text for fact in facts[start : start + 256]])
            encode = time.perf_counter() - started
            ours = write_all(platform, f"ours{number}", facts)
            ratios.append(encode / ours)
            print(
                f"with embedding: ours {count / ours:,.0f} documents/s,"
                f" encoding alone {count / encode:,.0f}: ratio {encode / ours:.2f}"
            )
    return ratios


def main() -> None:
    """Run both and print medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=20_000)
    parser.add_argument("--embedded", type=int, default=1_000)
    options = parser.parse_args()
    bulk = statistics.median(without_embedding(options.documents))
    encode = statistics.median(with_embedding(options.embedded))
    print(
        json.dumps(
            {
                "at": datetime.now(UTC).isoformat(timespec="seconds"),
                "bulk_ratio": round(bulk, 2),
                "encode_ratio": round(encode, 2),
            }
        )
    )


if __name__ == "__main__":
    main()
