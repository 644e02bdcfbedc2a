"""Commands for memories: remember, recall, index."""

from __future__ import annotations

import itertools
import json
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from memory_es.cli.door import open_platform
from memory_es.cli.output import JsonFlag, print_json, progress, say, table
from memory_es.errors import InvalidInput

if TYPE_CHECKING:
    from memory_es.requests import RecallResult

User = Annotated[
    str | None,
    typer.Option(
        "--user",
        "-u",
        envvar="MEMORY_ES_USER",
        help="Whose memory it is; not needed with MEMORY_ES_CREDENTIALS.",
    ),
]
Tags = Annotated[list[str] | None, typer.Option("--tag", help="A tag; may be repeated.")]


def register(app: typer.Typer) -> None:
    """Add these commands to the application."""
    for command in (remember, recall, index):
        app.command()(command)


def remember(
    text: Annotated[str, typer.Argument(help="What to remember; - reads standard input.")],
    user: User = None,
    kind: Annotated[
        str, typer.Option(help="episodic (happened), semantic (is true), procedural (works).")
    ] = "episodic",
    tags: Tags = None,
    session: Annotated[str | None, typer.Option(help="Conversation of an episode.")] = None,
    speaker: Annotated[str | None, typer.Option(help="Who said it.")] = None,
    fact_type: Annotated[
        str | None, typer.Option(help="identity, constraint, preference or world.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of a playbook.")] = None,
    steps: Annotated[
        list[str] | None, typer.Option("--step", help="A step of a playbook; may be repeated.")
    ] = None,
    at: Annotated[
        str | None, typer.Option(help="When it happened (ISO 8601; without offset: UTC).")
    ] = None,
    json_: JsonFlag = False,
) -> None:
    """Write one memory.

    memory-es remember --user sarah "I moved to Leeds in May"

    memory-es remember --user sarah --kind semantic --fact-type constraint "allergic to nuts"
    """
    from memory_es.screen import LOOKS

    fields: dict[str, Any] = {
        "tags": tuple(tags or ()),
        "session_id": session,
        "speaker": speaker,
        "fact_type": fact_type,
        "name": name,
        "steps": tuple(steps) if steps else None,
        "event_time": at,
    }
    given = {key: value for key, value in fields.items() if value not in (None, ())}
    content = _standard_input() if text == "-" else text
    with open_platform() as platform:
        result = platform.memory_of(user).remember(content, kind, **given)
    if json_:
        print_json(result.model_dump(mode="json"))
        return
    said = "Remembered" if result.status == "created" else "Known already"
    typer.echo(f"{said} ({result.kind}, {result.id}).")
    for look in result.suspicious:
        say(f"warning: it looks like {LOOKS[look]}; flagged for the operator")


def _standard_input() -> str:
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidInput(
            "text", "standard input is not UTF-8", remedy="Convert it to UTF-8"
        ) from None


def recall(
    query: Annotated[str, typer.Argument(help="The question, in your own words.")],
    user: User = None,
    k: Annotated[int, typer.Option("-k", help="How many memories at most.")] = 10,
    recipe: Annotated[
        str, typer.Option(help="bm25, lexical, dense, hybrid or reranked.")
    ] = "hybrid",
    kinds: Annotated[
        list[str] | None,
        typer.Option("--kind", help="Only this kind; may be repeated."),
    ] = None,
    tags: Tags = None,
    since: Annotated[str | None, typer.Option(help="Not before this time (ISO 8601).")] = None,
    until: Annotated[str | None, typer.Option(help="Not after this time (ISO 8601).")] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show each hit's reasons and the searches sent.")
    ] = False,
    touch: Annotated[
        bool, typer.Option("--touch/--no-touch", help="Count the hits as used.")
    ] = True,
    prompt: Annotated[
        bool,
        typer.Option("--prompt", help="Print one block to put into a model's prompt, safely."),
    ] = False,
    json_: JsonFlag = False,
) -> None:
    """The memories that answer a question, best first.

    memory-es recall --user sarah "what may I not eat?" --explain
    """
    filters: dict[str, Any] = {"tags": tuple(tags or ()), "since": since, "until": until}
    if kinds:
        filters["kinds"] = tuple(kinds)
    with open_platform() as platform:
        result = platform.memory_of(user).recall(
            query, k, recipe=recipe, filters=filters, touch=touch
        )
    for reason in result.degraded:
        say(f"degraded: {reason}")
    if json_:
        print_json(result.model_dump(mode="json", exclude=None if explain else {"searches"}))
        return
    if prompt:
        from memory_es.render import prompt_block

        typer.echo(prompt_block(result.hits))
        return
    _show(result, explain=explain)


def _show(result: RecallResult, *, explain: bool) -> None:
    if not result.hits:
        typer.echo("Nothing is known about that.")
        return
    columns = ["#", "kind", "when", "memory", "score"]
    rows: list[list[Any]] = [
        [position, hit.kind, f"{hit.event_time:%Y-%m-%d}", hit.text[:400], f"{hit.score:.3f}"]
        for position, hit in enumerate(result.hits, start=1)
    ]
    if explain:
        columns.insert(4, "why")
        for row, hit in zip(rows, result.hits, strict=True):
            reasons = [f"{leg} #{rank}" for leg, rank in hit.ranks.items()]
            reasons.append(f"fused {hit.fused:.3f}")
            if hit.rerank is not None:
                reasons.append(f"rerank {hit.rerank:.2f}")
            reasons += [f"{name} {value:+.2f}" for name, value in hit.priors.items()]
            row.insert(4, "\n".join(reasons))
    table(f"recall ({result.recipe})", columns, rows, left=len(columns) - 1)
    if explain:
        took = ", ".join(f"{stage} {ms:.0f} ms" for stage, ms in result.took_ms.items())
        typer.echo(f"took: {took}")
        typer.echo("the _msearch sent (vectors shortened):")
        for search in result.searches:
            for line in (search["header"], search["body"]):
                typer.echo(json.dumps(_shortened(line), ensure_ascii=False))


def _shortened(node: Any) -> Any:
    if isinstance(node, dict):
        return {
            key: f"{item[:8]}…" if key == "query_vector" else _shortened(item)
            for key, item in node.items()
        }
    return [_shortened(item) for item in node] if isinstance(node, list) else node


def index(
    file: Annotated[Path, typer.Argument(help="A corpus: one JSON object a line, UTF-8.")],
    json_: JsonFlag = False,
) -> None:
    """Write a corpus of memories (JSON lines). Running it again writes only what is missing.

    A line: {"id": "m1", "user": "sarah", "text": "…"}, and if you like kind, timestamp, session,
    turn, speaker, tags, metadata and the kind's own fields. Each user needs a key first
    (users add). Bad lines are reported with their number and left out; the others are written.
    """
    from memory_es.corpus import CorpusEntry, read_corpus

    errors: list[str] = []
    groups: dict[str | None, list[CorpusEntry]] = {}
    for entry in read_corpus(file, lambda error: errors.append(str(error))):
        groups.setdefault(entry.user, []).append(entry)
    total = sum(len(entries) for entries in groups.values())
    counts = {"created": 0, "duplicate": 0, "failed": len(errors)}
    started = datetime.now().astimezone()
    with open_platform() as platform, progress() as advance:
        writers = {user: platform.for_user(user) for user in groups if user is not None}
        done = itertools.count(1)
        for user, entries in groups.items():
            write = platform.write_catalog if user is None else writers[user].remember_many
            results = write(
                [entry.memory for entry in entries],
                on_result=lambda _result: advance("index", next(done), total),
            )
            for entry, result in zip(entries, results, strict=True):
                counts[result.status] += 1
                if result.error:
                    errors.append(f"{file}, line {entry.line}: {result.error}")
    seconds = (datetime.now().astimezone() - started).total_seconds()
    for error in errors:
        say(f"error: {error}")
    if json_:
        print_json({**counts, "errors": errors, "seconds": round(seconds, 2)})
    else:
        typer.echo(
            f"{counts['created']} written, {counts['duplicate']} already there,"
            f" {counts['failed']} refused ({seconds:.1f} s)."
        )
    if counts["failed"]:
        raise typer.Exit(1)
