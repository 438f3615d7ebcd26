"""The conductor, as far as it decides for itself: whether it is still the one in charge."""

from __future__ import annotations

from pathlib import Path

from procession.commit.checkpoint import Checkpoint
from procession.commit.conductor import Conductor, Rim
from procession.commit.coordinator import Coordinator
from procession.commit.events import SinkConnected
from procession.commit.link import SinkOptions
from procession.commit.rounds import Round
from procession.errors import FencedError, ProcessionError
from procession.storage.runs import RunStore
from tests.sdk.loops import on_a_loop


async def nobody(record: Round) -> None:
    raise AssertionError("nothing is acknowledged here")


def conductor_of(checkpoint: Checkpoint, failures: list[ProcessionError]) -> Conductor:
    coordinator = Coordinator(
        pipeline="p", checkpoint="abc", fence=checkpoint.fence, fingerprint="f", sinks=["a"], rounds={}, committed=-1
    )
    rim = Rim(acknowledge=nobody, observe=lambda outcome: None, say=lambda sentence: None, fail=failures.append)
    sinks = [SinkOptions("a", "127.0.0.1", 1, "p", "p-a-0", is_authoritative=False)]
    return Conductor(coordinator, checkpoint, RunStore(checkpoint.root / "runs"), sinks, rim)


@on_a_loop
async def test_a_driver_that_was_replaced_stops_when_it_greets_a_sink_again(tmp_path: Path) -> None:
    """Found by the simulator: in the middle of a round, at a sink whose position is not to be relied on, it went on for
    ever, and each of its greetings ended its successor's session."""
    failures: list[ProcessionError] = []
    conductor = conductor_of(Checkpoint.claim(tmp_path / "c", name="p", fingerprint="f"), failures)
    conductor._handle(SinkConnected("a", (), None))
    assert failures == []
    Checkpoint.claim(tmp_path / "c", name="p", fingerprint="f")
    conductor._handle(SinkConnected("a", (), None))
    assert [type(failure) for failure in failures] == [FencedError]
