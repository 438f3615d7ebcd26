"""The file of retired streams after a crash, damage, or a second gateway on the directory."""

from __future__ import annotations

import shutil
import zlib
from dataclasses import replace
from pathlib import Path

import pytest

from procession.errors import StorageError
from procession.gateway import retired_file
from procession.gateway.gateway_directory import save_snapshot
from procession.gateway.gateway_limits import Limits
from procession.gateway.gateway_options import GatewayConfig
from procession.gateway.performer import GatewayPerformer
from procession.gateway.retired_streams import HEADER, Mark, RetiredStreams
from procession.gateway.snapshot import Position, Snapshot
from procession.gateway.state import GatewayState
from tests.gateway.gateway_rig import recovered
from tests.sdk.loops import on_a_loop


def kept(directory: Path) -> dict[int, int | None]:
    """Start a gateway in the directory, and return its positions of two streams."""
    found, data = recovered(directory)
    again, renewed = recovered(directory)
    assert (again.streams, renewed) == (found.streams, data), "a start changes nothing"
    state = GatewayState(Limits(), found, retired=data)
    return {stream_id: state.registry.committed(stream_id) for stream_id in (7, 8)}


def test_at_every_point_of_a_crash_both_streams_are_remembered(tmp_path: Path) -> None:
    """The first stream is retired. Then the second one is, and the process dies: during the write, before the snapshot,
    or after it."""
    base = tmp_path / "base"
    base.mkdir()
    before = Snapshot(1, 3, 10, 10, {7: Position("seven", 70), 8: Position("eight", 80)})
    save_snapshot(base, before)
    retired = RetiredStreams(Limits())
    first = retired.retiring({7: 70}, 0.0)
    for size in range(len(first.data) + 1):
        directory = tmp_path / f"new-{size}"
        shutil.copytree(base, directory)
        retired_file.path_of(directory, 0).write_bytes(first.data[:size])
        assert kept(directory) == {7: 70, 8: 80}
        assert list(directory.glob(f"{retired_file.PREFIX}*{retired_file.SUFFIX}")) == [], "no snapshot names it"
    retired_file.write(base, first)
    retired.retired(first)
    save_snapshot(base, replace(before, streams={8: Position("eight", 80)}, retired=first.mark))
    second = retired.retiring({8: 80}, 5.0)
    for size in range(len(second.data) + 1):
        directory = tmp_path / f"more-{size}"
        shutil.copytree(base, directory)
        with retired_file.path_of(directory, 0).open("ab") as file:
            file.write(second.data[:size])
        assert kept(directory) == {7: 70, 8: 80}
    retired_file.write(base, second)
    save_snapshot(base, replace(before, streams={}, retired=second.mark))
    assert kept(base) == {7: 70, 8: 80}
    assert len(list(base.glob(f"{retired_file.PREFIX}*{retired_file.SUFFIX}"))) == 1


def contents(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@on_a_loop
async def test_a_second_gateway_on_the_same_directory_changes_nothing(tmp_path: Path) -> None:
    write = RetiredStreams(Limits()).retiring({7: 70}, 0.0)
    retired_file.write(tmp_path, write)
    save_snapshot(tmp_path, Snapshot(1, 3, 10, 10, {}, retired=write.mark))
    first = GatewayPerformer(GatewayConfig(tmp_path))
    before = contents(tmp_path)
    with pytest.raises(StorageError, match="Another process holds"):
        GatewayPerformer(GatewayConfig(tmp_path))
    assert contents(tmp_path) == before
    await first.close()


def test_a_damaged_or_missing_file_is_refused_with_a_sentence(tmp_path: Path) -> None:
    retired = RetiredStreams(Limits())
    write = retired.retiring({7: 70, 8: 80}, 0.0)
    retired_file.write(tmp_path, write)
    save_snapshot(tmp_path, Snapshot(1, 3, 10, 10, {}, retired=write.mark))
    path = retired_file.path_of(tmp_path, 0)
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(StorageError, match="its checksum is wrong") as caught:
            recovered(tmp_path)
        assert "Restore the gateway's directory" in caught.value.next_step
    path.write_bytes(whole[:-1])
    with pytest.raises(StorageError, match=f"it has {len(whole) - 1} bytes, and {len(whole)} were written"):
        recovered(tmp_path)
    path.unlink()
    with pytest.raises(StorageError, match="it is not there"):
        recovered(tmp_path)


def test_a_file_of_another_format_is_refused(tmp_path: Path) -> None:
    for data, why in ((b"something else\n", "does not begin as"), (HEADER + b"half", "does not end where")):
        retired_file.path_of(tmp_path, 0).write_bytes(data)
        save_snapshot(tmp_path, Snapshot(retired=Mark(0, len(data), zlib.crc32(data), 0)))
        with pytest.raises(StorageError, match=why):
            recovered(tmp_path)
