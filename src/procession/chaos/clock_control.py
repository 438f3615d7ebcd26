"""Clock control: sets the time of day that each part of a chaos run sees, while it runs.

The one rule: what jumps is what a real clock would make jump, in the real processes, in their children and in Spark's
JVM: the time of day, and neither monotonic clocks nor waits. It takes a C compiler, once; where there is none no clock
can be set, and whoever asks is told. Before it `chaos/chaos_cluster`; after it `clock.c`, inside every part.
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
    """The clocks of all parts, each a file with the seconds that it is off."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._library = directory / "clock.so"
        self.why_not = "" if shutil.which("cc") else "there is no C compiler (cc) to make a clock with"
        """Why no clock can be set; nothing if it can."""

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
        """What a part needs to see its own clock."""
        if self.why_not:
            return {}
        if not self._file(part).exists():
            self.set(part, 0)
        return {"LD_PRELOAD": str(self._library), VARIABLE: str(self._file(part))}

    def set(self, part: str, off_s: int) -> None:
        """From now on the part's clock is so many seconds off. In place: processes have the file mapped."""
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
