"""What the run has logged, searched for what must never be logged (CASEBOOK I8)."""

from __future__ import annotations

import json
import logging
import os
import re
from base64 import b64decode
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import unquote_plus

from elasticsearch import Elasticsearch, helpers

from memory_es.placement import Placement

#: Shorter texts are found in anything.
LEAST = 12
#: A text of fewer different letters (`aaaa…`) is found in made-up ids.
_LETTERS = 3
_SHOWN = 20
#: Lines about requests whose path has nothing but names and ids: nearly all.
_HARMLESS = re.compile(
    r"elastic_transport\.transport [A-Z]+ http://[\w.:-]+/[\w./*,?&=:-]*"
    r" \[status:\S+ duration:\S+\]"
    r"|urllib3\.connectionpool http://\S+ \"[A-Z]+ [\w./*,?&=:-]+ HTTP/1\.1\" \d+ \S+"
)
_CREDENTIAL = re.compile(r"\b(?:ApiKey|Basic|Bearer) [A-Za-z0-9+/=_-]{16,}")
#: What divides the words of a line that is taken for harmless.
_PARTS = re.compile(r"[^\w.-]+")
#: An API key as Elasticsearch encodes it, whoever made it and wherever it is kept.
_ENCODED = re.compile(r"[A-Za-z0-9+/]{58}==")
_KEY = re.compile(rb"[\w-]{20}:[\w-]{22}")


def log_everything(state: Path) -> None:
    """From here on every record of this process, at DEBUG, goes to a file of its own."""
    folder = state / "logged"
    folder.mkdir(exist_ok=True)
    handler = logging.FileHandler(
        folder / f"{os.getpid()}.log", encoding="utf-8", errors="backslashreplace"
    )
    handler.setFormatter(logging.Formatter("%(name)s %(message)s"))
    root = logging.getLogger()
    root.setLevel(logging.DEBUG)
    # the second does not propagate, and would write whole requests if it were not switched off
    for logger in (root, logging.getLogger("elastic_transport.node")):
        logger.addHandler(handler)


def note_texts(state: Path, admin: Elasticsearch, placement: Placement) -> None:
    """Keep the texts of a deployment that is about to be removed, to look for them at the end."""
    if not admin.indices.exists(index=placement.index("catalog")):
        return
    folder = state / "texts"
    folder.mkdir(exist_ok=True)
    hits = helpers.scan(
        admin, index=f"{placement.prefix}-*", query={"_source": ["text"]}, size=2_000
    )
    texts = (hit["_source"].get("text") for hit in hits)  # a forged one need not be a string
    kept = {text for text in texts if isinstance(text, str) and len(text) >= LEAST}
    (folder / f"{placement.prefix}.json").write_text(json.dumps(sorted(kept)))


def in_logs(state: Path) -> list[str]:
    """What was found, a line each, without the secret itself."""
    noted = (json.loads(file.read_text()) for file in state.rglob("texts/*.json"))
    texts = _Needles(form for some in noted for text in some for form in _forms(text))
    secrets = _Needles(_secrets(state))
    found: dict[str, None] = {}
    for file in (*state.glob("logged/*.log"), *state.rglob("logs/*.log")):
        with file.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                by = line.split(" ")[0]
                if _HARMLESS.fullmatch(line.rstrip("\n")):
                    if any(texts.has(word) or secrets.has(word) for word in _PARTS.split(line)):
                        found[f"{file.name}: in a path, by {by}"] = None
                    continue
                for form in {line, unquote_plus(line)}:
                    if _CREDENTIAL.search(form) or _holds_key(form):
                        found[f"{file.name}: a credential, by {by}"] = None
                    if secrets.within(form):
                        found[f"{file.name}: a secret, by {by}"] = None
                    for text in texts.within(form):
                        found[f"{file.name}: {text[:40]!r}, by {by}"] = None
    return list(found)[:_SHOWN]


class _Needles:
    """Many texts to look for at once, by the way they begin: a run logs millions of characters."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._by_start: dict[str, set[str]] = {}
        for text in texts:
            self._by_start.setdefault(text[:LEAST], set()).add(text)

    def has(self, word: str) -> bool:
        """Whether the word is one of them."""
        return word in self._by_start.get(word[:LEAST], ())

    def within(self, line: str) -> set[str]:
        """Those that stand somewhere in the line."""
        pieces = {line[at : at + LEAST] for at in range(len(line) - LEAST + 1)}
        starts = pieces & self._by_start.keys()
        return {text for start in starts for text in self._by_start[start] if text in line}


def _forms(text: str) -> Iterator[str]:
    """A text as a line of a log may have it: its longest line, or escaped."""
    longest = max(text.splitlines(), key=len, default="")[:200]
    for form in (
        longest,
        json.dumps(longest)[1:-1],
        json.dumps(longest, ensure_ascii=False)[1:-1],
        repr(longest)[1:-1],
    ):
        if len(longest) >= LEAST and len(set(longest)) > _LETTERS:
            yield form


def _holds_key(line: str) -> bool:
    return any(_KEY.fullmatch(b64decode(found)) for found in _ENCODED.findall(line))


def _secrets(state: Path) -> Iterator[str]:
    """Every secret of the run that is kept anywhere below its state folder."""
    for file in state.rglob("users/**/*.json"):
        kept = json.loads(file.read_text("utf-8"))
        yield from (str(kept[name]) for name in ("api_key", "id_secret") if kept.get(name))
    for file in state.rglob("credentials.json"):
        yield str(json.loads(file.read_text("utf-8"))["password"])
    for file in (*state.rglob("service/*"), *state.rglob("secret")):
        yield file.read_text("utf-8").strip()
