"""Runs `procession run`: a user's app with all of its processes on this machine.

Invariant: a run ends without being stopped only when its inputs are committed, including the results of their ends,
and every file sink has received the decision. The summary comes from the checkpoint. Uses
`deployment/local_pipeline`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

from procession.cluster.namespace_cluster import NamespaceCluster
from procession.commit.checkpoint import check_rolled_back
from procession.commit.epoch_totals import COUNTER, LATE_AT
from procession.commit.round_record import RoundRecord
from procession.connectors.given_records import GivenRecords
from procession.deployment.app_connectors import check_connectors, connected_streams, connector_lines, ending_parts
from procession.deployment.cluster_pipeline import ClusterPipeline, driver_directory, on_cluster, with_replicas
from procession.deployment.dashboard_part import DashboardPort
from procession.deployment.local_pipeline import SOURCE, LocalPipeline, part_of
from procession.deployment.run_claim import UPGRADE_REQUEST, claimed
from procession.deployment.run_details import RunEvents, write_details
from procession.deployment.run_inputs import read_inputs
from procession.deployment.settings import Settings
from procession.driver.app_file import load_app
from procession.driver.stage_states import held_back
from procession.driver.stream_order import check_inputs
from procession.errors import ProcessionError
from procession.jobs.doctor import check_start
from procession.log_format import note
from procession.monitoring.progress import Display, PipelineProgress
from procession.planner.event_order import LateRule
from procession.planner.graph import Graph
from procession.savepoints.savepoint import clear_drafts
from procession.sdk.transaction_log import uncommitted
from procession.storage.driver_claim import checkpoint_of
from procession.supervisor.supervisor import Supervisor
from procession.verify.decisions import DecisionReader, last_committed

POLL_INTERVAL_S = 0.2

COUNTERS = ("records_in", "records_out", "late", "dead_letters")


def run_app(
    app: Path,
    directory: Path | None,
    inputs: Sequence[Path],
    listen: str,
    settings: Settings,
    *,
    is_silent: bool,
    event_time: Sequence[str] = (),
    cluster: NamespaceCluster | None = None,
    records_file: Path | None = None,
    base: Path | None = None,
    display: Display | None = None,
    is_restored: bool = False,
) -> dict[str, Any]:
    """Run until the inputs are committed; if they do not end, run until asked to stop. Return the figures of the run.
    With a cluster, the parts run on its hosts, and the directory is on the driver's host. `records_file` is a file with
    records (`connectors/given_records`), and `base` the directory of relative directories of sinks. `is_restored`:
    directories that are missing are restored from the replicas."""
    records = (
        {} if records_file is None else {stream.id: stream.name for stream in GivenRecords(records_file).streams()}
    )
    graph = load_app(app, input_streams=lambda graph: read_inputs(graph, inputs).streams | records.keys()).graph
    # Report unreadable inputs before anything is started.
    reading = read_inputs(graph, inputs)
    check_inputs(graph, reading.paths | records)
    check_connectors(graph)
    streams = reading.streams | records.keys() | connected_streams(graph)
    graph = graph.with_inputs(streams)
    senders = [SOURCE] * (bool(reading.files) or records_file is not None) + list(map(part_of, reading.patterns))
    is_endless = any(pattern.is_endless for pattern in reading.patterns)
    ending = [] if is_endless else ending_parts(graph, senders)
    if cluster is not None:
        settings = with_replicas(cluster, settings)
    check_start(settings, listen)
    if cluster is not None:
        directory = driver_directory(cluster, graph.name)
    directory = directory or Path(".procession") / graph.name
    base = (base or Path()).resolve()
    planned: LocalPipeline | ClusterPipeline
    if cluster is None:
        planned = LocalPipeline(Supervisor(directory / "logs"), app, graph, directory.resolve(), base, settings)
    else:
        planned = on_cluster(cluster, Supervisor(directory / "logs"), app, graph, settings)
    if planned.settings.replicas:
        if is_restored:
            planned.replicas.restore(planned.replicated, note)
        planned.replicas.check_reachable(planned.replicated, note)
    events = RunEvents(directory)
    with (
        claimed(directory, graph.name, app),
        closing(DashboardPort(settings, directory.resolve())) as dashboard,
        display or Display(is_silent=is_silent) as display,
        Supervisor(directory / "logs", say=display.say, on_restart=partial(events.add, "part.restarted")) as supervisor,
    ):
        check_rolled_back(checkpoint_of(directory))  # before a gateway or a sink starts with an incomplete directory
        clear_drafts(directory)
        events.add("run.started", "run", f"pipeline {graph.name!r} was started")
        local: LocalPipeline | ClusterPipeline
        if cluster is None:
            local = LocalPipeline(supervisor, app, graph, directory.resolve(), base, settings, listen, streams)
        else:
            local = on_cluster(cluster, supervisor, app, graph, settings, inputs=inputs, input_streams=streams)
            settings = local.settings
        before = last_committed(local.directory)
        progress = PipelineProgress.from_now(
            local.directory, settings.control_cookie, settings.client_tls, gateways=local.gateways_in
        )
        display.say(f"starting pipeline {graph.name!r}; logs are in {directory / 'logs'}")
        if settings.open_producers:
            display.say(f"open: any producer that can reach {listen} can send to this pipeline without a secret")

        def is_done() -> bool:
            are_done = (supervisor.has(part) and supervisor.is_done(part) for part in ending)
            return bool(ending) and all(are_done) and is_delivered(local)

        def start_sources() -> None:
            if reading.files:
                local.start_source(reading.files, event_time=event_time)
            elif records_file is not None and isinstance(local, LocalPipeline):
                local.start_given(records_file)
            for turn, pattern in enumerate(reading.patterns):
                local.start_pattern(pattern, turn=turn, event_time=event_time)
            local.start_connected()

        write_details(local, app, reading.paths.values())
        # A gateway with an older log refuses producers until the driver has confirmed the log.
        is_new = local.is_new
        if local.start(start_sources if is_new else lambda: None):
            # Loaded now, because the installation's files may have changed when an upgrade is requested.
            from procession.jobs.upgrade_switch import UpgradeSwitch

            if not is_new:
                start_sources()
            for line in connector_lines(graph):
                display.say(line)
            if cluster is not None:
                display.say(f"on cluster {cluster.name}: relative directories of sinks are in {local.gateways_in}")
            joining = f", gateways join at {local.control}" if settings.control else ""
            if dashboard.sentence:
                display.say(dashboard.sentence)
            display.say(f"ready: connectors send to {local.address}{joining}; Ctrl-C stops")
            while supervisor.watch(POLL_INTERVAL_S) and not is_done():
                dashboard.poll(supervisor)
                if (directory / UPGRADE_REQUEST).exists():
                    local = UpgradeSwitch(local, display.say).perform()
                    write_details(local, local.app if isinstance(local, LocalPipeline) else app)
                display.show(progress.poll(), sum(supervisor.restarts.values()))
        was_done = is_done()
        progress.poll()
        supervisor.stop()
        events.add("run.stopped", "run", "the input is committed" if was_done else "it was asked to stop")
        figures = _figures(local.graph, local.directory, before, progress.poll(), settings)
        restarts = sum(supervisor.restarts.values())
        display.show_end(progress, restarts)
        return figures | {
            "restarts": restarts,
            "has_inputs": bool(ending),
            "is_done": was_done,
            "signal": supervisor.stop_signal,
        }


def is_delivered(local: LocalPipeline | ClusterPipeline) -> bool:
    """Return whether every file sink has received the decisions on its prepared transactions."""
    logs = [
        local.sink_directories[end.sink.name] / f"{end.instance}.txnlog"
        for end in local.graph.participants
        if end.sink.name in local.sink_directories
    ]
    return not any(uncommitted(log) for log in logs if log.exists())


def _figures(
    graph: Graph, directory: Path, before: RoundRecord | None, progress: PipelineProgress, settings: Settings
) -> dict[str, Any]:
    """Return the figures of this run, from the round records, because a killed driver may not have logged its last
    epoch."""
    last = last_committed(directory)
    counts = {name: _counter(last, name) - _counter(before, name) for name in COUNTERS}
    waiting = progress.waiting(0 if last is None else last.last)
    held: list[str] = []
    with suppress(ProcessionError, OSError):  # a summary must not fail: the next start reports the error
        states = directory / "state" / DecisionReader(checkpoint_of(directory)).id
        held = held_back(graph, last, states)
    return {
        "pipeline": graph.name,
        "records_in": counts["records_in"] + waiting,
        "committed": counts["records_in"],
        "epochs": _epochs(last) - _epochs(before),
        "late": counts["late"],
        "late_at": _differences(LATE_AT, last, before),
        "counters": _differences(COUNTER, last, before),
        "late_rule": None if graph.event_time is None else graph.event_time.late,
        "dead_letters": counts["dead_letters"],
        "dead_letter_share_max": settings.dead_letter_share_max,
        "held_back": held,
    }


def _counter(record: RoundRecord | None, name: str) -> int:
    return 0 if record is None else record.counters.get(name, 0)


def _differences(prefix: str, last: RoundRecord | None, before: RoundRecord | None) -> dict[str, int]:
    """Return the increase of the counters with this prefix in this run."""
    names = [name for name in (last.counters if last is not None else {}) if name.startswith(prefix)]
    counts = {name.removeprefix(prefix): _counter(last, name) - _counter(before, name) for name in names}
    return {name: count for name, count in counts.items() if count}


def _epochs(record: RoundRecord | None) -> int:
    return 0 if record is None else record.epoch + 1


def is_clean(figures: Mapping[str, Any]) -> bool:
    """Return whether the run completed, with no more dead letters than allowed."""
    return (figures["is_done"] or not figures["has_inputs"]) and not _has_too_many_dead_letters(figures)


def _has_too_many_dead_letters(figures: Mapping[str, Any]) -> bool:
    records = figures["committed"]
    return bool(min(figures["dead_letters"], records) > figures["dead_letter_share_max"] * records)


def sentence(figures: Mapping[str, Any]) -> str:
    """Return the summary at the end of a run."""
    epochs = "1 epoch" if figures["epochs"] == 1 else f"{figures['epochs']:,} epochs"
    parts = [f"{figures['committed']:,} of {figures['records_in']:,} records committed in {epochs}"]
    stages = figures.get("late_at", {}).items()
    parts += [f"{count:,} arrived too late for stage {name!r}" for name, count in stages]
    if figures["late"]:
        is_one = figures["late"] == 1
        dropped, letters = ("was dropped", "is a dead letter") if is_one else ("were dropped", "are dead letters")
        # Without the current rule, because earlier runs, whose records also count here, may have used another rule.
        became = {LateRule.DROP: f", and {dropped}", LateRule.DEAD_LETTER: f", and {letters}"}.get(
            figures["late_rule"], ""
        )
        parts.append(f"{figures['late']:,} of them arrived late{became}")
    parts += [f"counter {name}: {count:,}" for name, count in figures.get("counters", {}).items()]
    if count := figures["dead_letters"]:
        rule = f", more than dead_letter_share_max ({figures['dead_letter_share_max']:g}) allows"
        parts.append(f"{count:,} set aside as dead letters{rule if _has_too_many_dead_letters(figures) else ''}")
    if figures["has_inputs"] and not figures["is_done"]:
        parts.append("stopped before the whole input and its end were committed; start again to continue")
    if figures["held_back"] and not figures["is_done"]:
        parts.append(f"still held back: {', '.join(figures['held_back'])}")
    return "; ".join(parts)
