"""Log events as others read them: a name, a level, one line, JSON on request; quiet in a program that is not ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable

from procession.log_format import FORMAT_VARIABLE, LEVEL_VARIABLE
from tests.gateway.gateway_process import GatewayProcess

Make = Callable[..., GatewayProcess]

SENDS = """
import sys
from procession.sdk import SourceOptions, send
options = SourceOptions("mine", "mine", sys.argv[2].encode(), stop_wait_s=1.0)
with send(sys.argv[1], stream="s", options=options) as out:
    out.write(b"one")
    if sys.argv[3:]:
        out.abort()
"""
EVENTS = """
import structlog
from procession.log_format import configure, keep_quiet
{setup}
log = structlog.get_logger()
log.debug("part.frame", n=1)
log.info("part.started", path="a b")
log.warning("part.disk_low", reason="two\\nlines")
"""


def run(text: str, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name not in (FORMAT_VARIABLE, LEVEL_VARIABLE)}
    argv = [sys.executable, "-c", text, *words]
    return subprocess.run(argv, env={**env, **environment}, capture_output=True, text=True, timeout=120, check=False)


def test_a_part_writes_one_line_for_each_event_with_its_name_and_level() -> None:
    done = run(EVENTS.format(setup='configure("info")'))
    started, low = done.stderr.splitlines()
    assert "[info     ] part.started path='a b'" in started
    assert "[warning  ] part.disk_low reason='two\\nlines'" in low
    assert done.stdout == ""


def test_events_are_json_on_request_one_object_a_line() -> None:
    done = run(EVENTS.format(setup='configure("info")'), **{FORMAT_VARIABLE: "json", LEVEL_VARIABLE: "debug"})
    told = [json.loads(line) for line in done.stderr.splitlines()]
    assert [(one["level"], one["event"]) for one in told] == [
        ("debug", "part.frame"),
        ("info", "part.started"),
        ("warning", "part.disk_low"),
    ]
    assert told[2]["reason"] == "two\nlines"
    assert all("timestamp" in one for one in told)


def test_a_program_that_uses_the_sdk_gets_warnings_only_unless_it_asks_for_more() -> None:
    quiet = run(EVENTS.format(setup="keep_quiet()"))
    assert (len(quiet.stderr.splitlines()), quiet.stdout) == (1, "")
    asked = run(EVENTS.format(setup="keep_quiet()"), **{LEVEL_VARIABLE: "info"})
    assert len(asked.stderr.splitlines()) == 2
    own = run(
        EVENTS.format(setup="structlog.configure(processors=[structlog.processors.JSONRenderer()]); keep_quiet()")
    )
    assert (len(own.stdout.splitlines()), own.stderr) == (3, ""), "who has configured structlog keeps it as it is"


def test_a_senders_program_says_nothing_while_all_is_well(gateway_process: Make) -> None:
    gateway = gateway_process().start()
    done = run(SENDS, gateway.listen, "", "aborts")
    assert (done.stdout, done.stderr) == ("", "")


def test_a_wrong_cookie_in_a_connector_is_a_sentence_and_not_a_trace(gateway_process: Make) -> None:
    gateway = gateway_process(limits={"cookie": b"right"}).start()
    done = run(SENDS, gateway.listen, "wrong")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    last = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert last == ["error: The gateway refused us: bad cookie."]
    assert "  Next: " in done.stderr
    asked = run(SENDS, gateway.listen, "wrong", **{LEVEL_VARIABLE: "debug"})
    assert "Traceback" in asked.stderr
