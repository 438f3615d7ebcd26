"""The checkpoint: which driver may write it, what a successor takes over, and what is refused."""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
from collections.abc import Callable
from itertools import combinations_with_replacement
from pathlib import Path

import pytest

from procession.commit import checkpoint as checkpoint_module
from procession.commit.abandoned_gateways import Abandoned
from procession.commit.checkpoint import PIPELINE, Checkpoint
from procession.commit.coordinator import Coordinator
from procession.commit.round_record import RoundRecord, SinkShare
from procession.commit.spark_log import METADATA
from procession.errors import ConfigError, FencedError, PlanError, ProcessionError, StorageError
from procession.runtime.files import FileSystem
from procession.sim.disk import SimulatedPath
from procession.sim.simulated_files import SimulatedFileSystem
from procession.storage.driver_claim import CURRENT
from procession.storage.durable import write_durably
from procession.storage.log_ranges import LogLocation
from tests.runtime.test_files import simulated


def claim(root: Path, name: str = "p", fingerprint: str = "f") -> Checkpoint:
    return Checkpoint.claim(root, name=name, fingerprint=fingerprint)


def round_of(epoch: int, fence: int = 1) -> RoundRecord:
    return RoundRecord(epoch, fence, "f", 0, 9, {"a": SinkShare(f"t{epoch}", 10 * epoch, 10 * epoch + 10)})


def write_offsets(checkpoint: Checkpoint, epoch: int) -> None:
    _write(checkpoint.directory / "offsets" / str(epoch), f'v1\n{{}}\n{{"gateway-0":{epoch}}}')


def write_commit(checkpoint: Checkpoint, epoch: int) -> None:
    _write(checkpoint.directory / "commits" / str(epoch), f'v1\n{{"epoch":{epoch}}}')


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)


def grown(checkpoint: Checkpoint, committed: int, *, is_open: bool = False) -> Checkpoint:
    """Return a driver's copy after some epochs, as Spark and the performer leave it; the last epoch may be in doubt."""
    for epoch in range(committed + 1):
        write_offsets(checkpoint, epoch)
        checkpoint.rounds.write(round_of(epoch))
        write_commit(checkpoint, epoch)
    (checkpoint.directory / "metadata").write_text('{"id":"x"}')
    if is_open:
        write_offsets(checkpoint, committed + 1)
        checkpoint.rounds.write(round_of(committed + 1))
    return checkpoint


def test_a_claim_makes_its_copy_of_sparks_metadata_durable() -> None:
    files: SimulatedFileSystem = simulated()
    for _ in range(2):
        claimed = Checkpoint.claim(SimulatedPath("checkpoint"), name="p", fingerprint="f", files=files)
        metadata = claimed.directory / METADATA
        assert claimed.fence == 1 or files.disk.durable_file(str(metadata)) == b'{"id":"x"}'
        write_durably(metadata, b'{"id":"x"}', files)


@pytest.mark.parametrize("torn", ["", "v1\n", "v1\n{", "\0" * 40])
def test_a_commit_file_truncated_by_a_power_cut_decides_nothing(tmp_path: Path, torn: str) -> None:
    old = grown(claim(tmp_path), 3, is_open=True)
    _write(old.directory / "commits" / "4", torn)
    assert (claim(tmp_path).log.offered, claim(tmp_path).log.committed) == (4, 3)


@pytest.mark.parametrize("torn", ["", "v1\n", "v1\n{}", "v1\n{}\n", "v1\n{}\n{", "\0" * 40])
def test_an_epoch_whose_offsets_file_was_truncated_by_a_power_cut_is_offered_again(tmp_path: Path, torn: str) -> None:
    old = grown(claim(tmp_path), 3)
    _write(old.directory / "offsets" / "4", torn)
    assert (claim(tmp_path).log.offered, claim(tmp_path).log.committed) == (3, 3)


def test_another_gateways_directory_is_refused(tmp_path: Path) -> None:
    claim(tmp_path).places.keep("gateway-0", LogLocation("here", "one"))
    claim(tmp_path).places.keep("gateway-0", LogLocation("there", "one"))
    assert claim(tmp_path).places.all() == {"gateway-0": LogLocation("there", "one")}
    with pytest.raises(StorageError, match="not the one"):
        claim(tmp_path).places.keep("gateway-0", LogLocation("there", "other"))
    claim(tmp_path).places.keep("gateway-1", LogLocation("elsewhere", "other"))


def test_the_gateway_of_a_checkpoint_from_the_time_of_one_gateway_is_still_known(tmp_path: Path) -> None:
    checkpoint = claim(tmp_path)
    (checkpoint.root / "GATEWAY").write_text("one")
    with pytest.raises(StorageError, match="gateway-0 is not the one"):
        checkpoint.places.keep("gateway-0", LogLocation("here", "other"))
    checkpoint.places.keep("gateway-0", LogLocation("here", "one"))


def test_an_incomplete_first_claim_does_not_block_the_next(tmp_path: Path) -> None:
    (tmp_path / f"{PIPELINE}.123.draft").write_text("{")
    assert claim(tmp_path).fence == 1


def coordinator(checkpoint: Checkpoint) -> Coordinator:
    """Return the coordinator that the driver builds from a checkpoint.

    Refuses a checkpoint whose last commit has no round record.
    """
    return Coordinator(
        pipeline="p",
        checkpoint=checkpoint.id,
        fence=checkpoint.fence,
        fingerprint="f",
        sinks=["a"],
        rounds=checkpoint.rounds.read_all(),
        committed=checkpoint.log.committed,
    )


def test_i10_a_later_claim_fences_every_earlier_one(tmp_path: Path) -> None:
    first = claim(tmp_path)
    first.check_fence()
    second = claim(tmp_path)
    third = claim(tmp_path)
    assert (first.fence, second.fence, third.fence) == (1, 2, 3)
    assert first.id == second.id == third.id
    third.check_fence()
    for old in (first, second):
        with pytest.raises(FencedError, match=f"driver {old.fence} was replaced by driver 3"):
            old.check_fence()


def test_a_successor_takes_over_decided_epochs_and_drops_the_open_round(tmp_path: Path) -> None:
    old = grown(claim(tmp_path), 3, is_open=True)
    new = claim(tmp_path)
    assert (new.log.offered, new.log.committed) == (4, 3)
    assert new.rounds.read_all() == {epoch: round_of(epoch) for epoch in range(4)}
    assert (new.directory / "offsets" / "4").read_text() == (old.directory / "offsets" / "4").read_text()
    assert (new.directory / "metadata").read_text() == '{"id":"x"}'
    # The old driver still writes to its own copy, which nobody reads any more.
    write_commit(old, 4)
    assert new.log.committed == 3
    assert claim(tmp_path).log.committed == 3


def test_i10_a_copy_taken_while_the_old_driver_still_writes_has_one_decision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks every interleaving of the old driver's last three writes with the steps of the copy."""
    copy_file, copy_files = checkpoint_module._copy_file, checkpoint_module._copy_files
    last = 1
    steps: list[Callable[[Checkpoint], None]] = [
        lambda old: old.rounds.write(round_of(last)),
        lambda old: write_commit(old, last),
        lambda old: write_offsets(old, last + 1),
    ]

    def claim_while_the_old_one_writes(root: Path, when: tuple[int, ...]) -> tuple[Checkpoint, int]:
        old = grown(claim(root), last - 1)
        write_offsets(old, last)
        moments = 0
        pending = list(zip(when, steps, strict=True))

        def moment() -> None:
            nonlocal moments
            while pending and pending[0][0] <= moments:
                pending.pop(0)[1](old)
            moments += 1

        def slow_file(source: Path, target: Path, files: FileSystem) -> None:
            moment()
            copy_file(source, target, files)

        def slow_files(source: Path, target: Path, files: FileSystem, *, up_to: int | None = None) -> None:
            moment()
            copy_files(source, target, files, up_to=up_to)

        with monkeypatch.context() as patch:
            patch.setattr(checkpoint_module, "_copy_file", slow_file)
            patch.setattr(checkpoint_module, "_copy_files", slow_files)
            return claim(root), moments

    _, moments = claim_while_the_old_one_writes(tmp_path / "measured", (99, 99, 99))
    outcomes = set()
    for number, when in enumerate(combinations_with_replacement(range(moments + 1), len(steps))):
        new, _ = claim_while_the_old_one_writes(tmp_path / str(number), when)
        outcomes.add(coordinator(new).committed)
    assert outcomes == {last - 1, last}, "both decisions must be possible, and no other"


def test_i10_a_driver_that_is_replaced_during_its_copy_notices_before_it_removes_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its copy may lack an epoch that its successor's copy has, if an orphaned JVM committed one in between."""
    old = grown(claim(tmp_path), 0, is_open=True)
    copy_last, successors = Checkpoint.copy_last, []

    def slow(self: Checkpoint, abandoned: Abandoned) -> None:
        copy_last(self, abandoned)
        if self.fence == 2:
            write_commit(old, 1)
            successors.append(claim(tmp_path))

    monkeypatch.setattr(Checkpoint, "copy_last", slow)
    with pytest.raises(FencedError, match="driver 2 was replaced by driver 3"):
        claim(tmp_path)
    successors[0].check_fence()


def test_i10_a_copy_of_which_the_original_is_removed_meanwhile_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was copied by then may lack the last epochs."""
    old = grown(claim(tmp_path), 1)
    copy_files = checkpoint_module._copy_files

    def removed_after_its_commits(source: Path, target: Path, files: FileSystem, *, up_to: int | None = None) -> None:
        copy_files(source, target, files, up_to=up_to)
        if source.name == "commits":
            shutil.rmtree(old.directory)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_module, "_copy_files", removed_after_its_commits)
        with pytest.raises(StorageError, match="was removed while it was copied"):
            claim(tmp_path)


def test_of_concurrent_claims_the_last_one_has_everything_and_the_others_are_fenced(tmp_path: Path) -> None:
    for turn in range(5):
        root = tmp_path / str(turn)
        grown(claim(root), 5)
        gate = threading.Barrier(8)
        got: list[Checkpoint | ProcessionError] = []

        def try_it(root: Path = root, gate: threading.Barrier = gate, got: list[object] = got) -> None:  # type: ignore[assignment]
            gate.wait()
            try:
                got.append(claim(root))
            except ProcessionError as error:
                got.append(error)

        threads = [threading.Thread(target=try_it) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        current = int((root / CURRENT).read_text())
        claimed = [outcome for outcome in got if isinstance(outcome, Checkpoint)]
        assert current == 9
        assert len({checkpoint.fence for checkpoint in claimed}) == len(claimed)
        for one in got:
            if isinstance(one, Checkpoint) and one.fence == current:
                one.check_fence()
                assert (one.log.offered, one.log.committed, len(one.rounds.read_all())) == (5, 5, 6)
            elif isinstance(one, Checkpoint):
                with pytest.raises(FencedError):
                    one.check_fence()
            else:
                # It was replaced before its copy was complete; or, rarely, the source of its copy was removed, and it
                # must be restarted.
                assert isinstance(one, FencedError) or (isinstance(one, StorageError) and not one.next_step)
        assert claim(root).log.committed == 5


def test_concurrent_first_claims_agree_on_the_pipelines_id(tmp_path: Path) -> None:
    gate = threading.Barrier(4)
    ids: set[str] = set()

    def try_it() -> None:
        gate.wait()
        with contextlib.suppress(FencedError):
            ids.add(claim(tmp_path).id)

    threads = [threading.Thread(target=try_it) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ids == {claim(tmp_path).id}


def test_a_successor_numbers_attempts_above_all_numbers_that_were_reserved_before(tmp_path: Path) -> None:
    first = claim(tmp_path)
    assert first.reserved == 0
    first.reserve(100)
    assert claim(tmp_path).reserved == 100
    assert claim(tmp_path).reserved == 100, "a driver that reserved nothing keeps the number that it found"


def test_i10_a_replaced_driver_reserves_no_attempt_number(tmp_path: Path) -> None:
    """Its successor may have read the file before, and both would use the same numbers."""
    first = claim(tmp_path)
    second = claim(tmp_path)
    with pytest.raises(FencedError):
        first.reserve(100)
    assert second.reserved == 0


def test_a_checkpoint_without_attempt_numbers_continues_above_its_epochs(tmp_path: Path) -> None:
    """Its transactions had the epoch after `:c_id=`, so a sink has seen those numbers."""
    old = grown(claim(tmp_path), 3, is_open=True)
    assert not (old.directory / "attempts.json").exists()
    assert claim(tmp_path).reserved == 4


@pytest.mark.parametrize("content", ["", "{}", "7", '{"format":1}', '{"format":2,"reserved":5}'])
def test_a_damaged_file_of_attempt_numbers_is_refused(tmp_path: Path, content: str) -> None:
    (claim(tmp_path).directory / "attempts.json").write_text(content)
    with pytest.raises(StorageError, match=r"attempts\.json"):
        claim(tmp_path)


def test_an_incomplete_copy_of_a_killed_driver_is_removed(tmp_path: Path) -> None:
    grown(claim(tmp_path), 2)
    torn = tmp_path / "0000000002.draft"
    (torn / "offsets").mkdir(parents=True)
    (tmp_path / CURRENT).write_text("2\n")
    new = claim(tmp_path)
    assert new.fence == 3
    assert new.log.committed == 2
    assert not torn.exists()


def test_a_driver_keeps_its_own_copy_and_the_one_that_it_took_over(tmp_path: Path) -> None:
    for _ in range(5):
        claim(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["0000000004", "0000000005"]


@pytest.mark.parametrize(("offered", "committed"), [(5, 3), (5, -1), (3, 4), (-1, 0)])
def test_a_log_from_which_spark_would_skip_or_repeat_an_epoch_is_refused(
    tmp_path: Path, offered: int, committed: int
) -> None:
    old = claim(tmp_path)
    for epoch in range(offered + 1):
        write_offsets(old, epoch)
    for epoch in range(committed + 1):
        write_commit(old, epoch)
    with pytest.raises(StorageError, match=f"offsets up to epoch {offered} but commits up to {committed}") as caught:
        claim(tmp_path)
    assert "restore" in caught.value.next_step


@pytest.mark.parametrize("content", ["", "seven", "1 2", "\0" * 8, None, "1\n", "2\n"])
def test_a_current_file_that_is_damaged_missing_or_older_is_refused(tmp_path: Path, content: str | None) -> None:
    for _ in range(3):
        claim(tmp_path)
    if content is None:
        (tmp_path / CURRENT).unlink()
    else:
        (tmp_path / CURRENT).write_text(content)
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(StorageError, match="CURRENT is damaged") as caught:
        claim(tmp_path)
    assert "Restore" in caught.value.next_step
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_the_checkpoint_of_another_pipeline_is_refused_and_not_touched(tmp_path: Path) -> None:
    owner = claim(tmp_path, "theirs")
    with pytest.raises(ConfigError, match="the checkpoint of pipeline 'theirs', not of 'ours'") as caught:
        claim(tmp_path, "ours")
    assert "--dir" in caught.value.next_step
    owner.check_fence()


def test_other_sinks_on_an_old_checkpoint_are_refused_without_fencing_a_driver(tmp_path: Path) -> None:
    owner = claim(tmp_path)
    with pytest.raises(PlanError, match="sources or sinks") as caught:
        claim(tmp_path, fingerprint="other")
    assert "stages between" in caught.value.next_step
    owner.check_fence()


def test_a_directory_that_is_not_a_checkpoint_is_refused_and_not_changed(tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"is not empty and not a checkpoint \(it holds 'holiday.jpg'\)"):
        claim(tmp_path)
    assert not (tmp_path / CURRENT).exists()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"name": "p"}', "null"])
def test_a_damaged_identity_is_refused(tmp_path: Path, content: str) -> None:
    claim(tmp_path)
    (tmp_path / PIPELINE).write_text(content)
    with pytest.raises(StorageError, match=r"pipeline.json is damaged") as caught:
        claim(tmp_path)
    assert caught.value.next_step


def test_the_identity_stays_for_the_life_of_the_checkpoint(tmp_path: Path) -> None:
    first = claim(tmp_path / "one")
    assert json.loads((tmp_path / "one" / PIPELINE).read_text())["id"] == first.id == claim(tmp_path / "one").id
    assert claim(tmp_path / "two").id != first.id


def test_a_checkpoint_directory_that_cannot_be_created_is_reported_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="Cannot make") as caught:
        claim(tmp_path / "file" / "checkpoint")
    assert caught.value.next_step


def test_a_driver_whose_program_is_incompatible_claims_nothing(tmp_path: Path) -> None:
    at_work = grown(claim(tmp_path), 3, is_open=True)

    def refuse(last: RoundRecord) -> None:
        raise PlanError(f"not from epoch {last.epoch}")

    with pytest.raises(PlanError, match="not from epoch 3"):
        Checkpoint.claim(tmp_path, name="p", fingerprint="f", check=refuse)
    at_work.check_fence()
    assert sorted(path.name for path in tmp_path.glob("[0-9]*")) == [at_work.directory.name]


@pytest.mark.parametrize(
    ("given", "sentence", "step", "upgrade"),
    [
        ({"source in": "source"}, "sink of lines 'out' is gone", "put it back", "earlier program"),
        (
            {"source in": "source", "sink out": "sink of raw bytes"},
            "'out' is a sink of raw bytes, and was a sink of lines",
            "again",
            "",
        ),
        (
            {"source in": "source", "sink other": "sink of lines"},
            "'out' is gone, and sink of lines 'other' is new",
            "name it 'out'",
            "earlier program",
        ),
        (
            {"source in": "source", "sink out": "sink of lines", "sink two": "sink of lines"},
            "'two' is new",
            "remove it",
            "remove it, or change the sinks with",
        ),
        ({"source in": "source", "sink out": "sink of lines"}, "its guarantee", "declare it as before", ""),
    ],
)
def test_changed_sources_and_sinks_are_named(
    tmp_path: Path, given: dict[str, str], sentence: str, step: str, upgrade: str
) -> None:
    Checkpoint.claim(
        tmp_path, name="p", fingerprint="f", endpoints={"source in": "source", "sink out": "sink of lines"}
    )
    with pytest.raises(PlanError) as caught:
        Checkpoint.claim(tmp_path, name="p", fingerprint="g", endpoints=given)
    assert sentence in caught.value.sentence
    assert step in caught.value.next_step
    assert upgrade in caught.value.next_step
    assert ("`procession upgrade`" in caught.value.next_step) is bool(upgrade)


def test_a_source_and_a_sink_of_one_name_are_distinguished(tmp_path: Path) -> None:
    Checkpoint.claim(tmp_path, name="p", fingerprint="f", endpoints={"source a": "source", "sink a": "sink of lines"})
    with pytest.raises(PlanError, match="source 'a' is gone, and source 'b' is new") as caught:
        Checkpoint.claim(
            tmp_path, name="p", fingerprint="g", endpoints={"source b": "source", "sink a": "sink of lines"}
        )
    assert "name it 'a'" in caught.value.next_step
    given = {"sink a": "sink of lines", "sink b": "sink of lines"}
    with pytest.raises(PlanError, match=r"source 'a' is gone$") as caught:
        Checkpoint.claim(tmp_path, name="p", fingerprint="g", endpoints=given)
    assert "put it back" in caught.value.next_step
    assert "upgrade" not in caught.value.next_step, "an upgrade keeps the sources"


def test_a_checkpoint_that_has_only_names_is_read_and_rewritten(tmp_path: Path) -> None:
    doors = {"source in": "source", "sink out": "sink of lines"}
    Checkpoint.claim(tmp_path, name="p", fingerprint="f", endpoints=doors)
    before = json.loads((tmp_path / "pipeline.json").read_text())
    before["doors"] = {"in": "source", "out": "sink of lines"}
    (tmp_path / "pipeline.json").write_text(json.dumps(before))
    given = {"source in": "source", "sink out": "sink of raw bytes"}
    with pytest.raises(PlanError, match="'out' is a sink of raw bytes, and was a sink of lines"):
        Checkpoint.claim(tmp_path, name="p", fingerprint="g", endpoints=given)
    Checkpoint.claim(tmp_path, name="p", fingerprint="f", endpoints=doors)
    assert json.loads((tmp_path / "pipeline.json").read_text())["doors"] == doors
