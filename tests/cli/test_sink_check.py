"""`procession sink check`: how its cases are listed and chosen, and a run on a sink of ours with the command of its
page."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from procession.cli.sink_check import chosen_cases, list_cases
from procession.errors import UsageError
from procession.sdk.conformance import CASES

PROCESSION = f"{sys.executable} -m procession"


def test_every_case_has_a_unique_short_name() -> None:
    shorts = [case.short for case in CASES]
    assert len(set(shorts)) == len(shorts)
    assert all(len(short) <= 32 and " " not in short for short in shorts)


def test_a_short_name_chooses_one_case_and_a_part_of_a_name_chooses_several() -> None:
    assert [case.short for case in chosen_cases(["gap"])] == ["gap"]
    assert [case.short for case in chosen_cases(["range", "gap"])] == ["gap", "range"], "in the order of the suite"
    assert all("killed" in case.name for case in chosen_cases(["killed"]))
    assert len(chosen_cases(["killed"])) > 2
    assert chosen_cases([]) == list(CASES)


@pytest.mark.parametrize(
    ("text", "near"), [("gp", "gap"), ("two-worker!", "two-workers"), ("befor-vote", "before-vote-commit")]
)
def test_a_typo_is_reported_with_similar_names_even_beside_a_valid_name(text: str, near: str) -> None:
    with pytest.raises(UsageError, match=f"^No case is called '{text}'.$") as caught:
        chosen_cases(["gap", text])
    assert near in caught.value.next_step
    assert "--list" in caught.value.next_step


def test_the_list_shows_all_cases(capsys: pytest.CaptureFixture[str]) -> None:
    list_cases()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [case.short for case in CASES]
    list_cases(as_json=True)
    assert json.loads(capsys.readouterr().out)[0] == {"short": CASES[0].short, "case": CASES[0].name}


def test_the_error_of_a_sink_that_ends_is_reported(tmp_path: Path) -> None:
    sink = f"{PROCESSION} sink parquet {tmp_path}/table {{dir}} --listen {{listen}}"
    command = [*shlex.split(f"{PROCESSION} sink check --only gap"), "--", *shlex.split(sink)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "The sink's error: A record is not JSON: " in done.stdout
    assert "Next: " in done.stdout


@pytest.mark.parametrize("kind", ["file", "epochs"])
def test_the_documented_command_checks_a_shipped_sink(kind: str) -> None:
    visible = f"{PROCESSION} cat {{dir}} --instance {{instance}}"
    check = f"{PROCESSION} sink check --only gap --json --visible"
    sink = f"{PROCESSION} sink {kind} {{dir}} --listen {{listen}}"
    command = [*shlex.split(check), visible, "--", *shlex.split(sink)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert {case["outcome"] for case in json.loads(done.stdout)["cases"]} == {"passed"}
