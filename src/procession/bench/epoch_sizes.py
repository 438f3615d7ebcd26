"""Compares epochs of adaptive size with epochs of fixed sizes: throughput under backlog, and latency of a small load.

One pipeline for each size (the functions of `bench loop` that parse fields) runs all the time. They get the same file
in turn, for several rounds; then each gets a small load, in turn. A ratio is the median of the rounds' ratios. The
outputs are compared byte for byte, because epoch boundaries must not affect the output.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from procession.bench.loop import FORMS, RunningPipeline, check_equal
from procession.deployment.local_pipeline import LocalPipeline
from procession.deployment.settings import Settings, load_settings
from procession.driver.app_file import load_app
from procession.jobs.demo import write_input
from procession.supervisor.supervisor import Supervisor
from procession.verify.sink_outputs import committed_output

FORM = "by_fields"
SIZES = (250_000, 1_000_000, 4_000_000)
ADAPTIVE = "adaptive"
WARM_RECORDS = 300_000
WARM_S = 10.0
FIXED_INTERVAL_S = 0.1
"""The interval of the fixed sizes, so that a small load does not run epoch after epoch."""


def measure(records: int, rounds: int, sizes: Sequence[int], rate: int, rate_s: float) -> dict[str, Any]:
    candidates = {ADAPTIVE: load_settings()} | {f"{size:,}": _fixed(size) for size in sizes}
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    cpu_us: dict[str, list[float]] = {name: [] for name in candidates}
    latency: dict[str, dict[str, float | None]] = {}
    with tempfile.TemporaryDirectory(prefix="procession-bench-") as directory, ExitStack() as stack:
        work = Path(directory)
        inputs = {"warm": WARM_RECORDS, "small": int(rate * rate_s)} | {
            f"round-{turn}": records for turn in range(rounds)
        }
        for name, count in inputs.items():
            write_input(work / name, range(count))
        running = {
            name: started(stack, work / f"size-{number}", settings)
            for number, (name, settings) in enumerate(candidates.items())
        }
        for pipeline in running.values():
            pipeline.run(work / "warm", rate=WARM_RECORDS / WARM_S)
        for turn in range(rounds):
            for name, pipeline in running.items():
                taken_s, _, used = pipeline.run(work / f"round-{turn}")
                seconds[name].append(taken_s)
                cpu_us[name].append(sum(used.values()) / records * 1e6)
        for name, pipeline in running.items():
            pipeline.forget_latency()
            pipeline.run(work / "small", rate=rate, is_stamping=True)
            latency[name] = {"p50": pipeline.latency.quantile(0.5), "p99": pipeline.latency.quantile(0.99)}
        stack.close()
        check_outputs([work / f"size-{number}" / "output" for number in range(len(running))])
    ratios = {
        name: statistics.median(
            fixed_s / adaptive_s for fixed_s, adaptive_s in zip(seconds[name], seconds[ADAPTIVE], strict=True)
        )
        for name in candidates
    }
    return {
        "sizes": {
            name: {
                "records_per_second": records / statistics.median(seconds[name]),
                "cpu_us_per_record": statistics.median(cpu_us[name]),
                "adaptive_relative_to_it": ratios[name],
                "latency_ms": latency[name],
            }
            for name in candidates
        },
        "adaptive_relative_to_best": min(ratios.values()),
    }


def report_lines(figures: Mapping[str, Any]) -> Iterator[str]:
    for name, found in figures["sizes"].items():
        p50, p99 = (found["latency_ms"][share] or 0.0 for share in ("p50", "p99"))
        yield (
            f"{name:>10} {found['records_per_second']:11,.0f} records/s, {found['cpu_us_per_record']:.2f} µs of"
            f" processor time; adaptive is {found['adaptive_relative_to_it']:.2f} of it; small load: p50 {p50:,.0f} ms,"
            f" p99 {p99:,.0f} ms"
        )
    yield f"adaptive, relative to the best fixed size: {figures['adaptive_relative_to_best']:.2f}"


def _fixed(size: int) -> Settings:
    return load_settings(epoch_target_s=0.0, epoch_records_max=size, epoch_interval_s=FIXED_INTERVAL_S)


def started(stack: ExitStack, work: Path, settings: Settings) -> RunningPipeline:
    work.mkdir()
    app = FORMS[FORM]
    supervisor = stack.enter_context(Supervisor(work / "logs"))
    local = LocalPipeline(supervisor, app, load_app(app).graph, work, work, settings)
    local.start()
    pipeline = RunningPipeline(supervisor, local, work)
    pipeline.until(lambda: pipeline.epochs > 0)
    return pipeline


def check_outputs(directories: Sequence[Path]) -> None:
    first = directories[0].parent / "committed"
    with first.open("wb") as file:
        file.writelines(committed_output(directories[0], None))
    for directory in directories[1:]:
        check_equal([first], committed_output(directory, None))
