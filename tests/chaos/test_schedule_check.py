"""A schedule that was edited is refused before anything is started, by the step that cannot be done."""

from __future__ import annotations

import pytest

from procession.chaos.scenario import Do, Run, Step
from procession.chaos.schedule_check import objection


@pytest.mark.parametrize(
    ("step", "why"),
    [
        (Step(Do.KILL, "gateway-9"), "'gateway-9' is none of gateway, gateway-1"),
        (Step(Do.NETWORK, "nowhere", detail="cut", seconds=1.0), "'nowhere' is none of source-gateway"),
        (Step(Do.NETWORK, "driver-left", detail="bent"), "no fault of a network is called 'bent'"),
        (Step(Do.ROGUE, detail="polite"), "'polite' is none of zero"),
        (Step(Do.MOVE, "source-0", detail="driver"), "'driver' is none of gateway"),
        (Step(Do.MOVE, "driver", detail="gateway"), "'driver' is none of source-0"),
        (Step(Do.BEHAVE, "sink-left", detail="double=1"), "'sink-left' is none of sink-right"),
        (Step(Do.BEHAVE, "sink-right", detail="double=1,dance=2"), "'dance' is none of abort_on"),
        (Step(Do.NETWORK, "driver-left", detail="delay:long"), "'long' is no number of seconds"),
        (Step(Do.NETWORK, "driver-left", detail="truncate:left"), "truncate goes up or down, and not 'left'"),
        (Step(Do.WORKER, "driver", detail="any"), "'any' is no number of a process"),
        (Step(Do.EXECUTOR, "gateway", detail="all"), "'gateway' is none of driver"),
        (Step(Do.BAD_SYNC, "gateway", detail="last"), "'last' is no number of a sync"),
        (Step(Do.CLOCK, "gateway", detail="noon"), "'noon' is no number of seconds"),
        (Step(Do.FORGET, "sink-right", detail="everything"), "'everything' is none of committed"),
        (Step(Do.PAUSE, "gateway", seconds=-1.0), "time does not go back"),
    ],
)
def test_a_step_that_nobody_can_do_is_named_with_the_reason(step: Step, why: str) -> None:
    good = Step(Do.KILL, "gateway")
    told = objection([Run("first", (good,)), Run("second", (good, step))])
    assert told.startswith(f"'second' cannot do {str(step)!r}: ")
    assert why in told


def test_a_schedule_without_a_run_is_none() -> None:
    assert objection([]) == "it holds no run"
    assert not objection([Run("first", (Step(Do.KILL, "gateway"), Step(Do.CLOCK, "driver", detail="-3600")))])
