"""The plan of a run: how many streams, records and sinks, which limits, and which faults strike when.

The one rule: a plan and its seed are the whole run; nothing else is drawn from anywhere. It can be written down as
JSON, made smaller (`shrink`) and run again. Before it: a seed. After it: `world`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from procession.errors import ConfigError
from procession.sim.randomness import Chance

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
"""What can be done to a part; what stands twice is done twice as often. `site` has one only: all power is cut."""

SET_BACKS = ("set-back", "lost")
"""A gateway's directory is replaced by a copy that is taken at the fault's step, when that is older than what is
committed; or by nothing. It is put back when the gateway has refused the driver."""
SET_BACK_SHARE = 0.04
"""So many of the worlds with one gateway have that. In these the gateway waits until its directory is confirmed."""
SET_BACK_REACH = 0.6
"""The copy is taken early, so that something is committed behind it."""

STEPS = {GATEWAY: 110, "follower": 90, DRIVER: 150, SPARK: 130, "sink": 60, "producer": 20}
"""About how many steps a part takes in a quiet run of five records, or a little more."""
EDGES = {GATEWAY: 32, "follower": 24, DRIVER: 40, SPARK: 32, "sink": 20}
"""The same, of edges: what was forgotten shows if it dies there."""
EDGE_SHARE = 0.35
"""So many faults of parts that have a disk strike at an edge, and not anywhere."""


@dataclass(frozen=True, slots=True)
class Size:
    """What is drawn for a world of this size: of each line one, and what stands twice is drawn twice as often."""

    streams: tuple[int, ...]
    records: tuple[int, ...]
    sinks: tuple[int, ...]
    faults: tuple[int, ...]
    epoch_records_max: tuple[int, ...]
    twins: float
    """How likely a stream has a second producer."""
    reach: float
    """Faults strike within `STEPS`, times this."""


SMALL = Size(
    streams=(1, 1, 1, 1, 1, 1, 1, 2),
    records=(1, 1, 2, 2, 3),
    sinks=(1, 1, 1, 2),
    faults=(1, 1, 2, 2, 3, 4),
    epoch_records_max=(1, 2, 1000, 1000),
    twins=0.05,
    reach=0.8,
)
LARGE = Size(
    streams=(1, 1, 1, 2, 2, 3),
    records=(0, 1, 2, 3, 4, 5, 7),
    sinks=(1, 1, 2),
    faults=(0, 1, 2, 3, 4, 5, 6),
    epoch_records_max=(1, 2, 3, 5, 8, 1000),
    twins=0.08,
    reach=1.5,
)
SMALL_SHARE = 0.75
"""So many of the worlds are small. What goes wrong mostly goes wrong between a few things, so small worlds find it in a
fraction of the time; the rest need many records, many epochs or many faults, and for those there are large ones."""


TASKS = ((1,), (2,), (3,), (2, 3), (3, 1, 2))
"""A driver that is started again may have another number of tasks: then each of them takes over what is now its own."""

SEVERAL_SHARE = 0.25
"""So many of the worlds have several gateways: these cost more."""


@dataclass(frozen=True, slots=True)
class Fault:
    """At its `step`-th step, or `delay_s` later, this happens to the part; `seconds` is how long it lasts, or until
    the part is started again. A delay reaches a part that waits, and takes no steps."""

    part: str
    step: int
    kind: str
    seconds: float
    delay_s: float = 0.0
    is_at_edge: bool = False
    """`step` counts edges only: the moments before the part puts something on disk, or renames it."""


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """A stream: so many records; ids are 0, 1, 2, …, or the positions of lines as a file source has them."""

    records: int
    is_dense: bool
    has_twin: bool = False
    """A second producer wants the same stream."""
    replays: str = "no"
    """After a reconnect: begins after what is committed (no), at the beginning (zero), or somewhere between."""


@dataclass(frozen=True, slots=True)
class SinkPlan:
    """Our own sink, or one of those in the wild, whose position is not to be relied on."""

    is_ours: bool = True
    answers_phase2: bool = True
    lists_refused: bool = False
    """Lists transactions that it voted to abort, and would die if told to commit one."""


@dataclass(frozen=True, slots=True)
class Plan:
    seed: int
    streams: tuple[StreamPlan, ...]
    sinks: tuple[SinkPlan, ...]
    faults: tuple[Fault, ...] = ()
    credits_max: int = 16
    epoch_records_max: int = 8
    segment_rows_max: int = 6
    is_one_machine: bool = False
    loss: float = 0.0
    gateways: int = 1
    """The first leads the others."""
    tasks: tuple[int, ...] = (1,)
    """How many tasks count by key: of the first driver, the second and so on, and round again."""

    @property
    def sets_back(self) -> bool:
        """Whether the directory of a gateway may not be the one that it had last."""
        return any(fault.kind in SET_BACKS for fault in self.faults)

    @property
    def gateway_parts(self) -> tuple[str, ...]:
        return (GATEWAY, *(f"{GATEWAY}-{number}" for number in range(1, self.gateways)))

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def to_json(self) -> str:
        return json.dumps(self.as_dict(), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """A plan as `to_json` writes it, or a scenario that has one under `plan`."""
        try:
            told = json.loads(text)
            fields: dict[str, Any] = dict(told.get("plan", told))
            fields["streams"] = tuple(StreamPlan(**stream) for stream in fields["streams"])
            fields["sinks"] = tuple(SinkPlan(**sink) for sink in fields["sinks"])
            fields["faults"] = tuple(Fault(**fault) for fault in fields["faults"])
            fields["tasks"] = tuple(fields.get("tasks", (1,)))
            plan = cls(**fields)
            wrong = next(plan._wrong(), None)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            wrong = f"it does not have a plan's fields ({type(error).__name__}: {error})"
        if wrong is not None:
            raise ConfigError(
                f"this is no plan of a simulation: {wrong}", next_step="give one as `procession simulate` prints it"
            )
        return plan

    def _wrong(self) -> Iterator[str]:
        """What cannot be run as it is meant."""
        numbers = {
            "seed": (self.seed, 0),
            "credits_max": (self.credits_max, 1),
            "epoch_records_max": (self.epoch_records_max, 1),
            "segment_rows_max": (self.segment_rows_max, 1),
            "gateways": (self.gateways, 1),
            "the number of sinks": (len(self.sinks), 1),
            "tasks": (min(self.tasks, default=0), 1),
            "records": (min((stream.records for stream in self.streams), default=0), 0),
            "step": (min((fault.step for fault in self.faults), default=1), 1),
        }
        yield from (f"{name} is {told!r}" for name, (told, least) in numbers.items() if told < least)
        parts = {*self.gateway_parts, DRIVER, SPARK}
        parts |= {f"sink-{number}" for number in range(len(self.sinks))}
        for number, stream in enumerate(self.streams):
            parts |= {f"producer-{number}", *([f"producer-{number}-twin"] if stream.has_twin else [])}
        for fault in self.faults:
            if fault.part not in parts:
                yield f"a fault strikes {fault.part!r}, and there is no such part"
            elif fault.kind in SET_BACKS and (fault.part != GATEWAY or self.gateways > 1):
                yield f"{fault.kind!r} is done to the only gateway, if at all"
            elif fault.kind not in (*KINDS[_role(fault.part)], *SET_BACKS, "blackout"):
                yield f"{fault.kind!r} is nothing that can be done to {fault.part!r}"

    def with_faults(self, faults: tuple[Fault, ...]) -> Plan:
        return replace(self, faults=faults)


def make_plan(seed: int, chance: Chance) -> Plan:
    """The plan of a seed; `chance` must be that seed's own."""
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
    plan = Plan(
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
    # Drawn last: the other plans stay as they were.
    if chance.random() < SET_BACK_SHARE and plan.gateways == 1:
        step = 1 + int(STEPS[GATEWAY] * SET_BACK_REACH * chance.random())
        fault = Fault(GATEWAY, step, chance.choice(SET_BACKS), round(0.3 * chance.random(), 3))
        plan = plan.with_faults((*plan.faults, fault))
    return plan


def _with_several(plan: Plan, chance: Chance, size: Size) -> Plan:
    """The same with two or three gateways, streams that are fought for, and faults that are about that."""
    plan = replace(plan, gateways=chance.choice((2, 2, 3)))
    streams = tuple(replace(stream, has_twin=chance.random() < 0.3) for stream in plan.streams)
    parts = [*plan.gateway_parts, *plan.gateway_parts, "producer-0"]
    faults = tuple(_fault(chance, chance.choice(parts), size) for _ in range(chance.choice((1, 2, 2, 3))))
    kept = plan.faults[: chance.choice((0, 0, 1, 2))]
    return replace(plan, streams=streams, faults=kept + faults)


def _sink(chance: Chance) -> SinkPlan:
    if chance.random() < 0.6:
        return SinkPlan()
    return SinkPlan(is_ours=False, answers_phase2=chance.random() < 0.3, lists_refused=chance.random() < 0.5)


def _role(part: str) -> str:
    role, _, number = part.partition("-")
    return "follower" if role == GATEWAY and number else role


def _fault(chance: Chance, part: str, size: Size) -> Fault:
    if part == "site":
        part, kind = chance.choice((GATEWAY, DRIVER, "sink-0")), "blackout"
    else:
        kind = chance.choice(KINDS[_role(part)])
    role = _role(part)
    seconds = round(chance.choice((0.01, 0.1, 0.5)) * (0.1 + chance.random()), 3)
    if role in EDGES and chance.random() < EDGE_SHARE:
        return Fault(part, 1 + int(EDGES[role] * size.reach * chance.random()), kind, seconds, is_at_edge=True)
    step = 1 + int(STEPS[role] * size.reach * chance.random())
    return Fault(part, step, kind, seconds, round(chance.choice((0.0, 0.0, 0.02, 0.2)) * chance.random(), 3))
