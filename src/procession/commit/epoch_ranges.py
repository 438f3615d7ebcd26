"""The ranges of an epoch: where it begins and ends in the logs; and the states that it leaves.

Invariant: an epoch starts exactly where the last one ended, in every log; anything else is a StorageError. Pure. The
ranges come from the manifests of the epoch's tasks; `commit/performer` uses them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from procession.errors import StorageError
from procession.storage.run_store import Manifest
from procession.storage.state_version import StateVersion


def check_joined(epoch: int, manifests: Sequence[Manifest], end: int) -> None:
    """Each range begins where the one before ends, and the first where the last epoch ended."""
    for manifest in manifests:
        if manifest.first != end:
            raise StorageError(f"epoch {epoch} begins or goes on at record {manifest.first}, not at {end}")
        end = manifest.last


def joined(epoch: int, manifests: Sequence[Manifest], starts: Mapping[str, int]) -> dict[str, int]:
    """Where the epoch ends in the log of each gateway; its pieces go on where the last epoch ended, without a gap."""
    ends = dict(starts)
    for piece in (piece for manifest in manifests for piece in manifest.pieces):
        if piece.first != ends.get(piece.gateway, 0):
            told = f"epoch {epoch} begins or goes on at record {piece.first} of {piece.gateway}"
            raise StorageError(f"{told}, not at {ends.get(piece.gateway, 0)}")
        ends[piece.gateway] = piece.last
    return ends


def versions_after(
    keyed: Mapping[int, tuple[str, StateVersion]], manifests: Sequence[Manifest]
) -> dict[str, StateVersion]:
    """What the tasks of each keyed stage have left, by partition; `keyed` has the chains that begin with such a stage,
    with its name and a version without files."""
    return {
        name: replace(
            version, tasks=tuple(one.states for one in manifests if one.stage == chain and one.states is not None)
        )
        for chain, (name, version) in keyed.items()
    }
