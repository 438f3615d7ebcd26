"""`procession frames` as a command: hex, files and standard input, decoded and encoded again, and its errors."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from procession.wire import v3
from procession.wire.messages import Message, Ok
from tests.wire.test_draft import VECTORS as DRAFT_VECTORS
from tests.wire.test_v3 import VECTORS

HEXES = [data.hex() for data in (*VECTORS.values(), *DRAFT_VECTORS.values())]


def frames(*arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([sys.executable, "-m", "procession", "frames", *arguments], input=given, capture_output=True)


def test_every_golden_frame_is_decoded_and_encoded_to_the_same_hex() -> None:
    documents = frames("decode", "--json", *HEXES)
    assert documents.returncode == 0
    assert [json.loads(line)["frame"] for line in documents.stdout.splitlines()][:3] == ["HELLO", "HELLO", "OK"]
    back = frames("encode", given=documents.stdout)
    assert (back.returncode, back.stdout.decode().split()) == (0, HEXES)


@pytest.mark.parametrize("is_hex", [True, False], ids=["hex", "bytes"])
@pytest.mark.parametrize("is_file", [True, False], ids=["file", "standard input"])
def test_a_capture_is_read_as_hex_or_as_bytes_from_a_file_or_standard_input(
    is_hex: bool, is_file: bool, tmp_path: Path
) -> None:
    whole = b"".join(map(bytes.fromhex, HEXES)) + v3.encode(Message(7, 1, 0, b"\xff", b"\x00\xfe"))
    given = whole.hex("\n", 30).encode() if is_hex else whole
    (tmp_path / "capture").write_bytes(given)
    arguments = ("--file", str(tmp_path / "capture")) if is_file else ()
    documents = frames("decode", "--json", *arguments, given=b"" if is_file else given)
    assert documents.returncode == 0
    assert frames("encode", given=documents.stdout).stdout.decode().split() == [
        *HEXES,
        v3.encode(Message(7, 1, 0, b"\xff", b"\x00\xfe")).hex(),
    ]


def test_a_truncated_capture_prints_the_frames_before_and_one_sentence() -> None:
    cut = frames("decode", *HEXES[:2], HEXES[2][:-4])
    assert cut.returncode == 1
    assert [line.split()[:2] for line in cut.stdout.decode().splitlines()] == [["0", "HELLO"], ["65", "HELLO"]]
    assert cut.stderr.decode() == "error: The capture ends at byte 131, inside the frame that begins at byte 124.\n"


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (b"{", "Line 2 is not JSON"),
        (b"[" * 100_000, "Line 2 is not JSON"),
        (b"\xff", "Line 2 is not JSON"),
        (b'{"frame": "OKAY"}', "Line 2: there is no frame"),
    ],
)
def test_an_object_that_is_not_a_frame_ends_the_encoding_and_its_line_is_named(given: bytes, reason: str) -> None:
    first = frames("encode", given=b'{"frame": "OK", "credits": 1}\n' + given)
    assert first.returncode == 1
    assert first.stdout.decode().split() == [v3.encode(Ok(1)).hex()]
    assert first.stderr.decode().startswith(f"error: {reason}")
    assert len(first.stderr.splitlines()) == 1


def test_a_missing_file_and_an_unknown_version_are_reported() -> None:
    missing = frames("decode", "--file", "no/such/capture")
    assert missing.returncode == 3
    assert "no/such/capture cannot be read" in missing.stderr.decode()
    assert frames("decode", "--version", "v9", HEXES[0]).returncode == 2
