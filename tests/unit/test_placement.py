from __future__ import annotations

import pytest

from memory_es.placement import SERVING, Placement
from memory_es.schema import OWNED, Kind
from memory_es.text import routing

SHARED, OWN = Placement("team", "dls"), Placement("team", "index")


@pytest.mark.parametrize("kind", OWNED)
def test_memories_of_all_users_share_an_index_a_kind(kind: Kind) -> None:
    assert SHARED.index(kind, routing("ann")) == SHARED.index(kind) == f"team-{kind}"


@pytest.mark.parametrize("kind", OWNED)
def test_with_isolation_by_index_a_user_has_one_for_all_kinds(kind: Kind) -> None:
    assert OWN.index(kind, routing("ann")) == f"team-user-{routing('ann')}"
    assert OWN.index(kind, routing("ann")) != OWN.index(kind, routing("Ann"))
    with pytest.raises(ValueError, match="without its owner"):
        OWN.index(kind)


@pytest.mark.parametrize("name", [Kind.CATALOG, *SERVING])
def test_what_belongs_to_nobody_is_shared_in_every_mode(name: str) -> None:
    for placement in (SHARED, OWN, Placement("team", "insecure-single-user")):
        assert placement.index(name, routing("ann")) == f"team-{name}"
        assert name in placement.shared


def test_everybodys_memories_are_covered_by_few_names() -> None:
    assert SHARED.everybody(Kind) == [f"team-{kind}" for kind in Kind]
    assert OWN.everybody(Kind) == ["team-user-*", "team-catalog"]
    assert OWN.everybody(["usage"]) == ["team-usage"]
