"""Turns of a conversation: their numbers, and the preceding turn as context of the next."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass

from memory_es.compose import Item
from memory_es.queries import preceding_turn
from memory_es.schema import MAX_TURN, Kind, NewEpisode
from memory_es.store import Scope

#: Characters of the preceding turn's end that go into a turn's context.
CONTEXT_TAIL = 1_000
#: Turns of a session that one write remembers as places for later ones.
REMEMBERED = 256


@dataclass(frozen=True, order=True)
class Turn:
    """A turn of a session as context of the next one."""

    number: int
    line: str


def place_turns(scope: Scope, items: Sequence[Item], sessions: dict[str, list[Turn]]) -> None:
    """Number the turns that have no number, and give each episode its context: the preceding
    turn of its session and itself, each with its speaker, in one text (DESIGN §6).

    ``sessions`` has the turns that this write has placed, by number: no search sees them yet.
    """
    by_session: dict[str, list[tuple[Item, NewEpisode]]] = {}
    for item in items:
        if isinstance(item.memory, NewEpisode):
            if item.memory.session_id is None:
                item.context = _line(item.memory)
            else:
                by_session.setdefault(item.memory.session_id, []).append((item, item.memory))
    for session, episodes in by_session.items():
        placed = sessions.setdefault(session, [])
        # unnumbered turns follow the numbered ones in the order given; the sort is stable
        for item, episode in sorted(
            episodes, key=lambda pair: MAX_TURN + 1 if pair[1].turn is None else pair[1].turn
        ):
            number = episode.turn
            end = len(placed) if number is None else bisect.bisect_left(placed, Turn(number, ""))
            last = placed[end - 1] if end else None
            if number != 0 and (last is None or number not in (None, last.number + 1)):
                stored = _stored_turn(scope, session, number)
                if stored and (last is None or stored.number > last.number):
                    last = stored
            if number is None:
                number = min(last.number + 1, MAX_TURN) if last else 0
                item.memory = episode.model_copy(update={"turn": number})
                item.numbered = True
            line = _line(episode)
            item.context = f"{last.line}\n{line}" if last else line
            bisect.insort(placed, Turn(number, line[-CONTEXT_TAIL:]))
        del placed[:-REMEMBERED]


def _stored_turn(scope: Scope, session: str, before: int | None) -> Turn | None:
    if scope.user_id is None or scope.routing is None:
        return None
    body = preceding_turn(session, scope.user_id, before)
    found = scope.store.search(Kind.EPISODIC, body, scope.routing)
    if not found:
        return None
    turn = found[0]
    if not (isinstance(turn.get("turn"), int) and isinstance(turn.get("text"), str)):
        return None  # written by hand with the user's key
    who = turn.get("speaker") or turn.get("role")
    line = f"{who}: {turn['text']}" if who else turn["text"]
    return Turn(turn["turn"], line[-CONTEXT_TAIL:])


def _line(episode: NewEpisode) -> str:
    who = episode.speaker or episode.role
    return f"{who}: {episode.text}" if who else episode.text
