"""Sends traces of epochs to OpenTelemetry: one trace per epoch with a span for each phase, by OTLP over HTTP as JSON.

Invariant: this module reads the epoch history and never asks the driver, so a slow or unreachable collector does not
affect the pipeline. The ids of traces and spans are derived from the checkpoint's id and the epoch, so sending an
epoch twice creates no second trace. A request has at most `SPANS_MAX` spans. An epoch without times, which a driver
added for its predecessor, has no trace. The history has the times of phase 2 in the line of the next epoch; the span
of phase 2 is sent with that line.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from procession.driver.driver_reports import EPOCHS
from procession.driver.epoch_log import EpochTail, older
from procession.errors import ConfigError

SPANS_MAX = 512
"""Maximum number of spans in a request."""
TIMEOUT_S = 10.0
INTERNAL = 1
"""OpenTelemetry's kind of spans without a remote side."""


class EpochTraces:
    """The spans of a pipeline's epochs, in order. `new` returns those since the last call."""

    def __init__(self, directory: Path, *, from_now: bool = False) -> None:
        self._tails = [EpochTail(older(directory / EPOCHS)), EpochTail(directory / EPOCHS)]
        self._before: Mapping[str, Any] | None = None
        if from_now:
            for _ in self.new():
                pass

    def new(self) -> Iterator[dict[str, Any]]:
        for line in itertools.chain.from_iterable(tail.new() for tail in self._tails):
            if self._before is not None and self._before["epoch"] == line["epoch"] - 1:
                yield from _phase_2(self._before, line.get("phase2_before_s", {}))
            self._before = line
            if line.get("phases"):
                yield from _epoch(line)
        del self._tails[:-1]  # the older file is read once


def _epoch(line: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the span of an epoch, up to its decision, and those of its phases, which follow each other."""
    phases = line["phases"]
    votes = {sink: seconds or 0.0 for sink, seconds in phases.get("phase1_s", {}).items()}
    run_s, record_s, decision_s = (phases.get(name) or 0.0 for name in ("run_s", "record_s", "decision_s"))
    begin = line["committed_ns"] - _ns(run_s + max(votes.values(), default=0.0) + record_s + decision_s)
    voting, recording = begin + _ns(run_s), line["committed_ns"] - _ns(record_s + decision_s)
    facts = {
        "procession.epoch": line["epoch"],
        "procession.driver": line["fence"],
        "procession.records": line["records"],
        "procession.bytes_out": line["bytes_out"],
        "procession.aborts": line.get("aborts", 0),
    }
    yield _span(line, "epoch", begin, line["committed_ns"], facts)
    yield _span(line, "run", begin, voting, {})
    for sink, seconds in votes.items():
        yield _span(line, "phase 1", voting, voting + _ns(seconds), {"procession.sink": sink})
    yield _span(line, "round record", recording, recording + _ns(record_s), {})
    yield _span(line, "decision", recording + _ns(record_s), line["committed_ns"], {})


def _phase_2(line: Mapping[str, Any], seconds: Mapping[str, float]) -> Iterator[dict[str, Any]]:
    for sink, taken_s in seconds.items():
        begin = line["committed_ns"]
        yield _span(line, "phase 2", begin, begin + _ns(taken_s), {"procession.sink": sink})


def _span(line: Mapping[str, Any], name: str, begin: int, end: int, facts: Mapping[str, Any]) -> dict[str, Any]:
    trace = f"{line['id']}/{line['epoch']}/{line['fence']}"
    own = f"{trace}/{name}/{facts.get('procession.sink', '')}"
    span = {
        "traceId": _hex(trace, 32),
        "spanId": _hex(own, 16),
        "name": name,
        "kind": INTERNAL,
        "startTimeUnixNano": str(begin),
        "endTimeUnixNano": str(max(begin, end)),
        "attributes": attributes(facts),
    }
    return span if name == "epoch" else span | {"parentSpanId": _hex(f"{trace}/epoch/", 16)}


def attributes(facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return values in OTLP's JSON format, in which whole numbers are text."""
    return [
        {"key": name, "value": {"intValue": str(value)} if isinstance(value, int) else {"stringValue": str(value)}}
        for name, value in facts.items()
    ]


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)


def _hex(text: str, length: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def send(spans: Iterable[dict[str, Any]], pipeline: str, endpoint: str) -> int:
    """Send spans to a collector. Return their number. Raises ConfigError if the collector refuses them."""
    sent, waiting = 0, iter(spans)
    resource = {"attributes": attributes({"service.name": "procession", "procession.pipeline": pipeline})}
    while some := list(itertools.islice(waiting, SPANS_MAX)):
        scope = {"scope": {"name": "procession"}, "spans": some}
        _post(endpoint, json.dumps({"resourceSpans": [{"resource": resource, "scopeSpans": [scope]}]}).encode())
        sent += len(some)
    return sent


def _post(endpoint: str, body: bytes) -> None:
    url = f"{endpoint.rstrip('/')}/v1/traces"
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"{endpoint} is not an address of a collector.", next_step="Give http://HOST:PORT.")
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"}, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            answer.read()
    except urllib.error.HTTPError as error:
        raise ConfigError(
            f"The collector at {endpoint} refused the traces: {error.code} {error.reason}.",
            next_step="Give the address of an OTLP receiver for HTTP with JSON, without /v1/traces.",
        ) from error
    except OSError as error:
        raise ConfigError(
            f"The collector at {endpoint} cannot be reached: {getattr(error, 'reason', error)}.",
            next_step="Start an OTLP receiver there, or give another --to.",
        ) from error
