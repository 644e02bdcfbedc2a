"""Small real objects that stand where a model would: fast, or failing on purpose."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np

from memory_es.config import EMBEDDED_MODEL
from memory_es.errors import ModelError
from memory_es.models import Vectors, unit


class HashingEmbedder:
    """A bag of hashed words: the same text gives the same vector, texts with common words are
    near. Carries the default model's name and size, so that it fits its indices."""

    def __init__(self, name: str = EMBEDDED_MODEL, dims: int = 384) -> None:
        self.name = name
        self.dims = dims

    def passages(self, texts: Sequence[str]) -> Vectors:
        """See Embedder."""
        counts = np.zeros((len(texts), self.dims), dtype=np.float32)
        for row, text in enumerate(texts):
            for word in text.casefold().split():
                counts[row, zlib.crc32(word.encode()) % self.dims] += 1
        return unit(counts)

    def query(self, text: str) -> Vectors:
        """See Embedder."""
        vector: Vectors = self.passages([text])[0]
        return vector


class FailingEmbedder(HashingEmbedder):
    """Fails while ``broken`` is true, like a model whose process ran out of memory."""

    broken = True

    def passages(self, texts: Sequence[str]) -> Vectors:
        """See Embedder."""
        if self.broken:
            raise ModelError("the model is out of memory")
        return super().passages(texts)


class BlankEmbedder(HashingEmbedder):
    """Gives every text the vector of zeros, as models do to a text without any token."""

    def passages(self, texts: Sequence[str]) -> Vectors:
        """See Embedder."""
        return np.zeros((len(texts), self.dims), dtype=np.float32)
