from __future__ import annotations

import itertools
import math
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from memory_es.documents import UsageRow
from memory_es.ranking import (
    BLEND_CONSTANT,
    FULL_USAGE,
    PRIOR_BOUND,
    RECENCY_DAYS,
    blend,
    contenders,
    ordered,
    priors,
    ranks_by_score,
    ranks_of,
    recency,
    rrf,
    with_priors,
)
from memory_es.schema import OWNED, Kind

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)
ITEMS = "abcdefghij"
LEGS = ("bm25_text", "bm25_context", "knn_text")

BEST = {"recency": 1.0, "usage": 1.0, "outcome": 1.0}
WORST = {"recency": -1.0, "confidence": -1.0, "outcome": -1.0}
#: The least score that the best priors can lift to a score of 1 with the worst ones.
LEAST = (1 - PRIOR_BOUND) / (1 + PRIOR_BOUND)

orders = st.lists(st.sampled_from(ITEMS), unique=True)
rankings = st.dictionaries(st.sampled_from(LEGS), orders.map(ranks_of), min_size=1)
weights = st.fixed_dictionaries({leg: st.floats(0.01, 5) for leg in LEGS})
scores = st.dictionaries(st.sampled_from(ITEMS), st.floats(0, 1), min_size=1)
kinds = st.sampled_from(Kind)
ages = st.floats(0, 20_000).map(lambda days: timedelta(days=days))
unit = st.floats(0, 1)
names = st.sampled_from(["recency", "usage", "confidence", "source", "outcome"])
lifts = st.dictionaries(names, st.floats(-1, 1))


@st.composite
def usage_rows(draw: st.DrawFn) -> UsageRow:
    age = draw(st.one_of(st.none(), ages))
    count = st.integers(0, 10_000)
    return UsageRow(
        owner={},
        kind=Kind.SEMANTIC,
        use_count=draw(count),
        last_used_at=None if age is None else NOW - age,
        success_count=draw(count),
        failure_count=draw(count),
    )


# --- fusion ---


@given(rankings, weights, st.integers(1, 100))
def test_fused_scores_lie_between_zero_and_one(
    found: dict[str, dict[str, int]], by_leg: dict[str, float], constant: int
) -> None:
    fused = rrf(found, by_leg, constant=constant)
    assert all(0 < score <= 1 + 1e-12 for score in fused.values())
    assert fused.keys() == {item for ranking in found.values() for item in ranking}


@given(rankings, weights, st.randoms(use_true_random=False))
def test_fusion_does_not_depend_on_the_order_of_its_input(
    found: dict[str, dict[str, int]], by_leg: dict[str, float], random: object
) -> None:
    def shuffled(mapping: dict[str, object]) -> dict[str, object]:
        keys = list(mapping)
        random.shuffle(keys)  # type: ignore[attr-defined]
        return {key: mapping[key] for key in keys}

    again = rrf(
        {leg: shuffled(ranking) for leg, ranking in shuffled(found).items()},  # type: ignore[arg-type, misc]
        by_leg,
        constant=30,
    )
    once = rrf(found, by_leg, constant=30)
    assert again.keys() == once.keys()
    assert all(math.isclose(again[item], score) for item, score in once.items())


@given(rankings, weights, st.sampled_from(ITEMS))
def test_a_better_rank_in_a_leg_never_lowers_a_fused_score(
    found: dict[str, dict[str, int]], by_leg: dict[str, float], item: str
) -> None:
    leg = next(iter(found))
    worse = {**found, leg: {**found[leg], item: 50}}
    better = {**found, leg: {**found[leg], item: 3}}
    without = {**found, leg: {key: rank for key, rank in found[leg].items() if key != item}}
    scored = [rrf(each, by_leg, constant=30).get(item, 0.0) for each in (better, worse, without)]
    assert scored[0] > scored[1] > scored[2]


def test_first_in_every_leg_is_exactly_one() -> None:
    by_leg = {"one": 1.0, "two": 0.5}
    assert rrf({"one": {"a": 1}, "two": {"a": 1}}, by_leg, constant=30) == {"a": 1.0}
    assert rrf({"one": {"a": 1}}, by_leg, constant=30)["a"] == pytest.approx(2 / 3)
    assert rrf({}, by_leg, constant=30) == {}


@given(scores)
def test_an_order_is_total_and_best_first(found: dict[str, float]) -> None:
    order = ordered(found, tie={key: key for key in found})
    again = ordered(dict(reversed(found.items())), tie={key: key for key in found})
    assert order == again
    assert sorted(order) == sorted(found)
    for one, other in itertools.pairwise(order):
        assert (-found[one], one) < (-found[other], other)


@given(st.lists(st.sampled_from(ITEMS)))
def test_ranks_count_from_one_by_first_occurrence(items: list[str]) -> None:
    ranks = ranks_of(items)
    assert list(ranks.values()) == list(range(1, len(ranks) + 1))
    assert list(ranks) == list(dict.fromkeys(items))


@given(scores)
def test_ranks_by_score_count_the_better_and_equal_scores_share_one(
    found: dict[str, float],
) -> None:
    ranks = ranks_by_score(found)
    assert ranks == {
        item: 1 + sum(other > score for other in found.values()) for item, score in found.items()
    }


def test_ties_by_score_share_the_best_rank() -> None:
    assert ranks_by_score({"a": 0.5, "b": 0.9, "c": 0.9, "d": 0.1}) == {
        "b": 1,
        "c": 1,
        "a": 3,
        "d": 4,
    }


@given(st.permutations(ITEMS), st.permutations(ITEMS))
def test_a_blend_ranks_what_both_orders_prefer_first(fused: list[str], reranked: list[str]) -> None:
    blended = blend(fused, reranked)
    assert blend(reranked, fused) == pytest.approx(blended)
    assert all(0 < score <= 1 + 1e-12 for score in blended.values())
    first, second = ranks_of(fused), ranks_of(reranked)
    for one in ITEMS:
        for other in ITEMS:
            if first[one] < first[other] and second[one] < second[other]:
                assert blended[one] > blended[other]


def test_a_blend_of_one_order_with_itself_keeps_it() -> None:
    blended = blend("abc", "abc")
    assert blended["a"] == pytest.approx(1.0)
    assert blended["b"] == pytest.approx((BLEND_CONSTANT + 1) / (BLEND_CONSTANT + 2))
    assert ordered(blended, tie={item: item for item in "abc"}) == ["a", "b", "c"]


# --- priors ---


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(1, 1_000))
def test_recency_never_grows_with_age(one: float, other: float, half: float) -> None:
    younger, older = sorted((one, other))
    assert 0 <= recency(older, half) <= recency(younger, half) <= 1


def test_recency_is_one_now_and_in_the_future_and_half_at_its_scale() -> None:
    assert recency(0, 90) == recency(-5, 90) == 1
    assert recency(90, 90) == pytest.approx(0.5)


@given(kinds, ages, st.one_of(st.none(), usage_rows()), st.one_of(st.none(), unit))
def test_each_prior_lies_between_minus_one_and_one(
    kind: Kind, age: timedelta, usage: UsageRow | None, confidence: float | None
) -> None:
    found = priors(kind=kind, event_time=NOW - age, usage=usage, confidence=confidence, now=NOW)
    assert all(-1 <= value <= 1 for value in found.values())
    assert found.keys() <= {"recency", "usage", "confidence", "source", "outcome"}
    assert with_priors(0.5, found)  # every prior has a weight


def _found(kind: Kind, **given_: object) -> dict[str, float]:
    base = {"event_time": NOW, "usage": None, "confidence": None, "now": NOW}
    return priors(kind=kind, **(base | given_))  # type: ignore[arg-type]


def test_a_fresh_memory_that_was_never_used_has_its_recency_alone() -> None:
    for kind in OWNED:
        assert _found(kind, confidence=1.0) == {"recency": 1.0}


def test_the_catalog_neither_ages_nor_outranks_a_near_tie() -> None:
    used = UsageRow(owner={}, kind=Kind.CATALOG, use_count=9)
    old = NOW - timedelta(days=5_000)
    assert _found(Kind.CATALOG, event_time=old, usage=used) == {"source": -0.5}
    assert with_priors(0.6, {"source": -0.5}) < with_priors(0.6, {})


def test_episodes_age_from_their_event_and_facts_from_their_last_use() -> None:
    old, yesterday = NOW - timedelta(days=900), NOW - timedelta(days=1)
    used = UsageRow(owner={}, kind=Kind.SEMANTIC, use_count=1, last_used_at=yesterday)
    assert _found(Kind.EPISODIC, event_time=old, usage=used)["recency"] < -0.99
    for kind in (Kind.SEMANTIC, Kind.PROCEDURAL):
        assert _found(kind, event_time=old, usage=used)["recency"] > 0.99
        assert _found(kind, event_time=old)["recency"] < -0.9
        half = _found(kind, event_time=NOW - timedelta(days=RECENCY_DAYS[kind]))
        assert half["recency"] == pytest.approx(0.0)


def test_usage_grows_by_its_logarithm_up_to_its_full_value() -> None:
    def usage(count: int) -> float:
        row = UsageRow(owner={}, kind=Kind.SEMANTIC, use_count=count)
        return _found(Kind.SEMANTIC, usage=row).get("usage", 0.0)

    values = [usage(count) for count in (0, 1, 2, 10, 40, FULL_USAGE, 10 * FULL_USAGE)]
    assert values == sorted(values)
    assert (values[0], values[-2], values[-1]) == (0.0, 1.0, 1.0)


def test_outcomes_lift_what_worked_and_lower_what_failed() -> None:
    def outcome(success: int, failure: int) -> float:
        row = UsageRow(owner={}, kind=Kind.PROCEDURAL, success_count=success, failure_count=failure)
        return _found(Kind.PROCEDURAL, usage=row)["outcome"]

    assert outcome(3, 3) == 0
    assert outcome(9, 0) > outcome(1, 0) > 0 > outcome(0, 1) > outcome(0, 9)


@given(unit, lifts)
def test_priors_move_a_score_by_at_most_their_bound_and_keep_it_a_score(
    score: float, found: dict[str, float]
) -> None:
    assert 0 < PRIOR_BOUND <= 0.10
    moved, neutral = with_priors(score, found), with_priors(score, {})
    assert 0 <= moved <= 1
    assert (1 - PRIOR_BOUND) * neutral <= moved + 1e-12
    assert moved <= (1 + PRIOR_BOUND) * neutral + 1e-12


@given(unit, unit, lifts)
def test_equal_priors_keep_the_order_of_relevance(
    one: float, other: float, found: dict[str, float]
) -> None:
    low, high = sorted((one, other))
    assert with_priors(low, found) <= with_priors(high, found)


@given(st.sampled_from(OWNED), unit, ages, ages)
def test_of_two_equal_memories_the_older_is_never_ahead(
    kind: Kind, score: float, one: timedelta, other: timedelta
) -> None:
    young, old = sorted((one, other))
    fresh, stale = (with_priors(score, _found(kind, event_time=NOW - age)) for age in (young, old))
    assert stale <= fresh


def test_no_prior_lifts_an_irrelevant_memory_over_a_relevant_one() -> None:
    assert with_priors(0.8, WORST) > with_priors(0.6, BEST)


@given(
    st.lists(st.tuples(st.floats(0, 1), lifts), min_size=1, max_size=30),
    st.integers(1, 12),
)
@example([(1.0, WORST), (LEAST, BEST), (LEAST - 1e-6, BEST)], 1)
@example([(0.5, {}), (0.5, {"usage": 1.0}), (0.0, {"usage": 1.0})], 2)
def test_contenders_hold_every_memory_that_priors_could_lift_into_the_first_k(
    memories: list[tuple[float, dict[str, float]]], k: int
) -> None:
    fused = {f"{position:02}": score for position, (score, _) in enumerate(memories)}
    tie = {item: item for item in fused}
    order = ordered(fused, tie=tie)
    moved = {item: with_priors(fused[item], memories[int(item)][1]) for item in order}
    kept = contenders(order, fused, k)
    assert kept == order[: len(kept)]
    best = ordered(moved, tie=tie)[:k]
    assert ordered({item: moved[item] for item in kept}, tie=tie)[:k] == best


def test_contenders_leave_out_what_priors_cannot_lift() -> None:
    fused = {"a": 1.0, "b": (1 + LEAST) / 2, "c": LEAST, "d": LEAST - 1e-6}
    assert contenders(list(fused), fused, 1) == ["a", "b", "c"]
    assert contenders(list(fused), fused, 9) == ["a", "b", "c", "d"]
    assert contenders([], {}, 3) == []
