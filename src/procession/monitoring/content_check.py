"""Compares the contents of a passthrough pipeline's output with its input files, for the snapshot and the dashboard.

Invariant: each poll reads only output that was committed since the last poll (`verify/live_check`). Contents are
compared only if the output must equal the input byte for byte: the pipeline has never had a stage between source and
sink (`run_details`), and all its streams are files of this machine. Otherwise, or with more than `bytes_max` bytes of
input, there is no verdict on contents; `procession verify` can compare them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from procession.connectors.file_source import stream_id_of
from procession.deployment.run_details import read_details
from procession.errors import ProcessionError
from procession.gateway.gateway_directory import load_snapshot
from procession.storage.driver_claim import checkpoint_of
from procession.storage.secret import GATEWAY
from procession.verify.comparison import ComparisonRequest
from procession.verify.live_check import LiveCheck
from procession.verify.order import PromisedOrder
from procession.verify.verdict import Outcome, worst

BYTES_MAX = 16 * 1024 * 1024
"""Maximum size of the input that a single snapshot compares."""
STAYING_BYTES_MAX = 1024 * 1024 * 1024
"""Maximum size of the input for a long-lived reader, such as the dashboard, which reads each byte only once."""


class ContentCheck:
    """The check of the pipeline in a directory. Call `poll` whenever a snapshot is taken."""

    def __init__(self, directory: Path, bytes_max: int = BYTES_MAX) -> None:
        self._directory = directory
        self._bytes_max = bytes_max
        self._checks: dict[str, LiveCheck] = {}
        self._known: tuple[Any, ...] = ()

    def poll(self) -> dict[str, Any] | None:
        """Return the verdict on the contents so far. None if contents cannot be compared."""
        outputs = read_details(self._directory).get("passthrough") or {}
        inputs = self._inputs() if outputs else []
        if not inputs:
            return None
        if sum(path.stat().st_size for path in inputs) > self._bytes_max:
            why = f"the input has more than {self._bytes_max:,} bytes; `procession verify` compares it"
            return {
                "outcome": Outcome.UNKNOWN.value,
                "records": 0,
                "lost": 0,
                "doubled": 0,
                "disordered": 0,
                "why": why,
            }
        known = (inputs, outputs, _changed_ns(self._directory / "rolled-back.json"))
        if known != self._known:
            self.close()
            self._known = known
            self._checks = {name: self._check(inputs, output) for name, output in outputs.items()}
        reports = {name: check.poll() for name, check in self._checks.items()}
        verdicts = [output.verdict for report in reports.values() for output in report.outputs]
        outcome = worst(report.outcome for report in reports.values())
        wrong = next((name for name, report in reports.items() if report.outcome is Outcome.VIOLATED), None)
        lines = [] if wrong is None else reports[wrong].text().splitlines()
        return {
            "outcome": outcome.value,
            "records": min((verdict.records for verdict in verdicts), default=0),
            **{kind: sum(getattr(verdict, kind) for verdict in verdicts) for kind in ("lost", "doubled", "disordered")},
            "why": "; ".join(line.strip() for line in lines[:3]),
        }

    def close(self) -> None:
        for check in self._checks.values():
            check.close()
        self._checks = {}

    def _check(self, inputs: list[Path], output: dict[str, str]) -> LiveCheck:
        return LiveCheck(
            ComparisonRequest(
                inputs,
                Path(output["directory"]),
                output["instance"],
                PromisedOrder(output["order"]),
                checkpoint=checkpoint_of(self._directory),
            )
        )

    def _inputs(self) -> list[Path]:
        """Return the files of the streams. Empty if a stream is not a file of this machine."""
        try:
            snapshot = load_snapshot(self._directory / GATEWAY)
        except ProcessionError:
            return []
        found = []
        for stream, position in sorted((snapshot.streams if snapshot is not None else {}).items()):
            path = Path(position.name)
            if not path.is_absolute() or stream_id_of(path) != stream or not path.is_file():
                return []
            found.append(path)
        return found


def _changed_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
