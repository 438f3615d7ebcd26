"""Runs every input of the fuzzing corpus again in each test run, without atheris."""

from __future__ import annotations

import struct

import pytest

from procession.wire.frame_codec import Reader
from tests.fuzz import corpus
from tests.fuzz.targets import TARGETS


@pytest.mark.parametrize("name", TARGETS)
def test_no_input_of_the_corpus_breaks_a_promise(name: str) -> None:
    inputs = corpus.load(name)
    assert inputs
    for given in inputs:
        TARGETS[name](given)


def test_every_file_of_the_corpus_has_a_target() -> None:
    assert {path.stem for path in corpus.FOLDER.iterdir()} == set(TARGETS)


@pytest.mark.parametrize("name", [name for name in TARGETS if name != "document"])
def test_the_corpus_finds_a_planted_bug_in_the_reading_of_a_field(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(reader: Reader, shape: struct.Struct) -> int:
        (value,) = shape.unpack_from(reader._body, reader._position)
        reader._position += shape.size
        return int(value)

    monkeypatch.setattr(Reader, "_integer", careless)
    with pytest.raises(struct.error):
        _ = [TARGETS[name](given) for given in corpus.load(name)]


def test_the_corpus_keeps_the_shortest_inputs_that_take_every_step() -> None:
    target = TARGETS["two_phase"]
    assert corpus.select(target, [b"", b"\x00", b"\x01", b"\xc9" + bytes(8), b"\xc9" + bytes(7) + b"\x01"]) == [
        b"",
        b"\x00",
        b"\xc9" + bytes(8),
    ]
