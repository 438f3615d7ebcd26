"""The catalogue: every scenario there is. Pure.

The one rule: what a scenario is about is said in its prose, in the words of someone to whom it has happened; its lines
are only the means. Before it nothing; after it `scenario.schedule`.

Left out, and why. *Leader gateway, grow and shrink*: there is one gateway. *Executor*: with local threads it is the
driver's own JVM. *Clock jumps*: nobody but root can set the clock, and none of our deadlines reads it (they are
monotonic; wall time only stamps records).
"""

from __future__ import annotations

from procession.chaos.scenario import (
    CONTROL,
    DRIVER,
    GATEWAY,
    LEFT,
    PARTS,
    RIGHT,
    SINKS,
    SOURCES,
    TO_GATEWAY,
    TO_LEFT,
    TO_RIGHT,
    Do,
    Line,
    Scenario,
)

AT_ONCE = (0.0, 0.05)
SHORTLY = (0.05, 0.5)
QUICK = (GATEWAY, *SINKS, *SOURCES)
MEANWHILE = Line(Do.KILL, QUICK, delay_s=(0.1, 1.0), is_settled=False)
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
GATEWAY_POINTS = (
    "gateway:before-append",
    "gateway:after-append",
    "gateway:before-snapshot",
    "gateway:before-ack",
    "gateway:after-ack-before-trim",
)
SINK_LINKS = (TO_LEFT, TO_RIGHT)


def _crash(part: str, on: tuple[str, ...], times: int) -> Scenario:
    return Scenario(f"crash-{part}", f"A {part} is killed, again and again.", (Line(Do.KILL, on, times),))


def _pair(first: str, second: str, times: int) -> Scenario:
    """Two at once: the second dies with the first, or while the first comes back."""
    one, other = first.removeprefix("sink-").removesuffix("-0"), second.removeprefix("sink-").removesuffix("-0")
    return Scenario(
        f"crash-{one}-then-{other}",
        f"{first} is killed, and {second} at once or while {first} is still coming back.",
        (Line(Do.KILL, (first,)), Line(Do.KILL, (second,), delay_s=(0.0, 1.0), is_settled=False)) * times,
    )


def _network(name: str, prose: str, on: tuple[str, ...], *kinds: str, seconds: tuple[float, float]) -> Scenario:
    """Each fault on each link, and every time somebody dies of something else meanwhile."""
    pairs = [(link, kind) for link in on for kind in kinds]
    lines = [(Line(Do.NETWORK, (link,), details=(kind,), seconds=seconds), MEANWHILE) for link, kind in pairs]
    return Scenario(name, prose, tuple(line for both in lines for line in both))


def _behave(
    name: str, prose: str, *details: str, seconds: tuple[float, float] = (3.0, 5.0), times: int = 1
) -> Scenario:
    """Each behaviour once undisturbed, and once while somebody dies."""
    lines = [(Line(Do.BEHAVE, (RIGHT,), details=(detail,), seconds=seconds),) for detail in details * times]
    return Scenario(name, prose, tuple(line for alone in lines for line in (*alone, *alone, MEANWHILE)))


def _rogue(name: str, prose: str, *details: str) -> Scenario:
    rogues = Line(Do.ROGUE, details=details, is_each=True, delay_s=AT_ONCE)
    kills = Line(Do.KILL, (GATEWAY, *SINKS), times=2, delay_s=(0.5, 1.5), is_settled=False)
    return Scenario(name, prose, (rogues, kills))


CATALOGUE: tuple[Scenario, ...] = (
    Scenario("none", "Nothing happens.", (Line(Do.NOTHING, delay_s=(3.0, 5.0)),)),
    # One part
    _crash("source", SOURCES, 6),
    _crash("gateway", (GATEWAY,), 6),
    _crash("sink", SINKS, 8),
    _crash("driver", (DRIVER,), 3),
    Scenario(
        "crash-worker",
        "A Python worker of Spark is killed in the middle of its work.",
        (Line(Do.WORKER, (DRIVER,), 4),),
    ),
    Scenario(
        "restart-each",
        "Each part is asked to stop, as an operator would, and is started again.",
        (Line(Do.STOP, PARTS[:6], is_each=True),),
    ),
    Scenario(
        "pause-each",
        "Each part stands still for a while, as on a machine that swaps, and then goes on as if nothing had been.",
        (Line(Do.PAUSE, PARTS[:5], is_each=True, seconds=(1.0, 3.0)),),
    ),
    # Several
    Scenario(
        "crash-several",
        "Three of the parts die within half a second.",
        (Line(Do.KILL, QUICK), Line(Do.KILL, QUICK, 2, SHORTLY, is_settled=False)) * 3,
    ),
    Scenario(
        "crash-all-sources",
        "All producers die together.",
        (Line(Do.KILL, SOURCES, delay_s=AT_ONCE, is_settled=False, is_each=True),) * 2,
    ),
    Scenario(
        "crash-all",
        "Everything dies at once, as when the power fails.",
        (Line(Do.NOTHING), Line(Do.KILL, PARTS, delay_s=(0.0, 0.0), is_settled=False, is_each=True)),
    ),
    *(
        _pair(first, second, times)
        for first, second, times in (
            (LEFT, RIGHT, 3),
            (RIGHT, LEFT, 3),
            (GATEWAY, "source-0", 3),
            ("source-0", GATEWAY, 3),
            (GATEWAY, LEFT, 3),
            (LEFT, GATEWAY, 3),
            (DRIVER, LEFT, 1),
            (LEFT, DRIVER, 1),
            (DRIVER, GATEWAY, 1),
            (GATEWAY, DRIVER, 1),
        )
    ),
    # While it recovers
    Scenario(
        "crash-while-recovering",
        "A part that has just been killed is killed again before it is back.",
        tuple(
            line
            for part in (GATEWAY, LEFT, RIGHT, "source-1")
            for line in (Line(Do.KILL, (part,)), Line(Do.KILL, (part,), 2, (0.2, 0.9), is_settled=False))
        ),
    ),
    Scenario(
        "crash-driver-while-recovering",
        "The driver dies, and its successor dies while it is still starting.",
        (Line(Do.KILL, (DRIVER,)), Line(Do.KILL, (DRIVER,), 2, (1.0, 6.0), is_settled=False)),
    ),
    Scenario(
        "kill-every-fifth-of-a-second",
        "The same part is killed every 0.2 s; it never gets to its work until it is left alone.",
        tuple(
            line
            for part in (GATEWAY, LEFT, "source-2", DRIVER)
            for line in (Line(Do.NOTHING), Line(Do.KILL, (part,), 6, (0.2, 0.2), is_settled=False))
        ),
    ),
    # In each phase of a round
    Scenario(
        "crash-sink-in-a-round",
        "A sink dies before, during and after each phase of a round.",
        (Line(Do.ARM, SINKS, details=SINK_POINTS, is_each=True, delay_s=SHORTLY),),
    ),
    Scenario(
        "crash-gateway-in-a-round",
        "The gateway dies before and after it writes records, its snapshot and its acknowledgements.",
        (Line(Do.ARM, (GATEWAY,), details=GATEWAY_POINTS, is_each=True, delay_s=SHORTLY),),
    ),
    Scenario(
        "crash-driver-in-a-round",
        "The driver dies at each of its points of no return.",
        (Line(Do.ARM, (DRIVER,), details=DRIVER_POINTS, is_each=True, delay_s=SHORTLY),),
        is_long=True,
    ),
    Scenario(
        "crash-driver-somewhere-in-a-round",
        "The driver dies at two of its points of no return.",
        (Line(Do.ARM, (DRIVER,), 2, details=DRIVER_POINTS, delay_s=SHORTLY),),
    ),
    # A sink that behaves badly
    _behave("sink-aborts-once", "One of two sinks votes abort on a transaction.", "abort_on=1", "abort_on=3"),
    _behave("sink-aborts-on-content", "A sink refuses what it does not like to see.", "abort_content=7 G "),
    _behave("sink-aborts-at-random", "A sink votes abort when it feels like it.", "abort_chance=0.3"),
    _behave("sink-slow", "A sink takes its time to vote.", "vote_delay_s=0.7", "decide_delay_s=0.7"),
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
        "The connection to a sink is lost just before or just after each word of a round.",
        (
            Line(
                Do.NETWORK,
                SINK_LINKS,
                details=("cut-before:reply", "cut-after:reply", "cut-before:phase1", "cut-after:phase1"),
                seconds=(1.0, 2.0),
                is_each=True,
            ),
        ),
    ),
    Scenario(
        "sink-aborts-and-closes",
        "A sink votes abort, and the connection is lost before or after its reply.",
        tuple(
            line
            for how in ("cut-before:reply", "cut-after:reply")
            for line in (
                Line(Do.BEHAVE, (RIGHT,), details=("abort_on=2",), seconds=(3.0, 3.0)),
                Line(Do.NETWORK, (TO_RIGHT,), 1, AT_ONCE, False, (3.0, 3.0), (how,)),
            )
        ),
    ),
    Scenario(
        "lost-phase-2",
        "The last word of a round never reaches a sink.",
        (
            Line(
                Do.NETWORK,
                SINK_LINKS,
                details=("swallow:phase2", "cut-before:phase2", "cut-after:phase2"),
                seconds=(1.0, 2.0),
                is_each=True,
            ),
        ),
    ),
    Scenario(
        "sink-gone",
        "A sink is away for ten seconds; nothing may go on without it, and all must go on with it.",
        (Line(Do.GONE, SINKS, seconds=(9.0, 11.0)),),
    ),
    Scenario(
        "sink-gone-for-a-minute", "A sink is away for a minute.", (Line(Do.GONE, SINKS, seconds=(60.0, 60.0)),), True
    ),
    Scenario(
        "sink-forgets",
        "A sink comes back with less than it had promised. It is refused with a clear word; with its files restored,"
        " all goes on.",
        (Line(Do.FORGET, (RIGHT,), details=("committed", "prepared"), is_each=True),),
    ),
    # Producers of bad manners
    _rogue("producer-replays", "A producer sends again from the first record, or from the middle.", "zero", "middle"),
    _rogue("producer-repeats", "A producer sends duplicates, and goes back within a session.", "duplicates", "back"),
    _rogue("producer-fights", "A producer wants a stream that another one holds.", "fight"),
    _rogue("producer-reopens", "A stream ends, is opened again and goes on, under crashes.", "reopen"),
    # The network
    _network(
        "network-cut",
        "A connection is cut, and stays cut for a while: each pair in turn.",
        (TO_GATEWAY, CONTROL, *SINK_LINKS),
        "cut",
        seconds=(0.5, 2.5),
    ),
    _network(
        "network-silent",
        "A connection carries nothing for a while, and does not say so.",
        (TO_GATEWAY, CONTROL, *SINK_LINKS),
        "silent",
        seconds=(1.0, 3.0),
    ),
    _network(
        "network-slow", "Every packet is late.", (TO_GATEWAY, CONTROL, *SINK_LINKS), "delay:0.15", seconds=(2.0, 4.0)
    ),
    _network(
        "network-half-closed",
        "One direction of a connection ends, the other does not.",
        (TO_GATEWAY, *SINK_LINKS),
        "half-close:up",
        "half-close:down",
        seconds=(0.5, 1.0),
    ),
    _network(
        "network-truncates",
        "A connection breaks in the middle of a frame.",
        (TO_GATEWAY, CONTROL, *SINK_LINKS),
        "truncate:up",
        "truncate:down",
        seconds=(0.5, 1.0),
    ),
    _network(
        "network-reorders",
        "What was sent on an old connection arrives after its successor is open.",
        (TO_GATEWAY, *SINK_LINKS),
        "late",
        seconds=(1.0, 2.0),
    ),
    _network(
        "network-corrupts",
        "The head of a frame is not what was sent.",
        (TO_GATEWAY, CONTROL, *SINK_LINKS),
        "corrupt:up",
        "corrupt:down",
        seconds=(0.5, 1.0),
    ),
    # Disks
    Scenario(
        "disk-full",
        "There is no room left for gateway, sink or driver. Each says so and ends; with room again, all goes on.",
        (Line(Do.FULL, (GATEWAY, LEFT, DRIVER), is_each=True, seconds=(1.0, 2.0)),),
    ),
    Scenario(
        "disk-fails-to-sync",
        "A sync fails. Whoever asked for it ends with a clear word, and recovers from what is really there.",
        (Line(Do.BAD_SYNC, (GATEWAY, LEFT, DRIVER), is_each=True, seconds=(0.5, 1.0)),),
    ),
    # The order of starting
    Scenario(
        "driver-before-sink",
        "The driver is started while a sink is not there yet.",
        (Line(Do.GONE, SINKS, seconds=(14.0, 16.0)), Line(Do.KILL, (DRIVER,), delay_s=SHORTLY, is_settled=False)),
    ),
    Scenario(
        "sink-before-driver",
        "Sinks are started long before the driver.",
        (
            Line(Do.GONE, (DRIVER,), seconds=(4.0, 6.0)),
            Line(Do.KILL, SINKS, delay_s=SHORTLY, is_settled=False, is_each=True),
        ),
    ),
    Scenario(
        "driver-before-gateway",
        "The driver is started while the gateway is not there yet.",
        (Line(Do.GONE, (GATEWAY,), seconds=(14.0, 16.0)), Line(Do.KILL, (DRIVER,), delay_s=SHORTLY, is_settled=False)),
    ),
    # All of it
    Scenario(
        "mixed",
        "Any part, at any time, for as long as it takes: killed while others come back.",
        (
            Line(Do.KILL, QUICK, 8, (0.1, 1.5), is_settled=False),
            Line(Do.KILL, (DRIVER,), is_settled=False),
            Line(Do.KILL, QUICK, 8, (0.2, 1.5), is_settled=False),
            Line(Do.KILL, QUICK, 6, (0.0, 0.4)),
        ),
    ),
)

BY_NAME = {scenario.name: scenario for scenario in CATALOGUE}
