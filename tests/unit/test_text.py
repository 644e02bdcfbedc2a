from __future__ import annotations

import itertools
import string
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from memory_es.text import (
    clean,
    codes,
    document_id,
    has_words,
    identity,
    is_blank,
    matching_languages,
    owner_id,
    passages,
    routing,
    scripts,
    usage_id,
    user_secret,
)

#: Any string that Python can hold, lone surrogates and NUL included.
anything = st.text(st.characters(exclude_categories=()))
parts = st.lists(st.one_of(st.text(max_size=5), st.integers(0, 99)), min_size=1, max_size=4)
LANGUAGES = ("arabic", "bengali", "cjk", "english", "hindi", "persian", "thai")


# --- clean ---


@given(anything)
def test_cleaning_twice_is_cleaning_once(text: str) -> None:
    assert clean(clean(text)) == clean(text)


@given(anything)
def test_a_clean_text_is_composed_trimmed_and_encodable(text: str) -> None:
    cleaned = clean(text)
    assert unicodedata.is_normalized("NFC", cleaned)
    assert cleaned == cleaned.strip()
    assert cleaned.encode("utf-8").decode("utf-8") == cleaned
    assert not set(cleaned) & {chr(code) for code in range(32)} - set("\t\n\r")


@given(anything)
def test_cleaning_loses_no_visible_character(text: str) -> None:
    visible = [char for char in unicodedata.normalize("NFC", text) if char.isalnum()]
    assert [char for char in clean(text) if char.isalnum()] == visible


@pytest.mark.parametrize(
    ("dirty", "expected"),
    [
        ("abc\x00def", "abcdef"),
        ("a\ud800b\udfffc", "abc"),
        ("e\u0301", "\u00e9"),
        ("e\x00\u0301", "\u00e9"),
        ("  two\n\tlines \r\n", "two\n\tlines"),
        ("bell\x07 and escape\x1b[0m", "bell and escape[0m"),
        ("گربه\u200cی من", "گربه\u200cی من"),
        ("👩\u200d🚀", "👩\u200d🚀"),
        ("", ""),
    ],
)
def test_cleaning_strips_what_cannot_be_stored_and_keeps_joiners(dirty: str, expected: str) -> None:
    assert clean(dirty) == expected


# --- blank, words ---


@pytest.mark.parametrize("text", ["", "   ", "\n\t", "\u200b", "\ufeff\u200d", "\u00a0", "\x00"])
def test_text_without_a_visible_character_is_blank(text: str) -> None:
    assert is_blank(text)


@pytest.mark.parametrize("text", [".", ";)", "a", "🙂", " \u200bก"])
def test_text_with_a_visible_character_is_not_blank(text: str) -> None:
    assert not is_blank(text)


@pytest.mark.parametrize("text", ["", "...", ";)", "—?!", "  ", "\u200b"])
def test_punctuation_alone_is_no_words(text: str) -> None:
    assert not has_words(text)


@pytest.mark.parametrize("text", ["a", "7", "🙂", "แมว", "猫", "!ok!"])
def test_letters_digits_and_emoji_are_words(text: str) -> None:
    assert has_words(text)


# --- identity, ids ---


@given(anything)
@example("\u01f0")  # case folding takes it apart
@example("\u03aa\u0301")
@example("\u1fb7")
def test_the_identity_of_an_identity_is_itself(text: str) -> None:
    assert identity(identity(text)) == identity(text)


@given(st.text(string.ascii_letters + " .,!", min_size=1))
def test_case_and_spacing_do_not_change_an_identity(text: str) -> None:
    spaced = "  " + text.replace(" ", " \n\t ") + "\r\n"
    assert identity(text) == identity(spaced) == identity(text.upper()) == identity(text.lower())


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Likes okra", "Likes okra?"),
        ("2 children", "3 children"),
        ("allergic to peanuts", "allergic to penicillin"),
        ("re-sign", "resign"),
    ],
)
def test_identity_forgets_neither_punctuation_nor_numbers_nor_words(one: str, other: str) -> None:
    assert identity(one) != identity(other)


def test_equal_texts_in_other_unicode_forms_and_cases_have_one_identity() -> None:
    forms = ["Zo\u00eb in STRASSE", "zoe\u0308 in straße", " ZOE\u0308  in\nStrasse "]
    assert len({identity(form) for form in forms}) == 1
    assert identity("\u03aa\u0301") == identity("\u0390")  # one Greek letter, upper and lower


@given(st.text(min_size=1))
def test_routing_is_short_hex_whatever_the_user(user: str) -> None:
    assert len(routing(user)) == 32
    assert set(routing(user)) <= set("0123456789abcdef")


@given(st.text(min_size=1), st.text(min_size=1))
def test_an_owner_is_a_kind_and_an_id_so_that_a_team_of_that_name_is_another(
    user: str, other: str
) -> None:
    assert owner_id(user) == f"user:{user}"
    assert (owner_id(user) == owner_id(other)) == (user == other)


def test_a_usage_row_is_bound_to_its_owner_too() -> None:
    memory = "0" * 40
    rows = {usage_id(routing(user), memory) for user in ("ann", "bob")}
    assert len(rows) == 2
    assert all(len(row) == 40 and row != memory for row in rows)
    assert usage_id("ab", "c") != usage_id("a", "bc")


def test_users_that_look_alike_are_routed_apart() -> None:
    users = ["ann", "Ann", "ann ", "a,nn", "an,n", "*", "_all", "ann\u0301"]
    assert len({routing(user) for user in users}) == len(users)


@given(parts, parts)
@example(["ab", "c"], ["a", "bc"])
@example(["a,b"], ["a", "b"])
@example(['a","b'], ["a", "b"])
@example([1], ["1"])
@example(["a", ""], ["a"])
def test_document_ids_are_equal_only_for_equal_parts(
    one: list[str | int], other: list[str | int]
) -> None:
    assert (document_id("s", *one) == document_id("s", *other)) == (one == other)


def test_a_document_id_is_forty_hex_digits_that_depend_on_the_secret() -> None:
    ids = {document_id(secret, "semantic", "likes tea", 0) for secret in ("one", "two", "")}
    assert len(ids) == 3
    assert all(len(id_) == 40 and set(id_) <= set("0123456789abcdef") for id_ in ids)


def test_a_users_secret_depends_on_the_deployment_and_the_user_and_shows_neither() -> None:
    secrets = {
        user_secret(deployment, user) for deployment, user in itertools.product("xy", ["u1", "u2"])
    }
    assert len(secrets) == 4
    assert all(len(secret) == 64 for secret in secrets)
    # another purpose with the same parts gives another value
    assert user_secret("x", "u1")[:40] != document_id("x", "u1")


# --- codes ---


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Is it 4.2.1-beta3 or 4.2.1?", ["4.2.1-beta3", "4.2.1"]),
        ("E-1043. Then (XJ-9921), E-1043 again", ["E-1043", "XJ-9921"]),
        ("in 2026, 300 times", []),
        ("well-known and/or so", []),
        ("mail a1@b.org, #42, path /opt/v2", ["a1@b.org", "opt/v2"]),
        ("HP_20417 or _9921_", ["HP_20417"]),
        ("", []),
    ],
)
def test_codes_are_tokens_with_a_digit_that_are_no_plain_number(
    text: str, expected: list[str]
) -> None:
    assert codes(text) == expected


@given(st.text("aB4.-_/:#+@ ,\n٣", max_size=40))
def test_codes_occur_in_the_text_once_each_and_in_order(text: str) -> None:
    found = codes(text)
    assert len(set(found)) == len(found)
    assert all(any(char.isdigit() for char in code) and not code.isdigit() for code in found)
    rest = text
    for code in found:
        assert code in rest
        rest = rest[rest.index(code) :]


# --- scripts, languages ---


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello", {"LATIN"}),
        ("แมวของฉันชื่อส้ม", {"THAI"}),
        ("گربه\u200cی من", {"ARABIC"}),
        ("周末 かな カナ 한글", {"CJK"}),
        ("আমি চা খাই", {"BENGALI"}),
        ("मुझे चाय", {"DEVANAGARI"}),
        ("Tom กับ 猫", {"LATIN", "THAI", "CJK"}),
        ("4.2.1 🙂 ;)", set()),
    ],
)
def test_scripts_are_those_of_the_letters(text: str, expected: set[str]) -> None:
    assert scripts(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ชื่อส้ม", ("thai",)),
        ("骑自行车", ("cjk",)),
        ("گربه", ("arabic", "persian")),
        ("what did Tom say about ส้ม", ("english", "thai")),
        ("Ελληνικά", LANGUAGES),  # no analyzer for its script: try them all
        ("4.2.1", LANGUAGES),
    ],
)
def test_the_languages_of_a_query_follow_from_its_script(
    text: str, expected: tuple[str, ...]
) -> None:
    assert matching_languages(text, LANGUAGES) == expected


@given(anything, st.lists(st.sampled_from(LANGUAGES), min_size=1, unique=True).map(tuple))
def test_matching_languages_are_configured_ones_in_their_order_and_never_none(
    text: str, languages: tuple[str, ...]
) -> None:
    found = matching_languages(text, languages)
    assert found
    assert found == tuple(name for name in languages if name in found)


# --- passages ---

_sentences = st.lists(st.text("ab .,\n🙂éก猫", max_size=60), min_size=1, max_size=12).map(". ".join)


@given(_sentences, st.integers(5, 50))
@example("x" * 500, 20)
@example("🙂" * 30 + "\n\n" + "ก" * 90, 25)
def test_passages_cover_every_word_once_within_their_size(text: str, size: int) -> None:
    found = passages(text, size=size)
    end_before = 0
    for start, end in found:
        assert end_before <= start < end <= len(text)
        assert end - start <= size
        assert not text[end_before:start].strip()
        end_before = end
    assert not text[end_before:].strip()


def test_passages_break_between_sentences_where_they_can() -> None:
    text = "The kiln is red. The wheel is blue. The glaze is old."
    assert [text[start:end] for start, end in passages(text, size=36)] == [
        "The kiln is red. The wheel is blue.",
        "The glaze is old.",
    ]


def test_a_text_that_fits_is_one_passage() -> None:
    assert passages("short", size=800) == [(0, 5)]
