"""Log events have a name, a level and one line, and are JSON on request. In a program that is not ours only warnings
are logged."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from procession.address import parse_address
from procession.log_format import FORMAT_VARIABLE, LEVEL_VARIABLE
from procession.wire.connection import Connection
from procession.wire.lifecycle import ConnectionSide, Role
from procession.wire.messages import Hello
from procession.wire.v3 import SINK_VERSION
from tests.gateway.gateway_process import GatewayProcess
from tests.walk.cluster import PATIENCE_S, read_json, wait_for

Make = Callable[..., GatewayProcess]

SENDS = """
import sys
from procession.sdk import SourceOptions, send
options = SourceOptions("mine", "mine", sys.argv[2].encode(), stop_wait_s=1.0)
with send(sys.argv[1], stream="s", options=options) as out:
    out.write(b"one")
    if sys.argv[3:]:
        sys.stdin.readline()
        out.abort()
"""
RECEIVES = """
import sys
from pathlib import Path
from procession.sdk import run_sink
from procession.sdk.doubles import MemoryOutput
run_sink(lambda instance: MemoryOutput(), Path(sys.argv[1]), sys.argv[2], cookie=b"secret")
"""
MAKES = """
import sys
from pathlib import Path
import structlog
from procession.errors import ConfigError
from procession.sdk import SinkDirectory, SinkServer, SourceClient, SourceOptions
from procession.sdk.doubles import ListSource, MemoryOutput
made = {made}
log = structlog.get_logger()
log.info("part.started")
log.warning("part.disk_low")
raise ConfigError("it does not work", next_step="repair it")
"""
MADE = (
    "SinkServer(None)",
    "SinkDirectory(Path(sys.argv[1]), lambda instance: MemoryOutput())",
    "SourceClient(ListSource({}), '127.0.0.1:1', SourceOptions('program', 'instance'))",
)
EVENTS = """
import structlog
from procession.log_format import configure, keep_quiet
{setup}
log = structlog.get_logger()
log.debug("part.frame", n=1)
log.info("part.started", path="a b")
log.warning("part.disk_low", reason="two\\nlines")
"""


def run(text: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name not in (FORMAT_VARIABLE, LEVEL_VARIABLE)}
    argv = [sys.executable, "-c", text, *arguments]
    return subprocess.run(argv, env={**env, **environment}, capture_output=True, text=True, timeout=120, check=False)


def test_a_part_writes_one_line_for_each_event_with_its_name_and_level() -> None:
    done = run(EVENTS.format(setup='configure("info")'))
    started, low = done.stderr.splitlines()
    assert "[info     ] part.started path='a b'" in started
    assert "[warning  ] part.disk_low reason='two\\nlines'" in low
    assert done.stdout == ""


def test_on_request_each_event_is_a_json_object_on_one_line() -> None:
    done = run(EVENTS.format(setup='configure("info")'), **{FORMAT_VARIABLE: "json", LEVEL_VARIABLE: "debug"})
    events = [json.loads(line) for line in done.stderr.splitlines()]
    assert [(event["level"], event["event"]) for event in events] == [
        ("debug", "part.frame"),
        ("info", "part.started"),
        ("warning", "part.disk_low"),
    ]
    assert events[2]["reason"] == "two\nlines"
    assert all("timestamp" in event for event in events)


def test_a_program_that_uses_the_sdk_gets_warnings_only_unless_it_asks_for_more() -> None:
    quiet = run(EVENTS.format(setup="keep_quiet()"))
    assert (len(quiet.stderr.splitlines()), quiet.stdout) == (1, "")
    result = run(EVENTS.format(setup="keep_quiet()"), **{LEVEL_VARIABLE: "info"})
    assert len(result.stderr.splitlines()) == 2
    own = run(
        EVENTS.format(setup="structlog.configure(processors=[structlog.processors.JSONRenderer()]); keep_quiet()")
    )
    assert (len(own.stdout.splitlines()), own.stderr) == (3, ""), "the configuration of structlog is not changed"


@pytest.mark.parametrize("made", MADE)
def test_a_program_with_any_part_of_the_sdk_gets_only_warnings_and_sentences_for_errors(
    made: str, tmp_path: Path
) -> None:
    done = run(MAKES.format(made=made), str(tmp_path))
    warning, *error = done.stderr.splitlines()
    assert "part.disk_low" in warning
    assert error == ["error: It does not work.", "  Next: Repair it."]
    assert done.stdout == ""


def start(text: str, *arguments: str | Path) -> subprocess.Popen[str]:
    env = {name: value for name, value in os.environ.items() if name not in (FORMAT_VARIABLE, LEVEL_VARIABLE)}
    argv = [sys.executable, "-c", text, *map(str, arguments)]
    pipe = subprocess.PIPE
    return subprocess.Popen(argv, env=env, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def test_a_program_with_a_sender_logs_nothing_without_a_fault(gateway_process: Make) -> None:
    gateway = gateway_process().start()
    program = start(SENDS, gateway.listen, "", "aborts")
    with gateway.client() as driver:
        wait_for(lambda: driver.status()["next_sequence"] > 0, "its record")
    assert program.communicate("go\n", timeout=120) == ("", "")


def test_a_program_with_a_sink_logs_nothing_without_a_fault(tmp_path: Path) -> None:
    program = start(RECEIVES, tmp_path, "127.0.0.1:0")
    announced = tmp_path / "sink.json"
    wait_for(announced.exists, "the sink")

    hello = Connection(ConnectionSide.INITIATOR, Role.SINK).send(Hello(SINK_VERSION, b"secret", "test", "out"))
    with socket.create_connection(parse_address(read_json(announced)["listen"]), PATIENCE_S) as worker:
        worker.sendall(hello)
        assert worker.recv(1), "the session is open"
    program.send_signal(signal.SIGTERM)
    assert program.communicate(timeout=120) == ("", "")


def test_a_sink_program_that_cannot_listen_ends_with_a_sentence_and_no_traceback(tmp_path: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        done = run(RECEIVES, str(tmp_path), f"127.0.0.1:{taken.getsockname()[1]}")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("error: Port ")
    assert "is in use." in done.stderr


def test_a_wrong_cookie_in_a_connector_is_reported_without_a_traceback(gateway_process: Make) -> None:
    gateway = gateway_process(limits={"cookie": b"right"}).start()
    done = run(SENDS, gateway.listen, "wrong")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    last = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert last == ["error: The gateway refused the session: bad cookie."]
    assert "  Next: Send the secret of the pipeline: " in done.stderr
    result = run(SENDS, gateway.listen, "wrong", **{LEVEL_VARIABLE: "debug"})
    assert "Traceback" in result.stderr
