"""docker-compose.yml against the embedded node, which the tests run on: the same Elasticsearch with
the same settings, closed to other machines."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # ships no types

from memory_es.artifacts import EMBEDDED
from memory_es.node_files import Launch, _settings

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))
SERVICES: dict[str, Any] = COMPOSE["services"]


def test_every_image_is_the_version_that_the_embedded_node_is() -> None:
    pom = (EMBEDDED / "pom.xml").read_text("utf-8")
    [version] = re.findall(r"<elasticsearch\.version>([\d.]+)<", pom)
    images = {service["image"] for service in SERVICES.values()}
    assert images == {f"elasticsearch:{version}", f"kibana:{version}"}


def test_its_settings_are_those_of_the_embedded_node() -> None:
    launch = Launch(ROOT, ROOT / "elasticsearch-1", ROOT, "1g", 9200, "trial")
    node = {key: str(value).lower() for key, value in _settings(launch).items()}
    given = SERVICES["elasticsearch"]["environment"]
    ours = {key: re.sub(r"\$\{\w+:-(\w+)\}", r"\1", given[key]) for key in given if "." in key}
    assert len(ours) == 5
    assert {key: node[key] for key in ours} == ours


@pytest.mark.parametrize("name", [name for name, service in SERVICES.items() if "ports" in service])
def test_nothing_listens_beyond_this_machine(name: str) -> None:
    assert all(str(port).startswith("127.0.0.1:") for port in SERVICES[name]["ports"])
    assert SERVICES[name]["mem_limit"]
    assert SERVICES[name]["healthcheck"]["test"]


def test_every_variable_is_explained_in_the_example_and_no_secret_is() -> None:
    used = set(re.findall(r"\$\{(\w+)", (ROOT / "docker-compose.yml").read_text("utf-8")))
    lines = (ROOT / ".env.example").read_text("utf-8").splitlines()
    given = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    assert used <= given.keys()
    assert {name for name in given if name.endswith("PASSWORD") and given[name]} == set()
    ignored = (ROOT / ".gitignore").read_text("utf-8").splitlines()
    assert ".env" in ignored
