"""Where a deployment keeps what: the name of every index and alias, by its way of isolation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from memory_es.config import Isolation
from memory_es.schema import OWNED, Kind

#: What serves the memories. Users' keys write none of these.
SERVING = ("usage", "state", "audit")


def alias(prefix: str, name: str) -> str:
    """Name of the alias of an index: the only name that requests use."""
    return f"{prefix}-{name}"


@dataclass(frozen=True)
class Placement:
    """Names of one deployment's indices.

    With document-level security everybody's memories of a kind share an index, and routing keeps
    one user's on one shard. With isolation by index each user has one index for all kinds, whose
    name carries the kind of owner and the hash that is the routing elsewhere.
    """

    prefix: str
    isolation: Isolation

    @property
    def by_index(self) -> bool:
        """Whether each user has an index."""
        return self.isolation == "index"

    @property
    def shared(self) -> tuple[str, ...]:
        """Short names of the indices that ``init`` makes, in the order of making."""
        kinds = (Kind.CATALOG,) if self.by_index else tuple(Kind)
        return (*(str(kind) for kind in kinds), *SERVING)

    def index(self, name: str, routing: str | None = None) -> str:
        """The alias behind which ``name`` (a kind or what serves) is kept.

        Args:
            routing: of the owner; needed for memories with one.
        """
        if self.by_index and name in OWNED:
            if routing is None:
                raise ValueError("a memory with an owner is looked for without its owner")
            return self.of_user(routing)
        return alias(self.prefix, name)

    def of_user(self, routing: str) -> str:
        """The alias of a user's own index."""
        return alias(self.prefix, f"user-{routing}")

    def everybody(self, names: Iterable[str]) -> list[str]:
        """Names that together cover ``names`` of all users: for the service's counts."""
        if not self.by_index:
            return [alias(self.prefix, name) for name in names]
        owned = [alias(self.prefix, "user-*")] if any(name in OWNED for name in names) else []
        return owned + [alias(self.prefix, name) for name in names if name not in OWNED]
