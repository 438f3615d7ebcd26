"""Measures the control plane at sizes that no test machine has: leader, offsets, rounds and manifests.

It runs the shipped decision cores in this process, without sockets, disks or Spark, for growing numbers of gateways,
and measures processor time. A step *bends* if its time per unit grows with the number of units, so that its share of
the machine grows with the pipeline.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from procession.api.pipeline import Pipeline
from procession.bench.control_step import ControlSize, Step, timed
from procession.bench.exchange_costs import exchange_steps
from procession.commit.coordinator import Coordinator
from procession.commit.round_events import (
    Acknowledge,
    CommitFound,
    EmitEpoch,
    EpochReady,
    Phase2Confirmed,
    RecordWritten,
    SendPhase2,
    SinkConnected,
    VoteReceived,
    WriteRecord,
)
from procession.commit.round_record import RoundRecord
from procession.gateway.gateway_limits import Limits
from procession.gateway.leader import Leadership
from procession.gateway.members import Member, Members
from procession.gateway.state import GatewayState
from procession.operators import aggregates
from procession.planner.plan import Plan
from procession.planner.rules import make_plan
from procession.spark.epoch_tasks import ranges_of
from procession.spark.manifest_routing import RoutedManifest, attempts_digest, manifests, opened, sent
from procession.spark.tasks import Task
from procession.storage.log_ranges import FIRST_GATEWAY, LogLocation, LogOffset, read_offsets, sequences
from procession.storage.run_store import EVERY_BUCKET, Manifest, Run

SIZES = (10, 100, 1000)
"""Numbers of gateways that are measured by default."""
BEND = 3.0
"""A step bends if the time per unit grows by this factor when there are ten times as many units."""
GROWTH = 10
RECORDS = 1_000_000
"""Records of each gateway in an epoch. The records themselves are not created."""


def measure(sizes: Sequence[int], rounds: int) -> dict[str, Any]:
    """Return the steps at each number of gateways, the least time of some rounds, and which of them bend."""
    found: dict[int, list[Step]] = {}
    for gateways in sizes:
        repeated = [list(steps(ControlSize(gateways))) for _ in range(rounds)]
        found[gateways] = [min(same, key=lambda step: step.cpu_s) for same in zip(*repeated, strict=True)]
    return {
        "sizes": {
            str(gateways): {step.name: {**asdict(step), "unit_us": step.unit_us} for step in listed}
            for gateways, listed in found.items()
        },
        "epoch_cpu_s": {str(gateways): epoch_cpu_s(listed) for gateways, listed in found.items()},
        "growth": growth(found),
        "bends": [name for name, factor in growth(found).items() if factor > BEND],
    }


def epoch_cpu_s(listed: Sequence[Step]) -> float:
    """Return the processor time of the driver for the control plane of one epoch."""
    return sum(step.cpu_s for step in listed if step.is_of_epoch)


def growth(steps_of: Mapping[int, Sequence[Step]]) -> dict[str, float]:
    """Return by how much the time per unit of each step grows when there are ten times as many units, between the two
    largest sizes."""
    if len(steps_of) < 2:
        return {}
    *_, before, after = sorted(steps_of)
    earlier = {step.name: step for step in steps_of[before]}
    factors = {}
    for step in steps_of[after]:
        times = step.units / earlier[step.name].units
        factors[step.name] = (step.unit_us / earlier[step.name].unit_us) ** (1 / max(1.0, _decades(times)))
    return factors


def _decades(times: float) -> float:
    count = 0.0
    while times >= GROWTH:
        times /= GROWTH
        count += 1
    return count


def report_lines(figures: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each step with its time per unit at each size."""
    sizes = list(figures["sizes"])
    yield f"{'gateways':42}" + "".join(f"{size:>14}" for size in sizes) + "        growth"
    for name, step in figures["sizes"][sizes[-1]].items():
        costs = "".join(f"{figures['sizes'][size][name]['unit_us']:11.2f} µs" for size in sizes)
        factor = figures["growth"].get(name)
        grown = "" if factor is None else f"{factor:12.2f} x"
        yield f"{name + ', per ' + step['unit']:42}{costs}{grown}{'  bends' if name in figures['bends'] else ''}"
    yield f"{'one epoch, all its steps':42}" + "".join(
        f"{seconds * 1e3:11.1f} ms" for seconds in figures["epoch_cpu_s"].values()
    )
    if "spark_task_cpu_us" in figures:
        yield f"Spark's scheduler, a task that does nothing: {figures['spark_task_cpu_us']:.0f} µs in the driver's JVM"
    for name, step in figures["sizes"][sizes[-1]].items():
        if step["size_bytes"]:
            yield f"{name}: {step['size_bytes'] / 1e6:.2f} MB with {sizes[-1]} gateways"


def steps(size: ControlSize) -> Iterator[Step]:
    """Measure every step at this size."""
    yield from _leader_steps(size)
    yield from _offset_steps(size)
    yield from _round_steps(size)
    yield from _manifest_steps(size)
    yield from exchange_steps(size)


# The leader


class MemoryStore:
    """The members' file, in memory."""

    path = Path("gateways.json")

    def __init__(self) -> None:
        self.written_bytes = 0

    def load(self) -> bytes | None:
        return None

    def save(self, document: bytes) -> None:
        self.written_bytes += len(document)


def _leader_steps(size: ControlSize) -> Iterator[Step]:
    store = MemoryStore()
    leadership = Leadership(Members(store), GatewayState(Limits(), is_leading=True), lambda event: None)
    leadership.begin(_member(0))
    links: list[int] = []

    def join() -> None:
        links.extend(leadership.join(_member(number), [], {}, 0)[0] for number in range(1, size.gateways + 1))

    cpu_s, _ = timed(join)
    yield Step("leader: gateways join", "gateway", size.gateways, cpu_s, store.written_bytes)

    def grant() -> None:
        for path in range(size.paths):
            granted = leadership.notify(links[path % len(links)], path)
            assert granted["granted"]

    cpu_s, _ = timed(grant)
    yield Step("leader: streams are granted", "stream", size.paths, cpu_s)
    cpu_s, replies = timed(lambda: [json.dumps(leadership.beat(link)) for link in links])
    yield Step("leader: heartbeats", "gateway", size.gateways, cpu_s, sum(map(len, replies)))

    def give_up() -> None:
        for path in range(size.paths):
            leadership.given_up(links[path % len(links)], path, 5)

    cpu_s, _ = timed(give_up)
    yield Step("leader: streams are released", "stream", size.paths, cpu_s)
    cpu_s, _ = timed(lambda: [leadership.beat(link) for link in links])
    yield Step("leader: heartbeats after releases", "gateway", size.gateways, cpu_s)


def _member(number: int) -> Member:
    host = f"10.{number >> 16}.{(number >> 8) & 255}.{number & 255}"
    name = _gateway(number)
    return Member(name, f"{number:032x}", f"{host}:7100", f"{host}:7101", f"/data/{name}/log", f"{host}:7102")


def _gateway(number: int) -> str:
    return FIRST_GATEWAY if not number else f"gateway-{number}"


# Offsets


def _offset_steps(size: ControlSize) -> Iterator[Step]:
    names = [_gateway(number) for number in range(size.gateways)]
    places = {name: LogLocation(f"/data/{name}/log", name, f"{name}:7102") for name in names}
    offsets = {name: LogOffset(RECORDS, "0" * 16, "0" * 16).as_json() for name in names}

    def write() -> str:
        return json.dumps(dict(sorted(offsets.items())))

    cpu_s, text = timed(write)
    read_s, _ = timed(lambda: read_offsets(json.loads(text)))
    yield Step("offsets: written and read", "gateway", size.gateways, cpu_s + read_s, len(text), is_of_epoch=True)
    task = Task(_plan(size.gateways), Path("log"), Path("runs"))

    def deal() -> Sequence[Any]:
        return ranges_of(task, {}, sequences(offsets), places, size.gateways, read_offsets(offsets))

    cpu_s, ranges = timed(deal)
    assert sum(part.last - part.first for part in ranges) == RECORDS * size.gateways
    yield Step("offsets: ranges of tasks", "task", size.gateways, cpu_s, is_of_epoch=True)


# Rounds


def _round_steps(size: ControlSize) -> Iterator[Step]:
    sinks = [f"output.{number}" for number in range(size.gateways)]
    core = Coordinator(
        pipeline="bench", checkpoint="0" * 8, fence=1, fingerprint="", sinks=sinks, rounds={}, committed=-1
    )
    for sink in sinks:
        core.handle(SinkConnected(sink, (), None))
    run_round(core, size, 0)  # its phase 2 is confirmed by the votes of the next
    cpu_s, record = timed(lambda: run_round(core, size, 1))
    yield Step("round: two phases", "connection", size.gateways, cpu_s, is_of_epoch=True)
    cpu_s, data = timed(record.to_json)
    read_s, _ = timed(lambda: RoundRecord.from_json(data))
    yield Step("round: record written and read", "path", size.paths, cpu_s + read_s, len(data), is_of_epoch=True)


def run_round(core: Coordinator, size: ControlSize, epoch: int) -> RoundRecord:
    """Run the round of one epoch with sinks that all commit, and return its record."""
    ready = EpochReady(
        epoch,
        dict.fromkeys(core.sinks, 100),
        positions=dict.fromkeys(range(size.paths), epoch),
        ends={_gateway(number): RECORDS * (epoch + 1) for number in range(size.gateways)},
    )
    written: RoundRecord | None = None
    for emit in core.handle(ready):
        if not isinstance(emit, EmitEpoch):
            continue
        for action in core.handle(VoteReceived(emit.sink, emit.txn, commit=True)):
            if isinstance(action, WriteRecord):
                written = action.record
    assert written is not None
    core.handle(RecordWritten(epoch))
    actions = core.handle(CommitFound(epoch))
    assert any(isinstance(action, Acknowledge) for action in actions)
    for action in actions:
        if isinstance(action, SendPhase2) and epoch % 2:
            core.handle(Phase2Confirmed(action.sink, action.txn))
    return written


# Manifests


def _plan(tasks: int) -> Plan:
    """Return a plan with one exchange between two levels of this many tasks."""
    pipeline = Pipeline("bench", parallelism=tasks)
    keyed = pipeline.source("records", codec="text").key_by(str)
    keyed.rolling(aggregates.count()).map(str).sink("output", to="file:output", codec="text")
    return make_plan(pipeline.graph())


def _manifest_steps(size: ControlSize) -> Iterator[Step]:
    plan, tasks = _plan(size.gateways), size.gateways
    behind = next(chain for chain in plan.chains if chain.root is not None)
    assert behind.root is not None
    to, is_wide = plan.node(behind.root).id, plan.is_wide(behind.level)
    buckets = [EVERY_BUCKET] if is_wide else range(tasks)
    files = [f"{number:06d}.arrow" for number in range(tasks)]

    def first(partition: int) -> list[RoutedManifest]:
        runs = tuple(Run(to, bucket, files[partition], RECORDS, RECORDS) for bucket in buckets)
        return sent(plan, Manifest(1, 0, partition, 0, RECORDS, RECORDS, runs, {partition: 5}), tasks)

    cpu_s, texts = timed(lambda: [item.to_json() for number in range(tasks) for item in first(number)])
    yield Step("manifests: made by the first tasks", "task", tasks, cpu_s, sum(map(len, texts)))
    cpu_s, envelopes = timed(lambda: [RoutedManifest.from_json(text) for text in texts])
    yield Step("manifests: read by the driver", "task", tasks, cpu_s, is_of_epoch=True)
    moving = [item for item in envelopes if item.level == behind.level]
    mine = [item for item in moving if is_wide or item.slot == 0]
    cpu_s, heard = timed(lambda: opened(plan, behind.level, 0, mine))
    yield Step("manifests: opened by one task", "sender", tasks, cpu_s)
    second = Manifest(1, behind.number, 0, 0, 0, inputs_digest=attempts_digest(heard))
    last = [sent(plan, replace(second, partition=number), tasks)[-1] for number in range(tasks)]
    kept = [item for item in envelopes if item.manifest]
    cpu_s, reported = timed(lambda: manifests(plan, [*kept, *last]))
    assert len(reported) == 2 * tasks
    yield Step("manifests: checked by the driver", "task", 2 * tasks, cpu_s, is_of_epoch=True)
