"""PostgreSQL URLs in apps: the command-line options that they become, and which URLs are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from procession.connectors.postgres_connection import checked_url
from procession.connectors.postgres_scheme import url_streams
from procession.errors import PlanError, UsageError
from procession.planner.connector_registry import sink_of, source_of
from procession.record import stream_id


def test_options_of_a_sink_become_options_of_the_program_and_those_of_libpq_stay() -> None:
    text = (
        "postgres://ann@db:5433/shop?table=s.t&key=a,b&column=c=$payload&sslmode=require&session_pooler=true&mode=token"
    )
    connector, url = sink_of(text, "sink 'alerts'")
    assert connector.sink is not None
    assert connector.sink.arguments(url, Path("dir")) == [
        *("postgres://ann@db:5433/shop?sslmode=require", "dir", "--table", "s.t", "--key", "a", "--key", "b"),
        *("--column", "c=$payload", "--session-pooler", "--mode", "token"),
    ]


def test_options_of_a_source_become_options_of_the_program() -> None:
    connector, url = source_of("postgresql:///?service=shop&table=a,b&slot=s&stop_at_end=true", "source 'orders'")
    assert connector.source is not None
    assert connector.source.arguments(url, Path("dir")) == [
        *("postgresql:///?service=shop", "dir", "--table", "a", "--table", "b", "--slot", "s", "--stop-at-end"),
    ]
    assert connector.source.ends(url)
    assert url_streams(url) == {stream_id(b"s")}
    _, polled = source_of("postgres://db/shop?table=t&poll_column=id", "source 'orders'")
    assert url_streams(polled) == {stream_id(b"t")}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("postgres://db/shop", "names no table"),
        ("postgres:shop?table=t", "not a URL of a PostgreSQL database"),
        ("postgres://db/shop?table=t&tabel=u", "'tabel'"),
        ("postgres://db/shop?table=t&mode=fast", "mode=fast"),
        ("postgres://db/shop?table=t&delete_when=op=delete", "names none"),
        ("postgres://db/shop?table=t&key=a&delete_when=op", "does not say which records delete"),
        ("postgres://db/shop?table=t&session_pooler=perhaps", "session_pooler=perhaps"),
    ],
)
def test_an_invalid_url_is_refused_when_the_app_is_read(text: str, sentence: str) -> None:
    with pytest.raises(PlanError) as error:
        sink_of(text, "sink 'alerts'")
    assert sentence in error.value.explain()
    assert "Next:" in error.value.explain()


@pytest.mark.parametrize("text", ["postgres://db/shop", "postgres://db/shop?table=a,b&poll_column=id"])
def test_a_source_needs_a_table(text: str) -> None:
    with pytest.raises(PlanError, match="table"):
        source_of(text, "source 'orders'")


@pytest.mark.parametrize("url", ["postgres://ann:hunter2@db/shop", "postgresql://db/shop?user=ann&password=hunter2"])
def test_a_password_in_a_url_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(UsageError) as error:
        checked_url(url)
    assert "PGPASSFILE" in error.value.explain()
    assert "hunter2" not in error.value.explain()


@pytest.mark.parametrize("url", ["mysql://db/shop", "postgres://db/shop?colour=red", "shop"])
def test_a_url_that_libpq_cannot_parse_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="URL"):
        checked_url(url)
