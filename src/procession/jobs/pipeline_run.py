"""`Pipeline.run`: runs a pipeline from a script or a notebook, with the processes of `procession run`.

Invariant: processes, guarantee and figures are those of `jobs/run_app`. If the user gives no directory, each run uses
a new one and starts from the beginning. That is allowed only if the whole input is given, because such a run cannot
be continued. Uses `driver/defined_pipeline`.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import sys
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from procession.api.pipeline import Pipeline
from procession.connectors.given_records import written
from procession.deployment.local_pipeline import HERE
from procession.deployment.settings import load_settings
from procession.driver.app_file import LOADED, MODULE
from procession.driver.app_values import provided
from procession.driver.defined_pipeline import write_app
from procession.errors import ConfigError, UsageError
from procession.jobs.run_app import run_app, sentence
from procession.monitoring.notebook_display import as_html, display_here
from procession.planner.graph import Graph, SinkFraming
from procession.sdk.event_time_field import checked_unit
from procession.sdk.transaction_log import committed_ranges
from procession.storage.process_lock import locked
from procession.storage.secret import make_pipeline_private, make_private, write_private
from procession.testing.arrivals import Arrivals, Inputs
from procession.testing.in_process import decoded
from procession.verify.sink_outputs import SinkOutput

PROGRAM = "program"
"""Folder in the pipeline's directory for the pipeline, its app file and the given records."""
RECORDS = "records.arrow"
GIVEN_BYTES_MAX = 256 * 1024 * 1024
"""Maximum size of records that are given as values. Larger inputs must be files."""


@dataclass(frozen=True)
class _Output:
    """The output of a sink's connection, and how to read it."""

    log: Path
    framing: SinkFraming
    decode: Any


class PipelineRun:
    """A run that has ended: its figures and its committed output. See `api/finished_run`."""

    def __init__(self, figures: dict[str, Any], directory: Path, outputs: Mapping[str, _Output]) -> None:
        self.figures = figures
        self.directory = directory
        self._outputs = outputs

    @property
    def is_done(self) -> bool:
        return bool(self.figures["is_done"])

    def __iter__(self) -> Iterator[str]:
        return iter(self._outputs)

    def __getitem__(self, sink: str) -> list[Any]:
        output = self._output(sink)
        if output.framing is not SinkFraming.LINES:
            raise UsageError(
                f"The output of sink {sink!r} is raw bytes, without ends of records.",
                next_step=f"Read it with read_bytes({sink!r}), or give the sink a framing of lines.",
            )
        return [output.decode(line + b"\n") for line in self.read_bytes(sink).split(b"\n")[:-1]]

    def read_bytes(self, sink: str) -> bytes:
        log = self._output(sink).log
        return b"".join(SinkOutput(sink, (log,)).read([committed_ranges(log)])) if log.exists() else b""

    def _output(self, sink: str) -> _Output:
        if sink not in self._outputs:
            raise UsageError(
                f"There is no output {sink!r} of a file sink.",
                next_step=f"Read one of {', '.join(self._outputs) or 'none'}; other sinks are read where they write.",
            )
        return self._outputs[sink]

    def __repr__(self) -> str:
        return f"<run of {self.figures['pipeline']!r}: {sentence(self.figures)}>"

    def _repr_html_(self) -> str:
        shown = {name: f"{self.figures[name]:,}" for name in ("records_in", "committed", "epochs", "restarts")}
        return as_html({name.replace("_", " "): value for name, value in shown.items()}, [sentence(self.figures)])


def run_pipeline(
    pipeline: Pipeline,
    inputs: Inputs | Sequence[str | Path] | None,
    directory: str | Path | None,
    listen: str | None,
    event_time_field: str | None,
    event_time_unit: str,
    settings: Mapping[str, Any],
) -> PipelineRun:
    """Run the pipeline, as `Pipeline.run` describes."""
    if (loaded := LOADED.get()) is not None:
        raise UsageError(
            f"{loaded} calls Pipeline.run while it is loaded as an app.",
            next_step='Call it under `if __name__ == "__main__":`.',
        )
    checked_unit(event_time_unit)
    graph = pipeline.graph()
    _check_settings(graph)
    if directory is None and (inputs is None or graph.connected):
        raise UsageError(
            f"Pipeline {pipeline.name!r} has input that is not given to run(), and no directory to continue from.",
            next_step=f'Give it one, as in run(directory=".procession/{pipeline.name}"), or give all inputs.',
        )
    files, records = _sorted_out(graph, inputs)
    if event_time_field is not None and not files:
        raise UsageError("event_time_field is for files.", next_step="Give each record its event time: Record(…).")
    field = ["--event-time-field", event_time_field, "--event-time-unit", event_time_unit] if event_time_field else []
    base = Path.cwd() if directory is not None else Path(tempfile.mkdtemp(prefix=f"procession-{pipeline.name}-"))
    if directory is None:
        # Even after an error: the logs of a failed run can be read while this program runs.
        atexit.register(shutil.rmtree, base, ignore_errors=True)
    at = Path(directory).resolve() if directory is not None else base / "pipeline"
    make_pipeline_private(at)
    program = at / PROGRAM
    make_private(program)

    def refusal() -> ConfigError:
        return ConfigError(
            f"A pipeline runs in {at} already.", next_step="Stop it, or give this one another directory."
        )

    with locked(program / "lock", refusal), _imports_kept():
        app = write_app(pipeline, program)
        given = program / RECORDS
        if records is not None:
            write_private(given, records)
        figures = run_app(
            app,
            at,
            files,
            listen or HERE,
            load_settings(**settings),
            is_silent=False,
            event_time=field,
            records_file=None if records is None else given,
            base=base,
            display=display_here(),
        )
    if figures["has_inputs"] and not figures["is_done"] and figures["signal"] == signal.SIGINT:
        raise KeyboardInterrupt(sentence(figures))
    # Not in a variable: an exception that the user keeps would keep this frame, and so the directory.
    return _removed_with(PipelineRun(figures, at, _outputs(graph, base)), base if directory is None else None)


def _removed_with(run: PipelineRun, directory: Path | None) -> PipelineRun:
    if directory is not None:
        weakref.finalize(run, shutil.rmtree, directory, ignore_errors=True)
    return run


def _sorted_out(graph: Graph, inputs: Inputs | Sequence[str | Path] | None) -> tuple[list[Path], bytes | None]:
    """Return the files of the input, or the file with its records. Raises UsageError for inputs that belong to no
    source of the pipeline."""
    if inputs is None:
        return [], None
    if isinstance(inputs, str | Path):
        return [Path(inputs)], None
    given: Any = inputs if isinstance(inputs, Mapping) else list(inputs)
    if given and not isinstance(given, Mapping) and all(isinstance(path, str | Path) for path in given):
        return [Path(str(path)) for path in given], None
    reading = {source.name: source.target for source in graph.connected}
    for name in (
        given if isinstance(given, Mapping) else (pair[0] for pair in given if isinstance(pair, tuple) and pair)
    ):
        if name in reading:
            raise UsageError(
                f"Source {name!r} reads {reading[name]}, and cannot be given records.",
                next_step="Leave it out of the inputs; or test the pipeline with procession.testing.run.",
            )
    arrivals = Arrivals.of(graph, given)
    rows = arrivals.rows(is_ended=False)
    if rows.nbytes > GIVEN_BYTES_MAX:
        raise UsageError(
            f"The given records have {rows.nbytes:,} bytes, more than {GIVEN_BYTES_MAX:,}.",
            next_step="Write them to a file, one record per line, and give its path.",
        )
    connected = {stream for source in graph.connected for stream in arrivals.streams_of(source)}
    return [], written(rows, {number: name for number, name in arrivals.names.items() if number not in connected})


def _check_settings(graph: Graph) -> None:
    """Raise ConfigError if a setting of an operator would be ignored because the pipeline was declared without it."""
    from procession.api.app_settings import variable_of

    values = provided()
    for setting in graph.settings:
        if setting.origin == "default" and (value := values.get(variable_of(setting.name))) is not None:
            raise ConfigError(
                f"{value.origin} sets {setting.name!r}, but this program has declared the pipeline without it.",
                next_step="Run the app with `procession run`, or declare the pipeline inside"
                f" procession.testing.with_settings({setting.name}=…).",
            )


def _outputs(graph: Graph, base: Path) -> dict[str, _Output]:
    found = {}
    for end in graph.participants:
        named = end.sink.sink_traits.directory if end.sink.sink_traits.is_started else None
        if named is not None and end.sink.sink_traits.writes_record_file:
            log = (base / named(end.sink.url)).resolve() / f"{end.instance}.txnlog"
            found[end.name] = _Output(log, end.sink.framing, lambda data, sink=end.sink: decoded(sink, data, graph))
    return found


@contextmanager
def _imports_kept() -> Iterator[None]:
    """Undo the changes that loading an app makes to this program's imports."""
    path, before = list(sys.path), os.environ.get("PYTHONPATH")
    try:
        yield
    finally:
        sys.path[:] = path
        sys.modules.pop(MODULE, None)
        os.environ.pop("PYTHONPATH", None)
        os.environ |= {} if before is None else {"PYTHONPATH": before}
