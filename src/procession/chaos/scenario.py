"""A scenario: what is done to a living cluster, to whom, and how often; a value. Pure.

The one rule: chance is used once, when `schedule` makes steps of a scenario; from then on nothing is left to chance
that we have a hand in, so a schedule that was written down can be run again. Before it `scenario_catalogue`, which
holds the scenarios; after it the harness, which does one step after the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Protocol, TypeVar

Choice = TypeVar("Choice")

GATEWAY = "gateway"  # the first: it leads
SECOND = "gateway-1"
GATEWAYS = (GATEWAY, SECOND)
THIRD = "gateway-2"  # comes and goes
DRIVER = "driver"
WORKER, EXECUTOR = "worker", "executor"
LEFT, RIGHT = "sink-left", "sink-right"
SINKS = (LEFT, RIGHT)
SOURCES = ("source-0", "source-1", "source-2", "source-3")
PARTS = (*GATEWAYS, DRIVER, *SINKS, *SOURCES)
HOMES = dict(zip(SOURCES, GATEWAYS * 2, strict=True))
"""The gateway that each producer sends to."""

# The connections that a proxy stands in.
TO_GATEWAY, TO_SECOND, TO_THIRD = (f"source-{gateway}" for gateway in (*GATEWAYS, THIRD))
CONTROL, CONTROL_SECOND, CONTROL_THIRD = (f"driver-{gateway}" for gateway in (*GATEWAYS, THIRD))
BETWEEN = "gateway-gateway"  # from the others to the one that leads
TO_LEFT, TO_RIGHT = "driver-left", "driver-right"
CONTROLS = (CONTROL, CONTROL_SECOND, CONTROL_THIRD)
LINKS = (TO_GATEWAY, TO_SECOND, TO_THIRD, *CONTROLS, BETWEEN, TO_LEFT, TO_RIGHT)


ALL = "all"


class Do(StrEnum):
    """What can be done to a part or to a link. `seconds`: how long it lasts; `detail`: what exactly."""

    KILL = "kill"  # SIGKILL; started again at once
    GONE = "gone"  # SIGKILL, and started again only after `seconds`
    STOP = "stop"  # SIGTERM; started again at once
    PAUSE = "pause"  # SIGSTOP for `seconds`
    WORKER = "worker"  # SIGKILL to one of Spark's Python workers, counted round: the one of the number `detail`
    EXECUTOR = "executor"  # the same to one of Spark's executors, where they are processes of their own; or to `all`
    MASTER = "master"  # the driver is killed, and started again with `detail` as Spark's master; none: local threads
    ARM = "arm"  # the part dies at the fault point `detail`, when it next comes there
    FULL = "full"  # its files cannot grow: it must end with a clear word, and is started again after `seconds`
    BAD_SYNC = "bad-sync"  # its disk fails the `detail`-th sync from now, and all after it: the same
    NETWORK = "network"  # on a link: the fault `detail` (see `proxy`), for `seconds`
    BEHAVE = "behave"  # on the right sink: `detail` is a behaviour (see `wayward`), for `seconds`
    FORGET = "forget"  # the right sink comes back with less than it had promised; it must be refused loudly
    CLOCK = "clock"  # its time of day jumps, and is `detail` seconds off from now on, until the next such step
    JOIN = "join"  # one more gateway is started, and joins
    LEAVE = "leave"  # it is let go: it ends when all that it took is committed, whatever is done to it meanwhile
    MOVE = "move"  # a producer is killed, and sends to the gateway `detail` from then on, or to any if that is gone
    ROGUE = "rogue"  # one more producer, of bad manners: `detail` says which (see `rogue`)
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Step:
    """One thing done. `is_settled`: not before everything that was done has been recovered from."""

    do: Do
    on: str = ""
    delay_s: float = 0.0
    is_settled: bool = True
    seconds: float = 0.0
    detail: str = ""

    def __str__(self) -> str:
        words = [self.do.value, self.detail, self.on and f"on {self.on}", self.seconds and f"for {self.seconds:g} s"]
        return " ".join(word for word in words if word)


@dataclass(frozen=True, slots=True)
class Line:
    """Steps of one kind: `times` of them, each on one of `on`, with one of `details`. A delay is drawn from a range."""

    do: Do
    on: tuple[str, ...] = ("",)
    times: int = 1
    delay_s: tuple[float, float] = (0.2, 0.8)
    is_settled: bool = True
    seconds: tuple[float, float] = (0.0, 0.0)
    details: tuple[str, ...] = ("",)
    is_each: bool = False
    """Every combination of `on` and `details` in turn, `times` times, instead of one drawn at random."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """`name` is for the command line, `prose` for people. `is_long`: left out of short selections."""

    name: str
    prose: str
    lines: tuple[Line, ...]
    is_long: bool = False


class Chance(Protocol):
    """What a schedule draws from: `random.Random` is one."""

    def uniform(self, a: float, b: float) -> float: ...

    def choice(self, seq: Sequence[Choice]) -> Choice: ...


def schedule(scenario: Scenario, chance: Chance) -> tuple[Step, ...]:
    """The steps of one run of the scenario."""
    return tuple(step for line in scenario.lines for step in _steps(line, chance))


def _steps(line: Line, chance: Chance) -> list[Step]:
    if line.is_each:
        pairs = [(on, detail) for _ in range(line.times) for on in line.on for detail in line.details]
    else:
        pairs = [(chance.choice(line.on), chance.choice(line.details)) for _ in range(line.times)]
    return [
        Step(
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
class Run:
    """One scenario as it is run, or was."""

    scenario: str
    steps: tuple[Step, ...]

    def as_dict(self) -> dict[str, Any]:
        return {"scenario": self.scenario, "steps": [asdict(step) for step in self.steps]}

    @classmethod
    def from_dict(cls, told: Mapping[str, Any]) -> Run:
        steps = tuple(Step(**{**step, "do": Do(step["do"])}) for step in told["steps"])
        return cls(str(told["scenario"]), steps)
