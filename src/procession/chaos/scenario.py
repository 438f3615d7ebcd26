"""Defines scenarios: which faults are injected into which parts of a cluster, and how often. Pure.

Invariant: randomness is used only once, when `schedule` turns a scenario into steps. So a recorded schedule can be
repeated. `scenario_catalogue` has the scenarios; the harness applies the steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Protocol, TypeVar

Choice = TypeVar("Choice")

GATEWAY = "gateway"  # the first gateway is the leader
SECOND = "gateway-1"
GATEWAYS = (GATEWAY, SECOND)
THIRD = "gateway-2"  # joins and leaves
DRIVER = "driver"
WORKER, EXECUTOR = "worker", "executor"
LEFT, RIGHT = "sink-left", "sink-right"
SINKS = (LEFT, RIGHT)
SOURCES = ("source-0", "source-1", "source-2", "source-3")
PARTS = (*GATEWAYS, DRIVER, *SINKS, *SOURCES)
HOMES = dict(zip(SOURCES, GATEWAYS * 2, strict=True))
"""The gateway that each producer sends to."""

# The connections with a proxy.
TO_GATEWAY, TO_SECOND, TO_THIRD = (f"source-{gateway}" for gateway in (*GATEWAYS, THIRD))
CONTROL, CONTROL_SECOND, CONTROL_THIRD = (f"driver-{gateway}" for gateway in (*GATEWAYS, THIRD))
BETWEEN = "gateway-gateway"  # from the other gateways to the leader
TO_LEFT, TO_RIGHT = "driver-left", "driver-right"
CONTROLS = (CONTROL, CONTROL_SECOND, CONTROL_THIRD)
LINKS = (TO_GATEWAY, TO_SECOND, TO_THIRD, *CONTROLS, BETWEEN, TO_LEFT, TO_RIGHT)


ALL = "all"
SECOND_SINK = "rival"
"""Name of a second sink of an output, while it races with the first one."""
SAME_DIRECTORY = "same-directory"
"""A race of two sinks on one directory. All other races are at a fault point, on a copy of the directory."""


@dataclass(frozen=True, slots=True)
class ClusterParts:
    """A kind of cluster: its parts, and its links with proxies."""

    name: str
    description: str
    parts: tuple[str, ...]
    links: tuple[str, ...]
    homes: Mapping[str, tuple[str, ...]]
    """The producers that send files, each with its gateways, the usual one first."""
    outputs: Mapping[str, tuple[str, ...]]
    """The outputs of parts. If an output of a part grows, the part works."""
    dependants: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Parts that may end, and are then restarted, while this part or link is down."""
    services: tuple[str, ...] = ()
    """The object services that replicate the directories of other parts."""


STANDARD = ClusterParts(
    "standard",
    "two gateways, a driver, two sinks, four producers",
    PARTS,
    LINKS,
    {name: (home, *(gateway for gateway in GATEWAYS if gateway != home)) for name, home in HOMES.items()},
    {LEFT: ("left",), RIGHT: ("right",)},
)


class FaultAction(StrEnum):
    """A fault that can be injected into a part or a link. `seconds` is its duration, `detail` its parameter."""

    KILL = "kill"  # SIGKILL; started again at once
    GONE = "gone"  # SIGKILL, and started again only after `seconds`
    LOSE = "lose"  # SIGKILL, its directory is deleted, and it is started again on an empty disk
    STOP = "stop"  # SIGTERM; started again at once
    PAUSE = "pause"  # SIGSTOP for `seconds`
    WORKER = "worker"  # SIGKILL to one of Spark's Python workers, counted round: the one of the number `detail`
    EXECUTOR = "executor"  # the same to one of Spark's executors, where they are processes of their own; or to `all`
    MASTER = "master"  # the driver is killed, and started again with `detail` as Spark's master; none: local threads
    ARM = "arm"  # the part dies at the fault point `detail`, when it next comes there
    FULL = "full"  # its files cannot grow: it must exit with a clear error, and is restarted after `seconds`
    BAD_SYNC = "bad-sync"  # its disk fails the `detail`-th sync from now, and all after it: the same
    NETWORK = "network"  # on a link: the fault `detail` (see `proxy`), for `seconds`
    BEHAVE = "behave"  # on the right sink: `detail` is a behaviour (see `faulty_sink`), for `seconds`
    FORGET = "forget"  # the right sink returns with less than it had promised; the driver must refuse it
    CLOCK = "clock"  # its time of day jumps, and is `detail` seconds off from now on, until the next such step
    JOIN = "join"  # one more gateway is started, and joins
    LEAVE = "leave"  # it leaves: it exits when all of its records are committed, regardless of faults
    MOVE = "move"  # a producer is killed, and sends to the gateway `detail` from then on, or to any if that is gone
    FAULTY_PRODUCER = "rogue"  # one more producer that misbehaves; `detail` says how (see `faulty_producer`)
    RACE = "race"  # a second sink of the same output is started; `detail` says when (see `sink_race`)
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class FaultStep:
    """One injected fault. With `is_settled`, it waits until all parts have recovered from earlier faults."""

    do: FaultAction
    on: str = ""
    delay_s: float = 0.0
    is_settled: bool = True
    seconds: float = 0.0
    detail: str = ""

    def __str__(self) -> str:
        parts = [self.do.value, self.detail, self.on and f"on {self.on}", self.seconds and f"for {self.seconds:g} s"]
        return " ".join(word for word in parts if word)


@dataclass(frozen=True, slots=True)
class StepPattern:
    """`times` steps of one kind, each on one part of `on` with one of `details`. Delays are drawn from a range."""

    do: FaultAction
    on: tuple[str, ...] = ("",)
    times: int = 1
    delay_s: tuple[float, float] = (0.2, 0.8)
    is_settled: bool = True
    seconds: tuple[float, float] = (0.0, 0.0)
    details: tuple[str, ...] = ("",)
    is_each: bool = False
    """Use every combination of `on` and `details` in turn, `times` times, instead of random ones."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A scenario. `name` is the value of `--scenario`, `description` is shown to users. With `is_long`, it runs once
    per session."""

    name: str
    description: str
    lines: tuple[StepPattern, ...]
    is_long: bool = False
    cluster: ClusterParts = STANDARD


class ScheduleRandom(Protocol):
    """The source of randomness of a schedule, such as `random.Random`."""

    def uniform(self, a: float, b: float) -> float: ...

    def choice(self, seq: Sequence[Choice]) -> Choice: ...


def schedule(scenario: Scenario, chance: ScheduleRandom) -> tuple[FaultStep, ...]:
    """Return the steps of one run of the scenario."""
    return tuple(step for line in scenario.lines for step in _steps(line, chance))


def _steps(line: StepPattern, chance: ScheduleRandom) -> list[FaultStep]:
    if line.is_each:
        pairs = [(on, detail) for _ in range(line.times) for on in line.on for detail in line.details]
    else:
        pairs = [(chance.choice(line.on), chance.choice(line.details)) for _ in range(line.times)]
    return [
        FaultStep(
            do=line.do,
            on=on,
            delay_s=round(chance.uniform(*line.delay_s), 3),
            is_settled=line.is_settled,
            seconds=round(chance.uniform(*line.seconds), 3),
            detail=detail,
        )
        for on, detail in pairs
    ]


@dataclass(frozen=True, slots=True)
class ScenarioRun:
    """One run of a scenario."""

    scenario: str
    steps: tuple[FaultStep, ...]

    def as_dict(self) -> dict[str, Any]:
        return {"scenario": self.scenario, "steps": [asdict(step) for step in self.steps]}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> ScenarioRun:
        steps = tuple(FaultStep(**{**step, "do": FaultAction(step["do"])}) for step in document["steps"])
        return cls(str(document["scenario"]), steps)
