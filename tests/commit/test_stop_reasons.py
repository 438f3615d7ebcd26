"""Stop reasons: each says who must act, what happened and what to do, and survives the way to another process."""

from __future__ import annotations

import inspect
import pickle

import pytest

from procession.commit import stop_reasons
from procession.commit.round_record import SinkShare
from procession.errors import ConfigError, FencedError, PlanError, ProcessionError, RoundError, StorageError

PART = SinkShare("app:7:out", 300, 400)
# The reason, who must act, and what the sentence names.
REASONS: dict[str, tuple[ProcessionError, type[ProcessionError], tuple[str, ...]]] = {
    "fenced": (stop_reasons.fenced(2, 3), FencedError, ("driver 2", "driver 3")),
    "lost_prepared": (stop_reasons.lost_prepared("out", PART), StorageError, ("'out'", "'app:7:out'", "300", "400")),
    "set_back": (stop_reasons.set_back("out", 300, 400), StorageError, ("'out'", "has 300", "400 were committed")),
    "another_output": (
        stop_reasons.another_output("out", 400, 300),
        ConfigError,
        ("'out'", "has 400", "300"),
    ),
    "unsettled": (stop_reasons.unsettled("out", ("t1", "t2")), StorageError, ("'out'", "'t1'")),
    "record_gone": (stop_reasons.record_gone("out", "t1"), StorageError, ("'out'", "'t1'")),
    "refused": (stop_reasons.refused("out", "has no space", 7, 3), RoundError, ("'out' has no space", "epoch 7", "3 ")),
    "hello_refused": (
        stop_reasons.hello_refused("out", 3, "bad cookie"),
        ConfigError,
        ("out", "3 times", "cookie"),
    ),
    "not_voted": (stop_reasons.not_voted("out", "t1", 3, "full"), ConfigError, ("out", "3 times", "on t1", "full")),
    "unsendable": (stop_reasons.unsendable("out", "2 GiB"), PlanError, ("'out'", "2 GiB")),
    "taken_out": (stop_reasons.taken_out("out"), PlanError, ("'out'", "taken out")),
}


def test_every_reason_is_among_the_examples() -> None:
    made = {name for name, found in vars(stop_reasons).items() if inspect.isfunction(found)}
    assert made == set(REASONS)


@pytest.mark.parametrize("name", REASONS)
def test_a_stop_reason_has_who_must_act_what_happened_and_a_next_step(name: str) -> None:
    error, kind, named = REASONS[name]
    assert type(error) is kind
    assert [text for text in named if text not in error.sentence] == []
    assert error.next_step
    assert error.next_step not in error.sentence


@pytest.mark.parametrize("name", REASONS)
def test_a_reason_is_the_same_in_another_process(name: str) -> None:
    error, _, _ = REASONS[name]
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.sentence, again.next_step, again.fields) == (
        type(error),
        error.sentence,
        error.next_step,
        error.fields,
    )


@pytest.mark.parametrize("name", [name for name in REASONS if name not in ("fenced", "hello_refused", "not_voted")])
def test_a_program_can_ask_a_reason_for_its_sink(name: str) -> None:
    assert REASONS[name][0].sink == "out"


def test_a_sink_that_gave_a_reason_is_not_suspected_of_others() -> None:
    guess = "another cookie or certificate, holds the output of another pipeline"
    assert guess in stop_reasons.hello_refused("out", 3, "closed").next_step
    assert guess not in stop_reasons.hello_refused("out", 3, "bad cookie", has_reason=True).next_step


def test_a_sink_that_ended_the_session_before_any_vote_names_no_transaction() -> None:
    assert "before its vote on anything: full" in stop_reasons.not_voted("out", None, 3, "full").sentence
