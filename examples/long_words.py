"""Write the long words of a text in capitals, one per line. Lines that are not UTF-8 become dead letters."""

import pyarrow as pa
import pyarrow.compute as pc

from procession import Pipeline


def capitals(batch: pa.RecordBatch) -> pa.Array:
    return pc.utf8_upper(batch.column("payload").cast(pa.string()))


pipeline = Pipeline("long-words", parallelism=2, dead_letter="file:output")
(
    pipeline.source("lines", codec="text")
    .flat_map(str.split)
    .filter(lambda word: len(word) > 4)
    .map_batches(capitals)
    .sink("words", to="file:output")
)
