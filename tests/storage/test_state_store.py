"""The state store compared with a plain dictionary: versions never change, and the work depends on the keys that an
epoch changes."""

from __future__ import annotations

import tempfile
import zlib
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from procession.errors import StorageError
from procession.operators.partitioning import SHARES, share_of
from procession.storage import state_file
from procession.storage.state_store import (
    MERGE_RATIO,
    StateStore,
    TaskStates,
)
from procession.storage.state_version import (
    Files,
    StateCodec,
    StateVersion,
    file_prefix,
)

CODEC = StateCodec(lambda state: b"%d" % state, int)

# Two keys with the same hash, which must still be distinguished.
TWINS = (b"plumless", b"buckeroo")


def opened(directory: Path, files: Files = (), epoch: int = 0, keys_max: int = 1000, task: int = 0) -> TaskStates:
    states = TaskStates(directory, files, CODEC, keys_max=keys_max)
    states.begin(file_prefix(1, "s", task, epoch, 0))
    return states


def put(states: TaskStates, changes: dict[bytes, int | None]) -> None:
    known = states.take(list(changes))
    for key, state in changes.items():
        if state is None:
            known.pop(key, None)
        else:
            known[key] = state
    states.touch(changes)


def read_states(directory: Path, files: Files, keys: Sequence[bytes]) -> dict[bytes, Any]:
    known = TaskStates(directory, files, CODEC).take(keys)
    return {key: known[key] for key in keys if key in known}


def test_a_task_counts_only_its_own_work_also_if_the_previous_states_are_still_in_memory(tmp_path: Path) -> None:
    states = opened(tmp_path)
    states.counts["seen"] += 1
    states.begin(file_prefix(1, "s", 0, 1, 0))
    assert states.counts == {}


def test_twins_have_one_hash() -> None:
    assert zlib.crc32(TWINS[0]) == zlib.crc32(TWINS[1])


KEYS = st.sampled_from([*TWINS, *(b"k%d" % number for number in range(12))])
EPOCHS = st.lists(
    st.tuples(st.lists(st.dictionaries(KEYS, st.none() | st.integers(0, 9), max_size=6), max_size=3), st.booleans()),
    max_size=8,
)


@given(epochs=EPOCHS, keys_max=st.sampled_from([1, 3, 1000]))
@settings(max_examples=150)
def test_any_changes_over_any_epochs_give_the_states_of_a_dictionary(epochs: Any, keys_max: int) -> None:
    wanted: dict[bytes, int] = {}
    history: list[tuple[Files, dict[bytes, int]]] = [((), {})]
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(state_file, "PIECE_ROWS", 3)  # many pieces
        directory = Path(folder)
        states = opened(directory, keys_max=keys_max)
        for epoch, (slices, is_cold) in enumerate(epochs, 1):
            if is_cold:
                states = opened(directory, states.files, epoch, keys_max)
            states.begin(file_prefix(1, "s", 0, epoch, 0))
            for changes in slices:
                put(states, changes)
                for key, state in changes.items():
                    wanted.pop(key, None)
                    wanted |= {} if state is None else {key: state}
            files = states.finish()
            history.append((files, dict(wanted)))
        keys = [*TWINS, *(b"k%d" % number for number in range(13))]
        for files, then in history:
            assert read_states(directory, files, keys) == then, "a version is never changed"


def test_an_epoch_that_touches_nothing_writes_nothing(tmp_path: Path) -> None:
    states = opened(tmp_path)
    put(states, {b"a": 1})
    files = states.finish()
    states.begin(file_prefix(1, "s", 0, 1, 0))
    states.take([b"a", b"b"])
    assert states.finish() == files
    assert len(list(tmp_path.iterdir())) == 1


def test_the_work_of_an_epoch_depends_on_the_changed_keys_and_not_on_all_keys(tmp_path: Path) -> None:
    states = opened(tmp_path)
    put(states, {b"k%d" % number: number for number in range(4_000)})
    states.finish()
    rows = 0
    for epoch in range(1, 101):
        before = dict(states.files)
        states.begin(file_prefix(1, "s", 0, epoch, 0))
        put(states, {b"k%d" % number: epoch for number in range(epoch * 10, epoch * 10 + 10)})
        rows += sum(count for name, count in states.finish() if name not in before)
    # Each key is written again a few times while files grow, not 4,000 keys in each of 100 epochs.
    assert rows < 100 * 10 * 10
    assert len(states.files) <= 8
    assert read_states(tmp_path, states.files, [b"k15", b"k3999"]) == {b"k15": 1, b"k3999": 3999}


def test_files_grow_by_more_than_the_ratio_from_the_newest_to_the_oldest(tmp_path: Path) -> None:
    states = opened(tmp_path)
    for epoch in range(40):
        states.begin(file_prefix(1, "s", 0, epoch, 0))
        put(states, {b"%d-%d" % (epoch, number): 1 for number in range(epoch % 7 + 1)})
        counts = [count for _, count in states.finish()]
        assert all(older > MERGE_RATIO * newer for older, newer in pairwise(counts))


def test_a_removed_key_leaves_nothing_if_no_older_file_has_it(tmp_path: Path) -> None:
    states = opened(tmp_path)
    put(states, {b"a": 1, b"b": 2})
    states.finish()
    states.begin(file_prefix(1, "s", 0, 1, 0))
    put(states, {b"a": None, b"b": None})
    assert states.finish() == ()


@pytest.mark.parametrize("tasks", [1, 2, 5])
def test_another_number_of_tasks_continues_with_the_same_states(tmp_path: Path, tasks: int) -> None:
    wanted = {b"k%d" % number: number for number in range(300)}
    old = []
    for task in range(3):
        states = opened(tmp_path, task=task)
        put(states, {key: state for key, state in wanted.items() if share_of(key) % 3 == task})
        states.finish()
        states.begin(file_prefix(1, "s", task, 1, 0))
        gone = [key for key in wanted if share_of(key) % 3 == task][:5]
        put(states, dict.fromkeys(gone))
        wanted = {key: state for key, state in wanted.items() if key not in gone}
        old.append(states.finish())
    found: dict[bytes, int] = {}
    for task in range(tasks):
        states = TaskStates(tmp_path, (), CODEC)
        states.begin(file_prefix(2, "s", task, 2, 0))
        states.adopt(old, (SHARES, tasks, task))
        own = read_states(tmp_path, states.finish(), list(wanted))
        assert all(share_of(key) % tasks == task for key in own)
        found |= own
    assert found == wanted


def test_a_missing_or_truncated_file_is_a_storage_error_that_names_it(tmp_path: Path) -> None:
    states = opened(tmp_path)
    put(states, {b"a": 1})
    ((name, _),) = states.finish()
    (tmp_path / name).write_bytes(b"torn")
    with pytest.raises(StorageError, match=name):
        TaskStates(tmp_path, states.files, CODEC)
    (tmp_path / name).unlink()
    with pytest.raises(StorageError, match=name):
        TaskStates(tmp_path, states.files, CODEC)


def test_damage_is_found_when_the_block_is_read_and_other_blocks_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_file, "PIECE_ROWS", 50)
    states = opened(tmp_path)
    put(states, {b"key-%d" % number: number for number in range(1000)})
    ((name, _),) = states.finish()
    path = tmp_path / name
    whole = path.read_bytes()
    value = whole.index(CODEC.encode(777), whole.index(b"key-777"))
    path.write_bytes(whole[:value] + b"!" + whole[value + 1 :])
    damaged = TaskStates(tmp_path, states.files, CODEC)
    found: list[StorageError] = []
    for number in range(1000):
        try:
            assert damaged.take([b"key-%d" % number])[b"key-%d" % number] == number
        except StorageError as error:
            found.append(error)
    assert 0 < len(found) < 200
    assert all(name in error.sentence and "restore" in error.next_step for error in found)
    with pytest.raises(StorageError, match=name):
        list(TaskStates(tmp_path, states.files, CODEC).all_keys())


def test_states_of_an_earlier_format_are_refused_with_a_sentence(tmp_path: Path) -> None:
    old = StateVersion.from_json({"tasks": [[["a.state", 2]]], "kind": "rolling"})
    with pytest.raises(StorageError, match=r"'counts' have format 1.*7 and '7' were one") as caught:
        old.check_format("counts")
    assert "start over" in caught.value.next_step
    StateVersion((), "rolling", 1).check_format("counts")  # nothing was kept
    StateVersion(((("a.state", 2),),), "rolling").check_format("counts")
    with pa.ipc.new_file(tmp_path / "a.state", state_file.SCHEMA):
        pass
    with pytest.raises(StorageError, match="whose keys had no types"):
        TaskStates(tmp_path, (("a.state", 0),), CODEC)


def test_two_attempts_never_write_to_one_file(tmp_path: Path) -> None:
    for _ in range(2):
        states = opened(tmp_path)
        put(states, {b"a": 1})
        if list(tmp_path.iterdir()):
            with pytest.raises(StorageError):
                states.finish()
        else:
            states.finish()


def test_a_cleanup_keeps_named_files_and_files_of_later_drivers(tmp_path: Path) -> None:
    names = [f"{file_prefix(fence, 's', 0, 7, 0)}-0.state" for fence in (1, 2, 3)]
    for name in [*names, "named.state", "0000000001-x.state"]:
        (tmp_path / name).touch()
    StateStore(tmp_path).sweep([StateVersion((((names[0], 1),),), "map_stateful")], fence=2)
    assert {path.name for path in tmp_path.iterdir()} == {names[0], *names[1:], "named.state"}
