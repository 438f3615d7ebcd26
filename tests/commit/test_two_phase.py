"""Two-phase commit: the outcome of every transaction that a sink may list. `test_coordinator` tests whole rounds."""

from __future__ import annotations

import pytest

from procession.commit.coordinator import Coordinator
from procession.commit.round_events import ReconnectSink, SendPhase2, SinkConnected, StopPipeline
from procession.commit.round_record import RoundRecord, SinkShare
from procession.commit.transaction_id import TransactionId

CHECKPOINT, FENCE, COMMITTED = "abc123", 3, 1


def listed(epoch: int, fence: int, checkpoint: str = CHECKPOINT) -> str:
    return str(TransactionId(epoch, fence, 7, checkpoint, "p", "out"))


@pytest.mark.parametrize("epoch", [0, 1, 2, 3])
@pytest.mark.parametrize("fence", [1, 3, 4])
@pytest.mark.parametrize("whose", ["ours", "another checkpoint's", "nobody's"])
@pytest.mark.parametrize("is_recorded", [True, False])
@pytest.mark.parametrize("is_named", [True, False])
def test_every_transaction_that_a_sink_lists_has_one_outcome(
    epoch: int, fence: int, whose: str, is_recorded: bool, is_named: bool
) -> None:
    text = {"ours": listed(epoch, fence), "another checkpoint's": listed(epoch, fence, "fff000")}.get(whose, "x")
    named = text if is_named else "another"
    rounds = {
        each: RoundRecord(each, 1, "f", 0, 0, {"out": SinkShare(named if each == epoch else "before", 5, 5)})
        for each in range(COMMITTED + 1)
        if is_recorded or each != epoch or each == COMMITTED
    }
    core = Coordinator(
        pipeline="p",
        checkpoint=CHECKPOINT,
        fence=FENCE,
        fingerprint="f",
        sinks=["out"],
        rounds=rounds,
        committed=COMMITTED,
    )
    actions = core.handle(SinkConnected("out", (text,), 5))
    if whose != "ours":
        assert SendPhase2("out", text, False) in actions, (
            "it is not ours: it is aborted, even if its number was committed"
        )
    elif fence > FENCE:
        assert isinstance(actions[0], StopPipeline), "a later driver is at work"
    elif epoch <= COMMITTED and epoch not in rounds:
        assert isinstance(actions[0], StopPipeline), "nobody knows what the epoch committed"
    elif epoch <= COMMITTED and is_named:
        assert SendPhase2("out", text, True) in actions
    else:
        assert SendPhase2("out", text, False) in actions
        assert ReconnectSink("out") in actions, "the sink is asked again for a clean list"
