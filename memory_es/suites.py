"""Evaluation suites: where they are found and what they hold."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from memory_es import resources
from memory_es.corpus import CorpusEntry, Question, read_corpus, read_locomo, read_questions
from memory_es.errors import InvalidInput, NotFound


@dataclass(frozen=True)
class Suite:
    """A corpus, its questions, and the time at which they are asked."""

    name: str
    entries: Sequence[CorpusEntry]
    questions: Sequence[Question]
    fingerprint: str
    #: The suite's own now: the time of its latest memory or question, also where it is limited.
    now: datetime

    @property
    def users(self) -> list[str]:
        """Everybody who owns a memory or asks a question."""
        owners = (entry.user for entry in self.entries if entry.user is not None)
        return list(dict.fromkeys([*owners, *(question.user for question in self.questions)]))

    def limited_to(self, users: Sequence[str]) -> Suite:
        """The memories and questions of some users, and what all share.

        Raises:
            InvalidInput: the suite has no such user.
        """
        for user in users:
            if user not in self.users:
                known = ", ".join(self.users)
                raise InvalidInput("--user", f"{self.name} has no {user!r}", remedy=f"Use {known}")
        chosen = [user for user in self.users if user in users]
        return Suite(
            self.name,
            [entry for entry in self.entries if entry.user is None or entry.user in chosen],
            [question for question in self.questions if question.user in chosen],
            hashlib.sha256(json.dumps([self.fingerprint, chosen]).encode()).hexdigest()[:16],
            self.now,
        )


def suite_names() -> list[str]:
    """Suites that ship with the project."""
    return sorted(path.parent.name for path in resources.folder("evals").glob("*/queries.jsonl"))


def named_suite(name: str) -> Suite:
    """A suite of ``evals/``. Raises NotFound naming those that exist."""
    if name not in suite_names():
        raise NotFound(
            f"there is no suite {name!r}",
            code="no_suite",
            remedy=f"Use one of {', '.join(suite_names())}, or --data with a path",
        )
    return load_suite(resources.folder("evals") / name)


def load_suite(path: Path) -> Suite:
    """A folder with ``corpus.jsonl`` and ``queries.jsonl``, or LoCoMo's published JSON.

    Raises:
        NotFound: a file is missing.
        InvalidInput: a bad line, an id used twice, evidence that is not in the corpus.
    """
    if path.is_file():
        entries, questions = read_locomo(path)
        files = [path]
    else:
        files = [path / "corpus.jsonl", path / "queries.jsonl"]
        entries = list(read_corpus(files[0]))
        questions = list(read_questions(files[1]))
    _check(path, entries, questions)
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    return Suite(
        path.stem if path.is_file() else path.resolve().name,
        entries,
        questions,
        digest.hexdigest()[:16],
        max(_times(entries, questions), default=datetime(2026, 1, 1, tzinfo=UTC)),
    )


def _times(entries: Sequence[CorpusEntry], questions: Sequence[Question]) -> list[datetime]:
    times = [entry.memory.event_time for entry in entries]
    times += [question.timestamp for question in questions]
    return [moment for moment in times if moment]


def _check(path: Path, entries: Sequence[CorpusEntry], questions: Sequence[Question]) -> None:
    owners: dict[str, str | None] = {}
    for entry in entries:
        id_ = str(entry.memory.external_id)
        if id_ in owners:
            raise InvalidInput(f"{path}, corpus line {entry.line}", f"id {id_!r} is used twice")
        owners[id_] = entry.user
    asked: set[str] = set()
    for question in questions:
        if question.id in asked:
            raise InvalidInput(str(path), f"question id {question.id!r} is used twice")
        asked.add(question.id)
        for id_ in question.evidence:
            if id_ not in owners or owners[id_] not in (None, question.user):
                raise InvalidInput(
                    f"{path}, question {question.id}",
                    f"its evidence {id_!r} is no memory of {question.user!r} in the corpus",
                )
