"""Work behind the call: a thread that calls a function now and then, until closed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from memory_es.errors import MemoryEsError

_log = logging.getLogger(__name__)


class Behind:
    """Calls ``flush`` every ``interval`` seconds from one daemon thread, which starts with the
    first ``wake``; ``close`` stops it and calls ``flush`` a last time.

    ``flush`` keeps what it could not do for its next call. Its failures are logged with their
    code, never raised: nobody waits for them.
    """

    def __init__(self, name: str, flush: Callable[[], None], *, interval: float) -> None:
        self._name = name
        self._flush = flush
        self._interval = interval
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def wake(self) -> None:
        """Make sure that the thread runs. Returns at once."""
        with self._lock:
            if self._thread is None and not self._stop.is_set():
                self._thread = threading.Thread(
                    target=self._run, name=f"memory-es-{self._name}", daemon=True
                )
                self._thread.start()

    def close(self) -> None:
        """Stop the thread and flush what is left."""
        with self._lock:
            self._stop.set()
            thread = self._thread
        if thread is not None:
            thread.join()
        self._try("lost")

    def _run(self) -> None:
        while not self._stop.wait(self._interval):
            self._try("delayed")

    def _try(self, fate: str) -> None:
        try:
            self._flush()
        except MemoryEsError as error:
            _log.warning("%s %s: %s", self._name, fate, error.code)
        except Exception as error:  # noqa: BLE001 -- the thread must outlive one bad row
            _log.warning("%s %s: %s", self._name, fate, type(error).__name__)
