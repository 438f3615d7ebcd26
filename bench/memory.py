"""Whether memory stays flat while the demo runs: the resident size of each process, early and late.

Samples every process of a `procession demo` from outside. A part is flat if its size in the last third of the run is
hardly more than in the middle third; the first third is start-up.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

COMMAND = "python -m bench memory"
SAMPLE_S = 0.25
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
PARTS = {
    " gateway ": "gateway",
    " sink file ": "sink",
    " source file ": "source",
    " driver ": "driver (Python)",
    "java": "driver (JVM)",
    "pyspark.worker": "Python workers",
    "pyspark.daemon": "Python daemons",
    "python_streaming_source_runner": "source reader",
}


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    argv = [sys.executable, "-m", "procession", "demo", "--records", str(given.records), "--json"]
    samples: dict[str, list[float]] = defaultdict(list)
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as demo:
        while demo.poll() is None:
            sizes: dict[str, float] = defaultdict(float)
            for part, size in _sizes(demo.pid):
                sizes[part] += size
            for part, size in sizes.items():
                samples[part].append(size)
            time.sleep(SAMPLE_S)
        verdict = json.loads(demo.communicate()[0])
    figures = {part: _figures(sizes) for part, sizes in samples.items() if len(sizes) >= 9}
    if given.json:
        print(json.dumps({"parts": figures, "verdict": verdict, "command": f"{COMMAND} --records {given.records}"}))
        return
    print(f"{'part':18}{'middle MiB':>12}{'late MiB':>12}{'peak MiB':>12}")
    for part, one in sorted(figures.items()):
        print(f"{part:18}{one['middle']:12.0f}{one['late']:12.0f}{one['peak']:12.0f}")
    print(f"{verdict['records']:,} records, {verdict['outcome']}   ({COMMAND} --records {given.records})")


def _figures(sizes: Sequence[float]) -> dict[str, float]:
    third = len(sizes) // 3
    return {
        "middle": statistics.median(sizes[third : 2 * third]),
        "late": statistics.median(sizes[2 * third :]),
        "peak": max(sizes),
    }


def _sizes(root: int) -> Iterator[tuple[str, float]]:
    """The part and the resident size, in MiB, of every process below this one."""
    for pid in _descendants(root):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
        part = next((part for mark, part in PARTS.items() if mark in f" {command} "), None)
        if part is not None:
            yield part, pages * PAGE_BYTES / 2**20


def _descendants(root: int) -> Iterator[int]:
    for thread in Path(f"/proc/{root}/task").glob("*/children"):
        try:
            children = thread.read_text().split()
        except FileNotFoundError:
            continue
        for child in map(int, children):
            yield child
            yield from _descendants(child)
