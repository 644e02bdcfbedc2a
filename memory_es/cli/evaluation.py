"""Commands that measure: eval run."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from memory_es.cli.door import open_platform
from memory_es.cli.output import JsonFlag, print_json, progress, table

evaluation = typer.Typer(no_args_is_help=True, help="Measure recall on a suite.")


def register(app: typer.Typer) -> None:
    """Add these commands to the application."""
    app.add_typer(evaluation, name="eval")


@evaluation.callback()
def _group() -> None:
    """A group even while it has one command."""


@evaluation.command("run")
def run(
    data: Annotated[
        Path | None,
        typer.Option(help="Folder with corpus.jsonl and queries.jsonl, or LoCoMo's JSON."),
    ] = None,
    suite: Annotated[
        str | None, typer.Option(help="A suite that ships: sample or personas.")
    ] = None,
    users: Annotated[
        list[str] | None,
        typer.Option("--user", help="Only this user's memories and questions; may be repeated."),
    ] = None,
    recipes: Annotated[
        list[str] | None, typer.Option("--recipe", help="A recipe; may be repeated. Default: all.")
    ] = None,
    priors: Annotated[
        bool, typer.Option("--priors", help="With the priors (recency, usage, …).")
    ] = False,
    out: Annotated[Path, typer.Option(help="Folder for the run file.")] = Path("runs"),
    json_: JsonFlag = False,
) -> None:
    """Index a suite in indices of its own, ask its questions, print recall@k by recipe.

    memory-es eval run --suite sample

    Exit code 1 if a memory leaked to another user.
    """
    from memory_es.errors import InvalidInput
    from memory_es.queries import recipe_named
    from memory_es.suites import load_suite, named_suite

    if (data is None) == (suite is None):
        raise InvalidInput("--suite", "give either --suite NAME or --data PATH")
    for name in recipes or []:
        recipe_named(name)
    loaded = named_suite(suite) if suite is not None else load_suite(Path(str(data)))
    if users:
        loaded = loaded.limited_to(users)
    out.mkdir(parents=True, exist_ok=True)  # before the work, not after it
    with open_platform() as platform, progress() as advance:
        report = platform.evaluate(loaded, recipes, priors=priors, advance=advance)
    file = _write_run(out, report)
    if json_:
        print_json(report)
    else:
        _show(report)
        typer.echo(f"run file: {file}")
    if report["leaks"]:
        raise typer.Exit(1)


def _write_run(out: Path, report: dict[str, Any]) -> Path:
    file = out / f"{report['suite']}-{datetime.now(UTC):%Y%m%dT%H%M%S}.json"
    file.write_text(json.dumps(report, ensure_ascii=False, indent=2) + "\n", "utf-8")
    return file


def _show(report: dict[str, Any]) -> None:
    recipes = report["recipes"]
    measures = [name for name in next(iter(recipes.values())) if "@" in name or name == "MRR"]
    table(
        f"{report['suite']}: {report['queries']} questions",
        ("recipe", *measures),
        [(name, *(f"{r[m]:.3f}" for m in measures)) for name, r in recipes.items()],
    )
    categories = {
        category: scores["queries"]
        for result in recipes.values()
        for category, scores in result["by_category"].items()
    }
    table(
        "R@10 by category",
        ("category", "questions", *recipes),
        [
            (
                category,
                count,
                *(f"{r['by_category'][category]['R@10']:.3f}" for r in recipes.values()),
            )
            for category, count in categories.items()
        ],
    )
    table(
        "latency, milliseconds",
        ("stage", "p50", "p95"),
        [
            (stage, f"{t['p50']:.1f}", f"{t['p95']:.1f}")
            for stage, t in report["latency_ms"].items()
        ],
    )
    swept = f"{report['swept']} foreign questions" if report["swept"] else "not swept: one user"
    typer.echo(f"foreign memories seen by another user: {report['leaks']} ({swept})")
    unanswerable = next(iter(recipes.values()))["no_evidence"]
    if unanswerable:
        typer.echo(f"questions without evidence, left out of the measures: {unanswerable}")
