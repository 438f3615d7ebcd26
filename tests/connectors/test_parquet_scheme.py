"""URLs of lake tables in apps: which are refused when the app is read, before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from procession.connectors import delta_scheme, iceberg_scheme, parquet_scheme
from procession.errors import ProcessionError
from procession.planner.connector import Connector
from procession.planner.connector_url import parse_url

CONNECTORS = {
    connector.name: connector
    for connector in (parquet_scheme.CONNECTOR, delta_scheme.CONNECTOR, iceberg_scheme.CONNECTOR)
}


def check(text: str) -> Connector:
    url = parse_url(text)
    connector = CONNECTORS[url.scheme]
    assert connector.sink is not None
    connector.sink.check(url)
    return connector


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("delta:gs://bucket/table", "gs://"),
        ("parquet:http://host/table", "http://"),
        ("iceberg:hdfs://host/lake.orders", "hdfs://"),
        ("delta:table?format=xml", "format=xml"),
        ("delta:table?compact_every=often", "compact_every"),
        ("parquet:table?key_column=", "empty key_column"),
        ("parquet:table?compact_every=3", "compact_every"),
        ("iceberg:table", "names no table"),
    ],
)
def test_an_invalid_url_is_refused_when_the_app_is_read(text: str, sentence: str) -> None:
    with pytest.raises(ProcessionError) as caught:
        check(text)
    assert sentence in caught.value.sentence


@pytest.mark.parametrize("text", ["delta:some/table", "parquet:s3://bucket/prefix", "delta:file:///lake/table"])
def test_a_path_and_the_url_of_a_store_are_accepted(text: str) -> None:
    check(text)


def test_options_of_a_url_become_options_of_the_program() -> None:
    connector = check("delta:s3://bucket/t?compact_every=100&key_column=who")
    assert connector.sink is not None
    words = connector.sink.arguments(parse_url("delta:s3://bucket/t?compact_every=100&key_column=who"), Path("sink"))
    assert words == ["s3://bucket/t", "sink", "--compact-every", "100", "--key-column", "who"]
