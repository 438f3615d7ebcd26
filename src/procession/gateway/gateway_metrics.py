"""The metrics of a gateway and its streams, for Prometheus and for `procession streams`.

Invariant: metrics are computed on request, from `state` and the stream counters. At most `metrics_streams_max` streams
have their own labels. The figures of all other streams are added up. Used by `metrics` and `control`.
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
"""The label of the sum over the streams without their own labels."""

Kind = Literal["counter", "gauge"]


def stream_rows(gateway: GatewayPerformer, first_id: int, streams_max: int) -> dict[str, Any]:
    """Return a page of streams, ordered by id, from `first_id` on. `next_id` is where the next page starts; None: the
    last page."""
    ids = sorted(stream.stream_id for stream in gateway.state.registry if stream.stream_id >= first_id)
    page = ids[: min(streams_max, STREAMS_PAGE_MAX)]
    now = time.monotonic()
    rows = [_row(gateway, gateway.state.registry[stream_id], now) for stream_id in page]
    return {"streams": rows, "next_id": ids[len(page)] if len(page) < len(ids) else None}


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
    """Return the current metrics of a gateway."""
    return [*_of_gateway(gateway), *_of_streams(gateway)]


def _of_gateway(gateway: GatewayPerformer) -> Iterator[Metric]:
    state, tally, name = gateway.state, gateway.tally, gateway.name

    def metric(kind: Kind, what: str, text: str, value: float) -> Metric:
        return Metric(f"procession_gateway_{what}", kind, text, ("gateway",), [((name,), value)])

    def by(kind: Kind, what: str, text: str, label: str, values: Counter[str]) -> Metric:
        points = [((name, key), float(value)) for key, value in sorted(values.items())]
        return Metric(f"procession_gateway_{what}", kind, text, ("gateway", label), points)

    credits_out = sum(_credits_held(gateway, number) or 0 for number in state.sessions)
    yield by("counter", "frames", "Frames received, by their name in the protocol.", "frame", tally.frames)
    yield metric("counter", "received_bytes", "Bytes received from producers.", tally.received_bytes)
    yield metric("counter", "records", "Records that were new.", state.records_in)
    yield metric("counter", "ephemeral_records", "Records that cannot be sent again.", state.ephemeral_in)
    yield metric("counter", "duplicates", "Records that had come before, and were dropped.", state.duplicates)
    if gateway.ordering is not None:
        late = gateway.ordering.order.late.total()
        yield metric("counter", "late_records", "Records that arrived behind the watermark of their stream.", late)
    yield metric("counter", "notify_refused", "NOTIFYs that were refused.", tally.refused)
    yield by("counter", "errors", "Sessions that ended with an error, by its kind.", "kind", tally.errors)
    yield metric("counter", "credits_granted", "Credits that were given to producers.", tally.credits_granted)
    yield metric("gauge", "credits_out", "Credits that producers hold.", credits_out)
    yield metric("gauge", "sessions", "Producers that are connected.", len(state.sessions))
    yield by(
        "gauge", "streams", "Streams, by their state.", "state", Counter(stream.state for stream in state.registry)
    )
    yield metric("gauge", "streams_retired", "Streams that are retired.", len(state.retired))
    yield metric("counter", "streams_forgotten", "Retired streams that were forgotten.", state.retired.forgotten)
    yield metric("gauge", "lag_records", "Records in the log that are not committed.", state.flow.buffered)
    yield metric("gauge", "lag_bytes", "Bytes in the log that are not committed.", state.flow.lag.bytes)
    yield metric("gauge", "lag_bytes_max", "Producers wait while more is not committed.", state.limits.lag_bytes_max)
    yield metric("gauge", "over", "1 while so much has come that producers are not read.", state.flow.is_over)
    yield metric("gauge", "paused", "1 while an operator has paused the gateway.", state.flow.is_paused)
    yield metric("gauge", "disk_short", "1 while the disk has too little room.", state.flow.is_disk_short)
    if gateway.ordering is not None:
        waiting = gateway.ordering.order.waiting
        yield metric("gauge", "waiting_records", "Records whose place in the order is not settled.", len(waiting))
        yield metric("gauge", "waiting_bytes", "Bytes of them.", waiting.size_bytes)
    ordered_bytes = gateway.ordering.log.size_bytes if gateway.ordering is not None else 0
    yield metric("gauge", "log_bytes", "Bytes of the log on disk.", gateway.log.size_bytes + ordered_bytes)
    yield metric("counter", "fetched_records", "Records that were fetched over Arrow Flight.", gateway.fetched_rows())
    yield metric("gauge", "next_sequence", "The sequence that the next record gets.", state.next_sequence)
    yield metric("gauge", "durable_sequence", "Records below are on disk.", gateway.offered.durable_end)
    yield metric("gauge", "committed_sequence", "Records below are committed.", state.snapshot.end_sequence)
    yield metric("gauge", "epoch", "The last epoch that is committed.", state.snapshot.epoch)
    yield metric("gauge", "fence", "The number of the driver that counts.", state.snapshot.fence)
    if state.flow.window is not None:
        window = state.flow.window
        yield metric("gauge", "window_records", "Records that may wait for their commit.", window.size)
        yield metric("gauge", "window_target_seconds", "What the window aims at.", window.target_s)
        yield metric("gauge", "window_wait_seconds", "How long a record waits for its commit.", window.wait_s)
        yield metric("gauge", "window_commit_rate", "Records that are committed in a second.", window.rate)


def _late(gateway: GatewayPerformer, stream: RegisteredStream) -> int | None:
    """Return the number of records of the stream that were later than its watermark. None in the order of arrival,
    where no record is late."""
    return None if gateway.ordering is None else gateway.ordering.order.late[stream.stream_id]


def _credits_held(gateway: GatewayPerformer, session: int | None) -> int | None:
    """Return the credits that the session holds. None if there is no such session, or it has not sent HELLO yet."""
    holder = None if session is None else gateway.state.sessions.get(session)
    return gateway.state.limits.credits_max - holder.owed if holder is not None and holder.is_streaming else None


def _of_streams(gateway: GatewayPerformer) -> Iterator[Metric]:
    streams_max = gateway.config.metrics_streams_max
    apart = list(itertools.islice(gateway.state.registry, streams_max))
    others = list(itertools.islice(gateway.state.registry, streams_max, None))

    def metric(
        kind: Kind,
        what: str,
        text: str,
        value: Callable[[RegisteredStream, StreamCount], float | None],
        *,
        is_sum: bool,
    ) -> Metric:
        def value_of(stream: RegisteredStream) -> float | None:
            return value(stream, gateway.tally[stream.stream_id])

        values = [((gateway.name, str(stream.stream_id), stream.name), value_of(stream)) for stream in apart]
        if others and is_sum:
            values.append(((gateway.name, OTHERS, ""), sum(filter(None, map(value_of, others)))))
        known = [(labels, float(found)) for labels, found in values if found is not None]
        return Metric(f"procession_stream_{what}", kind, text, ("gateway", "stream", "name"), known)

    yield metric("counter", "frames", "MESSAGE frames received.", lambda _, found: found.frames, is_sum=True)
    yield metric("counter", "bytes", "Bytes of keys and payloads received.", lambda _, found: found.bytes, is_sum=True)
    if gateway.ordering is not None:
        text = "Records that arrived below its watermark."
        yield metric("counter", "late_records", text, lambda stream, _: _late(gateway, stream), is_sum=True)
    yield metric("counter", "notify_refused", "NOTIFYs refused.", lambda _, found: found.refused, is_sum=True)
    yield metric("gauge", "lag_records", "Rows not committed.", lambda _, found: found.behind.rows, is_sum=True)
    yield metric(
        "gauge", "open", "1 if a session may send on it.", lambda stream, _: stream.state == "open", is_sum=True
    )
    yield metric(
        "gauge",
        "credits_out",
        "Credits that the session which has it open holds, for all of its streams.",
        lambda stream, _: _credits_held(gateway, stream.session),
        is_sum=False,
    )
    # A message id has 64 bits, and a figure has 53. Above 2^53, the figure is only near the id.
    yield metric(
        "gauge", "committed_id", "The last committed message id.", lambda stream, _: stream.committed, is_sum=False
    )
    yield metric("gauge", "seen_id", "The last message id received.", lambda stream, _: stream.seen, is_sum=False)
