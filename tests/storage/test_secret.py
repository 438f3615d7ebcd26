"""Secrets are created once, private under any umask, found in the directory, and refused if others could read them."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from procession.deployment.cookies import check_open, control_cookie, gateway_cookies, source_cookie
from procession.errors import ConfigError, UsageError
from procession.storage.secret import (
    KeptSecret,
    Secret,
    find_secret,
    keep_copy,
    make_pipeline_private,
    make_secret,
    path_of,
    pipeline_of,
)


@pytest.fixture(autouse=True, params=[0o000, 0o022, 0o077], ids=["umask 000", "umask 022", "umask 077"])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_secret_is_made_once_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    assert find_secret(tmp_path, Secret.SINKS) == b""
    made = make_secret(tmp_path, Secret.SINKS)
    assert len(bytes.fromhex(made.decode())) == 32
    assert make_secret(tmp_path, Secret.SINKS) == find_secret(tmp_path, Secret.SINKS) == made
    assert make_secret(tmp_path, Secret.CONTROL) != made
    assert mode(path_of(tmp_path, Secret.SINKS)) == 0o600
    assert mode(tmp_path / "secrets") == 0o700
    assert sorted(path.name for path in (tmp_path / "secrets").iterdir()) == ["control", "sinks"]


def _make(directory: Path) -> bytes:
    return make_secret(directory, Secret.CONTROL)


def test_concurrent_creators_of_a_secret_all_get_the_same_one(tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        assert len(set(pool.map(_make, [tmp_path] * 64, chunksize=1))) == 1


def test_a_secret_that_others_could_have_read_or_written_is_refused(tmp_path: Path) -> None:
    make_secret(tmp_path, Secret.CONTROL)
    path = path_of(tmp_path, Secret.CONTROL)
    path.chmod(0o640)
    with pytest.raises(ConfigError, match="could be read or written by others"):
        find_secret(tmp_path, Secret.CONTROL)
    path.chmod(0o600)
    if os.geteuid() == 0:
        os.chown(path, 65534, 65534)
        with pytest.raises(ConfigError, match="could be read or written by others"):
            make_secret(tmp_path, Secret.CONTROL)


def test_a_gateway_uses_the_secrets_of_the_pipeline_that_it_is_in(tmp_path: Path) -> None:
    assert pipeline_of(tmp_path / "gateway") == tmp_path
    assert pipeline_of(tmp_path / "elsewhere") == tmp_path / "elsewhere"
    make_secret(tmp_path, Secret.CONTROL)
    assert pipeline_of(tmp_path / "gateway-1") == tmp_path


def test_the_first_gateway_makes_secrets_and_others_must_have_them(tmp_path: Path) -> None:
    directory = tmp_path / "gateway"
    producers, control = gateway_cookies(directory, None, None, None, is_open=False)
    assert producers
    assert control
    assert producers != control
    assert gateway_cookies(tmp_path / "x", directory, None, None, is_open=False) == (producers, control)
    assert gateway_cookies(directory, None, None, None, is_open=True) == (b"", control)
    far = tmp_path / "far" / "away"
    with pytest.raises(UsageError, match="needs the secret of the pipeline for its control port"):
        gateway_cookies(far, "192.0.2.1:7101", None, None, is_open=False)
    given = path_of(tmp_path, Secret.CONTROL)
    with pytest.raises(UsageError, match="for its producers port"):
        gateway_cookies(far, "192.0.2.1:7101", None, given, is_open=False)
    copied = path_of(tmp_path, Secret.PRODUCERS)
    assert gateway_cookies(far, "192.0.2.1:7101", copied, given, is_open=False) == (producers, control)
    with pytest.raises(UsageError, match="exclude each other"):
        check_open(copied, is_open=True)


def test_a_source_finds_the_secret_by_the_directory_or_by_the_address_it_sends_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert source_cookie(None, None, "127.0.0.1:7100") == b""
    made = {}
    for number, name in enumerate(("one", "two")):
        directory = Path(".procession") / name
        made[name] = make_secret(directory, Secret.PRODUCERS)
        (directory / "gateway").mkdir()
        announcement = f'{{"listen": "127.0.0.1:710{number}", "control": "unix:/x"}}'
        (directory / "gateway" / "gateway.json").write_text(announcement)
    assert source_cookie(None, None, "127.0.0.1:7100") == made["one"]
    assert source_cookie(None, None, "127.0.0.1:9,127.0.0.1:7101") == made["two"]
    assert source_cookie(None, None, "192.0.2.1:7100") == b"", "no secret goes to an address that is not ours"
    assert source_cookie(None, Path(".procession/two"), "192.0.2.1:7100") == made["two"]
    assert source_cookie(None, Path(".procession/two/gateway"), "192.0.2.1:7100") == made["two"]
    control = make_secret(Path(".procession/two"), Secret.CONTROL)
    assert control_cookie(Path(".procession/two/gateway"), None) == control
    assert control_cookie("192.0.2.1:7101", None) == b""


def test_a_pipelines_directory_is_made_private_and_another_directory_is_not_changed(tmp_path: Path) -> None:
    new = tmp_path / "new"
    make_pipeline_private(new)
    assert mode(new) == 0o700
    old = tmp_path / "old"
    (old / "gateway" / "log").mkdir(parents=True)
    (old / "gateway" / "log" / "a.segment").write_text("payload")
    (old / "epochs.jsonl").write_text("")
    for path in (old, old / "gateway", old / "gateway" / "log"):
        path.chmod(0o755)
    (old / "gateway" / "log" / "a.segment").chmod(0o644)
    (old / "mine.txt").write_text("")
    (old / "mine.txt").chmod(0o644)
    make_pipeline_private(old)
    assert {mode(old), mode(old / "gateway"), mode(old / "gateway" / "log")} == {0o700}
    assert mode(old / "gateway" / "log" / "a.segment") == mode(old / "epochs.jsonl") == 0o600
    assert mode(old / "mine.txt") == 0o644
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(0o755)
    (home / "letters").mkdir()
    make_pipeline_private(home)
    assert mode(home) == 0o755


def test_a_stored_secret_is_pickled_without_its_bytes_and_read_again_when_unpickled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = KeptSecret(b"very secret", ("$HOST_OF_TEST", str(tmp_path / "pipeline")))
    pickled = pickle.dumps(kept)
    assert b"very secret" not in pickled
    assert b"very secret".hex().encode() not in pickled
    keep_copy(tmp_path / "pipeline", b"of the pipeline")
    assert pickle.loads(pickled) == b"of the pipeline"
    keep_copy(tmp_path / "host", b"of the host")
    monkeypatch.setenv("HOST_OF_TEST", str(tmp_path / "host"))
    again = pickle.loads(pickled)
    assert again == b"of the host"
    assert b"of the host" not in pickle.dumps(again)
    assert mode(tmp_path / "host" / "secrets" / "executors") == 0o600


def test_a_stored_secret_without_a_copy_on_this_machine_is_reported_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not on this machine") as caught:
        pickle.loads(pickle.dumps(KeptSecret(b"x", (str(tmp_path),))))
    assert "procession host" in (caught.value.next_step or "")


def test_a_copy_of_another_secret_is_replaced(tmp_path: Path) -> None:
    keep_copy(tmp_path, b"first")
    keep_copy(tmp_path, b"second")
    assert find_secret(tmp_path, Secret.EXECUTORS) == b"second"
