"""Runs `procession demo`: a whole pipeline on one machine, or on the hosts of a cluster, verified byte for byte. With
`--crash` its parts are killed; on a cluster hosts are lost, too, and links are cut.

Invariant: the verdict comes from the verifier, which reads only the input and the sink's committed output. Uses
`deployment/local_pipeline` and `verify/comparison`.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from procession.cluster.host_faults import HostFaults
from procession.cluster.namespace_cluster import NamespaceCluster
from procession.deployment.cluster_pipeline import ClusterPipeline, on_cluster
from procession.deployment.local_pipeline import DRIVER, SOURCE, LocalPipeline
from procession.deployment.settings import Settings
from procession.driver.app_file import load_app
from procession.jobs.doctor import check_start
from procession.monitoring.progress import Display, PipelineProgress
from procession.supervisor.supervisor import Supervisor
from procession.verify.comparison import ComparisonReport, ComparisonRequest, judge
from procession.verify.order import PromisedOrder

APP = Path(__file__).with_name("apps") / "passthrough.py"
POLL_INTERVAL_S = 0.05
CRASH_SECONDS = 12
"""Seconds over which the input of a crash run is sent, so that kills happen during the work."""
CRASH_EPOCHS = 24
SINK = "sink-0"


@dataclass
class Demo:
    """One run of the demo. `seed` decides what is killed when."""

    records: int
    settings: Settings
    seed: int = 0
    is_crashing: bool = False
    directory: Path | None = None
    display: Display = field(default_factory=Display)
    cluster: NamespaceCluster | None = None

    def run(self) -> dict[str, Any]:
        """Run the demo. Return its figures; `outcome` is the verdict."""
        check_start(self.settings)
        work = self.directory or Path(tempfile.mkdtemp(prefix="procession-demo-"))
        work.mkdir(parents=True, exist_ok=True)
        sources = self._write_inputs(work)
        figures = self._stream(work, sources)
        if self.directory is None and figures["outcome"] in ("clean", "stopped"):
            shutil.rmtree(work)
        else:
            self.display.say(f"all files are kept in {work}")
        return figures

    def _write_inputs(self, work: Path) -> dict[str, Path]:
        """Write the input of each source, one per gateway."""
        count = self.settings.gateways
        names = [SOURCE] if count == 1 else [f"{SOURCE}-{number}" for number in range(count)]
        inputs = {name: work / f"input{name.removeprefix(SOURCE)}.txt" for name in names}
        self.display.say(f"writing {self.records:,} records to {', '.join(map(str, inputs.values()))}")
        for number, path in enumerate(inputs.values()):
            write_input(path, range(self.records * number // count, self.records * (number + 1) // count))
        return inputs

    def _stream(self, work: Path, sources: dict[str, Path]) -> dict[str, Any]:
        with Supervisor(work / "logs", say=self.display.say) as supervisor:
            settings = self._crash_settings() if self.is_crashing else self.settings
            local = self._pipeline(supervisor, work, list(sources.values()), settings)
            settings = local.settings
            progress = PipelineProgress(
                local.directory, settings.control_cookie, settings.client_tls, gateways=local.gateways_in
            )
            where = "" if self.cluster is None else f" on {self.cluster.count} hosts of cluster {self.cluster.name}"
            self.display.say(f"starting gateway, sink and Spark driver{where}")
            local.start()
            # The first epoch is empty, and includes Spark's one-time startup work.
            while progress.poll().epochs == 0 and supervisor.watch(POLL_INTERVAL_S):
                self.display.show(progress, sum(supervisor.restarts.values()))
            parts = [*sources, *local.gateway_parts, SINK, DRIVER]
            hosts = self.host_faults()
            crashes = self.crashes(parts, supervisor, hosts)
            if self.is_crashing:
                self.display.say(f"crashes, by seed {self.seed}: {crashes}")
            began = time.monotonic()
            if not supervisor.is_asked_to_stop:
                rate = self.records / CRASH_SECONDS / len(sources) if self.is_crashing else None
                for turn, (name, path) in enumerate(sources.items()):
                    local.start_source([path], rate=rate, is_stamping=True, name=name, turn=turn)
            with hosts or nullcontext():
                while supervisor.watch(POLL_INTERVAL_S) and not all(map(supervisor.is_done, sources)):
                    self.display.show(progress.poll(), sum(supervisor.restarts.values()))
                    crashes.poll(progress.committed)
                    if hosts is not None:
                        hosts.poll()
                seconds = time.monotonic() - began
            supervisor.stop()
            progress.poll()
            restarts = dict(supervisor.restarts)
            was_stopped = supervisor.is_asked_to_stop
        # With several gateways there is no order between sources; only each source's own order is promised.
        order = PromisedOrder.TOTAL if len(sources) == 1 else PromisedOrder.STREAM
        output = next(iter(local.sink_directories.values()))
        request = ComparisonRequest(list(sources.values()), output, order=order)
        # If the demo was stopped before the sink began its output, there is nothing to verify.
        is_judged = not was_stopped or bool(request.outputs())
        report = judge(request) if is_judged else ComparisonReport(())
        figures = self._figures(report, progress, seconds, restarts, crashes.left, was_stopped=was_stopped)
        figures["host_faults"] = [] if hosts is None else hosts.performed
        if self.cluster is not None and figures["outcome"] in ("clean", "stopped"):
            for directory in (local.directory, local.gateways_in):
                shutil.rmtree(directory)
        return figures

    def _pipeline(
        self, supervisor: Supervisor, work: Path, inputs: Sequence[Path], settings: Settings
    ) -> LocalPipeline | ClusterPipeline:
        graph = load_app(APP).graph
        if self.cluster is None:
            return LocalPipeline(supervisor, APP, graph, work, work, settings)
        place = f"{graph.name}-{uuid.uuid4().hex[:8]}"
        return on_cluster(self.cluster, supervisor, APP, graph, settings, place=place, inputs=inputs)

    def host_faults(self) -> HostFaults | None:
        """Return the faults of the hosts. None unless it is a crash run on a cluster."""
        if self.cluster is None or not self.is_crashing:
            return None
        return HostFaults(self.cluster, self.display.say)

    def crashes(self, parts: Sequence[str], supervisor: Supervisor, hosts: HostFaults | None) -> Crashes:
        """Return the schedule of kills and of cuts of links."""

        def kill(part: str) -> bool:
            if supervisor.pid(part) is None:
                return False
            self.display.say(f"SIGKILL to {part}")
            supervisor.kill(part)
            return True

        ways: dict[str, Callable[[str], bool]] = {}
        if self.is_crashing:
            ways |= dict.fromkeys(parts, kill)
        if hosts is not None:
            ways |= dict.fromkeys(hosts.names, hosts.perform)
        return Crashes(self.seed, self.records, ways)

    def _crash_settings(self) -> Settings:
        return self.settings.model_copy(update={"epoch_records_max": max(1, self.records // CRASH_EPOCHS)})

    def _figures(
        self,
        report: ComparisonReport,
        progress: PipelineProgress,
        seconds: float,
        restarts: dict[str, int],
        left: Sequence[str],
        *,
        was_stopped: bool,
    ) -> dict[str, Any]:
        judged = report.as_dict()
        outcome = str(judged["outcome"])
        if outcome == "clean" and left:
            outcome = "unknown"
            self.display.say(f"the run ended before these were killed or cut: {', '.join(left)}")
        return {
            "records": self.records,
            "committed": judged["committed"],
            "lost": judged["lost"],
            "doubled": judged["doubled"],
            "disordered": judged["disordered"],
            "corrupt": judged["corrupt"],
            "outcome": "stopped" if was_stopped else outcome,
            "epochs": progress.epochs,
            "seconds": round(seconds, 3),
            "records_per_second": round(judged["committed"] / seconds) if seconds else 0,
            "latency_ms": {"p50": progress.latency_ms(0.5), "p99": progress.latency_ms(0.99)},
            "restarts": sum(restarts.values()),
            "restarts_by_part": restarts,
        }


class Crashes:
    """The schedule of a crash run: each name once, at a number of committed records that the seed decides.

    Each name has a way to kill or to cut it. A way returns False if there was nothing to kill; it is tried again."""

    def __init__(self, seed: int, records: int, ways: Mapping[str, Callable[[str], bool]]) -> None:
        chance = random.Random(seed)
        names = chance.sample(list(ways), len(ways))
        self._ways = ways
        self._schedule = [
            (int(records * (number + chance.uniform(0.2, 0.8)) / (len(names) + 1)), name)
            for number, name in enumerate(names)
        ]

    @property
    def left(self) -> list[str]:
        """The parts that were not killed yet."""
        return [name for _, name in self._schedule]

    def poll(self, committed: int) -> None:
        """Kill or cut what is due after this number of committed records."""
        self._schedule = [
            (records, name)
            for records, name in self._schedule
            if committed < max(1, records) or not self._ways[name](name)
        ]

    def __str__(self) -> str:
        return ", ".join(f"{name} at {records:,}" for records, name in self._schedule)


def write_input(path: Path, numbers: Iterable[int]) -> None:
    """Write short, unique records, each with its number and a checksum."""
    with path.open("w") as file:
        file.writelines(f"{number:010d} {number * 2654435761 % 2**32:08x}\n" for number in numbers)


def sentence(figures: dict[str, Any]) -> str:
    """Return the verdict as a sentence."""
    if figures["outcome"] == "stopped":
        return f"stopped: {figures['committed']:,} of {figures['records']:,} records were committed"
    latency = figures["latency_ms"]
    verdict = (
        f"{figures['records']:,} records: {figures['lost']:,} lost, {figures['doubled']:,} doubled,"
        f" {figures['disordered']:,} out of order"
    )
    speed = f"{figures['records_per_second']:,} records/s in {figures['epochs']:,} epochs, {figures['seconds']:.1f} s"
    ends = [f"p{name[1:]} {value:,.0f} ms" for name, value in latency.items() if value is not None]
    faults = f"; faults of hosts: {', '.join(figures['host_faults'])}" if figures["host_faults"] else ""
    return f"{verdict}\n{speed}; latency {', '.join(ends) or 'not measured'}; {figures['restarts']} restarts{faults}"
