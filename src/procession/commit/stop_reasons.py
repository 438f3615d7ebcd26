"""Stop reasons: the errors that stop a pipeline during a commit, each with its sentence and its next step.

Invariant: each error names the sink and what the operator must do. Pure. `commit/coordinator` detects them.
"""

from __future__ import annotations

from procession.commit.round_record import SinkShare
from procession.errors import ConfigError, FencedError, PlanError, RoundError, StorageError


def fenced(number: int, later: int) -> FencedError:
    return FencedError(
        f"driver {number} was replaced by driver {later} and stops",
        next_step="nothing to do: the later driver continues the work",
    )


def lost_prepared(name: str, part: SinkShare) -> StorageError:
    return StorageError(
        f"sink {name!r} has lost transaction {part.txn!r}, which it had voted to commit (positions {part.start} to"
        f" {part.end})",
        next_step="restore the sink's directory; its disk loses synced data",
        sink=name,
    )


def set_back(name: str, position: int, expected: int) -> StorageError:
    return StorageError(
        f"sink {name!r} has {position} bytes of output, but {expected} were committed to it",
        next_step="restore the sink's directory from a copy; the missing output cannot be made again",
        sink=name,
    )


def another_output(name: str, position: int, expected: int) -> ConfigError:
    return ConfigError(
        f"sink {name!r} already has {position} bytes of output, but this checkpoint has committed {expected}",
        next_step="give the sink an empty directory, or the pipeline the checkpoint directory that wrote this output",
        sink=name,
    )


def unsettled(name: str, listed: tuple[str, ...]) -> StorageError:
    return StorageError(
        f"sink {name!r} lists {listed[0]!r} again, however often it is aborted",
        next_step="look into that sink's transaction log",
        sink=name,
    )


def record_gone(name: str, txn: str) -> StorageError:
    return StorageError(
        f"sink {name!r} lists {txn!r}, an epoch that it had confirmed and whose record is gone",
        next_step="the sink was restored from an old copy: restore the latest state, or begin with a new output",
        sink=name,
    )


def refused(name: str, why: str, epoch: int, times: int) -> RoundError:
    return RoundError(
        f"sink {name!r} {why}; epoch {epoch} was refused {times} times",
        next_step="look into that sink's log; nothing of the epoch is committed, and it is run again when you start"
        " again",
        sink=name,
        epoch=epoch,
    )


def hello_refused(sink: str, times: int, why: str, *, has_reason: bool = False) -> ConfigError:
    likely = "both sides need the same cookie and fitting certificates"
    if not has_reason:
        likely = (
            "likely it expects another cookie or certificate, holds the output of another pipeline, or a proxy accepts"
            " connections for a sink that is not running; correct it and start again, nothing is lost"
            " (`sink_refusals_max` is the number of tries)"
        )
    return ConfigError(
        f"sink {sink} refused its greeting {times} times in a row: {why}", next_step=f"see that sink's log; {likely}"
    )


def not_voted(sink: str, txn: str | None, times: int, why: str) -> ConfigError:
    return ConfigError(
        f"sink {sink} ended the session {times} times in a row before its vote on {txn or 'anything'}: {why}",
        next_step="see that sink's log; likely it holds the output of another pipeline, has a rule that ends it at"
        " every attempt, or fails while it writes (a full disk); correct it and start again, nothing is lost"
        " (`sink_refusals_max` is the number of tries)",
    )


def unsendable(name: str, why: str) -> PlanError:
    return PlanError(
        f"a record is too large for sink {name!r}: {why}",
        next_step="let the pipeline make smaller records, flat_map for instance",
        sink=name,
    )


def taken_out(name: str) -> PlanError:
    return PlanError(
        f"sink {name!r} was taken out of the pipeline, but its last transaction may still have to be settled",
        next_step="put it back (dead letters may be added, not taken away), or start over with another --dir",
        sink=name,
    )
