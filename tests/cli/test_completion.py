"""Shell completion: commands, connectors and options are completed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("words", "expected"),
    [("procession sta", {"state", "status"}), ("procession run --epoch-r", {"--epoch-records-max"})],
)
def test_words_are_completed(words: str, expected: set[str]) -> None:
    asked = {"_PROCESSION_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    program = [
        sys.executable,
        "-c",
        "import sys; sys.argv[0] = 'procession'; from procession.cli.main import main; main()",
    ]
    done = subprocess.run(program, env=os.environ | asked, capture_output=True, text=True, check=False)
    assert set(done.stdout.split()) == expected, done.stderr
