"""`make fuzz`: atheris searches for inputs that break a promise, target by target, for a bounded time.

Invariant: a run ends in time and changes no file of the tree. Inputs that it finds stay in .make/fuzz until `--keep`
adds them to the corpus. The exit status is 1 if an input fails.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

from tests.fuzz import corpus

WORKPLACE = Path(".make/fuzz")
INPUT_BYTES_MAX = 4096
INPUT_TIMEOUT_S = 10
"""Time limit for an input. One that takes longer counts as an endless loop."""
MEMORY_MB_MAX = 1024
ONE = "--one"
"""The first argument of the process that fuzzes one target. The others are for libFuzzer."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", help="only these")
    parser.add_argument("--seconds", type=float, default=60, help="for all targets together")
    parser.add_argument("--keep", action="store_true", help="write what was found into the corpus")
    options = parser.parse_args()
    from tests.fuzz.targets import TARGETS

    chosen = options.targets or list(TARGETS)
    failed = [name for name in chosen if not fuzz(name, max(1, round(options.seconds / len(chosen))))]
    if options.keep and not failed:
        for name in chosen:
            found = [path.read_bytes() for path in (WORKPLACE / name).iterdir()]
            print(f"{name}: {corpus.keep(name, TARGETS[name], found)} inputs kept", flush=True)
    return 1 if failed else 0


def fuzz(name: str, seconds: int) -> bool:
    """Run one target in its own process, because libFuzzer ends the process in which it runs."""
    folder, log, prefix = WORKPLACE / name, WORKPLACE / f"{name}.log", WORKPLACE / f"{name}-failed-"
    folder.mkdir(parents=True, exist_ok=True)
    for given in corpus.load(name):
        (folder / hashlib.sha1(given).hexdigest()).write_bytes(given)
    with log.open("wb") as output:
        status = subprocess.run(
            [
                *(sys.executable, "-m", "tests.fuzz", ONE, name, f"-max_total_time={seconds}"),
                *(f"-max_len={INPUT_BYTES_MAX}", f"-timeout={INPUT_TIMEOUT_S}", f"-rss_limit_mb={MEMORY_MB_MAX}"),
                *(f"-artifact_prefix={prefix}", str(folder)),
            ],
            stdout=output,
            stderr=output,
        ).returncode
    text = log.read_text(errors="replace")
    runs = re.findall(r"^Done (\d+) runs", text, re.MULTILINE)
    coverage = re.findall(r" cov: (\d+) ", text)
    if status == 0 and runs and coverage:
        print(f"{name}: {int(runs[-1]):,} inputs in {seconds} s, {coverage[-1]} places of the code reached", flush=True)
        return True
    print(f"{name}: failed (status {status}; the whole log: {log})\n{text[-2000:]}", flush=True)
    for path in re.findall(r"Test unit written to (\S+)", text):
        print(f"  the input, a line for tests/fuzz/corpus/{name}.txt: {Path(path).read_bytes().hex()}", flush=True)
    return False


def fuzz_here(name: str, *arguments: str) -> NoReturn:
    """Fuzz one target in this process. Our code is imported here, so that atheris traces its branches."""
    import atheris

    with atheris.instrument_imports(include=["procession.wire", "procession.sos"]):
        from tests.fuzz.targets import TARGETS
    # `columns.make_ready` imports the numba kernels later: numba cannot compile instrumented code.
    atheris.Setup([sys.argv[0], *arguments], TARGETS[name])
    atheris.Fuzz()
    sys.exit()


if __name__ == "__main__":
    if sys.argv[1:2] == [ONE]:
        fuzz_here(*sys.argv[2:])
    sys.exit(main())
