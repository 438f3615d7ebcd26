"""The command `procession sink check`: runs the conformance suite on a sink and prints each result.

Invariant: only the sink's command and a command that prints its output are needed, so a sink in any language can be
tested. `sdk/conformance` has the cases.
"""

from __future__ import annotations

import asyncio
import json
import shlex
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path

from procession.errors import ConfigError, UsageError
from procession.sdk.conformance import CASES, CaseOutcome, Conformance, ConformanceCase, Finding
from procession.sdk.sink_process import SinkProcess, Visible

COMMAND_TIMEOUT_S = 60.0


def check_sink(
    command: Sequence[str],
    visible: str | None,
    only: Sequence[str],
    directory: Path | None,
    *,
    as_json: bool = False,
) -> bool:
    """Run the cases and print the results. Return whether the sink passed."""
    cases = chosen_cases(only)
    for placeholder in ("{dir}", "{listen}"):
        if not any(placeholder in part for part in command):
            raise UsageError(
                f"The sink's command has no {placeholder}.",
                next_step=f"Put {placeholder} where the sink expects the value.",
            )
    with _place(directory) as place, SinkProcess(command, place, visible_by(visible) if visible else None) as sink:
        findings = asyncio.run(_findings(sink, cases, is_printed=not as_json))
    failed = [case.name for case, finding in findings if finding.outcome is CaseOutcome.FAILED]
    if as_json:
        results = [{"case": case.name, "outcome": finding.outcome, "why": finding.why} for case, finding in findings]
        print(json.dumps({"outcome": CaseOutcome.FAILED if failed else CaseOutcome.PASSED, "cases": results}))
    else:
        missed = sum(finding.outcome is CaseOutcome.NOT_REACHED for _, finding in findings)
        passed = len(findings) - len(failed) - missed
        print(f"{passed} passed, {len(failed)} failed, {missed} not reached" + _unseen(visible))
    return not failed


def list_cases(*, as_json: bool = False) -> None:
    """Print the names of the cases for `--only`."""
    if as_json:
        print(json.dumps([{"short": case.short, "case": case.name} for case in CASES]))
        return
    width = max(len(case.short) for case in CASES)
    for case in CASES:
        print(f"{case.short:<{width}}  {case.name}")


def chosen_cases(only: Sequence[str]) -> list[ConformanceCase]:
    """Return the cases with these short names, or with these texts in a name. Without arguments, return all cases."""
    chosen = set(CASES) if not only else set()
    for text in only:
        found = [case for case in CASES if case.short == text]
        found = found or [case for case in CASES if text and (text in case.short or text in case.name)]
        if not found:
            near = get_close_matches(text, [case.short for case in CASES], n=3, cutoff=0.4)
            hint = f"Did you mean {' or '.join(near)}? " if near else ""
            raise UsageError(f"No case is called {text!r}.", next_step=f"{hint}--list shows them all.")
        chosen.update(found)
    return [case for case in CASES if case in chosen]


def _unseen(visible: str | None) -> str:
    return "" if visible else "; the visible output was not checked (use --visible)"


async def _findings(
    sink: SinkProcess, cases: Sequence[ConformanceCase], *, is_printed: bool
) -> list[tuple[ConformanceCase, Finding]]:
    conformance = Conformance(sink)
    findings = []
    for case in cases:
        finding = await conformance.run(case)
        findings.append((case, finding))
        if is_printed:
            print(f"{finding.outcome:>11}  {case.name}" + (f": {finding.why}" if finding.why else ""), flush=True)
    return findings


@contextmanager
def _place(directory: Path | None) -> Iterator[Path]:
    if directory is None:
        with tempfile.TemporaryDirectory(prefix="procession-sink-check-") as made:
            yield Path(made)
        return
    if directory.exists() and any(directory.iterdir()):
        raise ConfigError(
            f"The directory {directory} is not empty.", next_step="Name a directory that is new or empty."
        )
    directory.mkdir(parents=True, exist_ok=True)
    yield directory


def visible_by(command: str) -> Visible:
    """Return a function that gets the visible output from a command."""

    def visible(directory: Path, instance: str) -> bytes:
        parts = shlex.split(command)
        arguments = [part.replace("{dir}", str(directory)).replace("{instance}", instance) for part in parts]
        try:
            done = subprocess.run(arguments, capture_output=True, timeout=COMMAND_TIMEOUT_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ConfigError(
                f"Cannot run {arguments[0]}: {error}.", next_step="Use a command that prints the output and exits."
            ) from error
        if done.returncode:
            raise ConfigError(
                f"{arguments[0]} exited with status {done.returncode}: {done.stderr.decode(errors='replace').strip()}",
                next_step="Use a command that prints nothing and exits with status 0 if there is no output yet.",
            )
        return done.stdout

    return visible
