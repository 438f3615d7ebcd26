"""Bad input on the real command line gives one clear sentence, a next step and a status other than 0, and loses
nothing."""

from __future__ import annotations

import json
import re
import resource
import signal
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from procession.address import Address, listening_socket
from procession.commit.checkpoint import Checkpoint
from procession.connectors.file_source import stream_id_of
from procession.driver.app_file import load_app
from procession.exit_status import Status
from procession.sdk.transaction_log import uncommitted
from tests.walk.cluster import committed, read_json, wait_for
from tests.walk.command_server import CommandServer, command_server
from tests.walk.commands import error_line, living, run, running

APP = """
from procession import Pipeline

pipeline = Pipeline("good")
pipeline.source("lines").sink("output", to="file:output")
"""


@pytest.fixture
def app(tmp_path: Path) -> Path:
    (tmp_path / "input.txt").write_text("1\n2\n3\n")
    path = tmp_path / "app.py"
    path.write_text(APP)
    return path


@pytest.fixture(scope="module")
def server() -> Iterator[CommandServer]:
    with command_server() as server:
        yield server


@pytest.fixture
def taken() -> Iterator[str]:
    """Return an address at which another process already listens."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


APPS = {
    "a syntax error": ("def (", r"SyntaxError: invalid syntax \(app.py, line 1\)", True),
    "an import that fails": ("import nothing_at_all", "No module named 'nothing_at_all'", True),
    "code that raises": ("1 / 0", "ZeroDivisionError: division by zero", True),
    "code that exits": ("exit(0)", "SystemExit", True),
    "no pipeline": ("x = 1", "has no Pipeline at module level", False),
    "two pipelines": ("from procession import Pipeline\na, b = Pipeline('a'), Pipeline('b')", "has 2 Pipelines", False),
    "a pipeline without a sink": ("from procession import Pipeline\np = Pipeline('p')\np.source()", "no sink", False),
    "bytes that are no text": ("\udcff\udcfe", "SyntaxError", True),
}


@pytest.mark.parametrize("what", APPS)
def test_an_app_that_cannot_be_used_is_reported_before_anything_is_started(
    server: CommandServer, app: Path, what: str
) -> None:
    text, sentence, is_users_code = APPS[what]
    app.write_bytes(text.encode(errors="surrogateescape"))
    done = server.run("run", "app.py", "--input", "input.txt", cwd=app.parent)
    assert done.returncode == Status.ACT
    assert re.search(sentence, error_line(done.stderr, is_users_code=is_users_code)), done.stderr
    assert not is_users_code or f'File "{app}", line 1' in done.stderr, "the line that did it"
    assert not (app.parent / ".procession").exists()


BAD_COMMANDS = {
    "an app that is not there": (["run", "other.py"], "here is no app at other.py"),
    "an input that is not there": (["run", "app.py", "--input", "nowhere"], "Cannot read nowhere: there is no such"),
    "an input that is no file": (["run", "app.py", "--input", "."], "Cannot read .: it is not a file"),
    "an input named twice": (["run", "app.py", "--input", "input.txt", "--input", "./input.txt"], "is named twice"),
    "a source's input that is not there": (["source", "file", "nowhere"], "Cannot read nowhere: there is no such"),
    "a cookie file that is not there": (["run", "app.py", "--cookie-file", "c"], "cannot be read: No such file"),
    "an epoch of no records": (["run", "app.py", "--epoch-records-max", "0"], "'epoch_records_max' is invalid"),
    "a sink's address that is none": (["sink", "file", "out", "--listen", "here"], "'here' is not an address."),
    "a control address that is none": (["run", "app.py", "--control", "7101"], "'7101' is not an address."),
    "an address of another machine": (
        ["gateway", "--dir", "g", "--listen", "192.0.2.1:7100"],
        "Cannot listen on 192.0.2.1:7100: Cannot assign requested address.",
    ),
    "a driver that is not told where its sink is": (
        ["driver", "app.py", "--dir", "state"],
        "ink 'output' has no address",
    ),
    "nothing to verify": (["verify", "input.txt", "."], "There is nothing to compare"),
}
MISUSES = {"an input named twice", "a sink's address that is none", "a control address that is none"}


@pytest.mark.parametrize("what", BAD_COMMANDS)
def test_an_invalid_command_reports_the_reason_and_a_next_step(server: CommandServer, app: Path, what: str) -> None:
    arguments, sentence = BAD_COMMANDS[what]
    done = server.run(*arguments, cwd=app.parent)
    assert done.returncode == (Status.USAGE if what in MISUSES else Status.ACT)
    assert sentence in error_line(done.stderr)
    assert done.stdout == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "app.py", "--input", "input.txt", "--listen"],
        ["run", "app.py", "--input", "input.txt", "--listen", "127.0.0.1:0", "--control"],
        ["gateway", "--dir", "g", "--listen"],
        ["gateway", "--dir", "g", "--listen", "127.0.0.1:0", "--control"],
        ["sink", "file", "out", "--listen"],
    ],
    ids=["run", "run's control", "gateway", "control", "sink"],
)
def test_a_port_in_use_is_named(server: CommandServer, app: Path, taken: str, arguments: list[str]) -> None:
    done = server.run(*arguments, taken, cwd=app.parent)
    assert done.returncode == Status.ACT
    assert error_line(done.stderr) == f"Port {taken.rpartition(':')[2]} on 127.0.0.1 is in use."


@pytest.mark.parametrize("arguments", [["run", "app.py", "--input", "input.txt"], ["demo", "--records", "10"]])
def test_without_java_nothing_is_started_or_written(server: CommandServer, app: Path, arguments: list[str]) -> None:
    before = sorted(app.parent.iterdir())
    done = server.run(*arguments, cwd=app.parent, JAVA_HOME=str(app.parent / "nowhere"))
    assert done.returncode == Status.ACT
    assert error_line(done.stderr).startswith("Spark needs Java 17 or newer, and JAVA_HOME is ")
    assert sorted(app.parent.iterdir()) == before


def test_a_port_that_run_cannot_have_is_reported_before_anything_is_started(
    server: CommandServer, app: Path, taken: str
) -> None:
    for option in ("--listen", "--metrics", "--control"):
        done = server.run("run", "app.py", option, taken, cwd=app.parent)
        assert done.returncode == Status.ACT
        assert "is in use." in error_line(done.stderr)
        assert not (app.parent / ".procession").exists()


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ('Pipeline("good")', 'Pipeline("other")', "is the checkpoint of pipeline 'good', not of 'other'"),
        ('"output", to', '"renamed", to', "he sources or sinks of pipeline 'good' are not those"),
    ],
    ids=["another pipeline", "changed sinks"],
)
def test_the_checkpoint_of_another_pipeline_is_refused_and_not_changed(
    server: CommandServer, app: Path, old: str, new: str, sentence: str
) -> None:
    graph = load_app(app).graph
    owner = Checkpoint.claim(app.parent / "state" / "checkpoint", name="good", fingerprint=graph.fingerprint())
    app.write_text(APP.replace(old, new))
    done = server.run(
        "run", "app.py", "--input", "input.txt", "--dir", "state", "--listen", "127.0.0.1:0", cwd=app.parent
    )
    assert done.returncode == Status.ACT
    assert sentence in error_line(done.stderr)
    owner.check_fence()


def test_a_wrong_cookie_is_reported_to_the_source_and_to_the_driver(app: Path) -> None:
    place = app.parent
    (place / "right").write_text("sesame\n")
    (place / "wrong").write_text("sezame\n")
    address = place / "state" / "gateway" / "gateway.json"
    gateway = ["gateway", "--dir", address.parent, "--listen", "127.0.0.1:0", "--control", "127.0.0.1:0"]
    with running(*gateway, "--cookie-file", "right", cwd=place) as gate:
        wait_for(address.exists, "the gateway", lambda: gate.said)
        to = ("--to", str(read_json(address)["listen"]))
        done = run("source", "file", "input.txt", *to, "--cookie-file", "wrong", cwd=place)
        assert done.returncode == Status.ACT
        assert "cookie" in error_line(done.stderr)
        driver = ("driver", "app.py", "--dir", "state", "--sink", "output=127.0.0.1:9")
        done = run(*driver, "--control-cookie-file", "wrong", cwd=place)
        assert done.returncode == Status.ACT
        assert error_line(done.stderr) == "The request has a wrong secret, or no secret."
        for text in (done.stderr, gate.said):
            assert "sesame" not in text
            assert "sezame" not in text


STRICT = """
from procession import Pipeline

def strict(line):
    if line.startswith("bad") and not MENDED:
        raise ValueError(f"no good: {line}")
    return line.upper()

MENDED = False
pipeline = Pipeline("strict")
pipeline.source("lines", codec="text").map(strict).sink("output", to="file:output")
"""


@pytest.mark.slow
def test_a_pipeline_that_an_error_or_a_full_disk_stopped_continues_after_the_fix(
    tmp_path: Path,
) -> None:
    """Runs one pipeline three times: a function raises; after its fix, the sink's disk is full; then there is space."""
    lines = [f"record {number} ".ljust(99, "x") for number in range(3000)]
    lines[700] = "bad record"
    before = sum(len(line) + 1 for line in lines[:700])
    (tmp_path / "input.txt").write_text("".join(f"{line}\n" for line in lines))
    expected = "".join(f"{line.upper()}\n" for line in lines).encode()
    app = tmp_path / "app.py"
    app.write_text(STRICT)
    arguments = ["run", "app.py", "--input", "input.txt", "--listen", "127.0.0.1:0", "--epoch-records-max", "200"]
    instance = tmp_path / "output" / "strict-output-0"

    done = run(*arguments, cwd=tmp_path)
    assert done.returncode == Status.ACT
    stream = stream_id_of(tmp_path / "input.txt")
    sentence = error_line(done.stderr, is_users_code=True)
    assert f"tage 'map-1' raised on message {before} of stream {stream}" in sentence
    assert "ValueError: no good: bad record" in sentence
    assert done.stderr.count("no good: bad record") == 2, "once in the sentence, once at the end of the trace"
    assert "in strict" in done.stderr
    shown = committed(instance)
    assert expected.startswith(shown)
    assert 0 < len(shown) <= before, "nothing of the epoch of the bad record is committed"
    assert uncommitted(instance.with_suffix(".txnlog")) == ()

    app.write_text(STRICT.replace("MENDED = False", "MENDED = True"))
    with running(*arguments, cwd=tmp_path) as second:
        previous = read_json(tmp_path / "output" / "sink.json")["pid"]
        wait_for(
            lambda: read_json(tmp_path / "output" / "sink.json")["pid"] != previous, "the sink", lambda: second.said
        )
        limit = 150_000
        resource.prlimit(read_json(tmp_path / "output" / "sink.json")["pid"], resource.RLIMIT_FSIZE, (limit, limit))
        assert second.wait() == Status.ACT
        assert f"Cannot write {instance}.data: File too large." in error_line(second.said)
        assert living(second.mark) == []
    assert expected.startswith(committed(instance))
    assert len(shown) < len(committed(instance)) <= limit, "what was committed before the disk was full stays"

    done = run(*arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert committed(instance) == expected


OUTSIDE = """
from procession import Pipeline

pipeline = Pipeline("outside", parallelism=1)
pipeline.source("lines").sink("output", to="127.0.0.1:PORT", framing="raw")
"""


def test_a_run_waits_for_its_sinks_and_ctrl_c_leaves_no_process_and_no_port(
    tmp_path: Path,
) -> None:
    with closing(listening_socket(Address("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    (tmp_path / "app.py").write_text(OUTSIDE.replace("PORT", str(port)))
    (tmp_path / "input.txt").write_bytes(b"".join(b"record %d\n" % number for number in range(500)))
    address = tmp_path / ".procession" / "outside" / "gateway" / "gateway.json"
    with running("run", "app.py", "--listen", "127.0.0.1:0", cwd=tmp_path) as pipeline:
        sentence = f"sink 'output' at 127.0.0.1:{port} cannot be reached: Connection refused; waiting for it"
        wait_for(lambda: sentence in pipeline.said, "the driver to say that its sink is away", lambda: pipeline.said)
        wait_for(lambda: "ready: connectors" in pipeline.said, "the pipeline to be ready", lambda: pipeline.said)
        to = ("--to", str(read_json(address)["listen"]))
        with (
            running("source", "file", "input.txt", *to, cwd=tmp_path) as source,
            running("sink", "file", "output", "--listen", f"127.0.0.1:{port}", "--open", cwd=tmp_path),
        ):
            assert source.wait() == 0, source.said
            shown = committed(tmp_path / "output" / "outside-output-0")
            assert shown == (tmp_path / "input.txt").read_bytes().replace(b"\n", b"")
            ports = [int(read_json(address)["listen"].rpartition(":")[2])]
            pipeline.process.send_signal(signal.SIGINT)
            assert pipeline.wait() == 0, pipeline.said
        assert "500 of 500 records committed" in pipeline.said
        assert "error" not in pipeline.said
        assert living(pipeline.mark) == []
        for number in ports:
            with closing(socket.socket()) as probe:
                assert probe.connect_ex(("127.0.0.1", number)) != 0, f"somebody listens on port {number}"
    assert json.loads((tmp_path / ".procession" / "outside" / "driver.json").read_text())["fence"] == 1


def test_ctrl_c_before_the_input_is_committed_is_not_success(app: Path) -> None:
    with running("run", "app.py", "--input", "input.txt", "--listen", "127.0.0.1:0", cwd=app.parent) as pipeline:
        wait_for((app.parent / "output" / "sink.json").exists, "the sink", lambda: pipeline.said)
        pipeline.process.send_signal(signal.SIGINT)
        assert pipeline.wait() == 1, pipeline.said
        assert living(pipeline.mark) == []
        assert "Traceback" not in pipeline.said
