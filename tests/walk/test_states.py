"""States and crashes: states and output are committed together or not at all, although each attempt of an epoch would
write something else. A changed program gets an error with a next step."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from procession.deployment.local_pipeline import DRIVER
from procession.deployment.settings import Settings
from procession.operators.value_codec import PLAIN
from procession.planner.keys import PLAIN_KEYS
from procession.storage.state_store import TaskStates
from procession.storage.state_version import StateCodec as StateCodec
from procession.supervisor.supervisor import PartFailed
from tests.slow_cases import slow
from tests.walk.cluster import Cluster, wait_for

APP = '''
import os
from pathlib import Path
from procession import Pipeline, tables

HERE = Path(__file__).parent

def salted(state, payload):
    """Each record of a key tells the salt of the one before, and its own: made anew whenever an epoch is run again."""
    order = HERE / "kill-the-worker"
    if payload.startswith("kill the worker") and order.exists():
        order.unlink()
        os.kill(os.getpid(), 9)
    salt = os.urandom(4).hex()
    return {"salt": salt, "count": state["count"] + 1}, f"{payload} {state['count']} {state['salt']} {salt}"

pipeline = Pipeline("walk", parallelism=2)
lines = pipeline.source("lines", codec="text")
salty = lines.map_stateful(salted, key=lambda line: line[-1], initial={"salt": "-", "count": 0}, name="salted")
# And what a table says that changes while this runs.
table = tables.of_json_lines(HERE / "table.jsonl", by="id", refresh=True)
told = salty.hash_join(table, key=lambda line: "k", join=lambda line, row: f"{line} {row['version']}", name="told")
told.sink("one", to="file:one")
told.sink("two", to="file:two")
'''
SETTINGS = Settings(epoch_interval_s=0.02, epoch_records_max=100)
RECORDS = 300


def write_table(directory: Path, version: int) -> None:
    (directory / "draft").write_text(json.dumps({"id": "k", "version": version, "padding": "." * version}) + "\n")
    (directory / "draft").rename(directory / "table.jsonl")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("states")
    write_table(directory, 0)
    with Cluster(directory, APP, SETTINGS) as cluster:
        assert cluster.local.start()
        cluster.until_done(cluster.send(cluster.numbered(RECORDS)))
        yield cluster


def output(cluster: Cluster) -> list[list[str]]:
    """Return each committed line as: the record, the number of earlier records of its key, the last salt, its own salt,
    the table's version."""
    one = cluster.committed("one")
    assert one == cluster.committed("two")
    return [line.rsplit(" ", 4) for line in one.decode().splitlines()]


def everything_is_there_once_and_remembered(cluster: Cluster) -> None:
    """Check that the output is a possible history, and that the committed states are those at its end."""
    expected = b"".join(path.read_bytes() for path in cluster.inputs).decode().splitlines()
    outputs = output(cluster)
    assert [line for line, *_ in outputs] == expected
    remembered: dict[str, tuple[int, str]] = {}
    for line, count, before, salt, _ in outputs:
        assert remembered.get(line[-1], (0, "-")) == (int(count), before)
        remembered[line[-1]] = int(count) + 1, salt
    assert committed_states(cluster) == {key: {"salt": salt, "count": n} for key, (n, salt) in remembered.items()}


def committed_states(cluster: Cluster) -> dict[str, Any]:
    """Return the states in the files that the last committed round names."""
    (directory,) = (cluster.directory / "state").iterdir()
    version = cluster.rounds().states(cluster.log().committed)["salted"]
    found: dict[bytes, Any] = {}
    for files in version.tasks:
        states = TaskStates(directory, files, StateCodec(PLAIN.packed, PLAIN.decoded_value))
        found |= states.take([key for some in states.all_keys() for key in some])
    return {PLAIN_KEYS.decode(key): state for key, state in found.items()}


POINTS = [
    slow("driver:before-record"),  # the test of the table kills a driver there in each run
    slow("driver:after-offsets"),
    slow("driver:between-votes"),
    slow("driver:after-record"),
    slow("driver:before-phase2"),
    slow("driver:before-ack"),
    slow("sink:before-prepare"),
    slow("sink:before-vote"),
    "sink:after-vote-before-reply",
    slow("sink:before-commit"),
    slow("sink:after-commit"),
]


@pytest.mark.parametrize("point", POINTS)
def test_i9_states_and_output_stay_together_wherever_the_driver_or_a_sink_is_killed(
    cluster: Cluster, point: str
) -> None:
    cluster.send_and_kill(point, cluster.numbered(RECORDS))
    everything_is_there_once_and_remembered(cluster)


def test_i9_states_and_output_stay_together_when_a_worker_is_killed_in_the_middle_of_a_step(cluster: Cluster) -> None:
    (cluster.directory / "kill-the-worker").touch()
    lines = cluster.numbered(RECORDS)
    lines[RECORDS // 2] = b"kill the worker %d" % len(cluster.inputs)
    cluster.until_done(cluster.send(lines))
    assert not (cluster.directory / "kill-the-worker").exists()
    everything_is_there_once_and_remembered(cluster)


def test_i9_states_and_output_stay_together_when_the_process_for_small_epochs_is_killed(cluster: Cluster) -> None:
    before = cluster.restarts(DRIVER)
    driver_log = cluster.directory / "logs" / "driver.log"

    def kill_at_the_middle_record() -> bool:
        """Whether the resident worker was killed. On a busy machine the driver may run the epoch as a Spark job."""
        cluster.until_done(cluster.send(cluster.numbered(RECORDS)))  # shows that the functions are quick
        (cluster.directory / "kill-the-worker").touch()
        lines = cluster.numbered(RECORDS)
        lines[RECORDS // 2] = b"kill the worker %d" % len(cluster.inputs)
        cluster.until_done(cluster.send(lines))
        return "small_epoch.worker_ended" in driver_log.read_text()

    wait_for(kill_at_the_middle_record, "a small epoch whose process is killed")
    assert cluster.restarts(DRIVER) == before
    everything_is_there_once_and_remembered(cluster)
    lines_of_history = (cluster.directory / "epochs.jsonl").read_text().splitlines()
    assert {json.loads(line).get("is_small") for line in lines_of_history} >= {True, False}


def test_i5_an_epoch_that_is_run_again_reads_the_table_as_it_was_and_later_ones_as_it_is(cluster: Cluster) -> None:
    begun = len(output(cluster))
    cluster.arm("driver:before-record")
    source = cluster.send(cluster.numbered(RECORDS))
    cluster.until_dead(DRIVER)
    version = int(output(cluster)[-1][-1]) + 1
    write_table(cluster.directory, version)
    cluster.until_done(source)
    cluster.until_done(cluster.send(cluster.numbered(RECORDS)))
    everything_is_there_once_and_remembered(cluster)
    seen = [int(one[-1]) for one in output(cluster)[begun:]]
    assert seen == sorted(seen)
    assert set(seen) == {version - 1, version}, "the epoch that was open when the driver was killed has the old one"


def test_files_that_no_epoch_needs_are_removed(cluster: Cluster) -> None:
    (directory,) = (cluster.directory / "state").iterdir()
    last = cluster.rounds().read(cluster.log().committed)
    assert last is not None
    named = {name for version in last.states.values() for name in version.names}
    assert named
    assert named <= {path.name for path in directory.iterdir()}
    # Files of the previous epoch are removed when this one is committed; killed drivers left the others.
    assert len(list(directory.iterdir())) < 40


def restarted(directory: Path, app: str) -> str:
    """Return the error of a changed program on the same checkpoint."""
    with Cluster(directory, app, SETTINGS) as cluster:
        try:
            cluster.local.start()
            cluster.until(lambda: False, "the end of the driver")
        except PartFailed as failed:
            return failed.sentence
    raise AssertionError("it went on")


def test_a_changed_program_gets_an_error_with_a_next_step(cluster: Cluster) -> None:
    cluster.supervisor.stop()
    current = (cluster.directory / "checkpoint" / "CURRENT").read_text()
    message = restarted(cluster.directory, APP.replace('name="salted"', 'name="spiced"'))
    assert "states of stage 'salted', and the program has 'spiced' instead" in message
    assert "give it name='salted'" in message
    # Nothing was claimed, so a running driver would not be disturbed.
    assert (cluster.directory / "checkpoint" / "CURRENT").read_text() == current
