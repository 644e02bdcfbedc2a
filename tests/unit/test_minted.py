from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from pydantic import SecretStr

from memory_es.credentials import UserCredentials
from memory_es.errors import Unavailable
from memory_es.minted import MintedKeys

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_a_key_that_is_being_made_while_the_process_ends_is_ended_too() -> None:
    ended: list[str] = []

    def mint(user_id: str) -> UserCredentials:
        keys.close()  # as another thread would, while Elasticsearch makes the key
        return UserCredentials(
            user_id=user_id,
            key_id="k1",
            api_key=SecretStr("of-no-use"),
            id_secret=SecretStr("of-no-use"),
            expires_at=NOW + timedelta(minutes=15),
        )

    keys = MintedKeys(mint, ended.extend, lambda: NOW)
    with pytest.raises(Unavailable, match="closed"):
        keys.of("ann")
    assert ended == ["k1"]
