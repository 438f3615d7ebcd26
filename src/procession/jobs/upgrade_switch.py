"""Switches a running pipeline to a new program, between two epochs, while its gateways and producers stay.

Invariant: at any time either the old or the new program owns the checkpoint, never both. The old driver is stopped
before the checkpoint is changed; a savepoint of that moment makes it possible to go back. If the new program fails
before its first commit, the switch goes back to the savepoint and the old program. After that commit the switch never
goes back. Runs inside `procession run`, which polls for a request in the pipeline's directory; `procession upgrade`
writes the request and reads the status.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from procession.api.app_settings import VARIABLE_PREFIX
from procession.deployment.app_connectors import check_connectors
from procession.deployment.cluster_pipeline import ClusterPipeline
from procession.deployment.local_pipeline import DRIVER, SPARE, LocalPipeline, announced_in
from procession.deployment.part_arguments import connector_arguments
from procession.deployment.run_claim import UPGRADE_REQUEST, describe, holder
from procession.driver.app_file import MODULE, App, load_app
from procession.driver.driver import SPARE_READY
from procession.errors import ConfigError, ProcessionError
from procession.monitoring.progress import PipelineProgress
from procession.savepoints.savepoint import check_name
from procession.savepoints.savepoint_create import create
from procession.savepoints.upgrade_steps import UpgradeComparison, apply, compare, go_back
from procession.sdk.transaction_log import uncommitted
from procession.storage.driver_claim import checkpoint_of
from procession.storage.durable import storage_error
from procession.supervisor.supervisor import PartFailed
from procession.verify.decisions import DecisionReader

STATUS = "upgrade-status.json"
POLL_INTERVAL_S = 0.2
PREPARE_S = 180.0
"""Seconds for the new driver to start Spark, before the old driver is stopped."""
FIRST_COMMIT_S = 180.0
"""Seconds after which a new program that is not ready counts as failed."""
QUIET_S = 5.0
"""Seconds after which a ready driver without a commit counts as running, because there may be no input."""
RESTARTS_MAX = 2
"""Maximum number of restarts of the new driver before its first commit; then the switch goes back."""
ANSWER_S = 20.0
"""Seconds for `run` to answer a request that it has accepted."""
DELIVERY_S = 10.0
"""Seconds for a removed sink to receive the last decision."""


@dataclass(frozen=True)
class UpgradeRequest:
    """A request of `procession upgrade` to `procession run`."""

    id: str
    app: str
    savepoint: str
    settings: Mapping[str, str] = field(default_factory=dict)
    """Checksums of the app's settings in the requesting process, by environment variable."""
    keep_input: bool = False
    """Whether the savepoint keeps the later input."""

    def write(self, directory: Path) -> None:
        _replace(directory / UPGRADE_REQUEST, self.__dict__)


class UpgradeSwitch:
    """An upgrade of the pipeline of one `procession run`. `local` is the running program."""

    def __init__(self, local: LocalPipeline | ClusterPipeline, say: Callable[[str], None]) -> None:
        self._on_cluster = local if isinstance(local, ClusterPipeline) else None
        self.local = local if isinstance(local, LocalPipeline) else local.driver
        self._say = say
        self._directory = local.directory
        self._has_no_driver = False
        """Whether the new program has failed and the switch has not gone back yet, so that neither program can be
        started."""

    def perform(self) -> LocalPipeline | ClusterPipeline:
        """Perform the requested upgrade. Return the program that runs afterwards."""
        self._poll()
        return self._on_cluster or self.local

    def _poll(self) -> None:
        path = self._directory / UPGRADE_REQUEST
        try:
            request = UpgradeRequest(**json.loads(path.read_text()))
        except (ValueError, TypeError):
            path.unlink(missing_ok=True)
            return
        path.unlink()
        status = _Status(self._directory, request.id, self._say)
        try:
            if self._on_cluster is not None:
                raise ConfigError(
                    "A pipeline on a cluster is not upgraded while it runs.",
                    next_step="Stop it with `procession stop`, upgrade it, and start the new program.",
                )
            self._perform(request, status)
        except (ProcessionError, OSError) as found:
            error = found if isinstance(found, ProcessionError) else storage_error(self._directory, "upgrade", found)
            status.end("failed", error.sentence, error.next_step)
            if isinstance(error, PartFailed) or self._has_no_driver:  # `run` itself cannot continue
                raise error from found
        except Exception as error:
            status.end("failed", f"The upgrade ended by a fault of Procession: {error!r}", "Read the output of `run`.")
            raise

    def _perform(self, request: UpgradeRequest, status: _Status) -> None:
        supervisor, old = self.local.supervisor, self.local
        check_name(self._directory, request.savepoint)  # before anything is stopped
        _check_settings(request.settings)
        app = load_again(Path(request.app), old.input_streams)
        comparison = compare(self._directory, app)
        new = replace(old, app=Path(request.app), graph=app.graph.with_inputs(old.input_streams))
        check_connectors(new.graph)
        _check_sources(old, new)
        check_sinks(old, new)
        started = self._new_sinks(new)
        old_part = supervisor.part(DRIVER)
        try:
            self._start_sinks(new, started)
            status.report("the new program starts Spark; the old one goes on")
            self._prepare(new)
            status.report("switching: the old program finishes its epoch, and producers wait")
            began = time.monotonic()
            supervisor.halt(DRIVER)
            try:
                self._check_delivered(old, comparison)
                savepoint = create(self._directory, request.savepoint, keep_input=request.keep_input)
                apply(self._directory, app)
            except (ProcessionError, OSError):
                supervisor.dismiss_successor(DRIVER)
                supervisor.replace(DRIVER, old_part)
                raise
        except (ProcessionError, OSError) as error:
            supervisor.dismiss_successor(DRIVER)
            self._stop_sinks(started)
            if isinstance(error, PartFailed) and error.fields["part"] in started.values():
                raise ConfigError(
                    f"A new sink could not be started, and the old program goes on: {error.sentence}",
                    next_step=f"Read {error.fields['log']}.",
                ) from error
            raise
        supervisor.replace(DRIVER, new.driver_part())
        status.report(f"switched; watching the first epochs (the way back is savepoint {request.savepoint!r})")
        failure = self._failure(savepoint.epoch, started)
        if failure is None:
            self._finish(new, comparison, status, time.monotonic() - began)
            return
        status.report(f"the new program failed before its first commit: {failure}; going back")
        supervisor.halt(DRIVER)
        self._has_no_driver = True
        try:
            go_back(self._directory, savepoint)
        except ConfigError as refused:  # the new program had committed
            self._stop_sinks(started)
            self._start_sinks(new, started)
            supervisor.replace(DRIVER, new.driver_part())
            self._has_no_driver = False
            self._finish(new, comparison, status, time.monotonic() - began, refused.sentence)
            return
        supervisor.replace(DRIVER, old_part)
        self._has_no_driver = False
        self._stop_sinks(started)
        status.end(
            "went back", f"The new program failed before its first commit: {failure}", "Correct the new program."
        )

    def _new_sinks(self, new: LocalPipeline) -> dict[Path, str]:
        """Return the directories of new sinks, with names for their processes."""
        running = self._sink_names()
        missing = [directory for directory in new.sink_parts if directory not in running]
        numbers = (number for number in range(1_000_000) if not self.local.supervisor.has(f"sink-{number}"))
        return {directory: f"sink-{number}" for directory, number in zip(missing, numbers, strict=False)}

    def _start_sinks(self, new: LocalPipeline, names: dict[Path, str]) -> None:
        new.start_sinks(names)
        if names:
            self.local.supervisor.wait_ready(*names.values())

    def _sink_names(self) -> dict[Path, str]:
        """Return the running processes of sinks by directory, which is in the arguments of the process."""
        parts = {
            name: self.local.supervisor.part(name) for name in self.local.supervisor.names if name.startswith("sink-")
        }
        directories = {*self.local.sink_parts}
        return {
            directory: name for name, part in parts.items() for directory in directories if str(directory) in part.argv
        }

    def _stop_sinks(self, names: dict[Path, str]) -> None:
        for name in names.values():
            if self.local.supervisor.has(name):
                self.local.supervisor.remove(name)

    def _prepare(self, new: LocalPipeline) -> None:
        supervisor = self.local.supervisor
        part = replace(new.driver_part(), spare=SPARE)
        pid = supervisor.prepare(DRIVER, part)
        is_ready, deadline = announced_in(self._directory / SPARE_READY), time.monotonic() + PREPARE_S
        while not is_ready(pid):
            if not supervisor.is_successor_alive(DRIVER) or time.monotonic() > deadline:
                raise ConfigError(
                    "The new program did not start. The old one continues.",
                    next_step=f"Read {supervisor.log_path(DRIVER)}.",
                )
            if not supervisor.watch(POLL_INTERVAL_S):
                raise ConfigError("The pipeline was stopped during the upgrade.", next_step="Start the old program.")

    def _check_delivered(self, old: LocalPipeline, comparison: UpgradeComparison) -> None:
        """Raise ConfigError unless all removed sinks have received the last decision."""
        for end in old.graph.participants:
            if end.sink.name not in comparison.sinks.removed:
                continue
            directory = old.sink_directories.get(end.sink.name)
            if directory is None:
                raise ConfigError(
                    f"Sink {end.name!r} is not started by this pipeline: it is unknown whether the sink has the last"
                    " commit.",
                    next_step="Keep the sink in the program.",
                )
            log, deadline = directory / f"{end.instance}.txnlog", time.monotonic() + DELIVERY_S
            while log.exists() and uncommitted(log):
                if time.monotonic() > deadline:
                    raise ConfigError(
                        f"Sink {end.name!r} has not received the last decision.",
                        next_step="Upgrade again; the old program goes on.",
                    )
                time.sleep(POLL_INTERVAL_S)

    def _failure(self, epoch: int, started: dict[Path, str]) -> str | None:
        """Watch the new driver and the new sinks until the first commit. Return the reason if one has failed, or
        None."""
        supervisor = self.local.supervisor
        starts, began, ready_s = supervisor.restarts[DRIVER], time.monotonic(), 0.0
        progress = self._progress()
        try:
            while supervisor.watch(POLL_INTERVAL_S):
                last = DecisionReader(checkpoint_of(self._directory)).last()
                if last is not None and last.epoch > epoch:
                    return None
                if supervisor.restarts[DRIVER] - starts > RESTARTS_MAX:
                    return f"its driver was started {RESTARTS_MAX + 2} times"
                is_quiet = supervisor.is_ready(DRIVER) and not may_take(progress, 0 if last is None else last.last)
                ready_s = ready_s + POLL_INTERVAL_S if is_quiet else 0.0
                if ready_s >= QUIET_S:
                    return None
                if time.monotonic() - began > FIRST_COMMIT_S:
                    return f"it committed nothing within {FIRST_COMMIT_S:g} seconds"
        except PartFailed as failed:
            if failed.fields["part"] not in (DRIVER, *started.values()):
                raise
            return failed.sentence
        return None  # asked to stop: the next start continues with the new program

    def _progress(self) -> PipelineProgress:
        settings = self.local.settings
        return PipelineProgress.from_now(
            self._directory, settings.control_cookie, settings.client_tls, gateways=self.local.gateways_in
        )

    def _finish(
        self, new: LocalPipeline, comparison: UpgradeComparison, status: _Status, seconds: float, note: str = ""
    ) -> None:
        unused = {path: name for path, name in self._sink_names().items() if path not in new.sink_parts}
        self._stop_sinks(unused)
        self.local = new
        describe(self._directory, new.graph.name, new.app)
        status.end("done", note, "", seconds=round(seconds, 1), **comparison.described())


class _Status:
    """Writes the status that `procession upgrade` reads while it waits."""

    def __init__(self, directory: Path, request: str, say: Callable[[str], None]) -> None:
        self._path = directory / STATUS
        self._request = request
        self._say = say
        self._told: list[str] = []

    def report(self, sentence: str) -> None:
        self._say(f"upgrade: {sentence}")
        self._told.append(sentence)
        self._write({"state": "running"})

    def end(self, state: str, sentence: str, next_step: str = "", **more: Any) -> None:
        self._say(f"upgrade: {state}{': ' if sentence else ''}{sentence}")
        self._write({"state": state, "sentence": sentence, "next_step": next_step, **more})

    def _write(self, document: dict[str, Any]) -> None:
        _replace(self._path, {"id": self._request, "told": self._told, **document})


def may_take(progress: PipelineProgress, end: int) -> bool:
    """Return whether the next epoch may have records from this sequence number on. True if no answer comes."""
    progress.poll()
    return len(progress.statuses) < len(progress.clients()) or progress.ready_records(end) > 0


def load_again(path: Path, input_streams: frozenset[int] = frozenset()) -> App:
    """Load the current version of an app and of its modules, because this process may have loaded earlier
    versions."""
    place = path.parent.resolve()
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None) or ""
        is_beside = bool(file) and Path(file).resolve().is_relative_to(place) and "site-packages" not in file
        is_ours = name.partition(".")[0] in ("procession", "__main__")
        if name == MODULE or (is_beside and not is_ours):
            del sys.modules[name]
    return load_app(path, input_streams=input_streams)


def settings_here() -> dict[str, str]:
    """Return checksums of the app's settings in the environment of this process. Values themselves may be secrets."""
    given = {name: value for name, value in os.environ.items() if name.startswith(VARIABLE_PREFIX)}
    return {name: hashlib.sha256(value.encode(errors="surrogateescape")).hexdigest() for name, value in given.items()}


def _check_settings(asked: Mapping[str, str]) -> None:
    here = settings_here()
    for variable, checksum in asked.items():
        if here.get(variable) != checksum:
            name = variable.removeprefix(VARIABLE_PREFIX).lower()
            raise ConfigError(
                f"The app's setting {name!r} has another value in the pipeline that runs, which keeps its settings.",
                next_step="Leave it out, or stop the pipeline, upgrade it, and start the new program with it.",
            )


def _check_sources(old: LocalPipeline, new: LocalPipeline) -> None:
    before = {source.name: connector_arguments(source, Path("x")) for source in old.graph.connected}
    for source in new.graph.connected:
        if before.get(source.name) != connector_arguments(source, Path("x")):
            raise ConfigError(
                f"Source {source.name!r} reads another URL or has other options than in the running program.",
                next_step="Stop the pipeline, upgrade it with `procession upgrade`, and start the new program.",
            )


def check_sinks(old: LocalPipeline, new: LocalPipeline) -> None:
    """Raise ConfigError if the process of an unchanged sink would need other arguments."""
    for directory in new.sink_parts:
        if directory in old.sink_parts and old.sink_arguments(directory) != new.sink_arguments(directory):
            names = ", ".join(repr(name) for name, at in new.sink_directories.items() if at == directory)
            raise ConfigError(
                f"Sink {names} writes to another URL or has other options than in the running program.",
                next_step="Give the changed sink another name: it begins empty, and the output of the old one stays.",
            )


def request_upgrade(
    directory: Path, app: Path, savepoint: str, *, keep_input: bool = False
) -> Iterator[dict[str, Any]]:
    """Ask the running pipeline in this directory to switch to this app. Yield its status whenever it changes; the
    last status is not "running". Raises ConfigError if the pipeline ends meanwhile."""
    request = UpgradeRequest(uuid.uuid4().hex, str(app.resolve()), savepoint, settings_here(), keep_input)
    request.write(directory)
    seen: dict[str, Any] = {}
    taken_s: float | None = None
    while True:
        try:
            found = json.loads((directory / STATUS).read_text())
        except (FileNotFoundError, ValueError):
            found = {}
        if found.get("id") == request.id and found != seen:
            seen = found
            yield found
            if found["state"] != "running":
                return
        if not seen and not (directory / UPGRADE_REQUEST).exists():
            taken_s = time.monotonic() if taken_s is None else taken_s
            if time.monotonic() - taken_s > ANSWER_S:
                raise ConfigError(
                    "The pipeline accepted the request and did not answer: it was started with another version of"
                    " Procession.",
                    next_step="Stop it, upgrade it, and start the new program.",
                )
        if holder(directory) is None:
            (directory / UPGRADE_REQUEST).unlink(missing_ok=True)
            raise ConfigError(
                "The pipeline ended during the upgrade.",
                next_step="Start the new program with `procession run`. If it is refused, the switch was not"
                " completed: start the old program.",
            )
        time.sleep(POLL_INTERVAL_S)


def _replace(path: Path, document: dict[str, Any]) -> None:
    draft = path.with_name(f"{path.name}.{os.getpid()}.draft")
    draft.write_text(json.dumps(document))
    draft.replace(path)
