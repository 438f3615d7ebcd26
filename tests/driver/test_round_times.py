"""The times of phases are measured between the events and actions of a round, with a clock that the test moves."""

from __future__ import annotations

from procession.commit.round_events import (
    CommitFound,
    DropRuns,
    EmitEpoch,
    EpochReady,
    Phase2Confirmed,
    RecordWritten,
    SendPhase2,
    SinkConnected,
    SinkLost,
    VoteReceived,
    WriteRecord,
)
from procession.commit.round_record import RoundRecord
from procession.driver.round_times import RoundTimes


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def round_of(times: RoundTimes, clock: Clock, epoch: int) -> None:
    """Run a round with two sinks: 2 s of tasks, votes after 1 and 3 s, 0.5 s for the record, 0.25 s for the
    decision."""
    times.tasks_done(epoch, clock.now - 2.0)
    times.observe(EpochReady(epoch, {"a": 1, "b": 1}))
    for sink in ("a", "b"):
        times.observe(EmitEpoch(sink, f"{sink}{epoch}", epoch, 0, 1))
    clock.now += 1.0
    times.observe(VoteReceived("a", f"a{epoch}", True))
    clock.now += 2.0
    times.observe(VoteReceived("b", f"b{epoch}", True))
    times.observe(WriteRecord(RoundRecord(epoch, 1, "", 0, 0, {})))
    clock.now += 0.5
    times.observe(RecordWritten(epoch))
    clock.now += 0.25
    times.observe(CommitFound(epoch))
    times.observe(SendPhase2("a", f"a{epoch}", True))
    times.observe(SendPhase2("b", f"b{epoch}", True))


def test_each_phase_is_measured_from_its_beginning_to_its_end() -> None:
    clock = Clock()
    times = RoundTimes(clock, clock)
    round_of(times, clock, 0)
    clock.now += 0.125
    times.observe(Phase2Confirmed("a", "a0"))
    clock.now += 0.125
    times.observe(DropRuns(0))
    assert times.last is not None
    assert times.last.as_json() == {
        "wait_s": None,
        "run_s": 2.0,
        "phase1_s": {"a": 1.0, "b": 3.0},
        "record_s": 0.5,
        "decision_s": 0.25,
    }
    assert times.last.phase2_s == {"a": 0.125, "b": 0.25}


def test_the_wait_lasts_from_the_previous_decision_to_the_offer() -> None:
    clock = Clock()
    times = RoundTimes(clock, clock)
    round_of(times, clock, 0)
    clock.now += 7.0
    round_of(times, clock, 1)
    assert times.last is not None
    assert times.last.wait_s == 5.0


def test_a_vote_confirms_the_phase_2_before_it() -> None:
    clock = Clock()
    times = RoundTimes(clock, clock)
    round_of(times, clock, 0)
    first = times.last
    clock.now += 4.0
    round_of(times, clock, 1)
    assert first is not None
    assert first.phase2_s == {"a": 5.0, "b": 7.0}


def test_an_open_round_lists_the_sinks_that_have_not_voted() -> None:
    clock = Clock()
    times = RoundTimes(clock, clock)
    times.observe(SinkConnected("a", (), None))
    assert times.waits_for() is None
    times.observe(EpochReady(3, {"a": 1, "b": 1}))
    times.observe(EmitEpoch("a", "a3", 3, 0, 1))
    times.observe(EmitEpoch("b", "b3", 3, 0, 1))
    times.observe(VoteReceived("b", "b3", True))
    clock.now += 6.0
    assert times.waits_for() == {"epoch": 3, "phase": "phase 1", "seconds": 6.0, "sinks": ["a"], "attempts": 1}


def test_aborts_and_lost_connections_are_counted() -> None:
    clock = Clock()
    times = RoundTimes(clock, clock)
    times.observe(SinkConnected("a", (), None))
    times.observe(EpochReady(0, {"a": 1}))
    times.observe(EmitEpoch("a", "a0", 0, 0, 1))
    times.observe(VoteReceived("a", "a0", False))
    times.observe(SendPhase2("a", "a0", False))
    times.observe(SinkLost("a"))
    assert times.open is not None
    assert times.open.aborts == 1
    report = times.sinks["a"]
    assert (report.aborted, report.connects, report.is_connected) == (1, 1, False)
    times.observe(EmitEpoch("a", "a1", 0, 0, 1))
    assert times.waits_for() == {"epoch": 0, "phase": "phase 1", "seconds": 0.0, "sinks": ["a"], "attempts": 2}


def test_a_vote_on_an_older_transaction_does_not_count() -> None:
    times = RoundTimes(Clock(), Clock())
    times.observe(EpochReady(0, {"a": 1}))
    times.observe(EmitEpoch("a", "a1", 0, 0, 1))
    times.observe(VoteReceived("a", "a0", True))
    assert times.waits_for() == {"epoch": 0, "phase": "phase 1", "seconds": 0.0, "sinks": ["a"], "attempts": 1}
