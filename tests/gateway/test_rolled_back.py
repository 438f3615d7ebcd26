"""Several gateways after a rollback: they offer the later rows again, or tell producers the savepoint's positions."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest

from procession.gateway.snapshot import Snapshot
from tests.gateway.several import Producer, Several


def sent(several: Several, count: int) -> dict[int, Producer]:
    """Open streams 1 and 2 at the first gateway and 3 and 4 at the second, and send `count` records on each."""
    producers = {stream: several[(stream - 1) // 2].open(stream) for stream in (1, 2, 3, 4)}
    several.settle()
    for producer in producers.values():
        for _ in range(count):
            producer.send()
    return producers


def restart(several: Several) -> None:
    for number in (1, 0):
        several[number].durable = len(several[number].rows)
        several.crash(number)
    several.settle()


def saved_and_later(several: Several) -> tuple[list[int], list[Snapshot], int]:
    """Make a savepoint, later epochs, and records that wait. Returns the savepoint's ends, snapshots and output."""
    producers = sent(several, 3)
    several.take()
    ends, snapshots = list(several.ends), [copy.deepcopy(node.snapshot) for node in several.nodes]
    output = len(several.output)
    for _ in range(2):
        for producer in producers.values():
            producer.send()
        several.take()
    producers[1].send()
    producers[4].send()
    return ends, snapshots, output


def go_on(several: Several, last_id: int) -> None:
    """Continue all streams from the position in NOTIFY_ACK up to an id, each at another gateway than before."""
    several.take()
    several.settle()
    for stream in (1, 2, 3, 4):
        producer = several[0 if stream > 2 else 1].open(stream)
        several.settle()
        assert producer.is_open
        assert producer.next_id is not None
        while producer.next_id <= last_id:
            producer.send()
    several.take()
    several.check()
    for stream in (1, 2, 3, 4):
        assert several.ids(stream) == list(range(last_id + 1))


def test_each_gateway_offers_its_later_rows_again_and_producers_continue_where_they_were() -> None:
    several = Several(2)
    ends, _, output = saved_and_later(several)
    told = dict(several.told)
    for node, end in zip(several.nodes, ends, strict=True):
        node.snapshot = replace(node.snapshot, end_sequence=end)
    del several.output[output:]
    several.ends = list(ends)
    restart(several)
    assert several.told == told, "no producer is told an earlier position"
    go_on(several, 9)


@pytest.mark.parametrize("waits", [True, False], ids=["with records that wait", ""])
def test_producers_that_get_the_positions_of_the_savepoint_send_the_later_records(waits: bool) -> None:
    several = Several(2)
    ends, snapshots, output = saved_and_later(several)
    if not waits:
        several.take()
        several.settle()
    del several.output[output:]
    for number, (node, saved) in enumerate(zip(several.nodes, snapshots, strict=True)):
        end = len(node.rows)
        node.snapshot = Snapshot(node.snapshot.fence, several.epoch, end, end, saved.streams)
        several.ends[number] = end
        assert end > ends[number]
    several.told = {stream: at.committed + 1 for stream, at in snapshots[0].streams.items()}
    several.positions = {stream: at.committed for stream, at in snapshots[0].streams.items()}
    several.record = replace(several.record, positions=dict(several.positions))
    several.acknowledged = several.record
    restart(several)
    go_on(several, 9)
