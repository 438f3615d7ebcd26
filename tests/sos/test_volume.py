"""A volume on disk, and the store of a service: the effect of each method is on disk when it returns."""

from __future__ import annotations

import errno
import random
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from procession.errors import DiskError, StorageError
from procession.runtime.host_files import HOST_FILES
from procession.sim.disk import SimulatedPath
from procession.sim.simulated_files import SimulatedFileSystem
from procession.sos import sos_frames as sf
from procession.sos.sos_store import FOLDER, SosStore
from procession.sos.volume_rules import RefusalCode, RequestRefused, VolumeState
from tests.runtime.test_files import simulated
from tests.sos.volumes import FIRST, T1, T2, T3, A, filled, head, made, reopened


def begun(directory: Path) -> None:
    volume = made(directory)
    volume.claim(1, T1)
    volume.create(1, T1, 1, FIRST, 0)
    filled(volume, 1, [b"ab", b"cd"], 1, T1)


def test_a_claim_syncs_written_data_and_fences_its_writer() -> None:
    files = simulated()
    volume = made(SimulatedPath("v"), files)
    volume.claim(1, T1)
    volume.create(1, T1, 1, FIRST, 0)
    filled(volume, 1, [b"ab"], 1, T1)
    assert volume.state.objects[1].synced == 0
    volume.claim(2, T2)
    assert volume.state.objects[1].synced == 2
    with pytest.raises(RequestRefused):
        filled(volume, 1, [b"zombie"], 1, T1)
    files.disk.cut_power(random.Random(1))
    again = reopened(SimulatedPath("v"), files)
    assert (again.state.promised, again.state.token, again.state.objects[1].written) == (2, T2, 2)


def test_a_created_object_and_all_before_it_survive_a_power_cut() -> None:
    files = simulated()
    volume = made(SimulatedPath("v"), files)
    volume.claim(1, T1)
    volume.create(1, T1, 1, FIRST, 0)
    volume.claim(2, T2)
    filled(volume, 1, [b"written back"], 2, T2)
    volume.create(2, T2, 2, head(1, b"written back"), 0)
    files.disk.cut_power(random.Random(1), is_scattered=True)
    assert reopened(SimulatedPath("v"), files).state.objects[1].written == len(b"written back")
    assert reopened(SimulatedPath("v"), files).read(1, 0, 99)[2] == b"written back"


def test_a_refused_append_changes_nothing(tmp_path: Path) -> None:
    begun(tmp_path / "v")
    volume = reopened(tmp_path / "v")
    before = volume.state
    for fence, token, number, offset, checksum, data in (
        (1, T2, 1, 4, zlib.crc32(b"abcdx"), b"x"),
        (1, T1, 1, 3, zlib.crc32(b"abcdx"), b"x"),
        (1, T1, 1, 4, zlib.crc32(b"abcdy"), b"x"),
        (1, T1, 2, 0, zlib.crc32(b"x"), b"x"),
        (1, T1, 1, 4, zlib.crc32(b"abcd"), b""),
    ):
        with pytest.raises(RequestRefused):
            volume.append(fence, token, number, offset, checksum, data)
    assert volume.state == before
    assert volume.read(1, 0, 99)[2] == b"abcd"


def test_reading_gives_whole_appends_and_at_least_one(tmp_path: Path) -> None:
    begun(tmp_path / "v")
    volume = reopened(tmp_path / "v")
    assert volume.read(1, 0, 1)[1:] == ([(2, zlib.crc32(b"ab"))], b"ab")
    assert volume.read(1, 2, 99) == (zlib.crc32(b"ab"), [(2, zlib.crc32(b"abcd"))], b"cd")
    assert volume.read(1, 4, 99)[1:] == ([], b"")
    for offset in (1, 5):
        with pytest.raises(RequestRefused):
            volume.read(1, offset, 99)


def test_a_copy_that_was_away_while_objects_were_deleted_starts_at_the_mark(tmp_path: Path) -> None:
    begun(tmp_path / "v")
    volume = reopened(tmp_path / "v")
    volume.claim(9, T3)
    with pytest.raises(RequestRefused):
        volume.create(9, T3, 8, head(7, b"gone"), 0)
    volume.create(9, T3, 8, head(7, b"gone"), 8)
    assert (list(volume.state.objects), volume.state.mark) == ([8], 8)
    assert list(reopened(tmp_path / "v").state.objects) == [8]


def test_an_unestablished_branch_does_not_stop_the_chosen_one(tmp_path: Path) -> None:
    """Object 2 seals object 1 early, which the quorum does not have. The quorum chose a longer object 1 under fence
    3."""
    begun(tmp_path / "v")
    volume = reopened(tmp_path / "v")
    volume.claim(2, T2)
    volume.create(2, T2, 2, head(1, b"ab"), 0)
    assert volume.state.objects[1].written == 2
    volume.claim(3, T3)
    volume.create(3, T3, 3, head(1, b"abcd"), 0)
    assert volume.state.objects[1].written == 4
    assert reopened(tmp_path / "v").state.objects[1].written == 4


# The store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SosStore]:
    made_store = SosStore(tmp_path, HOST_FILES, random.Random(1).getrandbits)
    yield made_store
    made_store.close()


def append(number: int, offset: int, before: bytes, data: bytes, *, is_barrier: bool = False) -> sf.AppendChunk:
    return sf.AppendChunk(number, "v", 1, 1, offset, zlib.crc32(before + data), is_barrier, data)


def claimed(store: SosStore, name: str = "v") -> dict[str, bytes]:
    claims: dict[str, bytes] = {}
    store.perform(
        [
            (claims, sf.FormatVolume(1, name)),
            (claims, sf.ClaimVolume(2, name, 1, T1)),
            (claims, sf.CreateObject(3, name, 1, 1, FIRST, 0)),
        ]
    )
    return claims


def test_many_appends_share_one_sync_and_nothing_is_called_synced_before(
    store: SosStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims = claimed(store)
    syncs: list[int] = []
    monkeypatch.setattr("procession.runtime.host_files.sync", lambda *_, **__: syncs.append(1))
    (reply,) = store.perform([(claims, append(4, 0, b"", b"a"))])
    assert (reply.written, reply.synced, syncs) == (1, 0, [])
    replies = store.perform(
        [
            (claims, append(5, 1, b"a", b"b", is_barrier=True)),
            (claims, append(6, 2, b"ab", b"c")),
            (claims, append(7, 3, b"abc", b"d", is_barrier=True)),
        ]
    )
    assert [(reply.written, reply.synced) for reply in replies] == [(4, 4)] * 3
    assert len(syncs) == 1


def test_a_failed_sync_ends_the_store_and_nothing_is_replied() -> None:
    files = simulated()
    store = SosStore(SimulatedPath("s"), files, random.Random(1).getrandbits)
    claims = claimed(store)
    files.disk.fsync_failures = 1
    with pytest.raises(DiskError):
        store.perform([(claims, append(4, 0, b"", b"a", is_barrier=True))])


def test_a_full_disk_is_refused_and_the_append_can_be_made_later() -> None:
    files: SimulatedFileSystem = simulated()
    store = SosStore(SimulatedPath("s"), files, random.Random(1).getrandbits)
    claims = claimed(store)
    files.disk.is_full = True
    (reply,) = store.perform([(claims, append(4, 0, b"", b"a" * 99, is_barrier=True))])
    assert isinstance(reply, sf.RefusedReply)
    assert reply.code is RefusalCode.STORAGE
    files.disk.is_full = False
    (again,) = store.perform([(claims, append(5, 0, b"", b"a" * 99, is_barrier=True))])
    assert (again.written, again.synced) == (99, 99)


def test_an_unexpected_error_of_the_disk_ends_the_store(store: SosStore, monkeypatch: pytest.MonkeyPatch) -> None:
    claims = claimed(store)

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("procession.runtime.host_files.write_all", fail)
    with pytest.raises(DiskError):
        store.perform([(claims, append(4, 0, b"", b"a"))])


def test_a_connection_that_has_not_claimed_changes_nothing(store: SosStore) -> None:
    claimed(store)
    for request in (append(4, 0, b"", b"a"), sf.CreateObject(4, "v", 1, 1, FIRST, 0), sf.RetainFrom(4, "v", 1, 1)):
        (reply,) = store.perform([({}, request)])
        assert isinstance(reply, sf.RefusedReply)
        assert reply.code is RefusalCode.FENCED


def test_each_copy_has_an_identity_that_dies_with_it(store: SosStore, tmp_path: Path) -> None:
    (first,) = store.perform([({}, sf.FormatVolume(1, "v"))])
    (again,) = store.perform([({}, sf.FormatVolume(1, "v"))])
    (other,) = store.perform([({}, sf.FormatVolume(1, "w"))])
    assert first == again
    assert first.state.identity != other.state.identity
    (unknown,) = store.perform([({}, sf.DescribeVolume(1, "x"))])
    assert unknown.state is None
    (names,) = store.perform([({}, sf.ListVolumes(1, ""))])
    assert names.names == ("v", "w")
    (names,) = store.perform([({}, sf.ListVolumes(1, "v"))])
    assert names.names == ("w",)


@pytest.mark.parametrize("name", ["..", "a/b", ""])
def test_no_request_leaves_the_directory(store: SosStore, tmp_path: Path, name: str) -> None:
    before = sorted(tmp_path.rglob("*"))
    (reply,) = store.perform([({}, sf.FormatVolume(1, name))])
    assert isinstance(reply, sf.RefusedReply)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_damaged_volume_is_refused_by_name(tmp_path: Path) -> None:
    begun(tmp_path / FOLDER / "v")
    (tmp_path / FOLDER / "v" / "volume.json").write_text("{")
    store = SosStore(tmp_path, HOST_FILES, random.Random(1).getrandbits)
    for request in (sf.FormatVolume(1, "v"), sf.DescribeVolume(1, "v"), sf.ClaimVolume(1, "v", 2, T2)):
        (reply,) = store.perform([({}, request)])
        assert isinstance(reply, sf.RefusedReply)
        assert reply.code is RefusalCode.STORAGE
    store.close()


def test_a_directory_has_one_service(store: SosStore, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="Another process"):
        SosStore(tmp_path, HOST_FILES, random.Random(1).getrandbits)


def test_a_missing_volume_or_object_is_reported(store: SosStore) -> None:
    claims = claimed(store)
    for request in (sf.ReadChunks(1, "w", 1, 0, 9), sf.ReadChunks(1, "v", 2, 0, 9)):
        (reply,) = store.perform([(claims, request)])
        assert isinstance(reply, sf.RefusedReply)
        assert reply.code is RefusalCode.MISSING


def test_a_volume_knows_its_state_before_any_claim(tmp_path: Path) -> None:
    assert made(tmp_path / "v").state == VolumeState(A)
