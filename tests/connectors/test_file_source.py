"""Files as a source: lines compared with `splitlines`, positions as ids, and every position to continue from."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from procession.connectors import file_source as file
from procession.connectors.file_source import FileSource, stream_id_of
from procession.connectors.framing import parse_framing
from procession.errors import ConfigError, StorageError
from procession.sdk.source_records import Batch, Stream
from tests.sdk.loops import on_a_loop


def lines(source: FileSource, after: int | None = None) -> list[tuple[int, bytes]]:
    streams = source.streams()
    assert isinstance(streams, list)
    (stream,) = streams
    batches = source.read(stream, after)
    assert isinstance(batches, Iterator)
    return [
        (int(message_id), payload)
        for batch in batches
        for message_id, payload in zip(batch.message_ids, batch.payloads.to_pylist(), strict=True)
    ]


def reference(data: bytes) -> list[tuple[int, bytes]]:
    """Compute the records slowly and plainly."""
    found, position = [], 0
    while position < len(data):
        end = data.find(b"\n", position)
        end = len(data) if end < 0 else end
        found.append((position, data[position:end]))
        position = end + 1
    return found


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from([b"", b"a", b"bc", b"\r", b"def" * 5, b"\x00\xff"])), st.booleans(), st.integers(1, 9))
def test_a_file_is_read_as_lines_with_any_chunk_size_and_from_any_line(
    tmp_path_factory: pytest.TempPathFactory, texts: list[bytes], has_last_newline: bool, chunk_bytes: int
) -> None:
    path = tmp_path_factory.mktemp("files") / "input"
    path.write_bytes(b"\n".join(texts) + b"\n" * has_last_newline)
    source = FileSource([path], chunk_bytes=chunk_bytes)
    everything = reference(path.read_bytes())
    assert lines(source) == everything
    for number, (position, _) in enumerate(everything):
        assert lines(source, after=position) == everything[number + 1 :]


def test_a_line_may_be_as_long_as_a_frame_and_no_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file, "RECORD_BYTES_MAX", 100)
    path = tmp_path / "input"
    for ending in (b"", b"\n", b"\nx"):
        path.write_bytes(b"short\n" + b"x" * 100 + ending)
        assert lines(FileSource([path], chunk_bytes=8)) == reference(path.read_bytes())
        path.write_bytes(b"short\n" + b"x" * 101 + ending)
        with pytest.raises(ConfigError, match=r"record at byte 6 of .* is longer than 100 bytes"):
            lines(FileSource([path], chunk_bytes=8))


def test_a_file_that_differs_from_what_was_read_before_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "input"
    path.write_bytes(b"abc\ndef\n")
    for after in (1, 3, 7, 8, 100):
        with pytest.raises(StorageError, match=f"no record begins at byte {after}"):
            lines(FileSource([path]), after)
    path.write_bytes(b"")
    with pytest.raises(StorageError, match="no record begins at byte 0"):
        lines(FileSource([path]), 0)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(ConfigError, match=f"Cannot read {path}"):
            FileSource([path])
    path = tmp_path / "gone"
    path.write_bytes(b"a\n")
    source = FileSource([path])
    path.unlink()
    with pytest.raises(StorageError, match="gone"):
        lines(source)


def test_a_stream_is_named_by_the_absolute_path_so_a_file_is_one_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "input"
    path.write_bytes(b"a\n")
    monkeypatch.chdir(tmp_path)
    assert stream_id_of(path) == stream_id_of(Path("input")) == stream_id_of(Path("./x/../input"))
    assert stream_id_of(path) != stream_id_of(tmp_path / "other")
    with pytest.raises(ConfigError, match="named twice"):
        FileSource([path, Path("input")])


def test_stream_ids_never_change_between_versions() -> None:
    assert stream_id_of(Path("/data/input.txt")) == 0x7C99CCC95C104029


# Other framings


def test_fixed_and_framed_files_are_read_and_continued_after_each_record(tmp_path: Path) -> None:
    texts = [b"one", b"two", b"six"]
    cases = {
        "fixed:3": b"".join(texts),
        "framed": b"".join(len(text).to_bytes(4) + text for text in texts),
    }
    for name, data in cases.items():
        path = tmp_path / name
        path.write_bytes(data)
        for chunk_bytes in range(1, len(data) + 2):
            source = FileSource([path], framing=parse_framing(name), chunk_bytes=chunk_bytes)
            records = lines(source)
            assert [payload for _, payload in records] == texts
            for number, (position, _) in enumerate(records):
                assert lines(source, after=position) == records[number + 1 :]


@pytest.mark.parametrize("name", ["fixed:3", "framed"])
def test_the_error_for_a_file_that_ends_in_a_record_has_the_position(tmp_path: Path, name: str) -> None:
    whole = b"one" if name == "fixed:3" else b"\0\0\0\3one"
    path = tmp_path / "input"
    for length in range(1, len(whole)):
        path.write_bytes(whole + whole[:length])
        with pytest.raises(StorageError, match=f"ends in the middle of the record at byte {len(whole)}") as caught:
            lines(FileSource([path], framing=parse_framing(name)))
        assert caught.value.next_step


# Patterns


def streams_of(source: FileSource) -> list[str]:
    streams = source.streams()
    assert isinstance(streams, list)
    return [os.path.basename(stream.name) for stream in streams]


def test_a_pattern_matches_files_and_an_existing_name_with_a_star_is_that_file(tmp_path: Path) -> None:
    for name in ("b.log", "a.log", "other", "x*.log"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "c.log").write_bytes(b"")
    assert streams_of(FileSource([tmp_path / "[ab].log"])) == ["a.log", "b.log"]
    assert streams_of(FileSource([tmp_path / "**" / "c.log", tmp_path / "other"])) == ["c.log", "other"]
    assert streams_of(FileSource([tmp_path / "x*.log"])) == ["x*.log"]
    with pytest.raises(ConfigError, match="No file matches"):
        FileSource([tmp_path / "*.none"])
    with pytest.raises(ConfigError, match="named twice"):
        FileSource([tmp_path / "a.log", tmp_path / "[a].log"])


# Files that grow


def following(*names: Path) -> FileSource:
    return FileSource(names, is_following=True, poll_s=0.001)


def followed(source: FileSource, path: Path, after: int | None = None) -> AsyncIterator[Batch]:
    batches = source.read(Stream(stream_id_of(path), str(path)), after)
    assert isinstance(batches, AsyncIterator)
    return batches


async def nothing_yet(batches: AsyncIterator[Batch]) -> asyncio.Task[Batch]:
    """Return the pending next batch, after checking that the file has been polled a few times without a result."""
    coming = asyncio.ensure_future(anext(batches))
    await asyncio.wait([coming], timeout=0.02)
    assert not coming.done()
    return coming


@on_a_loop
async def test_a_followed_file_yields_whole_lines_as_they_are_written(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"one\ntw")
    batches = followed(following(path), path)
    assert (await anext(batches)).payloads.to_pylist() == [b"one"]
    coming = await nothing_yet(batches)
    with path.open("ab") as file:
        file.write(b"o\nthree\n")
    batch = await coming
    assert batch.payloads.to_pylist() == [b"two", b"three"]
    assert batch.message_ids.tolist() == [4, 8]
    again = followed(following(path), path, after=4)
    assert (await anext(again)).payloads.to_pylist() == [b"three"]


@on_a_loop
async def test_a_followed_file_that_is_truncated_replaced_or_removed_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "log"

    def cut() -> None:
        os.truncate(path, 2)

    def replace() -> None:
        (tmp_path / "new").write_bytes(b"one\ntwo\nthree\n")
        os.rename(tmp_path / "new", path)

    for happens, what in ((cut, "was truncated"), (replace, "was replaced or removed"), (path.unlink, "was replaced")):
        path.write_bytes(b"one\n")
        batches = followed(following(path), path)
        await anext(batches)
        happens()
        with pytest.raises(StorageError, match=what) as caught:
            await anext(batches)
        assert "after byte 4" in caught.value.sentence
        assert caught.value.next_step


@on_a_loop
async def test_lines_written_before_a_file_was_replaced_are_still_sent(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"one\n")
    batches = followed(following(path), path)
    await anext(batches)
    with path.open("ab") as file:
        file.write(b"two\n")
    path.rename(tmp_path / "log.1")
    path.write_bytes(b"")
    assert (await anext(batches)).payloads.to_pylist() == [b"two"]
    with pytest.raises(StorageError, match="was replaced"):
        await anext(batches)


@on_a_loop
async def test_a_followed_pattern_finds_the_files_that_appear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.log").write_bytes(b"")
    source = following(tmp_path / "*.log")
    streams = source.streams()
    assert isinstance(streams, AsyncIterator)
    assert (await anext(streams)).name.endswith("a.log")
    (tmp_path / "b.log").write_bytes(b"one\n")
    found = await anext(streams)
    assert found.name.endswith("b.log")
    assert (await anext(followed(source, tmp_path / "b.log"))).payloads.to_pylist() == [b"one"]
    monkeypatch.setattr(file, "FOLLOWED_MAX", 2)
    (tmp_path / "c.log").write_bytes(b"")
    with pytest.raises(ConfigError, match="more than 2 files"):
        await anext(streams)
