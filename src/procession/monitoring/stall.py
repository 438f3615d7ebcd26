"""Finds the part for which a pipeline waits, and the reason. Pure.

Invariant: the result names a part only if a figure shows it; otherwise it is None. A part that an operator has paused
takes precedence over slow parts. Used by `monitoring/pipeline_snapshot`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

PATIENCE_S = 3.0
"""Minimum duration after which a phase is reported."""
PATIENCE_TIMES = 8.0
"""A phase is reported if it takes this many times its median duration."""
BUSY_SHARE = 0.5
"""A part is the bottleneck if it takes at least this share of an epoch, while producers wait."""


class Bottleneck(NamedTuple):
    """The part that delays the pipeline. With `is_stalled`, no epoch is committed; otherwise the part is only the
    slowest one."""

    part: str
    why: str
    is_stalled: bool = True


def bottleneck(snapshot: Mapping[str, Any]) -> Bottleneck | None:
    """Return the part for which the pipeline of this snapshot waits, or None."""
    if snapshot["state"] in ("stopped", "drained"):
        return None
    for name in snapshot["paused"]:
        return Bottleneck(name, "an operator has paused it: producers wait until `procession resume`")
    for path in snapshot["disks_low"]:
        return Bottleneck(str(path).rpartition("/")[2], "its disk is nearly full: producers wait")
    for name in snapshot["away"]:
        ways = f"`procession restore` if it has replicas, else `procession gateways abandon {name}`"
        return Bottleneck(name, f"the first gateway cannot reach it. If its machine is lost for good: {ways}")
    if snapshot["driver"] is None:
        return Bottleneck("driver", "it is starting, or being restarted")
    if not snapshot["driver"].get("is_ready", True):
        return Bottleneck("driver", "it is starting: Spark is not ready yet")
    return (
        _open_epoch(snapshot)
        or _disconnected(snapshot)
        or _waiting(snapshot)
        or _begins(snapshot)
        or _slowest_part(snapshot)
    )


def _begins(snapshot: Mapping[str, Any]) -> Bottleneck | None:
    """Return the driver if it has not committed anything yet while records wait."""
    before = snapshot["committed_by"]
    if not snapshot["lag"] or before is None or before >= snapshot["driver"]["fence"]:
        return None
    return Bottleneck("driver", "it was restarted, and has not committed its first epoch yet")


def _disconnected(snapshot: Mapping[str, Any]) -> Bottleneck | None:
    for name, sink in snapshot["driver"]["sinks"].items():
        if not sink["is_connected"] and snapshot["lag"]:
            return Bottleneck(f"sink {name}", "the driver has no connection to it")
    return None


def _open_epoch(snapshot: Mapping[str, Any]) -> Bottleneck | None:
    opened = snapshot["driver"]["open"]
    if opened is None or opened["seconds"] < _patience(snapshot["phases"], opened["phase"]):
        return None
    since = f"for {opened['seconds']:.0f} s, in epoch {opened['epoch']:,}"
    again = f" (attempt {opened['attempts']})" if opened["attempts"] > 1 else ""
    match opened["phase"]:
        case "phase 1":
            names = ", ".join(opened["sinks"]) or "the sinks"
            away = [name for name in opened["sinks"] if not snapshot["driver"]["sinks"][name]["is_connected"]]
            what = "has no connection to the driver" if away else "has not voted"
            return Bottleneck(f"sink {', '.join(away) or names}", f"{what} {since}{again}")
        case "decision":
            return Bottleneck("Spark", f"has not written its commit {since}")
        case "record":
            return Bottleneck("driver", f"writes the round record {since}: its disk is slow")
        case _:
            stage = slowest_stage(snapshot["stages"])
            return Bottleneck(f"stage {stage}" if stage else "Spark", f"its tasks run {since}")


def _waiting(snapshot: Mapping[str, Any]) -> Bottleneck | None:
    for gateway in snapshot["gateways"]:
        if gateway["waiting_records"] and snapshot["idle_s"] is not None and snapshot["idle_s"] > PATIENCE_S:
            what = f"{gateway['waiting_records']:,} records wait for streams that are silent, in event-time order"
            return Bottleneck(gateway["name"], what)
    return None


def _slowest_part(snapshot: Mapping[str, Any]) -> Bottleneck | None:
    """Return the slowest part, if producers wait."""
    if not any(gateway["is_over"] for gateway in snapshot["gateways"]):
        return None
    shares = {name: figures["share"] for name, figures in snapshot["phases"].items() if name != "wait"}
    name = max(shares, key=lambda phase: shares[phase], default=None)
    if name is None or shares[name] < BUSY_SHARE:
        return None
    part = name.removeprefix("phase 1 ")
    if name == "run":
        stage = slowest_stage(snapshot["stages"])
        part = f"stage {stage}" if stage else "Spark"
    elif name != part:
        part = f"sink {part}"
    return Bottleneck(part, f"takes {shares[name]:.0%} of each epoch, and producers wait", is_stalled=False)


def _patience(phases: Mapping[str, Any], phase: str) -> float:
    medians = [figures["p50_s"] for name, figures in phases.items() if name.startswith(phase)]
    return max(PATIENCE_S, PATIENCE_TIMES * max(medians, default=0.0))


def slowest_stage(stages: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the stage whose tasks took the most time lately."""
    slowest = max(stages, key=lambda stage: stage["busy_share"] or 0.0, default=None)
    return None if slowest is None or not slowest["busy_share"] else str(slowest["name"])
