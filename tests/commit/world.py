"""A simulation around the coordinator: sinks that keep only what they synced, Spark's log, and a driver that dies.

One seed is one history. Sinks, Spark and crashes cause every fault that the protocol allows.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from procession.commit import round_events as ev
from procession.commit.coordinator import Coordinator
from procession.commit.round_record import RoundRecord

CHECKPOINT = "abc123"


@dataclass
class FakeSink:
    """A participant with its durable state, and whether it is connected."""

    output: bytearray = field(default_factory=bytearray)
    prepared: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    voted_abort: set[str] = field(default_factory=set)
    is_connected: bool = False
    position_is_told: bool = True

    def vote(self, name: str, txn: str, start: int, data: bytes, outcome: str) -> ev.Event:
        """Perform phase 1 with the given outcome: a vote that arrives ("commit", "abort"), or a lost connection."""
        if outcome in ("commit", "lost after"):
            self.prepared[txn] = (start, data)
        if outcome == "abort":
            self.voted_abort.add(txn)
        if outcome in ("commit", "abort"):
            return ev.VoteReceived(name, txn, outcome == "commit")
        self.is_connected = False
        return ev.SinkLost(name, hung=outcome == "hung")

    def phase2(self, txn: str, commit: bool) -> None:
        if commit:
            assert txn not in self.voted_abort, "a transaction that was voted abort was committed"
            if txn in self.prepared:
                start, data = self.prepared.pop(txn)
                assert start == len(self.output), "the output has a gap or a duplicate"
                self.output += data
        else:
            self.prepared.pop(txn, None)


@dataclass
class World:
    """Everything that survives a driver: sinks, Spark's log, the round records, the gateway's acknowledgements."""

    random: random.Random
    sinks: dict[str, FakeSink]
    commits: int = -1
    offsets: int = -1
    rounds: dict[int, RoundRecord] = field(default_factory=dict)
    acknowledged: int = -1
    fence: int = 0
    contents: dict[str, bytes] = field(default_factory=dict)
    reserved: int = 0
    attempts: set[tuple[str, int]] = field(default_factory=set)

    def number(self, name: str, txn: str) -> None:
        """Check the number of a requested vote: it was reserved, and the sink has never seen it."""
        attempt = int(txn.rpartition(":c_id=")[2])
        assert attempt <= self.reserved, "a number was used before it was reserved"
        assert (name, attempt) not in self.attempts, "the number of an attempt was used twice"
        self.attempts.add((name, attempt))

    def epoch_bytes(self, epoch: int, name: str) -> bytes:
        return f"<{epoch}/{name}>".encode() * (1 + epoch % 3)


class DriverDied(Exception):
    """The driver died and lost its memory."""


class FakeDriver:
    """Performs actions as the performer does, one at a time. It may die before each."""

    def __init__(self, world: World, death_rate: float) -> None:
        self.world = world
        self.death_rate = death_rate
        world.fence += 1
        for sink in world.sinks.values():
            sink.is_connected = False
        world.rounds = {epoch: record for epoch, record in world.rounds.items() if epoch <= world.commits}
        self.coordinator = Coordinator(
            pipeline="p",
            checkpoint=CHECKPOINT,
            fence=world.fence,
            fingerprint="f",
            sinks=world.sinks,
            rounds=world.rounds,
            committed=world.commits,
            reserved=world.reserved,
        )
        self.pending: list[ev.Event] = []
        self.is_finished = False

    def maybe_die(self) -> None:
        if self.world.random.random() < self.death_rate:
            raise DriverDied

    def handle(self, event: ev.Event) -> None:
        for action in self.coordinator.handle(event):
            self.maybe_die()
            self.perform(action)

    def perform(self, action: ev.Action) -> None:
        world, chance = self.world, self.world.random
        match action:
            case ev.EmitEpoch(name, txn, epoch, start, end):
                sink = world.sinks[name]
                data = world.epoch_bytes(epoch, name)
                assert txn not in world.contents, "a transaction id was used twice"
                world.contents[txn] = data
                world.number(name, txn)
                if not sink.is_connected:
                    return  # sent into a lost connection; the driver has not been told of the loss yet
                assert end - start == len(data)
                assert start == len(sink.output)
                outcome = chance.choice(["commit", "commit", "commit", "abort", "lost before", "lost after", "hung"])
                self.pending.append(sink.vote(name, txn, start, data, outcome))
            case ev.ReserveAttempts(number):
                world.reserved = number
            case ev.SendPhase2(name, txn, commit):
                sink = world.sinks[name]
                if commit:
                    record = next(r for r in world.rounds.values() if r.parts[name].txn == txn)
                    assert record.epoch <= world.commits, "phase 2 before the decision"
                if sink.is_connected and chance.random() < 0.85:
                    sink.phase2(txn, commit)
                    if commit and chance.random() < 0.7:
                        self.pending.append(ev.Phase2Confirmed(name, txn))
                elif sink.is_connected:
                    sink.is_connected = False
                    self.pending.append(ev.SinkLost(name))
            case ev.ReconnectSink(name):
                world.sinks[name].is_connected = False
            case ev.WriteRecord(record):
                world.rounds[record.epoch] = record
                self.handle(ev.RecordWritten(record.epoch))
            case ev.FinishEpoch():
                self.is_finished = True
            case ev.Acknowledge(record):
                assert record.epoch <= world.commits
                world.acknowledged = record.epoch
            case ev.StopPipeline(error):
                raise AssertionError(f"stopped: {error} {list(self.coordinator.recent_events)}")
            case ev.DropRuns() | ev.Warn():
                pass

    def step(self) -> None:
        """One thing happens: a sink connects or goes, a pending event arrives, Spark moves."""
        world, chance = self.world, self.world.random
        self.maybe_die()
        choices = ["pending"] * 3 if self.pending else []
        down = [name for name, sink in world.sinks.items() if not sink.is_connected]
        up = [name for name, sink in world.sinks.items() if sink.is_connected]
        choices += ["connect"] * 2 if down else []
        choices += ["spark"] * 2
        choices += ["drop"] if up and chance.random() < 0.1 else []
        what = chance.choice(choices)
        if what == "pending":
            event = self.pending.pop(0)
            # Undelivered messages are lost with their connection.
            if isinstance(event, ev.SinkLost) or world.sinks[event.sink].is_connected:  # type: ignore[union-attr]
                self.handle(event)
        elif what == "connect":
            name = chance.choice(down)
            sink = world.sinks[name]
            sink.is_connected = True
            self.pending = [e for e in self.pending if getattr(e, "sink", None) != name]
            listed = list(sink.prepared) + ([chance.choice(sorted(sink.voted_abort))] if sink.voted_abort else [])
            sink.voted_abort -= set(listed) - set(sink.prepared)
            position = len(sink.output) if sink.position_is_told else None
            self.handle(ev.SinkConnected(name, tuple(listed), position))
        elif what == "drop":
            name = chance.choice(up)
            world.sinks[name].is_connected = False
            self.handle(ev.SinkLost(name))
        else:
            self.spark()

    def spark(self) -> None:
        world = self.world
        if self.coordinator.open is None:
            epoch = world.commits + 1
            world.offsets = epoch
            self.is_finished = False
            self.handle(ev.EpochReady(epoch, {name: len(world.epoch_bytes(epoch, name)) for name in world.sinks}))
        elif self.is_finished:
            world.commits = world.offsets
            self.maybe_die()
            self.handle(ev.CommitFound(world.commits))
