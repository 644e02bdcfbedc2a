from __future__ import annotations

import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from memory_es.credentials import MAX_KEY_NAME, UserCredentials, check_user_id, key_name
from memory_es.errors import InvalidInput


@pytest.mark.parametrize(
    "user_id",
    [
        "sarah",
        "Sarah",
        "a b",
        "a,b",
        'say "hi"',
        "back\\slash",
        "*",
        "_all",
        "../x",
        "-",
        "สมหญิง",
        "👩\u200d🚀",
        "e\u0301",
        "a\u200cb",
        "x" * 200,
        "x" * 247,
        '"' * 123,
        "🙂" * 123,
    ],
)
def test_ordinary_and_odd_user_ids_are_taken_as_they_are(user_id: str) -> None:
    assert check_user_id(user_id) == user_id


@pytest.mark.parametrize(
    "user_id",
    [
        "",
        " ",
        "\u200b",
        " sarah",
        "sarah\n",
        "sa\nrah",
        "sa\x00rah",
        "sa\x7frah",
        "sa\x85rah",
        "sa\x9brah",
        "sa\ud800rah",
        "\u00a0sarah",
        "x" * 248,
        '"' * 124,
        "🙂" * 124,
        None,
        7,
        ["sarah"],
    ],
)
def test_other_user_ids_are_refused_by_one_rule(user_id: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_user_id(user_id)
    assert caught.value.field == "user"
    assert "\n" not in str(caught.value)


@given(
    st.text(st.characters(exclude_categories=()), max_size=6).map(lambda text: text * 60)
    | st.text(max_size=300)
)
def test_an_accepted_user_id_fits_a_key_name_and_has_no_control_characters(user_id: str) -> None:
    try:
        check_user_id(user_id)
    except InvalidInput:
        return
    assert len(key_name(user_id).encode("utf-16-le")) // 2 <= MAX_KEY_NAME
    assert not {unicodedata.category(char) for char in user_id} & {"Cc", "Cs"}
    assert user_id == user_id.strip()


@given(st.text(max_size=8), st.text(max_size=8))
def test_key_names_differ_wherever_user_ids_do(one: str, other: str) -> None:
    assert (key_name(one) == key_name(other)) == (one == other)
    assert key_name(one).startswith('memory:"')


def test_credentials_reveal_their_secrets_only_when_asked() -> None:
    credentials = UserCredentials(
        user_id="sarah", key_id="k1", api_key=SecretStr("hush"), id_secret=SecretStr("hidden")
    )
    for shown in (repr(credentials), str(credentials), credentials.model_dump_json()):
        assert "sarah" in shown
        assert "hush" not in shown
        assert "hidden" not in shown
    revealed = credentials.revealed()
    assert (revealed["api_key"], revealed["id_secret"]) == ("hush", "hidden")
    assert UserCredentials.model_validate(revealed) == credentials
