"""How many content words the questions of a suite share with their answers, and what it holds.

    python -m scripts.overlap evals/personas

A question's overlap is the share of its content words (no stop words, endings cut) that stand in an
answering memory, averaged over its evidence. Thai is written without spaces and its vowel
signs are no letters to `\\w`: there the runs of letters between them are what is counted, which are
no words, so that the overlap of questions in Thai is a rough figure.
"""

from __future__ import annotations

import re
import statistics
import sys
from collections import Counter, defaultdict
from pathlib import Path

from memory_es.corpus import Question
from memory_es.suites import Suite, load_suite

_STOP_WORDS = (
    "a an the and or but if of to in on at by for with from as is am are was were be been being do"
    " does did doing have has had having i me my mine we us our you your he him his she her hers it"
    " its they them their this that these those what which who whom whose when where why how not no"
    " nor so than then too very can could will would shall should may might must just about into"
    " over under again there here all any both each more most some such only own same s t don now d"
    " ll m o re ve y got get go going"
)
_STOP = frozenset(_STOP_WORDS.split())
_ENDING = re.compile(r"(?<=\w{3})(?:ingly|ing|edly|ed|ies|es|s|ly)$")


def content_words(text: str) -> set[str]:
    """Words that carry meaning, without endings."""
    words = re.findall(r"\w+", text.lower())
    return {_ENDING.sub("", word) for word in words if word not in _STOP}


def overlap(question: str, answers: list[str]) -> float:
    """Share of the question's content words in each answer, averaged: 0 to 1."""
    asked = content_words(question)
    shares = [len(asked & content_words(answer)) / max(1, len(asked)) for answer in answers]
    return statistics.fmean(shares)


def overlaps(suite: Suite) -> list[tuple[Question, float]]:
    """Every question that has an answer, with its overlap."""
    texts = {entry.memory.external_id: entry.memory.embedded_text for entry in suite.entries}
    return [
        (question, overlap(question.text, [texts[id_] for id_ in question.evidence]))
        for question in suite.questions
        if question.evidence
    ]


def main(folder: Path) -> None:
    """Print the counts and the medians."""
    suite = load_suite(folder)
    kinds = Counter((entry.user or "(shared)", entry.memory.kind.value) for entry in suite.entries)
    for (user, kind), count in sorted(kinds.items()):
        print(f"{user:12} {kind:12} {count:4}")
    found: dict[str, list[float]] = defaultdict(list)
    for question, share in overlaps(suite):
        for group in ("all", f"user {question.user}", question.category or ""):
            found[group].append(share)
    print(f"\n{'questions':24} {'n':>4} {'median overlap':>15}")
    for group, shares in found.items():
        print(f"{group:24} {len(shares):4} {statistics.median(shares):15.2f}")
    without = sum(not question.evidence for question in suite.questions)
    print(f"{'without an answer':24} {without:4}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
