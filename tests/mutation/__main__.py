"""Runs mutants of the shipped code: `python -m tests.mutation --help`.

A mutant is killed when a simulated run breaks an invariant or a quick test of its room fails. Survivors are listed,
unless `survivors.json` has them with a reason. A mutant that stalls or takes too long is undecided, which does not
count as killed. The exit status is 1 if any other mutant survives, is undecided or was not tried in time.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from tests.mutation.mutants import Mutant, mutants

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCE = Path("src") / "procession"
ROOMS = ("commit", "driver", "gateway", "storage", "sdk")
SLOW_ROOMS = frozenset({"bench", "chaos", "cluster", "sim", "walk"})
SURVIVORS = Path(__file__).parent / "survivors.json"
SIMULATION_S = 300.0
"""A mutant whose simulated runs take longer than this is undecided, unless a test fails."""
HUNK = re.compile(r"^@@ -\S+ \+(\d+)(?:,(\d+))? @@")


@dataclass(frozen=True)
class Fate:
    name: str
    place: str
    killed_by: str
    """What killed the mutant. Empty if it survived or the time was over."""
    seconds: float
    is_undecided: bool = False
    """Whether the time was over before all of its runs and tests had ended."""

    @property
    def text(self) -> str:
        return self.killed_by or ("the time is over" if self.is_undecided else "SURVIVED")


def all_mutants(root: Path = ROOT) -> Iterator[Mutant]:
    for room in ROOMS:
        for path in sorted((root / SOURCE / room).glob("*.py")):
            yield from mutants(f"{room}.{path.stem}", path.read_text())


def explained() -> dict[str, str]:
    """Return the reason of each known survivor, by its name: why it is harmless, or which other test would notice."""
    reasons: dict[str, str] = json.loads(SURVIVORS.read_text())
    return reasons


def changed_lines(commit: str) -> dict[str, set[int]]:
    """Return the lines of each module that differ from a commit."""
    paths = [str(SOURCE / room) for room in ROOMS]
    command = ["git", "diff", "-U0", "--no-color", commit, "--", *paths]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    changed: dict[str, set[int]] = {}
    module = ""
    for line in done.stdout.splitlines():
        if line.startswith("+++ "):
            module = ".".join(Path(line[6:]).relative_to(SOURCE).with_suffix("").parts) if "b/" in line else ""
        elif module and (hunk := HUNK.match(line)):
            first, count = int(hunk[1]), int(hunk[2] or 1)
            changed.setdefault(module, set()).update(range(first, first + count))
    return changed


def quick_tests(module: str) -> list[str]:
    """The test files of the room that import this module, the one of its name first. If there are none, those of other
    rooms."""
    room, _, name = module.partition(".")
    text = f"procession.{module} import", f"from procession.{room} import {name}"
    own = sorted((ROOT / "tests" / room).glob("test_*.py"), key=lambda path: path.stem != f"test_{name}")
    others = sorted(path for path in (ROOT / "tests").glob("*/test_*.py") if path.parent.name not in SLOW_ROOMS)
    for paths in (own, others):
        if found := [path for path in paths if any(part in path.read_text() for part in text)]:
            return [str(path.relative_to(ROOT)) for path in found]
    return []


class Tree:
    """A copy of the source tree in which one module at a time is a mutant."""

    def __init__(self, directory: Path, runs: int, test_s: float) -> None:
        self._source = directory / "src"
        shutil.copytree(ROOT / "src", self._source, ignore=shutil.ignore_patterns("__pycache__"))
        self._runs = runs
        self._test_s = test_s
        path = os.pathsep.join([str(self._source), str(ROOT)])
        self._environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}

    def try_out(self, mutant: Mutant) -> Fate:
        path = self._source / "procession" / Path(*mutant.module.split(".")).with_suffix(".py")
        original, started = path.read_text(), time.monotonic()
        path.write_text(mutant.text)
        try:
            killed_by = self._killed_by(mutant.module)
        finally:
            path.write_text(original)
        seconds = round(time.monotonic() - started, 1)
        return Fate(mutant.name, f"{mutant.module}:{mutant.line}", killed_by or "", seconds, killed_by is None)

    def _killed_by(self, module: str) -> str | None:
        """Return what killed the mutant, an empty text if nothing did, or None if the time was over.

        The quickest come first: the module's own tests, then the simulator, then the other tests of the room that
        import it.
        """
        files = quick_tests(module) if self._test_s else []
        deadline = time.monotonic() + self._test_s
        own, started = self._test(files[:1], deadline), time.monotonic()
        if own:
            return own
        simulated = self._simulate()
        others = simulated or self._test(files[1:], deadline + time.monotonic() - started)
        return None if None in (own, simulated) and not others else others

    def _simulate(self) -> str | None:
        """None: the time is over, and no run has failed."""
        if not self._runs:
            return ""
        done = self._python(["-m", "tests.mutation.simulation", str(self._runs)], SIMULATION_S)
        if done is None:
            return None
        return f"the simulator: {_last_line(done)}" if done.returncode else ""

    def _test(self, files: list[str], deadline: float) -> str | None:
        """Run test files. Returns None if the time was over and no test has failed."""
        if not files:
            return ""
        left_s = max(0.0, deadline - time.monotonic())
        done = self._python(["-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *files], left_s)
        if done is None:
            return None
        return f"a test: {_last_line(done)}" if done.returncode not in (0, 5) else ""

    def _python(self, arguments: Sequence[str], timeout_s: float) -> subprocess.CompletedProcess[str] | None:
        """Run Python with these arguments. Returns None if it took too long."""
        command = [sys.executable, *arguments]
        with subprocess.Popen(
            command,
            cwd=ROOT,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                output, _ = process.communicate(timeout=timeout_s)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                process.communicate()
                return None
        return subprocess.CompletedProcess(command, process.returncode, output)


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    """Return the summary line of pytest's or Python's output."""
    lines = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR", "E  "))]
    lines = lines or done.stdout.strip().splitlines() or [""]
    return lines[-1][:160]


@dataclass(frozen=True)
class Verdict:
    """The result of all fates, given the reasons for known survivors."""

    fates: list[Fate]
    untried: int
    reasons: dict[str, str]

    @property
    def unexplained(self) -> list[Fate]:
        """Those that survived, or are undecided, without a reason."""
        return [fate for fate in self.fates if not fate.killed_by and fate.name not in self.reasons]

    @property
    def exit_status(self) -> int:
        return 1 if self.unexplained or self.untried else 0

    @property
    def stale(self) -> list[str]:
        """The reasons for mutants that are killed."""
        return [fate.name for fate in self.fates if fate.killed_by and fate.name in self.reasons]

    def lines(self) -> Iterator[str]:
        undecided = sum(fate.is_undecided for fate in self.fates)
        survivors = sum(not fate.killed_by for fate in self.fates) - undecided
        yield f"{len(self.fates)} mutants, {survivors} survive, {undecided} undecided, {self.untried} not tried"
        for fate in self.unexplained:
            said = "undecided" if fate.is_undecided else "survives"
            yield f"{said} without a reason in {SURVIVORS.relative_to(ROOT)}: {fate.place} {fate.name}"
        for name in self.stale:
            yield f"is killed, so its reason can go: {name}"
        if self.untried:
            yield f"{self.untried} mutants were not tried: give them more time with --minutes"

    def as_dict(self) -> dict[str, Any]:
        document = {"mutants": len(self.fates), "untried": self.untried, "fates": [asdict(fate) for fate in self.fates]}
        return document | {"unexplained": [fate.name for fate in self.unexplained], "stale": self.stale}


def chosen(since: str | None, match: str) -> list[Mutant]:
    changed = None if since is None else changed_lines(since)
    return [
        mutant
        for mutant in all_mutants()
        if re.search(match, mutant.name)
        if changed is None or changed.get(mutant.module, set()) & set(range(mutant.line, mutant.last_line + 1))
    ]


def run(todo: Sequence[Mutant], options: argparse.Namespace) -> tuple[list[Fate], int]:
    """Return the fates of the mutants, and how many were not tried when the time was over."""
    deadline = time.monotonic() + 60 * options.minutes
    with tempfile.TemporaryDirectory(prefix="mutants-") as directory, ThreadPoolExecutor(options.jobs) as pool:
        trees: SimpleQueue[Tree] = SimpleQueue()
        for number in range(options.jobs):
            trees.put(Tree(Path(directory) / str(number), options.runs, options.test_seconds))

        def one(mutant: Mutant) -> Fate | None:
            if time.monotonic() > deadline:
                return None
            tree = trees.get()
            try:
                fate = tree.try_out(mutant)
            finally:
                trees.put(tree)
            if not options.json:
                print(f"{fate.place} {fate.name}\n    {fate.text} ({fate.seconds} s)", flush=True)
            return fate

        done = [fate for fate in pool.map(one, todo) if fate is not None]
    return done, len(todo) - len(done)


def main() -> int:
    parser = argparse.ArgumentParser("python -m tests.mutation", description=__doc__)
    parser.add_argument("--since", metavar="COMMIT", help="Only lines that differ from this commit.")
    parser.add_argument("--match", default="", help="Only mutants whose name matches this regular expression.")
    parser.add_argument("--runs", type=int, default=400, help="Simulated runs for each mutant (400).")
    parser.add_argument("--test-seconds", type=float, default=120, help="Time of a mutant's tests (120 s); 0: none.")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="Mutants at once (one a core).")
    parser.add_argument("--minutes", type=float, default=120, help="Stop after this time (120).")
    parser.add_argument("--list", action="store_true", help="List the mutants and run none.")
    parser.add_argument("--json", action="store_true", help="Print one JSON object instead of text.")
    options = parser.parse_args()
    todo, reasons = chosen(options.since, options.match), explained()
    if options.list:
        for mutant in todo:
            print(f"{mutant.module}:{mutant.line} {mutant.name}")
        return 0
    verdict = Verdict(*run(todo, options), reasons)
    print(json.dumps(verdict.as_dict(), indent=1) if options.json else "\n".join(verdict.lines()))
    return verdict.exit_status


if __name__ == "__main__":
    sys.exit(main())
