"""The metrics of a gateway and its streams, for Prometheus and for `procession streams`.

Invariant: metrics are computed on request, from `state` and the stream counters. At most `metrics_streams_max` streams
have their own labels; the others are added up. Used by `metrics` and `control`.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Literal

from procession.gateway.performer import GatewayPerformer
from procession.gateway.registry import RegisteredStream
from procession.gateway.stream_counters import StreamCount
from procession.metrics import Metric

STREAMS_PAGE_MAX = 1000
"""Maximum number of streams in one reply of the control port."""

OTHERS = "others"
"""The label of the streams that are added up."""

Kind = Literal["counter", "gauge"]


def stream_rows(gateway: GatewayPerformer, first_id: int, streams_max: int) -> dict[str, Any]:
    """Streams in the order of their ids, from `first_id` on; `next_id` is where to go on, None at the end."""
    ids = sorted(stream.stream_id for stream in gateway.state.registry if stream.stream_id >= first_id)
    told = ids[: min(streams_max, STREAMS_PAGE_MAX)]
    now = time.monotonic()
    rows = [_row(gateway, gateway.state.registry[stream_id], now) for stream_id in told]
    return {"streams": rows, "next_id": ids[len(told)] if len(told) < len(ids) else None}


def _row(gateway: GatewayPerformer, stream: RegisteredStream, now: float) -> dict[str, Any]:
    counted = gateway.tally[stream.stream_id]
    return {
        "id": stream.stream_id,
        "name": stream.name,
        "state": stream.state,
        "owner": gateway.name,
        "is_held": gateway.state.claims is None or gateway.state.claims[stream.stream_id] is not None,
        "committed": stream.committed,
        "seen": stream.seen,
        "lag": counted.behind.rows,
        "rate": round(counted.rate(now), 1),
        "late": _late(gateway, stream),
        "frames": counted.frames,
        "bytes": counted.bytes,
    }


def figures(gateway: GatewayPerformer) -> list[Metric]:
    """All metrics of a gateway, as they are now."""
    return [*_of_gateway(gateway), *_of_streams(gateway)]


def _of_gateway(gateway: GatewayPerformer) -> Iterator[Metric]:
    state, tally, name = gateway.state, gateway.tally, gateway.name

    def one(kind: Kind, what: str, text: str, value: float) -> Metric:
        return Metric(f"procession_gateway_{what}", kind, text, ("gateway",), [((name,), value)])

    def by(kind: Kind, what: str, text: str, label: str, values: Counter[str]) -> Metric:
        told = [((name, key), float(value)) for key, value in sorted(values.items())]
        return Metric(f"procession_gateway_{what}", kind, text, ("gateway", label), told)

    credits_out = sum(_credits_held(gateway, number) or 0 for number in state.sessions)
    yield by("counter", "frames", "Frames that came, by their name in the protocol.", "frame", tally.frames)
    yield one("counter", "received_bytes", "Bytes that came from producers.", tally.received_bytes)
    yield one("counter", "records", "Records that were new.", state.records_in)
    yield one("counter", "ephemeral_records", "Records that cannot be sent again.", state.ephemeral_in)
    yield one("counter", "duplicates", "Records that had come before, and were dropped.", state.duplicates)
    if gateway.ordering is not None:
        late = gateway.ordering.order.late.total()
        yield one("counter", "late_records", "Records that came behind the watermark of their stream.", late)
    yield one("counter", "notify_refused", "NOTIFYs that were refused.", tally.refused)
    yield by("counter", "errors", "Sessions that ended with an error, by its kind.", "kind", tally.errors)
    yield one("counter", "credits_granted", "Credits that were given to producers.", tally.credits_granted)
    yield one("gauge", "credits_out", "Credits that producers hold.", credits_out)
    yield one("gauge", "sessions", "Producers that are connected.", len(state.sessions))
    yield by("gauge", "streams", "Streams, by their state.", "state", Counter(one.state for one in state.registry))
    yield one("gauge", "streams_retired", "Streams that are retired.", len(state.retired))
    yield one("counter", "streams_forgotten", "Retired streams that were forgotten.", state.retired.forgotten)
    yield one("gauge", "lag_records", "Records in the log that are not committed.", state.flow.buffered)
    yield one("gauge", "lag_bytes", "Bytes in the log that are not committed.", state.flow.lag.bytes)
    yield one("gauge", "lag_bytes_max", "Producers wait while more is not committed.", state.limits.lag_bytes_max)
    yield one("gauge", "over", "1 while so much has come that producers are not read.", state.flow.is_over)
    yield one("gauge", "disk_short", "1 while the disk has too little room.", state.flow.is_disk_short)
    if gateway.ordering is not None:
        waiting = gateway.ordering.order.waiting
        yield one("gauge", "waiting_records", "Records whose place in the order is not settled.", len(waiting))
        yield one("gauge", "waiting_bytes", "Bytes of them.", waiting.size_bytes)
    ordered_bytes = gateway.ordering.log.size_bytes if gateway.ordering is not None else 0
    yield one("gauge", "log_bytes", "Bytes of the log on disk.", gateway.log.size_bytes + ordered_bytes)
    yield one("counter", "fetched_records", "Records that were fetched over Arrow Flight.", gateway.fetched_rows())
    yield one("gauge", "next_sequence", "The sequence that the next record gets.", state.next_sequence)
    yield one("gauge", "durable_sequence", "Records below are on disk.", gateway.offered.durable_end)
    yield one("gauge", "committed_sequence", "Records below are committed.", state.snapshot.end_sequence)
    yield one("gauge", "epoch", "The last epoch that is committed.", state.snapshot.epoch)
    yield one("gauge", "fence", "The number of the driver that counts.", state.snapshot.fence)
    if state.flow.window is not None:
        window = state.flow.window
        yield one("gauge", "window_records", "Records that may wait for their commit.", window.size)
        yield one("gauge", "window_target_seconds", "What the window aims at.", window.target_s)
        yield one("gauge", "window_wait_seconds", "How long a record waits for its commit.", window.wait_s)
        yield one("gauge", "window_commit_rate", "Records that are committed in a second.", window.rate)


def _late(gateway: GatewayPerformer, stream: RegisteredStream) -> int | None:
    """Its records that came behind its own watermark; None where no record is late: in the order of arrival."""
    return None if gateway.ordering is None else gateway.ordering.order.late[stream.stream_id]


def _credits_held(gateway: GatewayPerformer, session: int | None) -> int | None:
    """None if there is no such session, or it has not said HELLO yet."""
    one = None if session is None else gateway.state.sessions.get(session)
    return gateway.state.limits.credits_max - one.owed if one is not None and one.is_streaming else None


def _of_streams(gateway: GatewayPerformer) -> Iterator[Metric]:
    streams_max = gateway.config.metrics_streams_max
    apart = list(itertools.islice(gateway.state.registry, streams_max))
    others = list(itertools.islice(gateway.state.registry, streams_max, None))

    def told(
        kind: Kind,
        what: str,
        text: str,
        value: Callable[[RegisteredStream, StreamCount], float | None],
        *,
        is_sum: bool,
    ) -> Metric:
        def value_of(stream: RegisteredStream) -> float | None:
            return value(stream, gateway.tally[stream.stream_id])

        values = [((gateway.name, str(one.stream_id), one.name), value_of(one)) for one in apart]
        if others and is_sum:
            values.append(((gateway.name, OTHERS, ""), sum(filter(None, map(value_of, others)))))
        known = [(labels, float(found)) for labels, found in values if found is not None]
        return Metric(f"procession_stream_{what}", kind, text, ("gateway", "stream", "name"), known)

    yield told("counter", "frames", "MESSAGE frames that came.", lambda _, found: found.frames, is_sum=True)
    yield told("counter", "bytes", "Bytes of keys and payloads that came.", lambda _, found: found.bytes, is_sum=True)
    if gateway.ordering is not None:
        text = "Records that came behind its watermark."
        yield told("counter", "late_records", text, lambda one, _: _late(gateway, one), is_sum=True)
    yield told("counter", "notify_refused", "NOTIFYs refused.", lambda _, found: found.refused, is_sum=True)
    yield told("gauge", "lag_records", "Rows not committed.", lambda _, found: found.behind.rows, is_sum=True)
    yield told("gauge", "open", "1 if a session may send on it.", lambda one, _: one.state == "open", is_sum=True)
    yield told(
        "gauge",
        "credits_out",
        "Credits that the session which has it open holds, for all of its streams.",
        lambda one, _: _credits_held(gateway, one.session),
        is_sum=False,
    )
    # A message id has 64 bits and a figure 53: above 2^53 these are near the id and not it.
    yield told("gauge", "committed_id", "The last committed message id.", lambda one, _: one.committed, is_sum=False)
    yield told("gauge", "seen_id", "The last message id that came.", lambda one, _: one.seen, is_sum=False)
