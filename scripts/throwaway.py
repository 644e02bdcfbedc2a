"""A deployment for one benchmark: under a prefix of its own, removed afterwards."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from memory_es import Platform, Settings, indices, security, service_account
from memory_es.models import Embedder


@contextmanager
def throwaway(embedder: Embedder | None = None, **settings: Any) -> Iterator[Platform]:
    """An initialised deployment on the node in use; its keys end and its indices go with it."""
    chosen = Settings.load(prefix=f"bench_{int(time.time())}", **settings)
    with Platform(chosen, embedder=embedder) as platform:
        platform.init()
        try:
            yield platform
        finally:
            live = [key.key_id for key in platform.list_keys() if key.state == "live"]
            security.invalidate(platform.service(), live)
            admin = platform.admin()
            if admin is None:
                raise SystemExit(
                    "set ELASTICSEARCH_USERNAME and ELASTICSEARCH_PASSWORD to clean up"
                )
            indices.remove(admin, platform.placement)
            service_account.remove(admin, platform.placement)
