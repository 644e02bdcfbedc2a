"""What an attacker sends: requests to Elasticsearch with a stolen key, and user ids that break
naive systems. Shared by the isolation tests and the property test."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Probe:
    """A request for data of the victim. ``{index}``, ``{id}``, … are filled in."""

    method: str
    path: str
    body: Any = None


def _search(**body: Any) -> Probe:
    return Probe("POST", "/{index}/_search", body)


def _aggregate(**aggregation: Any) -> Probe:
    return _search(size=0, aggs={"probe": aggregation})


READS: dict[str, Probe] = {
    "everything": _search(query={"match_all": {}}),
    "everything by routing": Probe("POST", "/{index}/_search?routing={routing}", {}),
    "query string": Probe("GET", "/{index}/_search?q=*&routing={routing}"),
    "exact words": _search(query={"match": {"content.english": "quagga"}}),
    "phrase": _search(query={"match_phrase": {"content.standard": "quagga"}}),
    "simple query string": _search(
        query={"simple_query_string": {"query": "quag*", "fields": ["content.*"]}}
    ),
    "wildcard": _search(query={"wildcard": {"content.standard": "quag*"}}),
    "fuzzy": _search(query={"fuzzy": {"content.standard": "quaggo"}}),
    "regular expression": _search(query={"regexp": {"content.standard": "quag.."}}),
    "owner": _search(query={"term": {"owner_id": "{owner}"}}),
    "owner's own field": _search(query={"term": {"owner.api_key.metadata.owner_id": "{owner}"}}),
    "owner or anything": _search(
        query={"bool": {"should": [{"term": {"owner_id": "{owner}"}}, {"match_all": {}}]}}
    ),
    "owner by prefix": _search(query={"prefix": {"owner_id": "user:victim"}}),
    "not mine": _search(query={"bool": {"must_not": {"term": {"owner_id": "{attacker}"}}}}),
    "owner exists": _search(query={"exists": {"field": "owner_id"}}),
    "ids": _search(query={"ids": {"values": ["{id}"]}}),
    "terms lookup": _search(
        query={
            "terms": {
                "content_hash": {
                    "index": "{index}",
                    "id": "{id}",
                    "path": "content_hash",
                    "routing": "{routing}",
                }
            }
        }
    ),
    "knn query": _search(
        query={"knn": {"field": "embedding", "query_vector": "{vector}", "k": 50}}
    ),
    "knn section": _search(
        knn={"field": "embedding", "query_vector": "{vector}", "k": 50, "num_candidates": 1000}
    ),
    "knn retriever": _search(
        retriever={
            "knn": {
                "field": "embedding",
                "query_vector": "{vector}",
                "k": 50,
                "num_candidates": 1000,
                "filter": {"term": {"owner_id": "{owner}"}},
            }
        }
    ),
    "function score": _search(query={"function_score": {"random_score": {}}}),
    "sorted": _search(query={"match_all": {}}, sort=["owner_id"], track_total_hits=True),
    "fields": _search(fields=["*"], docvalue_fields=["owner_id"], stored_fields=["_routing"]),
    "highlight": _search(
        query={"match": {"content.standard": "quagga"}}, highlight={"fields": {"*": {}}}
    ),
    "explained": _search(query={"match": {"content.standard": "quagga"}}, explain=True),
    "collapsed": _search(collapse={"field": "owner_id", "inner_hits": {"name": "all"}}),
    "rescored": _search(
        rescore={"query": {"rescore_query": {"match": {"content.standard": "quagga"}}}}
    ),
    "global aggregation": _aggregate(
        **{"global": {}, "aggs": {"who": {"terms": {"field": "owner_id"}}}}
    ),
    "owners": _aggregate(terms={"field": "owner_id", "size": 1_000}),
    "owners in the order of terms": _aggregate(
        terms={"field": "owner_id", "order": {"_key": "asc"}}
    ),
    "owners that are missing": _aggregate(terms={"field": "owner_id", "missing": "nobody"}),
    "owners without documents": _aggregate(terms={"field": "owner_id", "min_doc_count": 0}),
    "rare owners": _aggregate(rare_terms={"field": "owner_id", "max_doc_count": 100}),
    "hashes": _aggregate(terms={"field": "content_hash", "size": 1_000}),
    "significant hashes": _aggregate(
        significant_terms={"field": "content_hash", "min_doc_count": 1}
    ),
    "composite": _aggregate(composite={"sources": [{"who": {"terms": {"field": "owner_id"}}}]}),
    "number of owners": _aggregate(cardinality={"field": "owner_id"}),
    "filters": _aggregate(
        filters={"filters": {"victim": {"term": {"owner_id": "{owner}"}}}},
        aggs={"top": {"top_hits": {"size": 10}}},
    ),
    "sampled": _aggregate(sampler={"shard_size": 100}, aggs={"t": {"top_hits": {"size": 10}}}),
    "count": Probe("POST", "/{index}/_count", {"query": {"term": {"owner_id": "{owner}"}}}),
    "get": Probe("GET", "/{index}/_doc/{id}?routing={routing}"),
    "get not in real time": Probe("GET", "/{index}/_doc/{id}?routing={routing}&realtime=false"),
    "source": Probe("GET", "/{index}/_source/{id}?routing={routing}"),
    "mget": Probe("POST", "/{index}/_mget", {"docs": [{"_id": "{id}", "routing": "{routing}"}]}),
    "msearch": Probe(
        "POST",
        "/_msearch",
        [
            {"index": "{index}", "routing": "{routing}"},
            {"query": {"match": {"content.standard": "quagga"}}},
            {"index": "*", "ignore_unavailable": True},
            {"query": {"ids": {"values": ["{id}"]}}},
        ],
    ),
    "scroll": Probe("POST", "/{index}/_search?scroll=1m", {"size": 100}),
    "all indices": Probe("POST", "/_search", {"query": {"ids": {"values": ["{id}"]}}}),
    "all indices by a wildcard": Probe(
        "POST", "/*/_search?routing={routing}", {"query": {"ids": {"values": ["{id}"]}}}
    ),
}
_REFUSED: dict[str, tuple[str, str, Any]] = {
    "explain": (
        "POST",
        "/{index}/_explain/{id}?routing={routing}",
        {"query": {"match_all": {}}},
    ),
    "term vectors": ("GET", "/{index}/_termvectors/{id}?routing={routing}&fields=*", None),
    "term vectors of a text": (
        "POST",
        "/{index}/_termvectors?routing={routing}",
        {"doc": {"text": "quagga"}, "term_statistics": True, "fields": ["content.standard"]},
    ),
    "many term vectors": ("POST", "/{index}/_mtermvectors", {"ids": ["{id}"]}),
    "terms of a field": ("POST", "/{index}/_terms_enum", {"field": "owner_id", "string": "user:v"}),
    "field capabilities": ("GET", "/{index}/_field_caps?fields=*", None),
    "settings": ("GET", "/{index}/_settings", None),
    "statistics": ("GET", "/{index}/_stats", None),
    "segments": ("GET", "/{index}/_segments", None),
    "shards": ("GET", "/{index}/_search_shards?routing={routing}", None),
    "validation": ("GET", "/{index}/_validate/query?q=quagga&explain=true", None),
    "rank evaluation": (
        "POST",
        "/{index}/_rank_eval",
        {
            "requests": [
                {
                    "id": "q",
                    "request": {"query": {"match_all": {}}},
                    "ratings": [{"_index": "{index}", "_id": "{id}", "rating": 1}],
                }
            ],
            "metric": {"precision": {}},
        },
    ),
    "more like this": (
        "POST",
        "/{index}/_search",
        {
            "query": {
                "more_like_this": {
                    "fields": ["content.standard"],
                    "like": [{"_index": "{index}", "_id": "{id}", "routing": "{routing}"}],
                    "min_term_freq": 1,
                    "min_doc_freq": 1,
                }
            }
        },
    ),
    "suggestions": (
        "POST",
        "/{index}/_search",
        {"suggest": {"s": {"text": "quaggo", "term": {"field": "content.standard"}}}},
    ),
    "profile": ("POST", "/{index}/_search", {"profile": True, "query": {"match_all": {}}}),
    "cluster state": ("GET", "/_cluster/state", None),
    "node statistics": ("GET", "/_nodes/stats", None),
    "all indices listed": ("GET", "/_cat/indices", None),
    "other keys": ("GET", "/_security/api_key", None),
    "users": ("GET", "/_security/user", None),
    "security index": ("GET", "/.security/_search", None),
    "snapshots": ("GET", "/_snapshot", None),
    "tasks": ("GET", "/_tasks", None),
    "templates": ("GET", "/_index_template", None),
    "pipelines": ("GET", "/_ingest/pipeline", None),
    "state rows": ("GET", "/{state}/_search", None),
    "a key of one's own making": (
        "POST",
        "/_security/api_key",
        {"name": "mine", "metadata": {"user_id": "{user}", "owner_id": "{owner}"}},
    ),
    "running as another": ("GET", "/_security/user/elastic", None),
}
FORBIDDEN = {name: Probe(*request) for name, request in _REFUSED.items()}
#: Refused under document-level security; harmless in an index where one is alone.
ALONE = ("suggestions", "profile")


def filled(node: Any, values: dict[str, Any]) -> Any:
    if isinstance(node, dict):
        return {key: filled(item, values) for key, item in node.items()}
    if isinstance(node, list):
        return [filled(item, values) for item in node]
    if isinstance(node, str):
        if node.startswith("{") and node[1:-1] in values:
            return values[node[1:-1]]
        for name, value in values.items():
            node = node.replace("{" + name + "}", str(value))
    return node


#: User ids of CASEBOOK I6.
HOSTILE = [
    "ann",
    "Ann",
    "ANN",
    "ann smith",
    "ann,bob",
    "bob,ann",
    "bob",
    ",",
    '"ann"',
    "'ann'",
    "ann\\",
    '"},{"match_all":{}}',
    "*",
    "?",
    "_all",
    "_",
    "-ann",
    "+ann",
    ".",
    "..",
    "../ann",
    "ann/../bob",
    "/etc/passwd",
    "%61nn",
    "ann%2Cbob",
    "{{ann}}",
    "{{_user.metadata.user_id}}",
    "${jndi:ldap://x}",
    "null",
    "true",
    "0",
    "memory:ann",
    "a" * 200,
    "a" * 199 + "b",
    "ä" * 100,
    "\u00e9",  # é as one character
    "e\u0301",  # and as two: another user
    "王小明",
    "สมชาย",
    "علی",
    "\N{FOX FACE}",
    "\N{FOX FACE}" * 120,
    "a\u200bb",
    "ab",
    "ß",
    "ss",
    "i",
    "\u0130",
    "\u0131",
]
