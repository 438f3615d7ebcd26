"""Kafka in apps, without a broker: accepted URLs, options of the program, and the effect of a topic on the order."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession.connectors.kafka_scheme import (
    CONNECTOR,
    EPOCH_BYTES_MAX,
    SINK_OPTIONS,
    SOURCE_OPTIONS,
    check_sink,
    check_source,
    declared_streams,
    epoch_limits,
    named_stream,
    order_note,
    partition_numbers,
    program_arguments,
)
from procession.errors import ConfigError, PlanError
from procession.planner.connector_url import FLAG, NUMBER, OptionKind, parse_url
from procession.record import stream_id

TOPIC = "kafka://a:1,b/orders"


def value(kind: OptionKind) -> str:
    return "true" if kind == FLAG else "3" if kind == NUMBER else kind[0] if not isinstance(kind, str) else "0"


@pytest.mark.parametrize(("check", "options"), [(check_sink, SINK_OPTIONS), (check_source, SOURCE_OPTIONS)])
def test_every_option_of_a_side_is_taken_there_and_those_of_the_other_side_are_not(check, options) -> None:  # type: ignore[no-untyped-def]
    check(parse_url(TOPIC))
    for name, kind in (SINK_OPTIONS | SOURCE_OPTIONS).items():  # type: ignore[operator]
        url = parse_url(f"{TOPIC}?{name}={value(kind)}")
        if name in options:
            check(url)
        else:
            with pytest.raises(PlanError, match=f"{name}' that is not known"):
                check(url)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("kafka:///t", "not a URL of a Kafka topic"),
        ("kafka://a", "not a URL of a Kafka topic"),
        ("kafka://a/", "not a URL of a Kafka topic"),
        ("kafka:orders", "not a URL of a Kafka topic"),
        ("kafka://ann@a/t", "not a URL of a Kafka topic"),
        ("kafka://a/t?tombstones=yes", "tombstones=yes"),
        ("kafka://a/t?partition=x", "partition=x"),
        ("kafka://a/t?compression=zip", "compression=zip"),
    ],
)
def test_a_bad_url_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(PlanError) as caught:
        check_sink(parse_url(text))
    assert sentence in caught.value.sentence
    assert caught.value.next_step


def test_a_source_names_partitions_by_numbers() -> None:
    with pytest.raises(PlanError, match="names partitions"):
        check_source(parse_url(f"{TOPIC}?partitions=0,x"))


@given(st.sets(st.integers(0, 999_999_999), min_size=1))
def test_partitions_are_read_back(numbers: set[int]) -> None:
    assert partition_numbers(" , ".join(map(str, numbers))) == numbers


@pytest.mark.parametrize("text", ["", ",", "1,", "-1", "1.5", "x", "²", "1234567890"])
def test_other_texts_are_not_partitions(text: str) -> None:
    with pytest.raises(ConfigError, match="partition"):
        partition_numbers(text)


def test_the_program_gets_the_topic_the_directory_and_the_options() -> None:
    url = parse_url(f"{TOPIC}?partition=0&tombstones=true&envelope=false&transaction_bytes_max=1000")
    words = [TOPIC, "d", "--partition", "0", "--tombstones", "--transaction-bytes-max", "1000"]
    assert program_arguments(url, Path("d")) == words


def test_an_epoch_is_limited_by_the_transaction() -> None:
    assert epoch_limits(parse_url(TOPIC)).bytes_max == EPOCH_BYTES_MAX
    assert epoch_limits(parse_url(f"{TOPIC}?transaction_bytes_max=1000")).bytes_max == 1000


def test_in_event_time_order_the_streams_are_those_of_the_named_partitions() -> None:
    declared = declared_streams(parse_url(f"{TOPIC}?partitions=0,5"))
    assert declared == {named_stream("orders", 0), named_stream("orders", 5)}
    assert named_stream("orders", 5) == stream_id(b"kafka:orders/5")
    assert named_stream("orders", 5) != named_stream("letters", 5)
    with pytest.raises(PlanError, match="names no partitions"):
        declared_streams(parse_url(TOPIC))


@pytest.mark.parametrize("order", ["total", "stream", "key", "none"])
def test_a_topic_with_several_partitions_keeps_the_order_of_keys_only(order: str) -> None:
    note = order_note(parse_url(TOPIC), order)
    assert bool(note) is (order in ("total", "stream"))
    assert f"the order {order!r}" in note or not note
    assert order_note(parse_url(f"{TOPIC}?partition=0"), order) == ""


def test_only_a_source_that_stops_at_the_end_ends() -> None:
    assert CONNECTOR.source is not None
    ends = [CONNECTOR.source.ends(parse_url(TOPIC + end)) for end in ("", "?stop_at_end=true", "?stop_at_end=false")]
    assert ends == [False, True, False]
