"""memory_es: long-term memory for AI agents on Elasticsearch.

>>> from memory_es import Memory                             # doctest: +SKIP
>>> memory = Memory.connect().for_user("sarah")              # doctest: +SKIP
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memory_es.config import Settings
    from memory_es.credentials import UserCredentials
    from memory_es.memory import Memory
    from memory_es.platform import Platform
    from memory_es.render import prompt_block

__version__ = "0.1.0"
__all__ = ["Memory", "Platform", "Settings", "UserCredentials", "prompt_block"]
_HOMES = {
    "Memory": "memory_es.memory",
    "Platform": "memory_es.platform",
    "Settings": "memory_es.config",
    "UserCredentials": "memory_es.credentials",
    "prompt_block": "memory_es.render",
}


def __getattr__(name: str) -> Any:
    """Import on first use: ``memory-es --help`` must not pay for Elasticsearch's client."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(name)
