"""Commands for the operator: the node, the indices, the users."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from memory_es.cli.output import print_json, say, table

JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
users = typer.Typer(no_args_is_help=True, help="Users and their keys.")


def register(app: typer.Typer) -> None:
    """Add these commands to the application."""
    for command in (up, down, status, doctor, init):
        app.command()(command)
    app.add_typer(users, name="users")


def up(json_: JsonFlag = False) -> None:
    """Start the embedded Elasticsearch, fetching it the first time (Java 21+ and Maven).

    Its data and password stay in MEMORY_ES_STATE_DIR. Starting it twice is harmless.
    """
    from memory_es import node
    from memory_es.config import Settings
    from memory_es.memory import Platform

    settings = Settings.load()
    info, started = node.up(
        settings.state_dir,
        settings.cache_dir,
        heap=settings.heap,
        port=settings.port,
        progress=say,
    )
    with Platform(settings) as platform:
        facts = platform.status()
    days = facts["licence_days"]
    if json_:
        shown = {"url": info.url, "pid": info.pid, "started": started, "licence_days": days}
        print_json(shown)
        return
    verb = "started" if started else "was already running"
    typer.echo(f"Elasticsearch {info.version} {verb} at {info.url} (pid {info.pid}).")
    typer.echo(f"Its {facts['licence']} licence ends in {days:.0f} days." if days else "")
    typer.echo("Stop it with `memory-es down`.")
    _warn_of_licence(facts)


def down(json_: JsonFlag = False) -> None:
    """Stop the embedded Elasticsearch. Its data stays."""
    from memory_es import node
    from memory_es.config import Settings

    stopped = node.down(Settings.load().state_dir)
    if json_:
        print_json({"stopped": stopped})
        return
    typer.echo("Stopped." if stopped else "It was not running.")


def status(json_: JsonFlag = False) -> None:
    """Show the cluster in use: where, which version, the licence's days, the memories."""
    from memory_es.memory import Platform

    with Platform() as platform:
        facts = platform.status()
    if json_:
        print_json(facts)
        return
    table("memory_es", ("what", "value"), list(facts.items()), left=2)
    _warn_of_licence(facts)


def _warn_of_licence(facts: dict[str, Any]) -> None:
    from memory_es.cluster import WARN_DAYS

    days = facts.get("licence_days")
    if days is not None and days <= WARN_DAYS:
        say(f"warning: the licence ends in {days:.0f} days; see `memory-es doctor`")


def doctor(json_: JsonFlag = False) -> None:
    """Check everything that can be wrong with a deployment; exit code 3 if something is."""
    from memory_es.memory import Platform

    with Platform() as platform:
        checks = platform.diagnose()
    if json_:
        print_json([{"name": c.name, "verdict": c.verdict, "detail": c.detail} for c in checks])
    else:
        rows = [(check.name, check.verdict, check.detail) for check in checks]
        table("doctor", ("check", "verdict", "detail"), rows, left=3)
    if any(check.verdict == "failed" for check in checks):
        raise typer.Exit(3)


def init(json_: JsonFlag = False) -> None:
    """Install templates, pipeline, indices and aliases. Run it at every deploy."""
    from memory_es.memory import Platform

    with Platform(progress=say) as platform:
        changes = platform.init()
    if json_:
        print_json({"changed": changes})
        return
    for change in changes:
        typer.echo(f"installed {change}")
    if not changes:
        typer.echo("Everything is in place.")


@users.command("add")
def users_add(
    user_ids: Annotated[list[str], typer.Argument(help="One or more user ids.")],
    json_: JsonFlag = False,
) -> None:
    """Make a key for each user and keep it in the state folder. Users that have one keep it."""
    from memory_es.memory import Platform

    with Platform(progress=say) as platform:
        added = [(user_id, *platform.add_user(user_id)) for user_id in user_ids]
    if json_:
        print_json(
            [
                {"user": user_id, "key_id": credentials.key_id, "new": new}
                for user_id, credentials, new in added
            ]
        )
        return
    for user_id, credentials, new in added:
        verb = "has a new key" if new else "already has a working key"
        typer.echo(f"{user_id} {verb} ({credentials.key_id}).")
