"""The limits of a gateway's decisions: credits, sessions, streams, bytes. Pure.

Invariant: everything that `gateway/state` counts has a limit here, with its unit last in the name.
`gateway/gateway_options` includes them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from procession.wire.draft_messages import Extension

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True)
class Limits:
    """The options that decisions depend on."""

    cookie: bytes = field(default=b"", repr=False)
    credits: Literal["fixed", "adaptive"] = "fixed"
    """When credits are replenished: "fixed" as records are appended, "adaptive" as they are committed."""
    credits_max: int = 65536
    """Maximum credits per session. With too few, a fast producer of short records waits for credits in the middle of a
    read."""
    window_first: int = 16384
    """Initial size of an adaptive window, before the rate of commits is known. At most `credits_max`."""
    credits_min: int = 256
    """Minimum credits per session with an adaptive window, as long as any are left."""
    latency_target_s: float = 1.0
    """Target of an adaptive window: the time that a record waits for its commit."""
    backlog_max: int = 16 * 1024 * 1024
    """Maximum number of records that wait for their commit with an adaptive window."""
    sessions_max: int = 4096
    """Maximum number of connected producers. `procession bench producers` measures the cost of an idle one."""
    streams_max: int = 65536
    """Maximum number of known streams, without retired ones."""
    streams_retire_after_s: float = 3600.0
    """Idle time after which a stream is retired, if it is not open and all its records are committed."""
    streams_retired_max: int = 1_000_000
    """Maximum number of retired streams. Each takes about 200 bytes of memory and 24 on disk."""
    streams_retired_age_s: float = 30 * 24 * 3600.0
    """Minimum time that a retired stream is kept. Time in which the gateway does not run does not count."""
    lag_bytes_max: int = 1024 * MIB
    """Credits are withheld while more bytes than this are appended and not committed."""
    overrun_bytes_max: int = 64 * MIB
    """Bytes above `lag_bytes_max` that may still arrive on credits granted before. Above both, reading from producers
    stops."""
    stream_bytes_max: int = 0
    """With event-time order: maximum uncommitted bytes per stream. 0: an equal share of `lag_bytes_max`."""
    reserve_bytes_max: int = 64 * MIB
    """With event-time order: bytes above `lag_bytes_max` for the stream that the merge waits for."""
    held_bytes_max: int = 16 * MIB
    """Bytes that a session of the draft protocol may send without a stable point of reference."""
    listed_bytes_max: int = MIB
    """Maximum bytes of known streams in an OK of the draft protocol."""
    extensions: frozenset[Extension] = frozenset()
    """The extensions that sessions of the draft protocol may request: ACKs with counts, and frames that inject
    faults."""
