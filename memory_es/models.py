"""Embedders and rerankers. The default runs on ONNX Runtime; anything else by name or folder
through sentence-transformers, whose import (torch: 10 s cold) only its users pay."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from memory_es.artifacts import ensure_default_model
from memory_es.config import EMBEDDED_MODEL, Settings
from memory_es.errors import ModelError

if TYPE_CHECKING:
    from onnxruntime import InferenceSession
    from sentence_transformers import CrossEncoder, SentenceTransformer
    from tokenizers import Tokenizer

Vectors = NDArray[np.float32]
Progress = Callable[[str], None]

#: Texts in one forward pass. Sorted by length first, so that a batch has little padding.
BATCH = 32
#: e5-small-v2's context length in tokens (its model card).
E5_TOKENS = 512


class Embedder(Protocol):
    """Turns texts into unit vectors: float32, shape (number of texts, ``dims``). A text without
    any token may give a row of zeros."""

    @property
    def name(self) -> str:
        """The model's name: documents and indices carry it."""

    @property
    def dims(self) -> int:
        """Length of a vector."""

    def passages(self, texts: Sequence[str]) -> Vectors:
        """Vectors of stored texts. Raises ModelError."""

    def query(self, text: str) -> Vectors:
        """Vector of one query, shape (dims,). Raises ModelError."""


class Reranker(Protocol):
    """Scores how well each text answers a query."""

    @property
    def name(self) -> str:
        """The model's name."""

    def scores(self, query: str, texts: Sequence[str]) -> list[float]:
        """One raw score a text, higher is better. Raises ModelError."""


def unit(vectors: NDArray[Any]) -> Vectors:
    """Rows scaled to length 1. Rows of zeros stay; a row that is not finite is an error.

    Raises:
        ModelError: NaN or infinity.
    """
    vectors = np.asarray(vectors, dtype=np.float32)
    if not np.isfinite(vectors).all():
        raise ModelError("the embedder returned NaN or infinity", code="bad_vector")
    norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
    scaled: Vectors = np.divide(vectors, norms, out=np.zeros_like(vectors), where=norms > 0)
    return scaled


class OnnxE5:
    """intfloat/e5-small-v2 as int8 ONNX: prefixes, mean pooling and normalisation as its model
    card says. 384 dimensions, English."""

    name = EMBEDDED_MODEL
    dims = 384

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._loading = threading.Lock()
        self._loaded: tuple[InferenceSession, Tokenizer] | None = None

    def _parts(self) -> tuple[InferenceSession, Tokenizer]:
        """Session and tokenizer, loaded when first needed (0.4 s): most commands embed nothing."""
        with self._loading:
            if self._loaded is None:
                import onnxruntime
                from tokenizers import Tokenizer

                tokenizer = Tokenizer.from_file(str(next(self._folder.glob("*tokenizer.json"))))
                tokenizer.enable_truncation(E5_TOKENS)
                tokenizer.enable_padding()
                options = onnxruntime.SessionOptions()
                options.log_severity_level = 3
                # idle threads that spin slow down Elasticsearch on the same machine
                options.add_session_config_entry("session.intra_op.allow_spinning", "0")
                session = onnxruntime.InferenceSession(
                    str(next(self._folder.glob("*.onnx"))),
                    options,
                    providers=["CPUExecutionProvider"],
                )
                self._loaded = session, tokenizer
            return self._loaded

    def passages(self, texts: Sequence[str]) -> Vectors:
        """See Embedder."""
        return self._encode([f"passage: {text}" for text in texts])

    def query(self, text: str) -> Vectors:
        """See Embedder."""
        vector: Vectors = self._encode([f"query: {text}"])[0]
        return vector

    def _encode(self, texts: list[str]) -> Vectors:
        result = np.zeros((len(texts), self.dims), dtype=np.float32)
        order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
        for start in range(0, len(order), BATCH):
            rows = order[start : start + BATCH]
            result[rows] = self._batch([texts[row] for row in rows])
        return result

    def _batch(self, texts: list[str]) -> Vectors:
        session, tokenizer = self._parts()
        encodings = tokenizer.encode_batch(texts)
        mask = np.array([encoding.attention_mask for encoding in encodings], dtype=np.int64)
        feeds = {
            "input_ids": np.array([encoding.ids for encoding in encodings], dtype=np.int64),
            "attention_mask": mask,
            "token_type_ids": np.zeros_like(mask),
        }
        try:
            wanted = [entry.name for entry in session.get_inputs()]
            hidden = session.run(None, {name: feeds[name] for name in wanted})[0]
        except Exception as error:  # noqa: BLE001 -- ONNX Runtime raises classes of its own C extension
            raise ModelError(f"{self.name} failed: {type(error).__name__}") from None
        weights = mask[:, :, None].astype(np.float32)
        return unit((hidden * weights).sum(axis=1) / weights.sum(axis=1))


class SentenceTransformerEmbedder:
    """Any sentence-transformers model by name (from a hub or its cache) or folder. Prompts,
    pooling and lengths are the model's own."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._model: SentenceTransformer = _load_st("SentenceTransformer", name)
        self.dims = int(self._model.get_embedding_dimension() or 0)

    def passages(self, texts: Sequence[str]) -> Vectors:
        """See Embedder."""
        return self._run(lambda: self._model.encode_document(list(texts), batch_size=BATCH))

    def query(self, text: str) -> Vectors:
        """See Embedder."""
        return self._run(lambda: self._model.encode_query(text))

    def _run(self, call: Callable[[], Any]) -> Vectors:
        try:
            return unit(call())
        except Exception as error:  # noqa: BLE001 -- models raise classes of many libraries
            raise ModelError(f"{self.name} failed: {type(error).__name__}") from None


class CrossEncoderReranker:
    """Any cross-encoder by name or folder, through sentence-transformers."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._model: CrossEncoder = _load_st("CrossEncoder", name)

    def scores(self, query: str, texts: Sequence[str]) -> list[float]:
        """See Reranker."""
        if not texts:
            return []
        try:
            raw = self._model.predict([(query, text) for text in texts], show_progress_bar=False)
            scores = np.asarray(raw, dtype=np.float64).reshape(len(texts))
        except Exception as error:  # noqa: BLE001 -- models raise classes of many libraries
            raise ModelError(f"{self.name} failed: {type(error).__name__}") from None
        if not np.isfinite(scores).all():
            raise ModelError(f"{self.name} returned NaN or infinity", code="bad_score")
        return [float(score) for score in scores]


def _load_st(class_name: str, name: str) -> Any:
    if Path(name).is_absolute() and not Path(name).is_dir():
        raise ModelError(
            f"there is no folder {name}",
            code="model_missing",
            remedy="Check MEMORY_ES_EMBEDDING_MODEL and MEMORY_ES_RERANKER_MODEL",
        )
    try:
        import sentence_transformers
    except ImportError:
        raise ModelError(
            f"the model {name!r} needs sentence-transformers, which is not installed",
            code="no_sentence_transformers",
            remedy="Run: pip install 'memory-es[models]'",
        ) from None
    try:
        return getattr(sentence_transformers, class_name)(name, device="cpu")
    except Exception as error:  # noqa: BLE001 -- models raise classes of many libraries
        reason = str(error).strip().splitlines()[0][:200] if str(error) else type(error).__name__
        raise ModelError(
            f"the model {name!r} cannot be loaded ({reason})",
            code="model_missing",
            remedy="Check its name or folder; without a model hub, use a folder (and set"
            " HF_HUB_OFFLINE=1: then it is not waited for)",
        ) from None


def load_embedder(settings: Settings, progress: Progress) -> Embedder:
    """The configured embedder, fetched if it is the built-in one and not there yet.

    Raises:
        ModelError: it cannot be loaded.
        SetupError: the built-in one cannot be fetched.
    """
    if settings.embedding_model == EMBEDDED_MODEL:
        return OnnxE5(ensure_default_model(settings.cache_dir, progress))
    return SentenceTransformerEmbedder(settings.embedding_model)


def load_reranker(settings: Settings) -> Reranker | None:
    """The configured cross-encoder, or None. Raises ModelError."""
    return CrossEncoderReranker(settings.reranker_model) if settings.reranker_model else None
