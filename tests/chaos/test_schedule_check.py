"""An edited schedule is refused before anything starts, and the error names the step that cannot be performed."""

from __future__ import annotations

import pytest

from procession.chaos.scenario import FaultAction, FaultStep, ScenarioRun
from procession.chaos.schedule_check import schedule_problem


@pytest.mark.parametrize(
    ("step", "why"),
    [
        (FaultStep(FaultAction.KILL, "gateway-9"), "'gateway-9' is none of gateway, gateway-1"),
        (FaultStep(FaultAction.NETWORK, "nowhere", detail="cut", seconds=1.0), "'nowhere' is none of source-gateway"),
        (FaultStep(FaultAction.NETWORK, "driver-left", detail="bent"), "there is no network fault 'bent'"),
        (FaultStep(FaultAction.FAULTY_PRODUCER, detail="polite"), "'polite' is none of zero"),
        (FaultStep(FaultAction.MOVE, "source-0", detail="driver"), "'driver' is none of gateway"),
        (FaultStep(FaultAction.MOVE, "driver", detail="gateway"), "'driver' is none of source-0"),
        (FaultStep(FaultAction.BEHAVE, "sink-left", detail="double=1"), "'sink-left' is none of sink-right"),
        (FaultStep(FaultAction.BEHAVE, "sink-right", detail="double=1,dance=2"), "'dance' is none of abort_on"),
        (FaultStep(FaultAction.NETWORK, "driver-left", detail="delay:long"), "'long' is not a number of seconds"),
        (
            FaultStep(FaultAction.NETWORK, "driver-left", detail="truncate:left"),
            "truncate goes up or down, and not 'left'",
        ),
        (FaultStep(FaultAction.WORKER, "driver", detail="any"), "'any' is not a number of a process"),
        (FaultStep(FaultAction.EXECUTOR, "gateway", detail="all"), "'gateway' is none of driver"),
        (FaultStep(FaultAction.BAD_SYNC, "gateway", detail="last"), "'last' is not a number of a sync"),
        (FaultStep(FaultAction.CLOCK, "gateway", detail="noon"), "'noon' is not a number of seconds"),
        (FaultStep(FaultAction.FORGET, "sink-right", detail="everything"), "'everything' is none of committed"),
        (FaultStep(FaultAction.PAUSE, "gateway", seconds=-1.0), "a time is negative"),
    ],
)
def test_an_impossible_step_is_named_with_the_reason(step: FaultStep, why: str) -> None:
    good = FaultStep(FaultAction.KILL, "gateway")
    message = schedule_problem([ScenarioRun("first", (good,)), ScenarioRun("second", (good, step))])
    assert message.startswith(f"'second' cannot do {str(step)!r}: ")
    assert why in message


@pytest.mark.parametrize(
    ("scenario", "step", "why"),
    [
        ("kafka-mixed", FaultStep(FaultAction.KILL, "gateway-1"), "'gateway-1' is none of gateway, driver"),
        ("kafka-mixed", FaultStep(FaultAction.JOIN, "gateway-2"), "the cluster 'kafka' cannot do that"),
        (
            "kafka-mixed",
            FaultStep(FaultAction.NETWORK, "driver-left", detail="cut"),
            "'driver-left' is none of",
        ),
        ("kafka-mixed", FaultStep(FaultAction.RACE, "broker", detail="same-directory"), "'broker' is none of sink-"),
        ("kafka-mixed", FaultStep(FaultAction.RACE, "sink-topic", detail="now"), "'now' is neither same-directory nor"),
        ("crash-sink", FaultStep(FaultAction.RACE, "sink-left", detail="same-directory"), "'standard' cannot do that"),
    ],
)
def test_a_step_is_checked_against_the_cluster_of_its_scenario(scenario: str, step: FaultStep, why: str) -> None:
    assert why in schedule_problem([ScenarioRun(scenario, (step,))])


def test_a_schedule_without_a_run_is_refused() -> None:
    assert schedule_problem([]) == "it has no runs"
    assert not schedule_problem(
        [
            ScenarioRun(
                "first",
                (FaultStep(FaultAction.KILL, "gateway"), FaultStep(FaultAction.CLOCK, "driver", detail="-3600")),
            )
        ]
    )
