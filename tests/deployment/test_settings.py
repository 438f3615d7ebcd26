"""TLS settings: which belong together, and the arguments that the parts of a local pipeline get."""

from __future__ import annotations

from pathlib import Path

import pytest

from procession.deployment.local_pipeline import LocalPipeline
from procession.deployment.settings import Settings, load_settings
from procession.errors import ConfigError, UsageError
from procession.planner.graph import Graph
from tests.certificates import Authority
from tests.supervisor.started import Started


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


def settings(authority: Authority, *names: str) -> Settings:
    cert, key = authority.issue()
    every = {"tls_cert": cert, "tls_key": key, "tls_client_ca": authority.ca, "tls_ca": authority.ca}
    return Settings.model_validate({name: every[name] for name in names})


@pytest.mark.parametrize(
    "names",
    [(), ("tls_cert", "tls_key", "tls_ca"), ("tls_cert", "tls_key", "tls_client_ca", "tls_ca")],
    ids=lambda names: " ".join(names) or "nothing",
)
def test_a_complete_set_of_tls_settings_is_accepted(authority: Authority, names: tuple[str, ...]) -> None:
    settings(authority, *names).check_tls()


@pytest.mark.parametrize(
    "names",
    [("tls_cert", "tls_key"), ("tls_ca",), ("tls_cert", "tls_ca"), ("tls_client_ca",), ("tls_key", "tls_ca")],
    ids=" ".join,
)
def test_an_incomplete_set_of_tls_settings_is_reported_before_anything_starts(
    authority: Authority, names: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigError) as caught:
        settings(authority, *names).check_tls()
    assert "tls" in caught.value.next_step


def test_servers_present_the_certificate_and_clients_trust_and_present_it(authority: Authority, tmp_path: Path) -> None:
    started = Started()
    chosen = settings(authority, "tls_cert", "tls_key", "tls_client_ca", "tls_ca")
    (tmp_path / "gateway").mkdir()
    (tmp_path / "gateway" / "gateway.json").write_text('{"listen": "127.0.0.1:1", "control": "127.0.0.1:2"}')
    local = LocalPipeline(started, tmp_path / "app.py", Graph("p", (), 1), tmp_path, tmp_path, chosen)  # type: ignore[arg-type]
    local.start()
    local.start_source([tmp_path / "input"])
    pair = f"--tls-cert {chosen.tls_cert} --tls-key {chosen.tls_key}"
    assert f"{pair} --tls-client-ca {authority.ca}" in started.command_lines["gateway"]
    assert f"--tls-ca {authority.ca} {pair}" in started.command_lines["driver"]
    assert f"--tls-ca {authority.ca} {pair}" in started.command_lines["source"]


def test_an_emitter_presents_the_certificate_and_trusts_the_authority(authority: Authority, tmp_path: Path) -> None:
    started = Started()
    chosen = settings(authority, "tls_cert", "tls_key", "tls_client_ca", "tls_ca")
    local = LocalPipeline(
        started,  # type: ignore[arg-type]
        tmp_path / "app.py",
        Graph("p", (), 1),
        tmp_path,
        tmp_path,
        chosen,
        sink_listen="192.0.2.4:0",
        has_emitter=True,
    )
    local.start_ends()
    shown = f"emitter --dir {tmp_path / 'emitter'} --listen 192.0.2.4:0 --control-cookie-file"
    assert shown in started.command_lines["emitter"]
    pair = f"--tls-cert {chosen.tls_cert} --tls-key {chosen.tls_key}"
    assert f"{pair} --tls-client-ca {authority.ca} --tls-ca {authority.ca}" in started.command_lines["emitter"]


def test_emitters_of_the_driver_and_at_addresses_exclude_each_other() -> None:
    assert load_settings(emitters_at="192.0.2.4:7500, 192.0.2.5:7500").emitters == 0
    with pytest.raises(UsageError, match="not by both") as caught:
        load_settings(emitters_at="192.0.2.4:7500", emitters=2)
    assert caught.value.next_step == "Set only one of them."
    with pytest.raises(UsageError, match="'here' is not an address"):
        load_settings(emitters_at="here")
