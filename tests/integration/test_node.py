"""The embedded node: one real process, started, killed, stopped and started again."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil  # type: ignore[import-untyped]  # ships no types
import pytest
from elasticsearch import AuthorizationException, BadRequestError, Elasticsearch

from memory_es import Settings, artifacts, node
from memory_es.errors import InvalidInput, SetupError
from tests.backstage import admin_of_node

_UP = """
import sys
from pathlib import Path
from memory_es import node
info, started = node.up(Path(sys.argv[1]), Path(sys.argv[2]), heap="512m", license="basic")
print(info.pid, started, flush=True)
"""

_LANGUAGES = Path(__file__).parents[2] / "index_templates" / "languages"

#: A question in each language, its tokens in the index, and the word that a search leaves out.
_QUESTIONS = {
    "arabic": ("كيف القطة في المكتبة ١٢", ["كيف", "قط", "مكتب", "12"], "كيف"),
    "bengali": ("বিড়ালের দাম কত ১২", ["বিরাল", "দাম", "কত", "12"], "কত"),
    "cjk": ("你喜欢什么 ｶﾀ", ["你喜", "喜欢", "欢什", "什么", "カタ"], "什么"),
    "english": ("What do Zoë's cats eat?", ["what", "do", "zoe", "cat", "eat"], "what do"),
    "hindi": ("बिल्ली क्यों सोती है १२", ["बिलल", "कय", "सोत", "12"], "कय"),
    "persian": ("گربه\u200cی من چقدر ۱۲", ["گربه", "ي", "چقدر", "12"], "چقدر"),
    "thai": ("ทำไมแมวนอน ๑๒", ["ทำไม", "แมว", "นอน", "12"], "ทำไม"),
}


@pytest.fixture(scope="module")
def cache_dir() -> Path:
    return Settings.load().cache_dir


@pytest.fixture(scope="module")
def make_state_dir() -> Iterator[Callable[[], Path]]:
    """Makes state folders that the node's unprivileged user can reach, unlike pytest's own."""
    made: list[Path] = []

    def make() -> Path:
        folder = Path(tempfile.mkdtemp(prefix="memory_es_node_"))
        folder.chmod(0o711)
        made.append(folder)
        return folder / "state"

    yield make
    for folder in made:
        node.down(folder / "state", timeout=10)
        shutil.rmtree(folder)


class _Home(NamedTuple):
    state_dir: Path
    first_starts: list[list[str]]


@pytest.fixture(scope="module")
def home(make_state_dir: Callable[[], Path], cache_dir: Path) -> Iterator[_Home]:
    """A basic node on fresh data, which two processes have tried to start at the same moment.

    The end checks `down`, because each further start of a node costs a quarter of a minute.
    """
    state_dir = make_state_dir()
    starters = [_start_elsewhere(state_dir, cache_dir) for _ in range(2)]
    answers = [starter.communicate(timeout=280)[0].split() for starter in starters]
    yield _Home(state_dir, answers)
    assert node.down(state_dir) is True
    assert node.down(state_dir) is False
    assert node.status(state_dir) is None
    assert not _nodes_of(state_dir)


@pytest.fixture
def running(home: _Home, cache_dir: Path) -> node.NodeInfo:
    """The module's node; started again should a failed test have left it dead."""
    return node.up(home.state_dir, cache_dir, heap="512m")[0]


@pytest.fixture
def client(running: node.NodeInfo) -> Iterator[Elasticsearch]:
    with admin_of_node(running) as connected:
        yield connected


def _start_elsewhere(state_dir: Path, cache_dir: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _UP, state_dir, cache_dir], stdout=subprocess.PIPE, text=True
    )


def _nodes_of(state_dir: Path) -> list[int]:
    mark = f"-Dmemory_es.state_dir={state_dir}"
    found = psutil.process_iter(["cmdline", "status"])
    return [
        process.pid
        for process in found
        if mark in (process.info["cmdline"] or ()) and process.info["status"] != "zombie"
    ]


def _wait_until(condition: Callable[[], object], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _tokens(client: Elasticsearch, text: str, **how: Any) -> list[str]:
    return [each["token"] for each in client.indices.analyze(text=text, **how)["tokens"]]


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# --- a node's life ---------------------------------------------------------------------------


def test_two_starts_at_once_give_one_node(home: _Home) -> None:
    pids = {pid for pid, _started in home.first_starts}
    assert len(pids) == 1
    assert sorted(started for _pid, started in home.first_starts) == ["False", "True"]


def test_up_returns_the_node_that_runs(running: node.NodeInfo, cache_dir: Path) -> None:
    again, started = node.up(running.state_dir, cache_dir, heap="512m")
    assert not started
    assert again == running == node.status(running.state_dir)
    assert _nodes_of(running.state_dir) == [running.pid]


def test_another_spelling_of_the_folder_is_the_same_node(
    running: node.NodeInfo, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(running.state_dir)
    assert node.status(tmp_path / "link") == running


def test_data_survive_kill_9_and_a_killed_start(
    running: node.NodeInfo, home: _Home, cache_dir: Path
) -> None:
    with admin_of_node(running) as before:
        before.index(index="kept", id="1", document={"text": "still here"}, refresh=True)
    os.kill(running.pid, signal.SIGKILL)
    _wait_until(lambda: not _nodes_of(home.state_dir))
    assert node.status(home.state_dir) is None

    starter = _start_elsewhere(home.state_dir, cache_dir)
    _wait_until(lambda: _nodes_of(home.state_dir))
    starter.kill()
    starter.communicate()

    revived, started = node.up(home.state_dir, cache_dir, heap="512m")
    assert started
    assert _nodes_of(home.state_dir) == [revived.pid]
    assert revived.password == running.password
    with admin_of_node(revived) as after:
        assert after.get(index="kept", id="1")["_source"] == {"text": "still here"}


def test_down_and_status_of_a_folder_without_a_node(tmp_path: Path) -> None:
    assert node.down(tmp_path / "none") is False
    assert node.status(tmp_path / "none") is None
    assert node.credentials(tmp_path / "none") is None
    assert not (tmp_path / "none").exists()


def test_a_record_that_names_somebody_elses_process_is_stale(
    running: node.NodeInfo, tmp_path: Path
) -> None:
    record = json.loads((running.state_dir / "node.json").read_text())
    record |= {"pid": os.getpid(), "create_time": psutil.Process().create_time()}
    (tmp_path / "node.json").write_text(json.dumps(record))
    shutil.copy(running.state_dir / "credentials.json", tmp_path)
    assert node.status(tmp_path) is None
    assert node.down(tmp_path) is False  # and this test still runs


def test_secrets_are_closed_to_others(running: node.NodeInfo) -> None:
    state_dir = running.state_dir
    assert _mode(state_dir) == (0o711 if os.geteuid() == 0 else 0o700)
    for name in ("credentials.json", "node.json", "lock", "boot.log"):
        assert _mode(state_dir / name) == 0o600
        assert (state_dir / name).stat().st_uid == os.geteuid()
    for name in ("data", "logs", "tmp", "snapshots"):
        assert _mode(state_dir / name) == 0o700
    password = running.password.get_secret_value()
    process = psutil.Process(running.pid)
    assert password not in repr(running)
    assert password not in " ".join(process.cmdline())
    assert password not in " ".join(process.environ().values())
    assert password not in running.log_path.read_text() + (state_dir / "boot.log").read_text()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root hands the node to another user")
def test_the_node_of_root_runs_unprivileged_and_cannot_change_its_configuration(
    running: node.NodeInfo,
) -> None:
    uids = psutil.Process(running.pid).uids()
    assert 0 not in uids
    config = running.state_dir / "config"
    for path in (config, *config.rglob("*")):
        assert path.stat().st_uid == 0
        assert not _mode(path) & 0o027


def test_the_node_listens_on_loopback_only(running: node.NodeInfo) -> None:
    sockets = psutil.Process(running.pid).net_connections("inet")
    addresses = {each.laddr.ip for each in sockets if each.status == psutil.CONN_LISTEN}
    assert addresses <= {"127.0.0.1", "::ffff:127.0.0.1"}
    assert addresses


def test_a_loopback_node_is_reached_past_a_proxy(
    running: node.NodeInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    login = node.credentials(running.state_dir)
    assert login is not None
    assert node._get(f"{running.url}/_license", login)[0] == 200


# --- what the node can do --------------------------------------------------------------------


def test_the_licence_is_the_one_asked_for(client: Elasticsearch) -> None:
    licence = client.license.get()["license"]
    assert (licence["type"], licence["status"]) == ("basic", "active")


def test_api_keys_are_made_and_hold(client: Elasticsearch) -> None:
    client.index(index="mine", document={"a": 1}, refresh=True)
    client.index(index="other", document={"a": 1}, refresh=True)
    role = {"indices": [{"names": ["mine"], "privileges": ["read"]}]}
    key = client.security.create_api_key(name="reader", role_descriptors={"reader": role})
    with client.options(api_key=key["encoded"]) as reader:
        assert reader.count(index="mine")["count"] == 1
        with pytest.raises(AuthorizationException):
            reader.count(index="other")


@pytest.mark.parametrize(
    ("analyzer", "text", "tokens"),
    [
        ("english", "The nurses' houses, running", ["nurs", "hous", "run"]),
        ("thai", "แมวของฉันชื่อส้ม", ["แมว", "ฉัน", "ชื่อ", "ส้ม"]),
        ("persian", "گربه‌ی من نارنجی است", ["گربه", "ي", "نارنج"]),
        ("bengali", "আমার বিড়ালের নাম কমলা", ["আমার", "বিরাল", "নাম", "কম"]),
        ("arabic", "والكتب في المكتبة", ["كتب", "مكتب"]),
        ("hindi", "मेरी बिल्ली का नाम संतरा है", ["मेर", "बिलल", "नाम", "संतर"]),
        ("cjk", "我喜欢红茶 ｶﾀｶﾅ", ["我喜", "喜欢", "欢红", "红茶", "カタ", "タカ", "カナ"]),
    ],
)
def test_language_analyzers(
    client: Elasticsearch, analyzer: str, text: str, tokens: list[str]
) -> None:
    assert _tokens(client, text, analyzer=analyzer) == tokens


@pytest.mark.parametrize("language", sorted(path.stem for path in _LANGUAGES.iterdir()))
def test_the_analyzers_of_our_templates(client: Elasticsearch, language: str) -> None:
    question, tokens, left_out = _QUESTIONS[language]
    analysis = json.loads((_LANGUAGES / f"{language}.json").read_text())
    index = f"analysis-{language}"
    client.options(ignore_status=404).indices.delete(index=index)
    client.indices.create(index=index, settings={"analysis": analysis})
    assert _tokens(client, question, index=index, analyzer=f"memory_{language}") == tokens
    searched = _tokens(client, question, index=index, analyzer=f"memory_{language}_search")
    assert searched == [token for token in tokens if token not in left_out.split()]


@pytest.mark.parametrize(
    ("chain", "text", "tokens"),
    [
        (
            {"tokenizer": {"type": "pattern", "pattern": "[^a-z]+", "flags": "CASE_INSENSITIVE"}},
            "Firmware, serial AB-99",
            ["Firmware", "serial", "AB"],
        ),
        (
            {"tokenizer": {"type": "pattern", "pattern": "'([^']+)'", "group": 1}},
            "say 'one two' and 'three'",
            ["one two", "three"],
        ),
        (
            {"tokenizer": "uax_url_email", "filter": ["unique"]},
            "a@b.org or a@b.org",
            ["a@b.org", "or"],
        ),
        (
            {
                "tokenizer": "uax_url_email",
                "filter": [
                    {"type": "pattern_capture", "patterns": ["(\\w+)@"], "preserve_original": False}
                ],
            },
            "ann@example.org",
            ["ann"],
        ),
        (
            {
                "tokenizer": "standard",
                "char_filter": [
                    {"type": "mapping", "mappings": ["\\u200C => \\u0020", "& => and"]}
                ],
            },
            "a\u200cb & c",
            ["a", "b", "and", "c"],
        ),
    ],
)
def test_tokenizers_and_filters_read_their_settings(
    client: Elasticsearch, chain: dict[str, Any], text: str, tokens: list[str]
) -> None:
    assert _tokens(client, text, **chain) == tokens


@pytest.mark.parametrize(
    "settings",
    [
        {"type": "stemmer", "language": "klingon"},
        {"type": "pattern_capture"},
        {"type": "asciifolding", "preserve_original": True},
    ],
)
def test_settings_that_the_plugin_does_not_know_are_an_error(
    client: Elasticsearch, settings: dict[str, Any]
) -> None:
    with pytest.raises(BadRequestError):
        client.indices.create(index="refused", settings={"analysis": {"filter": {"a": settings}}})


# --- what goes wrong -------------------------------------------------------------------------


def test_a_taken_port_is_refused(make_state_dir: Callable[[], Path], cache_dir: Path) -> None:
    state_dir = make_state_dir()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SetupError, match=f"port {port}") as failure:
            node.up(state_dir, cache_dir, heap="512m", port=port)
    assert failure.value.code == "port_taken"
    assert node.status(state_dir) is None


def test_a_node_that_dies_tells_why_and_where_its_log_is(
    make_state_dir: Callable[[], Path], cache_dir: Path
) -> None:
    state_dir = make_state_dir()
    with pytest.raises(SetupError, match="heap") as failure:
        node.up(state_dir, cache_dir, heap="1m")
    assert failure.value.code == "node_died"
    assert str(state_dir.resolve() / "boot.log") in failure.value.message
    assert node.status(state_dir) is None


@pytest.mark.parametrize("heap", ["1g\n-Xmx9g", "", "lots", "1 g"])
def test_a_heap_that_is_no_size_is_refused(tmp_path: Path, heap: str) -> None:
    with pytest.raises(InvalidInput):
        node.up(tmp_path / "state", tmp_path / "cache", heap=heap)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root hands the node to another user")
def test_a_state_folder_below_a_closed_one_is_refused(
    make_state_dir: Callable[[], Path], cache_dir: Path
) -> None:
    state_dir = make_state_dir()
    state_dir.parent.chmod(0o700)
    with pytest.raises(SetupError, match="MEMORY_ES_STATE_DIR") as failure:
        node.up(state_dir, cache_dir, heap="512m")
    assert failure.value.code == "state_dir_unreachable"


def test_a_state_folder_that_cannot_be_made_is_refused(tmp_path: Path, cache_dir: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SetupError) as failure:
        node.up(tmp_path / "file" / "state", cache_dir)
    assert failure.value.code == "state_dir_unwritable"


# --- what is fetched -------------------------------------------------------------------------


def test_the_distribution_is_complete_and_open_to_the_nodes_user(cache_dir: Path) -> None:
    said: list[str] = []
    distribution = artifacts.ensure_distribution(cache_dir, said.append)
    assert artifacts.ensure_distribution(cache_dir, said.append) == distribution
    plugin = distribution / "plugins" / "memory-es-analysis"
    assert {path.suffix for path in plugin.iterdir()} == {".jar", ".properties"}
    for path in distribution.rglob("*"):
        assert _mode(path) & (0o005 if path.is_dir() else 0o004), path


def test_the_default_model_is_weights_and_tokenizer_alone(cache_dir: Path) -> None:
    model = artifacts.ensure_default_model(cache_dir, lambda _line: None)
    assert sorted(path.suffix for path in model.iterdir()) == [".json", ".onnx"]


def test_an_old_java_in_java_home_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    found = artifacts.find_java(21)
    monkeypatch.delenv("ES_JAVA_HOME", raising=False)
    monkeypatch.setenv("JAVA_HOME", "/usr/lib/jvm/java-17-openjdk-amd64")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert artifacts.find_java(21).resolve() == found.resolve()


def test_a_java_home_that_qualifies_is_taken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    home = tmp_path / "jdk"
    (home / "bin").mkdir(parents=True)
    for tool in ("java", "javac"):
        (home / "bin" / tool).touch(mode=0o755)
    (home / "release").write_text('IMPLEMENTOR="x"\nJAVA_VERSION="24.0.1"\n')
    monkeypatch.delenv("ES_JAVA_HOME", raising=False)
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert artifacts.find_java(21, compiler=True) == home
    (home / "bin" / "javac").unlink()
    assert artifacts.find_java(21, compiler=True) != home


def test_without_a_new_enough_java_the_remedy_names_java_home() -> None:
    with pytest.raises(SetupError, match="JAVA_HOME") as failure:
        artifacts.find_java(99)
    assert failure.value.code == "java_missing"


def test_without_maven_nothing_is_fetched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for variable in ("MAVEN_HOME", "M2_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SetupError, match="Maven") as failure:
        artifacts.ensure_default_model(tmp_path / "cache", lambda _line: None)
    assert failure.value.code == "maven_missing"


def test_without_a_network_mavens_own_reason_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    closed = "-Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort=9"
    monkeypatch.setenv("MAVEN_OPTS", f"-Dmaven.repo.local={tmp_path / 'repository'} {closed}")
    with pytest.raises(SetupError, match="could not be resolved") as failure:
        artifacts.ensure_default_model(tmp_path / "cache", lambda _line: None)
    assert failure.value.code == "download_failed"
    assert "[Help" not in failure.value.message
    left = [path.name for path in (tmp_path / "cache").iterdir()]
    assert left == [".model.lock"]


def test_a_cache_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SetupError, match="MEMORY_ES_CACHE_DIR") as failure:
        artifacts.ensure_default_model(tmp_path / "file" / "cache", lambda _line: None)
    assert failure.value.code == "cache_dir_unwritable"
