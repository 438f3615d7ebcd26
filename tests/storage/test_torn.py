"""A process that dies during a write leaves half of it in the file, and the next process continues without it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from procession import faults
from procession.storage.journal import Entry, Journal

PROGRAM = """
import sys
from pathlib import Path
from procession.storage.journal import Journal

journal = Journal(Path(sys.argv[1]))
journal.open(lambda entry: None)
journal.append({"number": 1})
Path(sys.argv[2]).write_text("disk:torn")
journal.append({"number": 2})
"""


def test_half_of_a_write_is_there_when_its_process_dies_and_the_next_one_cuts_it_off(tmp_path: Path) -> None:
    path, fault = tmp_path / "journal", tmp_path / "fault"
    environment = os.environ | {faults.FILE_VARIABLE: str(fault)}
    ended = subprocess.run([sys.executable, "-c", PROGRAM, str(path), str(fault)], env=environment, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert not fault.exists()
    first, torn = path.read_bytes().split(b"\n")
    assert len(torn) == (len(first) + 1) // 2
    found: list[Entry] = []
    journal = Journal(path)
    journal.open(found.append)
    journal.append({"number": 3})
    journal.close()
    assert found == [{"number": 1}]
    assert path.read_bytes().startswith(first + b"\n")
    assert path.read_bytes().count(b"\n") == 2
