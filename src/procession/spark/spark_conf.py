"""Checks which of Spark's properties a user may set, and determines how often Spark tries a task.

Invariant: a property that affects order or commit keeps the value that Procession gives it. Setting such a property
is refused before any process starts. All other properties are passed to Spark, and override the defaults of
`spark/session`. The module does not import pyspark, so a command can check properties before it loads Spark.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from procession.errors import UsageError

REFUSED: tuple[tuple[str, str], ...] = (
    ("spark.sql.adaptive.", "Spark would merge and split partitions, whose number must not change"),
    ("spark.speculation", "a second copy of a task would run beside the first"),
    ("spark.sql.streaming.checkpointFileManagerClass", "the commit is decided by files that this class writes"),
    ("spark.hadoop.fs.file.impl", "the commit is decided by files that this class writes"),
    ("spark.hadoop.fs.AbstractFileSystem.file.impl", "the commit is decided by files that this class writes"),
    ("spark.hadoop.fs.defaultFS", "the pipeline's files are on the driver's disk; write the whole URL in the app"),
    ("spark.sql.streaming.offsetLog.formatVersion", "the offsets of an epoch are read in one format"),
    ("spark.sql.streaming.minBatchesToRetain", "recovery reads the offsets and commits of earlier epochs"),
    ("spark.sql.streaming.asyncProgressTracking", "an epoch would begin before the previous one is decided"),
    ("spark.sql.streaming.noDataMicroBatches.enabled", "an epoch without records has nothing to commit"),
    ("spark.python.unix.domain.socket.dir", "it must be a short path on each machine"),
    ("spark.python.use.daemon", "tasks run in the workers of Procession's daemon"),
    ("spark.python.daemon.module", "tasks run in the workers of Procession's daemon"),
    ("spark.python.worker.module", "tasks run in the workers of Procession's daemon"),
    ("spark.submit.deployMode", "the driver runs where the pipeline's directory is"),
    ("spark.authenticate.secret", "it would be on command lines, which others can read; use --spark-secret-file"),
    ("spark.master", "it is given by --master"),
    ("spark.app.name", "it is the name of the pipeline"),
)
"""Properties, or prefixes of properties, that cannot be set, each with the reason."""

FAILURES_PROPERTY = "spark.task.maxFailures"
FAILURES_DEFAULT = 4
"""Spark's own default, for clusters."""
LOCAL_FAILURES = re.compile(r"local\[[^,\]]+, *([0-9]+)\]")


def parse_properties(texts: Iterable[str]) -> dict[str, str]:
    """Parse properties of the form NAME=VALUE. Raises UsageError for a property that cannot be set."""
    properties: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.startswith("spark."):
            raise UsageError(
                f"{text!r} is not a property of Spark.", next_step="Write it as --conf spark.executor.memory=4g."
            )
        properties[name.strip()] = value.strip()
    check_properties(properties)
    return properties


def check_properties(properties: Mapping[str, str]) -> None:
    """Raise UsageError if a property affects order or commit."""
    for name, value in properties.items():
        for refused, why in REFUSED:
            if name == refused or name.startswith(refused if refused.endswith(".") else f"{refused}."):
                raise UsageError(f"The property {name} cannot be set: {why}.", next_step=f"Leave {name} out.")
        if name == FAILURES_PROPERTY and not (value.isdigit() and int(value) >= 1):
            raise UsageError(
                f"{name}={value} is not a number of attempts.", next_step=f"Use a number from 1 on, such as {name}=4."
            )


def task_failures_max(master: str, value: str | None) -> int:
    """Return the number of failures of a task after which Spark fails the job, from the master and the value of the
    property. With threads of this machine only the master determines it: F for `local[N,F]`, 1 for other local
    masters."""
    if found := LOCAL_FAILURES.fullmatch(master):
        return int(found[1])
    if master == "local" or master.startswith("local["):
        return 1
    return int(value) if value is not None else FAILURES_DEFAULT
