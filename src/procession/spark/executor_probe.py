"""Asks the machines of executors, before an environment is shipped to them, whether it would run there.

Invariant: nothing of ours and no Python is needed for the question: Spark's JVM runs a small shell script. So a machine
without the right Python, or without room for the archive, is one sentence with its name, seconds after the executors
have started. What the script cannot find out is left to `spark/executor_check`, which asks in Python afterwards.
`read_facts` and `complaint` decide, and are pure. Used by `driver/spark_process`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from procession.errors import ConfigError
from procession.spark.shipped_environment import VERSION, ShippedEnvironment

if TYPE_CHECKING:
    from procession.spark.session import Session

SPACE_FACTOR = 5
"""Room that an executor needs, as a multiple of the archive: the archive itself, and its files."""
KIB = 1024

SCRIPT = f"""cat > /dev/null
echo "host ${{SPARK_LOCAL_HOSTNAME:-$(hostname)}}"
for python in ${{PROCESSION_PYTHON:-python{VERSION} python3}}; do
    if command -v "$python" > /dev/null; then
        echo "python $("$python" -S -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2> /dev/null)"
    fi
done
echo "free $(df -Pk . 2> /dev/null | tail -n 1)"
"""


@dataclass(frozen=True)
class MachineFacts:
    """What one executor's machine has."""

    host: str
    pythons: tuple[str, ...]
    free_bytes: int | None
    """Free space in the executor's working directory; None: not known."""


def read_facts(lines: Iterable[str]) -> Iterator[MachineFacts]:
    """Read what the script has printed, on any number of machines."""
    host = ""
    pythons: list[str] = []
    for line in lines:
        kind, _, text = line.partition(" ")
        if kind == "host":
            host, pythons = text.strip(), []
        elif kind == "python":
            pythons += text.split()
        elif kind == "free":
            fields = text.split()
            is_known = len(fields) >= 4 and fields[3].isdigit()
            yield MachineFacts(host, tuple(pythons), int(fields[3]) * KIB if is_known else None)


def complaint(facts: MachineFacts, archive_bytes: int, *, has_python: bool) -> ConfigError | None:
    """Return why an environment of this size does not run on a machine with these facts, or None. `has_python`: the
    archive has a Python of its own, or may have one."""
    if not has_python and VERSION not in facts.pythons:
        other = f"; it has {', '.join(sorted(set(facts.pythons)))}" if facts.pythons else ""
        return ConfigError(
            f"The executor on {facts.host} has no Python {VERSION}{other}.",
            next_step=f"Install Python {VERSION} there, or submit with --with-python.",
        )
    needed = SPACE_FACTOR * archive_bytes
    if facts.free_bytes is not None and facts.free_bytes < needed:
        return ConfigError(
            f"The disk of the executor on {facts.host} has {facts.free_bytes / 1e6:.0f} MB free, and its environment"
            f" needs {needed / 1e6:.0f} MB.",
            next_step="Free space there, or give Spark's worker another --work-dir.",
        )
    return None


def check_machines(spark: Session, shipped: ShippedEnvironment) -> None:
    """Ask the executors' machines, and raise ConfigError if one cannot run the environment. Waits for executors."""
    context = spark.sparkContext
    tasks = max(2, context.defaultParallelism)
    asked = context._jsc.parallelize(list(range(tasks)), tasks).pipe(["sh", "-c", SCRIPT])
    for facts in read_facts(list(asked.collect())):
        if wrong := complaint(facts, shipped.archive_bytes, has_python=shipped.may_have_python):
            raise wrong
