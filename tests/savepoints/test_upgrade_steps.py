"""The steps of an upgrade on a pipeline's directory, without Spark: compare, try, change, and roll back."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from procession.cli.main import app as cli
from procession.commit.checkpoint import Checkpoint
from procession.commit.recovery import recover
from procession.commit.round_record import RoundRecord, SinkShare
from procession.deployment.run_claim import claimed
from procession.deployment.run_details import DETAILS
from procession.driver.app_file import App
from procession.driver.stage_states import check_last, keyed_versions
from procession.errors import ConfigError, PlanError, ProcessionError, RecordError, StorageError
from procession.gateway.gateway_directory import save_snapshot
from procession.gateway.input_pins import InputPins
from procession.gateway.log_rows import LogRow, batch_of
from procession.gateway.snapshot import Position, Snapshot
from procession.jobs.upgrade_switch import load_again
from procession.operators.value_codec import PLAIN
from procession.planner.keys import PLAIN_KEYS
from procession.savepoints.savepoint_create import create
from procession.savepoints.upgrade_steps import apply, compare, go_back, try_first_epoch
from procession.sdk.transaction_log import Transaction, TransactionLog
from procession.storage.log import IngressLog
from procession.storage.segment import KIND_RECORD
from procession.storage.state_store import StateStore, TaskStates
from procession.storage.state_version import StateCodec, file_prefix
from procession.verify.committed_states import committed_states
from procession.verify.decisions import DecisionReader

OLD = """
from procession import Pipeline
pipeline = Pipeline("p")
words = pipeline.source("words", codec="text")
words.map_stateful(lambda count, word: (count + 1, word), key=str, initial=0, name="counted", parallelism=1).sink(
    "out", to="file:out"
)
"""
NEW = """
from procession import Pipeline, Upgrade
pipeline = Pipeline("p")
words = pipeline.source("words", codec="text")
step = lambda state, word: ({"n": state["n"] + 1}, word)
totals = words.map_stateful(step, key=str, initial={"n": 0}, name="totals", parallelism=1)
totals.sink("out", to="file:out")
totals.sink("copy", to="file:copies")
upgrade = Upgrade(rename={"counted": "totals"}, migrate={"totals": lambda count: {"n": count}})
"""
STATES = {"a": 3, "b": 5}
COMMITTED, WAITING = ["a", "b"], ["a", "c"]


class Place:
    """A pipeline's directory after its first epoch, as a driver and a gateway leave it."""

    def __init__(self, directory: Path, stream: int = 3, ids: tuple[int, ...] = (0, 1, 2, 3)) -> None:
        self.stream, self.ids = stream, ids
        self.directory = directory / "pipeline"
        self.files = directory
        self.old, self.new = self.app("old.py", OLD), self.app("new.py", NEW)
        self.checkpoint = self.claim(self.old)
        rows = [
            LogRow(KIND_RECORD, stream, number, 0, b"", word.encode())
            for number, word in zip(ids, COMMITTED + WAITING, strict=True)
        ]
        with IngressLog(self.directory / "gateway" / "log") as log:
            log.append(batch_of(rows))
            log.sync()
        save_snapshot(self.directory / "gateway", Snapshot(1, 0, 2, 4, {stream: Position("words", ids[1])}))
        states = self.directory / "state" / self.checkpoint.id
        states.mkdir(parents=True)
        task = TaskStates(states, (), StateCodec(PLAIN.packed, PLAIN.decoded_value))
        task.begin(file_prefix(1, "counted", 0, 0, 1))
        task.take([]).update({PLAIN_KEYS.encode(key): state for key, state in STATES.items()})
        task.touch([PLAIN_KEYS.encode(key) for key in STATES])
        ((_, version),) = keyed_versions(self.old.plan).values()
        self.versions = {"counted": replace(version, tasks=(task.finish(),))}
        self.commit(0, end=2)

    def app(self, name: str, text: str) -> App:
        (self.files / name).write_text(text)
        return load_again(self.files / name)

    def claim(self, app: App) -> Checkpoint:
        """Claim the checkpoint as a driver of this app does."""
        graph = app.graph
        return Checkpoint.claim(
            self.directory / "checkpoint",
            name=graph.name,
            fingerprint=graph.fingerprint(),
            endpoints=graph.endpoints(),
            codecs=graph.sink_codecs(),
            check=lambda last: check_last(app.plan, last),
        )

    def commit(self, epoch: int, end: int, states: Any = None) -> None:
        record = RoundRecord(
            epoch,
            self.checkpoint.fence,
            "",
            0,
            end,
            {"out": SinkShare(f"t{epoch}", 0, 10 + epoch)},
            {self.stream: self.ids[end - 1]},
            {"records_in": end},
            self.versions if states is None else states,
            {"gateway-0": end},
        )
        self.checkpoint.rounds.write(record)
        for part in ("offsets", "commits"):
            (self.checkpoint.directory / part).mkdir(exist_ok=True)
            (self.checkpoint.directory / part / str(epoch)).write_text(f'v1\n{{}}\n{{"gateway-0": {end}}}')

    def states(self, stage: str) -> dict[str, Any]:
        return {entry["key"]: entry["state"] for entry in committed_states(self.directory)[stage].scan()}

    def accepted(self) -> list[str]:
        """Return the apps that could be started now."""
        found = []
        for name, app in (("old", self.old), ("new", self.new)):
            try:
                self.claim(app)
            except ProcessionError:
                continue
            found.append(name)
        return found


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_the_comparison_names_every_stage_and_sink_and_changes_nothing(place: Place) -> None:
    assert compare(place.directory, place.new).sentences == [
        "stage 'totals': migrated, was 'counted'",
        "sink 'copy': new, begins empty",
    ]
    assert place.accepted() == ["old"]


def test_an_upgrade_renames_migrates_and_lets_only_the_new_program_start(place: Place) -> None:
    before = place.checkpoint.fence
    apply(place.directory, place.new)
    assert place.states("totals") == {key: {"n": count} for key, count in STATES.items()}
    assert place.accepted() == ["new"]
    assert place.claim(place.new).fence > before


def test_a_rollback_is_possible_until_the_first_commit_even_after_a_driver_has_cleaned_up(place: Place) -> None:
    saved = create(place.directory, "before")
    _, changed = apply(place.directory, place.new)
    last = recover(changed.directory).last
    assert last is not None
    StateStore(place.directory / "state" / changed.id).sweep(last.states.values(), changed.fence + 1)
    driver = place.claim(place.new)
    back = go_back(place.directory, saved)
    assert back.fence > driver.fence
    assert place.states("counted") == STATES
    assert place.accepted() == ["old"]


def test_a_rollback_past_a_commit_is_refused_before_anything_is_fenced(place: Place) -> None:
    saved = create(place.directory, "before")
    fence = (place.directory / "checkpoint" / "CURRENT").read_text()
    place.commit(1, end=4)
    with pytest.raises(ConfigError, match="Epochs 1 to 1 were committed after savepoint"):
        go_back(place.directory, saved)
    assert (place.directory / "checkpoint" / "CURRENT").read_text() == fence


def test_a_rollback_to_a_damaged_savepoint_is_refused(place: Place) -> None:
    saved = create(place.directory, "before")
    (state,) = (saved.directory / "state").iterdir()
    data = state.read_bytes()
    state.unlink()
    state.write_bytes(data[:-1])
    with pytest.raises(StorageError):
        go_back(place.directory, saved)


def test_the_first_epoch_is_tried_on_the_records_that_wait_and_leaves_nothing(place: Place) -> None:
    saved = create(place.directory, "trial")
    before = sorted(path for path in place.directory.rglob("*"))
    assert try_first_epoch(place.directory, place.new, saved) == "tried with 2 rows of the log that wait"
    assert sorted(path for path in place.directory.rglob("*")) == before
    failing = place.app("failing.py", NEW.replace("({", "1 / (word != 'c') and ({"))
    with pytest.raises(RecordError, match="ZeroDivisionError"):
        try_first_epoch(place.directory, failing, saved)
    wrong = place.app("wrong.py", NEW.replace('{"n": count}', "count + ''"))
    with pytest.raises(PlanError, match="migrate function of stage 'totals'"):
        try_first_epoch(place.directory, wrong, saved)


def test_without_waiting_records_the_last_committed_ones_are_tried(place: Place) -> None:
    place.commit(1, end=4)
    saved = create(place.directory, "trial")
    sentence = try_first_epoch(place.directory, place.new, saved)
    assert sentence == "tried with 4 rows of the log that were committed last"


def command(*arguments: str | Path) -> Any:
    return CliRunner().invoke(cli, [str(word) for word in arguments])


def test_the_commands_upgrade_and_roll_back_a_stopped_pipeline(place: Place) -> None:
    at = ("--dir", place.directory)
    tried = command("upgrade", place.files / "new.py", *at, "--dry-run", "--json")
    assert json.loads(tried.stdout)["state"] == "not changed", tried.exception
    assert place.accepted() == ["old"]
    done = json.loads(
        command("upgrade", place.files / "new.py", *at, "--savepoint", "here", "--keep-input", "--json").stdout
    )
    assert [*InputPins(place.directory / "gateway").all()] == ["here"]
    assert (done["state"], done["savepoint"], done["sinks_added"]) == ("changed", "here", ["copy"])
    assert place.accepted() == ["new"]
    assert "back to savepoint 'here'" in command("rollback", "here", *at).stdout
    assert place.accepted() == ["old"]


def test_a_sink_is_removed_from_a_stopped_pipeline_only_if_it_has_the_last_commit(place: Place) -> None:
    place.app("fewer.py", OLD.replace('"out"', '"other"'))
    arguments = ("upgrade", place.files / "fewer.py", "--dir", place.directory)
    unknown = command(*arguments)
    assert isinstance(unknown.exception, ConfigError)
    assert "unknown here whether the sink has the last commit" in unknown.exception.sentence
    (place.files / "out").mkdir()
    sink = {"url": "file:out", "instance": "p-out-0", "directory": str(place.files / "out"), "base": str(place.files)}
    (place.directory / DETAILS).write_text(json.dumps({"sink_places": {"out": sink}}))
    with closing(TransactionLog(place.files / "out" / "p-out-0.txnlog")) as txnlog:
        txnlog.open()
        txnlog.vote(Transaction("t0", 0, 10), True)
        undecided = command(*arguments)
        assert isinstance(undecided.exception, ConfigError)
        assert "has not received the last decision" in undecided.exception.sentence
        assert place.accepted() == ["old"]
        txnlog.decide("t0", True)
    assert "changed the stopped pipeline" in command(*arguments).stdout
    last = DecisionReader(place.directory / "checkpoint").last()
    assert last is not None
    assert last.parts == {}


def test_a_sink_that_is_removed_takes_no_part_in_later_rounds_and_is_back_after_a_rollback(place: Place) -> None:
    saved = create(place.directory, "before")
    _, changed = apply(place.directory, place.app("fewer.py", OLD.replace('"out"', '"other"')))
    last = recover(changed.directory).last
    assert last is not None
    assert last.parts == {}
    back = recover(go_back(place.directory, saved).directory).last
    assert back is not None
    assert back.parts == {"out": SinkShare("t0", 0, 10)}


def test_an_upgrade_cannot_remove_dead_letters(place: Place) -> None:
    record = place.checkpoint.rounds.read(0)
    assert record is not None
    letters = {**record.parts, "dead-letter": SinkShare("d0", 0, 5)}
    place.checkpoint.rounds.write(replace(record, parts=letters))
    with pytest.raises(PlanError, match="no dead letters any more"):
        compare(place.directory, place.new)


def test_a_running_program_is_not_upgraded_from_its_own_file(place: Place) -> None:
    with claimed(place.directory, "p", place.files / "old.py"):
        # The lock belongs to this process; the kernel reports it only to other processes.
        from procession.cli.upgrade_command import check_other_file

        with pytest.raises(ProcessionError, match="needed to go back"):
            check_other_file(place.files / "old.py", place.files / "old.py")


def test_an_app_is_loaded_again_with_its_own_modules(tmp_path: Path) -> None:
    (tmp_path / "names.py").write_text("NAME = 'one'")
    (tmp_path / "app.py").write_text(OLD.replace('"counted"', "__import__('names').NAME"))
    assert "one" in dict(keyed_versions(load_again(tmp_path / "app.py").plan).values())
    (tmp_path / "names.py").write_text("NAME = 'another'")
    assert "another" in dict(keyed_versions(load_again(tmp_path / "app.py").plan).values())
