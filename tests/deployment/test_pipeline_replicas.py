"""The directories of a pipeline as volumes of its replicas, and which settings are refused before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from procession.deployment.pipeline_replicas import (
    PipelineReplicas,
    check_place,
    parse_volume,
    replica_options,
)
from procession.deployment.settings import Settings, load_settings
from procession.errors import ConfigError, UsageError
from procession.sos.replicated_files import MARKER
from procession.sos.replicated_host import replicated_host
from procession.storage.durable import write_durably
from tests.sos.test_replicated_files import ServiceThread, replicas

__all__ = ["replicas"]

THREE = "127.0.0.1:1,127.0.0.1:2,127.0.0.1:3"


@pytest.fixture
def cookie(tmp_path: Path) -> Path:
    path = tmp_path / "sos.secret"
    path.write_text("secret")
    path.chmod(0o600)
    return path


def settings_of(services: ServiceThread, cookie: Path) -> Settings:
    options = services.options()
    cookie.write_bytes(options.cookie)
    return load_settings(replicas=",".join(map(str, options.addresses)), replica_cookie_file=cookie)


def test_each_part_gets_its_own_volume_and_the_addresses_of_the_replicas(
    cookie: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(cookie.parent)
    given = load_settings(replicas=THREE, replica_quorum=3, replica_cookie_file=Path(cookie.name))
    fixed = ["--replica-quorum", "3", "--replica-cookie-file", str(cookie)]
    expected = ["--replicas", THREE, "--replica-volume", "p-gateway", *fixed]
    assert PipelineReplicas(given, "p").arguments("gateway") == expected
    named = load_settings(replicas=THREE.split(","), replica_volume="other", replica_cookie_file=cookie)
    assert PipelineReplicas(named, "p").arguments("driver")[:4] == [
        "--replicas",
        THREE,
        "--replica-volume",
        "other-driver",
    ]


def test_without_replicas_there_is_no_option_and_no_check(tmp_path: Path) -> None:
    pipeline = PipelineReplicas(load_settings(), "a name with blanks")
    assert pipeline.arguments("gateway") == []
    pipeline.check_reachable({"driver": tmp_path}, print)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"replicas": THREE}, "need a secret"),
        ({"replicas": THREE, "replica_quorum": 1, "with_cookie": True}, "quorum"),
        ({"replicas": "127.0.0.1:1,127.0.0.1:1,127.0.0.1:2", "with_cookie": True}, "named twice"),
    ],
)
def test_a_set_of_replicas_that_is_not_safe_is_refused(given: dict[str, object], sentence: str, cookie: Path) -> None:
    secret = {"replica_cookie_file": cookie} if given.pop("with_cookie", False) else {}
    with pytest.raises((ConfigError, UsageError), match=sentence):
        replica_options(load_settings(**given, **secret))


@pytest.mark.parametrize("text", ["127.0.0.1:1/p", "sos://127.0.0.1:1", "sos://127.0.0.1:1/"])
def test_an_address_without_a_scheme_or_a_name_is_not_a_volume(text: str) -> None:
    with pytest.raises(UsageError, match="names no volume"):
        parse_volume(text)


def test_a_pipeline_name_that_no_volume_can_have_is_refused_before_the_start(cookie: Path, tmp_path: Path) -> None:
    given = load_settings(replicas=THREE, replica_cookie_file=cookie)
    with pytest.raises(UsageError, match="cannot name a volume"):
        PipelineReplicas(given, "a b").check_reachable({"driver": tmp_path}, print)


def test_a_missing_replica_is_named_and_refused_only_if_it_is_needed(
    replicas: ServiceThread, cookie: Path, tmp_path: Path
) -> None:
    pipeline, said = PipelineReplicas(settings_of(replicas, cookie), "p"), list[str]()
    missing = str(replicas.options().addresses[1])
    pipeline.check_reachable({"driver": tmp_path}, said.append)
    assert said == []
    replicas.stop(1)
    with pytest.raises(ConfigError, match=f"All replicas .*{missing}"):
        pipeline.check_reachable({"driver": tmp_path}, said.append)
    (tmp_path / MARKER).write_text("{}")
    pipeline.check_reachable({"driver": tmp_path}, said.append)
    assert len(said) == 1
    assert missing in said[0]
    replicas.stop(0)
    with pytest.raises(ConfigError, match=f"2 replicas must answer.*{missing}"):
        pipeline.check_reachable({"driver": tmp_path}, said.append)


def test_only_missing_directories_are_restored(replicas: ServiceThread, cookie: Path, tmp_path: Path) -> None:
    here, said = tmp_path / "here", list[str]()
    for part in ("driver", "gateway"):
        with replicated_host(here / part, f"p-{part}", replicas.options()) as host:
            write_durably(here / part / "file", part.encode(), host.files)
    there = {"driver": tmp_path / "there", "gateway": tmp_path / "there" / "gateway"}
    pipeline = PipelineReplicas(settings_of(replicas, cookie), "p")
    pipeline.restore(there, said.append)
    assert [(path / "file").read_text() for path in there.values()] == ["driver", "gateway"]
    (there["driver"] / "file").write_text("changed")
    pipeline.restore(there, said.append)
    assert (there["driver"] / "file").read_text() == "changed"
    assert len(said) == 2


def test_replicas_are_refused_on_a_cluster_that_has_none() -> None:
    check_place(has_replicas=True)
    with pytest.raises(UsageError, match="has no replicas"):
        check_place(has_replicas=False)
