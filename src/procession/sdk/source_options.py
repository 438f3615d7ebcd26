"""The options of a source's client. Invariant: each limit is a named option, with its unit last."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from procession.sdk.batching import GatherLimits
from procession.sdk.event_time_field import EventTimeField
from procession.sdk.pacing import FIRST_S, LIMIT_S
from procession.sdk.source_report import Report
from procession.tls import ClientTls


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Options of a source: its identity, rate, limits and timeouts."""

    program: str
    """Name of the program, for the gateway's log."""
    instance: str
    """Name of this instance of the program."""
    cookie: bytes = field(default=b"", repr=False)
    """The secret for producers. Empty if there is none."""
    tls: ClientTls | None = None
    """Trusted authority and client certificate. None: no encryption."""
    dialect: str = "v3"
    """Version of the protocol: `v3` or `draft`. Ephemeral streams need the draft."""
    rate: float | None = None
    """Maximum records per second over all streams. None: no limit."""
    is_stamping: bool = False
    """Use the time of sending as event time."""
    event_time: EventTimeField | None = None
    """Field of JSON payloads that has the event time. None: the source gives event times."""
    share: int | None = None
    """This source's share of the pipeline's stream ids (`sdk/source_share`). None: no share."""
    acks: Path | None = None
    """Log all acknowledgements to this file (`sdk/ack_log`)."""

    gather: GatherLimits = field(default_factory=GatherLimits)
    """Limits of the batches into which single records are collected."""
    write_records_max: int = 16 * 1024
    write_bytes_max: int = 1024 * 1024
    """Maximum records and bytes encoded at once. At least one record is always encoded."""
    streams_at_once_max: int = 64
    """Maximum number of streams read at the same time. Others wait until one has ended."""

    connect_timeout_s: float = 10.0
    handshake_timeout_s: float = 10.0
    close_timeout_s: float = 5.0
    """Time limits for connecting, for the answer to HELLO, and for closing at the end."""
    backoff_first_s: float = FIRST_S
    backoff_limit_s: float = LIMIT_S
    """Bounds of the wait between two attempts."""
    patience_s: float | None = None
    """Time without a session after which the source fails. None: never."""
    stop_wait_s: float = 30.0
    """Maximum time to wait for the commit of received records after the first signal. Infinity: no limit."""
    complaints_max: int = 5
    """Maximum number of sessions in a row that the gateway ends with an error, without a commit in between."""

    report: Callable[[Report], None] | None = None
    """Called with the progress every `report_interval_s` and at the end."""
    report_interval_s: float = 1.0
