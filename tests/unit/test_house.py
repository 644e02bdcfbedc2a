"""Rules of the house that a linter does not hold: what start-up imports, how long a module is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = (
    "elasticsearch",
    "numpy",
    "onnxruntime",
    "sentence_transformers",
    "tokenizers",
    "torch",
    "transformers",
)


def imported_by(code: str) -> set[str]:
    """Names of the modules that a fresh Python has imported after running ``code``."""
    report = "import json, sys; sys.stderr.write(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{report}"], capture_output=True, check=True, text=True
    )
    return set(json.loads(done.stderr))


def run_of(*arguments: str) -> str:
    return f"""
import sys
from memory_es.cli import main
sys.argv = ["memory-es", *{arguments!r}]
try:
    main()
except SystemExit as end:
    assert not end.code
"""


@pytest.mark.parametrize(
    "code",
    [
        "import memory_es",
        "from memory_es import Settings; Settings.load()",
        run_of("--help"),
        run_of("--version"),
        run_of("recall", "--help"),
    ],
    ids=["package", "settings", "help", "version", "help of a command"],
)
def test_start_up_imports_neither_elasticsearch_nor_a_model_library(code: str) -> None:
    assert imported_by(code).isdisjoint(HEAVY)


def test_no_module_is_over_four_hundred_lines() -> None:
    files = [*(ROOT / "memory_es").rglob("*.py"), *(ROOT / "scripts").rglob("*.py")]
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text("utf-8").splitlines()) for path in files
    }
    assert len(lengths) > 20
    assert {name: length for name, length in lengths.items() if length > 400} == {}
