"""Where files beside the code are: in the wheel inside the package, in a checkout beside it."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).parent


def folder(name: str) -> Path:
    """Folder ``index_templates`` or ``evals``, as shipped or in the checkout."""
    shipped = _PACKAGE / name
    return shipped if shipped.is_dir() else _PACKAGE.parent / name
