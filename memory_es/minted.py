"""Short-lived keys for a server process: made on demand, kept in memory, ended at shutdown."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import datetime, timedelta

from memory_es.credentials import UserCredentials
from memory_es.errors import MemoryEsError, Unavailable

_log = logging.getLogger(__name__)
#: How long such a key is valid, and how long before its end it is replaced: longer than any
#: request takes.
LIFETIME = "15m"
MARGIN = timedelta(minutes=2)


class MintedKeys:
    """One key a user, made when first asked for and again shortly before it ends.

    A killed process leaves its keys to end by themselves, within ``LIFETIME``.
    """

    def __init__(
        self,
        mint: Callable[[str], UserCredentials],
        end: Callable[[list[str]], None],
        clock: Callable[[], datetime],
    ) -> None:
        self._mint = mint
        self._end = end
        self._clock = clock
        self._lock = threading.Lock()
        self._making: dict[str, threading.Lock] = {}
        self._keys: dict[str, UserCredentials] = {}
        self._made: list[UserCredentials] = []
        self._closed = False

    def of(self, user_id: str) -> UserCredentials:
        """A user's key. Many threads that ask at once get one. Raises what minting raises, and
        Unavailable once closed."""
        with self._lock:
            making = self._making.setdefault(user_id, threading.Lock())
        with making:
            with self._lock:
                found = self._keys.get(user_id)
            if found is None or self._ending(found):
                found = self._mint(user_id)
                with self._lock:
                    late = self._closed
                    if not late:
                        self._keys[user_id] = found
                        self._made = [key for key in self._made if not self._ended(key)] + [found]
                if late:
                    self._end([found.key_id])
                    raise Unavailable("the platform was closed", remedy="Open it again")
            return found

    def _ending(self, key: UserCredentials) -> bool:
        return key.expires_at is not None and key.expires_at - MARGIN <= self._clock()

    def _ended(self, key: UserCredentials) -> bool:
        return key.expires_at is not None and key.expires_at <= self._clock()

    def drop(self, credentials: UserCredentials) -> None:
        """Forget a key that the cluster refused; the next call makes another, if it may."""
        with self._lock:
            if self._keys.get(credentials.user_id) == credentials:
                del self._keys[credentials.user_id]

    def close(self) -> None:
        """End every key that was made here."""
        with self._lock:
            self._closed = True
            ids = [key.key_id for key in self._made if not self._ended(key)]
            self._keys.clear()
            self._made.clear()
        if ids:
            try:
                self._end(ids)
            except MemoryEsError as error:
                _log.warning("%d keys not ended, they end within %s: %s", len(ids), LIFETIME, error)
