"""The exit statuses of commands: one table, the same in the code and on the page, which commands follow."""

from __future__ import annotations

import re
import subprocess
import sys
import traceback
from pathlib import Path

import pytest

from procession.errors import (
    ConfigError,
    DiskError,
    ProcessionError,
    RemoteProtocolError,
    RoundError,
    StorageError,
    UsageError,
    error_in_text,
)
from procession.exit_status import Status, status_of

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "commands.md"


def test_the_page_has_the_statuses_that_the_code_has() -> None:
    rows = re.findall(r"^\| (\d+) \| ", PAGE.read_text(), re.MULTILINE)
    assert [int(row) for row in rows] == list(Status)


def _trace(error: ProcessionError) -> str:
    """Return an error as Spark passes it on from a process of its own."""
    try:
        raise error
    except ProcessionError:
        return f"[STREAM_FAILED] Query terminated: {traceback.format_exc()} SQLSTATE: 38000\n=== Streaming Query ==="


def test_an_error_that_needs_an_operator_is_recognized_in_the_traceback_of_a_process_of_spark() -> None:
    result = error_in_text(
        _trace(StorageError("Cannot sync gateway/log: Input/output error.", next_step="Check the disk."))
    )
    assert isinstance(result, StorageError)
    assert result.sentence == "Cannot sync gateway/log: Input/output error."
    assert status_of(result) is Status.ACT
    passing = error_in_text(_trace(DiskError("Cannot sync gateways: Input/output error.", next_step="Start it again.")))
    assert passing is not None
    assert status_of(passing) is Status.UNCLEAN, "a restart recovers from it"
    away = error_in_text(_trace(RoundError("The gateway is away.")))
    assert isinstance(away, RoundError)
    assert away.explain() == "The gateway is away."
    assert status_of(away) is Status.UNCLEAN, "the next driver may find it"
    assert error_in_text("java.lang.OutOfMemoryError: Java heap space") is None


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (UsageError("x", next_step="y"), Status.USAGE),
        (ConfigError("x", next_step="y"), Status.ACT),
        (RemoteProtocolError("x"), Status.UNCLEAN),
        (StorageError("x", next_step="y"), Status.ACT),
        (ProcessionError.from_dict(DiskError("x", next_step="y").as_dict()), Status.UNCLEAN),
        (ProcessionError.from_dict(UsageError("x", next_step="y").as_dict()), Status.USAGE),
    ],
)
def test_an_error_and_its_status_say_who_must_act(error: ProcessionError, status: Status) -> None:
    assert status_of(error) is status


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        ("--version", Status.DONE),
        ("", Status.USAGE),
        ("nonsense", Status.USAGE),
        ("gateway --dir {tmp} --listen nowhere", Status.USAGE),
        ("gateway --dir {tmp} --listen 192.0.2.1:7", Status.ACT),
        ("gateway --dir {tmp} --tls-cert x.pem", Status.USAGE),
        ("gateway --dir {tmp} --cookie-file {tmp}/none", Status.ACT),
        ("driver {tmp}/none.py --dir {tmp} --sink nonsense", Status.USAGE),
        ("driver {tmp}/none.py --dir {tmp} --gateway 127.0.0.1:1", Status.ACT),
        ("run {tmp}/none.py", Status.ACT),
        ("explain {tmp}/none.py", Status.ACT),
        ("explain {tmp}/none.py --dot --svg", Status.USAGE),
        ("cat {tmp}", Status.ACT),
        ("verify {tmp}/none {tmp}", Status.ACT),
        ("verify {tmp}/none {tmp} --order sideways", Status.USAGE),
        ("chaos --scenario nonsense", Status.USAGE),
        ("frames decode zz", Status.UNCLEAN),
        ("frames decode 0000000102", Status.UNCLEAN),
        ("frames decode --version v9 00", Status.USAGE),
        ("sink file {tmp} --listen nowhere", Status.USAGE),
        ("sink epochs {tmp} --suffix /", Status.USAGE),
        ("sink stdout {tmp} --in-doubt perhaps", Status.USAGE),
        ("sink check", Status.USAGE),
        ("sink check --list", Status.DONE),
        ("sink check -- true", Status.USAGE),
        ("sink check --only gp -- true {{dir}} {{listen}}", Status.USAGE),
        ("sink check --only gap -- {tmp}/none {{dir}} {{listen}}", Status.ACT),
        ("source generator --records 1 --print", Status.DONE),
        ("source generator --size -1", Status.USAGE),
    ],
)
def test_a_command_ends_with_the_status_of_the_table(tmp_path: Path, arguments: str, status: Status) -> None:
    command = [sys.executable, "-m", "procession", *arguments.format(tmp=tmp_path).split()]
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    if status is Status.ACT:
        assert "\n  Next: " in done.stderr


@pytest.mark.parametrize(
    ("raised", "sentence"),
    [
        ("the port is in use", "The port is in use."),
        ("nowhere.json is no plan", "nowhere.json is no plan."),
        ("gateway-1 is away.", "gateway-1 is away."),
    ],
)
def test_a_sentence_has_a_capital_unless_it_begins_with_a_name(raised: str, sentence: str) -> None:
    assert ConfigError(raised).explain() == sentence
