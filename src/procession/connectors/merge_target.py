"""Opens the output of a merger, `procession merge --to`, and the position that is stored with the output.

Invariant: an output is a sink of Procession that runs inside the merger, so its records and the merger's position are
committed together (`sdk/merge_output`). Upstream: `cli/merge_command`.
"""

from __future__ import annotations

import os
from pathlib import Path

from procession.connectors.file_sink import FileOutput
from procession.connectors.lane_sink import lane_opener
from procession.errors import ConfigError, UsageError
from procession.planner.connector_registry import check_installed, sink_of
from procession.planner.connector_url import ConnectorUrl
from procession.sdk.merge_output import Blocks, LaneBlocks, Lines, MergedForm, MergeOutput
from procession.sdk.output import OpenOutput, Output

INSTANCE = "merged-0"
LETTERS = "late-0"
"""The names of the outputs in the directory of a merger."""


def open_target(
    target: str, state: Path | None, *, framing: str = "lines", has_letters: bool = False, lane: int = 0
) -> MergeOutput:
    """Open the output of a merger.

    Args:
        target: `file:DIR`, `lanes:DIR` or `kafka://HOST:PORT/TOPIC`.
        state: Directory of the position and of the output that is not published yet. None: DIR.
        framing: `lines` or `raw`, for a file.
        has_letters: Late records go to DIR/late-0.data instead.
        lane: Number of the lane for `lanes:DIR`.
    """
    connector, url = sink_of(target, "the merger")
    form: MergedForm
    instance = INSTANCE
    match connector.name:
        case "file":
            directory, form = Path(url.place), Lines(framing == "lines")
            open_output: OpenOutput = _file_opener(directory)
        case "lanes":
            directory, form, instance = Path(url.place), LaneBlocks(), f"merged-{lane}"
            open_output = lane_opener(directory)
        case "kafka":
            if state is None:
                raise UsageError(
                    "A merger that writes to Kafka needs a directory for its position.", next_step="Add --state DIR."
                )
            check_installed(connector, "the merger")
            directory, form = state, Blocks()
            open_output = _kafka_opener(url, directory)
        case _:
            raise ConfigError(
                f"a merger cannot write to {connector.form}",
                next_step="write file:DIR, kafka://HOST:PORT/TOPIC or lanes:DIR",
            )
    letters = (LETTERS, _file_opener(directory)) if has_letters else None
    return MergeOutput(directory, instance, open_output, form, letters)


def _file_opener(directory: Path) -> OpenOutput:
    return lambda instance: FileOutput(directory / f"{instance}.data")


def _kafka_opener(url: ConnectorUrl, directory: Path) -> OpenOutput:
    from procession.connectors.kafka_client import KafkaClients, KafkaUrl, read_client_config
    from procession.connectors.kafka_sink import KafkaOutput
    from procession.connectors.kafka_topic import KafkaSinkOptions
    from procession.sdk.record_blocks import RecordForm

    def opened(instance: str) -> Output:
        config = url.options.get("client_config") or os.environ.get("PROCESSION_KAFKA_CONFIG")
        clients = KafkaClients(
            KafkaUrl.parse(url.text.partition("?")[0]), read_client_config(Path(config) if config else None)
        )
        partition = url.count("partition", 0) or 0  # one partition, because several would lose the order
        return KafkaOutput(directory / instance, clients, KafkaSinkOptions(RecordForm.BLOCKS, partition=partition))

    return opened
