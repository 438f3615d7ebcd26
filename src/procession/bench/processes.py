"""Measures the processes of a running pipeline from outside: the part of each process, its memory and its processor
time.

Invariant: this module only reads from the kernel, and omits processes that have ended. Upstream:
`deployment/local_pipeline`, which starts them. Downstream: the benchmarks of memory and of the loop.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
TICKS_S = os.sysconf("SC_CLK_TCK")
PARTS = {
    "emitter_process": "emitters",
    " gateway ": "gateway",
    " sink ": "sink",
    " source ": "source",
    " driver ": "driver (Python)",
    " kafka.Kafka ": "broker",
    "procession.spark.resident_worker": "resident worker",
    "java": "driver (JVM)",
    "pyspark.worker": "Python workers",
    "pyspark.daemon": "Python workers",
    "python_streaming_source_runner": "source reader",
}


def memory_mib(root: int) -> dict[str, float]:
    """Return the resident size of each part below this process."""
    sizes: dict[str, float] = defaultdict(float)
    for part, process in _parts(root):
        sizes[part] += int((process / "statm").read_text().split()[1]) * PAGE_BYTES / 2**20
    return dict(sizes)


def cpu_s(root: int) -> dict[str, float]:
    """Return the processor time that each part below this process has used so far."""
    used: dict[str, float] = defaultdict(float)
    for part, process in _parts(root):
        # The name, in parentheses, may contain any character; user and system time are the 14th and 15th field.
        fields = (process / "stat").read_text().rpartition(")")[2].split()
        used[part] += (int(fields[11]) + int(fields[12])) / TICKS_S
    return dict(used)


def cpu_total_s() -> float:
    """Return the processor time that this process and all below it have used so far, with those that have ended."""
    return cpu_tree_s(os.getpid())


def cpu_tree_s(root: int) -> float:
    """Return the processor time that a process and all below it have used so far, with those that have ended."""
    used = 0.0
    for pid in (root, *_descendants(root)):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        used += sum(map(int, fields[11:15])) / TICKS_S
    return used


def _parts(root: int) -> Iterator[tuple[str, Path]]:
    for pid in _descendants(root):
        process = Path(f"/proc/{pid}")
        try:
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            part = next((part for mark, part in PARTS.items() if mark in f" {command} "), None)
            if part is not None:
                yield part, process
        except (FileNotFoundError, ProcessLookupError):
            continue


def _descendants(root: int) -> Iterator[int]:
    for thread in Path(f"/proc/{root}/task").glob("*/children"):
        try:
            children = thread.read_text().split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        for child in map(int, children):
            yield child
            yield from _descendants(child)
