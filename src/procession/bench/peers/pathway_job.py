"""The work of `procession bench peers` on Pathway: from a file to a file, with persistence.

It runs in the environment of Pathway, which `scripts/peers` makes.
"""

import sys
from pathlib import Path

import pathway as pw
from fields import is_wanted, marked, parted


def is_wanted_line(line: str) -> bool:
    return is_wanted(line.encode())


def result(line: str) -> str:
    return marked(parted(line.encode())).decode()


if __name__ == "__main__":
    source, target, work = sys.argv[1:]
    lines = pw.io.fs.read(source, format="plaintext", mode="static", name="lines")
    kept = lines.filter(pw.apply_with_type(is_wanted_line, bool, pw.this.data))
    pw.io.fs.write(kept.select(record=pw.apply_with_type(result, str, pw.this.data)), target, format="csv")
    kept_at = pw.persistence.Backend.filesystem(Path(work) / "state")
    pw.run(
        monitoring_level=pw.MonitoringLevel.NONE,
        default_logging=False,
        persistence_config=pw.persistence.Config(kept_at, snapshot_interval_ms=1000),
    )
