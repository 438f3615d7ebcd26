"""Ends, evictions and sorts under crashes: records that are held until an end are emitted once, whichever process is
killed.

The expected output is that of the sequential reference for everything sent, byte for byte. Each case has two parts. In
the first, records come, states expire, windows fire and sorted runs are written; no source ends, because one producer,
the keeper, holds its stream open. In the second, the keeper ends: there is one more epoch, which has only the end.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from procession.connectors.file_source import stream_id_of
from procession.deployment.local_pipeline import DRIVER
from procession.deployment.settings import Settings
from procession.storage.segment import KIND_EOS
from procession.supervisor.part import Part
from tests.operators.reference import Sequential, batch_of_sent
from tests.slow_cases import slow
from tests.walk.cluster import Cluster, jvms

APP = '''
import os
from pathlib import Path
from procession import Aggregate, Pipeline, aggregates, windows

ORDER = Path(__file__).parent / "order"

def failing_at(place):
    """Kills whom the order says, once, if it is for this place."""
    try:
        told, victim = ORDER.read_text().split(":")
        if told != place:
            return
        ORDER.unlink()
    except FileNotFoundError:
        return
    os.kill(int(victim or os.getpid()), 9)

def at(one):
    return one["at"]

def key(one):
    return one["key"]

def rank(one):
    failing_at("rank")
    return one["number"] % 7

def put_together(held, one):
    return f"{held[-40:]} {one['number']}"

def finished(held):
    failing_at("finish")
    return held

def counted(state, one):
    state["numbers"].append(one["number"])
    return state, f"{one['key']} {one['number']} of {len(state['numbers'])}"

def gone(key, state):
    failing_at("evict")
    return f"{key} left with {state['numbers']}"

def paired(left, right):
    if right is None:
        failing_at("pair")
    return [left["number"], right and right["number"]]

pipeline = Pipeline("ends", parallelism=2, exchange="{exchange}")
lines = pipeline.source("lines", codec="json", ends=True)
in_order = Aggregate(str, put_together, finished)
lines.sort(rank, reverse=True).sink("sorted", to="file:one", codec="json")
by_key = lines.aggregate(in_order, key=key, name="each")
by_key.merge(by_key.aggregate(aggregates.collect(), name="totals")).sink("by-key", to="file:one", codec="json")
lines.aggregate(in_order, name="everything").sink("all", to="file:two", codec="json")
visits = lines.map_stateful(counted, key=key, initial=lambda: {"numbers": []}, ttl_s=24, time=at, on_evict=gone)
visits.sink("visits", to="file:two", codec="text")
sessions = lines.window(windows.session(16), aggregates.collect(), key=key, time=at, late="fire", name="visited")
tens = lines.window(windows.tumbling(10), in_order, time=at, late="oldest", name="tens")
some = lines.window(windows.counting(7), aggregates.count(), key=key, name="sevens")
sessions.merge(tens, some).sink("windows", to="file:two", codec="json")
asked = lines.filter(lambda one: one["number"] % 3 == 0)
answers = lines.filter(lambda one: one["number"] % 5 == 0)
asked.join(answers, within_s=16, join=paired, key=key, time=at, outer=True).sink("pairs", to="file:one", codec="json")
'''
KEEPER = """
import sys, time
from pathlib import Path
from procession.sdk import Batch, SourceOptions, Stream, run_source

to, number, payload, gate = sys.argv[1], int(sys.argv[2]), sys.argv[3], Path(sys.argv[4])
cookie = Path(sys.argv[5]).read_bytes().strip()

class Keeper:
    def streams(self):
        return [Stream(number, f"keeper {number}")]

    def read(self, stream, after):
        if after is None:
            yield Batch.gathered([1], [0], [b""], [payload.encode()])
        while not gate.exists():
            time.sleep(0.01)

sys.exit(0 if run_source(Keeper(), to, SourceOptions("keeper", f"keeper-{number}", cookie)) else 3)
"""
TWO_EXECUTORS = "local-cluster[2,2,1024]"
RECORDS = 240
LASTS_S = 160


SLOW = pytest.mark.slow


class World:
    """A cluster, everything that was sent to it, in order, and the output of a sequential program for that."""

    def __init__(self, directory: Path, exchange: str, master: str | None, epoch_records_max: int) -> None:
        # Few keys in memory, so that most states are read from files, also at an end.
        settings = Settings(
            small_epoch_records_max=0,
            epoch_interval_s=0.02,
            epoch_records_max=epoch_records_max,
            master=master,
            state_keys_max=5,
        )
        self.cluster = Cluster(directory, APP.replace("{exchange}", exchange), settings)
        self.sent: list[tuple[int, int, bytes]] = []
        self.rounds = 0

    def begin(self) -> None:
        """Start the keeper and wait for its record. Its open stream delays all results of the end until `end`."""
        self.rounds += 1
        before = self.cluster.status()["next_sequence"]
        (payload,) = self._made(1)
        argv = (sys.executable, "-c", KEEPER, self.cluster.local.address, str(self.rounds), payload.decode())
        self.cluster.supervisor.start(
            Part(self._keeper, (*argv, str(self._gate), self.cluster.local.producer_arguments[1]))
        )
        self.cluster.until(lambda: self.cluster.status()["committed_end"] > before, "the keeper's record")
        self.sent.append((0, self.rounds, payload))

    def send(self) -> str:
        payloads = self._made(RECORDS)
        source = self.cluster.send(payloads)
        stream = stream_id_of(self.cluster.inputs[-1])
        self.sent += [(0, stream, payload) for payload in payloads]
        self.sent.append((KIND_EOS, stream, b""))
        return source

    def end(self) -> str:
        """Let the keeper end, which ends the sources."""
        self.sent.append((KIND_EOS, self.rounds, b""))
        self._gate.touch()
        return self._keeper

    def order(self, place: str, victim: int | None) -> Path:
        """Order a kill: the next process that reaches this place in the app kills the victim, or itself if there is
        none."""
        order = self.cluster.directory / "order"
        draft = order.with_suffix(".draft")
        draft.write_text(f"{place}:{victim or ''}")
        return draft.rename(order)

    def check(self) -> None:
        # The epoch is decided. A sink that was killed before it logged the decision logs it after its restart.
        self.cluster.until(lambda: not any(self.cluster.prepared().values()), "all sinks to know what is decided")
        assert not (self.cluster.directory / "order").exists()
        assert not self.cluster.fault.exists()
        expected = self._sequential()
        for sink, data in expected.items():
            assert self.cluster.committed(sink) == data, sink

    @property
    def _keeper(self) -> str:
        return f"keeper-{self.rounds}"

    @property
    def _gate(self) -> Path:
        return self.cluster.directory / f"gate-{self.rounds}"

    def _made(self, count: int) -> list[bytes]:
        """Return records with frequent and rare keys, some of them late. Time advances from round to round."""
        chance = random.Random(self.rounds * 1_000 + count)
        made = []
        for number in range(count):
            time = self.rounds * LASTS_S + number * LASTS_S // count - chance.choice((0,) * 8 + (3, 20))
            key = f"k{int(chance.expovariate(0.12))}"
            made.append(json.dumps({"key": key, "at": time, "number": self.rounds * 1_000 + number}).encode())
        return made

    def _sequential(self) -> dict[str, bytes]:
        return Sequential(self.cluster.graph).run(batch_of_sent(self.sent))


WAYS = [("runs", None, 100), slow(("spark", None, 37)), slow(("runs", TWO_EXECUTORS, 1_000))]


@pytest.fixture(scope="module", params=WAYS, ids=lambda way: "-".join(str(one) for one in way if one))
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    world = World(tmp_path_factory.mktemp("ends"), *request.param)
    with world.cluster as cluster:
        assert cluster.local.start()
        yield world


BEFORE_RECORD = "driver:before-record"
POINTS = [
    "driver:after-offsets",
    "driver:between-votes",
    BEFORE_RECORD,
    "driver:after-record",
    "driver:before-phase2",
    "driver:between-phase2",
    "sink:after-append",
    "sink:after-vote-before-reply",
    "sink:after-output-commit",
]


@pytest.mark.parametrize(
    ("point", "is_expiry_hit"), [(BEFORE_RECORD, False), *(pytest.param(point, True, marks=SLOW) for point in POINTS)]
)
def test_i1_results_of_expiry_and_of_ends_are_committed_once_wherever_the_driver_or_a_sink_is_killed(
    world: World, point: str, is_expiry_hit: bool
) -> None:
    """If `is_expiry_hit`, there is a kill in the first part, too."""
    cluster = world.cluster
    world.begin()
    for go_on, is_hit in ((world.send, is_expiry_hit), (world.end, True)):
        if is_hit:
            cluster.arm(point)
        source = go_on()
        if is_hit and point.startswith("driver"):
            cluster.until_dead(DRIVER)
        cluster.until_done(source)
        world.check()


# The place in the app's code at which it kills: in an epoch with records, or in the epoch of the end.
PLACES = [
    ("rank", False),
    ("evict", False),
    ("finish", True),
    ("evict", True),
    ("pair", True),
]


def killed(world: World, place: str, victim: int | None, *, is_at_end: bool) -> None:
    """Run a round in which the app kills the victim, or its own worker, at this place."""
    cluster = world.cluster
    world.begin()
    for go_on, is_end in ((world.send, False), (world.end, True)):
        if is_end is is_at_end:
            world.order(place, victim)
        cluster.until_done(go_on())
        world.check()


@pytest.mark.parametrize(
    ("place", "is_at_end"), [one if one == ("finish", True) else pytest.param(*one, marks=SLOW) for one in PLACES]
)
def test_a_worker_that_is_killed_at_an_eviction_a_sort_or_an_end_changes_nothing(
    world: World, place: str, is_at_end: bool
) -> None:
    restarts = world.cluster.restarts(DRIVER)
    killed(world, place, None, is_at_end=is_at_end)
    assert world.cluster.restarts(DRIVER) == restarts, "the task is tried again, and nobody else"


@SLOW
@pytest.mark.parametrize(("place", "is_at_end"), [("rank", False), ("finish", True), ("evict", True)])
def test_a_jvm_that_is_killed_at_an_eviction_a_sort_or_an_end_changes_nothing(
    world: World, place: str, is_at_end: bool
) -> None:
    """With two executors, the JVM of one of them is killed; otherwise that of the driver."""
    driver = world.cluster.supervisor.pid(DRIVER)
    assert driver is not None
    killed(world, place, jvms(driver)[-1], is_at_end=is_at_end)
