"""Progress of a stream, compared with a slow reference, and its reports."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession.sdk import source_report as report_module
from procession.sdk import stream_progress as progress_module
from procession.sdk.source_records import Stream
from procession.sdk.source_report import Report, SourceReporter
from procession.sdk.stream_progress import Ids, StreamProgress
from procession.wire.messages import NOTHING_COMMITTED

ONE = Stream(1, "one")


def piece(first: int, end: int) -> Ids:
    return np.arange(first, end, dtype=np.uint64)


@given(st.lists(st.tuples(st.integers(1, 5), st.booleans()), max_size=60), st.integers(2, 9))
def test_every_record_is_counted_once_and_never_before_its_acknowledgement(
    steps: list[tuple[int, bool]], pieces_max: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(progress_module, "PIECES_MAX", pieces_max)
        progress, ids = StreamProgress(ONE), 0
        for count, is_acknowledged in steps:
            ids += count
            progress.send(piece(ids - count, ids), 10 * count)
            assert len(progress._pieces) <= pieces_max
            if is_acknowledged:
                progress.commit(max(0, ids - 1 - count // 2))
                assert progress.acknowledged <= (progress.committed or 0) + 1
        progress.commit(NOTHING_COMMITTED)
        if ids:
            progress.commit(ids - 1)
        assert (progress.sent, progress.acknowledged, progress.sent_bytes) == (ids, ids, 10 * ids)


def test_records_sent_again_after_a_lost_session_count_as_committed_once() -> None:
    progress = StreamProgress(ONE)
    progress.send(piece(0, 10), 0)
    progress.send(piece(10, 20), 0)
    progress.send(piece(20, 30), 0)
    progress.commit(9)
    progress.begin()
    assert progress.last == 9
    progress.commit(19)  # its ACK was lost with the session; the next one is opened with it
    progress.accept()
    progress.send(piece(20, 30), 0)
    progress.commit(29)
    assert (progress.sent, progress.acknowledged) == (40, 30)


def test_a_session_that_ends_in_the_middle_of_a_piece_has_committed_its_first_part() -> None:
    progress = StreamProgress(ONE)
    progress.send(piece(0, 10), 0)
    progress.send(piece(10, 20), 0)
    progress.begin()
    progress.commit(13)
    progress.accept()
    progress.send(piece(14, 20), 0)
    progress.commit(19)
    assert (progress.acknowledged, progress.unacknowledged) == (20, 0)


def test_a_stream_is_done_when_its_last_record_and_its_end_are_committed() -> None:
    progress = StreamProgress(ONE)
    assert not progress.is_acknowledged
    progress.end()
    assert progress.is_acknowledged, "it had no records"
    assert not progress.is_done
    progress.is_end_committed = True
    assert progress.is_done
    progress.begin()
    progress.send(piece(5, 6), 0)
    progress.end()
    assert not progress.is_acknowledged
    progress.commit(5)
    assert progress.is_acknowledged
    assert not progress.is_done, "another session has not sent the end"
    progress.is_end_committed = True
    assert progress.is_done
    progress.reopen()
    assert not progress.is_done


def test_reports_are_lines_for_people_and_objects_for_programs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(report_module, "LINE_INTERVAL_S", 0.0)
    going = Report("waiting for credits", 2, 1, 1234, 99, 1000, 234, 0, 5.5, 1)
    done = Report("done", 2, 2, 1234, 99, 1234, 0, 0, 0.0, 1)
    tell = SourceReporter()
    tell(going)
    tell(done)
    tell.close()
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.splitlines() == [
        "sent 1,234, committed 1,000, 6 records/s, 1 of 2 streams ended, waiting for credits",
        "1,234 records committed",
    ]
    tell = SourceReporter(is_json=True)
    tell(going)
    tell.close()
    output = capsys.readouterr()
    assert json.loads(output.err) == json.loads(output.out)
    assert json.loads(output.out)["acknowledged"] == 1000
    assert not json.loads(output.out)["is_done"]
