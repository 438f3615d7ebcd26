"""The commands `procession frames decode` and `encode`: print and create frames of the protocol.

As in `cli/main`, they only parse, call `wire/capture` and print. An invalid capture is printed up to the invalid byte,
then one error names it; the status is 1.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from procession.errors import ConfigError, LocalProtocolError

if TYPE_CHECKING:
    from procession.wire.capture import Captured

PIECE_BYTES = 1024 * 1024
LINE_BYTES_MAX = 64 * 1024 * 1024
"""Maximum size of an input line: a frame of 16 MiB in hex, and its other fields."""

frames_app = typer.Typer(help="Decode and encode frames of the protocol.", no_args_is_help=True)


@frames_app.command("decode")
def decode(
    hexes: Annotated[
        list[str] | None,
        typer.Argument(metavar="[HEX]...", help="The capture in hex. < and > before the hex mark the sender."),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(show_default="standard input", help="File with the capture, as bytes or in hex."),
    ] = None,
    version: Annotated[
        str | None, typer.Option(show_default="each frame's tag tells", help="Version of the protocol: v3 or draft.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per frame.")] = False,
    frame_bytes_max: Annotated[int, typer.Option(min=1, help="Maximum size of a frame.")] = 16 * 1024 * 1024,
) -> None:
    """Print the frames of a capture, one per line. --json prints all fields, including the cookie of a HELLO."""
    from procession.wire.capture import CODECS, Capture

    if version is not None and version not in CODECS:
        raise typer.BadParameter(f"choose one of {', '.join(CODECS)}", param_hint="--version")
    if hexes and file:
        raise typer.BadParameter("give hex or a file, not both", param_hint="--file")
    capture = Capture(version, frame_bytes_max)
    for direction, data in _from_hex(hexes) if hexes else _from_file(file):
        for captured in capture.feed(data, direction):
            print(_shown(captured, as_json))
    capture.finish()


@frames_app.command("encode")
def encode() -> None:
    """Read JSON objects from standard input, one per line, as `decode --json` prints them, and print frames in hex."""
    from procession.wire.capture import encoded

    number = 0
    while line := sys.stdin.buffer.readline(LINE_BYTES_MAX):
        number += 1
        if not line.strip():
            continue
        try:
            direction, data = encoded(json.loads(line))
        except (ValueError, RecursionError) as error:
            raise LocalProtocolError(f"line {number} is not JSON: {error}") from error
        except LocalProtocolError as error:
            raise LocalProtocolError(f"line {number}: {error.sentence}") from error
        print(f"{direction} {data.hex()}" if direction else data.hex())


def _shown(captured: Captured, as_json: bool) -> str:
    return json.dumps(captured.as_document()) if as_json else captured.as_line()


def _from_hex(hexes: list[str]) -> Iterator[tuple[str, bytes]]:
    from procession.wire.capture import HexReader

    reader = HexReader()
    yield from reader.feed(" ".join(hexes))
    reader.finish()


def _from_file(path: Path | None) -> Iterator[tuple[str, bytes]]:
    from procession.wire.capture import HexReader, is_hex

    try:
        with open(path or sys.stdin.fileno(), "rb") as file:
            piece = file.read1(PIECE_BYTES)
            reader = HexReader() if is_hex(piece) else None
            while piece:
                if reader:
                    yield from reader.feed(piece.decode("latin-1"))
                else:
                    yield "", piece
                piece = file.read1(PIECE_BYTES)
            if reader:
                reader.finish()
    except OSError as error:
        raise ConfigError(
            f"the capture {path or 'on standard input'} cannot be read: {error.strerror}",
            next_step="give a file with a capture",
        ) from error
