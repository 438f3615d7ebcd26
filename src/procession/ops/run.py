"""`procession run`: a user's app, with everything that it needs on this machine.

The one rule: it ends by itself only when the inputs it was given are committed; otherwise when it is asked to. Before
it the command line; after it `ops/local`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from procession.connectors.file import FileSource
from procession.ops.app import load_app
from procession.ops.config import Settings
from procession.ops.local import SOURCE, Local
from procession.ops.progress import Display, Progress
from procession.ops.supervise import Supervisor

LOOK_S = 0.2


def run_app(
    app: Path, directory: Path | None, inputs: Sequence[Path], listen: str, settings: Settings, *, is_silent: bool
) -> dict[str, Any]:
    """Run until the inputs are committed, or until asked to stop if there are none. Gives what was done."""
    # What cannot be read is told now, not when everything has been started.
    streams = FileSource(inputs).stream_ids
    graph = load_app(app, input_streams=streams).graph
    directory = directory or Path(".procession") / graph.name
    with Display(is_silent=is_silent) as display, Supervisor(directory / "logs", say=display.say) as supervisor:
        local = Local(supervisor, app, graph, directory.resolve(), Path.cwd(), settings, listen, streams)
        progress = Progress.from_now(local.directory, settings.cookie, settings.client_tls)
        before = progress.committed, progress.epochs
        display.say(f"starting pipeline {graph.name!r}; logs are in {directory / 'logs'}")
        if local.start():
            if inputs:
                local.start_source(inputs)
            display.say(f"ready: connectors send to {local.address}; Ctrl-C stops")
            while supervisor.watch(LOOK_S) and not (inputs and supervisor.is_done(SOURCE)):
                display.show(progress.look(), sum(supervisor.restarts.values()))
        progress.look()
        supervisor.stop()
        progress.look()
        return {
            "pipeline": graph.name,
            "records_in": max(progress.records_in, progress.committed) - before[0],
            "committed": progress.committed - before[0],
            "epochs": progress.epochs - before[1],
            "restarts": sum(supervisor.restarts.values()),
            "is_done": bool(inputs) and not supervisor.is_asked_to_stop,
        }
