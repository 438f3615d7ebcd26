"""The part log: bounded, and good for last words."""

from __future__ import annotations

import os
from pathlib import Path

from procession.supervisor.part_log import TAIL_LINES_MAX, PartLog, last_words


def write(log: PartLog, text: str) -> None:
    descriptor = log.open()
    os.write(descriptor, text.encode())
    os.close(descriptor)


def test_last_words_are_the_last_error_with_the_indented_lines_below_it() -> None:
    text = "WARN noise\nerror: old\nerror: The port is in use.\n  Next: choose another.\n\n    trace\nshutting down\n"
    assert last_words(text) == "The port is in use.\n  Next: choose another.\n\n    trace"


def test_without_an_error_line_last_words_are_the_last_lines() -> None:
    lines = [f"line {number}" for number in range(100)]
    assert last_words("\n".join(lines) + "\n\n") == "\n".join(lines[-TAIL_LINES_MAX:])
    assert last_words("") == ""


def test_last_words_are_those_of_the_newest_start(tmp_path: Path) -> None:
    log = PartLog(tmp_path / "part.log")
    assert log.last_words() == ""
    write(log, "error: the first\n")
    assert log.last_words() == "the first"
    write(log, "")
    assert log.last_words() == ""
    assert log.path.read_text() == "error: the first\n"


def test_a_log_over_its_limit_is_set_aside_while_the_part_goes_on_writing(tmp_path: Path) -> None:
    log = PartLog(tmp_path / "part.log", bytes_max=10)
    descriptor = log.open()
    os.write(descriptor, b"0123456789\n")
    log.trim()
    os.write(descriptor, b"last words\n")
    os.close(descriptor)
    assert log.path.read_bytes() == b"last words\n"
    assert (tmp_path / "part.old.log").read_bytes() == b"0123456789\n"
    assert log.last_words() == "last words"
