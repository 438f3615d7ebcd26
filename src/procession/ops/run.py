"""`procession run`: a user's app, with everything that it needs on this machine.

The one rule: it ends by itself only when the inputs it was given are committed; otherwise when it is asked to. Before
it the command line; after it `ops/local`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from procession.connectors.file import FileSource
from procession.ops.app import load_app
from procession.ops.config import Settings
from procession.ops.local import SOURCE, Local
from procession.ops.progress import Display, Progress
from procession.ops.supervise import Supervisor
from procession.plan.eventtime import Late

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
        progress = Progress.from_now(local.directory, settings.control_cookie, settings.client_tls)
        before = progress.committed, progress.epochs, progress.late
        late_before = progress.late_at
        display.say(f"starting pipeline {graph.name!r}; logs are in {directory / 'logs'}")
        if settings.open_producers:
            display.say(f"open: anybody who reaches {listen} can send to this pipeline, without a secret")
        if local.start():
            if inputs:
                local.start_source(inputs)
            joining = f", gateways join at {local.control}" if settings.control else ""
            display.say(f"ready: connectors send to {local.address}{joining}; Ctrl-C stops")
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
            "late": progress.late - before[2],
            "late_at": dict(Counter(progress.late_at) - Counter(late_before)),
            "late_rule": None if graph.event_time is None else graph.event_time.late,
            "restarts": sum(supervisor.restarts.values()),
            "is_done": bool(inputs) and not supervisor.is_asked_to_stop,
        }


def sentence(figures: Mapping[str, Any]) -> str:
    """What was done, as it stands at the end of a run."""
    epochs = "1 epoch" if figures["epochs"] == 1 else f"{figures['epochs']:,} epochs"
    told = f"{figures['committed']:,} of {figures['records_in']:,} records committed in {epochs}"
    stages = figures.get("late_at", {}).items()
    told += "".join(f"; {count:,} came too late to stage {name!r}" for name, count in stages)
    if not figures["late"]:
        return told
    is_one = figures["late"] == 1
    dropped, letters = ("was dropped", "is a dead letter") if is_one else ("were dropped", "are dead letters")
    # The log of epochs may miss the last ones of a run before this one, under another rule.
    became = {Late.DROP: f", and {dropped}", Late.DEAD_LETTER: f", and {letters}"}.get(figures["late_rule"], "")
    return f"{told}; {figures['late']:,} of them came late{became}"
