"""The directory of a sink: one process locks it, and drafts that a crash left are removed."""

from __future__ import annotations

from pathlib import Path

import pytest

from procession.address import Address
from procession.errors import StorageError
from procession.sdk.doubles import MemoryOutput
from procession.sdk.output import refuse_to_wait
from procession.sdk.sink_directory import SinkDirectory


def test_a_sink_directory_is_locked_by_one_process(tmp_path: Path) -> None:
    home = SinkDirectory(tmp_path, lambda _: MemoryOutput())
    with pytest.raises(StorageError, match="Another process holds"):
        SinkDirectory(tmp_path, lambda _: MemoryOutput())
    home.close()
    SinkDirectory(tmp_path, lambda _: MemoryOutput()).close()


def test_only_drafts_that_a_crash_left_are_removed(tmp_path: Path) -> None:
    drafts = ["out.txnlog.123.draft", "a.b.txnlog.9.draft", "sink.json.77.draft"]
    others = ["out.txnlog", "out.draft", "mine.7.draft", "out.data"]
    for name in drafts + others:
        (tmp_path / name).write_bytes(b"")
    SinkDirectory(tmp_path, lambda _: MemoryOutput()).close()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(others)


def test_the_directory_has_the_port_and_the_decisions(tmp_path: Path) -> None:
    calls: list[object] = []
    home = SinkDirectory(tmp_path, lambda _: MemoryOutput(), on_outcome=calls.append)
    assert home.previous() is None
    home.announce(Address("127.0.0.1", 7200))
    assert home.previous() == Address("127.0.0.1", 7200)
    participant = home.open_participant("app", refuse_to_wait)
    participant.begin()
    for number, commit in enumerate((True, False)):
        participant.append([participant.committed_end], [b"abc"])
        assert participant.phase1(f"t{number}", [(1, participant.committed_end, participant.committed_end + 3)])
        participant.phase2(f"t{number}", commit)
    participant.close()
    home.close()
    listening, *decided = calls
    assert isinstance(listening, dict)
    assert (listening["event"], listening["listen"]) == ("listening", "127.0.0.1:7200")
    assert decided == [
        {"event": "committed", "instance": "app", "txn_id": "t0", "start": 0, "end": 3},
        {"event": "aborted", "instance": "app", "txn_id": "t1", "start": 3, "end": 6},
    ]
