"""Recall against its floor, as ratios from one run: our whole `recall` over the memories of one
user, against the bare `_msearch` of the same body plus embedding the query.

    .venv/bin/python -m scripts.bench_recall [--memories 10000] [--queries 200]
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Sequence
from datetime import UTC, datetime

import numpy as np
from elasticsearch import Elasticsearch

from memory_es import Memory, Platform
from memory_es.models import Embedder, Vectors, unit
from memory_es.schema import NewEpisode
from scripts.throwaway import throwaway

SEED = 20_261_130
_WORDS = ("garden", "violin", "harbour", "ticket", "sister", "kettle", "river", "market", "coffee")


class FastPassages:
    """The real model for queries; random vectors for the 10,000 stored texts, whose meaning
    does not matter for time."""

    def __init__(self, model: Embedder) -> None:
        self._model = model
        self.name, self.dims = model.name, model.dims
        self._draw = np.random.default_rng(SEED)

    def passages(self, texts: Sequence[str]) -> Vectors:
        """See Embedder."""
        rows = self._draw.normal(size=(len(texts), self.dims))
        return unit(rows)

    def query(self, text: str) -> Vectors:
        """See Embedder."""
        return self._model.query(text)


def percentile(values: list[float], share: float) -> float:
    """Milliseconds at that percentile."""
    return float(np.percentile(values, share) * 1_000)


def measure(
    platform: Platform,
    memory: Memory,
    client: Elasticsearch,
    queries: list[str],
    *,
    priors: bool,
) -> float:
    """Print both times and return their ratio (medians). The two are run in turn, the floor with
    the user's own client."""
    floor: list[float] = []
    ours: list[float] = []
    for query in queries:
        started = time.perf_counter()
        result = memory.recall(query, priors=priors, touch=False)
        ours.append(time.perf_counter() - started)
        lines = [part for search in result.searches for part in (search["header"], search["body"])]
        started = time.perf_counter()
        platform.embedder().query(query)
        client.msearch(searches=lines)
        floor.append(time.perf_counter() - started)
    ratio = percentile(ours, 50) / percentile(floor, 50)
    print(
        f"priors {'on' if priors else 'off'}: recall p50 {percentile(ours, 50):.1f} ms,"
        f" p95 {percentile(ours, 95):.1f}; embedding + bare _msearch p50"
        f" {percentile(floor, 50):.1f} ms, p95 {percentile(floor, 95):.1f}: ratio {ratio:.2f}"
    )
    return ratio


def main() -> None:
    """Index, warm, measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--memories", type=int, default=10_000)
    parser.add_argument("--queries", type=int, default=200)
    options = parser.parse_args()
    draw = random.Random(SEED)  # noqa: S311 -- not cryptography
    with Platform() as real:
        model = FastPassages(real.embedder())
    with throwaway(model) as platform:
        credentials = platform.mint("one")
        memory = platform.for_user(credentials)
        client = platform.client().options(api_key=credentials.api_key.get_secret_value())
        episodes = (
            NewEpisode(text=" ".join(draw.choices(_WORDS, k=14)), session_id="s", turn=number)
            for number in range(options.memories)
        )
        written = sum(r.status == "created" for r in memory.remember_many(episodes))
        queries = [" ".join(draw.choices(_WORDS, k=6)) for _ in range(options.queries)]
        for query in queries[:50]:
            memory.recall(query, touch=False)
        off = measure(platform, memory, client, queries, priors=False)
        on = measure(platform, memory, client, queries, priors=True)
    print(
        json.dumps(
            {
                "at": datetime.now(UTC).isoformat(timespec="seconds"),
                "memories": written,
                "recall_ratio": round(off, 2),
                "recall_ratio_with_priors": round(on, 2),
            }
        )
    )


if __name__ == "__main__":
    main()
