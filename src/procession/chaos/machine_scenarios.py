"""Defines scenarios in which machines are lost with their disks, and their cluster. Pure.

Invariant: every part of the cluster has its own machine, and a directory that three object services replicate. One of
the three services at a time may be lost, and two may be away for a time. A lost service counts as lost until it has
all data again.
"""

from __future__ import annotations

from procession.chaos.scenario import (
    BETWEEN,
    CONTROL,
    CONTROL_SECOND,
    DRIVER,
    GATEWAY,
    GATEWAYS,
    HOMES,
    LEFT,
    RIGHT,
    SECOND,
    SINKS,
    SOURCES,
    STANDARD,
    TO_GATEWAY,
    TO_LEFT,
    TO_RIGHT,
    TO_SECOND,
    ClusterParts,
    FaultAction,
    Scenario,
    StepPattern,
)

SERVICES = ("sos-0", "sos-1", "sos-2")
WRITERS = (*GATEWAYS, DRIVER, *SINKS)
"""The parts whose directories the services replicate."""


def link_to_service(service: str) -> str:
    """Return the link from all other parts to an object service."""
    return f"parts-{service}"


TO_SERVICES = tuple(map(link_to_service, SERVICES))
MACHINES = ClusterParts(
    "machines",
    "three object services, two gateways, a driver, two sinks, four producers, each on a machine of its own",
    (*WRITERS, *SOURCES, *SERVICES),
    (TO_GATEWAY, TO_SECOND, CONTROL, CONTROL_SECOND, BETWEEN, TO_LEFT, TO_RIGHT, *TO_SERVICES),
    {name: (home, *(gateway for gateway in GATEWAYS if gateway != home)) for name, home in HOMES.items()},
    STANDARD.outputs,
    services=SERVICES,
)
AT_ONCE = (0.0, 0.05)
SOON = (0.0, 3.0)
LOSE = FaultAction.LOSE


def _lost(part: str, on: tuple[str, ...], times: int) -> Scenario:
    description = f"The machine of a {part} is lost with its disk, repeatedly."
    return Scenario(f"machine-lost-{part}", description, (StepPattern(LOSE, on, times),), cluster=MACHINES)


def _then(first: tuple[str, ...], second: tuple[str, ...]) -> tuple[StepPattern, StepPattern]:
    """Return a scenario that loses two machines: the second with the first, or while the first is restored."""
    return StepPattern(LOSE, first), StepPattern(LOSE, second, delay_s=SOON, is_settled=False)


LOST_MACHINES: tuple[Scenario, ...] = (
    _lost("gateway", GATEWAYS, 6),
    _lost("sink", SINKS, 6),
    _lost("driver", (DRIVER,), 2),
    _lost("service", SERVICES, 4),
    Scenario(
        "machine-lost-two",
        "Two machines are lost, the second with the first or while the first is restored; one of them may hold a copy.",
        (
            *_then(GATEWAYS, (DRIVER,)),
            *_then(SINKS, SERVICES),
            *_then((DRIVER,), SINKS),
            *_then(SERVICES, GATEWAYS),
            *_then((LEFT,), (RIGHT,)),
            *_then(SERVICES, (DRIVER,)),
            *_then((GATEWAY,), (SECOND,)),
        ),
        cluster=MACHINES,
    ),
    Scenario(
        "machine-lost-all",
        "All machines but those of the object services and producers are lost at once; then the same with one service.",
        (
            StepPattern(FaultAction.NOTHING),
            StepPattern(LOSE, WRITERS, is_each=True, delay_s=AT_ONCE, is_settled=False),
            StepPattern(LOSE, SERVICES),
            StepPattern(LOSE, WRITERS, is_each=True, delay_s=AT_ONCE, is_settled=False),
        ),
        cluster=MACHINES,
    ),
    Scenario(
        "machine-crash-then-lost",
        "A process is killed, and its machine is lost while the process recovers, and again while it is restored.",
        tuple(
            pattern
            for part in (GATEWAYS, SINKS, (DRIVER,), SERVICES)
            for pattern in (
                StepPattern(FaultAction.KILL, part[:1]),
                StepPattern(LOSE, part[:1], delay_s=SOON, is_settled=False),
                StepPattern(LOSE, part[:1], delay_s=SOON, is_settled=False),
            )
        ),
        cluster=MACHINES,
    ),
    Scenario(
        "machine-services-away",
        "One object service is away, then two, so that all parts wait; machines are lost meanwhile.",
        (
            StepPattern(FaultAction.GONE, SERVICES, seconds=(3.0, 6.0)),
            StepPattern(LOSE, (*GATEWAYS, *SINKS), delay_s=AT_ONCE, is_settled=False),
            *(
                StepPattern(FaultAction.GONE, SERVICES[:1], seconds=(4.0, 8.0)),
                StepPattern(FaultAction.GONE, SERVICES[1:2], delay_s=AT_ONCE, is_settled=False, seconds=(4.0, 8.0)),
                StepPattern(LOSE, (*GATEWAYS, *SINKS), delay_s=AT_ONCE, is_settled=False),
            ),
            *(
                StepPattern(FaultAction.KILL, SERVICES, is_each=True, delay_s=AT_ONCE, is_settled=False),
                StepPattern(LOSE, (*GATEWAYS, *SINKS)),
            ),
        ),
        cluster=MACHINES,
    ),
    Scenario(
        "machine-services-network",
        "The network to one object service is cut, silent or slow; a machine is lost meanwhile.",
        (
            *(
                pattern
                for fault in ("cut", "silent", "delay:0.2")
                for pattern in (
                    StepPattern(FaultAction.NETWORK, TO_SERVICES, details=(fault,), seconds=(2.0, 4.0)),
                    StepPattern(LOSE, (*GATEWAYS, *SINKS), is_settled=False),
                )
            ),
        ),
        cluster=MACHINES,
    ),
    Scenario(
        "machine-mixed",
        "Processes are killed and machines are lost, while others recover.",
        (
            StepPattern(LOSE, (*GATEWAYS, *SINKS), 4, (0.2, 3.0), is_settled=False),
            StepPattern(FaultAction.KILL, (*WRITERS, *SERVICES, *SOURCES), 4, (0.1, 1.0), is_settled=False),
            StepPattern(LOSE, (DRIVER,), delay_s=SOON, is_settled=False),
            StepPattern(LOSE, SERVICES),
            StepPattern(LOSE, (*GATEWAYS, *SINKS), 4, (0.2, 3.0), is_settled=False),
        ),
        cluster=MACHINES,
    ),
)
