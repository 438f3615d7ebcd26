"""What a process does before its imports."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
from procession.process_start import prepare_imports
prepare_imports()
assert "structlog" in sys.modules and "rich" not in sys.modules
import procession.log_format
procession.log_format.configure("info")
import rich.console
assert rich.console.Console is not None
"""


def test_structlog_is_loaded_without_rich_and_others_can_import_rich() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)
