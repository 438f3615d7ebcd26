"""`procession sink check`: the conformance suite on somebody's sink, told as it goes.

The one rule: the sink is known by its command, and its output by a command that prints it; so a sink of any make can be
tried. Before it the command line; after it `sdk/conformance`.
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
from procession.sdk.conformance import CASES, Case, Conformance, Finding, Outcome
from procession.sdk.sink_process import Trial, Visible

LOOK_TIMEOUT_S = 60.0


def check_sink(
    command: Sequence[str],
    visible: str | None,
    only: Sequence[str],
    directory: Path | None,
    *,
    as_json: bool = False,
) -> bool:
    """True if nothing was broken."""
    cases = chosen_cases(only)
    for word in ("{dir}", "{listen}"):
        if not any(word in part for part in command):
            raise UsageError(
                f"The sink's command has no {word}.", next_step=f"Write {word} where the sink takes it from."
            )
    with _place(directory) as place, Trial(command, place, visible_by(visible) if visible else None) as trial:
        findings = asyncio.run(_findings(trial, cases, is_told=not as_json))
    broken = [case.name for case, finding in findings if finding.outcome is Outcome.BROKEN]
    if as_json:
        told = [{"case": case.name, "outcome": finding.outcome, "why": finding.why} for case, finding in findings]
        print(json.dumps({"outcome": Outcome.BROKEN if broken else Outcome.KEPT, "cases": told}))
    else:
        missed = sum(finding.outcome is Outcome.NOT_REACHED for _, finding in findings)
        kept = len(findings) - len(broken) - missed
        print(f"{kept} kept, {len(broken)} broken, {missed} not reached" + _unseen(visible))
    return not broken


def list_cases(*, as_json: bool = False) -> None:
    """Print what `--only` chooses from."""
    if as_json:
        print(json.dumps([{"short": case.short, "case": case.name} for case in CASES]))
        return
    width = max(len(case.short) for case in CASES)
    for case in CASES:
        print(f"{case.short:<{width}}  {case.name}")


def chosen_cases(only: Sequence[str]) -> list[Case]:
    """The cases that are called for: each by its short name, or by a part of either name. All, if none is."""
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
    return "" if visible else "; what a reader sees was not looked at (--visible)"


async def _findings(trial: Trial, cases: Sequence[Case], *, is_told: bool) -> list[tuple[Case, Finding]]:
    conformance = Conformance(trial)
    findings = []
    for case in cases:
        finding = await conformance.run(case)
        findings.append((case, finding))
        if is_told:
            print(f"{finding.outcome:>11}  {case.name}" + (f": {finding.why}" if finding.why else ""), flush=True)
    return findings


@contextmanager
def _place(directory: Path | None) -> Iterator[Path]:
    if directory is None:
        with tempfile.TemporaryDirectory(prefix="procession-sink-check-") as made:
            yield Path(made)
        return
    if directory.exists() and any(directory.iterdir()):
        raise ConfigError(f"{directory} is not empty.", next_step="Name a directory that is new or empty.")
    directory.mkdir(parents=True, exist_ok=True)
    yield directory


def visible_by(command: str) -> Visible:
    """Asks a command what is visible."""

    def visible(directory: Path, instance: str) -> bytes:
        words = [word.replace("{dir}", str(directory)).replace("{instance}", instance) for word in shlex.split(command)]
        try:
            done = subprocess.run(words, capture_output=True, timeout=LOOK_TIMEOUT_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ConfigError(
                f"Cannot run {words[0]}: {error}.", next_step="Give a command that prints the output and ends."
            ) from error
        if done.returncode:
            raise ConfigError(
                f"{words[0]} ended with status {done.returncode}: {done.stderr.decode(errors='replace').strip()}",
                next_step="Give a command that prints nothing, and ends with status 0, where there is no output yet.",
            )
        return done.stdout

    return visible
