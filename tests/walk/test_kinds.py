"""Every kind of stage that keeps states, with real processes: workers, executors and drivers are killed during small,
larger and large epochs, on threads and on two executors.

The expected output is that of the sequential reference for everything sent, byte for byte. Each case is an input that
ends, so that the results of the end are emitted. The next case continues with the states of the one before.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from procession.api.app_settings import variable_of
from procession.commit.epoch_totals import COUNTER
from procession.connectors.file_source import stream_id_of
from procession.deployment.local_pipeline import DRIVER
from procession.deployment.settings import Settings
from procession.record import stream_id
from procession.storage.segment import KIND_EOS
from tests.operators.reference import Sequential, batch_of_sent
from tests.spark import kinds
from tests.walk.cluster import Cluster, jvms

APP = Path(kinds.__file__).read_text() + "\n\npipeline = every_kind(Path(__file__).parent, parallelism={tasks})\n"
FIRST, RECORDS = 1_930, 80
"""The record number from which event time jumps, in the second input."""
TYPED_RECORDS = 24
"""For each of the typed sources."""
PATIENCE_S = 600.0
"""An epoch has some two hundred tasks: seconds on quiet cores, half a minute on busy ones. It only ends a hang."""

THREADS, TWO_EXECUTORS = "local[4,2]", "local-cluster[2,2,1024]"
WAYS = [(THREADS, 20, 4), (THREADS, 50, 1), (THREADS, 1_000, 2)]
WAYS += [(TWO_EXECUTORS, 20, 3), (TWO_EXECUTORS, 50, 2), (TWO_EXECUTORS, 1_000, 4)]
"""The master, the largest number of records in an epoch, and the tasks of stages without a parallelism."""


class World:
    """A cluster, and everything that was sent to it."""

    def __init__(self, directory: Path, master: str, epoch_records_max: int, tasks: int) -> None:
        # Few keys in memory, so that most states come from files; without a target, epochs have the size of the case.
        settings = Settings(
            small_epoch_records_max=0,
            epoch_interval_s=0.02,
            epoch_target_s=0,
            epoch_records_max=epoch_records_max,
            master=master,
            state_keys_max=9,
        )
        self.cluster = Cluster(directory, APP.replace("{tasks}", str(tasks)), settings, PATIENCE_S)
        self.sent: list[tuple[int, int, bytes]] = []
        self.turn = 0

    @property
    def first(self) -> int:
        """Return the number of the next record."""
        return FIRST + self.turn * RECORDS

    def order(self, place: str, behind_first: int, victim: int | None = None) -> None:
        """Order a kill: the process that has this record of the next input at this place kills the victim, or itself if
        there is none."""
        order = kinds.order_to_kill(self.cluster.directory, place, self.first + behind_first)
        order.write_text("" if victim is None else str(victim))

    def send(self) -> None:
        """Send an input to each source, one after the other, so that the order between them is that of their
        arrival."""
        numbers = range(self.first, self.first + RECORDS)
        self._send([b"%05d" % number for number in numbers], None)
        for source in kinds.TYPED:
            self._send(list(map(kinds.order_payload, numbers[:TYPED_RECORDS])), f"{source}-{self.turn}")
        self.turn += 1

    def _send(self, payloads: list[bytes], name: str | None) -> None:
        source = self.cluster.send(payloads, stream=name)
        stream = stream_id_of(self.cluster.inputs[-1]) if name is None else stream_id(name.encode())
        self.sent += [*((0, stream, payload) for payload in payloads), (KIND_EOS, stream, b"")]
        self.cluster.until_done(source)

    def check(self) -> None:
        assert not list(self.cluster.directory.glob("kill-*")), "nobody was killed"
        self.cluster.until(lambda: not any(self.cluster.prepared().values()), "all sinks to know what is decided")
        reference = Sequential(self.cluster.graph)
        expected = reference.run(batch_of_sent(self.sent))
        found = {sink: self.cluster.committed(sink) for sink in expected}
        letters = [without_ids(outputs.pop("dead-letter")) for outputs in (found, expected)]
        assert [sink for sink in expected if found[sink] != expected[sink]] == []
        assert letters[0] == letters[1]
        last = self.cluster.rounds().read(self.cluster.log().committed)
        assert last is not None
        counters = last.counters
        assert {name: counters[COUNTER + name] for name in reference.counts} == reference.counts


def without_ids(letters: bytes) -> list[dict[str, object]]:
    """Return dead letters without the message ids, which the source assigns."""
    return [{**json.loads(line), "message_id": 0} for line in letters.splitlines()]


@pytest.fixture(scope="module", params=WAYS, ids=lambda way: f"{way[0].split('[')[0]}-{way[1]}-{way[2]}")
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv(variable_of("every"), "3")
        world = World(tmp_path_factory.mktemp("kinds"), *request.param)
        with world.cluster as cluster:
            assert cluster.local.start()
            yield world


@pytest.mark.slow
@pytest.mark.timeout(4 * PATIENCE_S)
@pytest.mark.parametrize("victim", ["worker", "executor", "driver", "jvm"])
def test_i11_every_keyed_stage_writes_the_output_of_the_sequential_run_whatever_is_killed(
    world: World, victim: str
) -> None:
    cluster = world.cluster
    restarts, driver = cluster.restarts(DRIVER), cluster.supervisor.pid(DRIVER)
    assert driver is not None
    own, *executors = jvms(driver)
    match victim:
        case "worker":
            world.order("before", 25)
            world.order("behind", 55)
            world.order("typed", 11)
            world.order("fields", 19)
        case "executor":
            if not executors:
                pytest.skip("with local threads the executor is the driver's own JVM")
            world.order("before", 65, executors[0])
            world.order("behind", 35, executors[-1])
        case "driver":
            world.order("behind", 45, driver)
        case "jvm":
            world.order("before", 30, own)
    world.send()
    world.check()
    assert cluster.restarts(DRIVER) == restarts + (victim in ("driver", "jvm"))
