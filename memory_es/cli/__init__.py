"""``memory-es``: parse, call one service method, print. Heavy imports happen inside commands."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from memory_es import __version__
from memory_es.cli import evaluation, memories, setup
from memory_es.errors import MemoryEsError

app = typer.Typer(
    name="memory-es",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich would double the time of --help
    help=(
        "Long-term memory for AI agents on Elasticsearch.\n\n"
        "A first walk:  memory-es up  ·  memory-es init  ·  memory-es users add sarah  ·"
        "  memory-es remember --user sarah 'I drink only green tea'  ·"
        "  memory-es recall --user sarah 'what do I drink?' --explain"
    ),
    epilog=(
        "Settings come from MEMORY_ES_* and ELASTICSEARCH_* variables (docs/configuration.md)."
        " Exit codes: 0 done, 1 done in part, 2 bad input, 3 set-up, 4 not found, 5 access denied,"
        " 6 conflict, 7 unavailable (try again), 8 model."
    ),
)
setup.register(app)
memories.register(app)
evaluation.register(app)


def _version(value: bool) -> None:
    if value:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[  # noqa: ARG001 -- its callback does it
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure-single-user",
            help="On a laptop whose Elasticsearch has security off: one user, nothing kept apart.",
        ),
    ] = False,
) -> None:
    """Options of the whole command."""
    if insecure:
        os.environ["MEMORY_ES_ISOLATION"] = "insecure-single-user"


def main() -> None:
    """Entry point: errors of ours are one line on stderr and an exit code. Typer itself ends
    quietly, with 1, when the reader of our output has left, as `| head` does."""
    try:
        app()
    except MemoryEsError as error:
        line = " ".join(str(error).split())
        sys.stderr.write(f"error [{error.code}]: {line}\n")
        sys.exit(error.exit_code)
    except OSError as error:  # a folder that is not ours, a full disk
        remedy = "Use a path that exists and that this user may read and write"
        sys.stderr.write(f"error [file]: {error.strerror}: {error.filename}. {remedy}\n")
        sys.exit(3)
