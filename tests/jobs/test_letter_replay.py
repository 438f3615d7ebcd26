"""`procession letters`: which dead letters are open, and that each is sent once, whichever process is killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from procession import Pipeline
from procession.errors import ConfigError, StorageError, UsageError
from procession.gateway.listen_address import addresses
from procession.jobs import letter_replay
from procession.jobs.letter_replay import LetterSource, NumberRanges, PipelineLetters
from procession.sdk.connector_program import run_source
from procession.sdk.source_options import SourceOptions
from procession.verify.dead_letter_file import StoredLetter
from tests.gateway.epoch_reader import EpochReader
from tests.gateway.gateway_process import GatewayProcess
from tests.verify.test_dead_letter_file import letter, write_letters


def everything(letter: StoredLetter) -> bool:
    return True


def letters_of(pipeline: Pipeline, tmp_path: Path, count: int = 5) -> PipelineLetters:
    (tmp_path / "checkpoint").mkdir(exist_ok=True)
    write_letters(tmp_path / "dead", [letter(10 * number, b"record %d" % number) for number in range(count)])
    return PipelineLetters.of_app(pipeline.graph(), tmp_path, tmp_path)


def plain() -> Pipeline:
    pipeline = Pipeline("p", dead_letter="file:dead")
    pipeline.source().sink("out", to="file:out")
    return pipeline


def states(letters: PipelineLetters) -> list[str]:
    return [state for _, state in letters.all()]


def sent(source: LetterSource) -> list[bytes]:
    return [payload for stream in source.streams() for _, _, _, payload in source.read(stream, None)]


def test_a_replay_first_completes_a_killed_replay_and_then_sends_the_open_letters(tmp_path: Path) -> None:
    letters = letters_of(plain(), tmp_path)
    assert letters.drop(lambda found: found.number == 2) == 1
    tries: list[list[bytes]] = []

    def killed(source: LetterSource) -> bool:
        tries.append(sent(source))
        return False

    def whole(source: LetterSource) -> bool:
        tries.append(sent(source))
        return True

    assert letters.replay(lambda found: found.number in (1, 2, 4), killed) == (0, False)
    assert states(letters) == ["replaying", "dropped", "open", "replaying", "open"]
    assert letters.replay(lambda found: found.number == 3, whole) == (3, True)
    first = [b"record 0", b"record 3"]
    assert tries == [first, first, [b"record 2"]]
    assert states(letters) == ["replayed", "dropped", "replayed", "replayed", "open"]
    assert letters.replay(lambda found: found.number < 5, whole) == (0, True), "none of them is open"
    assert letters.drop(everything) == 1


def test_letters_of_a_killed_replay_that_the_gateway_has_are_not_sent_again(tmp_path: Path) -> None:
    letters = letters_of(plain(), tmp_path)
    gateway = GatewayProcess(tmp_path / "gateway", {}).start()
    epoch_reader = EpochReader(tmp_path / "checkpoint-of-driver", tmp_path / "gateway").begin()
    try:

        def send(source: LetterSource) -> bool:
            return run_source(source, str(addresses(tmp_path / "gateway")["listen"]), SourceOptions("letters", "test"))

        def killed(source: LetterSource) -> bool:
            assert send(source)
            return False  # as after a death before the process recorded the batch as done

        assert letters.replay(lambda found: found.number <= 3, killed) == (0, False)
        assert letters.replay(everything, send) == (5, True)
    finally:
        epoch_reader.finish()
        gateway.kill()
    assert sorted(epoch_reader.ids.values()) == [[1, 2, 3], [4, 5]]


def test_letters_are_sent_to_their_source(tmp_path: Path) -> None:
    pipeline = Pipeline("p", dead_letter="file:dead")
    by_url = pipeline.source("files", from_="file:in.txt")
    pipeline.source("others").merge(by_url).sink("out", to="file:out")
    source = next(source for source in pipeline.graph().sources if source.name == "files")
    assert source.share is not None
    (tmp_path / "checkpoint").mkdir()
    write_letters(tmp_path / "dead", [letter(1, b"other"), letter(2, b"file", stream_id=source.share << 40 | 5)])
    letters = PipelineLetters.of_app(pipeline.graph(), tmp_path, tmp_path)
    found: dict[bool, list[bytes]] = {}

    def send(batch: LetterSource) -> bool:
        for stream in batch.streams():
            found[stream.id >> 40 == source.share] = [record[3] for record in batch.read(stream, None)]
        return True

    assert letters.replay(everything, send) == (2, True)
    assert found == {True: [b"file"], False: [b"other"]}


def test_letters_that_cannot_be_replayed_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    declared = Pipeline("p", dead_letter="file:dead")
    declared.source("in", streams=[7]).sink("out", to="file:out")
    with pytest.raises(ConfigError, match="'in' takes only the streams that it names"):
        letters_of(declared, tmp_path).replay(everything, lambda source: True)
    other = Pipeline("p", dead_letter="file:dead")
    other.source("in", streams=[8]).sink("out", to="file:out")
    with pytest.raises(ConfigError, match="Letter 1 is from stream 7, which no source of the app accepts now"):
        letters_of(other, tmp_path).replay(everything, lambda source: True)
    assert set(states(letters_of(plain(), tmp_path))) == {"open"}, "they stay open"
    silent = Pipeline("p")
    silent.source().sink("out", to="file:out")
    with pytest.raises(ConfigError, match="'p' has no dead letters"):
        PipelineLetters.of_app(silent.graph(), tmp_path, tmp_path)
    with pytest.raises(ConfigError, match="There is no pipeline in"):
        PipelineLetters.of_app(plain().graph(), tmp_path / "elsewhere", tmp_path).all()
    monkeypatch.setattr(letter_replay, "RANGES_MAX", 2)
    with pytest.raises(UsageError, match="more than 2 places"):
        letters_of(plain(), tmp_path).drop(lambda found: found.number % 2 == 1)


def test_ranges_contain_exactly_the_added_numbers() -> None:
    ranges = NumberRanges()
    for number in (1, 2, 3, 7, 9, 10):
        ranges.add(number)
    assert ranges.ranges == [[1, 3], [7, 7], [9, 10]]
    assert len(ranges) == 6
    assert [number for number in range(12) if number in ranges] == [1, 2, 3, 7, 9, 10]


def test_a_journal_of_a_later_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    letters = letters_of(plain(), tmp_path)
    monkeypatch.setattr(letter_replay, "FORMAT", 2)
    letters.drop(everything)
    monkeypatch.setattr(letter_replay, "FORMAT", 1)
    with pytest.raises(StorageError, match="has format 2, and this version reads formats 1 to 1"):
        letters.all()
