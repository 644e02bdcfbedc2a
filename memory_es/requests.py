"""What is asked and what is answered: write results, the recall request, hits."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, FiniteFloat, model_validator

from memory_es.schema import MAX_K, Frozen, Keyword, Kind, Timestamp, clean_value, visible
from memory_es.screen import Finding


class WriteResult(Frozen):
    """What became of one item of a write, in the order given.

    ``created`` wrote it; ``duplicate`` found the same memory under ``id`` and wrote nothing;
    ``failed`` wrote nothing, ``error`` says why,
    ``code`` is the stable code of ``errors``. ``suspicious`` says what the text looks like.
    """

    position: int
    status: Literal["created", "duplicate", "failed"]
    kind: Kind | None = None
    id: str | None = None
    external_id: str | None = None
    needs_embedding: bool = False
    suspicious: tuple[Finding, ...] = ()
    error: str | None = None
    code: str | None = None


# --- recall -----------------------------------------------------------------------------------


class Filters(Frozen):
    """Conditions that every hit must meet. Times are inclusive, on ``event_time``."""

    kinds: tuple[Kind, ...] = tuple(Kind)
    tags: tuple[Keyword, ...] = ()
    metadata: dict[str, str | int | FiniteFloat | bool] = Field(default_factory=dict)
    since: Timestamp | None = None
    until: Timestamp | None = None
    session_id: Keyword | None = None
    exclude_session: Keyword | None = None
    include_superseded: bool = False

    @model_validator(mode="after")
    def _sensible(self) -> Self:
        if not self.kinds:
            raise ValueError("kinds: is empty; leave it out to search all kinds")
        if self.since and self.until and self.since > self.until:
            raise ValueError("since: is later than until")
        return self


class RecallRequest(Frozen):
    """One question to the memory. The query is used verbatim."""

    query: Annotated[str, BeforeValidator(clean_value), AfterValidator(visible)]
    k: Annotated[int, Field(ge=1, le=MAX_K)] = 10
    recipe: str = "hybrid"
    filters: Filters = Filters()
    priors: bool = True
    touch: bool = True


class Hit(Frozen):
    """One recalled memory with its reasons.

    ``score`` is the final score in [0, 1]; ``ranks`` the 1-based rank in each leg that found it;
    ``fused`` the fused score in [0, 1]; ``rerank`` the reranker's raw score; ``priors`` each
    prior in [-1, 1], whose bounded sum moved the score by at most 4 %.
    """

    id: str
    kind: Kind
    text: str
    score: float
    event_time: datetime
    created_at: datetime
    owner: str | None
    fields: dict[str, Any]
    ranks: dict[str, int]
    fused: float
    rerank: float | None = None
    priors: dict[str, float] = Field(default_factory=dict)


class RecallResult(Frozen):
    """The hits, best first. ``degraded`` lists what did not work (empty: all did);
    ``searches`` is the msearch body that was sent; ``took_ms`` has milliseconds a stage."""

    hits: tuple[Hit, ...]
    recipe: str
    degraded: tuple[str, ...] = ()
    took_ms: dict[str, float]
    searches: tuple[dict[str, Any], ...]
