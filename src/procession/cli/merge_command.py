"""`procession merge`: reads the lanes of a sink and restores their order.

As in `cli/main`, it only parses and prints; `sdk/lane_merge` merges, `connectors/merge_target` opens the output.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from procession.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from procession.metrics import Metric, MetricsServer
    from procession.sdk.event_time_merge import MergedByEventTime
    from procession.sdk.lane_files import OpenLanes
    from procession.sdk.lane_merge import LaneMerge
    from procession.sdk.merge_output import MergeOutput

PROGRESS_S = 1.0


def merge(
    places: Annotated[
        list[str],
        typer.Argument(metavar="PLACE...", help="Where the lanes are: lanes:DIR, DIR or kafka://HOST:PORT/TOPIC."),
    ],
    to: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            show_default="standard output",
            help="Write to file:DIR, kafka://HOST:PORT/TOPIC or lanes:DIR, and store the position with the output.",
        ),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Directory of the position, if --to is a topic.", show_default="that of --to"),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Wait for further epochs, until Ctrl-C.")] = False,
    timeout_s: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            show_default="wait",
            help="Seconds after which a silent lane is skipped while others have records. Order may be lost then.",
        ),
    ] = None,
    late: Annotated[
        Literal["in-place", "dead-letter"],
        typer.Option(help="Where to write records that then arrive too late: to the output, or to late-0.data."),
    ] = "in-place",
    verify: Annotated[
        bool, typer.Option("--verify", help="Check that every order key is greater than the one before it.")
    ] = False,
    shard: Annotated[
        str | None,
        typer.Option(metavar="I/N", show_default="all keys", help="Merge only the keys of shard I of N, from 0."),
    ] = None,
    lanes: Annotated[
        str | None,
        typer.Option(
            metavar="A-B", show_default="all", help="Merge only these lanes, for a merger that writes a lane."
        ),
    ] = None,
    instance: Annotated[
        str | None, typer.Option(metavar="PIPELINE-SINK", help="The sink, if several write lanes to one directory.")
    ] = None,
    by_event_time: Annotated[
        bool,
        typer.Option(
            "--by-event-time",
            help="Merge the lanes of several pipelines by event time. Each PLACE has the lanes of one pipeline.",
        ),
    ] = False,
    framing: Annotated[
        Literal["lines", "raw"] | None,
        typer.Option(show_default="as the pipeline", help="Put a newline after each record of a file, or nothing."),
    ] = None,
    transaction_bytes: Annotated[
        int, typer.Option(min=1, help="Commit after this many bytes, if more epochs can be read at once.")
    ] = 8 * 1024 * 1024,
    buffer_bytes: Annotated[
        int,
        typer.Option(
            min=1, help="Bytes in memory, over all partitions, above which partitions that are ahead are paused."
        ),
    ] = 256 * 1024 * 1024,
    metrics: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Address of the Prometheus metrics.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print progress and the result as JSON objects on standard error.")
    ] = False,
) -> None:
    """Merge the lanes of a sink into the order of the sequential run, or the lanes of several pipelines by event
    time. Ends at the current end of all lanes, or continues with --follow. Any number of mergers may read the same
    lanes. With --to, a restarted merger continues at the end of its output. Lanes that do not belong together are
    refused.
    """
    from procession.sdk.lane_merge import LaneMerge, MergeOptions
    from procession.sdk.lane_shards import KeyShard
    from procession.sdk.merged_records import lanes_at

    if by_event_time:
        refused = {"--timeout-s": timeout_s, "--shard": shard, "--lanes": lanes, "--instance": instance}
        if named := next((name for name, value in refused.items() if value is not None), None):
            raise UsageError(f"--by-event-time cannot be used with {named}.", next_step="Leave one of them out.")
    covers = None if lanes is None else _lane_numbers(lanes)
    if to is not None and to.startswith("lanes:") and by_event_time:
        raise UsageError(
            "Records that are merged by event time have no order key, so they cannot be a lane.",
            next_step="Write to file:DIR or kafka://HOST:PORT/TOPIC.",
        )
    if to is not None and to.startswith("lanes:") and timeout_s is not None:
        raise UsageError("A lane must be sorted, so --timeout-s cannot write one.", next_step="Leave out --timeout-s.")
    if late == "dead-letter" and (to is None or timeout_s is None):
        raise UsageError("--late dead-letter needs --to and --timeout-s.", next_step="Add both, or leave it out.")
    options = MergeOptions(
        is_following=follow,
        timeout_s=timeout_s,
        is_verifying=verify,
        shard=None if shard is None else KeyShard.parse(shard),
        covers=covers,
    )
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    # By event time, the output has the framing of the first pipeline.
    open_lanes = lanes_at(places[:1] if by_event_time else places, instance, buffer_bytes)
    with ExitStack() as stack:
        output: MergeOutput | None = None
        if to is not None:
            from procession.connectors.merge_target import open_target

            found = framing or _framing(open_lanes)
            lane = min(covers) if covers else 0
            output = open_target(to, state, framing=found, has_letters=late == "dead-letter", lane=lane)
            stack.callback(output.close)
        before = output.position if output else None
        merging: LaneMerge | MergedByEventTime
        if by_event_time:
            from procession.sdk.event_time_merge import merged_by_event_time

            merging = merged_by_event_time(
                *places, follow=follow, position=before, verify=verify, buffer_bytes=buffer_bytes, stop=stop
            )
        else:
            merging = LaneMerge(open_lanes, options, before, stop=stop)
        stack.callback(merging.close)
        progress = _ProgressPrinter(merging, as_json=as_json)
        stack.callback(progress.close)
        if metrics is not None:
            stack.callback(_serve_metrics(merging, metrics).close)
        if output is None:
            _print_records(merging, framing)
        elif isinstance(merging, LaneMerge):
            from procession.sdk.merge_output import merge_into

            merge_into(merging, output, transaction_bytes=transaction_bytes)
        else:
            from procession.sdk.event_time_merge import merge_by_time_into

            commits = int((before or {}).get("commits", 0))
            merge_by_time_into(
                merging, output, commits=commits, transaction_bytes=transaction_bytes, is_following=follow
            )
        progress.finish()


def _lane_numbers(text: str) -> frozenset[int]:
    """Parse lane numbers, such as `0-9` or `3`."""
    first, _, last = text.partition("-")
    if not first.isdigit() or not (last or first).isdigit() or int(last or first) < int(first):
        raise UsageError(
            f"{text!r} are not lane numbers.", next_step="Write the first and the last number, such as 0-9."
        )
    return frozenset(range(int(first), int(last or first) + 1))


def _framing(open_lanes: OpenLanes) -> str:
    """Return the framing that the pipeline stored with its lanes; lines if there are no lanes yet."""
    lanes = open_lanes({})
    try:
        known = [lane.identity for lane in lanes if lane.poll() is not None]
        return next((identity.framing for identity in known if identity is not None), "lines")
    finally:
        for lane in lanes:
            lane.close()


def _print_records(merging: LaneMerge | MergedByEventTime, framing: str | None) -> None:
    from procession.sdk.lane_merge import LaneMerge, MergedBatch
    from procession.sdk.merge_output import Lines

    out, lines = sys.stdout.buffer, Lines(framing != "raw")
    if isinstance(merging, LaneMerge):
        for turn in merging.turns():
            for batch in turn:
                out.write(lines.messages(batch).joined)
            out.flush()
        return
    for rows in merging.batches():
        out.write(lines.messages(MergedBatch(0, rows)).joined)
        out.flush()


class _ProgressPrinter:
    """Prints progress to standard error, from a separate thread, because the merger may wait for a lane."""

    def __init__(self, merging: LaneMerge | MergedByEventTime, *, as_json: bool) -> None:
        self._merging = merging
        self._as_json = as_json
        self._begun_s = time.monotonic()
        self._end = threading.Event()
        self._said = ""
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._end.wait(PROGRESS_S):
            self._print("progress")

    def _print(self, event: str) -> None:
        report = self._merging.report
        if self._as_json:
            facts = {"event": event, "elapsed_s": round(time.monotonic() - self._begun_s, 3), **report.as_dict()}
            print(json.dumps(facts), file=sys.stderr, flush=True)
            return
        waiting = report.waiting_for
        text = f"merged {report.records} records of {report.epochs} epochs"
        if waiting:
            text += f"; waiting for {', '.join(waiting[:3])}" + (f" and {len(waiting) - 3} more" * (len(waiting) > 3))
        if passed := sum(report.passed_over.values()):
            names = ", ".join(f"{name} {count}" for name, count in sorted(report.inversions.items()))
            text += f"; passed over a lane {passed} times; out of order: {names or 'none'}"
        if text != self._said or event == "merged":
            print(text, file=sys.stderr, flush=True)
            self._said = text

    def finish(self) -> None:
        self.close()
        self._print("merged")

    def close(self) -> None:
        self._end.set()
        self._thread.join()


def _serve_metrics(merging: LaneMerge | MergedByEventTime, at: str) -> MetricsServer:
    from procession.address import listening_socket, parse_address
    from procession.metrics import Metric, MetricsServer

    def ask() -> Iterator[Metric]:
        report = merging.report
        yield Metric("procession_merge_records", "counter", "Records emitted.", (), [((), report.records)])
        yield Metric("procession_merge_epochs", "counter", "Epochs emitted.", (), [((), report.epochs)])
        waiting = [((name,), 1.0) for name in report.waiting_for]
        yield Metric("procession_merge_waiting", "gauge", "1 while the merger waits for the lane.", ("lane",), waiting)
        for name, counter, text in (
            ("waited_seconds", report.waited_s, "Total time of waiting for the lane."),
            ("passed_over", report.passed_over, "How often the lane was skipped."),
            ("inversions", report.inversions, "Records of the lane that arrived after a greater key."),
        ):
            values = [((lane,), float(count)) for lane, count in list(counter.items())]
            yield Metric(f"procession_merge_{name}", "counter", text, ("lane",), values)

    return MetricsServer(listening_socket(parse_address(at)), ask)
