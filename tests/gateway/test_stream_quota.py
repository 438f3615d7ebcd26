"""Credits with event-time order: the producer of the stream that the merge waits for can always send."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace
from pathlib import Path

from procession.gateway.gateway_directory import UNREPLICATED_BYTES_MAX
from procession.gateway.gateway_events import AckIntervalPassed, SessionClosed
from procession.merge.event_time import DeclaredOrder
from procession.wire.messages import Notify, NotifyAck
from tests.gateway.ordered_site import Client, Site, in_loop

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
    """Send records while there are credits, and return how many were sent."""
    count = 0
    while client.credits > client.spent and count < records_max:
        client.spent += 1
        client.records(stream_id, (next(ids), next(times)))
        client.site.gateway.flush()
        count += 1
    return count


async def goes_on(directory: Path, **limits: int) -> bool:
    """Fill the log from a fast stream while a slow one is silent, and return whether the slow stream then catches
    up."""
    site = Site(directory, DeclaredOrder(frozenset({1, 2})), **LIMITS | limits)
    slow, fast = Client(site, 2), Client(site, 1)
    slow_ids, slow_times, fast_ids, fast_times = (itertools.count(start) for start in (0, 0, 0, 1_000))
    talk(slow, 2, slow_ids, slow_times, records_max=48)  # the slow stream stops with one credit left
    while talk(fast, 1, fast_ids, fast_times):
        await site.read()
    assert site.status["lag_bytes"] > LIMITS["lag_bytes_max"], "the log is full"
    assert site.status["waits_for"] == 2
    came = 48
    for _ in range(500):
        talk(fast, 1, fast_ids, fast_times)
        came += talk(slow, 2, slow_ids, slow_times)
        await site.epoch()
        site.gateway.handle(AckIntervalPassed())
        assert site.status["lag_bytes"] < LIMITS["lag_bytes_max"] + LIMITS["reserve_bytes_max"]
        if came > 1_000:
            return True  # the slow stream has caught up with the fast one
    return False


def test_the_awaited_stream_gets_credit_when_the_log_is_full_of_other_streams(tmp_path: Path) -> None:
    assert asyncio.run(goes_on(tmp_path / "with"))


def test_without_a_reserve_the_awaited_stream_is_blocked_forever(tmp_path: Path) -> None:
    assert not asyncio.run(goes_on(tmp_path / "without", reserve_bytes_max=0))


@in_loop
async def test_a_stream_over_its_share_waits_and_leaves_room_for_the_others(tmp_path: Path) -> None:
    site = Site(tmp_path, DeclaredOrder(frozenset({1, 2, 3})), **LIMITS | {"stream_bytes_max": 5_000})
    greedy, other = Client(site, 1), Client(site, 2)
    ids, times = itertools.count(), itertools.count(1_000)
    while talk(greedy, 1, ids, times):
        await site.read()
    assert 5_000 < site.status["lag_bytes"] < 5_000 + LIMITS["credits_max"] * 200
    before = other.credits
    talk(other, 2, itertools.count(), itertools.count())
    assert other.credits > before, "the log has room for it"


@in_loop
async def test_a_session_that_uses_up_the_reserve_for_another_stream_is_not_read(tmp_path: Path) -> None:
    site = Site(tmp_path, DeclaredOrder(frozenset({1, 2})), **LIMITS)
    both, ids, times = Client(site, 1, 2), itertools.count(), itertools.count()
    for _ in range(300):
        talk(both, 1, ids, times)
        await site.epoch()
        site.gateway.handle(AckIntervalPassed())
    bound = LIMITS["lag_bytes_max"] + LIMITS["reserve_bytes_max"] + LIMITS["credits_max"] * 200
    assert site.status["lag_bytes"] < bound
    assert site.status["waits_for"] == 2


def spend(client: Client, stream_id: int, ids: itertools.count[int], times: itertools.count[int], count: int) -> None:
    """Send `count` records on existing credits."""
    assert client.credits - client.spent >= count
    assert talk(client, stream_id, ids, times, count) == count


async def comes_up(site: Site, client: Client, stream_id: int, passed: int) -> bool:
    """Return whether a stream, while no other one sends, advances beyond the event time `passed`."""
    ids, times = itertools.count(), itertools.count(0, 10)
    for _ in range(500):
        talk(client, stream_id, ids, times)
        await site.epoch()
        site.gateway.handle(AckIntervalPassed())
        if site.status["waits_for"] != stream_id:
            return next(times) > passed
    return False


GENEROUS = LIMITS | {"credits_max": 400, "credits_min": 5, "stream_bytes_max": 100_000}
"""Limits with which a session may hold more credits than the reserve covers."""


@in_loop
async def test_records_that_others_send_on_old_credits_do_not_use_the_reserve(tmp_path: Path) -> None:
    site = Site(tmp_path, DeclaredOrder(frozenset({1, 2})), **GENEROUS)
    fast, ids, times = Client(site, 1), itertools.count(), itertools.count(1_000)
    spend(fast, 1, ids, times, 200)
    await site.epoch()
    assert site.status["lag_bytes"] > GENEROUS["lag_bytes_max"]
    slow = Client(site, 2)
    assert slow.credits == GENEROUS["credits_min"]
    talk(fast, 1, ids, times)
    assert site.status["lag_bytes"] > GENEROUS["lag_bytes_max"] + GENEROUS["reserve_bytes_max"]
    assert await comes_up(site, slow, 2, 1_000)


async def fill(site: Site, times: itertools.count[int]) -> None:
    """Send records of stream 1 until its session is no longer read."""
    fast, ids = Client(site, 1), itertools.count()
    while not fast.is_held:
        spend(fast, 1, ids, times, 1)
        await site.epoch()
    assert site.status["is_over"]


async def full_site(directory: Path, streams: int) -> Site:
    """Return a site that reads no session because of the records of stream 1. Its merge waits for stream 2."""
    site = Site(directory, DeclaredOrder(frozenset(range(1, streams + 1))), **GENEROUS | {"overrun_bytes_max": 2_000})
    for stream_id in range(3, streams + 1):
        Client(site, stream_id).records(stream_id, (0, 1 << 40))
    had = Client(site, 2)
    had.records(2, (0, -1))
    await fill(site, itertools.count(1_000))
    assert site.status["waits_for"] == 2
    had.die()
    return site


@in_loop
async def test_the_producer_of_an_awaited_stream_is_read_also_while_no_other_session_is(tmp_path: Path) -> None:
    site = await full_site(tmp_path, 2)
    again = Client(site, 2)
    assert not again.unread
    assert await comes_up(site, again, 2, 1_000)


@in_loop
async def test_a_refused_session_that_asks_again_at_a_full_log_is_read(tmp_path: Path) -> None:
    site = Site(tmp_path, DeclaredOrder(frozenset({1, 2})), **GENEROUS | {"overrun_bytes_max": 2_000})
    had = Client(site, 2)
    had.records(2, (0, -1))
    again = Client(site, 2)
    assert NotifyAck(False, 2, 0) in again.frames
    await fill(site, itertools.count(1_000))
    had.die()
    site.gateway.handle(AckIntervalPassed())
    again.receive(Notify(2, "", 0))
    assert not again.unread
    assert await comes_up(site, again, 2, 1_000)


@in_loop
async def test_a_reconnecting_producer_opens_all_its_streams_although_one_has_used_up_its_reserve(
    tmp_path: Path,
) -> None:
    site = Site(tmp_path, DeclaredOrder(frozenset({1, 2, 3})), **GENEROUS | {"overrun_bytes_max": 2_000})
    two, three = Client(site, 2), Client(site, 3)
    two.records(2, (0, 100))
    three.records(3, (0, 0))
    await fill(site, itertools.count(10_000))
    assert site.status["waits_for"] == 3
    ids, times = itertools.count(1), itertools.count(200)
    while talk(three, 3, ids, times):  # without a request of the driver in the meantime
        site.gateway.handle(AckIntervalPassed())
    two.die()
    three.die()
    await site.epoch()
    assert site.status["waits_for"] == 2
    both = Client(site, 3)
    both.receive(Notify(2, "", 0))
    assert not both.unread
    assert await comes_up(site, both, 2, 100)


@in_loop
async def test_a_new_session_without_the_awaited_stream_is_not_read_at_a_full_log(
    tmp_path: Path,
) -> None:
    site = await full_site(tmp_path, 3)
    holder, other = Client(site, 2), Client(site, 3)
    assert not holder.is_held
    assert other.is_held
    assert await comes_up(site, holder, 2, 1_000)
    assert not other.is_held


@in_loop
async def test_a_session_with_more_streams_than_credits_opens_them_all_at_a_full_log(tmp_path: Path) -> None:
    streams = 40
    site = await full_site(tmp_path, streams)
    for number in list(site.gateway.state.sessions):
        if 1 not in site.gateway.state.sessions[number].streams:
            site.gateway.handle(SessionClosed(number))
    again, to_open = Client(site), list(range(streams, 1, -1))
    assert again.credits == 1
    for _ in range(streams):
        while to_open and again.credits > again.spent:
            again.spent += 1
            again.receive(Notify(to_open.pop(0), "", 0))
        site.gateway.handle(AckIntervalPassed())
    assert not to_open
    assert await comes_up(site, again, 2, 1_000)


@in_loop
async def test_the_bytes_of_new_sessions_are_bounded_while_no_session_has_the_awaited_stream(tmp_path: Path) -> None:
    site = await full_site(tmp_path, 3)
    start, ids = site.status["lag_bytes"], itertools.count(1)
    for _ in range(200):
        for number in list(site.gateway.state.sessions):
            if 3 in site.gateway.state.sessions[number].streams:
                site.gateway.handle(SessionClosed(number))
        talk(Client(site, 3), 3, ids, itertools.count(1 << 41))
        await site.read()
    assert site.status["lag_bytes"] < start + GENEROUS["reserve_bytes_max"] + 200 * 150, "at most one record each time"


@in_loop
async def test_no_session_gets_credits_while_the_disk_is_low_not_even_from_the_reserve(tmp_path: Path) -> None:
    site = Site(tmp_path, DeclaredOrder(frozenset({1, 2})), **LIMITS)
    waited_for, ids, times = Client(site, 1), itertools.count(), itertools.count()
    site.gateway.config = replace(site.config, disk_free_bytes_min=1 << 62)
    sent = talk(waited_for, 1, ids, times)
    assert sent < LIMITS["credits_max"]
    await site.epoch()
    site.gateway.handle(AckIntervalPassed())
    assert site.status["is_disk_short"]
    assert talk(waited_for, 1, ids, times) == 1, "only the credit of its NOTIFY"
    await site.epoch()
    site.gateway.handle(AckIntervalPassed())
    assert talk(waited_for, 1, ids, times) == 0, "it waits and keeps its credits"
    site.gateway.config = site.config
    site.gateway.check_disk()
    site.gateway.handle(AckIntervalPassed())
    assert not site.status["is_disk_short"]
    assert talk(waited_for, 1, ids, times) > 0


@in_loop
async def test_no_session_gets_credits_while_the_replicas_lag(tmp_path: Path) -> None:
    site = Site(tmp_path, DeclaredOrder(frozenset({1, 2})), **LIMITS)
    client, ids, times = Client(site, 1), itertools.count(), itertools.count()
    host = site.gateway.host
    site.gateway.host = replace(host, unreplicated_bytes=lambda: UNREPLICATED_BYTES_MAX + 1)
    site.gateway.check_disk()
    talk(client, 1, ids, times)
    await site.epoch()
    site.gateway.handle(AckIntervalPassed())
    assert site.status["are_replicas_behind"]
    assert talk(client, 1, ids, times) <= 1, "only the credit of its NOTIFY"
    site.gateway.host = host
    site.gateway.check_disk()
    site.gateway.handle(AckIntervalPassed())
    assert not site.status["are_replicas_behind"]
    assert talk(client, 1, ids, times) > 0


@in_loop
async def test_no_session_gets_credits_or_is_read_while_the_gateway_is_paused(tmp_path: Path) -> None:
    site = Site(tmp_path, DeclaredOrder(frozenset({1, 2})), **LIMITS)
    Client(site, 1)
    (session,), state = site.gateway.state.sessions, site.gateway.state
    await site.gateway.pause(True, is_kept=False)
    assert state.allowed(session) == 0
    assert state.holds(session), "although the merge waits for its stream"
    await site.gateway.pause(False, is_kept=False)
    assert state.allowed(session) > 0
    assert not state.holds(session)
