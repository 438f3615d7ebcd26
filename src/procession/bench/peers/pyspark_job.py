"""The work of `procession bench peers` on plain PySpark: structured streaming from files to files, with a checkpoint.

Its functions take a record each, as those of the peers do. The file sink is exactly once, and keeps no order.
"""

import os
import sys
from collections.abc import Iterator

import pyarrow as pa
from fields import is_wanted, marked, parted
from pyspark.sql import SparkSession


def treated(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        lines = map(str.encode, batch.column(0).to_pylist())
        found = [marked(parted(line)).decode() for line in lines if is_wanted(line)]
        yield pa.record_batch({"value": pa.array(found, pa.string())})


if __name__ == "__main__":
    source, target, work = sys.argv[1:]
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = SparkSession.builder.master(f"local[{os.cpu_count()}]").config("spark.ui.enabled", "false").getOrCreate()
    lines = spark.readStream.text(os.path.dirname(source))
    query = (
        lines.repartition(os.cpu_count() or 1)
        .mapInArrow(treated, "value string")
        .writeStream.format("text")
        .option("path", target)
        .option("checkpointLocation", os.path.join(work, "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()
