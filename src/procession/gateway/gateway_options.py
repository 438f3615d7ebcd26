"""Options of a gateway. Invariant: the limit of every buffer has a name here, with its unit last."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from procession.gateway.gateway_limits import MIB, Limits
from procession.merge.event_time import DeclaredOrder
from procession.metrics import Figures
from procession.storage.segment import INGRESS, ORDERED, LogUse
from procession.tls import ClientTls, ServerTls
from procession.wire.frame_codec import FRAME_BYTES_MAX


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    directory: Path
    listen: str = "127.0.0.1:7100"
    control: str = ""
    """Control address, HOST:PORT. Empty: a socket file in the directory."""
    limits: Limits = field(default_factory=Limits)
    tls: ServerTls | None = None
    """Server certificate and client authority. None: no encryption."""
    declared: DeclaredOrder | None = None
    """The streams to merge by event time. None: order of arrival."""
    stall_s: float = 10.0
    """Time without progress of the merge, while records wait, after which the log names the missing stream."""
    disk_free_bytes_min: int = 64 * MIB
    """Producers get no credits while the disk has fewer free bytes than this."""
    frame_bytes_max: int = FRAME_BYTES_MAX
    read_bytes_max: int = MIB
    """Size of the shared read buffer. Its bytes are read from a socket at once and decoded together."""
    segment_bytes_max: int = 64 * MIB
    append_bytes_max: int = MIB
    """Maximum bytes of received records that wait to be written together. `append_delay_s` limits the time."""
    append_delay_s: float = 0.002
    write_bytes_max: int = 4 * MIB
    """Maximum bytes that a peer may leave unread before it is disconnected."""
    request_bytes_max: int = 16 * MIB
    controls_max: int = 64
    metrics: str = ""
    """Address of the Prometheus metrics, HOST:PORT. Empty: none."""
    metrics_streams_max: int = 10_000
    """Maximum number of streams with their own metrics. The metrics of all other streams are added up."""
    metrics_timeout_s: float = 10.0
    """Time that a reader of metrics waits for the event loop."""
    handshake_timeout_s: float = 10.0
    ack_interval_s: float = 1.0
    linger_s: float = 1.0
    """Time that a peer has to read the last frame before the connection is closed."""
    lingering_max: int = 64
    """Maximum number of refused connections that are still open. Only these and the sessions use descriptors."""
    name: str = ""
    """Name among several gateways. Empty: the leader chooses it."""
    join: str | Path | None = None
    """Control address or directory of the leader. None: this gateway is the leader of any other gateways."""
    link_tls: ClientTls | None = None
    """TLS to the leader."""
    advertise: str = ""
    """Host at which other machines reach this gateway. Empty: the host where it listens."""
    flight: str = ""
    """Arrow Flight address of its log. Empty: the log can be read only from its directory."""
    machine: str = ""
    """Machine whose executors read the log's files. Empty: this machine."""
    checkpoint: Path | None = None
    """The checkpoint in which drivers claim their fences. None: unknown, and every fence with the right secret is
    accepted."""
    more_metrics: Figures | None = None
    """Returns figures of the pipeline, which are served with the gateway's figures. Called in the serving thread."""
    link_interval_s: float = 0.5
    """Interval of heartbeats to the leader."""
    link_timeout_s: float = 10.0
    """Time without a message after which leader and gateway treat the link as lost."""
    control_cookie: bytes = field(default=b"", repr=False)
    """Secret of the control port and of Arrow Flight. This gateway sends it to its leader, too."""
    silence_s: float = 30.0
    """Time that a peer's machine may be unreachable before its streams are released."""

    @property
    def log_directory(self) -> Path:
        return self.directory / "log"

    @property
    def ordered_directory(self) -> Path:
        return self.directory / "ordered"

    @property
    def offered_directory(self) -> Path:
        """Directory of the log that the driver reads."""
        return self.log_directory if self.declared is None else self.ordered_directory

    @property
    def offered_use(self) -> LogUse:
        return INGRESS if self.declared is None else ORDERED
