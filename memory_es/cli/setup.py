"""Commands for the operator: the node, the indices, the users."""

from __future__ import annotations

from typing import Annotated

import typer

from memory_es.cli import users
from memory_es.cli.door import open_platform, read_settings
from memory_es.cli.output import JsonFlag, print_json, say, table


def register(app: typer.Typer) -> None:
    """Add these commands to the application."""
    for command in (up, down, status, doctor, init):
        app.command()(command)
    app.add_typer(users.app, name="users")


def up(json_: JsonFlag = False) -> None:
    """Start the embedded Elasticsearch, fetching it the first time (Java 21+ and Maven).

    Its data and password stay in MEMORY_ES_STATE_DIR. Starting it twice is harmless.
    """
    from memory_es import node
    from memory_es.config import INSECURE
    from memory_es.platform import Platform

    settings = read_settings()
    info, started = node.up(
        settings.state_dir,
        settings.cache_dir,
        heap=settings.heap,
        port=settings.port,
        security=settings.isolation != INSECURE,
        progress=say,
    )
    # the node that was started, whatever cluster the settings name
    here = {f"elasticsearch_{part}": None for part in ("url", "username", "password")}
    with Platform(settings.model_copy(update=here)) as platform:
        facts = platform.node_facts()
    days = facts.licence_days
    if json_:
        shown = {"url": info.url, "pid": info.pid, "started": started, "licence_days": days}
        print_json(shown)
        return
    verb = "started" if started else "was already running"
    typer.echo(f"Elasticsearch {info.version} {verb} at {info.url} (pid {info.pid}).")
    if days is not None:
        typer.echo(f"Its {facts.licence} licence ends in {days:.0f} days.")
    typer.echo("Stop it with `memory-es down`.")
    _warn_of_licence(days)


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
    with open_platform() as platform:
        facts = platform.status()
    if json_:
        print_json(facts)
        return
    table("memory_es", ("what", "value"), list(facts.items()), left=2)
    _warn_of_licence(facts["licence_days"])


def _warn_of_licence(days: float | None) -> None:
    from memory_es.cluster import WARN_DAYS

    if days is not None and days <= WARN_DAYS:
        say(f"warning: the licence ends in {days:.0f} days; see `memory-es doctor`")


def doctor(
    security: Annotated[
        bool,
        typer.Option(
            "--security", help="Also try the chain of isolation: two users of the moment probe it."
        ),
    ] = False,
    json_: JsonFlag = False,
) -> None:
    """Check everything that can be wrong with a deployment; exit code 3 if something is."""
    with open_platform() as platform:
        checks = platform.diagnose(security=security)
    if json_:
        print_json([{"name": c.name, "verdict": c.verdict, "detail": c.detail} for c in checks])
    else:
        rows = [(check.name, check.verdict, check.detail) for check in checks]
        table("doctor", ("check", "verdict", "detail"), rows, left=3)
    if any(check.verdict == "failed" for check in checks):
        raise typer.Exit(3)


def init(
    rotate: Annotated[
        bool, typer.Option("--rotate", help="Give the service account a new password.")
    ] = False,
    json_: JsonFlag = False,
) -> None:
    """Install the service account, templates, pipeline, indices. Run it at every deploy.

    The first time and for the account it needs an administrator: the embedded node's, or
    ELASTICSEARCH_USERNAME and ELASTICSEARCH_PASSWORD for this one call. Nothing else uses them.
    """
    with open_platform() as platform:
        changes = platform.init(rotate=rotate)
    if json_:
        print_json({"changed": changes})
        return
    for change in changes:
        typer.echo(f"installed {change}")
    if not changes:
        typer.echo("Everything is in place.")
