"""The README's and the quickstart's own commands and snippets, as a new user would run them."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BIN = ROOT / ".venv/bin"
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
#: Run by CI itself, and what runs this test.
_LEFT_OUT = {"./scripts/test"}


@dataclass
class Step:
    """A command or snippet, and what its document says that it prints (`…` stands for anything)."""

    language: str
    text: str
    shown: str | None = None

    def check(self, output: str) -> None:
        assert output.strip(), self.text
        if self.shown is not None:
            pattern = ".*".join(re.escape(part) for part in self.shown.strip().split("…"))
            assert re.fullmatch(pattern, output.strip(), re.DOTALL), (self.text, output)


def steps(document: str) -> list[Step]:
    """What a document tells its reader to run, in order."""
    found: list[Step] = []
    for language, block in _FENCE.findall((ROOT / document).read_text("utf-8")):
        if language == "text":
            found[-1].shown = block
        else:
            lines = block.splitlines() if language == "sh" else [block]
            found += [Step(language, line) for line in lines if line.strip()]
    return [step for step in found if step.text not in _LEFT_OUT]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The checkout as a reader stands in it, but what the commands write stays here."""
    for path in ROOT.iterdir():
        if path.name not in {"runs", "sarah.key.json", "corpus.jsonl"}:
            (tmp_path / path.name).symlink_to(path)
    return tmp_path


@pytest.fixture
def own_state(environment: dict[str, str]) -> Iterator[dict[str, str]]:
    """A state folder that has never been used, on the way of nobody else."""
    with tempfile.TemporaryDirectory(prefix="memory_es_readme_") as folder:
        Path(folder).chmod(0o711)
        env = environment | {"MEMORY_ES_STATE_DIR": folder, "PATH": f"{BIN}:{os.environ['PATH']}"}
        yield env
        subprocess.run([BIN / "memory-es", "down"], env=env, check=True)


def run(step: Step, environment: dict[str, str], folder: Path) -> str:
    """Its output; a redirection's is what the file has then."""
    program = ["bash"] if step.language == "sh" else [str(BIN / "python")]
    done = subprocess.run(
        [*program, "-c", step.text],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{step.text}\n{done.stdout}\n{done.stderr}"
    written = re.search(r" >>? ([\w.]+)\)?$", step.text) if step.language == "sh" else None
    return (folder / written[1]).read_text("utf-8") if written else done.stdout


@pytest.mark.timeout(900)
def test_every_command_and_snippet_runs_as_written(own_state: dict[str, str], clone: Path) -> None:
    readme, quickstart = steps("README.md"), steps("docs/quickstart.md")
    assert readme[0].text == "./scripts/quickstart"
    assert quickstart[0].text == "memory-es up"
    for step in (*readme, *quickstart):
        output = run(step, own_state, clone)
        step.check(output)
        if step.text == "./scripts/quickstart":
            for recipe in ("bm25", "lexical", "dense", "hybrid"):
                assert re.search(rf"{recipe} .*0\.\d\d\d", output)
        if step.language == "python":
            assert any(text in output for text in ("moved to Leeds", "tea without milk"))


def test_a_document_that_shows_what_is_not_printed_is_noticed() -> None:
    shown = Step("sh", "x", "Remembered (…).\n")
    shown.check("Remembered (semantic, 12).\n")
    with pytest.raises(AssertionError):
        shown.check("Remembered: semantic\n")
    with pytest.raises(AssertionError):
        Step("sh", "x").check(" \n")
