"""CPU time: how long the threads of some sessions ran, and how long they waited for a core. Linux only (/proc).

Invariant: only threads that existed at the last look count, by their use since then. Reads the kernel's schedstat; used
by `chaos/fair_clock`.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from procession.chaos.fair_clock import CpuTime
from procession.supervisor import cleanup

NS = 1_000_000_000


class CpuTimeReader:
    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, int]] = {}

    def look(self, sessions: Collection[int]) -> CpuTime:
        """Return the CPU time of these sessions since the last look; zero if the kernel does not report it."""
        seen = {}
        for entry in cleanup.processes():
            if entry.session in sessions:
                seen.update(_threads(entry.pid))
        both = [(seen[thread], self._seen[thread]) for thread in seen.keys() & self._seen.keys()]
        self._seen = seen
        ran = sum(now[0] - before[0] for now, before in both)
        waited = sum(now[1] - before[1] for now, before in both)
        return CpuTime(ran / NS, waited / NS)


def _threads(pid: int) -> dict[str, tuple[int, int]]:
    found = {}
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError, ValueError):
                ran, waited, _slices = Path(f"/proc/{pid}/task/{thread}/schedstat").read_text().split()
                found[thread] = (int(ran), int(waited))
    return found
