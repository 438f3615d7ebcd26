"""The part log is bounded, and has the last lines of a part."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from procession.errors import ConfigError, RecordError
from procession.log_format import FAILED, FORMAT_VARIABLE, NOTED, note, print_crash, print_error
from procession.supervisor.part_log import TAIL_LINES_MAX, PartLog, last_lines


def write(log: PartLog, text: str) -> None:
    descriptor = log.open()
    os.write(descriptor, text.encode())
    os.close(descriptor)


def test_the_last_lines_are_the_last_error_with_the_indented_lines_below_it() -> None:
    text = "WARN noise\nerror: old\nerror: The port is in use.\n  Next: choose another.\n\n    trace\nshutting down\n"
    assert last_lines(text) == "The port is in use.\n  Next: choose another.\n\n    trace"


def test_without_an_error_line_the_last_lines_are_returned() -> None:
    lines = [f"line {number}" for number in range(100)]
    assert last_lines("\n".join(lines) + "\n\n") == "\n".join(lines[-TAIL_LINES_MAX:])
    assert last_lines("") == ""


def test_the_last_lines_are_those_of_the_newest_start(tmp_path: Path) -> None:
    log = PartLog(tmp_path / "part.log")
    assert log.last_lines() == ""
    write(log, "error: the first\n")
    assert log.last_lines() == "the first"
    write(log, "")
    assert log.last_lines() == ""
    assert log.path.read_text() == "error: the first\n"


def test_a_log_over_its_limit_is_rotated_while_the_part_continues_to_write(tmp_path: Path) -> None:
    log = PartLog(tmp_path / "part.log", bytes_max=10)
    descriptor = log.open()
    os.write(descriptor, b"0123456789\n")
    log.trim()
    os.write(descriptor, b"last words\n")
    os.close(descriptor)
    assert log.path.read_bytes() == b"last words\n"
    assert (tmp_path / "part.old.log").read_bytes() == b"0123456789\n"
    assert log.last_lines() == "last words"


@pytest.mark.parametrize("form", ["text", "json"])
def test_notes_and_errors_are_read_from_either_format(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(FORMAT_VARIABLE, form)
    log = PartLog(tmp_path / "part.log")
    note("the gateway is away; waiting for it")
    print_error(ConfigError("the port is in use", next_step="choose another"))
    write(log, "")
    with log.path.open("a") as file:
        file.write(capsys.readouterr().err)
    assert log.notes() == ["the gateway is away; waiting for it"]
    assert log.last_lines() == "The port is in use.\n  Next: Choose another."
    print_error(RecordError("a function raised", trace="Traceback:\n  in line 7"))
    assert last_lines(capsys.readouterr().err) == "A function raised.\n  Traceback:\n    in line 7"


def test_with_json_every_message_is_one_line_of_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(FORMAT_VARIABLE, "json")
    note("a\nb")
    print_error(ConfigError("no", next_step="yes", trace="one\ntwo"))
    print_crash("Traceback\nZeroDivisionError: division by zero\n")
    noted, failed, crashed = map(json.loads, capsys.readouterr().err.splitlines())
    assert (noted["event"], noted["level"], noted["sentence"]) == (NOTED, "info", "a\nb")
    assert (failed["event"], failed["sentence"], failed["next_step"], failed["trace"]) == (
        FAILED,
        "no",
        "yes",
        "one\ntwo",
    )
    assert (crashed["level"], crashed["sentence"]) == ("error", "ZeroDivisionError: division by zero")
    assert all("timestamp" in event for event in (noted, failed, crashed))
