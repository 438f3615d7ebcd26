"""What a driver expects of a gateway, from the round record of the last commit."""

from __future__ import annotations

from procession.commit.round_record import RoundRecord
from procession.driver.known_gateways import epochs_kept, known_gateway
from procession.gateway.confirmation import KnownGateway
from procession.storage.log_ranges import FIRST_GATEWAY

RECORD = RoundRecord(9, 1, "", 0, 0, {}, acknowledged=7)


def test_only_the_leader_must_have_committed_epochs_on_disk() -> None:
    assert epochs_kept(RECORD, FIRST_GATEWAY) == 8
    assert epochs_kept(RECORD, "other") == 0


def test_the_leader_is_sent_the_names_of_all_other_gateways_that_ever_joined() -> None:
    names = ["b", FIRST_GATEWAY, "a", "b"]
    assert known_gateway(RECORD, FIRST_GATEWAY, "id", names) == KnownGateway(10, 8, "id", ("a", "b"))
    assert known_gateway(RECORD, "a", "id", names) == KnownGateway(10, 0, "id", ())


def test_before_the_first_commit_a_gateway_is_known_by_its_identity_alone() -> None:
    assert known_gateway(None, "a", "id", [FIRST_GATEWAY]) == KnownGateway(identity="id")
    assert known_gateway(None, FIRST_GATEWAY, "id", ["a"]) == KnownGateway(identity="id", gateways=("a",))
