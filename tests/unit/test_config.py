from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr, ValidationError

from memory_es.config import EMBEDDED_MODEL, Settings, time_span
from memory_es.errors import InvalidInput

#: Each setting: the variables that set it, a value as text, and what it becomes.
VALUES: dict[str, tuple[tuple[str, ...], str, Any]] = {
    "elasticsearch_url": (
        ("ELASTICSEARCH_URL", "MEMORY_ES_ELASTICSEARCH_URL"),
        "https://es.example:9200",
        "https://es.example:9200",
    ),
    "elasticsearch_username": (
        ("ELASTICSEARCH_USERNAME", "MEMORY_ES_ELASTICSEARCH_USERNAME"),
        "svc",
        "svc",
    ),
    "elasticsearch_password": (
        ("ELASTICSEARCH_PASSWORD", "MEMORY_ES_ELASTICSEARCH_PASSWORD"),
        "hush",
        SecretStr("hush"),
    ),
    "elasticsearch_ca_certs": (
        ("ELASTICSEARCH_CA_CERTS", "MEMORY_ES_ELASTICSEARCH_CA_CERTS"),
        __file__,
        Path(__file__),
    ),
    "request_timeout": (("MEMORY_ES_REQUEST_TIMEOUT",), "2.5", 2.5),
    "state_dir": (("MEMORY_ES_STATE_DIR",), "/srv/state", Path("/srv/state")),
    "cache_dir": (("MEMORY_ES_CACHE_DIR",), "/srv/cache", Path("/srv/cache")),
    "secret": (("MEMORY_ES_SECRET",), "hidden", SecretStr("hidden")),
    "service_password": (("MEMORY_ES_SERVICE_PASSWORD",), "hush", SecretStr("hush")),
    "secret_command": (("MEMORY_ES_SECRET_COMMAND",), "pass show {name}", "pass show {name}"),
    "credentials": (("MEMORY_ES_CREDENTIALS",), "/srv/key.json", Path("/srv/key.json")),
    "isolation": (("MEMORY_ES_ISOLATION",), "index", "index"),
    "key_expiry": (("MEMORY_ES_KEY_EXPIRY",), "12h", "12h"),
    "audit": (("MEMORY_ES_AUDIT",), "index", "index"),
    "suspicious": (("MEMORY_ES_SUSPICIOUS",), "refuse", "refuse"),
    "log_level": (("MEMORY_ES_LOG_LEVEL",), "DEBUG", "DEBUG"),
    "prefix": (("MEMORY_ES_PREFIX",), "team_7", "team_7"),
    "shards": (("MEMORY_ES_SHARDS",), "5", 5),
    "languages": (("MEMORY_ES_LANGUAGES",), "english, thai", ("english", "thai")),
    "embedding_model": (("MEMORY_ES_EMBEDDING_MODEL",), "some/model", "some/model"),
    "reranker_model": (("MEMORY_ES_RERANKER_MODEL",), "some/ranker", "some/ranker"),
    "heap": (("MEMORY_ES_HEAP",), "512m", "512m"),
    "port": (("MEMORY_ES_PORT",), "9200", 9200),
}
NAMED = [(field, name) for field, (names, _, _) in VALUES.items() for name in names]


def test_there_are_few_settings_and_each_is_described() -> None:
    assert len(Settings.model_fields) <= 25
    assert sorted(Settings.model_fields) == sorted(VALUES)
    assert all(field.description for field in Settings.model_fields.values())


def test_nothing_needs_to_be_set() -> None:
    settings = Settings.load()
    assert settings.elasticsearch_url is None
    assert (settings.prefix, settings.languages) == ("memory", ("english",))
    assert settings.embedding_model == EMBEDDED_MODEL


@pytest.mark.parametrize(("field", "name"), NAMED)
def test_each_setting_is_read_from_its_variables(
    field: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, text, value = VALUES[field]
    monkeypatch.setenv(name, text)
    assert getattr(Settings.load(), field) == value


@pytest.mark.parametrize(("field", "name"), NAMED)
def test_an_empty_variable_is_as_good_as_none(
    field: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    default = getattr(Settings.load(), field)
    monkeypatch.setenv(name, "")
    assert getattr(Settings.load(), field) == default


@pytest.mark.parametrize("field", VALUES)
def test_what_the_caller_gives_wins_over_the_environment(
    field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names, text, value = VALUES[field]
    monkeypatch.setenv(names[0], text)
    assert getattr(Settings.load(**{field: None}), field) == value
    other = {
        "shards": 2,
        "port": 9201,
        "request_timeout": 1.0,
        "heap": "2g",
        "languages": ("thai",),
    }
    given = other.get(field, value)
    monkeypatch.delenv(names[0])
    assert getattr(Settings.load(**{field: given}), field) == given


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("ELASTICSEARCH_URL", "es.example:9200"),
        ("ELASTICSEARCH_URL", "https://es.example"),
        ("ELASTICSEARCH_URL", "ftp://es.example:9200"),
        ("ELASTICSEARCH_URL", "http://:9200"),
        ("ELASTICSEARCH_URL", "http://es.example:port"),
        ("ELASTICSEARCH_URL", "http://me:hush@es.example:9200"),
        ("ELASTICSEARCH_CA_CERTS", "/no/such/bundle.pem"),
        ("MEMORY_ES_REQUEST_TIMEOUT", "0"),
        ("MEMORY_ES_REQUEST_TIMEOUT", "soon"),
        ("MEMORY_ES_REQUEST_TIMEOUT", "nan"),
        ("MEMORY_ES_REQUEST_TIMEOUT", "inf"),
        ("MEMORY_ES_PREFIX", "My-Team"),
        ("MEMORY_ES_PREFIX", "team-7"),
        ("MEMORY_ES_PREFIX", "7team"),
        ("MEMORY_ES_PREFIX", "a*"),
        ("MEMORY_ES_PREFIX", "a,b"),
        ("MEMORY_ES_PREFIX", "team\n"),
        ("MEMORY_ES_PREFIX", "x" * 61),
        ("MEMORY_ES_PREFIX", "team_eval_7"),
        ("MEMORY_ES_ISOLATION", "none"),
        ("MEMORY_ES_ISOLATION", "DLS"),
        ("MEMORY_ES_KEY_EXPIRY", "90"),
        ("MEMORY_ES_KEY_EXPIRY", "0d"),
        ("MEMORY_ES_KEY_EXPIRY", "1w"),
        ("MEMORY_ES_KEY_EXPIRY", "-1d"),
        ("MEMORY_ES_AUDIT", "file"),
        ("MEMORY_ES_SUSPICIOUS", "drop"),
        ("MEMORY_ES_LOG_LEVEL", "loud"),
        ("MEMORY_ES_SHARDS", "0"),
        ("MEMORY_ES_SHARDS", "65"),
        ("MEMORY_ES_SHARDS", "many"),
        ("MEMORY_ES_LANGUAGES", ","),
        ("MEMORY_ES_LANGUAGES", "english,,thai"),
        ("MEMORY_ES_LANGUAGES", "thai,thai"),
        ("MEMORY_ES_HEAP", "lots"),
        ("MEMORY_ES_HEAP", "1.5g"),
        ("MEMORY_ES_HEAP", "1g -XX:OnError=sh"),
        ("MEMORY_ES_PORT", "0"),
        ("MEMORY_ES_PORT", "70000"),
        ("MEMORY_ES_PORT", "http"),
    ],
)
def test_a_bad_value_is_refused_in_one_line_that_names_the_variable(
    name: str, bad: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, bad)
    with pytest.raises(InvalidInput) as caught:
        Settings.load()
    error = caught.value
    assert (error.field, error.code) == (name, "invalid_setting")
    assert str(error).startswith(f"{name}: ")
    assert "\n" not in str(error)
    assert "hush" not in str(error)


@pytest.mark.parametrize(
    ("span", "seconds"), [("30s", 30), ("15m", 900), ("12h", 43_200), ("90d", 7_776_000)]
)
def test_a_time_span_is_read_as_elasticsearch_reads_it(span: str, seconds: int) -> None:
    assert time_span("overlap", span).total_seconds() == seconds


@pytest.mark.parametrize("span", ["", "90", "0m", "1w", "1.5h", "-1d", "1 d", "1000000d"])
def test_what_is_no_time_span_is_refused_with_its_field(span: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        time_span("overlap", span)
    assert caught.value.field == "overlap"


def test_an_unknown_setting_is_refused() -> None:
    with pytest.raises(InvalidInput, match="MEMORY_ES_COLOUR"):
        Settings.load(colour="red")


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("MEMORY_ES_ISOLATON", "Did you mean MEMORY_ES_ISOLATION?"),
        ("MEMORY_ES_WEATHER_FORECAST", "See docs/configuration.md"),
    ],
)
def test_a_mistyped_variable_is_refused_and_not_passed_over(
    name: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "index")
    with pytest.raises(InvalidInput) as caught:
        Settings.load()
    assert (caught.value.field, caught.value.code) == (name, "unknown_setting")
    assert caught.value.remedy == remedy
    monkeypatch.delenv(name)
    monkeypatch.setenv("MEMORY_ES_USER", "sarah")  # of commands
    Settings.load()


def test_settings_cannot_be_changed_and_do_not_show_secrets() -> None:
    settings = Settings.load(
        secret=SecretStr("hidden"),
        elasticsearch_password=SecretStr("hush"),
        service_password=SecretStr("whisper"),
    )
    assert "whisper" not in repr(settings)
    with pytest.raises(ValidationError):
        settings.prefix = "other"  # type: ignore[misc]
    assert "hidden" not in repr(settings)
    assert "hush" not in repr(settings)
