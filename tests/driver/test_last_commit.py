"""The requirements of a driver on a gateway, derived from the round record of the last commit."""

from __future__ import annotations

from pathlib import Path

from procession.commit.round_files import RoundRecords
from procession.commit.round_record import RoundRecord
from procession.driver.last_commit import DecidedRecords, epochs_kept, known_gateway, known_members
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


def test_before_the_first_commit_only_the_identity_of_a_gateway_is_known() -> None:
    assert known_gateway(None, "a", "id", [FIRST_GATEWAY]) == KnownGateway(identity="id")
    assert known_gateway(None, FIRST_GATEWAY, "id", ["a"]) == KnownGateway(identity="id", gateways=("a",))


def test_a_request_for_the_list_of_gateways_names_every_other_gateway_that_it_must_contain() -> None:
    assert known_members(["b", FIRST_GATEWAY, "a", "b"]) == KnownGateway(gateways=("a", "b"))
    assert known_members([FIRST_GATEWAY]) == KnownGateway()


class CountedRecords(RoundRecords):
    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.read_epochs: list[int] = []

    def read(self, epoch: int) -> RoundRecord | None:
        self.read_epochs.append(epoch)
        return super().read(epoch)


def test_the_record_of_a_decided_epoch_is_read_once(tmp_path: Path) -> None:
    records = CountedRecords(tmp_path / "rounds")
    for epoch in range(2):
        records.write(RoundRecord(epoch, 1, "", 0, 0, {}))
    decided = DecidedRecords(records)
    assert decided.of(-1) is None
    for epoch in (0, 0, 1, 1, 2, 2):
        record = decided.of(epoch)
        assert (None if record is None else record.epoch) == (epoch if epoch < 2 else None)
    assert records.read_epochs == [0, 1, 2]
