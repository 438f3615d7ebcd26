"""The rounds of a history are compared one by one: a round that does not start where the last one ended is a
violation."""

from __future__ import annotations

from typing import Any

import pytest

from procession.verify.history_check import HeldInput, HeldOutput, HistoryCheck, RecordedRound


def round_(epoch: int, **changed: Any) -> dict[str, Any]:
    """Return round `epoch` of a pipeline with 10 records and 100 bytes of output per epoch."""
    start = 10 * epoch
    return {
        "id": "c1",
        "epoch": epoch,
        "fence": 1,
        "first": start,
        "last": start + 10,
        "records_in": start + 10,
        "sinks": {"out": [10 * start, 10 * start + 100]},
        "ends": {"gateway-0": start + 10},
        "positions": {"7": start + 9},
        **changed,
    }


def checked(*lines: dict[str, Any]) -> HistoryCheck:
    check = HistoryCheck()
    for line in lines:
        check.add(line)
    return check


def test_rounds_that_join_are_clean_and_proved_to_the_last() -> None:
    verdict = checked(round_(0), round_(1), round_(2)).verdict(
        [HeldOutput("out", 300)], [HeldInput("gateway-0", 2, 30)]
    )
    assert verdict["outcome"] == "clean"
    assert (verdict["lost"], verdict["doubled"], verdict["disordered"]) == (0, 0, 0)
    assert (verdict["proved_epoch"], verdict["since_epoch"], verdict["records"]) == (2, 0, 30)


@pytest.mark.parametrize(
    ("changed", "kind"),
    [
        ({"first": 25, "last": 35, "ends": {"gateway-0": 30}}, "lost"),
        ({"first": 15, "last": 25, "ends": {"gateway-0": 30}}, "doubled"),
        ({"last": 19}, "disordered"),
        ({"ends": {"gateway-0": 5}}, "doubled"),
        ({"ends": {"gateway-0": 29}}, "lost"),
        ({"ends": {"gateway-0": 31}}, "doubled"),
        ({"sinks": {"out": [201, 300]}}, "lost"),
        ({"sinks": {"out": [199, 300]}}, "doubled"),
        ({"sinks": {}}, "lost"),
        ({"records_in": 31}, "doubled"),
        ({"records_in": 19}, "lost"),
        ({"positions": {"7": 18}}, "disordered"),
        ({"fence": 0}, "disordered"),
        ({"epoch": 1}, "doubled"),
    ],
)
def test_a_round_that_does_not_join_is_a_violation(changed: dict[str, Any], kind: str) -> None:
    verdict = checked(round_(0), round_(1), round_(2) | changed).verdict()
    assert verdict["outcome"] == "violated"
    assert verdict[kind] > 0
    assert verdict["why"]


def test_a_round_that_a_replaced_driver_logs_again_is_nothing_new() -> None:
    verdict = checked(round_(0), round_(1), round_(0), round_(1), round_(2)).verdict()
    assert (verdict["outcome"], verdict["proved_epoch"]) == ("clean", 2)


def test_a_sink_may_go_only_with_a_new_driver() -> None:
    assert checked(round_(0), round_(1) | {"fence": 2, "sinks": {}}).verdict()["outcome"] == "clean"


def test_the_first_round_begins_at_the_first_row() -> None:
    assert checked(round_(0, first=1, ends={"gateway-0": 10})).verdict()["lost"] == 1


def test_missing_rounds_make_it_unknown_with_their_number() -> None:
    verdict = checked(round_(0), round_(3)).verdict()
    assert verdict["outcome"] == "unknown"
    assert verdict["why"] == ["2 rounds are missing in the history"]


def test_nothing_committed_is_unknown() -> None:
    assert HistoryCheck().verdict()["outcome"] == "unknown"


def test_a_check_that_is_not_possible_is_unknown_with_the_reason() -> None:
    verdict = checked(round_(0)).verdict(unknown=["gateway does not answer"])
    assert (verdict["outcome"], verdict["why"]) == ("unknown", ["gateway does not answer"])


def test_a_history_that_begins_late_is_clean_from_there_on() -> None:
    verdict = checked(round_(5), round_(6)).verdict()
    assert (verdict["outcome"], verdict["since_epoch"]) == ("clean", 5)


def test_it_is_proved_only_as_far_as_the_slowest_sink_and_gateway() -> None:
    check = checked(round_(0), round_(1), round_(2))
    assert check.verdict([HeldOutput("out", 200)])["proved_epoch"] == 1
    assert check.verdict(inputs=[HeldInput("gateway-0", 0, 10)])["proved_epoch"] == 0
    assert check.verdict([HeldOutput("out", 200)])["outcome"] == "clean"


@pytest.mark.parametrize(("end", "kind"), [(250, "doubled"), (301, "doubled"), (50, "lost")])
def test_a_sink_that_ends_where_no_round_ends_violates(end: int, kind: str) -> None:
    verdict = checked(round_(0), round_(1), round_(2)).verdict([HeldOutput("out", end)])
    assert (verdict["outcome"], verdict[kind] > 0) == ("violated", True)


def test_a_round_of_the_checkpoint_that_is_not_in_the_history_yet_explains_a_sink() -> None:
    check = checked(round_(0), round_(1))
    held = [HeldOutput("out", 300)]
    assert check.verdict(held)["outcome"] == "violated"
    verdict = check.verdict(held, recorded=RecordedRound(2, 30, {"out": 300}))
    assert (verdict["outcome"], verdict["proved_epoch"]) == ("clean", 1)


def test_a_gateway_that_has_acknowledged_more_than_was_committed_violates() -> None:
    verdict = checked(round_(0), round_(1)).verdict(inputs=[HeldInput("gateway-0", 1, 23)])
    assert (verdict["outcome"], verdict["lost"]) == ("violated", 3)


def test_a_history_that_disagrees_with_the_checkpoint_violates() -> None:
    assert checked(round_(0)).verdict(recorded=RecordedRound(0, 12))["outcome"] == "violated"


def test_another_pipeline_in_the_directory_begins_anew() -> None:
    verdict = checked(round_(0), round_(1), round_(0, id="c2")).verdict()
    assert (verdict["outcome"], verdict["proved_epoch"]) == ("clean", 0)


def test_lines_of_older_versions_are_passed_over() -> None:
    assert checked({"epoch": 3, "records_in": 4}, round_(4)).verdict()["since_epoch"] == 4
