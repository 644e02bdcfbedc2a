from __future__ import annotations

import json
from pathlib import Path

import pytest

from memory_es import node_files
from memory_es.errors import SetupError


@pytest.mark.parametrize("before", [True, False])
def test_data_made_with_security_are_not_served_without_it_nor_the_reverse(
    tmp_path: Path, *, before: bool
) -> None:
    node_files.require_same_security(tmp_path, security=before)  # nothing was made yet
    (tmp_path / "config").mkdir()
    launch = node_files.Launch(
        state_dir=tmp_path,
        distribution=tmp_path,
        java=tmp_path,
        heap="1g",
        port=9200,
        license="trial",
        security=before,
    )
    settings = "\n".join(
        f"{name}: {json.dumps(value)}" for name, value in node_files._settings(launch).items()
    )
    (tmp_path / "config" / "elasticsearch.yml").write_text(settings, "utf-8")
    node_files.require_same_security(tmp_path, security=before)
    with pytest.raises(SetupError, match="MEMORY_ES_STATE_DIR") as caught:
        node_files.require_same_security(tmp_path, security=not before)
    assert caught.value.code == "security_changed"
