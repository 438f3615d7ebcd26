"""What can be set about a gateway. The one rule: every buffer's limit has a name here, with its unit last."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from procession.merge.event_time import Declared
from procession.storage.segment import INGRESS, ORDERED, Use
from procession.tls import ClientTls, ServerTls
from procession.wire.draft_messages import Extension
from procession.wire.frame_codec import FRAME_BYTES_MAX

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True)
class Limits:
    """What the decisions depend on; the pure half of the settings."""

    cookie: bytes = field(default=b"", repr=False)
    credits: Literal["fixed", "adaptive"] = "fixed"
    """Whether credits come back as soon as records are appended, or as the pipeline commits."""
    credits_max: int = 65536
    """With fewer, a fast producer of short records waits for credits before it has filled one read."""
    window_first: int = 16384
    """What an adaptive window begins with, before it knows how fast the pipeline commits; `credits_max` at most."""
    credits_min: int = 256
    """An adaptive window leaves a session no fewer credits, as long as it leaves any."""
    latency_target_s: float = 1.0
    """What an adaptive window aims at: how long a record waits for its commit."""
    backlog_max: int = 16 * 1024 * 1024
    """So many records an adaptive window lets wait for their commit, at most."""
    sessions_max: int = 4096
    """So many producers may be connected; `procession bench producers` says what an idle one costs."""
    streams_max: int = 65536
    lag_bytes_max: int = 1024 * MIB
    """Credits are withheld while more than this is appended and not committed."""
    overrun_bytes_max: int = 64 * MIB
    """So much above that may come on credits that were given before; then producers are not read."""
    stream_bytes_max: int = 0
    """In the order of event time: so much may wait of one stream; 0: an even share of `lag_bytes_max`."""
    reserve_bytes_max: int = 64 * MIB
    """In the order of event time: so much above `lag_bytes_max`, for whoever has the stream that is waited for."""
    held_bytes_max: int = 16 * MIB
    """So much a session of the draft may send without a stable point of reference."""
    listed_bytes_max: int = MIB
    """So many bytes of known streams are listed in the draft's OK."""
    extensions: frozenset[Extension] = frozenset()
    """What sessions of the draft may ask for: acks with counts, frames that inject faults."""


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    directory: Path
    listen: str = "127.0.0.1:7100"
    control: str = ""
    """Where the driver, other gateways and operators ask, HOST:PORT; empty: a socket file in the directory."""
    limits: Limits = Limits()
    tls: ServerTls | None = None
    """What producers, the driver and other gateways are shown, and must show; without it nothing is encrypted."""
    declared: Declared | None = None
    """The streams, if they are to be put in the order of event time; None: the order is that of arrival."""
    stall_s: float = 10.0
    """A merge that has taken nothing for so long, while records wait, names the stream that it waits for in the log."""
    disk_free_bytes_min: int = 64 * MIB
    """While the disk has less room than this, producers get no credits: they wait, instead of filling it."""
    frame_bytes_max: int = FRAME_BYTES_MAX
    read_bytes_max: int = MIB
    """The buffer that all sessions read into: so much is taken from a socket at once, and decoded together."""
    segment_bytes_max: int = 64 * MIB
    append_bytes_max: int = MIB
    """Received records are written together: when they are this many bytes, or after `append_delay_s`."""
    append_delay_s: float = 0.002
    write_bytes_max: int = 4 * MIB
    """A peer that leaves this much unread is dropped."""
    request_bytes_max: int = 16 * MIB
    controls_max: int = 64
    metrics: str = ""
    """Where Prometheus reads metrics, HOST:PORT; empty: nowhere."""
    metrics_streams_max: int = 10_000
    """So many streams have metrics of their own; those of the others are added up."""
    metrics_timeout_s: float = 10.0
    """So long a reader of metrics waits for the loop that has them."""
    handshake_timeout_s: float = 10.0
    ack_interval_s: float = 1.0
    linger_s: float = 1.0
    """How long a peer has to read our last word before the connection is cut."""
    lingering_max: int = 64
    """So many connections may be in that time at once; beyond the sessions, these are all that hold descriptors."""
    name: str = ""
    """What it is called among several gateways; the leader names it if it does not say."""
    join: str | Path | None = None
    """The control address of the leader, or its directory; None: this gateway leads, if there will be others."""
    link_tls: ClientTls | None = None
    """How to speak to the leader, if that one speaks TLS."""
    advertise: str = ""
    """The host by which others reach this gateway, if it is not the one where it listens."""
    flight: str = ""
    """Where its log can be fetched from over Arrow Flight; empty: only who has its directory can read it."""
    machine: str = ""
    """The machine whose executors may map the log's files; empty: the one it runs on."""
    checkpoint: Path | None = None
    """Where drivers claim their fences; None: it is not known here, and whoever shows the secret is believed."""
    link_interval_s: float = 0.5
    """How often a gateway shows the leader that it is there."""
    link_timeout_s: float = 10.0
    """How long leader and gateway wait for a word of the other before they take the link for lost."""
    control_cookie: bytes = field(default=b"", repr=False)
    """What the driver, other gateways, operators and who fetches the log must show; this gateway shows its leader the
    same."""
    silence_s: float = 30.0
    """How long a peer's machine may be unreachable before its streams are free for another session."""

    @property
    def log_directory(self) -> Path:
        return self.directory / "log"

    @property
    def ordered_directory(self) -> Path:
        return self.directory / "ordered"

    @property
    def offered_directory(self) -> Path:
        """Where the log is that the driver reads."""
        return self.log_directory if self.declared is None else self.ordered_directory

    @property
    def offered_use(self) -> Use:
        return INGRESS if self.declared is None else ORDERED
