"""Rounds without two-phase commit: each level keeps exactly its own guarantee in any history."""

from __future__ import annotations

import random
import re
from collections import Counter
from typing import TypeVar

import pytest

from procession.commit import round_events as ev
from procession.commit.coordinator import Coordinator
from procession.commit.one_phase import OnePhase, strategy_for
from procession.commit.round_events import (
    Acknowledge,
    AcknowledgeEarly,
    Action,
    CommitFound,
    DropRuns,
    EmitEpoch,
    EpochReady,
    FinishEpoch,
    QueryEnded,
    ReconnectSink,
    RecordWritten,
    ReserveAttempts,
    SendPhase2,
    SinkConnected,
    SinkLost,
    StopPipeline,
    VoteReceived,
    WriteRecord,
)
from procession.commit.round_record import RoundRecord, SinkShare
from procession.commit.two_phase import TwoPhase
from procession.errors import StorageError
from procession.planner.guarantee import POLICIES, Guarantee
from tests.commit.world import CHECKPOINT, DriverDied, FakeDriver, FakeSink, World

T = TypeVar("T")
WEAKER = [Guarantee.AT_LEAST_ONCE, Guarantee.AT_MOST_ONCE, Guarantee.NONE]


def core_of(
    guarantee: Guarantee,
    *sinks: str,
    idempotent: tuple[str, ...] = (),
    rounds: dict[int, RoundRecord] | None = None,
    committed: int = -1,
    fence: int = 1,
    reserved: int = 0,
) -> Coordinator:
    return Coordinator(
        policy=POLICIES[guarantee],
        strategy=strategy_for(POLICIES[guarantee], idempotent),
        pipeline="p",
        checkpoint=CHECKPOINT,
        fence=fence,
        fingerprint="f",
        sinks=sinks,
        rounds=rounds or {},
        committed=committed,
        reserved=reserved,
    )


def only(actions: list[Action], kind: type[T]) -> T:
    (found,) = [action for action in actions if isinstance(action, kind)]
    return found


def emits_of(actions: list[Action]) -> dict[str, EmitEpoch]:
    """Return the actions that send the epoch, by sink."""
    return {action.sink: action for action in actions if isinstance(action, EmitEpoch)}


def kinds(actions: list[Action]) -> list[type[Action]]:
    return [type(action) for action in actions]


def test_two_phase_commit_is_the_default() -> None:
    assert isinstance(strategy_for(POLICIES[Guarantee.EFFECTIVELY_ONCE]), TwoPhase)
    assert isinstance(strategy_for(POLICIES[Guarantee.EFFECTIVELY_ONCE], ["a"]), OnePhase)
    assert all(isinstance(strategy_for(POLICIES[level]), OnePhase) for level in WEAKER)


def test_at_least_once_a_sink_commits_at_its_vote_and_the_record_waits_for_all() -> None:
    core = core_of(Guarantee.AT_LEAST_ONCE, "a", "b")
    for sink in ("a", "b"):
        core.handle(SinkConnected(sink, (), 0))
    emits = emits_of(core.handle(EpochReady(0, {"a": 10, "b": 10})))
    assert core.handle(VoteReceived("a", emits["a"].txn, True)) == [SendPhase2("a", emits["a"].txn, True)]
    last = core.handle(VoteReceived("b", emits["b"].txn, True))
    assert kinds(last) == [SendPhase2, WriteRecord]
    assert core.handle(RecordWritten(0)) == [FinishEpoch(0)]
    assert kinds(core.handle(CommitFound(0))) == [Acknowledge], (
        "no phase 2 after the decision: the sink committed at its vote"
    )


def test_at_least_once_the_next_driver_sends_an_undecided_epoch_again_after_the_visible_output() -> None:
    core = core_of(
        Guarantee.AT_LEAST_ONCE,
        "a",
        rounds={0: RoundRecord(0, 1, "f", 0, 1, {"a": SinkShare("t", 0, 10)})},
        committed=0,
    )
    core.handle(SinkConnected("a", (), 25))
    emit = only(core.handle(EpochReady(1, {"a": 15})), EmitEpoch)
    assert (emit.start, emit.end) == (25, 40)


def test_at_least_once_a_sink_that_lost_committed_output_stops_the_pipeline() -> None:
    core = core_of(
        Guarantee.AT_LEAST_ONCE,
        "a",
        rounds={0: RoundRecord(0, 1, "f", 0, 1, {"a": SinkShare("t", 0, 10)})},
        committed=0,
    )
    assert isinstance(only(core.handle(SinkConnected("a", (), 9)), StopPipeline).error, StorageError)


def test_at_least_once_the_abort_of_a_sink_does_not_undo_the_output_of_another() -> None:
    core = core_of(Guarantee.AT_LEAST_ONCE, "a", "b")
    for sink in ("a", "b"):
        core.handle(SinkConnected(sink, (), 0))
    emits = emits_of(core.handle(EpochReady(0, {"a": 10, "b": 10})))
    core.handle(VoteReceived("a", emits["a"].txn, True))
    actions = core.handle(VoteReceived("b", emits["b"].txn, False))
    assert {action.sink for action in actions if isinstance(action, SendPhase2 | ReconnectSink)} == {"b"}
    again = only(core.handle(SinkConnected("b", (), 0)), EmitEpoch)
    assert again.sink == "b"
    assert kinds(core.handle(VoteReceived("b", again.txn, True))) == [SendPhase2, WriteRecord]


def test_at_most_once_the_epoch_is_committed_before_anything_is_sent() -> None:
    core = core_of(Guarantee.AT_MOST_ONCE, "a")
    core.handle(SinkConnected("a", (), 0))
    ready = core.handle(EpochReady(0, {"a": 10}))
    assert kinds(ready) == [WriteRecord]
    assert core.handle(RecordWritten(0)) == [FinishEpoch(0)]
    emit = only(core.handle(CommitFound(0)), EmitEpoch)
    assert kinds(core.handle(VoteReceived("a", emit.txn, True))) == [SendPhase2, Acknowledge, DropRuns]


@pytest.mark.parametrize("guarantee", [Guarantee.AT_MOST_ONCE, Guarantee.NONE])
def test_at_most_once_data_in_flight_to_a_lost_sink_is_not_sent_again(guarantee: Guarantee) -> None:
    core = core_of(guarantee, "a")
    core.handle(SinkConnected("a", (), 0))
    core.handle(EpochReady(0, {"a": 10}))
    core.handle(RecordWritten(0))
    core.handle(CommitFound(0))
    assert Acknowledge in kinds(core.handle(SinkLost("a")))
    assert core.handle(SinkConnected("a", (), 0)) == []
    assert core.open is None


def test_at_most_once_the_round_waits_for_a_sink_that_is_not_connected() -> None:
    core = core_of(Guarantee.AT_MOST_ONCE, "a")
    core.handle(EpochReady(0, {"a": 10}))
    core.handle(RecordWritten(0))
    assert core.handle(CommitFound(0)) == []
    assert only(core.handle(SinkConnected("a", (), 0)), EmitEpoch).end == 10


def test_at_most_once_the_next_driver_does_not_send_committed_epochs() -> None:
    core = core_of(Guarantee.AT_MOST_ONCE, "a", rounds={0: RoundRecord(0, 1, "f", 0, 1, {})}, committed=0, fence=2)
    assert core.handle(SinkConnected("a", (), 0)) == []
    core.handle(EpochReady(1, {"a": 5}))
    core.handle(RecordWritten(1))
    emit = only(core.handle(CommitFound(1)), EmitEpoch)
    assert (emit.epoch, emit.start) == (1, 0)


def test_without_a_guarantee_producers_are_acknowledged_at_once_and_the_commit_does_not_wait() -> None:
    core = core_of(Guarantee.NONE, "a")
    core.handle(SinkConnected("a", (), 0))
    ready = core.handle(EpochReady(0, {"a": 10}, first=3, last=9, positions={7: 49}))
    assert kinds(ready) == [AcknowledgeEarly, ReserveAttempts, EmitEpoch, WriteRecord]
    acknowledged = only(ready, AcknowledgeEarly).record
    assert (acknowledged.last, acknowledged.positions) == (3, {7: 49}), (
        "the log is kept from the epoch's first record on"
    )


def test_an_idempotent_sink_gets_the_same_positions_again_beside_transactional_sinks() -> None:
    last = RoundRecord(0, 1, "f", 0, 1, {"a": SinkShare("t", 0, 10), "b": SinkShare("t", 0, 10)})
    core = core_of(Guarantee.EFFECTIVELY_ONCE, "a", "b", idempotent=("b",), rounds={0: last}, committed=0)
    core.handle(SinkConnected("a", (), 10))
    core.handle(SinkConnected("b", (), 25))
    emits = emits_of(core.handle(EpochReady(1, {"a": 15, "b": 15})))
    assert (emits["b"].start, emits["b"].end) == (10, 25)
    assert core.handle(VoteReceived("b", emits["b"].txn, True))[0] == SendPhase2("b", emits["b"].txn, True)
    assert WriteRecord in kinds(core.handle(VoteReceived("a", emits["a"].txn, True)))
    core.handle(RecordWritten(1))
    found = core.handle(CommitFound(1))
    assert [action.sink for action in found if isinstance(action, SendPhase2)] == ["a"]


def test_an_idempotent_sink_that_lost_output_stops_the_pipeline() -> None:
    last = RoundRecord(0, 1, "f", 0, 1, {"b": SinkShare("t", 0, 10)})
    core = core_of(Guarantee.EFFECTIVELY_ONCE, "b", idempotent=("b",), rounds={0: last}, committed=0)
    assert isinstance(only(core.handle(SinkConnected("b", (), 9)), StopPipeline).error, StorageError)


@pytest.mark.parametrize("guarantee", WEAKER)
def test_a_query_that_ended_leaves_no_open_transaction(guarantee: Guarantee) -> None:
    core = core_of(guarantee, "a")
    core.handle(SinkConnected("a", (), 0))
    core.handle(EpochReady(0, {"a": 10}))
    core.handle(QueryEnded())
    assert core.open is None
    assert core.sinks["a"].vote is None


# Histories


class EagerSink(FakeSink):
    """A sink that commits at any position it is told. An idempotent one may start again below its end."""

    is_idempotent = False

    def phase2(self, txn: str, commit: bool) -> None:
        if not commit:
            self.prepared.pop(txn, None)
        elif txn in self.prepared:
            assert txn not in self.voted_abort
            start, data = self.prepared.pop(txn)
            assert start <= len(self.output) if self.is_idempotent else start == len(self.output)
            self.output[start : start + len(data)] = data


class EagerDriver(FakeDriver):
    def __init__(self, world: World, death_rate: float, guarantee: Guarantee, idempotent: tuple[str, ...]) -> None:
        super().__init__(world, death_rate)
        self.coordinator = core_of(
            guarantee,
            *world.sinks,
            idempotent=idempotent,
            rounds=world.rounds,
            committed=world.commits,
            fence=world.fence,
            reserved=world.reserved,
        )
        self.idempotent = idempotent

    def perform(self, action: ev.Action) -> None:
        world, chance = self.world, self.world.random
        match action:
            case ev.EmitEpoch(name, txn, epoch, start, end) if self.world.sinks[name].is_connected:
                sink, data = world.sinks[name], world.epoch_bytes(epoch, name)
                world.contents[txn] = data
                world.number(name, txn)
                assert end - start == len(data)
                assert start == len(sink.output) or (name in self.idempotent and start <= len(sink.output))
                outcome = chance.choice(["commit"] * 5 + ["abort", "lost before", "lost after", "hung"])
                self.pending.append(sink.vote(name, txn, start, data, outcome))
            case ev.SendPhase2(name, txn, commit):
                sink = world.sinks[name]
                if sink.is_connected and chance.random() < 0.9:
                    sink.phase2(txn, commit)
                elif sink.is_connected:
                    sink.is_connected = False
                    self.pending.append(ev.SinkLost(name))
            case ev.ReconnectSink(name) if world.sinks[name].is_connected:
                world.sinks[name].is_connected = False
                self.pending.append(ev.SinkLost(name))
            case ev.AcknowledgeEarly():
                pass
            case _:
                super().perform(action)

    def spark(self) -> None:
        opened = self.coordinator.open
        if opened is not None and opened.ready.epoch <= self.world.commits:
            return  # committed already, and still being sent
        super().spark()


def history(seed: int, guarantee: Guarantee, *, is_idempotent: bool = False) -> World:
    chance = random.Random(seed)
    sinks: dict[str, FakeSink] = {name: EagerSink() for name in ("a", "b")[: chance.randint(1, 2)]}
    idempotent = ("a",) if is_idempotent else ()
    for name in idempotent:
        sinks[name].is_idempotent = True  # type: ignore[attr-defined]
    world = World(chance, sinks)
    driver = EagerDriver(world, 0.02, guarantee, idempotent)
    for _ in range(400):
        try:
            driver.step()
        except DriverDied:
            driver = EagerDriver(world, 0.02, guarantee, idempotent)
        except AssertionError as error:
            if "was refused" not in str(error):
                raise
            driver = EagerDriver(world, 0.02, guarantee, idempotent)
    driver.death_rate = 0.0
    for _ in range(400):
        try:
            driver.step()
        except AssertionError as error:
            if "was refused" not in str(error):
                raise
            driver = EagerDriver(world, 0.0, guarantee, idempotent)
    assert world.commits > 5
    return world


def times(sink: FakeSink, name: str) -> Counter[int]:
    """Return how often each epoch is in the output, which must consist of whole epochs."""
    text = bytes(sink.output).decode()
    found = re.findall(rf"<(\d+)/{name}>", text)
    assert "".join(f"<{epoch}/{name}>" for epoch in found) == text
    return Counter({int(epoch): count // (1 + int(epoch) % 3) for epoch, count in Counter(found).items()})


SEEDS = range(150)


def test_at_least_once_no_history_loses_an_epoch_and_some_duplicate_one() -> None:
    doubled = 0
    for seed in SEEDS:
        world = history(seed, Guarantee.AT_LEAST_ONCE)
        for name, sink in world.sinks.items():
            seen = times(sink, name)
            assert all(seen[epoch] >= 1 for epoch in range(world.commits)), "an epoch is lost"
            doubled += sum(count > 1 for count in seen.values())
    assert doubled


def test_at_most_once_no_history_duplicates_an_epoch_and_some_lose_one() -> None:
    lost = 0
    for seed in SEEDS:
        world = history(seed, Guarantee.AT_MOST_ONCE)
        for name, sink in world.sinks.items():
            seen = times(sink, name)
            assert max(seen.values(), default=0) <= 1, "an epoch is duplicated"
            lost += sum(seen[epoch] == 0 for epoch in range(world.commits))
    assert lost


def test_with_no_guarantee_histories_lose_and_duplicate() -> None:
    lost = doubled = 0
    for seed in SEEDS:
        world = history(seed, Guarantee.NONE)
        for name, sink in world.sinks.items():
            seen = times(sink, name)
            lost += sum(seen[epoch] == 0 for epoch in range(world.commits))
            doubled += sum(count > 1 for count in seen.values())
    assert lost
    assert doubled


def test_an_idempotent_sink_and_a_transactional_one_have_every_epoch_once_in_every_history() -> None:
    for seed in SEEDS:
        world = history(seed, Guarantee.EFFECTIVELY_ONCE, is_idempotent=True)
        for name, sink in world.sinks.items():
            seen = times(sink, name)
            assert set(seen.values()) == {1}
            assert set(range(world.commits)) <= set(seen)
