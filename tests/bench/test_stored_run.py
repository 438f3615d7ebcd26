"""Two runs of a benchmark are compared: only figures that changed by more than their noise are named."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer import Exit, Typer
from typer.main import get_group
from typer.testing import CliRunner

from procession.bench import credits as credit_bench
from procession.bench import decode
from procession.bench.repeated_runs import BenchmarkFailed, RepeatedRuns
from procession.bench.stored_run import Runs, compare, stored, stored_runs
from procession.cli import bench_all_command, bench_command
from procession.cli.main import app
from procession.errors import ConfigError
from procession.exit_status import Status

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


def test_a_small_change_is_not_named_even_without_noise() -> None:
    assert moved(runs(1.0, 1.0), runs(1.02, 1.02)) == []
    assert moved(runs(1.0, 1.0), runs(1.04, 1.04)) == ["decode ratio"]


def test_processor_time_is_compared_and_seconds_are_not() -> None:
    assert moved(runs(1.0, 1.0), runs(1.0, 1.0, cpu_us=2.0, seconds=9.0)) == ["decode cpu_us_per_record.driver"]


def test_other_options_and_other_benchmarks_are_not_compared() -> None:
    comparison = compare(runs(1.0), {**runs(2.0, command=f"{COMMAND} --rounds 9"), "state": [{"ratio": 1.0}]})
    assert comparison.figures == ()
    assert [sentence.split()[0] for sentence in comparison.skipped] == ["decode", "state"]


@pytest.mark.parametrize("document", [None, [], {}, {"format": 9, "runs": {}}, {"format": 1, "runs": {"decode": []}}])
def test_a_file_that_is_not_a_stored_run_is_refused(document: Any) -> None:
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


@dataclass
class BrokenBenchmark:
    """A benchmark that measures once and then fails."""

    calls: int = 0

    def measure(self, *_: object) -> dict[str, Any]:
        self.calls += 1
        if self.calls > 1:
            raise ConfigError("The machine is too small.", next_step="Take another one.")
        return {"ratio": 1.0}


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `bench credits` fail after its first run, and keep `bench decode` quick."""
    measure = decode.measure
    monkeypatch.setattr(decode, "measure", lambda frames, rounds: measure(1_000, 1))
    monkeypatch.setattr(credit_bench, "measure", BrokenBenchmark().measure)
    monkeypatch.setattr(credit_bench, "report_lines", lambda _: ["credits are measured"])


BOTH = ["bench", "all", "--only", "credits", "--only", "decode", "--repeats", "2"]
FAILURE = "credits failed in 1 of 2 runs: The machine is too small."


@pytest.mark.usefixtures("broken")
def test_a_benchmark_that_fails_is_named_and_the_others_are_kept(tmp_path: Path) -> None:
    runner, file = CliRunner(), tmp_path / "run.json"
    result = runner.invoke(app, [*BOTH, "--save", str(file)])
    assert result.exit_code == Status.UNCLEAN
    assert result.stdout.splitlines()[-1] == FAILURE
    kept = stored_runs(json.loads(file.read_bytes()), str(file))
    assert {name: len(figures) for name, figures in kept.items()} == {"credits": 1, "decode": 2}
    again = runner.invoke(app, [*BOTH, "--against", str(file), "--json"])
    assert again.exit_code == Status.UNCLEAN
    found = json.loads(again.stdout)
    assert found["failures"] == {"credits": ["The machine is too small."] * 2}
    assert [figure["name"] for figure in found["figures"]] == ["decode decode.ratio", "decode encode.ratio"]


@pytest.mark.usefixtures("broken")
def test_bench_without_a_name_continues_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    found = bench_command.benchmarks_of
    chosen = ("credits", "credits again", "decode")
    monkeypatch.setattr(
        bench_command, "benchmarks_of", lambda group: {name: found(group)[name.partition(" ")[0]] for name in chosen}
    )
    result = CliRunner().invoke(app, ["bench"])
    assert result.exit_code == Status.UNCLEAN
    assert "columns are" in result.stdout
    assert result.stdout.splitlines()[-1] == "credits again failed in 1 of 1 runs: The machine is too small."


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ConfigError("One line.\nAnother."), "One line."),
        (BenchmarkFailed("it ended with status 3"), "it ended with status 3"),
        (ValueError("no\nmore"), "ValueError: no"),
        (AssertionError(), "AssertionError"),
        (SystemExit(2), "SystemExit: 2"),
    ],
)
def test_every_failure_has_a_reason_of_one_line(error: BaseException, reason: str) -> None:
    found = RepeatedRuns()

    def fail(_: str) -> dict[str, Any]:
        raise error

    found.measure(["it"], 1, fail)
    assert found.failures == {"it": [reason]}


def test_a_status_other_than_0_and_output_that_is_not_json_are_failures() -> None:
    table = Typer()
    table.command(name="ending")(_end)
    table.command(name="chatting")(_chat)
    commands = get_group(table).commands
    with pytest.raises(BenchmarkFailed, match="it ended with status 3"):
        bench_command.run_benchmark(commands["ending"], "ending", "--json")
    with pytest.raises(BenchmarkFailed, match="it printed no figures as JSON"):
        bench_all_command._figures_of(commands["chatting"], "chatting")


def _end(*, json: bool = False) -> None:
    raise Exit(3)


def _chat(*, json: bool = False) -> None:
    print("fast")


def test_an_interrupt_ends_all_and_keeps_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "measure", BrokenBenchmark().measure)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(credit_bench, "measure", interrupted)
    file = tmp_path / "run.json"
    chosen = ["bench", "all", "--only", "decode", "--only", "credits", "--repeats", "2", "--save", str(file)]
    assert CliRunner().invoke(app, chosen).exit_code == Status.INTERRUPTED
    kept = stored_runs(json.loads(file.read_bytes()), str(file))
    assert {name: len(figures) for name, figures in kept.items()} == {"decode": 1}


def test_bad_arguments_are_reported_in_one_sentence(tmp_path: Path) -> None:
    runner = CliRunner()
    assert "There is no benchmark" in str(runner.invoke(app, ["bench", "all", "--only", "speed"]).exception)
    missing = runner.invoke(app, ["bench", "all", "--against", str(tmp_path / "none")])
    assert "Cannot read" in str(missing.exception)
