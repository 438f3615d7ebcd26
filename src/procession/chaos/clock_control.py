"""Sets the time of day that each part of a chaos run sees, while the part runs.

Invariant: only the time of day jumps, as with a real clock, in the real processes, their children and Spark's JVM.
Monotonic clocks and waits do not change. Building the library needs a C compiler; without one no clock can be set,
and the report notes this. `clock.c` is loaded into every part.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("clock.c")
VARIABLE = "PROCESSION_CLOCK"
COMPILE_TIMEOUT_S = 60.0


class ProcessClocks:
    """The clocks of all parts. Each clock is a file with its offset in seconds."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._library = directory / "clock.so"
        self.why_not = "" if shutil.which("cc") else "there is no C compiler (cc) for the clock library"
        """The reason why clocks cannot be set; empty if they can."""

    def make(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        if self.why_not:
            return
        command = ["cc", "-shared", "-fPIC", "-O2", "-o", str(self._library), str(SOURCE), "-ldl"]
        try:
            made = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S, check=False)
            self.why_not = f"the C compiler says: {made.stderr.strip()[-200:]}" if made.returncode else ""
        except (OSError, subprocess.TimeoutExpired) as error:
            self.why_not = f"the C compiler does not work: {error}"

    def environment(self, part: str) -> dict[str, str]:
        """Return the environment with which a part sees its own clock."""
        if self.why_not:
            return {}
        if not self._file(part).exists():
            self.set(part, 0)
        return {"LD_PRELOAD": str(self._library), VARIABLE: str(self._file(part))}

    def set(self, part: str, off_s: int) -> None:
        """Set the offset of the part's clock. Writes in place, because processes have the file mapped."""
        descriptor = os.open(self._file(part), os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            os.pwrite(descriptor, struct.pack("=q", off_s), 0)
        finally:
            os.close(descriptor)

    def set_right(self) -> None:
        for path in self._directory.glob("*.clock"):
            self.set(path.stem, 0)

    def _file(self, part: str) -> Path:
        return self._directory / f"{part}.clock"
