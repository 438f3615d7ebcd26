"""Rows that replace and delete those of a Delta table, compared with a dict, over epochs, crashes and bad rows."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from procession import PlanError, faults
from procession.connectors.delta_merge import MergeRule
from procession.connectors.delta_scheme import CONNECTOR
from procession.connectors.delta_table import DeltaLakeTable
from procession.errors import ConfigError, ProcessionError, UsageError
from procession.sdk.participant import SinkParticipant
from tests.connectors.test_delta_table import opened

RULE = MergeRule(("shop", "hour"), "op", "delete")
Row = dict[str, Any]


def table(path: Path, rule: MergeRule | None = RULE, **options: Any) -> DeltaLakeTable:
    return DeltaLakeTable(str(path), rule=rule, **options)


def commit(participant: SinkParticipant, epoch: int, records: list[Row]) -> None:
    start, txn = participant.committed_end, f"app-w-out-id-1.e{epoch}.f1:c_id={epoch}"
    payloads = [json.dumps(record).encode() for record in records]
    starts = [start + sum(map(len, payloads[:number])) for number in range(len(payloads))]
    participant.append(starts, payloads)
    assert participant.phase1(txn, [(1, start, start + sum(map(len, payloads)))])
    participant.phase2(txn, True)


def found(path: Path) -> list[Row]:
    rows = DeltaTable(path).to_pyarrow_table().to_pylist()
    return sorted(rows, key=lambda row: (row["shop"], row["hour"]))


def applied(records: list[Row]) -> list[Row]:
    """Apply one record after the other to a dict, as the reference."""
    rows: dict[tuple[str, int], Row] = {}
    for record in records:
        key = record["shop"], record["hour"]
        if record["op"] == "delete":
            rows.pop(key, None)
        else:
            rows[key] = record
    return [rows[key] for key in sorted(rows)]


def record(chance: random.Random) -> Row:
    shop, hour = chance.choice(["a", "b"]), chance.randrange(3)
    op = chance.choice(["set", "set", "delete"])
    return {"shop": shop, "hour": hour, "cents": chance.randrange(1000), "op": op}


def test_the_table_is_the_same_as_if_each_record_were_applied_alone(tmp_path: Path) -> None:
    chance = random.Random(5)
    participant = opened(tmp_path / "sink", table(tmp_path / "table", compact_every=3))
    records: list[Row] = []
    for epoch in range(1, 9):
        more = [record(chance) for _ in range(chance.randrange(1, 8))]
        commit(participant, epoch, more)
        records += more
        assert found(tmp_path / "table") == applied(records)
        if epoch == 4:  # in another process, with what is on disk
            participant.close()
            participant = opened(tmp_path / "sink", table(tmp_path / "table"))
    participant.close()
    named = {path.name for path in (tmp_path / "table").glob("*.parquet") if path.name.startswith("part-app-")}
    assert named == set(), "the file of an epoch does not belong to the table, and is removed"


def test_deleting_a_missing_row_inserts_nothing(tmp_path: Path) -> None:
    participant = opened(tmp_path / "sink", table(tmp_path / "table"))
    commit(participant, 1, [{"shop": "a", "hour": 1, "cents": 1, "op": "set"}])
    commit(participant, 2, [{"shop": "b", "hour": 1, "cents": 1, "op": "delete"}])
    commit(participant, 3, [{"shop": "c", "hour": 1, "cents": 1, "op": None}])
    participant.close()
    assert [row["shop"] for row in found(tmp_path / "table")] == ["a", "c"]


def test_an_update_keeps_the_other_rows(tmp_path: Path) -> None:
    participant = opened(tmp_path / "sink", table(tmp_path / "table", MergeRule(("id",))))
    commit(participant, 1, [{"id": 1, "name": "x"}, {"id": 2, "name": "y"}])
    commit(participant, 2, [{"id": 2, "name": "z"}, {"id": 3, "name": "it's"}])
    participant.close()
    rows = DeltaTable(tmp_path / "table").to_pyarrow_table().to_pylist()
    assert sorted((row["id"], row["name"]) for row in rows) == [(1, "x"), (2, "z"), (3, "it's")]


@pytest.mark.parametrize("point", ["sink:before-publish", "sink:after-publish"])
def test_an_epoch_that_a_crash_interrupted_is_merged_once(
    tmp_path: Path, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the crash another writer changes the row, so a second merge of the epoch would be visible."""

    class Crash(BaseException):
        pass

    def reached(name: str) -> None:
        if name == point:
            raise Crash

    participant = opened(tmp_path / "sink", table(tmp_path / "table"))
    commit(participant, 1, [{"shop": "a", "hour": 1, "cents": 1, "op": "set"}])
    with monkeypatch.context() as patched:
        patched.setattr(faults, "point", reached)
        with pytest.raises(Crash):
            commit(participant, 2, [{"shop": "a", "hour": 1, "cents": 2, "op": "set"}])
    participant.close()
    if point == "sink:after-publish":
        DeltaTable(tmp_path / "table").update(updates={"cents": "99"})
    participant = opened(tmp_path / "sink", table(tmp_path / "table"))
    participant.phase2("app-w-out-id-1.e2.f1:c_id=2", True)
    participant.close()
    (row,) = found(tmp_path / "table")
    assert row["cents"] == (99 if point == "sink:after-publish" else 2)


def test_a_record_without_a_key_is_refused_before_the_vote(tmp_path: Path) -> None:
    participant = opened(tmp_path / "sink", table(tmp_path / "table", MergeRule(("id",))))
    commit(participant, 1, [{"id": 1, "name": "x"}])
    with pytest.raises(ProcessionError, match="1 records have no value for the key column 'id'"):
        commit(participant, 2, [{"id": None, "name": "y"}])
    participant.close()
    assert DeltaTable(tmp_path / "table").count() == 1


@pytest.mark.parametrize(("key", "why"), [("none", "there is none"), ("price", "it is of type double")])
def test_a_column_that_no_row_is_found_by_is_refused(tmp_path: Path, key: str, why: str) -> None:
    participant = opened(tmp_path / "sink", table(tmp_path / "table", MergeRule((key,))))
    with pytest.raises(ConfigError, match=f"cannot be found by the column '{key}': {why}"):
        commit(participant, 1, [{"id": 1, "price": 1.5}])
    participant.close()


@pytest.mark.parametrize(
    ("key", "delete_when", "sentence"),
    [
        ("a,,b", "", "is not a list of columns"),
        ("a,a", "", "is not a list of columns"),
        ("a", "op", "is not a rule"),
        ("", "op=delete", "there is no --key"),
    ],
)
def test_invalid_delete_rules_are_refused(key: str, delete_when: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        MergeRule.parse(key, delete_when)


def test_options_are_read_and_a_url_needs_a_key_to_delete() -> None:
    assert MergeRule.parse("") is None
    assert MergeRule.parse("shop, hour", "op=delete") == RULE
    assert CONNECTOR.sink is not None
    with pytest.raises(PlanError, match="deletes by key, but names none"):
        CONNECTOR.sink.check(CONNECTOR.url("delta:t?delete_when=op=delete"))
    with pytest.raises(PlanError, match="does not say which records delete"):
        CONNECTOR.sink.check(CONNECTOR.url("delta:t?key=shop&delete_when=op"))
    CONNECTOR.sink.check(url := CONNECTOR.url("delta:t?key=shop,hour&delete_when=op=delete"))
    assert CONNECTOR.sink.arguments(url, Path("d"))[2:] == ["--key", "shop,hour", "--delete-when", "op=delete"]
    assert CONNECTOR.sink.limits(url).bytes_max == 64 * 1024 * 1024


def test_the_last_row_of_each_key_counts() -> None:
    rows = pa.table({"k": [1, 2, 1, 3, 2], "v": list("abcde")})
    assert MergeRule(("k",)).last_rows(rows).to_pydict() == {"k": [1, 3, 2], "v": ["c", "d", "e"]}
