"""A savepoint in an object store is complete or absent, verified, and restored from there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from procession.connectors.object_store_remote import RemoteStore
from procession.errors import ProcessionError, StorageError, UsageError
from procession.gateway.gateway_directory import save_snapshot
from procession.gateway.snapshot import Position, Snapshot
from procession.savepoints.savepoint import MANIFEST
from procession.savepoints.savepoint_create import create
from procession.savepoints.savepoint_store import downloaded, upload
from tests.savepoints.test_savepoint import KEYS, command, totals
from tests.systems.s3_server import S3Server, needs_s3
from tests.verify.stored_pipeline import StoredPipeline

pytestmark = needs_s3


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with S3Server() as server:
        yield server


@pytest.fixture
def url(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return f"s3://{server.bucket()}/savepoints/one"


@pytest.fixture
def pipeline(tmp_path: Path) -> StoredPipeline:
    from procession.planner.keys import PLAIN_KEYS

    found = StoredPipeline(tmp_path / "pipeline")
    found.write("totals", {PLAIN_KEYS.encode(number): number for number in range(100)})
    found.commit()
    (found.directory / "gateway").mkdir()
    save_snapshot(found.directory / "gateway", Snapshot(1, 0, 7, 9, {3: Position("orders", 40)}))
    return found


def test_the_commands_copy_verify_describe_and_restore(pipeline: StoredPipeline, url: str, tmp_path: Path) -> None:
    at = ("--dir", pipeline.directory)
    command("create", "one", *at)
    command("copy", "one", url, *at)
    assert "is intact" in command("verify", url)
    assert json.loads(command("describe", url, "--json"))["name"] == "one"
    command("restore", url, tmp_path / "other")
    assert totals(tmp_path / "other") == {number: number for number in KEYS}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "pipeline"]  # nothing is left of the copy
    with pytest.raises(UsageError, match="There is a savepoint at"):
        upload(create(pipeline.directory, "two"), url)


def test_a_savepoint_whose_copy_was_killed_is_absent_and_can_be_copied_again(
    pipeline: StoredPipeline, url: str
) -> None:
    saved = create(pipeline.directory, "one")
    RemoteStore(url).put_file(saved.directory / MANIFEST, "checkpoint/pipeline.json")
    with pytest.raises(UsageError, match="There is no savepoint at"), downloaded(url):
        pass
    upload(saved, url)
    with downloaded(url) as found:
        assert found.verify() == len(saved.manifest["files"])


def test_a_damaged_or_missing_file_is_named(pipeline: StoredPipeline, url: str, tmp_path: Path) -> None:
    saved = create(pipeline.directory, "one")
    upload(saved, url)
    (tmp_path / "other").write_bytes(b"something else")
    RemoteStore(url).put_file(tmp_path / "other", "checkpoint/pipeline.json")
    with downloaded(url) as found, pytest.raises(StorageError, match=r"pipeline\.json has 14 bytes"):
        found.verify()
    RemoteStore(url).delete("checkpoint/pipeline.json")
    with pytest.raises(ProcessionError, match=r"pipeline\.json"), downloaded(url):
        pass
