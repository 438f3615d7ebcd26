"""A gateway that puts its streams in the order of event time: what it offers, keeps back, acknowledges and finds again.

Real logs on a real disk, and the real decisions; the sockets and the driver are played.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from procession.errors import ConfigError
from procession.gateway.config import GatewayConfig, Limits
from procession.gateway.core import Gateway
from procession.gateway.events import (
    Committed,
    Granted,
    LeaderFound,
    Received,
    Relinquished,
    SessionClosed,
    SessionOpened,
    Ticked,
)
from procession.merge.eventorder import NO_REFERENCE, Declared
from procession.storage.log import LogReader
from procession.storage.segment import KIND_EOS, KIND_LATE, KIND_RECORD, ORDERED
from procession.wire.draft_messages import AnyFrame
from procession.wire.messages import Ack, Eos, Hello, Messages, Notify, NotifyAck, Ok

EVERYTHING = 1 << 40
PAYLOAD = b"x" * 100


class Client:
    """A producer's session, without a socket."""

    def __init__(self, site: Site, *streams: int) -> None:
        self.site = site
        self.frames: list[AnyFrame] = []
        self.reason: str | None = None
        self.spent = len(streams)
        self.number = site.gateway.join(self)
        site.gateway.handle(SessionOpened(self.number))
        self.hear(Hello("0.0.1", b"", "test", "test"))
        for stream_id in streams:
            self.hear(Notify(stream_id, f"stream {stream_id}", 0))

    def hear(self, what: Any) -> None:
        self.site.gateway.handle(Received(self.number, what))

    def send(self, frame: AnyFrame) -> None:
        self.frames.append(frame)

    def hold(self, is_held: bool) -> None:
        pass

    def close(self, reason: str | None) -> None:
        self.reason = reason

    def records(self, stream_id: int, *records: tuple[int, int]) -> None:
        """Pairs of message id and event time."""
        count = len(records)
        self.hear(
            Messages(
                np.full(count, stream_id, np.uint64),
                np.array([one for one, _ in records], np.uint64),
                np.array([time for _, time in records], np.int64),
                pa.array([b""] * count, pa.binary()),
                pa.array([PAYLOAD] * count, pa.binary()),
            )
        )

    def end(self, stream_id: int) -> None:
        self.hear(Eos(stream_id))

    @property
    def credits(self) -> int:
        """All that were ever granted."""
        return sum(frame.credits for frame in self.frames if isinstance(frame, Ok | Ack))

    @property
    def acked(self) -> dict[int, int]:
        return dict(pair for frame in self.frames if isinstance(frame, Ack) for pair in frame.positions)


class Site:
    """One gateway's directory, and the gateway that has it at the moment; the driver reads what it is offered."""

    def __init__(self, directory: Path, declared: Declared, **limits: Any) -> None:
        self.config = GatewayConfig(
            directory, limits=Limits(**limits), declared=declared, segment_bytes_max=4096, append_delay_s=3600.0
        )
        self.rows: list[tuple[int, int, int]] = []
        """What the driver has read: kind, stream id, message id."""
        self.positions: dict[int, int] = {}
        self.epochs = itertools.count()
        directory.mkdir(parents=True, exist_ok=True)
        self.start()

    def start(self) -> None:
        self.gateway = Gateway(self.config)
        self.gateway.leader = self
        self.gateway.handle(LeaderFound())

    def ask(self, stream_id: int) -> None:
        """There is no other gateway: what is asked for is granted."""
        self.gateway.handle(Granted(stream_id, None))

    def relinquish(self, stream_id: int, committed: int | None, clock: object = None) -> None:
        self.gateway.handle(Relinquished(stream_id))

    def kill(self) -> None:
        """What waits to be written is gone; what was written is there."""
        self.gateway.log.close()
        assert self.gateway.ordering is not None
        self.gateway.ordering.log.close()
        self.start()

    async def read(self, records_max: int = 1_000_000) -> int:
        """One epoch, up to its commit; gives how many rows it had."""
        start = len(self.rows)
        end = await self.gateway.offer(1, start, records_max, EVERYTHING)
        for batch in LogReader(self.config.ordered_directory, ORDERED).read(start, end):
            for row in batch.to_pylist():
                self.rows.append((row["kind"], row["stream_id"], row["message_id"]))
                if row["reference"] != NO_REFERENCE:
                    self.positions[row["stream_id"]] = row["reference"]
        return end - start

    async def commit(self) -> None:
        await self.gateway.commit(Committed(1, next(self.epochs), len(self.rows), self.positions))

    async def epoch(self, records_max: int = 1_000_000) -> list[tuple[int, int, int]]:
        count = await self.read(records_max)
        await self.commit()
        return self.rows[len(self.rows) - count :]

    @property
    def status(self) -> dict[str, Any]:
        return self.gateway.status()


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    def run(tmp_path: Path) -> None:
        asyncio.run(test(tmp_path))

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


def records(*pairs: tuple[int, int]) -> list[tuple[int, int, int]]:
    return [(KIND_RECORD, *pair) for pair in pairs]


@in_loop
async def test_an_epoch_takes_what_is_settled_and_the_rest_stays_unacknowledged(tmp_path: Path) -> None:
    site = Site(tmp_path, Declared(frozenset({1, 2})))
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
async def test_the_end_of_a_stream_is_released_by_the_commit_that_has_it_and_by_none_before(tmp_path: Path) -> None:
    site = Site(tmp_path, Declared(frozenset({1, 2})))
    fast, slow = Client(site, 1), Client(site, 2)
    fast.records(1, (0, 100))
    fast.end(1)
    slow.records(2, (0, 50))
    assert await site.epoch() == records((2, 0))
    site.kill()
    again = Client(site, 1)
    assert [frame for frame in again.frames if isinstance(frame, NotifyAck)] == [NotifyAck(False, 1, 0)]
    Client(site, 2).end(2)
    assert [row for row in await site.epoch() if row[0] == KIND_EOS] == [(KIND_EOS, 2, 0), (KIND_EOS, 1, 0)]
    again.hear(Notify(1, "", 0))
    assert [frame for frame in again.frames if isinstance(frame, NotifyAck)][-1] == NotifyAck(True, 1, 0)


@in_loop
async def test_an_end_that_is_sent_again_after_its_commit_is_answered_and_makes_no_row(tmp_path: Path) -> None:
    site = Site(tmp_path, Declared(frozenset({1, 2})))
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
    again.hear(Notify(1, "", 0))
    again.records(1, (8, 20))
    assert again.reason == "stream 1 has ended"


@in_loop
async def test_undeclared_streams_and_the_draft_are_refused(tmp_path: Path) -> None:
    site = Site(tmp_path, Declared(frozenset({1})))
    client = Client(site, 3)
    assert client.reason == "stream 3 is not declared in the pipeline"
    other = Client(site)
    site.gateway.handle(SessionClosed(other.number))
    drafted = Client.__new__(Client)
    drafted.site, drafted.frames, drafted.reason = site, [], None
    drafted.number = site.gateway.join(drafted)
    site.gateway.handle(SessionOpened(drafted.number))
    drafted.hear(Hello("draft", b"", "test", "test"))
    assert drafted.reason is not None
    assert "event time" in drafted.reason


@in_loop
async def test_a_late_record_is_marked_and_stands_at_the_watermark_of_its_stream(tmp_path: Path) -> None:
    site = Site(tmp_path, Declared(frozenset({1, 2})))
    one, two = Client(site, 1), Client(site, 2)
    one.records(1, (0, 10), (1, 30), (2, 20), (3, 40))
    two.records(2, (0, 25), (1, 40))
    assert await site.epoch() == [
        (KIND_RECORD, 1, 0),
        (KIND_RECORD, 2, 0),
        (KIND_RECORD, 1, 1),
        (KIND_LATE, 1, 2),
        (KIND_RECORD, 1, 3),
    ]
    assert one.acked == {1: 3}
    assert site.status["late_records"] == 1


@in_loop
async def test_with_an_allowed_lateness_nothing_is_acknowledged_before_all_below_it_is_committed(
    tmp_path: Path,
) -> None:
    site = Site(tmp_path, Declared(frozenset({1}), lateness_ns=10))
    client = Client(site, 1)
    client.records(1, (0, 100), (1, 95), (2, 111), (3, 102), (4, 113))
    assert await site.epoch() == records((1, 1), (1, 0), (1, 3))
    assert client.acked == {1: 1}, "record 2 is still to come, so 3 is not told"
    client.records(1, (5, 130))
    site.gateway.flush()
    site.kill()
    assert await site.epoch() == records((1, 2), (1, 4))
    assert site.positions == {1: 4}


@in_loop
async def test_nobody_waits_for_an_idle_stream_and_what_then_comes_too_late_is_late_also_after_a_restart(
    tmp_path: Path,
) -> None:
    site = Site(tmp_path, Declared(frozenset({1, 2}), idle_timeout_s=1e-9))
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
async def test_a_directory_keeps_the_order_that_it_was_begun_with(tmp_path: Path) -> None:
    site = Site(tmp_path, Declared(frozenset({1})))
    Client(site, 1).records(1, (0, 1))
    await site.epoch()
    await site.gateway.close()
    with pytest.raises(ConfigError, match="begun in the order of event time, not of arrival"):
        Gateway(replace(site.config, declared=None))


# The whole, whatever the timing


def streams_of(seed: int) -> dict[int, list[tuple[int, int]]]:
    chance, streams = random.Random(seed), {}
    for stream_id in (3, 5, 9):
        now, made = 0, []
        for message_id in range(0, 120, chance.choice((1, 3))):
            now += chance.randrange(4)
            made.append((message_id, now + chance.choice((0, 0, 0, -1, -7))))
        streams[stream_id] = made
    return streams


async def lived(directory: Path, seed: int, lateness_ns: int) -> list[tuple[int, int, int]]:
    """All rows, read while producers come and go, epochs are repeated, and the gateway is killed."""
    chance = random.Random(seed)
    streams = streams_of(1)
    site = Site(directory, Declared(frozenset(streams), lateness_ns))
    clients: dict[int, Client] = {}
    sent = dict.fromkeys(streams, 0)
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
                sent[stream_id] = sum(one <= known for one, _ in made) if known != NO_REFERENCE else 0
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
                if chance.randrange(3) == 0:  # the epoch is run again: the same rows
                    again = site.rows[before:]
                    del site.rows[before:]
                    await site.read(len(again) or 1)
                    assert site.rows[before:][: len(again)] == again
                await site.commit()
            case 4:
                if chance.randrange(2):
                    site.gateway.handle(Ticked())
                elif (client_ := clients.pop(stream_id, None)) is not None:
                    site.gateway.handle(SessionClosed(client_.number))
    assert site.positions == {stream_id: made[-1][0] for stream_id, made in streams.items()}
    assert site.status["lag_bytes"] == 0
    rows = site.rows
    await site.gateway.close()
    logs = [path for folder in ("log", "ordered") for path in (directory / folder).glob("*") if path.is_file()]
    assert len(logs) <= 4, "what is committed is trimmed, in both logs"
    return rows


@pytest.mark.parametrize("lateness_ns", [0, 5])
def test_whatever_the_timing_and_the_crashes_the_rows_are_the_same(tmp_path: Path, lateness_ns: int) -> None:
    runs = [asyncio.run(lived(tmp_path / str(seed), seed, lateness_ns)) for seed in range(6)]
    made = streams_of(1)
    assert {row for row in runs[0] if row[0] != KIND_EOS} >= {(KIND_RECORD, stream_id, 0) for stream_id in made}
    assert len(runs[0]) == sum(map(len, made.values())) + len(made)
    assert any(kind == KIND_LATE for kind, _, _ in runs[0])
    assert all(run == runs[0] for run in runs)


# Credits


LIMITS = {
    "credits_max": 50,
    "credits_min": 5,
    "lag_bytes_max": 20_000,
    "stream_bytes_max": 30_000,
    "reserve_bytes_max": 15_000,
}


def talk(
    client: Client, stream_id: int, ids: itertools.count[int], times: itertools.count[int], records_max: int = 1_000
) -> int:
    """Send as long as there are credits; gives how many records went."""
    count = 0
    while client.credits > client.spent and count < records_max:
        client.spent += 1
        client.records(stream_id, (next(ids), next(times)))
        client.site.gateway.flush()
        count += 1
    return count


async def goes_on(directory: Path, **limits: int) -> bool:
    """A fast stream fills the log while a slow one is silent; does the slow one then get on?"""
    site = Site(directory, Declared(frozenset({1, 2})), **LIMITS | limits)
    slow, fast = Client(site, 2), Client(site, 1)
    slow_ids, slow_times, fast_ids, fast_times = (itertools.count(start) for start in (0, 0, 0, 1_000))
    talk(slow, 2, slow_ids, slow_times, records_max=48)  # it stops with one credit left
    while talk(fast, 1, fast_ids, fast_times):
        await site.read()
    assert site.status["lag_bytes"] > LIMITS["lag_bytes_max"], "the log is full"
    assert site.status["waits_for"] == 2
    came = 48
    for _ in range(500):
        talk(fast, 1, fast_ids, fast_times)
        came += talk(slow, 2, slow_ids, slow_times)
        await site.epoch()
        site.gateway.handle(Ticked())
        assert site.status["lag_bytes"] < LIMITS["lag_bytes_max"] + LIMITS["reserve_bytes_max"]
        if came > 1_000:
            return True  # it has come to where the fast one is
    return False


def test_the_stream_that_is_waited_for_gets_credit_when_the_log_is_full_of_the_others(tmp_path: Path) -> None:
    assert asyncio.run(goes_on(tmp_path / "with"))


def test_without_a_reserve_that_is_a_dead_lock(tmp_path: Path) -> None:
    assert not asyncio.run(goes_on(tmp_path / "without", reserve_bytes_max=0))


@in_loop
async def test_a_stream_over_its_share_waits_and_leaves_room_for_the_others(tmp_path: Path) -> None:
    site = Site(tmp_path, Declared(frozenset({1, 2, 3})), **LIMITS | {"stream_bytes_max": 5_000})
    greedy, other = Client(site, 1), Client(site, 2)
    ids, times = itertools.count(), itertools.count(1_000)
    while talk(greedy, 1, ids, times):
        await site.read()
    assert 5_000 < site.status["lag_bytes"] < 5_000 + LIMITS["credits_max"] * 200
    before = other.credits
    talk(other, 2, itertools.count(), itertools.count())
    assert other.credits > before, "the log has room for it"


@in_loop
async def test_a_session_that_sends_another_stream_from_the_reserve_is_held_when_it_is_used_up(tmp_path: Path) -> None:
    site = Site(tmp_path, Declared(frozenset({1, 2})), **LIMITS)
    both, ids, times = Client(site, 1, 2), itertools.count(), itertools.count()
    for _ in range(300):
        talk(both, 1, ids, times)
        await site.epoch()
        site.gateway.handle(Ticked())
    bound = LIMITS["lag_bytes_max"] + LIMITS["reserve_bytes_max"] + LIMITS["credits_max"] * 200
    assert site.status["lag_bytes"] < bound
    assert site.status["waits_for"] == 2


@in_loop
async def test_while_the_disk_is_short_nobody_gets_credit_not_even_from_the_reserve(tmp_path: Path) -> None:
    site = Site(tmp_path, Declared(frozenset({1, 2})), **LIMITS)
    waited_for, ids, times = Client(site, 1), itertools.count(), itertools.count()
    site.gateway.config = replace(site.config, disk_free_bytes_min=1 << 62)
    sent = talk(waited_for, 1, ids, times)
    assert sent < LIMITS["credits_max"]
    await site.epoch()
    site.gateway.handle(Ticked())
    assert site.status["is_disk_short"]
    assert talk(waited_for, 1, ids, times) == 0, "it waits, and keeps what it has"
    site.gateway.config = site.config
    site.gateway.look_at_disk()
    site.gateway.handle(Ticked())
    assert not site.status["is_disk_short"]
    assert talk(waited_for, 1, ids, times) > 0
