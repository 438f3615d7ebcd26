"""Defines scenarios of all other faults: of sinks, producers, networks, disks and clocks. Pure.

Invariant: these faults kill no process, but in most scenarios a process is also killed meanwhile.
"""

from __future__ import annotations

from procession.chaos.scenario import (
    BETWEEN,
    CONTROL,
    CONTROL_SECOND,
    DRIVER,
    GATEWAY,
    GATEWAYS,
    LEFT,
    RIGHT,
    SINKS,
    SOURCES,
    TO_GATEWAY,
    TO_LEFT,
    TO_RIGHT,
    TO_SECOND,
    FaultAction,
    Scenario,
    StepPattern,
)

AT_ONCE = (0.0, 0.05)
SYNCS = tuple(map(str, range(1, 9)))
"""Numbers of the sync that fails. Each epoch syncs a few files and directories."""
SINK_LINKS = (TO_LEFT, TO_RIGHT)
PAIRS = tuple((link, "") for link in (TO_GATEWAY, TO_SECOND, CONTROL, CONTROL_SECOND, BETWEEN, *SINK_LINKS))
BOTH_WAYS = (
    # Both gateways behave alike, and so do both sinks, so each gets only one direction.
    *((TO_GATEWAY, "up"), (TO_SECOND, "down"), (TO_LEFT, "up"), (TO_RIGHT, "down")),
    *((link, way) for link in (CONTROL, CONTROL_SECOND, BETWEEN) for way in ("up", "down")),
)
RANDOM_ABORTS = tuple(f"abort_chance=0.3,seed={seed}" for seed in range(100))
MEANWHILE = StepPattern(FaultAction.KILL, (*GATEWAYS, *SINKS, *SOURCES), delay_s=(0.05, 0.4), is_settled=False)
"""A kill that happens before a lasting fault ends."""


def _network(
    name: str, description: str, on: tuple[tuple[str, str], ...], kind: str, seconds: tuple[float, float] = (0.0, 0.0)
) -> Scenario:
    """Return a scenario that injects the fault on each link in this direction, and each time kills a part
    meanwhile."""
    details = [(link, f"{kind}:{way}" if way else kind) for link, way in on]
    lines = [
        (StepPattern(FaultAction.NETWORK, (link,), details=(detail,), seconds=seconds), MEANWHILE)
        for link, detail in details
    ]
    return Scenario(name, description, tuple(line for both in lines for line in both))


def _behave(
    name: str, description: str, *details: str, seconds: tuple[float, float] = (2.0, 3.5), times: int = 1
) -> Scenario:
    """Return a scenario that uses each behaviour once without other faults, and once while a part is killed."""
    lines = [
        (StepPattern(FaultAction.BEHAVE, (RIGHT,), details=(detail,), seconds=seconds),) for detail in details * times
    ]
    return Scenario(name, description, tuple(step for line in lines for step in (*line, *line, MEANWHILE)))


def _with_faulty_producer(name: str, description: str, *details: str) -> Scenario:
    steps = StepPattern(FaultAction.FAULTY_PRODUCER, details=details, is_each=True, delay_s=AT_ONCE)
    kills = StepPattern(FaultAction.KILL, (*GATEWAYS, *SINKS), times=2, delay_s=(0.5, 1.5), is_settled=False)
    return Scenario(name, description, (steps, kills))


FAULT_SCENARIOS: tuple[Scenario, ...] = (
    # A sink that behaves badly
    _behave("sink-aborts-once", "One of two sinks votes abort on a transaction.", "abort_on=1", "abort_on=3"),
    _behave("sink-aborts-on-content", "A sink votes abort on output with certain content.", "abort_content=7 G "),
    Scenario(
        "sink-aborts-at-random",
        "A sink votes abort at random: first without other faults, then while a process dies.",
        (StepPattern(FaultAction.BEHAVE, (RIGHT,), 2, seconds=(2.0, 3.5), details=RANDOM_ABORTS), MEANWHILE),
    ),
    _behave("sink-slow", "A sink votes slowly.", "vote_delay_s=0.7", "decide_delay_s=0.7"),
    _behave("sink-hangs", "A sink stops answering in the middle of a round.", "hang_on=2", seconds=(6.0, 9.0)),
    _behave(
        "sink-closes",
        "A sink closes its connection instead of giving its vote, or instead of confirming.",
        "close_before_vote=1",
        "close_after_vote=1",
        "close_before_decision=1",
        "close_after_decision=1",
    ),
    Scenario(
        "sink-closes-around-its-reply",
        "The connection to a sink is lost just before or just after each message of a round.",
        (
            StepPattern(
                FaultAction.NETWORK,
                SINK_LINKS,
                details=("cut-before:reply", "cut-after:reply", "cut-before:phase1", "cut-after:phase1"),
                is_each=True,
            ),
        ),
    ),
    Scenario(
        "sink-aborts-and-closes",
        "A sink votes abort, and the connection is lost before or after this vote.",
        tuple(
            line
            for how in ("cut-before:refusal", "cut-after:refusal")
            for line in (
                StepPattern(
                    FaultAction.NETWORK, (TO_RIGHT,), details=(how,)
                ),  # first, because it waits for that message
                StepPattern(FaultAction.BEHAVE, (RIGHT,), 1, AT_ONCE, False, (1.0, 2.0), ("abort_on=2",)),
            )
        ),
    ),
    Scenario(
        "lost-phase-2",
        "The last message of a round never reaches a sink.",
        (
            StepPattern(
                FaultAction.NETWORK,
                SINK_LINKS,
                details=("swallow:phase2", "cut-before:phase2", "cut-after:phase2"),
                is_each=True,
            ),
        ),
    ),
    Scenario(
        "sink-gone",
        "A sink is away for ten seconds. Nothing may be committed without it, and all must continue with it.",
        (StepPattern(FaultAction.GONE, SINKS, seconds=(9.0, 11.0)),),
    ),
    Scenario(
        "sink-gone-for-a-minute",
        "A sink is away for a minute.",
        (StepPattern(FaultAction.GONE, SINKS, seconds=(60.0, 60.0)),),
        True,
    ),
    Scenario(
        "sink-forgets",
        "A sink returns with less output than it had promised. It is refused with a clear error; with its files"
        " restored, all continues.",
        (StepPattern(FaultAction.FORGET, (RIGHT,), details=("committed", "prepared"), is_each=True),),
    ),
    # Faulty producers
    _with_faulty_producer(
        "producer-replays", "A producer sends again from the first record, or from the middle.", "zero", "middle"
    ),
    _with_faulty_producer(
        "producer-repeats", "A producer sends duplicates and decreasing ids within a session.", "duplicates", "back"
    ),
    _with_faulty_producer("producer-fights", "A producer requests a stream that another producer holds.", "fight"),
    _with_faulty_producer("producer-reopens", "A stream ends and is opened again, while processes crash.", "reopen"),
    # The network
    _network(
        "network-cut", "A connection is cut, and stays cut for a while: each pair in turn.", PAIRS, "cut", (0.5, 2.5)
    ),
    _network(
        "network-silent",
        "A connection delivers nothing for a while, without an error.",
        PAIRS,
        "silent",
        (1.0, 3.0),
    ),
    _network("network-slow", "Every packet is late.", PAIRS, "delay:0.15", (2.0, 4.0)),
    _network(
        "network-half-closed",
        "One direction of a connection ends, the other does not.",
        BOTH_WAYS,
        "half-close",
        (0.5, 1.0),
    ),
    _network("network-truncates", "A connection breaks in the middle of a frame.", BOTH_WAYS, "truncate"),
    _network(
        "network-reorders",
        "What was sent on an old connection arrives after its successor is open.",
        PAIRS,
        "late",
        (1.0, 2.0),
    ),
    _network("network-corrupts", "The head of a frame is corrupted on the way.", BOTH_WAYS, "corrupt"),
    # Clocks
    Scenario(
        "clock-jumps",
        "The time of day jumps: an hour ahead, an hour behind, and right again, at one part after the other.",
        (
            # Each jump happens some time after the work in progress at the last jump has ended.
            StepPattern(
                FaultAction.CLOCK,
                (DRIVER, GATEWAY, RIGHT, "source-0"),
                delay_s=(0.8, 1.4),
                details=("3600", "-3600", "0"),
                is_each=True,
            ),
            StepPattern(FaultAction.NOTHING, delay_s=(0.8, 1.4)),
        ),
    ),
    Scenario(
        "crash-under-a-wrong-clock",
        "A part is killed, and its clock is a day behind at the restart; then it is right again.",
        tuple(
            line
            for part in (GATEWAY, LEFT, "source-1", DRIVER)
            for line in (
                StepPattern(FaultAction.CLOCK, (part,), details=("-86400",)),
                StepPattern(FaultAction.KILL, (part,)),
                StepPattern(FaultAction.CLOCK, (part,), details=("0",)),
            )
        ),
    ),
    # Disks
    Scenario(
        "disk-full",
        "The disk of the gateway, a sink or the driver is full. Each ends with an error; with free space, all"
        " continues.",
        (StepPattern(FaultAction.FULL, (GATEWAY, LEFT, DRIVER), is_each=True, seconds=(1.0, 2.0)),),
    ),
    Scenario(
        "disk-tears-a-write",
        "A part dies in the middle of a write: only the first half is in the file.",
        (StepPattern(FaultAction.ARM, (LEFT, GATEWAY, RIGHT, DRIVER), details=("disk:torn",), is_each=True),),
    ),
    Scenario(
        "disk-fails-to-sync",
        "A sync fails, one of several in an epoch. The process ends with a clear error, and recovers from the data"
        " that is on the disk.",
        tuple(
            StepPattern(FaultAction.BAD_SYNC, (part,), details=SYNCS, seconds=(0.5, 1.0))
            for part in (GATEWAY, GATEWAY, LEFT, LEFT, DRIVER)
        ),
    ),
)
