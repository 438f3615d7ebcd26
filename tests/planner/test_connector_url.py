"""URLs of sources and sinks: their parts, and secrets, which are refused in them."""

from __future__ import annotations

import pytest

from procession.errors import PlanError
from procession.planner.connector_url import parse_url


def test_a_url_has_scheme_hosts_path_and_options() -> None:
    url = parse_url("kafka://b1:9092,[::1]:9093/orders%20new?partitions=0,1&start=earliest")
    assert (url.scheme, url.hosts, url.host, url.port) == ("kafka", ("b1:9092", "[::1]:9093"), "b1", 9092)
    assert (url.path, url.options) == ("/orders new", {"partitions": "0,1", "start": "earliest"})


def test_a_url_may_contain_another_url_or_a_directory() -> None:
    inner = parse_url("delta:s3://bucket/table?region=x")
    assert (inner.place, inner.authority, inner.options) == ("s3://bucket/table", "", {"region": "x"})
    assert parse_url("parquet:some/dir").path == "some/dir"


@pytest.mark.parametrize(
    "text",
    [
        "postgres://ann:hunter2@db/shop",
        "postgres://ann:hunter2/not-encoded@db/shop",
        "postgres://ann:@db/shop",
        "delta:s3://key:hunter2@bucket/table",
        "postgres://db/shop?password=hunter2",
        "kafka://b/t?sasl.password=hunter2",
        "delta:s3://b/t?secret_access_key=hunter2",
        "kafka://b/t?sasl_token=hunter2",
    ],
)
def test_a_secret_is_refused_not_repeated_and_the_error_says_where_it_belongs(text: str) -> None:
    with pytest.raises(PlanError) as caught:
        parse_url(text, password_hint="the environment variable PGPASSWORD")
    assert "hunter2" not in caught.value.explain()
    assert "PGPASSWORD" in caught.value.next_step


@pytest.mark.parametrize(
    "text",
    ["postgres://db/shop?password=hunter2&&", "postgres//ann:hunter2@db/shop", "postgres:?" + "password=hunter2" * 300],
)
def test_a_secret_is_not_repeated_if_the_url_cannot_be_read(text: str) -> None:
    with pytest.raises(PlanError) as caught:
        parse_url(text)
    assert "hunter2" not in caught.value.explain()


@pytest.mark.parametrize("text", ["kafka://b:9092,c:9093/t?start=a@b", "kafka://[::1]:9092/t", "delta:s3://b/a:b@c"])
def test_a_port_is_not_a_password(text: str) -> None:
    assert parse_url(text).text == text


@pytest.mark.parametrize("text", ["postgres://ann@db/shop?mode=token&key=id", "kafka://b/passwords?token_topic=x"])
def test_an_option_whose_name_only_resembles_a_secret_is_accepted(text: str) -> None:
    assert parse_url(text).text == text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("kafka://b/t?a", "cannot be read"),
        ("kafka://b/t?a=1&a=2", "twice"),
        ("no url", "is not a URL"),
        ("1x:y", "is not a URL"),
        ("kafka:" + "x" * 5000, "is not a URL"),
    ],
)
def test_an_invalid_url_of_a_connector_is_refused(text: str, why: str) -> None:
    with pytest.raises(PlanError, match=why) as caught:
        parse_url(text)
    assert len(caught.value.explain()) < 250


def test_an_option_that_is_not_known_is_refused_with_those_that_are() -> None:
    url = parse_url("kafka://b/t?partition=1&start=latest")
    with pytest.raises(PlanError, match="option 'partition'") as caught:
        url.check_options({"start", "partitions"})
    assert caught.value.next_step == "the options of kafka: are partitions, start"


@pytest.mark.parametrize("value", ["0", "x", "-1", "1.5", "", "²", "99999999999999999999"])
def test_a_number_out_of_range_is_refused(value: str) -> None:
    with pytest.raises(PlanError, match="has n="):
        parse_url(f"kafka://b/t?n={value}").count("n")
    assert parse_url("kafka://b/t?n=7").count("n") == 7
    assert parse_url("kafka://b/t").count("n") is None
