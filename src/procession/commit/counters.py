"""Counters: how many records came in, went out and were late, over the life of a checkpoint.

Invariant: an epoch's counters are those of the previous epoch plus what its tasks counted. They are committed with the
epoch, so nothing is counted twice. The round record stores them. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from procession.storage.run_store import Manifest, Run

LATE_AT = "late at "
"""Before the name of a stage: the records that came behind its watermark."""


def counted(
    before: Mapping[str, int],
    manifests: Sequence[Manifest],
    runs: Mapping[str, Sequence[Run]],
    stages: Mapping[int, tuple[str, Any]],
) -> dict[str, int]:
    """The counters with an epoch's manifests and the runs for its sinks; `stages` are those that chains begin with.
    Where no record was ever late, none says so."""
    found = Counter(before)
    found["records_in"] += sum(manifest.records for manifest in manifests)
    found["records_out"] += sum(run.count for own in runs.values() for run in own)
    for manifest in manifests:
        if manifest.late:
            found["late" if manifest.stage == 0 else LATE_AT + stages[manifest.stage][0]] += manifest.late
    return dict(found)
