from __future__ import annotations

from typing import Any

import pytest

from memory_es import errors
from memory_es.errors import InvalidInput, MemoryEsError, NotFound, Unavailable
from memory_es.schema import parse_new_memory


def tree(cls: type[MemoryEsError]) -> list[type[MemoryEsError]]:
    return [cls, *(each for child in cls.__subclasses__() for each in tree(child))]


TREE = tree(MemoryEsError)


def make(cls: type[MemoryEsError], **options: str) -> MemoryEsError:
    if issubclass(cls, InvalidInput):
        return cls("field", "what happened", **options)
    return cls("what happened", **options)


def test_the_tree_has_at_most_eight_classes_drawn_in_the_docstring() -> None:
    assert len(TREE) <= 8
    for cls in TREE:
        assert cls.__module__ == "memory_es.errors"
        assert cls.__name__ in (errors.__doc__ or "")
        assert cls.__doc__


def test_exit_codes_and_default_codes_are_unique_and_documented() -> None:
    assert len({cls.exit_code for cls in TREE}) == len(TREE)
    assert len({cls.default_code for cls in TREE}) == len(TREE)
    lines = (errors.__doc__ or "").splitlines()
    for cls in TREE[1:]:
        [line] = [line for line in lines if f" {cls.__name__} " in line]
        assert line.endswith(f"exit {cls.exit_code}")
    assert 0 not in {cls.exit_code for cls in TREE}


def test_only_an_unavailable_cluster_is_worth_a_retry() -> None:
    assert [cls for cls in TREE if cls.retryable] == [Unavailable]


@pytest.mark.parametrize("cls", TREE)
def test_an_error_has_a_code_a_message_and_a_remedy(cls: type[MemoryEsError]) -> None:
    error = make(cls)
    assert (error.code, error.remedy) == (cls.default_code, None)
    assert str(error).endswith("what happened")
    error = make(cls, code="special", remedy="Do this")
    assert (error.code, error.remedy) == ("special", "Do this")
    assert str(error).endswith("what happened. Do this")
    assert error.message.endswith("what happened")


def test_an_invalid_input_names_its_field() -> None:
    error = InvalidInput("k", "is too small")
    assert (error.field, str(error)) == ("k", "k: is too small")


def test_every_error_is_caught_as_ours() -> None:
    with pytest.raises(MemoryEsError):
        raise NotFound("nothing here")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"text": "x", "kind": "procedural"}, "name: is missing"),
        ({"text": "x", "name": "y"}, "name: is not known here; leave it out"),
        ({"text": "x", "event_time": "yesterday"}, "event_time: is no date; write it like 2026-"),
        ({"text": "x", "kind": "semantic", "confidence": "high"}, "confidence: is no number"),
        ({"text": "x", "turn": 1.5}, "turn: is no whole number"),
        ({"text": 7}, "text: is not text"),
        ({"text": "x", "kind": "semantic", "confidence": 3}, "confidence: should be less than or"),
    ],
)
def test_a_wrong_field_is_named_with_what_to_do(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_new_memory(fields)
    assert str(caught.value).startswith(said)
