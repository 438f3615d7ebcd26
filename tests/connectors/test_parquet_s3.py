"""The lake sinks on an object store: epochs are visible as a whole, each failure of the store is one sentence, and
nothing is lost."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from procession.connectors.delta_table import DeltaLakeTable
from procession.connectors.iceberg_table import IcebergLakeTable
from procession.connectors.object_store_remote import RemoteStore
from procession.connectors.parquet_output import LakeTable
from procession.connectors.parquet_sink import LakeOptions, lake_opener, open_parquet, run_lake_sink
from procession.deployment.local_pipeline import COMMAND
from procession.errors import DiskError, ProcessionError, StorageError, UsageError
from procession.sdk.conformance import CASES, CaseOutcome, Conformance, ConformanceCase, dies_at
from procession.sdk.participant import SinkParticipant
from procession.sdk.sink_process import SinkProcess, Visible
from procession.sdk.transaction_log import TransactionLog
from tests.connectors.lake_readers import joined
from tests.systems.s3_file_server import S3FileServer
from tests.systems.s3_server import S3Server, needs_s3

pytestmark = needs_s3

KINDS = ("parquet", "delta", "iceberg")
Server = S3Server | S3FileServer


@pytest.fixture(scope="module", params=[S3Server, pytest.param(S3FileServer, marks=pytest.mark.slow)])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with request.param() as server:
        yield server


@pytest.fixture(autouse=True)
def environment(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)


class StoredTable:
    """A table of each kind in its own bucket, with its readers."""

    def __init__(self, kind: str, bucket: str, directory: Path) -> None:
        self.kind = kind
        self.url = f"s3://{bucket}/lake/table"
        self.catalog = {
            "PYICEBERG_CATALOG__TEST__TYPE": "sql",
            "PYICEBERG_CATALOG__TEST__URI": f"sqlite:///{directory}/catalog.db",
            "PYICEBERG_CATALOG__TEST__WAREHOUSE": f"s3://{bucket}/lake",
        }

    @property
    def arguments(self) -> list[str]:
        if self.kind == "iceberg":
            return ["iceberg", "sales.orders", "{dir}", "--catalog", "test"]
        return [self.kind, self.url, "{dir}"]

    def open(self) -> LakeTable:
        if self.kind == "iceberg":
            return self.iceberg()
        return DeltaLakeTable(self.url) if self.kind == "delta" else open_parquet(self.url)

    def iceberg(self) -> IcebergLakeTable:
        """Open the table with the settings that a separate program gets from its environment.

        pyiceberg reads the environment only once, when it is imported.
        """
        names = {name.rpartition("__")[2].lower(): value for name, value in self.catalog.items()}
        return IcebergLakeTable(
            load_catalog("test", **names, **{"s3.endpoint": _endpoint(), "s3.region": "us-east-1"}), "sales.orders"
        )

    def rows(self, instance: str = "") -> pa.Table | None:
        """Return the rows of one output that a reader of the format sees."""
        import pyarrow.fs as pa_fs
        import pyarrow.parquet as pq

        if self.kind == "parquet":
            found = RemoteStore(self.url)._obstore.list(RemoteStore(self.url)._store).collect()
            paths = [f"{self.url}/{file['path']}" for file in found if file["path"].endswith(".parquet")]
        elif self.kind == "delta":
            from deltalake import DeltaTable
            from deltalake.exceptions import TableNotFoundError

            try:
                paths = DeltaTable(self.url, storage_options={"allow_http": "true"}).file_uris()
            except TableNotFoundError:
                paths = []
        else:
            table = self.iceberg()
            opened = table._table if table.schema() is not None else None
            paths = [task.file.file_path for task in opened.scan().plan_files()] if opened is not None else []
        paths = sorted(path.removeprefix("s3://") for path in paths if f"/part-{instance}" in path)
        files = pa_fs.S3FileSystem(endpoint_override=_endpoint(), region="us-east-1")
        return pa.concat_tables([pq.read_table(path, filesystem=files) for path in paths]) if paths else None

    def visible(self) -> Visible:
        def visible(_: Path, instance: str) -> bytes:
            rows = self.rows(f"{instance}-0")
            return joined(rows) if rows is not None else b""

        return visible


def _endpoint() -> str:
    import os

    return os.environ["AWS_ENDPOINT_URL"]


@pytest.fixture(params=KINDS)
def table(
    request: pytest.FixtureRequest, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> StoredTable:
    table = StoredTable(request.param, server.bucket(), tmp_path)
    for name, value in table.catalog.items():
        monkeypatch.setenv(name, value)
    return table


@pytest.mark.parametrize(
    "case",
    [
        dies_at("sink:after-publish", True),
        *(pytest.param(case, marks=pytest.mark.slow) for case in (*CASES, dies_at("sink:after-upload", True))),
    ],
    ids=lambda case: case.short,
)
def test_a_lake_sink_on_an_object_store_conforms(table: StoredTable, case: ConformanceCase, tmp_path: Path) -> None:
    command = [*COMMAND, "sink", *table.arguments, "--listen", "{listen}", "--format", "bytes"]
    with SinkProcess([*command, "--position-column", "position"], tmp_path, table.visible()) as process:
        finding = asyncio.run(Conformance(process).run(case))
    assert finding.outcome is CaseOutcome.PASSED, finding.why


def opened(table: LakeTable, directory: Path) -> SinkParticipant:
    directory.mkdir(exist_ok=True)
    txnlog = TransactionLog(directory / "app.txnlog")
    txnlog.open()
    participant = SinkParticipant(lake_opener(directory, lambda: table, LakeOptions())("app"), txnlog)
    participant.begin()
    return participant


def prepare(participant: SinkParticipant, epoch: int, id_: int) -> str:
    payload = json.dumps({"id": id_}).encode()
    start, txn = participant.committed_end, f"app-w-out-id-1.e{epoch}.f1:c_id={epoch}"
    participant.append([start], [payload])
    assert participant.phase1(txn, [(1, start, start + len(payload))])
    return txn


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the wait for a store that does not answer."""
    monkeypatch.setattr("procession.connectors.object_store_remote.RETRIES_MAX", 1)


@pytest.mark.usefixtures("impatient")
def test_a_store_that_is_away_for_a_while_is_reported_in_one_sentence_and_nothing_is_lost(
    table: StoredTable, server: Server, tmp_path: Path
) -> None:
    participant = opened(table.open(), tmp_path / "sink")
    participant.phase2(prepare(participant, 1, 1), True)
    txn = prepare(participant, 2, 2)
    server.stop()
    try:
        with pytest.raises(DiskError) as caught:
            participant.phase2(txn, True)
    finally:
        server.start()
    assert "does not answer" in caught.value.sentence
    assert "\n" not in caught.value.sentence
    participant.close()
    participant = opened(table.open(), tmp_path / "sink")
    assert participant.uncommitted == (txn,)
    participant.phase2(txn, True)
    participant.close()
    rows = table.rows()
    assert rows is not None
    assert sorted(rows.column("id").to_pylist()) == [1, 2]


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_bucket_is_reported_in_one_sentence_at_the_start(kind: str, tmp_path: Path) -> None:
    table = StoredTable(kind, "nobody-has-this", tmp_path)
    with pytest.raises(StorageError, match=r"Cannot use s3://.*: there is no such bucket\.$") as caught:
        run_lake_sink(tmp_path / "sink", table.open, LakeOptions(), "127.0.0.1:0")
    assert "Make the bucket" in caught.value.next_step


def test_a_bucket_that_is_removed_later_is_reported_in_one_sentence(tmp_path: Path) -> None:
    table = StoredTable("parquet", "nobody-has-this", tmp_path)
    with pytest.raises(StorageError, match="there is no such bucket"):
        prepare(opened(table.open(), tmp_path / "sink"), 1, 1)


def test_refused_credentials_are_reported_in_one_sentence(table: StoredTable, server: Server, tmp_path: Path) -> None:
    server.demand_credentials(True)
    try:
        with pytest.raises(ProcessionError) as caught:
            prepare(opened(table.open(), tmp_path / "sink"), 1, 1)
    finally:
        server.demand_credentials(False)
    assert "credentials" in caught.value.sentence + caught.value.next_step
    assert "\n" not in caught.value.sentence
    assert "AWS_SECRET_ACCESS_KEY" in caught.value.next_step


def test_a_secret_in_the_url_is_refused() -> None:
    with pytest.raises(UsageError, match="secret or options") as caught:
        open_parquet("s3://key:secret@bucket/prefix")
    assert "secret@" not in caught.value.sentence


def test_a_create_only_file_is_written_once_and_a_retry_of_the_same_bytes_succeeds(server: Server) -> None:
    store = RemoteStore(f"s3://{server.bucket()}/t")
    assert store.create("a.json", b"one")
    assert store.create("a.json", b"one"), "the same bytes: a retry of a request that went through"
    assert not store.create("a.json", b"two")
    assert store.publish("a.json", "b.json")
    assert not store.publish("a.json", "b.json")
    assert store.read("b.json", 100) == b"one"
