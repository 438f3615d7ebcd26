"""A sequence of files as one stream: positions that never change, new files, and files that come too late."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from procession import Pipeline
from procession.connectors.file_sequence import LIST_FILE, FileSequence
from procession.connectors.framing import parse_framing
from procession.errors import ConfigError, StorageError
from procession.sdk.source_records import Stream
from procession.testing import run

STREAM = Stream.named("calls")


def sequence(place: Path, **options: Any) -> FileSequence:
    return FileSequence(place / "calls-*.txt", "calls", place / "state", poll_s=0.001, **options)


def lines(source: FileSequence, after: int | None = None) -> list[tuple[int, bytes]]:
    batches = source.read(STREAM, after)
    assert isinstance(batches, Iterator)
    return [
        pair for batch in batches for pair in zip(batch.message_ids.tolist(), batch.payloads.to_pylist(), strict=True)
    ]


def write(place: Path, **texts: str) -> None:
    for name, text in texts.items():
        (place / f"calls-{name}.txt").write_text(text)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.sampled_from(["", "a", "bc", "def"]), max_size=4), min_size=1, max_size=4), st.integers(1, 9)
)
def test_the_stream_is_the_files_in_order_and_can_continue_after_each_record(
    tmp_path_factory: pytest.TempPathFactory, texts: list[list[str]], chunk_bytes: int
) -> None:
    place = tmp_path_factory.mktemp("files")
    write(place, **{f"{number}": "".join(f"{line}\n" for line in text) for number, text in enumerate(texts)})
    found = lines(sequence(place, chunk_bytes=chunk_bytes))
    assert [payload.decode() for _, payload in found] == [line for text in texts for line in text]
    together = "".join(f"{line}\n" for text in texts for line in text)
    assert all(together[position:].startswith(f"{payload.decode()}\n") for position, payload in found)
    for number, (position, _) in enumerate(found):
        assert lines(sequence(place), after=position) == found[number + 1 :]


def test_a_last_line_without_a_newline_is_a_record_and_later_positions_do_not_change(tmp_path: Path) -> None:
    write(tmp_path, a="x\ny", b="z\n")
    assert lines(sequence(tmp_path)) == [(0, b"x"), (2, b"y"), (3, b"z")]


def test_committed_files_may_be_removed_and_positions_do_not_change(tmp_path: Path) -> None:
    write(tmp_path, a="1\n2\n", b="3\n", c="4\n")
    assert lines(sequence(tmp_path)) == [(0, b"1"), (2, b"2"), (4, b"3"), (6, b"4")]
    (tmp_path / "calls-a.txt").unlink()
    assert lines(sequence(tmp_path), after=2) == [(4, b"3"), (6, b"4")]
    write(tmp_path, d="5\n")
    assert lines(sequence(tmp_path), after=6) == [(8, b"5")]
    assert [file["name"] for file in json.loads((tmp_path / "state" / LIST_FILE).read_bytes())["files"]] == [
        "calls-b.txt",
        "calls-c.txt",
        "calls-d.txt",
    ]


def test_the_directory_may_move(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    write(tmp_path / "old", a="1\n", b="2\n")
    assert lines(sequence(tmp_path / "old")) == [(0, b"1"), (2, b"2")]
    (tmp_path / "old").rename(tmp_path / "new")
    assert lines(sequence(tmp_path / "new"), after=0) == [(2, b"2")]


def test_a_file_that_is_not_committed_must_not_be_removed(tmp_path: Path) -> None:
    write(tmp_path, a="1\n2\n", b="3\n")
    lines(sequence(tmp_path))
    (tmp_path / "calls-a.txt").unlink()
    with pytest.raises(StorageError, match="was removed before all of it was committed"):
        lines(sequence(tmp_path), after=0)


def test_a_lost_state_is_refused(tmp_path: Path) -> None:
    write(tmp_path, a="1\n")
    with pytest.raises(StorageError, match="is missing, but records of stream 'calls' are committed"):
        lines(sequence(tmp_path), after=0)
    (tmp_path / "state" / LIST_FILE).write_text("{")
    with pytest.raises(StorageError, match="cannot be read"):
        sequence(tmp_path)
    (tmp_path / "state" / LIST_FILE).write_text('{"format": 2, "files": []}')
    with pytest.raises(StorageError, match="has format 2, and this version reads formats 1 to 1"):
        sequence(tmp_path)


def test_a_new_file_that_sorts_before_one_already_read_is_refused(tmp_path: Path) -> None:
    write(tmp_path, b="1\n")
    lines(sequence(tmp_path))
    write(tmp_path, a="0\n")
    with pytest.raises(ConfigError, match=r"calls-a.txt sorts before calls-b.txt, which was begun already"):
        lines(sequence(tmp_path), after=0)


@pytest.mark.parametrize("text", ["1\n2\n", ""])
def test_a_file_that_changes_after_the_next_was_started_is_refused(tmp_path: Path, text: str) -> None:
    write(tmp_path, a="1\n", b="2\n")
    lines(sequence(tmp_path))
    write(tmp_path, a=text)
    with pytest.raises(StorageError, match=r"had 2 bytes when calls-b\.txt was begun"):
        lines(sequence(tmp_path), after=2)


def test_without_any_file_a_source_that_does_not_follow_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No file matches"):
        sequence(tmp_path)
    sequence(tmp_path, is_following=True)


def test_a_file_that_ends_within_a_record_is_refused_when_the_next_exists(tmp_path: Path) -> None:
    write(tmp_path, a="123", b="45")
    with pytest.raises(StorageError, match="ends in the middle of the record at byte 2"):
        lines(sequence(tmp_path, framing=parse_framing("fixed:2")))


def test_a_file_that_appears_later_is_followed_when_the_one_before_is_complete(tmp_path: Path) -> None:
    async def follow() -> list[tuple[int, bytes]]:
        batches = sequence(tmp_path, is_following=True).read(STREAM, None)
        assert isinstance(batches, AsyncIterator)
        found: list[tuple[int, bytes]] = []

        async def until(count: int) -> None:
            while len(found) < count:
                batch = await anext(batches)
                found.extend(zip(batch.message_ids.tolist(), batch.payloads.to_pylist(), strict=True))

        waiting = asyncio.ensure_future(until(1))
        await asyncio.sleep(0)
        write(tmp_path, a="1\n2")
        await waiting  # the second line is not complete yet
        with (tmp_path / "calls-a.txt").open("a") as file:
            file.write("2\n3")
        await until(2)
        write(tmp_path, b="4\n")
        await until(4)
        with (tmp_path / "calls-a.txt").open("a") as file:
            file.write("5")
        with pytest.raises(StorageError, match=r"had 6 bytes when calls-b\.txt was begun"):
            await until(5)
        return found

    assert asyncio.run(follow()) == [(0, b"1"), (2, b"22"), (5, b"3"), (6, b"4")]


def test_the_first_record_of_a_new_file_that_is_older_than_the_last_one_is_late(tmp_path: Path) -> None:
    """A new file continues its stream, so its records are late with respect to that stream alone."""
    pipeline = Pipeline("p", order_by="event_time", late="dead-letter", dead_letter="file:letters")
    calls = pipeline.source("calls", from_="file:calls-*.txt", codec="json", event_time_field="at")
    rates = pipeline.source("rates", from_="file:rates.txt", codec="json", event_time_field="at")
    calls.merge(rates).sink("out", to="file:out")
    first, second = [{"at": 1}, {"at": 5}], [{"at": 4}, {"at": 6}]
    found = run(pipeline, {"calls": first + second, "rates": [{"at": 2}, {"at": 9}]}, dead_letter_share_max=1)
    assert [record["at"] for record in found["out"]] == [1, 2, 5, 6, 9]
    assert len(found["dead-letter"]) == 1
