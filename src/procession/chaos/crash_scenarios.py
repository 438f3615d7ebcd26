"""Defines scenarios in which processes die: one, several or all, at any time and at each point of no return. Pure.

Invariant: a killed process is restarted and must recover without help.
"""

from __future__ import annotations

from procession.chaos.scenario import (
    ALL,
    CONTROL_THIRD,
    DRIVER,
    GATEWAY,
    GATEWAYS,
    HOMES,
    LEFT,
    PARTS,
    RIGHT,
    SECOND,
    SINKS,
    SOURCES,
    THIRD,
    FaultAction,
    Scenario,
    StepPattern,
)

AT_ONCE = (0.0, 0.05)
SHORTLY = (0.05, 0.5)
QUICK = (*GATEWAYS, *SINKS, *SOURCES)
SINK_POINTS = ("sink:before-vote", "sink:after-vote-before-reply", "sink:before-commit", "sink:after-commit")
DRIVER_POINTS = (
    "driver:after-offsets",
    "driver:before-phase1",
    "driver:between-votes",
    "driver:before-record",
    "driver:after-record",
    "driver:before-phase2",
    "driver:between-phase2",
    "driver:before-ack",
)
OF_SECOND = tuple(source for source, gateway in HOMES.items() if gateway == SECOND)
GROW = (StepPattern(FaultAction.JOIN, (THIRD,)), StepPattern(FaultAction.MOVE, SOURCES, details=(THIRD,)))
CLUSTER = "local-cluster[2,1,1024]"
"""Spark with two executors, each a JVM with its own Python workers."""
ANY = tuple(map(str, range(12)))
"""Numbers that choose one of several processes, modulo their count. They are in the schedule, so a replay chooses the
same."""
GATEWAY_POINTS = (
    "gateway:before-append",
    "gateway:after-append",
    "gateway:before-snapshot",
    "gateway:before-ack",
    "gateway:after-ack-before-trim",
)


def _crash(part: str, on: tuple[str, ...], times: int) -> Scenario:
    return Scenario(f"crash-{part}", f"A {part} is killed repeatedly.", (StepPattern(FaultAction.KILL, on, times),))


def _pair(first: str, second: str, times: int) -> Scenario:
    """Return a scenario that kills two parts: the second with the first, or while the first recovers."""
    first_kind, second_kind = (part.removeprefix("sink-").removesuffix("-0") for part in (first, second))
    return Scenario(
        f"crash-{first_kind}-then-{second_kind}",
        f"{first} is killed, and {second} at the same time or while {first} recovers.",
        (
            StepPattern(FaultAction.KILL, (first,)),
            StepPattern(FaultAction.KILL, (second,), delay_s=(0.0, 1.0), is_settled=False),
        )
        * times,
    )


CRASHES: tuple[Scenario, ...] = (
    Scenario("none", "Nothing happens.", (StepPattern(FaultAction.NOTHING, delay_s=(3.0, 5.0)),)),
    # One part
    _crash("source", SOURCES, 10),
    _crash("gateway", GATEWAYS, 8),
    Scenario(
        "crash-leader-gateway",
        "The gateway that leads is killed; meanwhile others ask for streams, or die with it, before it or after it.",
        (
            *(
                StepPattern(FaultAction.KILL, (GATEWAY,)),
                StepPattern(FaultAction.KILL, OF_SECOND, delay_s=SHORTLY, is_settled=False),
            )
            * 2,
            *(
                StepPattern(FaultAction.KILL, (GATEWAY,)),
                StepPattern(FaultAction.KILL, (SECOND,), delay_s=SHORTLY, is_settled=False),
            ),
            *(
                StepPattern(FaultAction.KILL, (SECOND,)),
                StepPattern(FaultAction.KILL, (GATEWAY,), delay_s=SHORTLY, is_settled=False),
            ),
        ),
    ),
    Scenario(
        "grow-and-shrink-gateways",
        "A gateway repeatedly joins under the same name, receives records and leaves; then a process dies meanwhile.",
        (
            *(*GROW, StepPattern(FaultAction.LEAVE, (THIRD,))),
            *(*GROW, StepPattern(FaultAction.NETWORK, (CONTROL_THIRD,), details=("cut",), seconds=(0.5, 1.5))),
            *(
                StepPattern(FaultAction.LEAVE, (THIRD,)),
                StepPattern(FaultAction.KILL, (THIRD,), delay_s=SHORTLY, is_settled=False),
            ),
            *(
                *GROW,
                StepPattern(FaultAction.KILL, (THIRD,)),
                StepPattern(FaultAction.LEAVE, (THIRD,), delay_s=SHORTLY, is_settled=False),
            ),
            StepPattern(FaultAction.KILL, (GATEWAY,), delay_s=SHORTLY, is_settled=False),
        ),
    ),
    _crash("sink", SINKS, 10),
    _crash("driver", (DRIVER,), 3),
    Scenario(
        "crash-worker",
        "A Python worker of Spark is killed in the middle of its work.",
        (StepPattern(FaultAction.WORKER, (DRIVER,), 4, details=ANY),),
    ),
    Scenario(
        "crash-executor",
        "Spark works with two executors; one of them is killed, one of their Python workers, and then both.",
        (
            StepPattern(FaultAction.MASTER, (DRIVER,), details=(CLUSTER,)),
            *(
                StepPattern(FaultAction.EXECUTOR, (DRIVER,), details=ANY),
                StepPattern(FaultAction.WORKER, (DRIVER,), details=ANY),
            ),
            StepPattern(FaultAction.EXECUTOR, (DRIVER,), details=(ALL,)),
            StepPattern(FaultAction.WORKER, (DRIVER,), details=ANY),
            StepPattern(FaultAction.KILL, (*GATEWAYS, *SINKS), delay_s=SHORTLY, is_settled=False),
            StepPattern(FaultAction.MASTER, (DRIVER,)),
        ),
        is_long=True,
    ),
    Scenario(
        "restart-each",
        "Each part is asked to stop, as an operator would, and is started again.",
        (StepPattern(FaultAction.STOP, (*GATEWAYS, DRIVER, *SINKS, "source-0", "source-1"), is_each=True),),
    ),
    Scenario(
        "pause-each",
        "Each part is paused for a while, as on a machine that swaps, and then continues.",
        (StepPattern(FaultAction.PAUSE, (*GATEWAYS, DRIVER, *SINKS, "source-0"), is_each=True, seconds=(1.0, 3.0)),),
    ),
    # Several
    Scenario(
        "crash-several",
        "Three of the parts die within half a second.",
        (StepPattern(FaultAction.KILL, QUICK), StepPattern(FaultAction.KILL, QUICK, 2, SHORTLY, is_settled=False)) * 3,
    ),
    Scenario(
        "crash-all-sources",
        "All producers die together.",
        (StepPattern(FaultAction.KILL, SOURCES, delay_s=AT_ONCE, is_settled=False, is_each=True),) * 2,
    ),
    Scenario(
        "crash-all",
        "All processes die at the same time, as in a power cut.",
        (
            StepPattern(FaultAction.NOTHING),
            StepPattern(FaultAction.KILL, PARTS, delay_s=(0.0, 0.0), is_settled=False, is_each=True),
        ),
    ),
    *(
        _pair(first, second, times)
        for first, second, times in (
            (LEFT, RIGHT, 2),
            (RIGHT, LEFT, 2),
            (GATEWAY, "source-0", 2),
            ("source-0", GATEWAY, 2),
            (GATEWAY, LEFT, 2),
            (LEFT, GATEWAY, 2),
            (LEFT, "source-0", 2),
            ("source-0", LEFT, 2),
            (DRIVER, "source-0", 1),
            ("source-0", DRIVER, 1),
            (DRIVER, LEFT, 1),
            (LEFT, DRIVER, 1),
            (DRIVER, GATEWAY, 1),
            (GATEWAY, DRIVER, 1),
        )
    ),
    # While it recovers
    Scenario(
        "crash-while-recovering",
        "A part that was just killed is killed again before it has recovered.",
        tuple(
            line
            for part in (GATEWAY, LEFT, RIGHT, "source-1")
            for line in (
                StepPattern(FaultAction.KILL, (part,)),
                StepPattern(FaultAction.KILL, (part,), 2, (0.2, 0.9), is_settled=False),
            )
        ),
    ),
    Scenario(
        "crash-driver-while-recovering",
        "The driver dies, and its successor dies while it is still starting.",
        (
            StepPattern(FaultAction.KILL, (DRIVER,)),
            StepPattern(FaultAction.KILL, (DRIVER,), 2, (1.0, 6.0), is_settled=False),
        ),
    ),
    Scenario(
        "kill-every-fifth-of-a-second",
        "The same part is killed every 0.2 s, so it does no work until the kills end.",
        tuple(
            line
            for part in (GATEWAY, LEFT, "source-2", DRIVER)
            for line in (
                StepPattern(FaultAction.NOTHING),
                StepPattern(FaultAction.KILL, (part,), 6, (0.2, 0.2), is_settled=False),
            )
        ),
    ),
    # In each phase of a round
    Scenario(
        "crash-sink-in-a-round",
        "A sink dies before, during and after each phase of a round.",
        (StepPattern(FaultAction.ARM, SINKS, details=SINK_POINTS, is_each=True, delay_s=SHORTLY),),
    ),
    Scenario(
        "crash-gateway-in-a-round",
        "The gateway dies before and after it writes records, its snapshot and its acknowledgements.",
        (StepPattern(FaultAction.ARM, (GATEWAY,), details=GATEWAY_POINTS, is_each=True, delay_s=SHORTLY),),
    ),
    Scenario(
        "crash-driver-in-a-round",
        "The driver dies at each of its points of no return.",
        (StepPattern(FaultAction.ARM, (DRIVER,), details=DRIVER_POINTS, is_each=True, delay_s=SHORTLY),),
        is_long=True,
    ),
    Scenario(
        "crash-driver-somewhere-in-a-round",
        "The driver dies at two of its points of no return.",
        (StepPattern(FaultAction.ARM, (DRIVER,), 2, details=DRIVER_POINTS, delay_s=SHORTLY),),
    ),
    # The order of starting
    Scenario(
        "driver-before-sink",
        "The driver is started before a sink.",
        (
            StepPattern(FaultAction.GONE, SINKS, seconds=(14.0, 16.0)),
            StepPattern(FaultAction.KILL, (DRIVER,), delay_s=SHORTLY, is_settled=False),
        ),
    ),
    Scenario(
        "sink-before-driver",
        "Sinks are started long before the driver.",
        (
            StepPattern(FaultAction.GONE, (DRIVER,), seconds=(4.0, 6.0)),
            StepPattern(FaultAction.KILL, SINKS, delay_s=SHORTLY, is_settled=False, is_each=True),
        ),
    ),
    Scenario(
        "driver-before-gateway",
        "The driver is started before the gateway.",
        (
            StepPattern(FaultAction.GONE, (GATEWAY,), seconds=(14.0, 16.0)),
            StepPattern(FaultAction.KILL, (DRIVER,), delay_s=SHORTLY, is_settled=False),
        ),
    ),
    # All faults
    Scenario(
        "mixed",
        "Any part is killed at any time, while others recover, for the whole duration.",
        (
            StepPattern(FaultAction.KILL, QUICK, 8, (0.1, 1.5), is_settled=False),
            StepPattern(FaultAction.KILL, (DRIVER,), is_settled=False),
            StepPattern(FaultAction.KILL, QUICK, 8, (0.2, 1.5), is_settled=False),
            StepPattern(FaultAction.KILL, QUICK, 6, (0.0, 0.4)),
        ),
    ),
)
