"""Each epoch is one trace, whose spans have the times of its phases; a collector gets them as OTLP in JSON."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from procession.cli.main import app
from procession.commit.checkpoint import Checkpoint
from procession.driver.driver_reports import EPOCHS
from procession.errors import ConfigError
from procession.monitoring.epoch_traces import EpochTraces, send

SECOND = 1_000_000_000
FACTS: dict[str, Any] = {"id": "c", "fence": 2, "records": 10, "bytes_out": 99, "committed_ns": 100 * SECOND}
PHASES = {"wait_s": 1.0, "run_s": 2.0, "phase1_s": {"out": 3.0, "copy": 1.0}, "record_s": 0.5, "decision_s": 0.25}


def write(directory: Path, *lines: dict[str, Any]) -> None:
    with (directory / EPOCHS).open("a") as file:
        file.writelines(json.dumps(FACTS | line) + "\n" for line in lines)


@contextmanager
def collector(status: int = 200) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    got: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", got
    finally:
        server.shutdown()
        server.server_close()


def test_the_phases_of_an_epoch_follow_each_other_in_one_trace(tmp_path: Path) -> None:
    write(tmp_path, {"epoch": 7, "phases": PHASES})
    spans = list(EpochTraces(tmp_path).new())
    times = {
        (span["name"], *(at["value"]["stringValue"] for at in span["attributes"] if at["key"] == "procession.sink")): (
            int(span["startTimeUnixNano"]) / SECOND,
            int(span["endTimeUnixNano"]) / SECOND,
        )
        for span in spans
    }
    assert times == {
        ("epoch",): (94.25, 100.0),
        ("run",): (94.25, 96.25),
        ("phase 1", "out"): (96.25, 99.25),
        ("phase 1", "copy"): (96.25, 97.25),
        ("round record",): (99.25, 99.75),
        ("decision",): (99.75, 100.0),
    }
    assert len({span["traceId"] for span in spans}) == 1
    assert len({span["spanId"] for span in spans}) == len(spans)
    assert {span.get("parentSpanId") for span in spans} == {None, spans[0]["spanId"]}
    assert list(EpochTraces(tmp_path).new()) == spans  # a repeated export is the same


def test_phase_2_belongs_to_the_epoch_before_and_filled_epochs_have_no_trace(tmp_path: Path) -> None:
    traces = EpochTraces(tmp_path)
    write(tmp_path, {"epoch": 7, "phases": PHASES})
    first = list(traces.new())
    write(tmp_path, {"epoch": 8, "is_filled": True, "phase2_before_s": {"out": 0.5}})
    (second,) = traces.new()
    assert (second["name"], second["traceId"]) == ("phase 2", first[0]["traceId"])
    assert second["endTimeUnixNano"] == str(100 * SECOND + SECOND // 2)
    assert list(EpochTraces(tmp_path, from_now=True).new()) == []


def test_the_command_sends_the_history_to_a_collector(tmp_path: Path) -> None:
    Checkpoint.claim(tmp_path / "checkpoint", name="orders", fingerprint="f")
    write(tmp_path, *({"epoch": epoch, "phases": PHASES} for epoch in range(200)))
    with collector() as (url, got):
        done = CliRunner().invoke(app, ["traces", "--dir", str(tmp_path), "--once", "--to", url])
    assert done.stdout == f"sent 1,200 spans to {url}\n", done.exception
    assert [len(body["resourceSpans"][0]["scopeSpans"][0]["spans"]) for body in got] == [512, 512, 176]
    named = {at["key"]: at["value"]["stringValue"] for at in got[0]["resourceSpans"][0]["resource"]["attributes"]}
    assert named == {"service.name": "procession", "procession.pipeline": "orders"}


def test_a_collector_that_refuses_or_is_away_is_reported_in_one_sentence(tmp_path: Path) -> None:
    with collector(404) as (url, _), pytest.raises(ConfigError, match="refused the traces: 404"):
        send([{}], "p", url)
    with pytest.raises(ConfigError, match="cannot be reached"):
        send([{}], "p", url)
    with pytest.raises(ConfigError, match="is not an address"):
        send([{}], "p", "file:///etc")
