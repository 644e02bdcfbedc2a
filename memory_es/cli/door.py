"""The way from a command to the deployment: settings, log lines, the warning of going without."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from memory_es.cli.output import say

if TYPE_CHECKING:
    from memory_es.config import Settings
    from memory_es.platform import Platform


def read_settings() -> Settings:
    """The settings of this call; log lines and warnings as they say."""
    from memory_es.config import INSECURE, Settings

    settings = Settings.load()
    logging.basicConfig(level=settings.log_level, format="%(asctime)s %(name)s %(message)s")
    if settings.log_level in {"WARNING", "ERROR"}:  # attempts are not worth a line each
        for library in ("elastic_transport", "sentence_transformers"):
            logging.getLogger(library).setLevel(logging.ERROR)
        os.environ.setdefault("HF_HUB_VERBOSITY", "error")
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    if settings.isolation == INSECURE:
        say(
            "warning: --insecure-single-user: no keys, no isolation, no stamp. Whoever reaches this"
            " Elasticsearch reads and changes every memory; a second user is refused"
        )
    return settings


def open_platform() -> Platform:
    """The deployment of these settings. Sends nothing."""
    from memory_es.platform import Platform

    return Platform(read_settings(), progress=say)
