"""The programs inside tests are type-checked, so a name that a rename left in one of them is an error."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.embedded_code import written

TEST_FILE = '''
APP = """
from procession import Pipeline
pipeline = Pipeline("orders", parallelism=TASKS)
LINE
"""
TEXT = """
not a program
"""
'''


RIGHT = "pipeline.source('{name}').map(len)"
WRONG = [
    "pipeline.spring('lines')",
    "piepline.source('lines')",
    "from procession.storage.log_reader import Reader",
    "pipeline.source('lines', colour='red')",
]


def test_a_wrong_name_in_a_program_inside_a_test_is_found(tmp_path: Path) -> None:
    for number, line in enumerate([RIGHT, *WRONG]):
        ((_, program),) = written(TEST_FILE.replace("LINE", line))
        (tmp_path / f"program_{number}.py").write_text(program)
    command = [sys.executable, "-m", "mypy", str(tmp_path)]
    checked = subprocess.run(command, cwd=Path(__file__).parent.parent, capture_output=True, text=True, check=False)
    found = {Path(line.partition(":")[0]).name for line in checked.stdout.splitlines() if ": error:" in line}
    assert found == {f"program_{number}.py" for number in range(1, 1 + len(WRONG))}, checked.stdout
