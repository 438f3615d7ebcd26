"""The remains of a volume after a crash, in every combination and one by one: they are kept, removed or refused, and
never guessed."""

from __future__ import annotations

import itertools
import json
import random
import struct
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from procession.errors import StorageError
from procession.runtime.files import FileSystem, OpenMode
from procession.runtime.host_files import HOST_FILES
from procession.sim.disk import SimulatedPath
from procession.sos.object_file import CHUNK_HEAD_BYTES, CHUNK_MAGIC, object_path
from procession.sos.recovery import RECORD, open_volumes, recover_volume
from procession.sos.volume import Volume
from procession.sos.volume_rules import RequestRefused
from tests.runtime.test_files import simulated
from tests.sos.volumes import FIRST, T1, T2, A, filled, head, made, reopened

CHUNKS = [b"one", b"two22", b"three333"]
WHOLE = b"".join(CHUNKS)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return a volume of one object with three synced chunks."""
    volume = made(tmp_path / "v")
    volume.claim(1, T1)
    volume.create(1, T1, 1, FIRST, 0)
    filled(volume, 1, CHUNKS, 1, T1)
    volume.sync()
    return tmp_path / "v"


def lengths(place: Path) -> int:
    return reopened(place).state.objects[1].written


RECORDS = ("none", "whole", "torn")
DELETED = ("none", "whole", "torn")
"""The state of an object below the mark, whose deletion was interrupted."""
CHANGES: dict[str, Callable[[bytes], bytes]] = {
    "whole": lambda data: data,
    "a torn head": lambda data: data[:8],
    "a torn last chunk": lambda data: data[:-1],
    "a tail of zeros": lambda data: data + bytes(100),
    "a flipped bit in the last chunk": lambda data: data[:-1] + bytes([data[-1] ^ 1]),
    "a flipped bit in a synced chunk": lambda data: data.replace(CHUNKS[1], b"TWO22"),
}
OBJECTS = ("none", *CHANGES)
# State of an object that no later object seals -> its length after recovery; None: the volume is refused.
ENDS: dict[str, int | None] = {
    "whole": len(WHOLE),
    "a torn head": None,
    "a torn last chunk": len(CHUNKS[0] + CHUNKS[1]),
    "a tail of zeros": len(WHOLE),
    "a flipped bit in the last chunk": len(CHUNKS[0] + CHUNKS[1]),
    "a flipped bit in a synced chunk": None,
}


@cache
def whole_files() -> dict[str, bytes]:
    """The files of a volume with the mark 2. Object 1 is deleted, object 2 is sealed by object 3. In each object, the
    last chunk says that the chunks before it were synced."""
    files, place = simulated(), SimulatedPath("v")
    volume = made(place, files)
    deleted = b""
    for number in (1, 2, 3):
        token = bytes([number]) * len(T1)
        volume.claim(number, token)
        volume.create(number, token, number, head(number - 1, WHOLE) if number > 1 else FIRST, 0)
        filled(volume, number, CHUNKS[:2], number, token)
        volume.sync()
        filled(volume, number, CHUNKS[2:], number, token)
        deleted = deleted or files.read(object_path(place, 1))
    volume.retain(3, token, 2)
    names = (RECORD, *(object_path(place, number).name for number in (2, 3)))
    return {name: files.read(place / name) for name in names} | {object_path(place, 1).name: deleted}


def expected_lengths(record: str, deleted: str, sealed: str, newest: str) -> dict[int, int] | str:
    """Return the lengths of the objects after recovery, or `refused` or `no copy`."""
    if record == "none":
        return "no copy" if deleted == sealed == newest == "none" else "refused"
    if record == "torn" or "a torn head" in (sealed, newest):
        return "refused"
    if newest == "none":
        ends = {} if sealed == "none" else {2: ENDS[sealed]}
    else:
        ends = {3: ENDS[newest]} | ({} if sealed == "none" else {2: len(WHOLE)})
    return "refused" if None in ends.values() else {number: end or 0 for number, end in ends.items()}


@pytest.mark.parametrize("newest", OBJECTS)
@pytest.mark.parametrize("record", RECORDS)
def test_every_combination_of_files_has_one_outcome(record: str, newest: str) -> None:
    place = SimulatedPath("v")
    for deleted, sealed, has_drafts in itertools.product(DELETED, OBJECTS, (False, True)):
        case = f"{deleted=} {sealed=} {has_drafts=}"
        files = simulated()
        files.make_directory(place)
        for name, state in (
            (RECORD, record),
            (object_path(place, 1).name, deleted),
            (object_path(place, 2).name, sealed),
            (object_path(place, 3).name, newest),
        ):
            if state != "none":
                change = CHANGES["a torn last chunk" if state == "torn" else state]
                put(files, place / name, change(whole_files()[name]))
            if has_drafts:
                put(files, place / f"{name}.7.draft", whole_files()[name][:-1])
        expected = expected_lengths(record, deleted, sealed, newest)
        if expected == "refused":
            with pytest.raises(StorageError) as caught:
                recover_volume(place, files)
            assert caught.value.next_step, case
            continue
        found = recover_volume(place, files)
        if expected == "no copy":
            assert found is None, case
            continue
        assert found is not None, case
        again = recover_volume(place, files)
        for recovered in (found, again):
            assert recovered is not None
            volume = Volume(place, files, *recovered)
            assert (volume.state.promised, volume.state.mark) == (3, 2), case
            assert {number: known.written for number, known in volume.state.objects.items()} == expected, case
        kept = {RECORD, *(object_path(place, number).name for number in expected)}
        assert set(files.names(place)) == kept, f"drafts and objects below the mark are removed: {case}"
        if {2, 3} <= expected.keys():
            changed = CHANGES[sealed](whole_files()[object_path(place, 2).name])
            assert files.read(object_path(place, 2)) == changed, f"a sealed object stays unchanged: {case}"


def put(files: FileSystem, path: Path, data: bytes) -> None:
    with files.open(path, OpenMode.REPLACE) as file:
        file.write(0, data)


def test_a_volume_that_was_closed_in_order_comes_back_as_it_was(place: Path) -> None:
    volume = reopened(place)
    assert (volume.state.identity, volume.state.promised, volume.state.token) == (A, 1, T1)
    assert volume.state.objects[1].written == volume.state.objects[1].synced == len(WHOLE)
    assert volume.read(1, 0, 100)[2] == WHOLE
    filled(volume, 1, [b"four"], 1, T1)
    volume.sync()
    assert reopened(place).read(1, 0, 100)[2] == WHOLE + b"four"


def test_a_directory_with_only_drafts_is_not_a_copy(tmp_path: Path) -> None:
    (tmp_path / "v").mkdir()
    assert recover_volume(tmp_path / "v", HOST_FILES) is None
    (tmp_path / "v" / f"{RECORD}.77.draft").write_text("{")
    assert recover_volume(tmp_path / "v", HOST_FILES) is None


def test_an_object_without_the_record_of_its_volume_is_damage(place: Path) -> None:
    (place / RECORD).unlink()
    with pytest.raises(StorageError, match="missing"):
        recover_volume(place, HOST_FILES)


def test_drafts_are_removed(place: Path) -> None:
    drafts = [place / f"{RECORD}.7.draft", place / f"{object_path(place, 2).name}.7.draft"]
    for draft in drafts:
        draft.write_bytes(b"torn")
    assert lengths(place) == len(WHOLE)
    assert not any(draft.exists() for draft in drafts)


def test_objects_below_the_mark_whose_deletion_was_interrupted_are_removed(place: Path) -> None:
    volume = reopened(place)
    volume.claim(2, T2)
    volume.create(2, T2, 2, head(1, WHOLE), 0)
    data = object_path(place, 1).read_bytes()
    volume.retain(2, T2, 2)
    assert not object_path(place, 1).exists()
    object_path(place, 1).write_bytes(data)
    assert list(reopened(place).state.objects) == [2]
    assert not object_path(place, 1).exists()


@pytest.mark.parametrize("kept", range(CHUNK_HEAD_BYTES + len(CHUNKS[2])))
def test_a_torn_last_chunk_is_cut_off_wherever_it_is_torn(place: Path, kept: int) -> None:
    path = object_path(place, 1)
    data = path.read_bytes()
    end = len(data) - CHUNK_HEAD_BYTES - len(CHUNKS[2])
    path.write_bytes(data[: end + kept])
    assert lengths(place) == len(CHUNKS[0] + CHUNKS[1])
    assert path.stat().st_size == end


def test_a_tail_of_zeros_is_cut_off(place: Path) -> None:
    path = object_path(place, 1)
    path.write_bytes(path.read_bytes() + bytes(100))
    assert lengths(place) == len(WHOLE)


def test_a_later_chunk_without_the_one_before_it_is_cut_off_if_neither_was_synced(place: Path) -> None:
    """A power cut may keep any of the sectors that were not synced."""
    volume = reopened(place)
    filled(volume, 1, [b"lost" * 10, b"kept" * 10], 1, T1)
    path = object_path(place, 1)
    data = bytearray(path.read_bytes())
    start = data.index(b"lost" * 10) - CHUNK_HEAD_BYTES
    data[start : start + 20] = bytes(20)
    path.write_bytes(bytes(data))
    assert lengths(place) == len(WHOLE)


def test_a_flipped_bit_below_what_a_later_chunk_calls_synced_is_damage(place: Path) -> None:
    volume = reopened(place)
    filled(volume, 1, [b"later"], 1, T1)
    volume.sync()
    path = object_path(place, 1)
    data = bytearray(path.read_bytes())
    data[data.index(b"two22")] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(StorageError, match="were synced"):
        recover_volume(place, HOST_FILES)


def test_data_that_looks_like_a_chunk_is_data(place: Path) -> None:
    volume = reopened(place)
    filled(volume, 1, [CHUNK_MAGIC * 20, b"x"], 1, T1)
    volume.sync()
    path = object_path(place, 1)
    path.write_bytes(path.read_bytes()[:-1])
    assert lengths(place) == len(WHOLE) + 4 * 20


def test_a_sealed_object_is_read_only_when_it_is_needed(place: Path) -> None:
    volume = reopened(place)
    filled(volume, 1, [b"dead tail"], 1, T1)
    volume.claim(2, T2)
    volume.create(2, T2, 2, head(1, WHOLE), 0)
    before = object_path(place, 1).stat().st_ino
    again = reopened(place)
    assert object_path(place, 1).stat().st_ino == before
    assert again.state.objects[1].written == len(WHOLE)
    assert again.read(1, 0, 1000)[2] == WHOLE + b"dead tail"
    with pytest.raises(RequestRefused):
        filled(again, 1, [b"more"], 2, T2)


@pytest.mark.parametrize("bad", [b"", b"SOSO", b"SOSO" + struct.pack(">HI", 1, 5) + b"{}"])
def test_a_head_that_is_not_whole_is_damage(place: Path, bad: bytes) -> None:
    """Heads are written atomically, so no crash leaves any of these."""
    object_path(place, 2).write_bytes(bad)
    with pytest.raises(StorageError):
        recover_volume(place, HOST_FILES)


def test_an_object_under_another_number_is_damage(place: Path) -> None:
    object_path(place, 1).rename(object_path(place, 2))
    with pytest.raises(StorageError, match="it is object 1"):
        recover_volume(place, HOST_FILES)


@pytest.mark.parametrize("change", [{"format": 2}, {"identity": "00"}, {"token": ""}, {"promised": "x"}])
def test_a_record_of_a_later_version_or_damaged_is_refused(place: Path, change: dict[str, object]) -> None:
    document = json.loads((place / RECORD).read_text())
    (place / RECORD).write_text(json.dumps(document | change))
    with pytest.raises(StorageError):
        recover_volume(place, HOST_FILES)


def test_a_damaged_volume_does_not_stop_the_others(place: Path) -> None:
    made(place.parent / "w")
    (place / RECORD).write_text("{")
    (place.parent / "empty").mkdir()
    found, damaged = open_volumes(place.parent, HOST_FILES)
    assert (list(found), list(damaged)) == (["w"], ["v"])


@pytest.mark.parametrize("seed", range(60))
def test_what_was_synced_survives_any_power_cut_of_a_simulated_disk(seed: int) -> None:
    files, chance = simulated(), random.Random(seed)
    place, synced, data = SimulatedPath("v"), 0, b""
    volume = made(place, files)
    volume.claim(1, T1)
    volume.create(1, T1, 1, FIRST, 0)
    for number in range(chance.randrange(1, 8)):
        data += filled(volume, 1, [bytes([65 + number]) * chance.randrange(1, 200)], 1, T1)
        if chance.random() < 0.4:
            volume.sync()
            synced = len(data)
    files.disk.cut_power(chance, is_scattered=chance.random() < 0.5)
    again = reopened(place, files)
    known = again.state.objects[1]
    assert synced <= known.written <= len(data)
    assert again.read(1, 0, 10_000)[2] == data[: known.written]
    files.disk.cut_power(chance, is_scattered=True)
    assert reopened(place, files).state.objects[1] == known, "the state that recovery has reported is on disk"


def test_a_promise_that_recovery_finds_is_on_disk_before_it_is_used() -> None:
    """The process that wrote it died before or during its sync."""
    files, place = simulated(), SimulatedPath("v")
    made(place, files).claim(1, T1)
    unsynced = json.loads(files.read(place / RECORD)) | {"promised": 7, "token": T2.hex()}
    with files.open(place / RECORD, OpenMode.REPLACE) as file:
        file.write(0, json.dumps(unsynced).encode())
    assert reopened(place, files).state.promised == 7
    for seed in range(5):
        files.disk.cut_power(random.Random(seed), is_scattered=True)
        assert reopened(place, files).state.promised == 7
