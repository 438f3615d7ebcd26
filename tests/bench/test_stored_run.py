"""Two runs of the benchmarks are compared: what moved by more than its noise is named, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from procession.bench import decode
from procession.bench.stored_run import Runs, compare, stored, stored_runs
from procession.cli.main import app
from procession.errors import ConfigError

COMMAND = "procession bench decode --frames 1000"


def runs(*ratios: float, cpu_us: float = 1.0, seconds: float = 1.0, command: str = COMMAND) -> Runs:
    figures = [
        {"command": command, "ratio": ratio, "took_s": seconds, "cpu_us_per_record": {"driver": cpu_us}}
        for ratio in ratios
    ]
    return {"decode": figures}


def moved(before: Runs, after: Runs) -> list[str]:
    return [figure.name for figure in compare(before, after).moved]


def test_a_change_beyond_the_range_of_both_runs_is_named() -> None:
    assert moved(runs(1.0, 1.02, 0.98), runs(0.9, 0.91, 0.89)) == ["decode ratio"]
    assert moved(runs(1.0, 1.02, 0.98), runs(0.98, 0.97, 0.99)) == []


def test_the_noise_of_either_run_counts() -> None:
    steady, restless = (1.0, 1.0, 1.0), (0.8, 0.9, 1.1)
    assert moved(runs(*steady), runs(*restless)) == []
    assert moved(runs(*restless), runs(*steady)) == []
    assert moved(runs(*steady), runs(0.9, 0.9, 0.9)) == ["decode ratio"]


def test_a_change_of_little_weight_is_not_named_even_without_noise() -> None:
    assert moved(runs(1.0, 1.0), runs(1.02, 1.02)) == []
    assert moved(runs(1.0, 1.0), runs(1.04, 1.04)) == ["decode ratio"]


def test_processor_time_is_compared_and_seconds_are_not() -> None:
    assert moved(runs(1.0, 1.0), runs(1.0, 1.0, cpu_us=2.0, seconds=9.0)) == ["decode cpu_us_per_record.driver"]


def test_other_options_and_other_benchmarks_are_not_compared() -> None:
    comparison = compare(runs(1.0), {**runs(2.0, command=f"{COMMAND} --rounds 9"), "state": [{"ratio": 1.0}]})
    assert comparison.figures == ()
    assert [sentence.split()[0] for sentence in comparison.skipped] == ["decode", "state"]


@pytest.mark.parametrize("document", [None, [], {}, {"format": 9, "runs": {}}, {"format": 1, "runs": {"decode": []}}])
def test_what_is_not_a_stored_run_is_refused(document: Any) -> None:
    with pytest.raises(ConfigError, match="not a stored run"):
        stored_runs(document, "FILE")


def test_a_run_is_stored_and_read_again() -> None:
    kept = runs(1.0, 1.5)
    assert stored_runs(json.loads(json.dumps(stored(kept))), "FILE") == kept


def test_the_command_stores_a_run_and_compares_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measure = decode.measure
    monkeypatch.setattr(decode, "measure", lambda frames, rounds: measure(1_000, 1))
    runner, file = CliRunner(), tmp_path / "before.json"
    chosen = ["bench", "all", "--only", "decode", "--repeats", "2"]
    assert runner.invoke(app, [*chosen, "--save", str(file)]).exit_code == 0
    result = runner.invoke(app, [*chosen, "--against", str(file), "--json"])
    figures = json.loads(result.stdout)["figures"]
    assert [figure["name"] for figure in figures] == ["decode decode.ratio", "decode encode.ratio"]
    assert all(figure["before"] > 0 for figure in figures)
    assert "figures moved" in runner.invoke(app, [*chosen, "--against", str(file)]).stdout


def test_bad_arguments_get_a_sentence(tmp_path: Path) -> None:
    runner = CliRunner()
    assert "There is no benchmark" in str(runner.invoke(app, ["bench", "all", "--only", "speed"]).exception)
    missing = runner.invoke(app, ["bench", "all", "--against", str(tmp_path / "none")])
    assert "Cannot read" in str(missing.exception)
