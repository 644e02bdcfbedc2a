"""Who a user is: the rule for user ids, and the credentials of one user."""

from __future__ import annotations

import json
import unicodedata
from datetime import datetime
from typing import Literal

from pydantic import SecretStr

from memory_es.errors import InvalidInput
from memory_es.schema import Frozen
from memory_es.text import is_blank

#: Characters (UTF-16 units) of a key's name, a limit of Elasticsearch.
MAX_KEY_NAME = 256

#: What a user's key may do: recall, or recall and remember.
Access = Literal["read", "write"]


def check_user_id(user_id: str) -> str:
    """The one rule for user ids: any Unicode text that is not blank, has no control characters,
    lone surrogates or outer white space, and whose quoted form fits into a key's name (256
    characters with ``memory:``). Ids that differ in any code point are different users.

    Raises:
        InvalidInput: field ``user``.
    """
    if not isinstance(user_id, str) or is_blank(user_id):
        raise InvalidInput("user", "is empty", remedy="Name the user whose memories you mean")
    if user_id != user_id.strip() or any(
        unicodedata.category(char) in ("Cc", "Cs") for char in user_id
    ):
        raise InvalidInput("user", "has outer white space, control characters or lone surrogates")
    if len(key_name(user_id).encode("utf-16-le")) // 2 > MAX_KEY_NAME:
        raise InvalidInput(
            "user", "is too long", remedy="Use at most 247 characters (a quote counts twice)"
        )
    return user_id


def key_name(user_id: str) -> str:
    """Name of a user's key. A key can read its name back, not its metadata."""
    return "memory:" + json.dumps(user_id, ensure_ascii=False)


class UserCredentials(Frozen):
    """What an agent needs to act for one user: the key, and the secret of its document ids.

    Where nothing keeps users apart (one user, security off) there is no key: it is empty.
    """

    user_id: str
    key_id: str
    api_key: SecretStr
    id_secret: SecretStr
    access: Access = "write"
    expires_at: datetime | None = None

    def revealed(self) -> dict[str, str | None]:
        """The fields in clear, for the owner's file or the operator's secret store."""
        return self.model_dump(mode="json") | {
            "api_key": self.api_key.get_secret_value(),
            "id_secret": self.id_secret.get_secret_value(),
        }
