"""Measures whether memory stays flat while the demo runs: the resident size of each process, early and late.

Samples every process of a `procession demo` from outside. A part is flat if its size in the last third of the run is
hardly more than in the middle third; the first third is start-up.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from procession.bench.processes import memory_mib
from procession.deployment.local_pipeline import COMMAND

SAMPLE_S = 0.25
SAMPLES_MIN = 9


def measure(records: int) -> dict[str, Any]:
    argv = [*COMMAND, "demo", "--records", str(records), "--json"]
    samples: dict[str, list[float]] = defaultdict(list)
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as demo:
        while demo.poll() is None:
            for part, size in memory_mib(demo.pid).items():
                samples[part].append(size)
            time.sleep(SAMPLE_S)
        verdict = json.loads(demo.communicate()[0])
    return {
        "parts": {part: _figures(sizes) for part, sizes in samples.items() if len(sizes) >= SAMPLES_MIN},
        "verdict": verdict,
    }


def report_lines(figures: Mapping[str, Any]) -> Iterator[str]:
    yield f"{'part':18}{'middle MiB':>12}{'late MiB':>12}{'peak MiB':>12}"
    for part, sizes in sorted(figures["parts"].items()):
        yield f"{part:18}{sizes['middle']:12.0f}{sizes['late']:12.0f}{sizes['peak']:12.0f}"
    yield f"{figures['verdict']['records']:,} records, {figures['verdict']['outcome']}"


def _figures(sizes: Sequence[float]) -> dict[str, float]:
    third = len(sizes) // 3
    return {
        "middle": statistics.median(sizes[third : 2 * third]),
        "late": statistics.median(sizes[2 * third :]),
        "peak": max(sizes),
    }
