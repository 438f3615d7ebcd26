"""TLS in tasks: each process finds the files at their location on its machine."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from procession.errors import ConfigError
from procession.storage.host_runs import DIRECTORY_VARIABLE
from procession.storage.shipped_tls import FOLDER, TlsFiles, shipped_arguments, task_tls
from procession.tls import ClientTls
from tests.certificates import Authority


def test_a_task_uses_the_shipped_files_of_its_machine_and_the_driver_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path / "authority")
    own = ClientTls(authority.ca, *authority.issue(), "any.example")
    TlsFiles.read(own).keep(tmp_path / "host")
    shipped = pickle.dumps(task_tls(own))
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path / "host"))
    found = pickle.loads(shipped)
    assert found.ca == tmp_path / "host" / FOLDER / "ca.pem"
    assert found.ca.read_bytes() == authority.ca.read_bytes()
    assert found.name == "any.example"
    found.context()
    for variable in (str(tmp_path / "other"), ""):  # a service with files of its own, or the driver's machine
        monkeypatch.setenv(DIRECTORY_VARIABLE, variable)
        assert pickle.loads(pickle.dumps(found)).ca == found.ca
        assert pickle.loads(shipped).ca == own.ca
    assert task_tls(None) is None


def test_a_service_has_options_for_tls_only_if_a_certificate_was_shipped(tmp_path: Path) -> None:
    assert shipped_arguments(tmp_path) == []
    TlsFiles("ca", "cert", "key").keep(tmp_path)
    named = shipped_arguments(tmp_path)[1::2]
    assert [Path(path).read_text() for path in named] == ["cert", "key"]


def test_an_authority_without_a_certificate_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="executors need the pipeline's certificate"):
        TlsFiles.read(ClientTls(tmp_path / "ca.pem"))
    with pytest.raises(ConfigError, match=r"ca\.pem cannot be read: No such file"):
        TlsFiles.read(ClientTls(tmp_path / "ca.pem", tmp_path / "cert.pem", tmp_path / "key.pem"))
