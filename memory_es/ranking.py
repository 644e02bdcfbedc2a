"""Ranking as arithmetic: fusion, blending, priors. Pure functions, properties tested."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TypeVar

from memory_es.documents import UsageRow
from memory_es.schema import Kind

K = TypeVar("K", bound=Hashable)

#: Rank constant of the blend of fused rank and reranker rank (measured on LoCoMo-dev).
BLEND_CONSTANT = 10
#: Priors move a score by at most this share, until relevance is calibrated (DESIGN §6: at most
#: ±10 %). With rank constant 10, first and second of all legs are 12/11 apart: ±4 % (1.04/0.96)
#: cannot turn them round, ±10 % lets a fresh, much used irrelevance pass the answer (CASEBOOK R12).
PRIOR_BOUND = 0.04
#: Days after which the recency prior has halved, by kind; the catalog does not age.
RECENCY_DAYS = {Kind.EPISODIC: 180.0, Kind.SEMANTIC: 90.0, Kind.PROCEDURAL: 180.0}
#: A memory used this often has the full usage prior.
FULL_USAGE = 100
_PRIOR_WEIGHTS = {
    "recency": 0.4,
    "usage": 0.3,
    "confidence": 0.3,
    "source": 0.5,
    "outcome": 0.5,
}


def rrf(
    rankings: Mapping[str, Mapping[K, int]], weights: Mapping[str, float], *, constant: int
) -> dict[K, float]:
    """Weighted reciprocal rank fusion (Cormack, Clarke and Büttcher, SIGIR 2009).

    Args:
        rankings: per leg, the 1-based rank of each item that it found.
        weights: weight of each leg.
        constant: the rank constant k.

    Returns:
        Scores in [0, 1]: the sum of w / (k + rank), over its greatest possible value, so that
        kinds with different numbers of legs compare.
    """
    total = sum(weights.values()) / (constant + 1)
    scores: dict[K, float] = {}
    for leg, ranking in rankings.items():
        for item, rank in ranking.items():
            scores[item] = scores.get(item, 0.0) + weights[leg] / (constant + rank)
    return {item: score / total for item, score in scores.items()}


def ordered(scores: Mapping[K, float], *, tie: Mapping[K, str]) -> list[K]:
    """Best first; equal scores by ``tie`` (the document id), so that an order is total."""
    return sorted(scores, key=lambda item: (-scores[item], tie[item]))


def ranks_of(items: Iterable[K]) -> dict[K, int]:
    """1-based ranks of a sequence, first occurrence first."""
    ranks: dict[K, int] = {}
    for item in items:
        ranks.setdefault(item, len(ranks) + 1)
    return ranks


def ranks_by_score(scores: Mapping[K, float]) -> dict[K, int]:
    """1-based ranks, best first. Equal scores share a rank (1, 1, 3): two memories of the same
    text are then told apart by their priors and not by the order in which they were written."""
    ranks: dict[K, int] = {}
    before: tuple[float, int] | None = None
    for position, item in enumerate(sorted(scores, key=lambda key: -scores[key]), start=1):
        rank = before[1] if before and before[0] == scores[item] else position
        ranks[item] = rank
        before = (scores[item], rank)
    return ranks


def blend(fused: Sequence[K], reranked: Sequence[K]) -> dict[K, float]:
    """RRF of the fused order and the reranker's: measured better than the reranker alone."""
    return rrf(
        {"fused": ranks_of(fused), "rerank": ranks_of(reranked)},
        {"fused": 1.0, "rerank": 1.0},
        constant=BLEND_CONSTANT,
    )


def recency(age_days: float, half_days: float) -> float:
    """Gaussian decay in (0, 1]: 1 for now or the future, 0.5 at ``half_days``."""
    return math.exp(-math.log(2) * (max(age_days, 0.0) / half_days) ** 2)


def priors(
    *,
    kind: Kind,
    event_time: datetime,
    usage: UsageRow | None,
    confidence: float | None,
    now: datetime,
) -> dict[str, float]:
    """Each prior of a memory, in [-1, 1]; 0 is neutral.

    Episodes age from when they happened, facts and playbooks from their last use.
    """
    found: dict[str, float] = {}
    if kind is Kind.CATALOG:
        return {"source": -0.5}  # the user's own memory wins a near tie
    last_used = usage.last_used_at if usage else None
    since = event_time if kind is Kind.EPISODIC or last_used is None else last_used
    age_days = (now - since).total_seconds() / 86_400
    found["recency"] = 2 * recency(age_days, RECENCY_DAYS[kind]) - 1
    if usage and usage.use_count:
        found["usage"] = min(1.0, math.log1p(usage.use_count) / math.log1p(FULL_USAGE))
    if confidence is not None and confidence < 1:
        found["confidence"] = max(-1.0, confidence - 1)
    if usage and (usage.success_count or usage.failure_count):
        # Laplace's rule of succession, mapped from [0, 1] to [-1, 1]
        rate = (usage.success_count + 1) / (usage.success_count + usage.failure_count + 2)
        found["outcome"] = 2 * rate - 1
    return found


def with_priors(score: float, found: Mapping[str, float]) -> float:
    """A score in [0, 1] moved by its priors by at most PRIOR_BOUND, scaled back into [0, 1]."""
    lift = sum(_PRIOR_WEIGHTS[name] * value for name, value in found.items())
    return score * (1 + PRIOR_BOUND * max(-1.0, min(1.0, lift))) / (1 + PRIOR_BOUND)


def contenders(fused: Sequence[K], scores: Mapping[K, float], k: int) -> list[K]:
    """Those of an ordered list that bounded priors could still lift into the first ``k``."""
    if len(fused) <= k:
        return list(fused)
    floor = scores[fused[k - 1]] * (1 - PRIOR_BOUND) / (1 + PRIOR_BOUND)
    return [item for item in fused if scores[item] >= floor]
