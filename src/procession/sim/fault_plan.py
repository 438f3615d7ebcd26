"""Defines the plan of a run: its streams, records, sinks and limits, and its faults with their times.

Invariant: a plan and its seed determine the whole run. A plan can be saved as JSON, reduced (`shrink`) and run again.
`world` runs it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from procession.errors import ConfigError
from procession.sim.randomness import Randomness

GATEWAY, DRIVER, SPARK = "gateway", "driver", "spark"

KINDS: Mapping[str, tuple[str, ...]] = {
    GATEWAY: ("kill", "kill", "kill", "power", "power", "pause", "cut", "cut", "half-close", "full", "fsync", "stop"),
    DRIVER: (
        "kill",
        "kill",
        "zombie",
        "zombie",
        "takeover",
        "takeover",
        "power",
        "pause",
        "cut",
        "full",
        "fsync",
        "stop",
        "ghost",
    ),
    SPARK: ("kill", "pause", "pause", "takeover", "zombie"),
    "follower": (
        "kill",
        "kill",
        "kill",
        "power",
        "pause",
        "cut",
        "cut",
        "half-close",
        "fsync",
        "stop",
        "leave",
        "leave",
    ),
    "sink": (
        "kill",
        "kill",
        "kill",
        "power",
        "pause",
        "cut",
        "cut",
        "half-close",
        "full",
        "fsync",
        "abort",
        "abort",
        "hang",
    ),
    "producer": ("kill", "kill", "pause", "cut", "half-close", "ghost"),
}
"""The faults of each part; a repeated entry is drawn more often. `site` has only one fault, a power cut of all
machines."""

SET_BACKS = ("set-back", "lost")
"""A gateway's directory is lost, or replaced by a copy taken at the fault's step, once that copy lacks committed data.
The newest directory is put back when the gateway has refused the driver."""
GONE, ZOMBIE_GATEWAY = "gone", "zombie-gateway"
LOSSES = (GONE, ZOMBIE_GATEWAY)
"""A gateway is lost for good with its directory, or only seems to be lost and wakes up later. The operator abandons it
after the fault's time."""
LOSS_SHARE = 0.25
"""Share of worlds with several gateways in which one is lost."""
SET_BACK_SHARE = 0.04
"""Share of worlds with one gateway that have set-backs. In these a gateway waits until its directory is confirmed."""
SET_BACK_SHARE_OF_SEVERAL = 0.15
"""Share of worlds with several gateways that have set-backs. It is higher because there are fewer such worlds, and
the fault affects only one gateway."""
SET_BACK_REACH = 0.6
"""Copies are taken within this share of the steps, so that epochs are committed after the copy."""
JOINS = range(40, 120)
"""Steps of the leader within which most other gateways join. If the first producer connects to another gateway first,
half of the leader's copies are taken in these steps."""

DISK_FAULTS = ("scatter", "read-only")
"""A power cut that leaves any of the sectors that were written since the last sync, and a file system that is read-only
until an operator mounts it again."""
DISK_FAULT_SHARE = 0.12
"""Share of worlds with one of these faults in addition to their other faults."""

STEPS = {GATEWAY: 200, "follower": 170, DRIVER: 170, SPARK: 90, "sink": 90, "producer": 20}
"""Approximate number of steps of a part in a run of five records without faults."""
EDGES = {GATEWAY: 40, "follower": 34, DRIVER: 46, SPARK: 12, "sink": 20}
"""Approximate number of edges in such a run. A crash at an edge reveals a missing sync."""
EDGE_SHARE = 0.35
"""Share of the faults of parts with a disk that are injected at an edge."""


@dataclass(frozen=True, slots=True)
class WorldSize:
    """The values from which a world of this size is drawn. A value that is listed twice is drawn twice as often."""

    streams: tuple[int, ...]
    records: tuple[int, ...]
    sinks: tuple[int, ...]
    faults: tuple[int, ...]
    epoch_records_max: tuple[int, ...]
    twins: float
    """Probability that a stream has a second producer."""
    reach: float
    """Faults are injected within this multiple of `STEPS`."""


SMALL = WorldSize(
    streams=(1, 1, 1, 1, 1, 1, 1, 2),
    records=(1, 1, 2, 2, 3),
    sinks=(1, 1, 1, 2),
    faults=(1, 1, 2, 2, 3, 4),
    epoch_records_max=(1, 2, 1000, 1000),
    twins=0.05,
    reach=0.8,
)
LARGE = WorldSize(
    streams=(1, 1, 1, 2, 2, 3),
    records=(0, 1, 2, 3, 4, 5, 7),
    sinks=(1, 1, 2),
    faults=(0, 1, 2, 3, 4, 5, 6),
    epoch_records_max=(1, 2, 3, 5, 8, 1000),
    twins=0.08,
    reach=1.5,
)
SMALL_SHARE = 0.75
"""Share of small worlds. Most bugs need only a few events, and small worlds find them faster; the large worlds are for
bugs that need many records, epochs or faults."""


TASKS = ((1,), (2,), (3,), (2, 3), (3, 1, 2))
"""A restarted driver may have another number of tasks; each task then takes over its share of the keys."""

SEVERAL_SHARE = 0.25
"""Share of worlds with several gateways, which are slower."""


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """A fault at the part's `step`-th step, or `delay_s` after it. `seconds` is its duration, or the time until the
    part is restarted. With a delay, a fault can also hit a part that waits and takes no steps."""

    part: str
    step: int
    kind: str
    seconds: float
    delay_s: float = 0.0
    is_at_edge: bool = False
    """Whether `step` counts only edges: the moments before the part syncs or renames a file."""


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """A stream with this number of records. Its ids are 0, 1, 2, …, or line positions as in a file source."""

    records: int
    is_dense: bool
    has_twin: bool = False
    """Whether a second producer requests the same stream."""
    replays: str = "no"
    """Where the producer begins after a reconnect: after the committed records (no), at the beginning (zero), or
    between."""


@dataclass(frozen=True, slots=True)
class SinkPlan:
    """A sink: Procession's own, or a third-party sink whose reported position is unreliable."""

    is_ours: bool = True
    answers_phase2: bool = True
    lists_refused: bool = False
    """Whether the sink lists transactions that it voted to abort, and would crash if asked to commit one."""


@dataclass(frozen=True, slots=True)
class FaultPlan:
    seed: int
    streams: tuple[StreamPlan, ...]
    sinks: tuple[SinkPlan, ...]
    faults: tuple[PlannedFault, ...] = ()
    credits_max: int = 16
    epoch_records_max: int = 8
    segment_rows_max: int = 6
    is_one_machine: bool = False
    loss: float = 0.0
    gateways: int = 1
    """Number of gateways. The first gateway is the leader."""
    tasks: tuple[int, ...] = (1,)
    """Number of tasks that count by key, for the first driver, the second and so on; repeated cyclically."""
    first_home: int = 0
    """The number of the gateway to which the first producer connects first."""

    @property
    def gateway_parts(self) -> tuple[str, ...]:
        return (GATEWAY, *(f"{GATEWAY}-{number}" for number in range(1, self.gateways)))

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def to_json(self) -> str:
        return json.dumps(self.as_dict(), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> FaultPlan:
        """Parse a plan as `to_json` writes it, or a scenario with a plan under `plan`."""
        try:
            document = json.loads(text)
            fields: dict[str, Any] = dict(document.get("plan", document))
            fields["streams"] = tuple(StreamPlan(**stream) for stream in fields["streams"])
            fields["sinks"] = tuple(SinkPlan(**sink) for sink in fields["sinks"])
            fields["faults"] = tuple(PlannedFault(**fault) for fault in fields["faults"])
            fields["tasks"] = tuple(fields.get("tasks", (1,)))
            plan = cls(**fields)
            wrong = next(plan._wrong(), None)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            wrong = f"it does not have a plan's fields ({type(error).__name__}: {error})"
        if wrong is not None:
            raise ConfigError(
                f"this is not a plan of a simulation: {wrong}", next_step="give one as `procession simulate` prints it"
            )
        return plan

    def _wrong(self) -> Iterator[str]:
        """Raise an error for a plan that cannot run as intended."""
        numbers = {
            "seed": (self.seed, 0),
            "credits_max": (self.credits_max, 1),
            "epoch_records_max": (self.epoch_records_max, 1),
            "segment_rows_max": (self.segment_rows_max, 1),
            "gateways": (self.gateways, 1),
            "the number of sinks": (len(self.sinks), 1),
            "tasks": (min(self.tasks, default=0), 1),
            "first_home": (self.first_home, 0),
            "records": (min((stream.records for stream in self.streams), default=0), 0),
            "step": (min((fault.step for fault in self.faults), default=1), 1),
        }
        yield from (f"{name} is {value!r}" for name, (value, least) in numbers.items() if value < least)
        parts = {*self.gateway_parts, DRIVER, SPARK}
        parts |= {f"sink-{number}" for number in range(len(self.sinks))}
        for number, stream in enumerate(self.streams):
            parts |= {f"producer-{number}", *([f"producer-{number}-twin"] if stream.has_twin else [])}
        for fault in self.faults:
            if fault.part not in parts:
                yield f"a fault is for {fault.part!r}, and there is no such part"
            elif fault.kind in SET_BACKS and fault.part not in self.gateway_parts:
                yield f"{fault.kind!r} is done to a gateway, if at all"
            elif fault.kind in LOSSES and fault.part not in self.gateway_parts[1:]:
                yield f"{fault.kind!r} is done to a gateway that does not lead, if at all"
            elif fault.kind in DISK_FAULTS and _role(fault.part) not in EDGES:
                yield f"{fault.kind!r} is done to a part with a disk"
            elif fault.kind not in (*KINDS[_role(fault.part)], *SET_BACKS, *LOSSES, *DISK_FAULTS, "blackout"):
                yield f"{fault.kind!r} is nothing that can be done to {fault.part!r}"

    def with_faults(self, faults: tuple[PlannedFault, ...]) -> FaultPlan:
        return replace(self, faults=faults)


def make_plan(seed: int, chance: Randomness) -> FaultPlan:
    """Return the plan of a seed; `chance` must be that seed's generator."""
    size = SMALL if chance.random() < SMALL_SHARE else LARGE
    streams = tuple(
        StreamPlan(
            records=chance.choice(size.records),
            is_dense=chance.random() < 0.6,
            has_twin=chance.random() < size.twins,
            replays=chance.choice(("no", "no", "no", "zero", "some")),
        )
        for _ in range(chance.choice(size.streams))
    )
    sinks = tuple(_sink(chance) for _ in range(chance.choice(size.sinks)))
    parts = [GATEWAY, GATEWAY, DRIVER, DRIVER, DRIVER, SPARK, SPARK, "site"]
    parts += [f"sink-{number}" for number in range(len(sinks))] * 2
    parts += [f"producer-{number}" for number in range(len(streams))]
    plan = FaultPlan(
        seed=seed,
        streams=streams,
        sinks=sinks,
        faults=tuple(_fault(chance, chance.choice(parts), size) for _ in range(chance.choice(size.faults))),
        credits_max=chance.choice((3, 8, 16, 16, 16, 16)),
        epoch_records_max=chance.choice(size.epoch_records_max),
        segment_rows_max=chance.choice((1, 4, 1000)),
        is_one_machine=chance.random() < 0.3,
        loss=chance.choice((0.0, 0.0, 0.05)),
    )
    if chance.random() < SEVERAL_SHARE:
        plan = _with_several(plan, chance, size)
    plan = replace(plan, tasks=chance.choice(TASKS))
    # Drawn last, so that other plans do not change.
    if chance.random() < (SET_BACK_SHARE if plan.gateways == 1 else SET_BACK_SHARE_OF_SEVERAL):
        part = GATEWAY if plan.gateways == 1 else chance.choice(plan.gateway_parts)
        step = 1 + int(STEPS[_role(part)] * SET_BACK_REACH * chance.random())
        fault = PlannedFault(part, step, chance.choice(SET_BACKS), round(0.3 * chance.random(), 3))
        if part == GATEWAY and plan.gateways > 1 and chance.random() < 0.5:
            fault = replace(fault, step=chance.choice(JOINS), kind="set-back")
            plan = replace(plan, first_home=1)
        plan = plan.with_faults((*plan.faults, fault))
    if chance.random() < DISK_FAULT_SHARE:
        part = chance.choice((*plan.gateway_parts, DRIVER, DRIVER, "sink-0", "sink-0"))
        kind = chance.choice(DISK_FAULTS)
        step = 1 + int(EDGES[_role(part)] * size.reach * chance.random())
        seconds = round(0.3 * chance.random(), 3)
        plan = plan.with_faults((*plan.faults, PlannedFault(part, step, kind, seconds, is_at_edge=True)))
    if plan.gateways > 1 and chance.random() < LOSS_SHARE:
        part, kind = chance.choice(plan.gateway_parts[1:]), chance.choice(LOSSES)
        step = 1 + int(STEPS[_role(part)] * size.reach * chance.random())
        seconds = round(0.6 * chance.random(), 3)
        plan = replace(plan.with_faults((*plan.faults, PlannedFault(part, step, kind, seconds))), first_home=1)
    return plan


def _with_several(plan: FaultPlan, chance: Randomness, size: WorldSize) -> FaultPlan:
    """Return the plan with two or three gateways, streams that several producers request, and matching faults."""
    plan = replace(plan, gateways=chance.choice((2, 2, 3)))
    streams = tuple(replace(stream, has_twin=chance.random() < 0.3) for stream in plan.streams)
    parts = [*plan.gateway_parts, *plan.gateway_parts, "producer-0"]
    faults = tuple(_fault(chance, chance.choice(parts), size) for _ in range(chance.choice((1, 2, 2, 3))))
    kept = plan.faults[: chance.choice((0, 0, 1, 2))]
    return replace(plan, streams=streams, faults=kept + faults)


def _sink(chance: Randomness) -> SinkPlan:
    if chance.random() < 0.6:
        return SinkPlan()
    return SinkPlan(is_ours=False, answers_phase2=chance.random() < 0.3, lists_refused=chance.random() < 0.5)


def _role(part: str) -> str:
    role, _, number = part.partition("-")
    return "follower" if role == GATEWAY and number else role


def _fault(chance: Randomness, part: str, size: WorldSize) -> PlannedFault:
    if part == "site":
        part, kind = chance.choice((GATEWAY, DRIVER, "sink-0")), "blackout"
    else:
        kind = chance.choice(KINDS[_role(part)])
    role = _role(part)
    seconds = round(chance.choice((0.01, 0.1, 0.5)) * (0.1 + chance.random()), 3)
    if role in EDGES and chance.random() < EDGE_SHARE:
        return PlannedFault(part, 1 + int(EDGES[role] * size.reach * chance.random()), kind, seconds, is_at_edge=True)
    step = 1 + int(STEPS[role] * size.reach * chance.random())
    return PlannedFault(part, step, kind, seconds, round(chance.choice((0.0, 0.0, 0.02, 0.2)) * chance.random(), 3))
