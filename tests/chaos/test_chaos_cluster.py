"""`procession chaos` as a command: errors for wrong arguments, and its display. No cluster is started."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from procession.chaos import systems
from procession.chaos.machine_scenarios import MACHINES
from procession.chaos.scenario import STANDARD, ClusterParts
from procession.chaos.scenario_catalogue import BY_NAME
from procession.chaos.system_parts import KAFKA_CLUSTER, LAKE_CLUSTER, POSTGRES_CLUSTER, SYSTEM_CLUSTERS
from procession.cli.chaos_command import _clusters, _drawn, _matching, _recorded
from procession.errors import ConfigError, UsageError

CHAOS = (sys.executable, "-m", "procession", "chaos")


@pytest.mark.parametrize(
    ("arguments", "status", "sentence"),
    [
        (["--scenario", "crash-snk"], 2, "did you mean crash-sink or"),
        (["--scenario", "crash-sink", "--replay", "schedule.json"], 2, "use --replay without --scenario"),
        (["--replay", "nowhere.json"], 3, "The file nowhere.json is not a schedule: No such file or directory."),
        (["--report", "/proc/chaos"], 3, "choose another directory with --report"),
    ],
)
def test_invalid_arguments_are_reported_in_one_sentence_before_anything_starts(
    arguments: list[str], status: int, sentence: str
) -> None:
    run = subprocess.run([*CHAOS, *arguments], capture_output=True, text=True, check=False)
    assert run.returncode == status
    assert sentence.lower() in run.stderr.lower()
    assert "Traceback" not in run.stderr
    assert not run.stdout


@pytest.mark.parametrize(
    ("schedule", "sentence"),
    [
        ({"seed": 1, "runs": []}, "it has no runs"),
        (
            {"seed": 1, "runs": [{"scenario": "one", "steps": [{"do": "kill", "on": "gateway-9"}]}]},
            "'gateway-9' is none of",
        ),
        ({"seed": 1, "runs": [{"scenario": "one", "steps": [{"do": "dance"}]}]}, "is not a schedule"),
        ({"seed": 1, "runs": ["one"]}, "is not a schedule"),
        ([], "is not a schedule"),
        ({"runs": []}, "is not a schedule: KeyError: 'seed'"),
    ],
)
def test_a_schedule_that_cannot_be_run_is_refused_with_the_reason(
    tmp_path: Path, schedule: object, sentence: str
) -> None:
    path = tmp_path / "schedule.json"
    path.write_text(json.dumps(schedule))
    with pytest.raises(ConfigError, match=sentence):
        _recorded(path)


def test_the_list_names_every_scenario() -> None:
    listed = subprocess.run([*CHAOS, "--list", "--json"], capture_output=True, check=True)
    assert json.loads(listed.stdout).keys() == BY_NAME.keys()


def test_every_scenario_runs_once_even_in_a_short_time() -> None:
    over = time.monotonic() - 1
    for cluster in (STANDARD, MACHINES, *SYSTEM_CLUSTERS):
        own = sorted(name for name, scenario in BY_NAME.items() if scenario.cluster is cluster)
        assert sorted(run.scenario for run in _drawn([], 7, over, cluster)) == own
    assert [run.scenario for run in _drawn(["crash-sink", "none"], 7, over)] == ["crash-sink", "none"]


def test_long_scenarios_run_in_the_first_turn_only() -> None:
    names = [run.scenario for run, _ in zip(_drawn([], 7, float("inf")), range(3 * len(BY_NAME)), strict=False)]
    own = {name for name, scenario in BY_NAME.items() if scenario.cluster is STANDARD}
    long = {name for name in own if BY_NAME[name].is_long}
    assert long
    assert all(names.count(name) == 1 for name in long)
    assert all(names.count(name) >= 2 for name in own - long)


def test_the_same_seed_draws_the_same_runs() -> None:
    first, again, other = (list(_drawn([], seed, None)) for seed in (7, 7, 8))
    assert first == again != other


def test_a_pattern_selects_all_scenarios_that_match() -> None:
    names = _matching(["kafka-*", "none", "kafka-mixed"])
    assert set(names) == {"none", *(name for name in BY_NAME if name.startswith("kafka-"))}
    assert len(names) == len(set(names))
    with pytest.raises(UsageError, match="no scenario is called 'kafca-"):
        _matching(["kafca-*"])


@pytest.fixture
def without_kafka(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(cluster: ClusterParts) -> None:
        if cluster is KAFKA_CLUSTER:
            raise ConfigError("There is no Kafka broker.", next_step="Run scripts/kafka.")

    monkeypatch.setattr(systems, "check_installed", check)


@pytest.mark.usefixtures("without_kafka")
def test_a_system_that_is_not_installed_is_skipped_with_one_line_unless_it_was_requested() -> None:
    sentences: list[str] = []
    others = [system for system in SYSTEM_CLUSTERS if system is not KAFKA_CLUSTER]
    assert _clusters([], sentences.append) == [*others, MACHINES, STANDARD]
    assert sentences == ["omitted: the scenarios of the cluster kafka. There is no Kafka broker. Run scripts/kafka."]
    assert _clusters(["delta-two-sinks", "postgres-mixed"], sentences.append) == [POSTGRES_CLUSTER, LAKE_CLUSTER]
    with pytest.raises(ConfigError, match="There is no Kafka broker"):
        _clusters(["postgres-mixed", "kafka-mixed"], sentences.append)
