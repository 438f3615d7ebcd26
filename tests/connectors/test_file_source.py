"""Files as a source: lines against `splitlines`, positions as ids, and every place to go on from."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from procession.connectors import file
from procession.connectors.file import FileSource, stream_id_of
from procession.errors import ConfigError, StorageError


def lines(source: FileSource, after: int | None = None) -> list[tuple[int, bytes]]:
    (stream,) = source.streams()
    return [
        (int(message_id), payload)
        for batch in source.read(stream, after)
        for message_id, payload in zip(batch.message_ids, batch.payloads.to_pylist(), strict=True)
    ]


def reference(data: bytes) -> list[tuple[int, bytes]]:
    """Slow and obvious."""
    found, position = [], 0
    while position < len(data):
        end = data.find(b"\n", position)
        end = len(data) if end < 0 else end
        found.append((position, data[position:end]))
        position = end + 1
    return found


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from([b"", b"a", b"bc", b"\r", b"def" * 5, b"\x00\xff"])), st.booleans(), st.integers(1, 9))
def test_a_file_is_its_lines_whatever_the_chunk_and_can_be_gone_on_with_after_each(
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
    monkeypatch.setattr(file, "LINE_BYTES_MAX", 100)
    path = tmp_path / "input"
    for ending in (b"", b"\n", b"\nx"):
        path.write_bytes(b"short\n" + b"x" * 100 + ending)
        assert lines(FileSource([path], chunk_bytes=8)) == reference(path.read_bytes())
        path.write_bytes(b"short\n" + b"x" * 101 + ending)
        with pytest.raises(ConfigError, match=r"line at byte 6 of .* is longer than 100 bytes"):
            lines(FileSource([path], chunk_bytes=8))


def test_a_file_that_is_not_what_was_read_before_is_an_error_that_says_so(tmp_path: Path) -> None:
    path = tmp_path / "input"
    path.write_bytes(b"abc\ndef\n")
    for after in (1, 3, 7, 8, 100):
        with pytest.raises(StorageError, match=f"no line begins at byte {after}"):
            lines(FileSource([path]), after)
    path.write_bytes(b"")
    with pytest.raises(StorageError, match="no line begins at byte 0"):
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


def test_a_stream_is_the_absolute_name_so_a_file_is_one_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "input"
    path.write_bytes(b"a\n")
    monkeypatch.chdir(tmp_path)
    assert stream_id_of(path) == stream_id_of(Path("input")) == stream_id_of(Path("./x/../input"))
    assert stream_id_of(path) != stream_id_of(tmp_path / "other")
    with pytest.raises(ConfigError, match="named twice"):
        FileSource([path, Path("input")])


def test_stream_ids_never_change_between_versions() -> None:
    assert stream_id_of(Path("/data/input.txt")) == 0x7C99CCC95C104029
