"""Streams that move from one event order to another, compared with the slow reference: nothing is lost, duplicated or
moved.

A site is a gateway: a log of arrivals, and the order that reads it. The test's driver sends the clocks of all sites to
each, as the real one does, and moves a stream only when that is allowed.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from procession.merge.event_time import END_ID, NO_REFERENCE, DeclaredOrder, EventOrder, ReplayPoint
from procession.merge.stream_clocks import StreamClock, WatermarkBound, watermark_of
from procession.merge.waiting_rows import Key
from tests.merge.test_event_time import Placed, Row, heard, reference, worlds


class Site:
    def __init__(self, declared: DeclaredOrder) -> None:
        self.declared = declared
        self.log: list[Row] = []
        self.order = EventOrder(declared)
        self.point = ReplayPoint()
        self.cut: Key | None = None

    def observe(self, *rows: Row) -> None:
        self.log += rows
        self.order.observe(heard(list(rows)))

    def restart(self, safe: dict[int, int], clocks: dict[int, StreamClock]) -> None:
        """Restart from the last stored point and the log. The rows already emitted are kept."""
        self.order = EventOrder(self.declared, self.point._replace(cut=self.cut), safe)
        self.order.clocks.add_remote(clocks)
        for row in self.log[self.point.floor :]:
            self.order.observe(heard([row]), is_again=True)

    def take(self) -> list[tuple[Placed, int]]:
        rows, references = self.order.take()
        placed = [Placed(rows.key(number), bool(rows.are_late[number])) for number in range(len(rows))]
        self.cut = placed[-1].key if placed else self.cut
        # The row of an end has the last id of its stream, and that is its reference in the log.
        ends = {row.stream_id: row.message_id for row in self.log if row.is_end}
        lasts = [ends[place.key.stream_id] if place.key.message_id == END_ID else NO_REFERENCE for place in placed]
        return [
            (one, last if one.key.message_id == END_ID else at)
            for one, at, last in zip(placed, references.tolist(), lasts, strict=True)
        ]


class Cluster:
    def __init__(self, streams: list[list[Row]], lateness: int, sites: int) -> None:
        self.inputs = {rows[0].stream_id: rows for rows in streams}
        self.lateness = lateness
        self.sites = [Site(DeclaredOrder(frozenset(self.inputs), lateness)) for _ in range(sites)]
        self.holders = dict.fromkeys(self.inputs, 0)
        self.sent = dict.fromkeys(self.inputs, 0)
        self.positions: dict[int, int] = {}
        self.found: list[Placed] = []

    def clocks(self) -> dict[int, StreamClock]:
        known: dict[int, StreamClock] = {}
        for site in self.sites:
            for stream_id, clock in site.order.clocks.all_reached().items():
                known[stream_id] = clock.later(known.get(stream_id))
        return known

    def send(self, stream_id: int, count: int) -> None:
        at = self.sent[stream_id]
        rows = self.inputs[stream_id][at : at + count]
        self.sent[stream_id] += len(rows)
        if rows:
            self.sites[self.holders[stream_id]].observe(*rows)

    def epoch(self) -> None:
        result = self.clocks()
        taken = []
        for site in self.sites:
            site.order.clocks.add_remote(result)
            taken += site.take()
            site.point = site.order.point
        for one, at in sorted(taken):
            self.found.append(one)
            if at != NO_REFERENCE:
                assert at >= self.positions.get(one.key.stream_id, 0), "a committed position never decreases"
                self.positions[one.key.stream_id] = at

    def move(self, stream_id: int, to: int) -> None:
        """Move a stream, if all its rows are in order and committed, except those that wait for the stream itself."""
        site, clocks = self.sites[self.holders[stream_id]], self.clocks()
        waiting, clock = site.order.waiting, clocks.get(stream_id)
        if clock is None or clock.is_ended:
            return
        watermark = watermark_of(clock, self.lateness)
        if waiting.has(stream_id, WatermarkBound(watermark, stream_id)):
            return
        if waiting.has(stream_id):
            site.observe(Row(stream_id, 0, watermark, is_move_out=True))
        assert clock.seen is not None
        self.sites[to].observe(Row(stream_id, clock.seen, watermark, is_move_in=True))
        self.holders[stream_id] = to
        committed, rows = self.positions.get(stream_id), self.inputs[stream_id]
        self.sent[stream_id] = next(
            number for number, row in enumerate(rows) if row.is_end or committed is None or row.message_id > committed
        )


@settings(max_examples=150, deadline=None)
@given(st.data(), worlds())
def test_streams_that_move_and_sites_that_begin_anew_give_the_sequence_of_the_reference(
    data: st.DataObject, world: tuple[list[list[Row]], int]
) -> None:
    streams, lateness = world
    cluster = Cluster(streams, lateness, sites=3)
    expected = reference(streams, lateness)
    ids = sorted(cluster.inputs)
    for _ in range(data.draw(st.integers(1, 40))):
        match data.draw(st.sampled_from(["send", "send", "epoch", "move", "restart"])):
            case "send":
                cluster.send(data.draw(st.sampled_from(ids)), data.draw(st.integers(1, 6)))
            case "epoch":
                cluster.epoch()
                assert cluster.found == expected[: len(cluster.found)]
            case "move":
                cluster.epoch()
                cluster.move(data.draw(st.sampled_from(ids)), data.draw(st.integers(0, 2)))
            case "restart":
                site = cluster.sites[data.draw(st.integers(0, 2))]
                site.restart(dict(cluster.positions), cluster.clocks())
    for stream_id in ids:
        cluster.send(stream_id, 100)
    cluster.epoch()
    assert cluster.found == expected
    lasts = {rows[0].stream_id: rows[-1].message_id for rows in streams if rows[-1].message_id != END_ID}
    assert cluster.positions == lasts, "all of it can be acknowledged"
    assert all(len(site.order.waiting) == 0 for site in cluster.sites)
    assert all(site.order.point.floor == len(site.log) for site in cluster.sites)
