"""A gateway with event-time order: what it offers, holds back, acknowledges and recovers.

Real logs on a real disk, and the real decisions. The test acts as the sockets and the driver.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from procession.errors import ConfigError
from procession.gateway.gateway_directory import load_snapshot, save_snapshot
from procession.gateway.gateway_events import AckIntervalPassed, SessionClosed, StreamGranted
from procession.gateway.gateway_metrics import stream_rows
from procession.gateway.input_pins import InputPin, InputPins
from procession.gateway.performer import GatewayPerformer
from procession.merge.event_time import NO_REFERENCE, DeclaredOrder
from procession.merge.stream_clocks import StreamClock
from procession.storage.segment import KIND_EOS, KIND_LATE, KIND_RECORD
from procession.wire.messages import NotifyAck
from tests.gateway.ordered_site import Client, Site, in_loop


def records(*pairs: tuple[int, int]) -> list[tuple[int, int, int]]:
    return [(KIND_RECORD, *pair) for pair in pairs]


@in_loop
async def test_an_epoch_has_the_settled_rows_and_the_others_stay_unacknowledged(tmp_path: Path) -> None:
    site = Site(tmp_path, DeclaredOrder(frozenset({1, 2})))
    fast, slow = Client(site, 1), Client(site, 2)
    fast.records(1, (0, 10), (1, 20), (2, 30))
    assert await site.epoch() == []
    assert site.status["waits_for"] == 2
    assert site.status["waiting_records"] == 3
    slow.records(2, (5, 15), (6, 20))
    assert await site.epoch() == records((1, 0), (2, 5), (1, 1), (2, 6))
    assert fast.acked == {1: 1}
    assert slow.acked == {2: 6}
    assert site.status["waits_for"] == 2
    assert site.status["committed_end"] == 4
    slow.end(2)
    assert await site.epoch() == [(KIND_EOS, 2, 6), (KIND_RECORD, 1, 2)]
    assert site.status["waits_for"] is None
    assert {stream["id"]: stream["state"] for stream in site.status["streams"]} == {1: "open", 2: "closed"}


@in_loop
async def test_a_late_record_is_marked_and_placed_at_the_watermark_of_its_stream(tmp_path: Path) -> None:
    site = Site(tmp_path, DeclaredOrder(frozenset({1, 2})))
    client, two = Client(site, 1), Client(site, 2)
    client.records(1, (0, 10), (1, 30), (2, 20), (3, 40))
    two.records(2, (0, 25), (1, 40))
    assert await site.epoch() == [
        (KIND_RECORD, 1, 0),
        (KIND_RECORD, 2, 0),
        (KIND_RECORD, 1, 1),
        (KIND_LATE, 1, 2),
        (KIND_RECORD, 1, 3),
    ]
    assert client.acked == {1: 3}
    assert site.status["late_records"] == 1


@in_loop
async def test_with_an_allowed_lateness_nothing_is_acknowledged_before_all_below_it_is_committed(
    tmp_path: Path,
) -> None:
    site = Site(tmp_path, DeclaredOrder(frozenset({1}), lateness_ns=10))
    client = Client(site, 1)
    client.records(1, (0, 100), (1, 95), (2, 111), (3, 102), (4, 113))
    assert await site.epoch() == records((1, 1), (1, 0), (1, 3))
    assert client.acked == {1: 1}, "record 2 is not committed, so 3 is not acknowledged"
    client.records(1, (5, 130))
    site.gateway.flush()
    site.kill()
    assert await site.epoch() == records((1, 2), (1, 4))
    assert site.positions == {1: 4}


@in_loop
async def test_an_idle_stream_delays_nothing_and_its_late_records_are_late_also_after_a_restart(
    tmp_path: Path,
) -> None:
    site = Site(tmp_path, DeclaredOrder(frozenset({1, 2}), idle_timeout_s=1e-9))
    Client(site, 1).records(1, (0, 10), (1, 20))
    await site.read()
    await site.read()
    assert [row for row in site.rows if row[0] == KIND_RECORD] == records((1, 0), (1, 1))
    site.kill()
    Client(site, 2).records(2, (0, 15), (1, 25))
    await site.read()
    await site.read()
    assert (KIND_LATE, 2, 0) in site.rows
    assert (KIND_RECORD, 2, 1) in site.rows


@in_loop
async def test_a_directory_keeps_the_order_with_which_it_was_created(tmp_path: Path) -> None:
    site = Site(tmp_path, DeclaredOrder(frozenset({1})))
    Client(site, 1).records(1, (0, 1))
    await site.epoch()
    await site.gateway.close()
    with pytest.raises(ConfigError, match="begun in the order of event time, not of arrival"):
        GatewayPerformer(replace(site.config, declared=None))


# Everything, for any timing


def streams_of(seed: int) -> dict[int, list[tuple[int, int]]]:
    chance, streams = random.Random(seed), {}
    for stream_id in (3, 5, 9):
        now, made = 0, []
        for message_id in range(0, 120, chance.choice((1, 3))):
            now += chance.randrange(4)
            made.append((message_id, now + chance.choice((0, 0, 0, -1, -7))))
        streams[stream_id] = made
    return streams


async def lived(
    directory: Path, seed: int, lateness_ns: int, *, is_rolled_back: bool = False
) -> list[tuple[int, int, int]]:
    """Return all rows, read while producers come and go, epochs are repeated and the gateway is killed.

    A rollback sets the gateway back to a savepoint that keeps the input.
    """
    chance = random.Random(seed)
    streams = streams_of(1)
    site = Site(directory, DeclaredOrder(frozenset(streams), lateness_ns))
    clients: dict[int, Client] = {}
    sent = dict.fromkeys(streams, 0)
    pins, saved = InputPins(directory), dict[int, int]()
    while site.status["committed_end"] < sum(map(len, streams.values())) + len(streams):
        stream_id = chance.choice(list(streams))
        if stream_id not in clients:
            clients[stream_id] = Client(site, stream_id)
            answers = [frame for frame in clients[stream_id].frames if isinstance(frame, NotifyAck)]
            if not answers[-1].success:
                del clients[stream_id]  # its end waits for a commit
            else:
                known = answers[-1].point_of_reference
                made = streams[stream_id]
                sent[stream_id] = sum(result <= known for result, _ in made) if known != NO_REFERENCE else 0
        elif sent[stream_id] <= len(streams[stream_id]):
            client, made = clients[stream_id], streams[stream_id]
            piece = made[sent[stream_id] :][: chance.randrange(1, 30)]
            sent[stream_id] += len(piece)
            if piece:
                client.records(stream_id, *piece)
            else:
                client.end(stream_id)
                sent[stream_id] += 1
        match chance.randrange(12):
            case 0:
                site.kill()
                clients.clear()
            case 1 | 2 | 3:
                before = len(site.rows)
                await site.read(chance.choice((1, 7, 100)))
                if chance.randrange(3) == 0:  # a repeated epoch has the same rows
                    again = site.rows[before:]
                    del site.rows[before:]
                    await site.read(len(again) or 1)
                    assert site.rows[before:][: len(again)] == again
                await site.commit()
                if is_rolled_back and not pins.all() and len(site.rows) > chance.randrange(150):
                    pins.write(InputPin("saved", len(site.rows), 1 << 30))
                    saved = dict(site.positions)
                elif pins.all() and len(site.rows) > pins.all()["saved"].sequence + 50:
                    end = pins.all()["saved"].sequence
                    is_rolled_back = False
                    site.end()
                    snapshot = load_snapshot(directory)
                    assert snapshot is not None
                    save_snapshot(directory, replace(snapshot, end_sequence=end))
                    pins.drop("saved")
                    again, site.positions = site.rows[end:], saved
                    del site.rows[end:]
                    clients.clear()
                    site.start()
                    await site.read(len(again))
                    assert site.rows[end:] == again[: len(site.rows) - end]
                    await site.commit()
            case 4:
                if chance.randrange(2):
                    site.gateway.handle(AckIntervalPassed())
                elif (client_ := clients.pop(stream_id, None)) is not None:
                    site.gateway.handle(SessionClosed(client_.number))
    assert not is_rolled_back, "there was no rollback"
    assert site.positions == {stream_id: made[-1][0] for stream_id, made in streams.items()}
    assert site.status["lag_bytes"] == 0
    rows = site.rows
    await site.gateway.close()
    logs = [path for folder in ("log", "ordered") for path in (directory / folder).glob("*") if path.is_file()]
    assert len(logs) <= 4, "committed rows are trimmed in both logs"
    return rows


@pytest.mark.parametrize("lateness_ns", [0, 5])
def test_a_rollback_offers_the_rows_after_the_savepoint_again_in_the_same_order(
    tmp_path: Path, lateness_ns: int
) -> None:
    plain = asyncio.run(lived(tmp_path / "plain", 0, lateness_ns))
    for seed in range(6):
        assert asyncio.run(lived(tmp_path / str(seed), seed, lateness_ns, is_rolled_back=True)) == plain


@pytest.mark.parametrize("lateness_ns", [0, 5])
def test_whatever_the_timing_and_the_crashes_the_rows_are_the_same(tmp_path: Path, lateness_ns: int) -> None:
    runs = [asyncio.run(lived(tmp_path / str(seed), seed, lateness_ns)) for seed in range(6)]
    made = streams_of(1)
    assert {row for row in runs[0] if row[0] != KIND_EOS} >= {(KIND_RECORD, stream_id, 0) for stream_id in made}
    assert len(runs[0]) == sum(map(len, made.values())) + len(made)
    assert any(kind == KIND_LATE for kind, _, _ in runs[0])
    assert all(run == runs[0] for run in runs)


MOVED_RECORDS = [(0, 247), (1, 247), (2, 207), (3, 247), (4, 208)]


class Successor(Site):
    """A site whose stream was at another gateway up to id 4; there only id 2 was placed, and the others were given
    up."""

    def ask(self, stream_id: int) -> None:
        self.gateway.handle(StreamGranted(stream_id, None, StreamClock(247, False, 4)))


@pytest.mark.parametrize("is_floor_raised", [False, True], ids=["", "the log begins behind its coming"])
def test_a_record_that_another_gateway_dropped_is_not_a_duplicate_after_a_restart(
    tmp_path: Path, is_floor_raised: bool
) -> None:
    async def run() -> None:
        site = Successor(tmp_path, DeclaredOrder(frozenset({1}), lateness_ns=40))
        first = Client(site, 1)
        if is_floor_raised:
            await site.epoch()
            assert site.gateway.state.snapshot.point is not None
            assert site.gateway.state.snapshot.point.floor == 1
        first.records(1, MOVED_RECORDS[0])
        await site.read()  # it is on disk
        site.kill()
        again = Client(site, 1)
        again.records(1, *MOVED_RECORDS)  # nothing is acknowledged: it sends all again
        again.end(1)
        await site.epoch()
        came = sorted(row for kind, _, row in site.rows if kind == KIND_RECORD)
        assert came == [0, 1, 3, 4], "all but id 2, which was placed at the first gateway"
        assert again.acked == {1: 4}

    asyncio.run(run())


def lags(site: Site) -> dict[int, int]:
    return {row["id"]: row["lag"] for row in stream_rows(site.gateway, 0, 10)["streams"]}


@in_loop
async def test_the_lag_of_each_stream_is_that_of_its_uncommitted_records_also_after_a_restart(
    tmp_path: Path,
) -> None:
    site = Site(tmp_path, DeclaredOrder(frozenset({1, 2})))
    ahead, behind = Client(site, 1), Client(site, 2)
    ahead.records(1, *((number, 1_000 + number) for number in range(10)))
    behind.records(2, *((number, number) for number in range(7)))
    assert lags(site) == {1: 10, 2: 7}
    await site.epoch()
    assert lags(site) == {1: 10, 2: 0}
    site.kill()
    assert lags(site) == {1: 10, 2: 0}


class Lender(Site):
    """A site whose leader knows the positions of relinquished streams, and grants them again."""

    def start(self) -> None:
        self.known: dict[int, tuple[int | None, Any]] = {}
        super().start()

    def ask(self, stream_id: int) -> None:
        self.gateway.handle(StreamGranted(stream_id, *self.known.get(stream_id, (None, None))))

    def relinquish(self, stream_id: int, committed: int | None, clock: object = None) -> None:
        self.known[stream_id] = committed, clock
        super().relinquish(stream_id, committed, clock)


@in_loop
async def test_rows_about_streams_do_not_fill_an_adaptive_window(tmp_path: Path) -> None:
    site = Lender(
        tmp_path, DeclaredOrder(frozenset({1})), credits="adaptive", credits_max=50, credits_min=5, backlog_max=60
    )
    for number in range(100):
        client = Client(site, 1)
        client.records(1, (number, number))
        await site.epoch()
        client.die()
        await site.epoch()
    assert site.gateway.state.next_sequence > 150, "each return of the stream writes a row about it"
    assert site.status["buffered"] == 0, "all records are committed"
    site.kill()
    assert site.status["buffered"] == 0
