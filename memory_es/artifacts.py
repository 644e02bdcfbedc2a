"""What is fetched rather than shipped: the Elasticsearch distribution and the default model.

Maven is the only downloader, so proxies, mirrors and checksums are those of the user's own Maven
configuration. Everything is built beside its final place and renamed into it: a folder that has
the final name is complete, and a killed build leaves nothing that is mistaken for one.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import shutil
import stat
import subprocess
import tempfile
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from memory_es.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

EMBEDDED = Path(__file__).parent / "embedded"

#: The newest Java that the pinned Elasticsearch was tried on. A newer one is the last resort.
_TESTED_JAVA = 25

_JVM_FOLDERS = (
    "/usr/lib/jvm/*",
    "/usr/java/*",
    "/opt/java/*",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
    "/opt/homebrew/opt/openjdk*/libexec/openjdk.jdk/Contents/Home",
    "~/.sdkman/candidates/java/*",
    "~/.jdks/*",
)

#: Maven ends every failure with these; the reason stands before them.
_BOILERPLATE = ("[Help", "-> [Help", "re-run", "Re-run", "To see the full stack", "For more")
_REASON = re.compile(r"Failed to execute goal|could not be resolved|Could not resolve|JAVA_HOME")
_NETWORK = re.compile(
    r"resolve|transfer|download|connect|unknown host|cannot access", re.IGNORECASE
)


@dataclass(frozen=True)
class _Job:
    """One profile of the pom: what it leaves behind, and what it takes."""

    profile: str
    phase: str
    result: str
    bytes_needed: int
    java: int
    compiles: bool
    announcement: str


def ensure_distribution(cache_dir: Path, progress: Callable[[str], None]) -> Path:
    """Return the folder of the unpacked distribution with our plugin in it, building it once.

    The folder's name carries a hash of the plugin's sources and of the pom, so a changed plugin
    makes a new folder, and a running node keeps the old one.

    Raises:
        SetupError: ``java_missing`` (no JDK of 21 or newer), ``maven_missing``,
            ``download_failed``, ``build_failed``, ``disk_full`` or ``cache_dir_unwritable``.
    """
    version = _pom_property("elasticsearch.version")
    job = _Job(
        profile="node",
        phase="package",
        result=f"elasticsearch-{version}",
        bytes_needed=1_000_000_000,
        java=21,
        compiles=True,
        announcement=f"Fetching Elasticsearch {version} and building its plugin"
        " (about 130 MB, only once)",
    )
    return _ensure(cache_dir / f"{job.result}-{_sources_hash()}", job, progress)


def ensure_default_model(cache_dir: Path, progress: Callable[[str], None]) -> Path:
    """Return the folder of the default embedding model: one ``.onnx``, its tokenizer's ``.json``.

    Raises:
        SetupError: ``java_missing`` (Maven needs some Java), ``maven_missing``,
            ``download_failed``, ``build_failed``, ``disk_full`` or ``cache_dir_unwritable``.
    """
    version = _pom_property("model.version")
    job = _Job(
        profile="model",
        phase="initialize",
        result=".",
        bytes_needed=250_000_000,
        java=8,
        compiles=False,
        announcement="Fetching the default embedding model (about 25 MB, only once)",
    )
    return _ensure(cache_dir / f"e5-small-v2-q-{version}", job, progress)


def find_java(minimum: int = 21, *, compiler: bool = False) -> Path:
    """Return the home of a Java of at least ``minimum``; with ``compiler``, one that has javac.

    ``ES_JAVA_HOME`` and ``JAVA_HOME`` are taken if they qualify, then the system's folders and
    the ``java`` on ``PATH``.

    Raises:
        SetupError: ``java_missing``.
    """
    for variable in ("ES_JAVA_HOME", "JAVA_HOME"):
        named = os.environ.get(variable)
        if named and _qualifies(Path(named), minimum, compiler=compiler):
            return Path(named)
    homes = [home for home in _installed() if _qualifies(home, minimum, compiler=compiler)]
    if homes:
        return min(homes, key=_preference)
    raise SetupError(
        f"no {'JDK (a Java with javac)' if compiler else 'Java'} of version {minimum} or newer",
        code="java_missing",
        remedy=f"Install a JDK of version {max(minimum, _TESTED_JAVA)} or set JAVA_HOME to one",
    )


@contextlib.contextmanager
def locked(path: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold the lock file ``path``; call ``waiting`` once if another process has it.

    The kernel drops the lock of a process that dies, so there is no stale lock.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


# --- Java ------------------------------------------------------------------------------------


def _installed() -> list[Path]:
    homes: list[Path] = []
    for pattern in _JVM_FOLDERS:
        path = Path(pattern).expanduser()
        homes.extend(sorted(Path(path.anchor).glob(str(path.relative_to(path.anchor)))))
    on_path = shutil.which("java")
    if on_path:
        homes.append(Path(on_path).resolve().parent.parent)
    return homes


def _qualifies(home: Path, minimum: int, *, compiler: bool) -> bool:
    tools = ("java", "javac") if compiler else ("java",)
    runs = all(os.access(home / "bin" / tool, os.X_OK) for tool in tools)
    return runs and _java_version(home) >= minimum


def _preference(home: Path) -> tuple[bool, int]:
    """Rank the newest tested version first, and the oldest of the untested next."""
    version = _java_version(home)
    return version > _TESTED_JAVA, abs(_TESTED_JAVA - version)


def _java_version(home: Path) -> int:
    """Read the feature version from the ``release`` file, else ask Java itself; 0 if unknown."""
    try:
        text = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    found = re.search(r'^JAVA_VERSION="?(?:1\.)?(\d+)', text, re.MULTILINE)
    if found is None:
        try:
            asked = subprocess.run(
                [home / "bin" / "java", "-version"],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=20,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return 0
        found = re.search(r'version "(?:1\.)?(\d+)', asked.stderr + asked.stdout)
    return int(found.group(1)) if found else 0


# --- Maven -----------------------------------------------------------------------------------


def _ensure(target: Path, job: _Job, progress: Callable[[str], None]) -> Path:
    if target.is_dir():
        return target
    cache_dir = target.parent
    try:
        if not cache_dir.is_dir():
            cache_dir.mkdir(parents=True, exist_ok=True)
            cache_dir.chmod(0o755)  # whatever the umask: the node's user passes through
        with locked(
            cache_dir / f".{job.profile}.lock",
            lambda: progress(f"Waiting for another process that prepares {target.name}"),
        ):
            if not target.is_dir():
                _build(target, job, progress)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _disk_full(f"the disk of {cache_dir} ran full") from error
        raise SetupError(
            f"cannot write to the cache folder {cache_dir}: {error.strerror or error}",
            code="cache_dir_unwritable",
            remedy="Set MEMORY_ES_CACHE_DIR to a folder that you may write to",
        ) from error
    return target


def _build(target: Path, job: _Job, progress: Callable[[str], None]) -> None:
    cache_dir = target.parent
    maven = _find_maven()
    java = find_java(job.java, compiler=job.compiles)
    for stale in cache_dir.glob(f".{job.profile}-*.tmp"):  # of a killed build
        shutil.rmtree(stale, ignore_errors=True)
    free = shutil.disk_usage(cache_dir).free
    if free < job.bytes_needed:
        needed = job.bytes_needed // 1_000_000
        raise _disk_full(f"{cache_dir} has {free // 1_000_000} MB free, {needed} MB are needed")
    progress(job.announcement)
    layout = Path(tempfile.mkdtemp(prefix=f".{job.profile}-", suffix=".tmp", dir=cache_dir))
    try:
        _run_maven(maven, java, job, layout)
        shutil.rmtree(layout / ".build", ignore_errors=True)
        _make_readable(layout)
        (layout / job.result).rename(target)
    finally:
        shutil.rmtree(layout, ignore_errors=True)


def _make_readable(root: Path) -> None:
    """Let everyone read, and run what is runnable, whatever the umask and the zip say.

    The node runs as an unprivileged user.
    """
    root.chmod(0o755)
    for folder, folders, files in os.walk(root):
        for name in folders:
            Path(folder, name).chmod(0o755)
        for name in files:
            path = Path(folder, name)
            path.chmod(0o755 if path.stat().st_mode & stat.S_IXUSR else 0o644)


def _find_maven() -> Path:
    for variable in ("MAVEN_HOME", "M2_HOME"):
        home = os.environ.get(variable)
        if home and os.access(Path(home) / "bin" / "mvn", os.X_OK):
            return Path(home) / "bin" / "mvn"
    found = shutil.which("mvn")
    if found is None:
        raise SetupError(
            "Maven (the command mvn) is not on PATH",
            code="maven_missing",
            remedy="Install Maven 3.6.3 or newer, or set ELASTICSEARCH_URL to a cluster of yours",
        )
    return Path(found)


def _run_maven(maven: Path, java: Path, job: _Job, layout: Path) -> None:
    done = subprocess.run(
        [
            maven,
            "--batch-mode",
            "--no-transfer-progress",
            "--quiet",
            f"--file={EMBEDDED / 'pom.xml'}",
            f"--activate-profiles={job.profile}",
            f"-Dlayout={layout}",
            "-Dstyle.color=never",
            job.phase,
        ],
        env={**os.environ, "JAVA_HOME": str(java)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode == 0:
        return
    reason = _reason(done.stdout)
    if "No space left" in done.stdout:
        raise _disk_full(f"the disk ran full while Maven worked: {reason}")
    if _NETWORK.search(reason):
        raise SetupError(
            f"Maven could not download what is needed: {reason}",
            code="download_failed",
            remedy="Check the network and Maven's own settings (proxy, mirror), then try again",
        )
    raise SetupError(
        f"Maven failed: {reason}",
        code="build_failed",
        remedy=f"Try again with JAVA_HOME set to a JDK of version {max(job.java, _TESTED_JAVA)}",
    )


def _reason(output: str) -> str:
    """Return Maven's own line about the failure, without its closing advice."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line.removeprefix("[ERROR]").strip() for line in lines if line.startswith("[ERROR]")]
    told = [line for line in errors if line and not line.startswith(_BOILERPLATE)]
    reasons = [line for line in told or lines if _REASON.search(line)]
    chosen = (reasons or told or lines or ["it printed nothing"])[-1]
    return re.sub(r"\s*-> \[Help \d+\]$", "", chosen)


def _disk_full(message: str) -> SetupError:
    return SetupError(
        message,
        code="disk_full",
        remedy="Free some space, or set MEMORY_ES_CACHE_DIR to a folder on another disk (Maven"
        " keeps its own downloads under ~/.m2)",
    )


def _pom_property(name: str) -> str:
    root = ET.parse(EMBEDDED / "pom.xml").getroot()  # noqa: S314 -- our own file
    value = root.findtext(f"{{*}}properties/{{*}}{name}")
    if not value:
        raise LookupError(name)  # the pom is part of this package
    return value


def _sources_hash() -> str:
    digest = hashlib.sha256()
    files = [EMBEDDED / "pom.xml", *(EMBEDDED / "src").rglob("*")]
    for path in sorted(path for path in files if path.is_file()):
        digest.update(path.relative_to(EMBEDDED).as_posix().encode() + b"\0")
        digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]
