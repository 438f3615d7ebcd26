"""Checks that each committed round of a pipeline starts exactly where the previous round ended. Pure.

Invariant: only compared rounds count as proved. If a round is missing, the verdict is unknown with the reason, never
clean. The check compares the history, which has the positions of each round, with the positions of the gateways and
of the sinks' logs. It compares positions and counters, not contents; `verify/verifier` compares contents. Used by
`monitoring/pipeline_snapshot`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from procession.verify.verdict import Outcome

FINDINGS_MAX = 20
"""Maximum number of findings that are kept. All findings are counted."""

ENDS_KEPT = 1_000
"""Number of latest rounds whose ends are kept, to find the round that a sink or gateway has reached."""


@dataclass(frozen=True)
class HeldOutput:
    """The committed end of an output, from the sink's log."""

    sink: str
    end: int


@dataclass(frozen=True)
class HeldInput:
    """A gateway's answer: the last epoch that it knows as committed, and the end of that epoch in its log."""

    gateway: str
    epoch: int
    end: int


@dataclass(frozen=True)
class RecordedRound:
    """The last committed round in the checkpoint: its last row and the end of each sink's output."""

    epoch: int
    last: int
    sinks: Mapping[str, int] = field(default_factory=dict)


@dataclass
class HistoryCheck:
    """Checks the rounds of one checkpoint, which are added in order with `add`."""

    checkpoint: str = ""
    first_epoch: int | None = None
    """The first round that was compared."""
    last: Mapping[str, Any] | None = None
    rounds: int = 0
    missing: int = 0
    """Number of rounds between the first and the last one that are missing in the history."""
    lost: int = 0
    doubled: int = 0
    disordered: int = 0
    findings: list[str] = field(default_factory=list)
    _ends: deque[tuple[int, Mapping[str, int], Mapping[str, int]]] = field(
        default_factory=lambda: deque(maxlen=ENDS_KEPT)
    )

    def add(self, line: Mapping[str, Any]) -> None:
        """Check the next round. Old lines without the ends of sinks are skipped."""
        if "sinks" not in line:
            return
        if line["id"] != self.checkpoint:
            vars(self).update(vars(HistoryCheck(str(line["id"]))))  # another pipeline was started in this directory
        if "rolled_back_to" in line:  # later commits are undone: rounds continue from what is left
            self.last = line
            self._ends.clear()
            self._ends.append((line["epoch"], _ends_of(line), line["ends"]))
            return
        if self.last is not None and line["epoch"] <= self.last["epoch"]:
            self._again(line)
            return
        if self.first_epoch is None:
            self.first_epoch = line["epoch"]
        if self.last is not None:
            self._compare(self.last, line)
        elif line["epoch"] == 0:
            self._compare({"epoch": -1, "fence": 0, "last": 0, "sinks": {}, "ends": {}, "records_in": 0}, line)
        self.last = line
        self.rounds += 1
        self._ends.append((line["epoch"], _ends_of(line), line["ends"]))

    def _again(self, line: Mapping[str, Any]) -> None:
        """Compare a line with an earlier line of the same round, which a replaced driver has logged. Both must have
        the same ends."""
        for epoch, sinks, gateways in self._ends:
            if epoch == line["epoch"] and (sinks, gateways) != (_ends_of(line), line["ends"]):
                self._found("doubled", 1, f"epoch {epoch} was committed twice, with different ends")

    def _compare(self, before: Mapping[str, Any], line: Mapping[str, Any]) -> None:
        epoch = line["epoch"]
        if epoch != before["epoch"] + 1:
            self.missing += epoch - before["epoch"] - 1
            return
        self._joined(f"the input of epoch {epoch}", before["last"], line["first"], "rows")
        if line["last"] < line["first"]:
            self._found("disordered", 1, f"epoch {epoch} ends at row {line['last']}, before its start {line['first']}")
        rows = 0
        for gateway, end in line["ends"].items():
            start = before["ends"].get(gateway, 0)
            rows += end - start
            if end < start:
                self._found(
                    "doubled", start - end, f"epoch {epoch} goes back in the log of {gateway}: {start} to {end}"
                )
        if rows != line["last"] - line["first"]:
            what = f"epoch {epoch} has {line['last'] - line['first']} rows, and its parts in the logs have {rows}"
            self._found("lost" if rows < line["last"] - line["first"] else "doubled", 1, what)
        for sink, (start, _) in line["sinks"].items():
            self._joined(f"the output of epoch {epoch} at sink {sink!r}", _end_of(before, sink), start, "bytes")
        for sink in before["sinks"]:
            if sink not in line["sinks"] and line["fence"] == before["fence"]:  # a new driver may have another plan
                self._found("lost", 1, f"epoch {epoch} has no output for sink {sink!r}")
        self._counted(before, line)
        for stream, position in line.get("positions", {}).items():
            if (reached := before.get("positions", {}).get(stream)) is not None and position < reached:
                what = f"epoch {epoch} takes stream {stream} back from message {reached} to {position}"
                self._found("disordered", 1, what)
        if line["fence"] < before["fence"]:
            self._found(
                "disordered", 1, f"driver {line['fence']} committed epoch {epoch} after driver {before['fence']}"
            )

    def _counted(self, before: Mapping[str, Any], line: Mapping[str, Any]) -> None:
        counted = line["records_in"] - before["records_in"]
        if counted > line["last"] - line["first"] or counted < 0:
            kind = "doubled" if counted > 0 else "lost"
            what = f"epoch {line['epoch']} counts {counted} records in {line['last'] - line['first']} rows"
            self._found(kind, abs(counted - (line["last"] - line["first"])), what)

    def _joined(self, what: str, end: int, start: int, unit: str) -> None:
        if start > end:
            self._found("lost", start - end, f"{what} begins at {start}, {start - end} {unit} after the end before it")
        elif start < end:
            self._found(
                "doubled", end - start, f"{what} begins at {start}, {end - start} {unit} before the end before it"
            )

    def _found(self, kind: str, count: int, what: str) -> None:
        setattr(self, kind, getattr(self, kind) + count)
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(what)

    def verdict(
        self,
        outputs: Iterable[HeldOutput] = (),
        inputs: Iterable[HeldInput] = (),
        unknown: Iterable[str] = (),
        recorded: RecordedRound | None = None,
    ) -> dict[str, Any]:
        """Return the verdict so far. `outputs` and `inputs` are the positions of the sinks and gateways before the
        last round was read. `unknown` has the reasons why parts could not be compared; `recorded` is the last
        committed round in the checkpoint."""
        live = HistoryCheck(findings=list(self.findings))
        reasons = list(unknown)
        last = self.last
        proved = -1 if last is None else int(last["epoch"])
        if last is None:
            reasons.append("no epoch is committed yet")
        if self.missing:
            reasons.append(f"{self.missing:,} rounds are missing in the history")
        for held in outputs:
            proved = min(proved, self._output(live, held, recorded))
        for gateway in inputs:
            proved = min(proved, self._input(live, gateway))
        if (
            recorded is not None
            and last is not None
            and recorded.epoch == last["epoch"]
            and recorded.last != last["last"]
        ):
            what = (
                f"epoch {recorded.epoch} ends at row {last['last']} in the history, {recorded.last} in the checkpoint"
            )
            live._found("lost", abs(recorded.last - last["last"]), what)
        counts = {kind: getattr(self, kind) + getattr(live, kind) for kind in ("lost", "doubled", "disordered")}
        outcome = Outcome.VIOLATED if any(counts.values()) else Outcome.UNKNOWN if reasons else Outcome.CLEAN
        return {
            "outcome": outcome.value,
            **counts,
            "records": 0 if last is None else last["records_in"],
            "proved_epoch": None if proved < 0 else proved,
            "since_epoch": self.first_epoch,
            "why": live.findings if outcome is Outcome.VIOLATED else reasons,
        }

    def _output(self, live: HistoryCheck, held: HeldOutput, recorded: RecordedRound | None) -> int:
        """Return the last round in the sink's committed output."""
        if recorded is not None and recorded.sinks.get(held.sink) == held.end:
            return recorded.epoch  # it may not be in the history yet
        for epoch, ends, _ in reversed(self._ends):
            if held.end == ends.get(held.sink, 0):
                return epoch
        if self._ends and held.end < self._ends[0][1].get(held.sink, 0):
            what = f"sink {held.sink!r} holds {held.end} bytes, less than epoch {self._ends[0][0]} had committed"
            live._found("lost", self._ends[0][1].get(held.sink, 0) - held.end, what)
        elif self._ends:
            live._found(
                "doubled", 1, f"sink {held.sink!r} holds {held.end} bytes, which is the end of no committed round"
            )
        return -1

    def _input(self, live: HistoryCheck, held: HeldInput) -> int:
        """Return the last round that the gateway has acknowledged to its producers."""
        for epoch, _, ends in reversed(self._ends):
            if epoch == held.epoch:
                if held.end > ends.get(held.gateway, 0):
                    more = held.end - ends.get(held.gateway, 0)
                    live._found(
                        "lost", more, f"{held.gateway} has acknowledged {more} rows that epoch {epoch} did not commit"
                    )
                return epoch
        return held.epoch if self.last is not None and held.epoch > self.last["epoch"] else min(held.epoch, -1)


def _ends_of(line: Mapping[str, Any]) -> dict[str, int]:
    return {name: end for name, (_, end) in line["sinks"].items()}


def _end_of(line: Mapping[str, Any], sink: str) -> int:
    found = line["sinks"].get(sink)
    return 0 if found is None else int(found[1])
