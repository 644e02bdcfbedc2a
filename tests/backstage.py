"""A look behind the scenes: what no product code may do."""

from __future__ import annotations

import os
from pathlib import Path

from elasticsearch import Elasticsearch

from memory_es import Platform, Settings, indices, service_account, store
from memory_es.config import INSECURE
from memory_es.node import NodeInfo
from tests import leaks


def admin_of(platform: Platform) -> Elasticsearch:
    """An administrator's client: plants what nobody else may, and looks at everything."""
    admin = platform.admin()
    assert admin is not None
    return admin


def admin_of_node(info: NodeInfo) -> Elasticsearch:
    """The same on a node without a deployment. It logs no bodies either: its requests are ours."""
    url_only = Settings.load(elasticsearch_url=info.url)
    login = (info.username, info.password.get_secret_value())
    return store.connect(info.url, url_only).options(basic_auth=login)


def remove(platform: Platform) -> None:
    """Everything that ``init`` made for a deployment, and nothing else."""
    platform.close()  # first: it writes what is still in memory
    with Platform(platform.settings) as cleaner:
        admin = admin_of(cleaner)
        leaks.note_texts(Path(os.environ["TESTS_OF_MEMORY_ES"]), admin, cleaner.placement)
        indices.remove(admin, cleaner.placement)
        if cleaner.settings.isolation != INSECURE:
            service_account.remove(admin, cleaner.placement)
