"""The emitter: the runs of an epoch, drawn in the order in which a sink is to have them.

The one rule: runs that carry an order key are merged by it; runs that carry none are in order one after the other, by
chain and partition, or nobody asked for an order. Before it `storage/runs`, with what the last chains made; after it
`commit/link`, which sends it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from procession.merge.merger import merged
from procession.storage.runs import Manifest, RunStore


def payloads(store: RunStore, epoch: int, sink: str, manifests: Sequence[Manifest]) -> Iterator[pa.Array]:
    """What this sink gets of this epoch, piece by piece."""
    runs = [run for manifest in manifests for run in manifest.runs if run.to == sink]
    paths = [store.read(epoch, run) for run in runs]
    if runs and all(run.keys for run in runs):
        batches = merged(paths, ["payload"])
    else:
        batches = (batch for path in paths for batch in path)
    for batch in batches:
        yield batch.column("payload")
