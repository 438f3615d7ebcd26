"""A savepoint on object services is complete or absent, verified, and restored while one of the services is lost."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from procession.errors import ProcessionError, StorageError, UsageError
from procession.savepoints import savepoint_volume
from procession.savepoints.savepoint_create import create
from procession.savepoints.savepoint_volume import fetched, send, split_place
from procession.sos.replicated_volume import ReplicaOptions, ReplicatedVolume
from tests.savepoints.test_savepoint import KEYS, command, totals
from tests.savepoints.test_savepoint import pipeline as stored
from tests.sos.test_replicated_volume import SECRET, Services
from tests.verify.stored_pipeline import StoredPipeline

__all__ = ["stored"]


class ServiceThread:
    """Three object services in their own thread."""

    def __init__(self, place: Path) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.services = Services(place)
        for number in range(3):
            self.do(lambda number=number: self.services.start(number))

    def do(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        asyncio.run_coroutine_threadsafe(work(), self._loop).result(30)

    @property
    def options(self) -> ReplicaOptions:
        return self.services.options()

    def close(self) -> None:
        self.do(self.services.stop_all)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture
def running(tmp_path: Path) -> Iterator[ServiceThread]:
    found = ServiceThread(tmp_path / "sos")
    yield found
    found.close()


def test_the_commands_copy_verify_describe_and_restore_also_without_one_of_three(
    stored: StoredPipeline, running: ServiceThread, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_bytes(SECRET)
    place = f"sos://{','.join(map(str, running.services.addresses))}/good"
    access = ("--replica-cookie-file", tmp_path / "secret")
    at = ("--dir", stored.directory)
    command("create", "one", *at)
    command("copy", "one", place, *at, *access)
    running.do(lambda: running.services.stop(1, is_lost=True))
    assert "is intact" in command("verify", place, *access)
    assert json.loads(command("describe", place, "--json", *access).splitlines()[-1])["name"] == "one"
    command("restore", place, tmp_path / "other", *access)
    assert totals(tmp_path / "other") == {number: number for number in KEYS}
    assert [path.name for path in tmp_path.glob(".savepoint-*")] == []
    with pytest.raises(UsageError, match="There is a savepoint in the volume 'good' already"):
        send(create(stored.directory, "two"), "good", running.options)


def test_a_savepoint_whose_copy_was_killed_is_absent_and_can_be_copied_again(
    stored: StoredPipeline, running: ServiceThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = create(stored.directory, "one")
    monkeypatch.setattr(savepoint_volume, "PIECE_BYTES", 100)

    async def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(ReplicatedVolume, "write", killed)  # all but the end is written
        with pytest.raises(KeyboardInterrupt):
            send(saved, "good", running.options)
    with pytest.raises(UsageError, match="There is no savepoint in the volume"), fetched("good", running.options):
        pass
    send(saved, "good", running.options)
    with fetched("good", running.options) as copy:
        assert copy.verify() == len(saved.manifest["files"])
        assert copy.manifest == saved.manifest


@pytest.mark.parametrize(
    ("appends", "why"),
    [
        ([b"something else"], "is not one of a savepoint"),
        ([b'B{"format": 1}', b"F\0\x05../up", b"E"], r"it names '../up'"),
    ],
)
def test_a_volume_of_something_else_is_refused(running: ServiceThread, appends: list[bytes], why: str) -> None:
    async def write() -> None:
        volume = ReplicatedVolume("other", running.options)
        await volume.open()
        for data in appends:
            await volume.write(data)
        await volume.close()

    asyncio.run(write())
    with pytest.raises(StorageError, match=why), fetched("other", running.options):
        pass


def test_a_missing_volume_is_reported_in_one_sentence(running: ServiceThread) -> None:
    with pytest.raises(ProcessionError), fetched("nothing", running.options):
        pass
    with pytest.raises(UsageError, match="names no volume"):
        split_place("sos://127.0.0.1:7400")
