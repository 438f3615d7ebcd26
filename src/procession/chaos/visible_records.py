"""Reads outputs in other systems as users of the topic, table or lake see them, record by record.

Invariant: a reader uses the system's own client and sees only what is committed there: `read_committed` in Kafka, rows
in PostgreSQL, files that are part of the table in a lake. A reader returns each new record once, in the promised
order: of a partition, by offset; of a table, by position. `chaos/system_outputs` compares them with the input.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from procession.chaos.chaos_records import key_of

if TYPE_CHECKING:
    import psycopg
    from confluent_kafka import Consumer, Message
    from deltalake import DeltaTable

WAIT_S = 0.1
READ_MESSAGES_MAX = 10_000
READ_ROWS_MAX = 20_000
ANSWER_TIMEOUT_S = 5
END_TIMEOUT_S = 60.0


class SeenRecords(NamedTuple):
    """New visible records, and the highest position of the sink's output among them; -1 if unknown."""

    lines: list[bytes]
    position: int = -1


class WrongRecord(Exception):
    """The system shows a record that no sink may write."""


class VisibleRecords(Protocol):
    """Reads the records of one output in another system. Only one thread may use a reader."""

    def new(self) -> SeenRecords:
        """Return the records that have become visible since the last call. Raises any error while the system is
        away."""

    def all(self) -> Iterator[list[bytes]]:
        """Read all visible records again from the beginning."""

    def close(self) -> None: ...


class TopicRecords:
    """Reads a Kafka topic with `read_committed`. Tokens in the control topic have the published end of the output."""

    def __init__(self, brokers: str, topic: str, partitions: int, control: str, tokens: int, instance: str) -> None:
        self._brokers = brokers
        self._topic, self._partitions = topic, partitions
        self._control, self._tokens = control, tokens
        self._instance = instance
        self._consumer: Consumer | None = None
        self._position = -1

    def new(self) -> SeenRecords:
        if self._consumer is None:
            self._consumer = self._opened(is_with_tokens=True)
        lines = [line for message in self._consumer.consume(READ_MESSAGES_MAX, WAIT_S) for line in self._taken(message)]
        return SeenRecords(lines, self._position)

    def _taken(self, message: Message) -> Iterator[bytes]:
        if message.error() is not None:
            return
        key, value = message.key() or b"", message.value() or b""
        if message.topic() == self._control:
            if bytes(key).startswith(f"{self._instance}-".encode()):
                self._position = max(self._position, int(json.loads(value)["end"]) - 1)
            return
        if key != key_of(bytes(value)):
            where = f"{self._topic}[{message.partition()}] offset {message.offset()}"
            raise WrongRecord(f"the message at {where} has the key {key!r}: {value!r}")
        yield bytes(value)

    def all(self) -> Iterator[list[bytes]]:
        from confluent_kafka import KafkaError, KafkaException

        consumer = self._opened(is_with_tokens=False)
        open_partitions = set(range(self._partitions))
        deadline = time.monotonic() + END_TIMEOUT_S
        try:
            while open_partitions:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{self._topic} cannot be read to its end")
                messages = consumer.consume(READ_MESSAGES_MAX, WAIT_S)
                for message in messages:
                    error = message.error()
                    if error is not None and error.code() == KafkaError._PARTITION_EOF:
                        open_partitions.discard(message.partition() or 0)
                    elif error is not None:
                        raise KafkaException(error)
                yield [line for message in messages for line in self._taken(message)]
        finally:
            consumer.close()

    def _opened(self, *, is_with_tokens: bool) -> Consumer:
        from confluent_kafka import Consumer, TopicPartition

        settings: dict[str, Any] = {
            "bootstrap.servers": self._brokers,
            "group.id": "chaos-reader",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": not is_with_tokens,
            "auto.offset.reset": "error",
            "reconnect.backoff.max.ms": 500,
            "fetch.wait.max.ms": 50,
            "log_level": 0,
        }
        consumer = Consumer(settings)
        places = [TopicPartition(self._topic, number, 0) for number in range(self._partitions)]
        tokens = [TopicPartition(self._control, number, 0) for number in range(self._tokens)]
        consumer.assign([*places, *(tokens if is_with_tokens else ())])
        return consumer

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()


class TableRows:
    """Reads a PostgreSQL table with the columns `position` and `payload`, by position."""

    def __init__(self, url: str, table: str) -> None:
        self._url = url
        self._table = table
        self._session: psycopg.Connection[Any] | None = None
        self._position = -1

    def new(self) -> SeenRecords:
        rows = self._rows(self._position)
        if rows:
            self._position = rows[-1][0]
        return SeenRecords([payload for _, payload in rows], self._position)

    def all(self) -> Iterator[list[bytes]]:
        position = -1
        while rows := self._rows(position):
            position = rows[-1][0]
            yield [payload for _, payload in rows]
        with self._opened().cursor() as cursor:
            count = cursor.execute(f"SELECT count(*) - count(DISTINCT position) FROM {self._table}").fetchone()
        if count != (0,):
            raise WrongRecord(f"the table {self._table} has several rows of the same position")

    def _rows(self, after: int) -> Sequence[tuple[int, bytes]]:
        found = self._opened().execute(
            f"SELECT position, payload FROM {self._table} WHERE position > %s ORDER BY position LIMIT {READ_ROWS_MAX}",
            (after,),
        )
        return found.fetchall()

    def _opened(self) -> psycopg.Connection[Any]:
        import psycopg

        if self._session is None or self._session.closed or self._session.broken:
            self._session = psycopg.connect(self._url, autocommit=True, connect_timeout=ANSWER_TIMEOUT_S)
        return self._session

    def close(self) -> None:
        if self._session is not None:
            self._session.close()


Files = Callable[[], Sequence[str]]


class LakeRows:
    """Reads a table of Parquet files with the columns `position` and `payload`. `files` lists the table's files. New
    records are in new files. Files do not disappear, because these tables are not compacted."""

    def __init__(self, files: Files, filesystem: fs.FileSystem, whole: Callable[[], pa.Table]) -> None:
        self._files = files
        self._filesystem = filesystem
        self._whole = whole
        self._seen: set[str] = set()
        self._position = -1

    def new(self) -> SeenRecords:
        found = set(self._files())
        if gone := self._seen - found:
            raise WrongRecord(f"files that were visible are gone: {', '.join(sorted(gone)[:3])}")
        tables = [pq.read_table(path, filesystem=self._filesystem) for path in sorted(found - self._seen)]
        self._seen = found
        if not tables:
            return SeenRecords([], self._position)
        positions, lines = _in_order(pa.concat_tables(tables))
        self._position = max(self._position, positions[-1]) if positions else self._position
        return SeenRecords(lines, self._position)

    def all(self) -> Iterator[list[bytes]]:
        """Read all records with the usual reader of the format."""
        positions, lines = _in_order(self._whole())
        if len(set(positions)) < len(positions):
            raise WrongRecord("the table has several rows of the same position")
        yield lines

    def close(self) -> None:
        pass


def _in_order(table: pa.Table) -> tuple[list[int], list[bytes]]:
    ordered = table.select(["position", "payload"]).sort_by("position")
    return ordered.column("position").to_pylist(), ordered.column("payload").to_pylist()


def parquet_rows(filesystem: fs.FileSystem, path: str) -> LakeRows:
    """Return a reader of a directory of Parquet files. Like other readers it ignores names that begin with a dot or
    an underscore."""

    def files() -> list[str]:
        found = filesystem.get_file_info(fs.FileSelector(path, allow_not_found=True))
        return [file.path for file in found if file.is_file and not file.base_name.startswith((".", "_"))]

    def whole() -> pa.Table:
        return pa.concat_tables([pq.read_table(file, filesystem=filesystem) for file in files()])

    return LakeRows(files, filesystem, whole)


def delta_rows(filesystem: fs.FileSystem, url: str, options: Mapping[str, str]) -> LakeRows:
    def table() -> DeltaTable:
        from deltalake import DeltaTable

        return DeltaTable(url, storage_options=dict(options) or None)

    def files() -> list[str]:
        return [uri.partition("://")[2] or uri for uri in table().file_uris()]

    return LakeRows(files, filesystem, lambda: table().to_pyarrow_table())


def iceberg_rows(warehouse: Path, name: str) -> LakeRows:
    def table() -> Any:
        from pyiceberg.catalog import load_catalog

        return load_catalog("procession", type="sql", uri=f"sqlite:///{warehouse / 'catalog.db'}").load_table(name)

    def files() -> list[str]:
        return [task.file.file_path.removeprefix("file://") for task in table().scan().plan_files()]

    return LakeRows(files, fs.LocalFileSystem(), lambda: table().scan().to_arrow())
