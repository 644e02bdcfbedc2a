"""What commands print: JSON for programs on stdout, tables for people, progress on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from memory_es.evaluate import Advance

JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


def print_json(value: Any) -> None:
    """One JSON document on stdout."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, indent=2, default=str) + "\n")
    sys.stdout.flush()  # now, while Typer watches for a reader that has left, as `| head` does


def say(message: str) -> None:
    """A line about what happens, on stderr: stdout is for results."""
    sys.stderr.write(f"{message}\n")
    sys.stderr.flush()


def table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], *, left: int = 1
) -> None:
    """A table on stdout.

    Args:
        left: that many first columns hold text; the others are numbers, right-aligned.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table(title=title, title_justify="left", title_style="bold")
    for index, column in enumerate(columns):
        grid.add_column(column, justify="left" if index < left else "right", overflow="fold")
    for row in rows:
        grid.add_row(*(Text(str(cell)) for cell in row))
    Console(soft_wrap=False).print(grid)


@contextmanager
def progress() -> Iterator[Advance]:
    """A progress bar a stage, on stderr; silent when stderr is not a terminal."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    bar = Progress(
        TextColumn("{task.description:<10}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )
    tasks: dict[str, Any] = {}

    def advance(stage: str, done: int, of: int) -> None:
        if stage not in tasks:
            tasks[stage] = bar.add_task(stage, total=of)
        bar.update(tasks[stage], completed=done)

    with bar:
        yield advance
