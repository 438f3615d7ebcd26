"""A fake cluster that reports what a test sets, for tests of the monitor and the harness."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from procession.chaos.cluster_view import Death
from procession.chaos.fair_clock import CpuTime
from procession.commit.round_record import RoundRecord, SinkShare
from procession.commit.transaction_id import TransactionId
from procession.connectors.file_source import stream_id_of
from procession.storage.journal import encode
from procession.verify.decided import Decisions

CHECKPOINT = "0123456789ab"


class FakeSupervisor:
    """A supervisor whose parts all run, and whose producers are all done at once."""

    def __init__(self) -> None:
        self.deaths: list[Death] = []
        self.held: set[str] = set()

    def watch(self, timeout_s: float) -> bool:
        return True

    def has(self, name: str) -> bool:
        return True

    def is_done(self, name: str) -> bool:
        return name.startswith("source")

    def pid(self, name: str) -> int | None:
        return 1

    def forget(self, name: str) -> None:
        pass


class FakeProxies:
    def lift_all(self) -> None:
        pass


class FakeCluster:
    """Two sinks, a checkpoint, producers and a gateway. The records of a producer are committed at once, except its
    last `swallowed` records."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.supervisor = FakeSupervisor()
        self.proxies = FakeProxies()
        self.heard: dict[int, int] = {}
        self.gateway_says: list[dict[str, Any]] = []
        self.positions: dict[int, int] | None = {}
        self.rounds: dict[int, RoundRecord] = {}
        self.committed = -1
        self.swallowed = 0
        self.is_incomplete = False
        self._end = 0

    def commit(self, path: Path, records: int | None = None) -> None:
        """Make the first records of the file visible at both sinks, as decided."""
        lines = path.read_bytes().splitlines()[:records]
        data = b"".join(line + b" 00000000\n" for line in lines)
        start, self._end = self._end, self._end + len(data)
        self.committed += 1
        parts = {}
        for side, instance in self.instances().items():
            txn = str(TransactionId(self.committed, 1, 0, CHECKPOINT, "chaos", side))
            parts[side] = SinkShare(txn, start, self._end)
            with instance.with_suffix(".data").open("ab") as file:
                file.write(data)
            with instance.with_suffix(".txnlog").open("ab") as log:
                log.write(encode({"op": "phase1", "txn": txn, "start": start, "end": self._end, "vote": True}))
                log.write(encode({"op": "phase2", "txn": txn, "commit": True}))
        self.rounds[self.committed] = RoundRecord(self.committed, 1, "", 0, 0, parts)

    def acknowledge(self, path: Path, last: int) -> None:
        """Acknowledge the producer's records up to `last`, as decided."""
        assert self.positions is not None
        self.heard[stream_id_of(path)] = self.positions[stream_id_of(path)] = last

    def start_source(self, name: str, path: Path, rate: float | None, gateways: Sequence[str]) -> None:
        lines = path.read_bytes().splitlines(keepends=True)
        self.commit(path, len(lines) - self.swallowed)
        self.acknowledge(path, sum(map(len, lines[:-1])))

    def instances(self) -> dict[str, Path]:
        return {side: self.directory / side for side in ("left", "right")}

    def decisions(self, visible: object) -> Decisions:
        return Decisions(CHECKPOINT, self.committed, self.rounds)

    def statuses(self) -> dict[str, dict[str, Any]]:
        return {"gateway": {"streams": self.gateway_says, "records_in": 1}}

    def acknowledged(self) -> Mapping[int, int]:
        return self.heard

    def decided_positions(self) -> Mapping[int, int] | None:
        return self.positions

    def new_epochs(self) -> list[dict[str, Any]]:
        return []

    def cpu_time(self) -> CpuTime:
        return CpuTime()

    def fence(self) -> int:
        return 1

    def gateways(self) -> list[str]:
        return []

    def log_tails(self) -> str:
        return "the events of all parts"

    def set_clocks_right(self) -> None:
        pass

    def use_master(self, master: str) -> None:
        pass
