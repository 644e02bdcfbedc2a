"""A look behind the scenes: what no product code may do."""

from __future__ import annotations

import os
from pathlib import Path

from elasticsearch import Elasticsearch

from memory_es import Platform, indices, service_account
from memory_es.config import INSECURE
from tests import leaks


def admin_of(platform: Platform) -> Elasticsearch:
    """An administrator's client: plants what nobody else may, and looks at everything."""
    admin = platform.admin()
    assert admin is not None
    return admin


def remove(platform: Platform) -> None:
    """Everything that ``init`` made for a deployment, and nothing else."""
    platform.close()  # first: it writes what is still in memory
    with Platform(platform.settings) as cleaner:
        admin = admin_of(cleaner)
        leaks.note_texts(Path(os.environ["MEMORY_ES_TEST_STATE"]), admin, cleaner.placement)
        indices.remove(admin, cleaner.placement)
        if cleaner.settings.isolation != INSECURE:
            service_account.remove(admin, cleaner.placement)
