"""Every error of the client below becomes one of ours, and none brings a body along."""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any

import elastic_transport
import elastic_transport._exceptions as transport_exceptions
import pytest
from elastic_transport import ApiResponseMeta, HttpHeaders, NodeConfig
from elasticsearch import exceptions as client_exceptions
from elasticsearch.helpers import errors as helper_errors

from memory_es.config import Settings
from memory_es.errors import (
    AccessDenied,
    Conflict,
    MemoryEsError,
    NotFound,
    SetupError,
    Unavailable,
)
from memory_es.store import connect, translate, translated

#: What no message may carry: it stands for memory text in a request or an answer.
SECRET = "my-private-words"

#: Each class of the libraries below that is no warning, by its own name, and what it becomes.
#: Those that carry an HTTP status are translated by it; here they have 418, which is in no table.
EXPECTED: dict[str, tuple[type[MemoryEsError], str]] = {
    "elastic_transport.ApiError": (SetupError, "refused"),
    "elastic_transport.ConnectionError": (Unavailable, "unavailable"),
    "elastic_transport.ConnectionTimeout": (Unavailable, "timeout"),
    "elastic_transport.SerializationError": (Unavailable, "bad_answer"),
    "elastic_transport.SniffingError": (Unavailable, "unavailable"),
    "elastic_transport.TlsError": (SetupError, "tls"),
    "elastic_transport.TransportError": (Unavailable, "unavailable"),
    "elasticsearch.ApiError": (SetupError, "refused"),
    "elasticsearch.AuthenticationException": (SetupError, "refused"),
    "elasticsearch.AuthorizationException": (SetupError, "refused"),
    "elasticsearch.BadRequestError": (SetupError, "refused"),
    "elasticsearch.ConflictError": (SetupError, "refused"),
    "elasticsearch.NotFoundError": (SetupError, "refused"),
    "elasticsearch.UnsupportedProductError": (SetupError, "unsupported_server"),
    "elasticsearch.helpers.BulkIndexError": (Unavailable, "partial"),
    "elasticsearch.helpers.ScanError": (Unavailable, "partial"),
}


def error_classes(*modules: ModuleType) -> dict[str, type[Exception]]:
    return {
        f"{cls.__module__}.{cls.__name__}": cls
        for module in modules
        for _, cls in inspect.getmembers(module, inspect.isclass)
        if issubclass(cls, Exception) and not issubclass(cls, Warning)
    }


CLASSES = error_classes(transport_exceptions, client_exceptions, helper_errors)


def api_error(cls: type[Any], status: int, body: Any) -> Exception:
    meta = ApiResponseMeta(
        status=status,
        http_version="1.1",
        headers=HttpHeaders({"authorization": SECRET}),
        duration=0.1,
        node=NodeConfig("http", "localhost", 9200),
    )
    error: Exception = cls(SECRET, meta, body, (ValueError(SECRET),))
    return error


def make(cls: type[Any]) -> Exception:
    if issubclass(cls, elastic_transport.ApiError):
        reason = {"type": "some_exception", "reason": SECRET, "root_cause": [{"reason": SECRET}]}
        return api_error(cls, 418, {"error": reason, "status": 418})
    if issubclass(cls, elastic_transport.TransportError):
        transport: Exception = cls(SECRET, errors=(ValueError(SECRET),))
        return transport
    # a helper's error: a message, then what failed
    helper: Exception = cls(SECRET, [{"create": {"error": {"reason": SECRET}}}])
    return helper


def test_every_error_class_of_the_libraries_below_is_known() -> None:
    assert sorted(CLASSES) == sorted(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_an_error_of_the_client_becomes_one_of_ours_without_its_body(name: str) -> None:
    with pytest.raises(MemoryEsError) as caught, translated():
        raise make(CLASSES[name])
    ours = caught.value
    assert (type(ours), ours.code) == EXPECTED[name]
    assert SECRET not in str(ours) + repr(ours)
    # neither is it in a traceback: the client's error is not chained
    assert ours.__cause__ is None
    assert ours.__suppress_context__
    assert str(translate(make(CLASSES[name]))) == str(ours)


@pytest.mark.parametrize(
    ("status", "kind", "expected", "code"),
    [
        (400, "parsing_exception", SetupError, "refused"),
        (401, "security_exception", AccessDenied, "unauthenticated"),
        (403, "security_exception", AccessDenied, "forbidden"),
        (404, "index_not_found_exception", SetupError, "not_initialised"),
        (404, "", NotFound, "not_found"),
        (409, "version_conflict_engine_exception", Conflict, "conflict"),
        (413, "", SetupError, "refused"),
        (429, "es_rejected_execution_exception", Unavailable, "unavailable"),
        (500, "null_pointer_exception", Unavailable, "unavailable"),
        (502, "", Unavailable, "unavailable"),
        (503, "no_shard_available_action_exception", Unavailable, "unavailable"),
        (504, "", Unavailable, "unavailable"),
    ],
)
def test_a_status_becomes_a_stable_code(
    status: int, kind: str, expected: type[MemoryEsError], code: str
) -> None:
    cls = client_exceptions.HTTP_EXCEPTIONS.get(status, client_exceptions.ApiError)
    ours = translate(api_error(cls, status, {"error": {"type": kind, "reason": SECRET}}))
    assert (type(ours), ours.code) == (expected, code)
    assert SECRET not in str(ours)


@pytest.mark.parametrize(
    "body", [None, "", SECRET, b"<html>", {}, {"error": SECRET}, {"error": None}, [SECRET]]
)
def test_an_answer_of_any_shape_is_translated(body: Any) -> None:
    ours = translate(api_error(client_exceptions.ApiError, 503, body))
    assert type(ours) is Unavailable
    assert SECRET not in str(ours)


def test_a_licence_without_document_level_security_is_named_as_such() -> None:
    reason = "current license is non-compliant for [field and document level security]"
    ours = translate(
        api_error(
            client_exceptions.AuthorizationException,
            403,
            {"error": {"type": "security_exception", "reason": reason}},
        )
    )
    assert (type(ours), ours.code) == (SetupError, "licence_expired")


def test_what_is_worth_a_retry_says_so_and_the_rest_does_not() -> None:
    verdicts = {
        status: translate(api_error(client_exceptions.ApiError, status, {})).retryable
        for status in (400, 401, 403, 404, 409, 429, 500, 503)
    }
    assert [status for status, retryable in verdicts.items() if retryable] == [429, 500, 503]


def test_a_ca_bundle_is_used_with_tls_and_in_nobodys_way_without() -> None:
    settings = Settings.load(elasticsearch_ca_certs=__file__)
    for url, used in (("https://es.example:9200", __file__), ("http://127.0.0.1:9200", None)):
        with connect(url, settings) as client:
            [node] = client.transport.node_pool.all()
            assert node.config.ca_certs == used


def test_other_errors_pass_untouched() -> None:
    with pytest.raises(ZeroDivisionError), translated():
        raise ZeroDivisionError
    with pytest.raises(TypeError, match="ZeroDivisionError"):
        translate(ZeroDivisionError())
