"""What can be set about a source's client. The one rule: every limit has a name here, with its unit last."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from procession.sdk.backoff import FIRST_S, LIMIT_S
from procession.sdk.batching import GatherLimits
from procession.sdk.source_report import Report
from procession.tls import ClientTls


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Who we are, how fast we send, how much we hold, and how long we wait."""

    program: str
    """What this is, for the gateway's log."""
    instance: str
    """Which one of them this is."""
    cookie: bytes = field(default=b"", repr=False)
    """The secret that both sides must show; empty if there is none."""
    tls: ClientTls | None = None
    """Whom to trust, and what to show; without it nothing is encrypted."""
    dialect: str = "v3"
    """What is spoken: `v3` or `draft`. Ephemeral streams need the draft."""
    rate: float | None = None
    """Records a second, all streams together; as fast as they are taken if None."""
    is_stamping: bool = False
    """Each record's event time is when it is sent, in nanoseconds since 1970."""
    acks: Path | None = None
    """Every acknowledgement that is heard is noted down in this file (sdk/ack_log)."""

    gather: GatherLimits = field(default_factory=GatherLimits)
    """How records that come one by one are put together."""
    write_records_max: int = 16 * 1024
    write_bytes_max: int = 1024 * 1024
    """What is encoded and written at once: so many records and bytes, one record at least."""
    streams_at_once_max: int = 64
    """So many streams are read at the same time; the others wait until one of them has ended."""

    connect_timeout_s: float = 10.0
    handshake_timeout_s: float = 10.0
    farewell_timeout_s: float = 5.0
    """How long the gateway may take to connect, to answer HELLO, and to close when all is done."""
    backoff_first_s: float = FIRST_S
    backoff_limit_s: float = LIMIT_S
    """The bounds of the waits between two tries."""
    patience_s: float | None = None
    """Without a session for so long, it is given up with an error; never if None."""
    stop_wait_s: float = 30.0
    """Where the first signal only ends the taking in: so long is waited for the rest; for ever if it is infinite."""
    complaints_max: int = 5
    """So many sessions in a row that the gateway ended with an error, and nothing committed between."""

    report: Callable[[Report], None] | None = None
    """Is told how far it is, every `report_interval_s` and at the end."""
    report_interval_s: float = 1.0
