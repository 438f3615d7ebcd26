"""The emitter: reads the runs of an epoch in the order in which a sink receives them.

The one rule: runs that carry an order key are merged by it; runs that carry none are in order one after the other, by
chain and partition, or nobody asked for an order. Before it `storage/run_store`, with what the last chains made; after
it `commit/sink_link`, which sends it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from procession.merge.kway import merged
from procession.storage.run_store import Manifest, Run, RunStore


def runs_for(sink: str, bucket: int | None, manifests: Sequence[Manifest]) -> list[Run]:
    """The runs of a sink; of one of its connections, those in its bucket."""
    found = (run for manifest in manifests for run in manifest.runs if run.to == sink)
    return [run for run in found if bucket is None or run.bucket == bucket]


def payloads(store: RunStore, epoch: int, runs: Sequence[Run]) -> Iterator[pa.Array]:
    """What these runs of one output hold, in its order, piece by piece."""
    paths = [store.read(epoch, run) for run in runs]
    if runs and all(run.keys for run in runs):
        batches = merged(paths, ["payload"])
    else:
        batches = (batch for path in paths for batch in path)
    for batch in batches:
        yield batch.column("payload")
