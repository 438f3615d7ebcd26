"""Delta tables in apps: merges need a key, deletes need a condition, and a merged epoch fits into memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from procession.connectors.delta_scheme import CONNECTOR, MERGE_BYTES_MAX
from procession.errors import PlanError
from procession.planner.connector_url import ConnectorUrl, parse_url


def checked(text: str) -> ConnectorUrl:
    url = parse_url(text)
    assert CONNECTOR.sink is not None
    CONNECTOR.sink.check(url)
    return url


@pytest.mark.parametrize(
    "text",
    [
        "delta:some/table",
        "delta:s3://bucket/table?compact_every=100&file_bytes=1000",
        "delta:t?key=id",
        "delta:t?key=id&delete_when=op=delete",
        "delta:t?key=a,b&delete_when=op==",
    ],
)
def test_a_url_that_says_all_is_taken(text: str) -> None:
    checked(text)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("delta:t?delete_when=op=delete", "deletes by key, but names none"),
        ("delta:t?key=id&delete_when=op", "does not say which records delete"),
        ("delta:t?key=id&delete_when=op=", "does not say which records delete"),
        ("delta:t?key=id&delete_when==delete", "does not say which records delete"),
        ("delta:t?key=", "an empty key"),
        ("delta:t?compact_every=often", "compact_every=often"),
        ("delta:t?epochs_per_file=3", "'epochs_per_file' that is not known"),
    ],
)
def test_a_url_that_leaves_something_open_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(PlanError) as caught:
        checked(text)
    assert sentence in caught.value.sentence
    assert caught.value.next_step


def test_only_an_epoch_that_is_merged_has_a_limit_of_its_own() -> None:
    assert CONNECTOR.sink is not None
    assert CONNECTOR.sink.limits(checked("delta:t?key=id")).bytes_max == MERGE_BYTES_MAX
    assert CONNECTOR.sink.limits(checked("delta:t")).bytes_max is None


def test_options_of_a_url_become_options_of_the_program() -> None:
    assert CONNECTOR.sink is not None
    url = checked("delta:s3://bucket/t?key=id&delete_when=op=delete")
    words = CONNECTOR.sink.arguments(url, Path("sink"))
    assert words == ["s3://bucket/t", "sink", "--key", "id", "--delete-when", "op=delete"]


def test_a_table_in_an_object_store_needs_its_client() -> None:
    assert CONNECTOR.modules_for is not None
    assert "obstore" in CONNECTOR.modules_for(checked("delta:s3://bucket/t"))
    assert "obstore" not in CONNECTOR.modules_for(checked("delta:t"))
