"""Reads the progress of a pipeline from its gateway and its epoch log, and displays it.

Invariant: this module only reads. If a read fails, the display shows the last values. The output is a live table on a
terminal, a line at intervals in a pipe, or nothing.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console, RenderableType
from rich.live import Live
from rich.table import Table

from procession.commit.epoch_totals import LATE_AT
from procession.driver.epoch_log import EpochTail, Latency
from procession.errors import ProcessionError
from procession.gateway.control_client import ControlClient
from procession.gateway.listen_address import ADDRESS_FILE
from procession.tls import ClientTls

WINDOW_S = 3.0
LINE_INTERVAL_S = 5.0
PATIENCE_S = 0.2
GATEWAY = "gateway"
"""The directory of the first gateway. The others have a number as suffix."""


@dataclass
class PipelineProgress:
    """The progress of a pipeline since the first poll."""

    directory: Path
    cookie: bytes = b""
    tls: ClientTls | None = None
    patience_s: float = PATIENCE_S
    """Seconds to wait for the answer of a gateway."""
    gateways: Path | None = None
    """The directory with the gateways' directories. None: the pipeline's directory."""
    records_in: int = 0
    committed: int = 0
    late: int = 0
    """Committed records that were behind the watermark of their stream."""
    late_at: Mapping[str, int] = field(default_factory=dict)
    """Late records by stage, for stages with a watermark."""
    epochs: int = 0
    away: tuple[str, ...] = ()
    """Gateways that the leader cannot reach. With event-time order no record is emitted until they are reachable."""
    disks_low: tuple[Path, ...] = ()
    """Directories of gateways whose disk has fewer free bytes than `disk_free_bytes_min`. Their producers wait."""
    paused: tuple[str, ...] = ()
    """Gateways that an operator has paused."""
    latency: Latency = field(default_factory=Latency)
    statuses: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The last answer of each local gateway that answers."""
    members: list[dict[str, Any]] = field(default_factory=list)
    """All gateways, as the first gateway lists them."""
    on_epoch: Callable[[dict[str, Any]], None] = lambda line: None
    """Called with each line of the epoch log, once."""
    _end: int = 0
    """The number of the first record that is not committed."""
    _recent: deque[tuple[float, int]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self._gateways = self.gateways or self.directory
        self._clients = {GATEWAY: self._client(self._gateways / GATEWAY)}
        self._waiting: dict[str, int] = {}
        """The end of each gateway's log, without rows for the ends of streams."""
        self._tail = EpochTail(self.directory / "epochs.jsonl")

    def _client(self, gateway: Path) -> ControlClient:
        return ControlClient(gateway, self.cookie, self.patience_s, tls=self.tls)

    @classmethod
    def from_now(
        cls,
        directory: Path,
        cookie: bytes = b"",
        tls: ClientTls | None = None,
        patience_s: float = PATIENCE_S,
        gateways: Path | None = None,
        on_epoch: Callable[[dict[str, Any]], None] = lambda line: None,
    ) -> Self:
        """Continue the counts of earlier runs, and measure rates and latencies from now on."""
        progress = cls(directory, cookie, tls, patience_s, gateways, on_epoch=on_epoch)
        progress.read_epochs()
        progress.latency = Latency()
        return progress

    def poll(self) -> Self:
        """Read the progress again."""
        self.read_epochs()
        for path in self._gateways.glob(f"{GATEWAY}-*/{ADDRESS_FILE}"):
            if path.parent.name not in self._clients:
                self._clients[path.parent.name] = self._client(path.parent)
        low, paused = set(self.disks_low), set(self.paused)
        for name, client in self._clients.items():
            try:
                self.statuses[name] = status = client.status()
                (low.add if status.get("is_disk_short") else low.discard)(self._gateways / name)
                (paused.add if status.get("is_paused") else paused.discard)(name)
                # Ends of streams have sequence numbers too, but do not count as committed records.
                ends = sum(stream["state"] == "ending" for stream in status["streams"])
                self._waiting[name] = _rows(status) - ends
                if name == GATEWAY:
                    self.members = client.gateways()
                    self.away = tuple(member["name"] for member in self.members if not member["is_connected"])
            except ProcessionError:
                self.statuses.pop(name, None)
                client.close()
        self.disks_low, self.paused = tuple(sorted(low)), tuple(sorted(paused))
        # Do not keep the maximum: between two reads, the end of a stream or a moving stream may count twice.
        self.records_in = self.committed + self.waiting(self._end)
        now = time.monotonic()
        self._recent.append((now, self.committed))
        while now - self._recent[0][0] > WINDOW_S:
            self._recent.popleft()
        return self

    def clients(self) -> list[ControlClient]:
        """Return a client of each gateway of this machine."""
        return list(self._clients.values())

    @property
    def is_answered(self) -> bool:
        """Whether every gateway has answered at least once."""
        return self._waiting.keys() == self._clients.keys()

    def waiting(self, end: int) -> int:
        """Return the number of received records from this sequence number on."""
        return max(0, sum(self._waiting.values()) - end)

    def ready_records(self, end: int) -> int:
        """Return how many received records from this number on the next epochs can take. In event-time order, records
        that wait for other streams do not count."""
        held = sum(int(status.get("waiting_records", 0)) for status in self.statuses.values())
        return max(0, self.waiting(end) - held)

    def read_epochs(self) -> None:
        """Read new lines of the epoch log."""
        for line in self._tail.new():
            self.on_epoch(line)
            self.latency.add(line)
            self.epochs = max(self.epochs, line["epoch"] + 1)
            self.committed, self._end = line["records_in"], line["last"]
            self.late = line.get("late", 0)
            self.late_at = {name[len(LATE_AT) :]: line[name] for name in line if name.startswith(LATE_AT)}

    @property
    def rate(self) -> float:
        """Return the committed records per second over the last WINDOW_S seconds."""
        (before, fewer), (now, more) = self._recent[0], self._recent[-1]
        return (more - fewer) / (now - before) if now > before else 0.0

    def latency_ms(self, share: float) -> float | None:
        return self.latency.quantile(share)


class LiveDisplay:
    """Shows cells on the standard error stream: as a live table on a terminal, elsewhere as a line at intervals."""

    def __init__(self, *, refreshes_per_second: float, is_silent: bool = False) -> None:
        self._console = Console(file=sys.stderr, quiet=is_silent, highlight=False)
        self._live = Live(console=self._console, refresh_per_second=refreshes_per_second, transient=True)

    def __enter__(self) -> Self:
        if self._console.is_terminal and not self._console.quiet:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    @property
    def is_live(self) -> bool:
        return self._live.is_started

    def say(self, sentence: str) -> None:
        self._console.print(sentence, markup=False, soft_wrap=True)

    def draw(self, picture: RenderableType) -> None:
        """Redraw the live table."""
        self._live.update(picture)

    def say_cells(self, cells: Mapping[str, str]) -> None:
        self.say(", ".join(f"{name} {value}" for name, value in cells.items()))


class Display(LiveDisplay):
    """Displays the progress of a pipeline."""

    def __init__(self, *, is_silent: bool = False) -> None:
        super().__init__(refreshes_per_second=8, is_silent=is_silent)
        self._next_line = 0.0
        self._disks_low: tuple[Path, ...] = ()
        self._paused: tuple[str, ...] = ()

    def show(self, progress: PipelineProgress, restarts: int) -> None:
        for path in set(progress.disks_low).difference(self._disks_low):
            self.say(f"the disk of {path} has fewer free bytes than disk_free_bytes_min: producers wait")
        for path in set(self._disks_low).difference(progress.disks_low):
            self.say(f"the disk of {path} has enough free space again: producers continue")
        self._disks_low = progress.disks_low
        for name in set(progress.paused).difference(self._paused):
            self.say(f"{name} is paused: producers wait until `procession resume --dir {progress.directory}`")
        for name in set(self._paused).difference(progress.paused):
            self.say(f"{name} is not paused any more: producers continue")
        self._paused = progress.paused
        cells = cells_of(progress, restarts)
        if self.is_live:
            self.draw(table_of(cells))
        elif time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + LINE_INTERVAL_S
            self.say_cells(cells)

    def show_end(self, progress: PipelineProgress, restarts: int) -> None:
        """Do nothing at the end of the run: the summary follows."""


def _rows(status: Mapping[str, Any]) -> int:
    """Return the end of a gateway's log. With event-time order it is the end of the ordered log plus the waiting rows:
    the arrival log also has rows about streams that moved."""
    end = int(status["next_sequence"])
    if "ordered_end" in status:
        return end - int(status["observed_end"]) + int(status["waiting_records"]) + int(status["ordered_end"])
    return end


def cells_of(progress: PipelineProgress, restarts: int) -> dict[str, str]:
    """Return the figures of a display, by their names."""
    p50, p99 = progress.latency_ms(0.5), progress.latency_ms(0.99)
    return {
        "records in": f"{progress.records_in:,}",
        "committed": f"{progress.committed:,}",
        **({"late": f"{late:,}"} if (late := progress.late + sum(progress.late_at.values())) else {}),
        "epochs": f"{progress.epochs:,}",
        "records/s": f"{progress.rate:,.0f}",
        "latency p50/p99": "-" if p50 is None or p99 is None else f"{p50:,.0f}/{p99:,.0f} ms",
        "restarts": str(restarts),
        **({"away": " ".join(progress.away)} if progress.away else {}),
        **({"paused": " ".join(progress.paused)} if progress.paused else {}),
        **({"disk low": " ".join(map(str, progress.disks_low))} if progress.disks_low else {}),
    }


def table_of(cells: Mapping[str, str]) -> Table:
    table = Table(show_edge=False)
    for name in cells:
        table.add_column(name, justify="right")
    table.add_row(*cells.values())
    return table
