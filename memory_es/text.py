"""Pure functions on text: cleaning, identity, ids, scripts, passages. No I/O."""

from __future__ import annotations

import hashlib
import hmac
import re
import unicodedata
from functools import cache

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")
_SPACE = re.compile(r"\s+")
#: Not "unassigned" (Cn): an emoji newer than this Python is one, and is seen all the same.
_INVISIBLE = {"Zs", "Zl", "Zp", "Cc", "Cf", "Cs"}
#: A token that carries a digit and either a letter or inner punctuation: 4.2.1-beta3, E-1043.
_CODE = re.compile(r"[^\W_]+(?:[-._/:#+@][^\W_]+)*")


#: Passages that are split at a time.
BLOCK = 20
#: The name under which the catalog's document ids are derived. No user can have it: outer
#: blanks are refused.
CATALOG_OWNER = " catalog "


def clean(text: str) -> str:
    """NFC, without NUL, other control characters (tab and line breaks stay) and lone surrogates,
    trimmed of outer white space. Zero-width joiners inside the text stay: Persian needs them."""
    return unicodedata.normalize("NFC", _CONTROL.sub("", text)).strip()


def is_blank(text: str) -> bool:
    """Whether nothing visible is left: only separators, format and control characters."""
    return all(unicodedata.category(char) in _INVISIBLE for char in text)


def has_words(text: str) -> bool:
    """Whether the text has a letter, a digit or a symbol such as an emoji: not only punctuation."""
    return any(
        unicodedata.category(char)[0] in "LN" or unicodedata.category(char) in ("So", "Cn")
        for char in text
    )


def identity(text: str) -> str:
    """The normalised text by which two facts are the same: case and spacing do not matter."""
    folded = _SPACE.sub(" ", clean(text)).casefold()
    return unicodedata.normalize("NFC", folded)  # folding takes some characters apart


def owner_id(user_id: str) -> str:
    """Who owns a memory, as the cluster stamps it: the kind of owner, then the id. A team or an
    agent of the same name is somebody else."""
    return f"user:{user_id}"


def routing(user_id: str) -> str:
    """Shard routing of a user's memories, or the end of the name of that user's index: hex,
    because Elasticsearch splits a routing value at commas, and 128 bits of it, so that nobody
    finds two user ids that share an index."""
    return hashlib.sha256(owner_id(user_id).encode()).hexdigest()[:32]


def usage_id(owner_routing: str, memory_id: str) -> str:
    """Id of a memory's usage row: bound to its owner too, so that nobody who learns another's
    memory id can occupy that memory's row."""
    return hashlib.sha256(f"{owner_routing}:{memory_id}".encode()).hexdigest()[:40]


def user_secret(deployment_secret: str, user_id: str) -> str:
    """The key of a user's document ids, derived from the deployment's secret (HMAC-SHA256, hex)."""
    return _hmac(deployment_secret, [owner_id(user_id)])


def document_id(secret: str, *parts: str | int) -> str:
    """Id of a document: 40 hex digits of HMAC-SHA256. Without the user's secret nobody can
    guess it, occupy it or test for a text by it (a plain hash allows both)."""
    return _hmac(secret, list(parts))[:40]


def _hmac(secret: str, parts: list[str | int]) -> str:
    # lengths keep ("ab", "c") and ("a", "bc") apart
    message = "".join(
        f"{'i' if isinstance(part, int) else 's'}{len(str(part))}:{part}" for part in parts
    )
    return hmac.digest(secret.encode(), message.encode(), "sha256").hex()


def codes(text: str) -> list[str]:
    """Identifiers in a text (versions, serials, error codes), in order, each once.

    >>> codes("Is it 4.2.1-beta3 or E-1043, from May 2026?")
    ['4.2.1-beta3', 'E-1043']
    """
    found: dict[str, None] = {}
    for token in _CODE.findall(text):
        if any(char.isdigit() for char in token) and not token.isdigit():
            found[token] = None
    return list(found)


@cache
def _script(char: str) -> str | None:
    if not char.isalpha():
        return None
    name = unicodedata.name(char, "").split(" ")[0]
    return "CJK" if name in {"CJK", "HIRAGANA", "KATAKANA", "HANGUL"} else name


def scripts(text: str) -> frozenset[str]:
    """Names of the scripts that the letters of a text belong to, for instance {"LATIN", "THAI"}."""
    return frozenset(script for char in set(text) if (script := _script(char)))


#: Scripts of the language analyzers that are not written in Latin.
_LANGUAGE_SCRIPTS = {
    "arabic": "ARABIC",
    "bengali": "BENGALI",
    "cjk": "CJK",
    "hindi": "DEVANAGARI",
    "persian": "ARABIC",
    "thai": "THAI",
}


def matching_languages(text: str, languages: tuple[str, ...]) -> tuple[str, ...]:
    """The configured languages whose script occurs in the text; all of them if none does."""
    present = scripts(text)
    matching = tuple(name for name in languages if _LANGUAGE_SCRIPTS.get(name, "LATIN") in present)
    return matching or languages


def passages(text: str, *, size: int) -> list[tuple[int, int]]:
    """Split a long text into passages of at most ``size`` characters, on the largest Unicode
    boundary that fits (paragraph, sentence, word). Returns (start, end) character offsets."""
    from semantic_text_splitter import TextSplitter  # only long texts pay for its import

    splitter = TextSplitter(size)
    found: list[tuple[int, int]] = []
    start = 0
    while start < len(text):  # block by block: the splitter's time grows faster than the text
        block = text[start : start + BLOCK * size]
        last = start + len(block) == len(text)
        chunks = [
            (start + at, start + at + len(chunk)) for at, chunk in splitter.chunk_indices(block)
        ]
        if not last and len(chunks) > 1:
            chunks.pop()  # cut by the block, not by the text
        found += chunks
        start = chunks[-1][1] if chunks and not last else start + len(block)
    return found
