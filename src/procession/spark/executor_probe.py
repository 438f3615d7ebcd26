"""Checks, before an environment is shipped, whether it would run on the machines of the executors.

Invariant: the probe needs neither Procession nor Python on the executor: Spark's JVM runs a small shell script. So a
machine without the right Python or without enough disk space is reported by name a few seconds after the executors
have started. `spark/executor_check` checks the rest in Python afterwards. `read_facts` and `complaint` decide, and
are pure. Used by `driver/spark_process`.
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
"""Space that an executor needs, as a multiple of the archive: the archive itself, and its files."""
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
    """The facts about one executor's machine."""

    host: str
    pythons: tuple[str, ...]
    free_bytes: int | None
    """Free space in the executor's working directory; None if unknown."""


def read_facts(lines: Iterable[str]) -> Iterator[MachineFacts]:
    """Parse the output of the script from any number of machines."""
    host = ""
    pythons: list[str] = []
    for line in lines:
        kind, _, text = line.partition(" ")
        if kind == "host":
            host, pythons = text.strip(), []
        elif kind == "python":
            pythons += text.split()
        elif kind == "free":
            _device, _total_kib, _used_kib, free_kib, *_ = [*text.split(), *[""] * 4]
            yield MachineFacts(host, tuple(pythons), int(free_kib) * KIB if free_kib.isdigit() else None)


def complaint(facts: MachineFacts, archive_bytes: int, *, has_python: bool) -> ConfigError | None:
    """Return why an environment of this size does not run on a machine with these facts, or None. `has_python`: the
    archive contains Python, or may contain it."""
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
