#!/usr/bin/env python
"""Writes the parts of docs/ that are made from the code: lifecycles, commands, settings, limits.

The one rule: between `<!-- made: NAME -->` and `<!-- end -->` stands what the code says, and nobody's hand. A test runs
`outdated()`; `python scripts/docs.py` brings the pages up to date.
"""

from __future__ import annotations

import enum
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from typer.main import get_command

from procession.cli.connector_group import ConnectorCommand
from procession.cli.main import app
from procession.deployment.settings import Settings
from procession.planner import guarantee, strategies
from procession.sos import sos_lifecycle
from procession.spark import jvm_launch, session
from procession.wire import draft_lifecycle, lifecycle, two_phase_commit
from procession.wire import stream_lifecycle as stream

DOCS = Path(__file__).resolve().parent.parent / "docs"
PART = re.compile(r"(<!-- made: (?P<name>[a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
NOT_MEASURED = "<!-- measured -->"

FRAME_NAMES = {
    "NotifyAck": "NOTIFY_ACK",
    "Eos": "EOS_MESSAGE",
    "DraftOk": "OK",
    "DraftMessage": "MESSAGE",
    "AckCounts": "ACK_COUNTS",
    "SosError": "ERROR",
    "SosHello": "HELLO",
    "SosWelcome": "WELCOME",
    "FormatVolume": "FORMAT",
    "DescribeVolume": "DESCRIBE",
    "ListVolumes": "LIST",
    "ClaimVolume": "CLAIM",
    "CreateObject": "CREATE",
    "AppendChunk": "APPEND",
    "ReadChunks": "READ",
    "RetainFrom": "RETAIN",
    "VolumeReply": "VOLUME",
    "ProgressReply": "PROGRESS",
    "ChunksReply": "CHUNKS",
    "NamesReply": "NAMES",
    "RefusedReply": "REFUSED",
}

# Every buffer, queue and table that a peer, a file or a user could make grow, and its limit.
LIMITS: tuple[tuple[str, str, str], ...] = (
    ("storage.host_runs", "TOGETHER_BYTES_MAX", "small runs of one machine that a task fetches with one request"),
    ("storage.run_store", "FETCHED_BYTES_MAX", "all small runs that a task has fetched into memory"),
    ("wire.frame_codec", "FRAME_BYTES_MAX", "one frame on the wire, and so one record"),
    ("wire.connection", "HELLO_BYTES_MAX", "bytes that a peer may send before its HELLO is complete"),
    ("gateway.gateway_limits", "Limits.credits_max", "credits of a producer, in frames (a setting)"),
    (
        "gateway.gateway_limits",
        "Limits.backlog_max",
        "uncommitted records that an adaptive window allows (a setting)",
    ),
    ("gateway.gateway_limits", "Limits.lag_bytes_max", "bytes in the ingress log that are not committed (a setting)"),
    ("gateway.gateway_limits", "Limits.sessions_max", "connections of producers (a setting)"),
    (
        "gateway.gateway_options",
        "GatewayConfig.lingering_max",
        "refused connections that stay open until the peer has read the reason",
    ),
    ("gateway.gateway_limits", "Limits.streams_max", "streams that the gateway knows (a setting)"),
    ("gateway.gateway_limits", "Limits.streams_retired_max", "retired streams that are remembered (a setting)"),
    (
        "gateway.retired_streams",
        "DEAD_ENTRIES_MAX",
        "deleted entries in the file of retired streams, in addition to the number of valid entries",
    ),
    (
        "gateway.gateway_limits",
        "Limits.reserve_bytes_max",
        "bytes above `lag_bytes_max` for the stream that the merge waits for, in event-time order (a setting)",
    ),
    ("gateway.event_time_log", "OBSERVE_RECORDS_MAX", "records that are sorted by event time in one step"),
    ("gateway.event_time_log", "ENTRY_BYTES_MAX", "bytes of one entry of the ordered log"),
    (
        "gateway.gateway_limits",
        "Limits.held_bytes_max",
        "bytes that a session of the draft may send without a stable point of reference (a setting)",
    ),
    ("gateway.gateway_limits", "Limits.listed_bytes_max", "known streams in an OK of the draft"),
    ("gateway.draft_groups", "MARKS_MAX", "positions of a stream that are kept for the counts of ACK_COUNTS"),
    ("wire.draft_messages", "DEBUG_COUNT_MAX", "repetitions that a DEBUG frame may request"),
    ("gateway.gateway_options", "GatewayConfig.append_bytes_max", "received records that wait to be appended"),
    (
        "gateway.gateway_options",
        "GatewayConfig.write_bytes_max",
        "bytes that a producer may leave unread before its session is ended",
    ),
    ("gateway.gateway_options", "GatewayConfig.request_bytes_max", "one request at the control port"),
    ("gateway.gateway_options", "GatewayConfig.controls_max", "connections to the control port"),
    ("gateway.gateway_options", "GatewayConfig.metrics_streams_max", "streams with metrics of their own (a setting)"),
    ("gateway.gateway_metrics", "STREAMS_PAGE_MAX", "streams in one reply of the control port"),
    ("gateway.stream_counters", "STEPS_MAX", "intervals in which a stream's lag is counted"),
    ("gateway.gateway_options", "GatewayConfig.segment_bytes_max", "one file of the ingress log"),
    ("operators.chain", "CHAIN_RECORDS_MAX", "records that a task holds as Python objects"),
    ("api.pipeline", "PARALLELISM_MAX", "tasks of a stage"),
    ("planner.rules", "RUNS_MAX", "runs of one exchange in an epoch, if it is not wide"),
    ("storage.inline_runs", "CELL_BYTES_MAX", 'bytes of payload in a cell, with exchange="spark"'),
    ("storage.inline_runs", "TASK_BYTES_MAX", 'bytes of cells that a task or the driver holds, with exchange="spark"'),
    ("api.stage", "CONNECTIONS_MAX", "connections of a sink, and so its outputs"),
    ("api.stage", "CONCURRENCY_MAX", "concurrent calls of an asynchronous function in one task"),
    ("commit.sink_link", "WRITE_BYTES_MAX", "output that waits for a slow sink, per sink"),
    ("commit.round_record", "ROUNDS_KEPT", "round records that are kept"),
    ("commit.coordinator", "REFUSALS_MAX", "consecutive refusals of an epoch before the pipeline stops"),
    ("sdk.batching", "GatherLimits.records_max", "records that a source gathers, per stream (twice at most)"),
    ("sdk.batching", "GatherLimits.bytes_max", "bytes that a source gathers, per stream (twice at most)"),
    ("sdk.source_options", "SourceOptions.write_records_max", "records that a source encodes at once"),
    ("sdk.source_options", "SourceOptions.write_bytes_max", "bytes that a source encodes at once, or one record"),
    ("sdk.source_options", "SourceOptions.streams_at_once_max", "streams that a source reads at the same time"),
    (
        "sdk.stream_progress",
        "PIECES_MAX",
        "ranges of a stream that a source counts separately until they are acknowledged",
    ),
    ("sdk.sink_server", "SESSIONS_MAX", "connections to a sink"),
    (
        "sdk.sink_server",
        "LINGERING_MAX",
        "refused connections to a sink that stay open until the peer has read the reason",
    ),
    ("tls", "HANDSHAKES_MAX", "TLS handshakes at the same time"),
    ("connectors.file_source", "CHUNK_BYTES", "bytes that the file source reads at once"),
    (
        "connectors.file_source",
        "FOLLOWED_CHUNK_BYTES",
        "bytes that the file source reads at once of each file that it follows",
    ),
    ("connectors.file_source", "FOLLOWED_MAX", "files that the file source follows"),
    (
        "sdk.push_source",
        "BYTES_MAX",
        "uncommitted bytes that a sender, or a source without a spool, keeps in memory (an option)",
    ),
    ("connectors.pushed_sources", "SPOOL_BYTES_MAX", "uncommitted bytes in a spool (an option)"),
    ("connectors.stdin_source", "READ_BYTES_MAX", "bytes that are read at once from standard input"),
    ("connectors.tcp_source", "CONNECTIONS_MAX", "connections of the source of lines over TCP (an option)"),
    ("connectors.tcp_source", "LINE_BYTES_MAX", "one line that is received over TCP (an option)"),
    ("connectors.udp_source", "BYTES_MAX", "datagrams that wait to be sent; more are dropped and counted (an option)"),
    ("connectors.generator_source", "KEYS_MAX", "different keys of the generator"),
    ("connectors.framing", "RECORD_BYTES_MAX", "one line or frame of a file, a pipe or a socket"),
    ("storage.journal", "ENTRY_BYTES_MAX", "one entry of a transaction log"),
    ("sdk.transaction_log", "ENTRIES_MAX", "entries of a transaction log before it is compacted"),
    ("sdk.transaction_log", "TRANSACTIONS_KEPT", "latest commits that a compacted transaction log keeps"),
    ("sdk.sink_server", "INSTANCES_MAX", "instances that a sink serves"),
    ("connectors.stdout_sink", "PIECE_BYTES_MAX", "output of the stdout sink that may be in doubt after a crash"),
    ("supervisor.part_log", "LOG_BYTES_MAX", "the log file of one process (and one older file of the same size)"),
    ("driver.epoch_log", "LOG_BYTES_MAX", "`epochs.jsonl` (and one older file of the same size)"),
    ("sos.sos_frames", "CHUNK_BYTES_MAX", "one append to an object service"),
    ("sos.sos_frames", "HELLO_BYTES_MAX", "bytes that a peer may send to an object service before it is authenticated"),
    ("sos.sos_server", "CONNECTIONS_MAX", "connections to an object service"),
    ("sos.sos_server", "CREDITS", "requests of one connection without a reply, at an object service"),
    ("sos.sos_server", "BATCH_BYTES_MAX", "appended bytes that wait for the disk of an object service"),
    ("sos.sos_store", "VOLUMES_MAX", "volumes of an object service"),
    ("sos.volume_rules", "OBJECTS_MAX", "objects of a volume"),
    ("sos.volume_rules", "OBJECT_BYTES_MAX", "one object"),
    ("sos.volume_rules", "OBJECT_CHUNKS_MAX", "appends to one object"),
    ("sos.quorum_copies", "LAG_BYTES_MAX", "unacknowledged bytes to a replica that is slower than the others"),
    ("sos.quorum_copies", "COPY_BYTES", "bytes that are read at once to fill a replica that lags"),
    (
        "gateway.gateway_directory",
        "UNREPLICATED_BYTES_MAX",
        "changes that wait for replicas before producers are paused",
    ),
    ("sos.file_journal", "PENDING_BYTES_MAX", "changes of files that wait for the write quorum"),
    ("sos.file_operations", "WRITE_BYTES_MAX", "data of one record of a journal on replicas"),
    ("sos.file_operations", "NAME_BYTES_MAX", "a name in a journal on replicas"),
    (
        "sos.replicated_files",
        "SNAPSHOT_BYTES_MIN",
        "minimum size of a journal on replicas before it is replaced by a snapshot",
    ),
    ("sos.directory_restore", "OPEN_FILES_MAX", "files that a restore has open"),
    ("sos.replica_marker", "FENCES_MAX", "fences that a replicated directory remembers"),
    ("sos.replicated_volume", "PENDING_BYTES_MAX", "bytes that wait for the write quorum"),
    ("sos.volume_rules", "MEMBERS_MAX", "copies of a volume"),
    ("jobs.pipeline_run", "GIVEN_BYTES_MAX", "records that are given to `Pipeline.run` as values"),
)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def frame_name(kind: type) -> str:
    return FRAME_NAMES.get(kind.__name__, kind.__name__.upper())


def connection(moves: Mapping[Any, Mapping[Any, Mapping[Any, Any]]]) -> str:
    """One row a state and side: what may be sent, and where it leads if not to the same state; then a diagram."""
    rows = []
    arrows = ""
    for state, sides in moves.items():
        for side, steps in sides.items():
            listed = [_step(frame_name(kind), state, after) for kind, after in steps.items()]
            rows.append([f"`{state.name}`", side.value, ", ".join(listed) or "nothing"])
            for after in dict.fromkeys(steps.values()):
                frames = ", ".join(frame_name(kind) for kind, following in steps.items() if following is after)
                arrows += f"    {state.name} --> {after.name}: {side.value} sends {frames}\n"
    diagram = _diagram(next(iter(moves)), arrows)
    return f"{table(['state', 'sent by the', 'may be sent'], rows)}\n{diagram}"


def _diagram(start: enum.Enum, arrows: str) -> str:
    return f"```mermaid\nstateDiagram-v2\n    [*] --> {start.name}\n{arrows}```\n"


def _step(name: str, before: enum.Enum, after: enum.Enum) -> str:
    return name if after is before else f"{name} → `{after.name}`"


Moves = Mapping[Any, Mapping[Any, Any]]


def machine(moves: Moves, start: enum.Enum) -> str:
    """A table of state by step, then the same as a diagram."""
    rows = [
        [
            f"`{state.name}`",
            ", ".join(_step(str(step.value), state, after) for step, after in steps.items()) or "nothing",
        ]
        for state, steps in moves.items()
    ]
    arrows = ""
    for state, steps in moves.items():
        for after in dict.fromkeys(steps.values()):
            listed = ", ".join(str(step.value) for step, following in steps.items() if following is after)
            arrows += f"    {state.name} --> {after.name}: {listed}\n"
    return f"{table(['state', 'what may happen'], rows)}\n{_diagram(start, arrows)}"


def commands() -> str:
    return "\n".join(_command(words, command) for words, command in every_command(get_command(app)))


def every_command(group: Any, words: tuple[str, ...] = ("procession",)) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command that does something, with the words that reach it."""
    for name in group.list_commands(None):
        command = group.get_command(None, name)
        if command.hidden:
            continue
        if hasattr(command, "commands"):
            yield from every_command(command, (*words, name))
        else:
            yield (*words, name), command.load() if isinstance(command, ConnectorCommand) else command


def _command(words: Sequence[str], command: Any) -> str:
    arguments = [parameter for parameter in command.params if not parameter.opts[0].startswith("--")]
    options = [parameter for parameter in command.params if parameter.opts[0].startswith("--")]
    usage = " ".join([*words, *(str(argument.metavar) for argument in arguments), *(["[OPTIONS]"] if options else [])])
    rows = [[f"`{argument.metavar}`", _default(argument), str(argument.help)] for argument in arguments]
    rows += [[f"`{option.opts[0]}`", _default(option), str(option.help)] for option in options]
    listed = table(["option", "default", "what it is"], rows) if rows else "It has no options.\n"
    return f"### `{usage}`\n\n{command.help}\n\n{listed}"


def _default(option: Any) -> str:
    if option.required:
        return "required"
    shown = option.show_default if isinstance(option.show_default, str) else option.default
    return "off" if shown is False else "none" if shown is None else f"`{shown}`"


def settings() -> str:
    rows = [
        [f"`{name}`", "none" if field.default is None else f"`{field.default}`", str(field.description)]
        for name, field in Settings.model_fields.items()
    ]
    return table(["setting", "default", "what it is"], rows)


def limits() -> str:
    return table(
        ["limit", "value", "what it limits"],
        ([f"`{room}.{name}`", _value(room, name), what] for room, name, what in LIMITS),
    )


def _value(room: str, name: str) -> str:
    module, (owner, _, field) = importlib.import_module(f"procession.{room}"), name.partition(".")
    # The defaults of a slotted dataclass are known only to its fields.
    value = getattr(module, owner) if not field else getattr(module, owner).__dataclass_fields__[field].default
    if name.upper().find("BYTES") < 0:
        return f"{value:,}"
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if value % size == 0:
            return f"{value // size} {unit}"
    return f"{value:,} bytes"


def spark_settings(page: str) -> str:
    """The settings with their reasons; what was measured is written by hand into the last column, and kept."""
    kept = {name: effect.strip() for name, effect in re.findall(r"^\| `([^`]+)` \|.*\|([^|]*)\|$", page, re.MULTILINE)}
    rows = [
        (name, f"`{value.rpartition('.')[2] if value.startswith('org.') else value}`", why)
        for name, value, why in (*session.SETTINGS, *session.MANIFEST_SETTINGS, *session.CLUSTER_SETTINGS)
    ]
    # Java's options have their reasons in comments.
    reasons = dict(re.findall(r'^    "(-X[^"]+)",(?:  # (.*))?$', inspect.getsource(jvm_launch), re.MULTILINE))
    rows += [(option, "", reasons[option]) for option in jvm_launch.JAVA_OPTIONS]
    return table(
        ["setting", "value", "why", "measured"],
        ([f"`{name}`", value, why, kept.get(name, NOT_MEASURED)] for name, value, why in rows),
    )


PARTS: dict[str, Callable[[str], str]] = {
    "connection-source": lambda _: connection(lifecycle.SOURCE),
    "connection-sink": lambda _: connection(lifecycle.SINK),
    "connection-draft": lambda _: connection(draft_lifecycle.DRAFT_CONNECTION),
    "connection-sos": lambda _: connection(sos_lifecycle.SOS),
    "stream": lambda _: machine(stream.STREAM, stream.StreamState.START),
    "stream-draft": lambda _: machine(draft_lifecycle.DRAFT_STREAM, stream.StreamState.START),
    "participant": lambda _: machine(two_phase_commit.ROUND, two_phase_commit.ParticipantState.OPEN),
    "commands": lambda _: commands(),
    "settings": lambda _: settings(),
    "limits": lambda _: limits(),
    "guarantees": lambda _: table(guarantee.table()[0], guarantee.table()[1:]),
    "order-strategies": lambda _: table(strategies.strategy_rows()[0], strategies.strategy_rows()[1:]),
    "order-stages": lambda _: table(strategies.stage_rows()[0], strategies.stage_rows()[1:]),
    "spark-settings": spark_settings,
}


def made(page: str) -> str:
    """The page with every made part as the code has it now."""
    return PART.sub(lambda found: f"{found[1]}{PARTS[found['name']](found[0])}{found[3]}", page)


def outdated() -> list[Path]:
    """The pages whose made parts are not what the code says."""
    return [path for path in sorted(DOCS.rglob("*.md")) if made(path.read_text()) != path.read_text()]


def main() -> None:
    for path in outdated():
        path.write_text(made(path.read_text()))
        print(f"wrote {path.relative_to(DOCS.parent)}", file=sys.stderr)


if __name__ == "__main__":
    main()
