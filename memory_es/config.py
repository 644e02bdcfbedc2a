"""Settings: one frozen object, read once at a door and passed down."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, get_args
from urllib.parse import urlsplit

import platformdirs
from pydantic import (
    AliasChoices,
    BeforeValidator,
    Field,
    FilePath,
    SecretStr,
    ValidationError,
    field_validator,
)
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from memory_es.errors import InvalidInput, complaint

EMBEDDED_MODEL = "intfloat/e5-small-v2"

#: Who keeps users apart: document-level security (trial, Platinum, Enterprise), an index a user
#: (any licence), or nobody (one user, security off).
Isolation = Literal["dls", "index", "insecure-single-user"]
INSECURE: Isolation = get_args(Isolation)[-1]

#: A prefix without hyphens: ``memory-episodic-*`` can then never match another deployment's index.
_PREFIX = re.compile(r"[a-z][a-z0-9_]{0,59}")
#: Between a deployment's prefix and an evaluation's own.
EVALUATION = "_eval_"
#: A time span as Elasticsearch writes it, and its units.
TIME_SPAN = re.compile(r"([1-9]\d{0,4})([smhd])")
#: A size of Java's heap.
HEAP = re.compile(r"[1-9]\d{0,6}[mg]")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def _default_dir(kind: str) -> Path:
    """Root's own folders are closed to the unprivileged user that runs the node (0700), so
    root uses the system's; everybody else uses the platform's user folder."""
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        return Path("/var/cache/memory_es" if kind == "cache" else "/var/lib/memory_es")
    if kind == "cache":
        return platformdirs.user_cache_path("memory_es", appauthor=False)
    return platformdirs.user_data_path("memory_es", appauthor=False)


def _split(value: Any) -> Any:
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else value


def time_span(field: str, value: str) -> timedelta:
    """A time span such as ``30m``, ``12h`` or ``90d``.

    Raises:
        InvalidInput: it is none.
    """
    match = TIME_SPAN.fullmatch(value)
    if match is None:
        raise InvalidInput(field, f"{value!r} is no time span", remedy="Use 30m, 12h or 90d")
    return timedelta(**{_UNITS[match[2]]: int(match[1])})


class Settings(BaseSettings):
    """Everything that a deployment may choose. Each field is read from the environment variable
    ``MEMORY_ES_<FIELD>`` (the Elasticsearch ones also from their usual names, for instance
    ``ELASTICSEARCH_URL``). Without a URL, the embedded node of ``state_dir`` is used.
    """

    model_config = SettingsConfigDict(
        env_prefix="MEMORY_ES_",
        env_ignore_empty=True,  # an empty variable, as compose files set them, is none
        frozen=True,
        extra="forbid",
        populate_by_name=True,
    )

    elasticsearch_url: str | None = Field(
        default=None,
        validation_alias=AliasChoices("ELASTICSEARCH_URL", "MEMORY_ES_ELASTICSEARCH_URL"),
        description="URL of a cluster; empty: the embedded node.",
    )
    elasticsearch_username: str | None = Field(
        default=None,
        validation_alias=AliasChoices("ELASTICSEARCH_USERNAME", "MEMORY_ES_ELASTICSEARCH_USERNAME"),
        description="Administrator; `init` alone uses it, to make the service account.",
    )
    elasticsearch_password: SecretStr | None = Field(
        default=None,
        validation_alias=AliasChoices("ELASTICSEARCH_PASSWORD", "MEMORY_ES_ELASTICSEARCH_PASSWORD"),
        description="Password of that administrator.",
    )
    elasticsearch_ca_certs: FilePath | None = Field(
        default=None,
        validation_alias=AliasChoices("ELASTICSEARCH_CA_CERTS", "MEMORY_ES_ELASTICSEARCH_CA_CERTS"),
        description="CA bundle, where the cluster's certificate is not publicly signed.",
    )
    request_timeout: float = Field(
        default=30.0, gt=0, allow_inf_nan=False, description="Seconds a request may take."
    )
    state_dir: Path = Field(
        default_factory=lambda: _default_dir("state"),
        description="The embedded node's data and credentials, the users' keys.",
    )
    cache_dir: Path = Field(
        default_factory=lambda: _default_dir("cache"),
        description="The Elasticsearch distribution and model weights.",
    )
    secret: SecretStr | None = Field(
        default=None,
        description="Deployment secret that document ids derive from; made by `init` if empty.",
    )
    service_password: SecretStr | None = Field(
        default=None,
        description="Password of the service account; made by `init` if empty.",
    )
    secret_command: str | None = Field(
        default=None,
        description="Command that prints a secret of your store; `{name}` in it becomes `secret`"
        " or `service_password`.",
    )
    credentials: Path | None = Field(
        default=None,
        description="File with one user's credentials, as `users add --show` prints them: for an"
        " agent that holds nothing else.",
    )
    isolation: Isolation = Field(
        default="dls",
        description="What keeps users apart: dls (document-level security), index (an index a"
        " user, on any licence).",
    )
    key_expiry: str = Field(
        default="90d",
        description="How long a user's key is valid, for instance 12h or 90d.",
    )
    audit: Literal["log", "index"] = Field(
        default="log",
        description="Where the audit trail goes: log lines, or also an index.",
    )
    suspicious: Literal["flag", "refuse"] = Field(
        default="flag",
        description="What becomes of a text that looks like an instruction or carries a secret.",
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        default="WARNING", description="Least level of the log lines that commands print."
    )
    prefix: str = Field(default="memory", description="Prefix of every index, template, pipeline.")
    shards: int = Field(default=3, ge=1, le=64, description="Primary shards of a memory index.")
    languages: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)] = Field(
        default=("english",),
        description="Languages with an analyzed sub-field each; comma-separated.",
    )
    embedding_model: str = Field(
        default=EMBEDDED_MODEL,
        description="Embedder: the built-in one, or any sentence-transformers name or folder.",
    )
    reranker_model: str | None = Field(
        default=None, description="Cross-encoder by name or folder; empty: no reranking."
    )
    heap: str = Field(default="1g", description="The embedded node's Java heap.")
    port: int | None = Field(
        default=None, ge=1, le=65535, description="The embedded node's port; empty: a free one."
    )

    @field_validator("elasticsearch_url")
    @classmethod
    def _whole_url(cls, value: str | None) -> str | None:
        if value is None:
            return None
        try:
            parts = urlsplit(value)
            whole = parts.scheme in {"http", "https"} and parts.hostname and parts.port
        except ValueError:
            whole = None
        if not whole:
            raise ValueError("needs scheme, host and port, for example https://es.example.org:9200")
        if "@" in parts.netloc:
            raise ValueError(
                "must not carry credentials; use ELASTICSEARCH_USERNAME and ELASTICSEARCH_PASSWORD"
            )
        return value

    @field_validator("prefix")
    @classmethod
    def _prefix_shape(cls, value: str) -> str:
        if not _PREFIX.fullmatch(value):
            raise ValueError(
                "use up to 60 of a-z, 0-9 and _, beginning with a letter (no hyphen: it separates"
                " the prefix from the index name)"
            )
        if EVALUATION in value:
            raise ValueError(f"must not have {EVALUATION!r} in it: evaluations' indices do")
        return value

    @field_validator("key_expiry")
    @classmethod
    def _spelt_time_span(cls, value: str) -> str:
        if TIME_SPAN.fullmatch(value) is None:
            raise ValueError("is no time span; use for instance 12h or 90d")
        return value

    @field_validator("heap")
    @classmethod
    def _heap_size(cls, value: str) -> str:
        if not HEAP.fullmatch(value):
            raise ValueError("is no size; use for instance 512m or 2g")
        return value

    @field_validator("languages")
    @classmethod
    def _languages_named_once(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not value or len(set(value)) != len(value) or not all(value):
            raise ValueError("name at least one language, each once, for example english,thai")
        return value

    @classmethod
    def load(cls, **overrides: Any) -> Settings:
        """Read the environment; ``overrides`` win over it.

        Raises:
            InvalidInput: a setting has a bad value, or a variable ``MEMORY_ES_…`` is none of ours;
                the message names the variable.
        """
        _refuse_unknown(os.environ)
        try:
            return cls(**{name: value for name, value in overrides.items() if value is not None})
        except ValidationError as error:
            first = error.errors()[0]
            field = str(first["loc"][0]) if first["loc"] else "settings"
            name = field if field.isupper() else f"MEMORY_ES_{field.upper()}"
            reason = complaint(first["type"], first["msg"])
            raise InvalidInput(name, reason, code="invalid_setting") from None


#: Variables of commands, that are no settings.
_OF_COMMANDS = {"MEMORY_ES_USER"}


def variables(name: str) -> list[str]:
    """The environment variables that a setting is read from."""
    alias = Settings.model_fields[name].validation_alias
    if isinstance(alias, AliasChoices):
        return [str(choice) for choice in alias.choices]
    return [f"MEMORY_ES_{name.upper()}"]


def _refuse_unknown(environment: Iterable[str]) -> None:
    """A mistyped variable must not be passed over: it may be the one that keeps users apart."""
    known = {name for field in Settings.model_fields for name in variables(field)} | _OF_COMMANDS
    for name in sorted(environment):
        if name.startswith("MEMORY_ES_") and name not in known:
            close = difflib.get_close_matches(name, known, n=1, cutoff=0.85)
            raise InvalidInput(
                name,
                "is no setting",
                code="unknown_setting",
                remedy=f"Did you mean {close[0]}?" if close else "See docs/configuration.md",
            )
