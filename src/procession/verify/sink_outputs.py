"""The outputs in a directory: which ones a sink has written, and which of them belong together.

The one rule: `PIPELINE-SINK-0`, `PIPELINE-SINK-1`, … were written by the connections of one sink. Together they hold
its records, each key or stream in one of them. Reads a sink's directory; used by `procession verify` and `procession
cat`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from procession.commit.transaction_id import Transaction
from procession.errors import ConfigError
from procession.sdk.transaction_log import TxnTail
from procession.verify.output_layout import Ranges, is_stored, stored

CONNECTION = re.compile(r"(.+)-([0-9]+)")


@dataclass(frozen=True, slots=True)
class Written:
    """The transaction logs of what is judged as one output; `family` is what the names of its instances begin with."""

    family: str
    logs: tuple[Path, ...]

    @property
    def name(self) -> str:
        return self.logs[0].stem if len(self.logs) == 1 else self.family

    def read(self, ranges: Sequence[Ranges]) -> Iterator[bytes]:
        """What is committed, one instance after the other; each has its ranges."""
        for log, own in zip(self.logs, ranges, strict=True):
            yield from stored(log).read(own)


def written_in(directory: Path, instance: str | None = None, *, is_shared: bool = True) -> list[Written]:
    """The outputs of a directory, or those of one instance, or of one sink as `PIPELINE-SINK`. `is_shared`: the records
    of a sink may be shared out to several of them, which are then taken together."""
    logs = sorted(filter(is_stored, directory.glob("*.txnlog")), key=lambda log: _place(log.stem))
    exact = [log for log in logs if log.stem == instance]
    if instance is not None:
        logs = exact or [log for log in logs if _place(log.stem)[0] == instance]
    if exact or not is_shared:
        return [Written(log.stem, (log,)) for log in logs]
    families = dict.fromkeys(_place(log.stem)[0] for log in logs)
    return [Written(one, tuple(log for log in logs if _place(log.stem)[0] == one)) for one in families]


def check_one_pipeline(directory: Path, outputs: Sequence[Written]) -> None:
    """A ConfigError that asks which, if several pipelines have written here."""
    writers: dict[str, str] = {}
    for output in outputs:
        if (pipeline := _pipeline(output.logs[0])) is not None:
            writers.setdefault(pipeline, output.family)
    if len(writers) > 1:
        raise ConfigError(
            f"{directory} holds the output of several pipelines: {', '.join(writers)}",
            next_step=f"say which with --instance, one of {', '.join(output.family for output in outputs)}",
        )


def _pipeline(log: Path) -> str | None:
    """Who wrote an output, as its first committed transaction names it."""
    first = next(TxnTail(log).look(), None)
    found = Transaction.parse(first.txn_id) if first is not None else None
    return found.pipeline if found is not None else None


def _place(instance: str) -> tuple[str, int]:
    """What an instance's name begins with, and its number; the tenth comes behind the ninth."""
    found = CONNECTION.fullmatch(instance)
    return (found[1], int(found[2])) if found else (instance, -1)
