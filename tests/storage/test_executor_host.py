"""The host service that executors start from a shipped environment: one on each machine, and it ends after them."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from pyarrow import flight

from procession.errors import ConfigError
from procession.storage.executor_host import (
    EXECUTORS,
    SHIPPED_FILE,
    ShippedFile,
    has_executors,
    is_serving,
    join_service,
    own_address,
    service_directory,
)
from procession.storage.host_runs import ANNOUNCEMENT, DIRECTORY_VARIABLE, announced_host
from procession.storage.host_service import HostConfig, serve_host
from procession.storage.secret import Secret, find_secret
from procession.storage.shipped_tls import FOLDER, KEY, TlsFiles
from procession.tls import ClientTls
from tests.certificates import Authority

SECRET = b"0123456789abcdef"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """Return the working directory of an executor, with the driver's file."""
    (tmp_path / SHIPPED_FILE).write_bytes(ShippedFile(SECRET, "127.0.0.1").to_json())
    (tmp_path / SHIPPED_FILE).chmod(0o755)
    yield tmp_path
    with suppress(OSError, StopIteration):
        os.kill(json.loads(next(tmp_path.rglob(ANNOUNCEMENT)).read_text())["pid"], signal.SIGKILL)


def test_executors_of_a_machine_share_one_service_that_has_the_secret(place: Path) -> None:
    environment = {"SPARK_EXECUTOR_DIRS": str(place / "local")}
    (place / "local").mkdir()
    directory = join_service(environment, place)
    assert directory.parent == place / "local"
    assert is_serving(directory)
    assert find_secret(directory, Secret.EXECUTORS) == SECRET
    assert stat.S_IMODE((place / SHIPPED_FILE).stat().st_mode) == 0o600
    announced = (directory / ANNOUNCEMENT).read_text()
    assert join_service(environment, place) == directory
    assert (directory / ANNOUNCEMENT).read_text() == announced, "it is not started a second time"
    line = Path(f"/proc/{json.loads(announced)['pid']}/cmdline").read_bytes()
    assert SECRET not in line
    assert SECRET.hex().encode() not in line


def test_a_service_presents_the_certificate_that_the_driver_has_shipped(place: Path, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    files = TlsFiles.read(ClientTls(authority.ca, *authority.issue()))
    (place / SHIPPED_FILE).write_bytes(ShippedFile(SECRET, "127.0.0.1", files).to_json())
    directory = join_service({"SPARK_LOCAL_DIRS": str(place)}, place)
    location = announced_host(directory).location
    assert location.startswith("grpc+tls://")
    trusted = {"tls_root_certs": authority.ca.read_bytes()}
    with flight.FlightClient(location, **trusted) as client, pytest.raises(flight.FlightUnauthenticatedError):
        list(client.do_action(flight.Action("drop", b"{}")))
    assert stat.S_IMODE((directory / FOLDER / KEY).stat().st_mode) == 0o600


def test_a_directory_that_the_operator_names_is_used_as_it_is(tmp_path: Path) -> None:
    assert join_service({DIRECTORY_VARIABLE: str(tmp_path)}, Path("/nowhere")) == tmp_path


def test_the_directory_is_among_those_of_the_application() -> None:
    assert service_directory({"LOCAL_DIRS": "/one,/two"}, SECRET).parent == Path("/one")
    assert service_directory({"SPARK_LOCAL_DIRS": "/three"}, SECRET).parent == Path("/three")
    both = {"SPARK_EXECUTOR_DIRS": "/four:/five", "SPARK_LOCAL_DIRS": "/three"}
    assert service_directory(both, SECRET).parent == Path("/four")
    assert service_directory(both, SECRET) != service_directory(both, b"other")
    assert SECRET.hex() not in str(service_directory(both, SECRET))


def test_without_the_drivers_file_it_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"has no file {SHIPPED_FILE} from the driver"):
        join_service({"SPARK_LOCAL_DIRS": str(tmp_path)}, tmp_path)
    (tmp_path / SHIPPED_FILE).write_text('{"format": 1}')
    with pytest.raises(ConfigError, match=f"has no file {SHIPPED_FILE} from the driver"):
        join_service({"SPARK_LOCAL_DIRS": str(tmp_path)}, tmp_path)


def test_a_service_that_cannot_start_is_one_sentence_with_its_reason(place: Path) -> None:
    environment = {"SPARK_LOCAL_DIRS": str(place)}
    (service_directory(environment, SECRET) / ANNOUNCEMENT).mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"The host service on \S+ does not start: "):
        join_service(environment, place)


def test_an_address_that_does_not_exist_is_one_sentence() -> None:
    assert own_address("127.0.0.1") == "127.0.0.1"
    with pytest.raises(ConfigError, match=r"cannot resolve or reach nothing\.invalid"):
        own_address("nothing.invalid")


def test_an_executor_counts_while_its_process_lives(tmp_path: Path) -> None:
    (tmp_path / EXECUTORS).mkdir()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        path = tmp_path / EXECUTORS / str(process.pid)
        started = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[19]
        path.write_text(started)
        assert has_executors(tmp_path)
        path.write_text("1")
        assert not has_executors(tmp_path), "the process id belongs to another process"
        path.write_text(started)
    assert not has_executors(tmp_path)


@pytest.mark.parametrize("is_removed", [False, True])
def test_the_service_ends_after_its_executors_or_with_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_removed: bool
) -> None:
    polls = threading.Semaphore(0)

    def polled(directory: Path) -> bool:
        found = has_executors(directory)
        polls.release()
        return found

    monkeypatch.setattr("procession.storage.host_service.EXECUTORS_POLL_S", 0.01)
    monkeypatch.setattr("procession.storage.host_service.has_executors", polled)
    monkeypatch.setattr("procession.storage.host_service.signal.signal", lambda *_: None)
    (tmp_path / EXECUTORS).mkdir()
    own = tmp_path / EXECUTORS / str(os.getpid())
    own.write_text(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    said = threading.Event()
    config = HostConfig(tmp_path, "127.0.0.1:0", SECRET, linger_s=3600.0 if is_removed else 0.0)
    thread = threading.Thread(target=serve_host, args=(config, lambda _: said.set()), daemon=True)
    thread.start()
    assert said.wait(30)
    assert all(polls.acquire(timeout=30) for _ in range(3))
    assert thread.is_alive(), "an executor lives"
    (tmp_path / ANNOUNCEMENT if is_removed else own).unlink()
    thread.join(30)
    assert not thread.is_alive()
