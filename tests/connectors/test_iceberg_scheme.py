"""Iceberg tables in apps: the name of a table has a namespace, in a warehouse or in a catalog."""

from __future__ import annotations

import pytest

from procession.connectors.iceberg_scheme import CONNECTOR
from procession.errors import PlanError
from procession.planner.connector_url import parse_url


def check(text: str) -> None:
    assert CONNECTOR.sink is not None
    CONNECTOR.sink.check(parse_url(text))


@pytest.mark.parametrize(
    "text",
    [
        "iceberg:lake/shop.orders",
        "iceberg:s3://bucket/lake/shop.orders",
        "iceberg:shop.orders?catalog=prod",
        "iceberg:a.b.orders",
        "iceberg:lake/shop.orders?compact_every=0&file_bytes=1",
    ],
)
def test_a_table_with_a_namespace_is_taken(text: str) -> None:
    check(text)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("iceberg:table", "names no table"),
        ("iceberg:some.lake/table", "names no table"),
        ("iceberg:lake/.orders", "names no table"),
        ("iceberg:lake/shop.", "names no table"),
        ("iceberg:lake/shop.orders?catalog=", "an empty catalog"),
        ("iceberg:lake/shop.orders?key=id", "'key' that is not known"),
        ("iceberg:lake/shop.orders?file_bytes=much", "file_bytes=much"),
        ("iceberg:hdfs://host/lake/shop.orders", "hdfs://"),
    ],
)
def test_anything_else_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(PlanError) as caught:
        check(text)
    assert sentence in caught.value.sentence
    assert caught.value.next_step
