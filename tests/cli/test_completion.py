"""Shell completion: commands, connectors and options are completed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("line", "expected"),
    [("procession sta", {"state", "status"}), ("procession run --epoch-r", {"--epoch-records-max"})],
)
def test_commands_connectors_and_options_are_completed(line: str, expected: set[str]) -> None:
    environment = {"_PROCESSION_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    program = [
        sys.executable,
        "-c",
        "import sys; sys.argv[0] = 'procession'; from procession.cli.main import main; main()",
    ]
    done = subprocess.run(program, env=os.environ | environment, capture_output=True, text=True, check=False)
    assert set(done.stdout.split()) == expected, done.stderr
