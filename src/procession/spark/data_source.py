"""The data source that Spark registers: carries the reader of `spark/log_source` as bytes.

Invariant: this module imports nothing but PySpark. Spark unpickles the source in two short-lived processes that only
need its name and schema. Without the imports of tasks, these processes start in half the time. The reader is
unpickled only in the process where it reads. Used by `spark/query`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, ClassVar

from pyspark import cloudpickle
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit

FORMAT = "procession"
WARM_UP = "procession-warm-up"
COUNT = "count"
"""The option of the warm-up source: its number of partitions."""
SCHEMA = "at int, envelope string, cell binary"
"""A row in Spark: the partition that the envelope goes to next, the envelope, and, with exchange="spark", one chunk of
its run."""


class PackedReader(DataSourceStreamReader):
    """A reader as bytes, which is unpickled when it is first used."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    @classmethod
    def of(cls, reader: DataSourceStreamReader) -> PackedReader:
        return cls(cloudpickle.dumps(reader))  # type: ignore[no-untyped-call]

    def __getstate__(self) -> dict[str, Any]:
        return {"_data": self._data}

    @cached_property
    def _reader(self) -> DataSourceStreamReader:
        from procession.process_start import prepare_imports

        prepare_imports()
        reader: DataSourceStreamReader = cloudpickle.loads(self._data)
        return reader

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  (Spark's name)
        return self._reader.initialOffset()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802  (Spark's name)
        return self._reader.latestOffset(start, limit)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return self._reader.partitions(start, end)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return self._reader.read(partition)


class IngressSource(DataSource):
    """The data source. `bound` creates the class that a session registers, with its reader."""

    packed: ClassVar[PackedReader]

    @classmethod
    def name(cls) -> str:
        return FORMAT

    @classmethod
    def bound(cls, reader: DataSourceStreamReader) -> type[IngressSource]:
        return type("BoundIngressSource", (cls,), {"packed": PackedReader.of(reader)})

    def schema(self) -> str:
        return SCHEMA

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802  (Spark's name)
        return self.packed


class EmptyReader(DataSourceReader):
    """A reader of partitions without rows."""

    def __init__(self, count: int) -> None:
        self._count = count

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(number) for number in range(self._count)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return iter(())


class RowlessSource(DataSource):
    """A source without rows. Reading it starts each kind of Python process that an epoch needs."""

    @classmethod
    def name(cls) -> str:
        return WARM_UP

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: Any) -> DataSourceReader:
        return EmptyReader(int(self.options[COUNT]))
