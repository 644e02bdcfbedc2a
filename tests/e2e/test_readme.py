"""The README's own commands and snippets, as a new user would run them."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
#: Run by CI itself, and what runs this test.
_LEFT_OUT = {"./scripts/test"}


def _steps() -> list[tuple[str, str]]:
    """(language, text) of each command or snippet, in order."""
    steps = []
    for language, block in _FENCE.findall((ROOT / "README.md").read_text("utf-8")):
        lines = block.splitlines() if language == "sh" else [block]
        steps += [(language, line) for line in lines if line.strip()]
    return [step for step in steps if step[1] not in _LEFT_OUT]


@pytest.fixture
def own_state(environment: dict[str, str]) -> Iterator[dict[str, str]]:
    """A state folder that has never been used, on the way of nobody else."""
    with tempfile.TemporaryDirectory(prefix="memory_es_readme_") as folder:
        Path(folder).chmod(0o711)
        env = environment | {"MEMORY_ES_STATE_DIR": folder}
        yield env
        subprocess.run([ROOT / ".venv/bin/memory-es", "down"], env=env, check=True)


@pytest.mark.timeout(600)
def test_every_command_and_snippet_of_the_readme_runs_as_written(
    own_state: dict[str, str],
) -> None:
    runs_before = set(ROOT.glob("runs/*"))
    steps = _steps()
    assert next(text for language, text in steps if language == "sh") == "./scripts/quickstart"
    assert any(language == "python" for language, _ in steps)
    for language, text in steps:
        program = ["bash"] if language == "sh" else [str(ROOT / ".venv/bin/python")]
        command = [*program, "-c", text]
        done = subprocess.run(
            command, cwd=ROOT, env=own_state, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
        written = re.search(r" > ([\w.]+)\)?$", text) if language == "sh" else None
        assert (ROOT / written[1]).read_text("utf-8").strip() if written else done.stdout.strip()
        if text == "./scripts/quickstart":
            for recipe in ("bm25", "lexical", "dense", "hybrid"):
                assert re.search(rf"{recipe} .*0\.\d\d\d", done.stdout)
        if language == "python":
            assert "I moved to Leeds in May" in done.stdout.splitlines()[0]
    (ROOT / "sarah.key.json").unlink()
    for file in set(ROOT.glob("runs/*")) - runs_before:
        file.unlink()
    assert "MEMORY_ES_STATE_DIR" not in os.environ


def test_every_setting_stands_in_the_readme() -> None:
    from memory_es.config import Settings

    readme = (ROOT / "README.md").read_text("utf-8")
    for name in Settings.model_fields:
        shown = name.upper() if name.startswith("elasticsearch") else f"MEMORY_ES_{name.upper()}"
        assert f"`{shown}`" in readme, shown
