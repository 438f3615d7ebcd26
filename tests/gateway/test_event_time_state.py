"""The decisions of a gateway that are other than in order of arrival: which streams it accepts, and when a stream ends.

`test_stream_quota` tests the decisions about credits, `test_event_time_log` which rows are in order. Real logs on a
real disk. The test acts as the sockets and the driver.
"""

from __future__ import annotations

from pathlib import Path

from procession.merge.event_time import DeclaredOrder
from procession.storage.segment import KIND_EOS, KIND_RECORD
from procession.wire.messages import Notify, NotifyAck
from tests.gateway.ordered_site import Client, Site, in_loop


@in_loop
async def test_the_end_of_a_stream_is_released_by_the_commit_that_includes_it(tmp_path: Path) -> None:
    site = Site(tmp_path, DeclaredOrder(frozenset({1, 2})))
    fast, slow = Client(site, 1), Client(site, 2)
    fast.records(1, (0, 100))
    fast.end(1)
    slow.records(2, (0, 50))
    assert await site.epoch() == [(KIND_RECORD, 2, 0)]
    site.kill()
    again = Client(site, 1)
    assert [frame for frame in again.frames if isinstance(frame, NotifyAck)] == [NotifyAck(False, 1, 0)]
    Client(site, 2).end(2)
    assert [row for row in await site.epoch() if row[0] == KIND_EOS] == [(KIND_EOS, 2, 0), (KIND_EOS, 1, 0)]
    again.receive(Notify(1, "", 0))
    assert [frame for frame in again.frames if isinstance(frame, NotifyAck)][-1] == NotifyAck(True, 1, 0)


@in_loop
async def test_an_end_that_is_sent_again_after_its_commit_is_answered_and_makes_no_row(tmp_path: Path) -> None:
    site = Site(tmp_path, DeclaredOrder(frozenset({1, 2})))
    client = Client(site, 1)
    client.records(1, (7, 10))
    client.end(1)
    Client(site, 2).records(2, (0, 99))
    assert len(await site.epoch()) == 2 + 1
    site.kill()
    again = Client(site, 1)
    again.records(1, (7, 10))
    again.end(1)
    assert again.acked == {1: 7}
    assert await site.epoch() == []
    assert site.status["waiting_records"] == 0
    again.receive(Notify(1, "", 0))
    again.records(1, (8, 20))
    assert again.reason == "stream 1 has ended"


@in_loop
async def test_undeclared_streams_and_the_draft_are_refused(tmp_path: Path) -> None:
    site = Site(tmp_path, DeclaredOrder(frozenset({1})))
    client = Client(site, 3)
    assert client.reason == "stream 3 is not declared in the pipeline"
    drafted = Client(site, version="draft")
    assert drafted.reason is not None
    assert "event-time order" in drafted.reason
