"""Set-up and the start-up check on the real node: versions, outages, init, repair, analyzers."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from memory_es import Platform, Settings, cluster, indices, node
from memory_es.cluster import ClusterFacts
from memory_es.errors import AccessDenied, MemoryEsError, SetupError, Unavailable
from memory_es.models import Embedder
from memory_es.placement import Placement, alias
from memory_es.schema import Kind
from memory_es.text import routing, usage_id
from tests.backstage import admin_of
from tests.proxy import Asked, Proxy, Reply

#: Every index of a deployment with document-level security.
SHARED = Placement("any", "dls").shared
NewPlatform = Callable[..., Platform]
LANGUAGES = ("arabic", "bengali", "cjk", "english", "hindi", "persian", "thai")


@pytest.fixture
def through(
    running_node: node.NodeInfo, state_dir: Path, embedder: Embedder
) -> Iterator[Callable[..., Platform]]:
    """Makes platforms that reach Elasticsearch by another URL, with the node's password."""
    made: list[Platform] = []

    def make(url: str, prefix: str) -> Platform:
        settings = Settings(
            elasticsearch_url=url,
            elasticsearch_username=running_node.username,
            elasticsearch_password=running_node.password,
            state_dir=state_dir,
            prefix=prefix,
            request_timeout=20,
        )
        made.append(Platform(settings, embedder=embedder))
        return made[-1]

    yield make
    for platform in made:
        platform.close()


def as_version_8(asked: Asked) -> Reply | None:
    """What an Elasticsearch 8 says to a client 9: it does not know that media type."""
    if "compatible-with=9" in asked.headers.get("accept", "") + asked.headers.get(
        "content-type", ""
    ):
        reason = "A compatible version is required on both Content-Type and Accept headers"
        error = {"type": "media_type_header_exception", "reason": reason}
        return Reply(400, json.dumps({"error": error, "status": 400}).encode())
    return None


def amend_version(claimed: str) -> Callable[[Asked, Reply], Reply]:
    def amend(asked: Asked, reply: Reply) -> Reply:
        if not asked.path.startswith("/_nodes"):
            return reply
        body = json.loads(reply.body)
        for entry in body["nodes"].values():
            entry["version"] = claimed
        headers = {**reply.headers, "content-type": "application/json"}
        return Reply(reply.status, json.dumps(body).encode(), headers)

    return amend


# --- E1: a server of another major version --------------------------------------------------


def test_a_server_8_is_refused_and_both_versions_are_named(
    running_node: node.NodeInfo, through: Callable[..., Platform], platform: Platform
) -> None:
    with Proxy(running_node.url, answer=as_version_8, amend=amend_version("8.19.0")) as server_8:
        old = through(server_8.url, platform.settings.prefix)
        for call in (old.init, old.check, old.status, lambda: old.add_user("ann")):
            with pytest.raises(SetupError) as caught:
                call()
            assert caught.value.code == "version_mismatch"
            assert "8.19.0" in str(caught.value)
            assert version("elasticsearch") in str(caught.value)
        [failed] = old.diagnose()
        assert (failed.name, failed.verdict) == ("cluster", "failed")
        assert "8.19.0" in failed.detail
        assert all(asked.path.startswith("/_nodes") for asked in server_8.seen)


def test_the_same_proxy_without_the_disguise_lets_everything_through(
    running_node: node.NodeInfo, through: Callable[..., Platform], platform: Platform, user: str
) -> None:
    with Proxy(running_node.url) as plain:
        ours = through(plain.url, platform.settings.prefix)
        ours.add_user(user)
        ours.for_user(user).remember("the lighthouse keeper plays the oboe")
        hits = ours.for_user(user).recall("who plays the oboe?").hits
        assert hits[0].text == "the lighthouse keeper plays the oboe"
        ours.close()  # its connections end before the proxy does


def test_something_that_is_no_elasticsearch_is_refused(
    running_node: node.NodeInfo, through: Callable[..., Platform], platform: Platform
) -> None:
    def page(_asked: Asked) -> Reply:
        return Reply(200, b"<html>It works!</html>", {"content-type": "text/html"})

    with Proxy(running_node.url, answer=page) as web_server:
        with pytest.raises(MemoryEsError) as caught:
            through(web_server.url, platform.settings.prefix).check()
        assert caught.value.code in {"unsupported_server", "bad_answer"}


def test_a_wrong_password_is_access_denied(running_node: node.NodeInfo, platform: Platform) -> None:
    settings = platform.settings.model_copy(
        update={
            "elasticsearch_url": running_node.url,
            "service_password": type(running_node.password)("not the password"),
        }
    )
    with Platform(settings, embedder=platform.embedder()) as wrong:
        with pytest.raises(AccessDenied) as caught:
            wrong.check()
        assert caught.value.code == "unauthenticated"
        assert "not the password" not in str(caught.value)


# --- E4: outages ----------------------------------------------------------------------------


def test_a_platform_made_while_elasticsearch_is_down_works_once_it_is_up(
    running_node: node.NodeInfo, through: Callable[..., Platform], platform: Platform, user: str
) -> None:
    platform.add_user(user)
    platform.for_user(user).remember("Wren keeps the spare key under the blue pot")
    door = Proxy(running_node.url)  # its port is closed yet
    ours = through(door.url, platform.settings.prefix)
    memory = ours.for_user(user)
    calls: tuple[Callable[[], Any], ...] = (
        ours.check,
        ours.init,
        ours.status,
        lambda: ours.add_user(user),
        lambda: memory.recall("where is the key?"),
        lambda: memory.remember("Wren has a cat"),
        lambda: list(memory.remember_many([{"text": "Wren has a dog"}])),
    )
    for call in calls:
        with pytest.raises(Unavailable) as caught:
            call()
        assert caught.value.retryable
        assert caught.value.remedy
    assert [check.verdict for check in ours.diagnose()] == ["failed"]

    door.start()
    question: dict[str, Any] = {"query": "where is the key?", "filters": {"kinds": ["episodic"]}}
    assert [hit.text for hit in memory.recall(**question).hits] == [
        "Wren keeps the spare key under the blue pot"
    ]

    door.stop()  # it goes down again, under the same objects
    with pytest.raises(Unavailable):
        memory.recall("where is the key?")
    with pytest.raises(Unavailable):
        memory.remember("Wren has a parrot")

    door.start()
    assert len(memory.recall(**question).hits) == 1
    ours.close()
    door.stop()


def test_touches_that_met_an_outage_are_written_after_it(
    running_node: node.NodeInfo, through: Callable[..., Platform], platform: Platform, user: str
) -> None:
    platform.add_user(user)
    result = platform.for_user(user).remember("Wren sings in the choir on Mondays")
    with Proxy(running_node.url) as door:
        ours = through(door.url, platform.settings.prefix)
        ours.for_user(user).recall("when does the choir sing?")
        recorder = ours.recorder()
        assert recorder is not None
        door.stop()
        with contextlib.suppress(Unavailable):  # the background thread may have been faster
            recorder.drain()
        door.start()
        recorder.drain()
        ours.close()
    row = admin_of(platform).get(
        index=alias(platform.settings.prefix, "usage"),
        id=usage_id(routing(user), str(result.id)),
        routing=routing(user),
    )
    assert row["_source"]["use_count"] == 1


# --- licence and security -------------------------------------------------------------------


def facts(**changes: Any) -> ClusterFacts:
    good: dict[str, Any] = {
        "server_version": "9.5.2",
        "client_version": "9.5.0",
        "licence": "trial",
        "licence_days": 20.0,
        "security": True,
    }
    return ClusterFacts(**(good | changes))


def test_the_facts_of_the_node_are_read(platform: Platform) -> None:
    now = datetime.now(UTC)
    found = cluster.cluster_facts(admin_of(platform), now)
    assert found.server_version == "9.5.2"
    assert found.client_version == version("elasticsearch")
    assert found.licence == "trial"
    assert found.licence_days is not None
    assert 29 < found.licence_days <= 30
    assert found.security
    later = cluster.cluster_facts(admin_of(platform), now + timedelta(days=25))
    assert later.licence_days is not None
    assert 4 < later.licence_days <= 5
    cluster.require_isolation(found, "dls")
    cluster.require_isolation(found, "index")


@pytest.mark.parametrize("licence", ["trial", "platinum", "enterprise"])
def test_a_licence_with_document_level_security_serves(licence: str) -> None:
    cluster.require_isolation(facts(licence=licence), "dls")


@pytest.mark.parametrize("licence", ["basic", "gold", "trial", "trial (expired)", "platinum"])
def test_any_licence_serves_with_an_index_a_user(licence: str) -> None:
    cluster.require_isolation(facts(licence=licence), "index")


def test_an_index_a_user_needs_security_too() -> None:
    with pytest.raises(SetupError) as caught:
        cluster.require_isolation(facts(security=False), "index")
    assert caught.value.code == "security_off"


def test_going_without_is_for_clusters_without_security() -> None:
    cluster.require_isolation(facts(security=False), "insecure-single-user")
    with pytest.raises(SetupError) as caught:
        cluster.require_isolation(facts(), "insecure-single-user")
    assert caught.value.code == "security_on"


@pytest.mark.parametrize(
    ("changes", "code", "named"),
    [
        ({"licence": "basic"}, "licence", "basic"),
        ({"licence": "gold"}, "licence", "gold"),
        ({"licence": "trial (expired)"}, "licence_expired", "expired"),
        ({"security": False}, "security_off", "security"),
    ],
)
def test_a_cluster_that_would_not_isolate_is_refused_with_reason_and_remedy(
    changes: dict[str, Any], code: str, named: str
) -> None:
    with pytest.raises(SetupError) as caught:
        cluster.require_isolation(facts(**changes), "dls")
    assert caught.value.code == code
    assert named in caught.value.message
    assert caught.value.remedy


def test_a_basic_licence_behind_the_url_refuses_to_serve(
    running_node: node.NodeInfo, through: Callable[..., Platform], platform: Platform, user: str
) -> None:
    def basic(asked: Asked, reply: Reply) -> Reply:
        if not asked.path.startswith("/_license"):
            return reply
        body = json.loads(reply.body)
        body["license"]["type"] = "basic"
        return Reply(reply.status, json.dumps(body).encode(), reply.headers)

    platform.add_user(user)
    with Proxy(running_node.url, amend=basic) as server:
        ours = through(server.url, platform.settings.prefix)
        calls: tuple[Callable[[], Any], ...] = (
            ours.init,
            lambda: ours.for_user(user).recall("anything"),
            lambda: ours.for_user(user).remember("anything"),
        )
        for call in calls:
            with pytest.raises(SetupError, match="basic") as caught:
                call()
            assert caught.value.code == "licence"
        ours.close()


# --- init -----------------------------------------------------------------------------------


def test_init_says_what_it_made_and_then_that_nothing_is_left_to_do(
    new_platform: NewPlatform,
) -> None:
    platform = new_platform(init=False)
    prefix = platform.settings.prefix
    with pytest.raises(SetupError) as caught:
        platform.check()
    assert caught.value.code == "not_initialised"
    assert "memory-es init" in str(caught.value)
    made = platform.init()
    assert set(made) == {
        f"role {prefix}_service",
        f"service account {prefix}_service",
        f"component template {prefix}-owner",
        f"component template {prefix}-shared",
        f"pipeline {prefix}-stamp",
        *(f"index template {prefix}-{name}" for name in SHARED),
        *(f"index {prefix}-{name}-000001 behind alias {prefix}-{name}" for name in SHARED),
    }
    assert platform.init() == []
    platform.check()
    assert indices.drift(admin_of(platform), platform.settings, platform.layout()) == []


def test_indices_are_versioned_behind_aliases_with_three_shards(platform: Platform) -> None:
    prefix = platform.settings.prefix
    live = indices.live_indices(admin_of(platform), platform.placement)
    assert set(live) == {f"{prefix}-{name}-000001" for name in SHARED}
    for name in SHARED:
        assert live[f"{prefix}-{name}-000001"]["aliases"] == {
            f"{prefix}-{name}": {"is_write_index": True}
        }
    shards = {
        name: body["settings"]["index"]["number_of_shards"]
        for name, body in admin_of(platform).indices.get_settings(index=list(live)).body.items()
    }
    for name in ("catalog", "audit"):
        assert shards.pop(f"{prefix}-{name}-000001") == "1"
    assert set(shards.values()) == {"3"}


def test_four_at_once_initialise_one_deployment(
    new_platform: NewPlatform, embedder: Embedder
) -> None:
    first = new_platform(init=False)
    platforms = [first, *(Platform(first.settings, embedder=embedder) for _ in range(3))]
    barrier = threading.Barrier(4)
    outcomes: list[list[str]] = []
    errors: list[Exception] = []

    def init(platform: Platform) -> None:
        barrier.wait()
        try:
            outcomes.append(platform.init())
        except Exception as error:  # noqa: BLE001 -- whatever it is, the test shows it
            errors.append(error)

    threads = [threading.Thread(target=init, args=(platform,)) for platform in platforms]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    made = [line for outcome in outcomes for line in outcome if "behind alias" in line]
    assert len(made) == len(set(made)) == len(SHARED)  # each by exactly one of them
    assert first.init() == []
    first.check()
    for platform in platforms[1:]:
        platform.close()


@pytest.fixture(scope="module")
def repaired(new_platform: NewPlatform) -> Platform:
    """A deployment for tests that damage it and mend it."""
    return new_platform()


@pytest.mark.parametrize("keeps_meta", [True, False])
def test_an_altered_template_is_noticed_and_repaired_and_nothing_else_is(
    repaired: Platform, *, keeps_meta: bool
) -> None:
    platform = repaired
    service, prefix = admin_of(platform), platform.settings.prefix
    name = alias(prefix, "semantic")
    body = service.indices.get_index_template(name=name)["index_templates"][0]["index_template"]
    altered = {
        "index_patterns": body["index_patterns"],
        "composed_of": body["composed_of"],
        "priority": body["priority"],
        "template": body["template"],
    }
    altered["template"]["mappings"]["properties"]["confidence"] = {"type": "keyword"}
    if keeps_meta:  # as an operator's editor does
        altered["_meta"] = body["_meta"]
    service.indices.put_index_template(name=name, **altered)
    [templates] = [check for check in platform.diagnose() if check.name == "templates"]
    assert templates.verdict == "failed"
    assert f"index template {name}" in templates.detail
    assert "memory-es init" in templates.detail
    with Platform(platform.settings, embedder=platform.embedder()) as fresh:
        with pytest.raises(SetupError) as caught:
            fresh.check()
        assert caught.value.code == "templates_altered"

    assert platform.init() == [f"index template {name}"]
    assert platform.init() == []
    mended = service.indices.get_index_template(name=name)["index_templates"][0]["index_template"]
    assert mended["template"]["mappings"]["properties"]["confidence"] == {"type": "float"}


def test_what_is_altered_under_a_running_process_is_noticed_within_a_minute(
    repaired: Platform, embedder: Embedder, user: str
) -> None:
    ahead = [timedelta()]
    with Platform(
        repaired.settings, embedder=embedder, clock=lambda: datetime.now(UTC) + ahead[0]
    ) as server:
        server.add_user(user)
        memory = server.for_user(user)
        memory.remember("the tide turns at four")
        name = f"{repaired.settings.prefix}-stamp"
        service = admin_of(repaired)
        for shift in (timedelta(seconds=61), timedelta(seconds=-61)):  # also a clock set back
            for call in (
                lambda: memory.remember("unstamped"),
                lambda: memory.recall("when does the tide turn?"),
                lambda: server.add_user(f"{user}-other"),
            ):
                server.check()  # good, and remembered
                service.ingest.put_pipeline(id=name, processors=[])
                try:
                    server.check()  # still remembered
                    ahead[0] += shift
                    with pytest.raises(SetupError) as caught:
                        call()
                finally:
                    repaired.init()
                assert caught.value.code == "templates_altered"
        [hit] = memory.recall("when does the tide turn?").hits
        assert hit.text == "the tide turns at four"


def test_a_removed_pipeline_template_or_component_setting_is_put_back(
    repaired: Platform,
) -> None:
    platform = repaired
    service, prefix = admin_of(platform), platform.settings.prefix
    service.ingest.put_pipeline(id=f"{prefix}-stamp", processors=[])
    service.indices.delete_index_template(name=alias(prefix, "catalog"))
    name = f"{prefix}-owner"
    found = service.cluster.get_component_template(name=name)["component_templates"][0]
    body = found["component_template"]
    body["template"]["settings"]["index"]["number_of_shards"] = 7
    service.cluster.put_component_template(name=name, template=body["template"], meta=body["_meta"])
    assert platform.init() == [
        f"component template {name}",
        f"pipeline {prefix}-stamp",
        f"index template {alias(prefix, 'catalog')}",
    ]
    assert platform.init() == []
    [pipeline] = service.ingest.get_pipeline(id=f"{prefix}-stamp").body.values()
    assert [*pipeline["processors"][0]] == ["set_security_user"]


def test_a_lost_index_is_named_and_made_again(
    repaired: Platform, embedder: Embedder, user: str
) -> None:
    platform = Platform(repaired.settings, embedder=embedder)  # one that has not looked yet
    service, prefix = admin_of(repaired), repaired.settings.prefix
    service.indices.delete(index=f"{prefix}-usage-000001")
    with pytest.raises(SetupError, match=f"{prefix}-usage") as caught:
        platform.add_user(user)
    assert caught.value.code == "not_initialised"
    assert platform.init() == [f"index {prefix}-usage-000001 behind alias {prefix}-usage"]
    platform.add_user(user)
    platform.close()


def test_a_lost_alias_is_put_back(repaired: Platform, embedder: Embedder) -> None:
    platform = Platform(repaired.settings, embedder=embedder)
    service, prefix = admin_of(repaired), repaired.settings.prefix
    service.indices.delete_alias(index=f"{prefix}-state-000001", name=f"{prefix}-state")
    with pytest.raises(SetupError, match=f"{prefix}-state"):
        platform.check()
    assert platform.init() == [f"alias {prefix}-state of index {prefix}-state-000001"]
    platform.check()
    platform.close()


# --- what the indices were made for ---------------------------------------------------------


def test_other_languages_are_refused_and_change_nothing(
    platform: Platform, embedder: Embedder
) -> None:
    made = platform
    before = admin_of(made).indices.get_index_template(name=f"{made.settings.prefix}-*").body
    settings = made.settings.model_copy(update={"languages": ("english", "thai")})
    with Platform(settings, embedder=embedder) as other:
        for call in (other.init, other.check):
            with pytest.raises(SetupError) as caught:
                call()
            assert caught.value.code == "languages_changed"
            assert "english,thai" in caught.value.message
            assert "MEMORY_ES_LANGUAGES=english" in str(caught.value.remedy)
    after = admin_of(made).indices.get_index_template(name=f"{made.settings.prefix}-*").body
    assert after == before


def test_another_deployment_secret_is_refused(platform: Platform, embedder: Embedder) -> None:
    made = platform
    settings = Settings.load(
        state_dir=made.settings.state_dir, prefix=made.settings.prefix, secret="0" * 64
    )
    with Platform(settings, embedder=embedder) as other:
        for call in (other.init, other.check, lambda: other.add_user("ann")):
            with pytest.raises(SetupError) as caught:
                call()
            assert caught.value.code == "secret_mismatch"
            assert "0" * 64 not in str(caught.value)


@pytest.mark.parametrize(
    "meta", [{"schema_version": 99}, {"schema_version": 1}, {}], ids=["other", "partial", "none"]
)
def test_an_index_that_this_version_did_not_make_is_refused(
    repaired: Platform, embedder: Embedder, meta: dict[str, Any]
) -> None:
    name = f"{repaired.settings.prefix}-semantic-000001"
    [found] = admin_of(repaired).indices.get_mapping(index=name).body.values()
    good = found["mappings"]["_meta"]
    admin_of(repaired).indices.put_mapping(index=name, meta={"memory_es": meta})
    try:
        with Platform(repaired.settings, embedder=embedder) as other:
            with pytest.raises(SetupError) as caught:
                other.check()
            assert caught.value.code == "schema_mismatch"
            assert f"{repaired.settings.prefix}-semantic" in caught.value.message
    finally:
        admin_of(repaired).indices.put_mapping(index=name, meta=good)


# --- doctor ---------------------------------------------------------------------------------


def test_doctor_finds_a_sound_deployment_sound(platform: Platform) -> None:
    checks = {check.name: check for check in platform.diagnose()}
    assert set(checks) == {"cluster", "licence", "indices", "templates", "vectors"}
    assert {check.verdict for check in checks.values()} <= {"ok", "warning"}
    assert checks["cluster"].verdict == checks["templates"].verdict == "ok"
    assert "9.5.2" in checks["cluster"].detail


def test_doctor_warns_of_a_licence_that_ends_within_a_week(platform: Platform) -> None:
    later = datetime.now(UTC) + timedelta(days=24)
    with Platform(platform.settings, embedder=platform.embedder(), clock=lambda: later) as then:
        [licence] = [check for check in then.diagnose() if check.name == "licence"]
    assert licence.verdict == "warning"
    assert "days left" in licence.detail


@pytest.mark.usefixtures("running_node")
def test_doctor_from_the_shell_names_the_remedy_when_nothing_is_installed(
    environment: dict[str, str], new_prefix: Callable[[], str]
) -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("memory-es"), "doctor", "--json"],
        env=environment | {"MEMORY_ES_PREFIX": new_prefix()},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3, done.stderr
    checks = {check["name"]: check for check in json.loads(done.stdout)}
    assert [check["verdict"] for check in checks.values()] == ["failed"]
    assert "memory-es init" in checks["cluster"]["detail"]


# --- analyzers of the node ------------------------------------------------------------------


@pytest.fixture(scope="module")
def many_languages(new_platform: NewPlatform) -> Platform:
    return new_platform(languages=LANGUAGES)


@pytest.mark.parametrize(
    ("analyzer", "text", "tokens"),
    [
        ("memory_english", "The dogs' owners were running", ["dog", "owner", "were", "run"]),
        ("memory_english", "Ann's CAFÉ", ["ann", "cafe"]),
        ("memory_english_search", "What did Ann's owners do when?", ["ann", "owner"]),
        ("memory_english_search", "where have I lived?", ["i", "live"]),
        ("memory_cjk", "我喜欢骑自行车", ["我喜", "喜欢", "欢骑", "骑自", "自行", "行车"]),
        ("memory_cjk", "\uff21\uff22\uff23", ["abc"]),
        ("memory_thai", "แมวของฉันชื่อส้ม", ["แมว", "ฉัน", "ชื่อ", "ส้ม"]),
        ("memory_persian", "گربه‌ی من نارنجی است", ["گربه", "ي", "نارنج"]),
        ("memory_arabic", "الكتاب والكتب", ["كتاب", "كتب"]),
        ("memory_hindi", "किताबें और किताब", ["किताब", "किताब"]),
        ("memory_bengali", "বইগুলো বই", ["বই", "বই"]),
        ("memory_exact", "Is it 4.2.1-beta3, E-1043 or 7?", ["4.2.1-beta3", "e-1043", "7"]),
    ],
)
def test_the_embedded_node_analyzes_as_the_full_distribution_does(
    many_languages: Platform, analyzer: str, text: str, tokens: list[str]
) -> None:
    index = f"{many_languages.settings.prefix}-semantic-000001"
    answer = admin_of(many_languages).indices.analyze(index=index, analyzer=analyzer, text=text)
    assert [token["token"] for token in answer["tokens"]] == tokens


def test_every_kind_and_language_has_its_field(many_languages: Platform) -> None:
    prefix = many_languages.settings.prefix
    for kind in Kind:
        [found] = admin_of(many_languages).indices.get_mapping(index=alias(prefix, kind)).values()
        fields = found["mappings"]["properties"]["content"]["fields"]
        assert set(fields) == {"standard", "exact", *LANGUAGES}
