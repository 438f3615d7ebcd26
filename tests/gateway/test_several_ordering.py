"""Several gateways with event-time order, as real processes: the contents of an epoch, and streams that move from one
gateway to another. The test uses the driver's offsets and gateway clients, and interleaves the logs as tasks do.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from procession.driver.offsets import GatewayFeed
from procession.errors import ProcessionError, RoundError
from procession.merge.event_time import NO_REFERENCE, DeclaredOrder
from procession.merge.interleave import interleaved
from procession.sdk import Batch, SourceOptions, Stream
from procession.sdk.source_client import SourceClient
from procession.storage.log_ranges import LogRange
from procession.storage.log_reader import LogReader
from procession.storage.segment import KIND_LATE, KIND_RECORD, ORDERED
from tests.gateway.epoch_reader import EpochReader
from tests.gateway.gateways import Gateways

PATIENCE_S = 120.0
Record = tuple[int, int]
Placed = tuple[int, int, int, bool]


def made(streams: int, records: int, lateness: int, seed: int = 7) -> dict[int, list[Record]]:
    """Pairs of message id and event time; some are behind their stream, by more or less than is allowed."""
    chance, inputs = random.Random(seed), {}
    for stream_id in range(1, streams + 1):
        now, rows = 0, []
        for number in range(records):
            now += chance.randrange(3)
            rows.append((2 * number, now - chance.choice((0,) * 8 + (1, lateness + 3))))
        inputs[stream_id] = rows
    return inputs


def sorted_slowly(inputs: dict[int, list[Record]], lateness: int) -> list[Placed]:
    placed = []
    for stream_id, rows in inputs.items():
        largest = None
        for message_id, at in rows:
            watermark = None if largest is None else largest - lateness
            is_late = watermark is not None and at < watermark
            placed.append((watermark if is_late else at, stream_id, message_id, is_late))
            largest = at if largest is None else max(largest, at)
    return sorted(placed)  # type: ignore[type-var]


class OrderedEpochReader(EpochReader):
    """Takes epochs in the order of event time."""

    def __init__(self, root: Path, leader: Path, records_max: int = 50) -> None:
        super().__init__(root, leader, records_max)
        self.feed = GatewayFeed(leader, b"", self.checkpoint, records_max, 1 << 20, is_ordered=True)
        self.placed: list[Placed] = []

    def successor(self) -> OrderedEpochReader:
        other = super().successor()
        assert isinstance(other, OrderedEpochReader)
        other.placed = self.placed
        return other

    def _read_all(self, pieces: list[LogRange]) -> None:
        paths = [
            list(LogReader(Path(piece.place.directory), ORDERED).read(piece.first, piece.last)) for piece in pieces
        ]
        for row in interleaved(paths).to_pylist():
            if row["kind"] in (KIND_RECORD, KIND_LATE):
                is_late = row["kind"] == KIND_LATE
                self.placed.append((row["order_time"], row["stream_id"], row["message_id"], is_late))
            if row["reference"] != NO_REFERENCE:
                assert row["reference"] >= self.positions.get(row["stream_id"], 0), "what is committed never goes back"
                self.positions[row["stream_id"]] = row["reference"]


class Wandering:
    """A source of one stream that comes through another gateway whenever it is cut off, at its own pace."""

    def __init__(self, stream_id: int, records: list[Record], seed: int) -> None:
        self.stream_id = stream_id
        self.records = records
        self.chance = random.Random(seed)

    def streams(self) -> list[Stream]:
        return [Stream(self.stream_id, f"stream {self.stream_id}")]

    def read(self, stream: Stream, after: int | None) -> Iterator[Batch]:
        rest = [record for record in self.records if after is None or record[0] > after]
        while rest:
            count = self.chance.randrange(1, 20)
            ids, times = zip(*rest[:count], strict=True)
            rest = rest[count:]
            yield Batch.gathered(list(ids), list(times), [b""] * len(ids), [b"x"] * len(ids))
            time.sleep(self.chance.random() * 0.02)  # another timing for each seed


class World:
    def __init__(self, work: Path, gateways: int, lateness: int, *, seed: int, records: int = 200) -> None:
        self.chance = random.Random(seed)
        self.seed = seed
        self.inputs = made(4, records, lateness)
        self.expected = sorted_slowly(self.inputs, lateness)
        self.gateways = Gateways(work, gateways, declared=DeclaredOrder(frozenset(self.inputs), lateness))
        self.threads: list[threading.Thread] = []

    def epoch_reader(self) -> OrderedEpochReader:
        epoch_reader = OrderedEpochReader(self.gateways.work / "checkpoint", self.gateways.work / "gateway-0")
        self.gateways.epoch_readers.append(epoch_reader)
        return epoch_reader

    def produce(self) -> None:
        for stream_id, records in self.inputs.items():
            addresses = [gateway.listen for gateway in self.gateways.all]
            self.chance.shuffle(addresses)
            source = Wandering(stream_id, records, self.seed * 10 + stream_id)
            options = SourceOptions("wandering", f"wandering-{stream_id}", backoff_first_s=0.02, backoff_limit_s=0.2)
            client = SourceClient(source, ",".join(addresses), options)
            thread = threading.Thread(target=asyncio.run, args=(client.run(),), daemon=True)
            thread.start()
            self.threads.append(thread)

    def fenced(self, driver: OrderedEpochReader) -> bool:
        try:
            driver.word.raise_fence(driver.checkpoint, str(self.gateways.settings["declared"]))
        except RoundError:
            return False
        return True

    @property
    def is_done(self) -> bool:
        return not any(thread.is_alive() for thread in self.threads)

    def check(self, epoch_reader: OrderedEpochReader) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not self.is_done:
            assert time.monotonic() < deadline, self.describe(epoch_reader)
            assert epoch_reader.error is None, self.describe(epoch_reader)
            time.sleep(0.01)
        epoch_reader.finish()
        assert epoch_reader.placed == self.expected
        assert epoch_reader.positions == {stream_id: records[-1][0] for stream_id, records in self.inputs.items()}

    def describe(self, epoch_reader: OrderedEpochReader) -> str:
        positions = []
        for gateway in self.gateways.all:
            try:
                with gateway.client(1.0) as client:
                    positions.append(str(client.status()))
            except ProcessionError as error:
                positions.append(error.sentence)
        return "\n".join([f"{len(epoch_reader.placed)} of {len(self.expected)}", *positions, self.gateways.describe()])


SLOWLY = pytest.mark.slow


@pytest.mark.parametrize(
    ("gateways", "lateness"), [(3, 2), *(pytest.param(n, s, marks=SLOWLY) for n in (1, 2, 3) for s in (0, 2, 9))]
)
def test_the_sequence_is_that_of_a_sort_whatever_the_number_of_gateways(
    tmp_path: Path, gateways: int, lateness: int
) -> None:
    world = World(tmp_path, gateways, lateness, seed=gateways)
    with world.gateways:
        epoch_reader = world.epoch_reader()
        world.produce()
        epoch_reader.begin()
        world.check(epoch_reader)


@pytest.mark.parametrize(("lateness", "seed"), [(2, 3)])
def test_gateways_that_are_killed_and_producers_that_wander_change_nothing(
    tmp_path: Path, lateness: int, seed: int
) -> None:
    shaken(tmp_path, lateness, seed, records=200, kills=3)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20, 26))
@pytest.mark.parametrize("lateness", [0, 2, 9])
def test_gateways_that_are_killed_often_change_nothing(tmp_path: Path, lateness: int, seed: int) -> None:
    shaken(tmp_path, lateness, seed, records=500, kills=20)


def shaken(work: Path, lateness: int, seed: int, records: int, kills: int) -> None:
    """Kill gateways, the leader too, again and again, with some output in between; and replace drivers."""
    world = World(work, 3, lateness, seed=seed, records=records)
    with world.gateways:
        epoch_reader = world.epoch_reader().begin()
        world.produce()
        for number in range(kills):
            reached = len(epoch_reader.placed)
            victim = world.gateways[world.chance.randrange(3) if number else 0]
            victim.kill()
            victim.start()
            if number % 3 == 1:
                epoch_reader.finish()
                world.gateways.epoch_readers.remove(epoch_reader)
                successor = epoch_reader.successor()
                world.gateways.until(lambda driver=successor: world.fenced(driver), "the next driver")  # type: ignore[misc]
                world.gateways.epoch_readers.append(successor)
                epoch_reader = successor.begin()
            deadline = time.monotonic() + PATIENCE_S
            while len(epoch_reader.placed) == reached and not world.is_done:
                assert time.monotonic() < deadline, world.describe(epoch_reader)
                assert epoch_reader.error is None, world.describe(epoch_reader)
                time.sleep(0.01)
        world.check(epoch_reader)


@pytest.mark.parametrize("lateness", [3])
def test_one_joins_and_one_leaves_and_the_sequence_stays_the_same(tmp_path: Path, lateness: int) -> None:
    world = World(tmp_path, 2, lateness, seed=5, records=300)
    gateways = world.gateways
    with gateways:
        epoch_reader = world.epoch_reader().begin()
        world.produce()
        gateways.until(lambda: len(epoch_reader.placed) > 100, "the first records")
        gateways.all.append(gateways.make(2).start())
        gateways.until(lambda: "gateway-2" in gateways.connected(), "the third gateway")
        with gateways[0].client() as client:
            client.leave("gateway-1")
        assert gateways[1].wait()[0] == 0, "it ends by itself, when all that it took is committed"
        world.check(epoch_reader)


def test_one_that_orders_otherwise_may_not_join_and_idle_time_outs_take_one_gateway(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    with Gateways(tmp_path / "a", 1, declared=DeclaredOrder(frozenset({1, 2}))) as gateways:
        other = gateways.make(1, declared=DeclaredOrder(frozenset({1, 2}), 5))
        status, output = other.start().wait()
        assert status == 1
        assert "orders by event time of 2 streams" in output
    with Gateways(tmp_path / "b", 1, declared=DeclaredOrder(frozenset({1}), 0, 1.0)) as gateways:
        status, output = gateways.make(1).start().wait()
        assert status == 1
        assert "idle_timeout_s takes one gateway" in output
