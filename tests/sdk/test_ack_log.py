"""The acknowledgement log has every acknowledgement, over any number of runs of the source."""

from __future__ import annotations

from pathlib import Path

import pytest

from procession.errors import StorageError
from procession.sdk.ack_log import AckLog, AckTail, acknowledged
from procession.storage.journal import Journal, read_journal

STREAM = 2**64 - 3


def test_the_highest_acknowledgement_of_each_stream_counts(tmp_path: Path) -> None:
    for number, heard in enumerate([(STREAM, 10), (STREAM, 20), (7, 5)]):
        log = AckLog(tmp_path / "acks")  # one run of the source each
        log.record(*heard, now=float(number))
        log.close()
    other = AckLog(tmp_path / "other")
    other.record(STREAM, 15, 9.0)
    other.close()
    assert acknowledged([tmp_path / "acks", tmp_path / "other"]) == {STREAM: 20, 7: 5}
    first, second, *_ = read_journal(tmp_path / "acks")
    assert first == {"format": 2}
    assert second == {"stream": STREAM, "id": 10, "time": 0.0}


def test_a_source_that_died_during_a_write_keeps_earlier_acknowledgements(tmp_path: Path) -> None:
    log = AckLog(tmp_path / "acks")
    log.record(1, 10, 0.0)
    log.close()
    with (tmp_path / "acks").open("ab") as file:
        file.write(b'0badc0de {"stre')
    assert acknowledged([tmp_path / "acks"]) == {1: 10}
    AckLog(tmp_path / "acks").record(1, 11, 1.0)
    assert acknowledged([tmp_path / "acks"]) == {1: 11}


def test_a_tail_reads_only_what_is_new(tmp_path: Path) -> None:
    log, tail = AckLog(tmp_path / "acks"), AckTail([tmp_path / "acks"])
    assert tail.poll() == {}
    log.record(1, 10, 0.0)
    assert tail.poll() == {1: 10}
    first = (tmp_path / "acks").stat().st_size
    (tmp_path / "acks").write_bytes(b"x" * first)  # what was read is not looked at again
    assert tail.poll() == {1: 10}
    log.record(1, 11, 1.0)
    assert tail.poll() == {1: 11}


def test_a_tail_follows_one_log_more_from_its_beginning(tmp_path: Path) -> None:
    log, other, tail = AckLog(tmp_path / "acks"), AckLog(tmp_path / "others"), AckTail([tmp_path / "acks"])
    log.record(1, 10, 0.0)
    other.record(2, 20, 0.0)
    assert tail.poll() == {1: 10}
    tail.follow(tmp_path / "others")
    assert tail.poll() == {1: 10, 2: 20}


def test_an_empty_log_has_no_acknowledgement(tmp_path: Path) -> None:
    assert acknowledged([tmp_path / "nowhere"]) == {}


def test_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "x.txnlog")
    journal.open()
    journal.append({"op": "phase2", "txn": "t", "commit": True})
    journal.close()
    with pytest.raises(StorageError, match="not a log of acknowledgements"):
        acknowledged([tmp_path / "x.txnlog"])
