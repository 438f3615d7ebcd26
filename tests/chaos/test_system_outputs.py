"""Outputs in other systems: every planted fault is found, at the next poll or in the last comparison."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from procession.chaos.chaos_records import RECORD_BYTES, record, records, tag
from procession.chaos.output_monitor import MonitoredOutputs, MonitoredStream
from procession.chaos.system_outputs import RecordReader, SystemOutput
from procession.chaos.visible_records import SeenRecords, WrongRecord
from procession.verify.order import PromisedOrder
from procession.verify.verdict import Outcome
from tests.hostile import until

COUNT = 60
SALT = b" 00000000"
ALL = [line + SALT for line in records(tag(0), COUNT)]


class FakeSystem:
    """A system that shows the given records."""

    def __init__(self) -> None:
        self.visible: list[bytes] = []
        self.told: list[SeenRecords] = []
        self.is_away = False
        self.error: Exception | None = None

    def show(self, lines: list[bytes], position: int = -1) -> None:
        self.visible += lines
        self.told.append(SeenRecords(lines, position))

    def new(self) -> SeenRecords:
        if self.is_away:
            raise ConnectionError("away")
        if self.error:
            raise self.error
        return self.told.pop(0) if self.told else SeenRecords([])

    def all(self) -> Iterator[list[bytes]]:
        yield self.visible

    def close(self) -> None:
        pass


class World:
    def __init__(self, directory: Path, order: PromisedOrder) -> None:
        self.system = FakeSystem()
        self.reader = RecordReader(self.system, directory / "visible" / "topic.data")
        self.decided: int | None = None
        output = SystemOutput(
            "topic", self.reader, lambda: directory / "chaos-topic-0", lambda name: self.decided, order
        )
        self.outputs = MonitoredOutputs([output])
        path = directory / "s0000.txt"
        path.write_bytes(b"".join(line + b"\n" for line in records(tag(0), COUNT)))
        self.outputs.expect(MonitoredStream(tag(0), path, COUNT, stream_id=7, id_bytes=RECORD_BYTES + 1))
        self.reader.start()

    def poll(self) -> list[str]:
        """Return the errors found, after the reader has read everything that is shown."""
        assert until(lambda: not self.system.told)
        size = sum(len(line) + 1 for line in self.system.visible)
        assert until(lambda: self.reader.end == size or bool(self.reader.wrong))
        return self.outputs.poll()

    def outcome(self) -> Outcome:
        return self.outputs.compare_all()["topic"].outcome


@pytest.fixture(params=[PromisedOrder.TOTAL, PromisedOrder.KEY])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path, request.param)
    yield world
    world.reader.close()


def test_all_records_once_in_order_are_clean_also_after_an_interruption(world: World) -> None:
    world.system.show(ALL[:10])
    assert not world.poll()
    world.system.is_away = True
    assert until(lambda: "away" in world.reader.why_not)
    world.system.is_away = False
    world.system.show(ALL[10:])
    assert not world.poll()
    assert not world.outputs.missing()
    assert world.outcome() is Outcome.CLEAN


@pytest.mark.parametrize(
    ("lines", "what"),
    [
        ([*ALL[:5], *ALL[4:]], "1 doubled"),
        (ALL[:4] + ALL[5:], "1 lost"),
        ([*ALL[:4], record(tag(0), 700) + SALT], "1 corrupt"),
        ([record(tag(3), 0) + SALT], "a stream that no producer sent"),
    ],
    ids=["doubled", "lost", "corrupt", "unknown"],
)
def test_a_wrong_record_is_found_at_the_next_poll(world: World, lines: list[bytes], what: str) -> None:
    world.system.show(lines)
    wrong = world.poll()
    assert len(wrong) == 1
    assert what in wrong[0]


def test_order_is_checked_by_key_if_only_that_was_promised(world: World) -> None:
    by_key = sorted(ALL, key=lambda line: line[14:15])
    world.system.show(by_key)
    is_by_key = world.outputs.outputs["topic"].order is PromisedOrder.KEY
    assert bool(world.poll()) is not is_by_key
    assert world.outcome() is (Outcome.CLEAN if is_by_key else Outcome.VIOLATED)


def test_output_that_is_visible_beyond_the_decision_is_a_violation(world: World) -> None:
    world.decided = 100
    world.system.show(ALL[:5], 99)
    assert not world.poll()
    world.system.show(ALL[5:6], 100)
    assert world.poll() == ["topic: position 100 is visible, but only those below 100 are decided"]


def vanish(system: FakeSystem) -> None:
    system.visible.pop(3)


def repeat(system: FakeSystem) -> None:
    system.visible.append(system.visible[-1])


@pytest.mark.parametrize("change", [vanish, repeat])
def test_output_that_changes_after_it_was_read_is_found_at_the_end(
    world: World, change: Callable[[FakeSystem], None]
) -> None:
    world.system.show(ALL)
    assert not world.poll()
    change(world.system)
    assert world.outcome() is Outcome.VIOLATED


def test_forbidden_output_is_reported_at_the_next_poll(world: World) -> None:
    world.system.error = WrongRecord("the message at keyed[1] offset 5 has the key b'B'")
    assert until(lambda: bool(world.reader.wrong))
    assert world.poll() == ["topic: the message at keyed[1] offset 5 has the key b'B'"]
