"""Performs the steps of an upgrade on a pipeline's directory: compare, try the first epoch, change the checkpoint, go
back.

Invariant: comparing and trying change nothing in the pipeline; they work in a directory inside a savepoint. The
change is atomic and fenced (`commit/checkpoint_change`), and only made while no driver of this directory runs. Going
back loses nothing until the first commit after the change; after that `savepoints/rollback` is needed. Used by
`jobs/upgrade_switch`, for a pipeline that runs, and by `procession upgrade`, for one that does not.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from procession.commit.checkpoint import Checkpoint, read_pipeline
from procession.commit.checkpoint_change import change_checkpoint
from procession.commit.declared_endpoints import check_codecs
from procession.commit.round_record import RoundRecord
from procession.connectors.sink_rollback import SinkPlace
from procession.deployment.part_arguments import GATEWAY
from procession.deployment.run_details import read_details
from procession.driver.app_file import App
from procession.driver.changed_states import changed_states, outcomes_of
from procession.errors import ConfigError, PlanError
from procession.gateway.log_rows import batch_of
from procession.planner.graph import Graph
from procession.planner.upgrade import SinkChanges, StageOutcome, sink_changes
from procession.savepoints.savepoint import Savepoint, link_all
from procession.sdk.transaction_log import TransactionTail, uncommitted
from procession.storage.driver_claim import checkpoint_of
from procession.storage.durable import make_directory
from procession.storage.log_ranges import FIRST_GATEWAY
from procession.storage.log_reader import LogReader
from procession.storage.recovery import recover_log
from procession.testing.in_process import SIDES, STATES, HostedPlan, check_without_spark
from procession.verify.decisions import DecisionReader

TRIED_RECORDS = 10_000
"""Maximum number of records of the first epoch that is tried."""
TRIED_AGAIN_RECORDS = 1_000
"""Number of committed records that are tried if no record waits."""


@dataclass(frozen=True)
class UpgradeComparison:
    """The effect of an upgrade on a pipeline."""

    stages: tuple[StageOutcome, ...]
    sinks: SinkChanges

    @property
    def sentences(self) -> list[str]:
        added = [f"sink {name!r}: new, begins empty" for name in self.sinks.added]
        removed = [f"sink {name!r}: removed, its output stays" for name in self.sinks.removed]
        return [*(stage.sentence for stage in self.stages), *added, *removed] or ["no stage has states"]

    def described(self) -> dict[str, Any]:
        stages = [{"stage": at.stage, "outcome": at.outcome.value, "before": at.before} for at in self.stages]
        return {"stages": stages, "sinks_added": list(self.sinks.added), "sinks_removed": list(self.sinks.removed)}


def compare(directory: Path, app: App) -> UpgradeComparison:
    """Return the effect of this app on the states and sinks of the pipeline in this directory. Raises PlanError if
    the app cannot continue the pipeline, ConfigError if there is no pipeline or it has another name."""
    last = DecisionReader(checkpoint_of(directory)).last()
    if last is None:
        raise ConfigError(
            f"No epoch of a pipeline in {directory} is committed yet, so there is nothing to upgrade.",
            next_step="Start the new program with `procession run`.",
        )
    document = read_pipeline(checkpoint_of(directory))
    return _compared(directory, app, document, last)


def _compared(directory: Path, app: App, document: Mapping[str, Any], last: RoundRecord) -> UpgradeComparison:
    graph = app.graph
    if graph.name != document["name"]:
        raise ConfigError(
            f"The pipeline is {document['name']!r}, and the app defines {graph.name!r}.",
            next_step="Give the app's Pipeline the same name, or choose the right --dir.",
        )
    sinks = sink_changes(graph, str(document["fingerprint"]), dict(document.get("doors", {})))
    kept = {name: codec for name, codec in graph.sink_codecs().items() if name not in sinks.added}
    check_codecs(checkpoint_of(directory), dict(document.get("codecs", {})), kept)
    ends = {end.name for end in graph.participants}
    if lost := [name for name in last.parts if name not in ends and name not in sinks.removed]:
        raise PlanError(
            f"the new program has no dead letters any more: sink {lost[0]!r} is gone",
            next_step="keep dead_letter= of the Pipeline; dead letters may be added, but not removed",
            stage=lost[0],
        )
    return UpgradeComparison(tuple(outcomes_of(app.plan, last, app.upgrade)), sinks)


def check_delivered(directory: Path, comparison: UpgradeComparison) -> None:
    """Raise ConfigError unless all sinks that the upgrade of a stopped pipeline removes have the last committed
    epoch."""
    last = DecisionReader(checkpoint_of(directory)).last()
    places = read_details(directory).get("sink_places", {})
    for name in comparison.sinks.removed:
        if last is None or (part := last.parts.get(name)) is None:
            continue
        log = SinkPlace.of(name, places[name]).txnlog if name in places else None
        if log is None or not log.exists():
            raise ConfigError(
                f"Sink {name!r} is removed, and it is unknown here whether the sink has the last commit.",
                next_step="Keep the sink in the program.",
            )
        ends = [transaction.end for transaction in TransactionTail(log).poll()]
        if uncommitted(log) or ends[-1:] != [part.end]:
            raise ConfigError(
                f"Sink {name!r} is removed, and has not received the last decision.",
                next_step="Start the old program, and upgrade it while it runs.",
            )


def try_first_epoch(directory: Path, app: App, savepoint: Savepoint) -> str:
    """Run the new program once, without Spark, on real input and on copies of the savepoint's states. Nothing is
    committed. Return a description of the input. Raises the error with which the first epoch would fail."""
    try:
        check_without_spark(app.graph)
    except PlanError as error:
        return f"not tried: {error.sentence}"
    with tempfile.TemporaryDirectory(prefix=".upgrade-", dir=savepoint.directory) as scratch:
        place = Path(scratch)
        record = savepoint.record
        names = savepoint.manifest["files"]
        for folder, target in (("state", STATES), ("sides", SIDES)):
            link_all(
                savepoint.directory / folder,
                place / target,
                [name.partition("/")[2] for name in names if name.startswith(f"{folder}/")],
            )
        fence = record.fence + 1
        states = changed_states(app.plan, record, app.upgrade, place / STATES, fence)
        rows, sentence = _input(directory, app.graph, record)
        begins = replace(record, epoch=0, fence=fence, last=0, ends={}, states=states)
        HostedPlan(app.plan, rows, place, begins=begins).lose_epoch(rows.num_rows)
    return sentence


def _input(directory: Path, graph: Graph, record: RoundRecord) -> tuple[pa.RecordBatch, str]:
    """Return records for the first epoch: waiting records, or else the last records in the log."""
    path = directory / GATEWAY / ("log" if graph.event_time is None else "ordered")
    segments = recover_log(path).segments if path.exists() else ()
    start = record.offsets.get(FIRST_GATEWAY, 0)
    if not segments:
        return batch_of([]), "tried without records: the log has none"
    end = segments[-1].end
    if end > start >= segments[0].base:
        first, last, what = start, min(end, start + TRIED_RECORDS), "that wait"
    else:
        first, last, what = max(segments[0].base, end - TRIED_AGAIN_RECORDS), end, "that were committed last"
    batches = list(LogReader(path).read(first, last))
    if not batches:
        return batch_of([]), "tried without records: the log has none"
    return pa.concat_batches(batches), f"tried with {last - first:,} rows of the log {what}"


def apply(directory: Path, app: App) -> tuple[UpgradeComparison, Checkpoint]:
    """Change the checkpoint, so that the next driver runs this app. No driver of this directory may run."""
    found: list[UpgradeComparison] = []

    def change(
        checkpoint: Checkpoint, document: dict[str, Any], last: RoundRecord
    ) -> tuple[dict[str, Any], RoundRecord]:
        found.append(_compared(directory, app, document, last))
        place = directory / "state" / checkpoint.id
        make_directory(place)
        states = changed_states(app.plan, last, app.upgrade, place, checkpoint.fence)
        graph = app.graph
        codecs = {sink: codec.name for sink, codec in graph.sink_codecs().items()}
        made = {**document, "fingerprint": graph.fingerprint(), "doors": graph.endpoints(), "codecs": codecs}
        # A removed sink does not take part in later rounds. The caller has checked that it has the last decision.
        parts = {name: part for name, part in last.parts.items() if name not in found[0].sinks.removed}
        return made, replace(last, states=states, parts=parts, fingerprint=graph.fingerprint())

    checkpoint = change_checkpoint(checkpoint_of(directory), change)
    return found[0], checkpoint


def go_back(directory: Path, savepoint: Savepoint) -> Checkpoint:
    """Change the checkpoint back to a savepoint of the last committed epoch. No driver of this directory may run.

    Raises ConfigError if later epochs are committed, because `savepoints/rollback` is then needed."""
    if (last := DecisionReader(checkpoint_of(directory)).last()) is not None:
        _check_free(savepoint, last)  # checked before any driver is fenced
    savepoint.verify()

    def change(
        checkpoint: Checkpoint, _document: dict[str, Any], last: RoundRecord
    ) -> tuple[dict[str, Any], RoundRecord]:
        _check_free(savepoint, last)
        for folder in ("state", "sides"):
            link_missing(savepoint, folder, directory / folder / checkpoint.id)
        return savepoint.pipeline, savepoint.record

    return change_checkpoint(checkpoint_of(directory), change)


def _check_free(savepoint: Savepoint, last: RoundRecord) -> None:
    if last.epoch != savepoint.epoch:
        raise ConfigError(
            f"Epochs {savepoint.epoch + 1:,} to {last.epoch:,} were committed after savepoint"
            f" {savepoint.manifest['name']!r}.",
            next_step="Stop the pipeline, and undo them with `procession rollback`, if its sinks can.",
        )


def link_missing(savepoint: Savepoint, folder: str, target: Path) -> None:
    """Link the files of a savepoint that the pipeline's directory no longer has."""
    files = (name.partition("/")[2] for name in savepoint.manifest["files"] if name.startswith(f"{folder}/"))
    missing = [name for name in files if not (target / name).exists()]
    if missing:
        link_all(savepoint.directory / folder, target, missing)
