"""A pipeline whose tasks use a host service and the driver's file service, and no directory of the pipeline. Its output
is that of the same pipeline in one process."""

from __future__ import annotations

import base64
import importlib.util
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from procession import Pipeline
from procession.deployment.local_pipeline import COMMAND, DRIVER, announced_in
from procession.deployment.settings import Settings
from procession.exit_status import Status
from procession.storage.host_runs import DIRECTORY_VARIABLE
from procession.storage.secret import Secret, make_secret, path_of
from procession.supervisor.part import Part
from procession.testing import run as run_in_process
from procession.verify.sink_outputs import committed_output
from tests.walk.cluster import Cluster, wait_for
from tests.walk.commands import Running, running

APP = """
from pathlib import Path
from procession import Pipeline, aggregates, tables

def last(word):
    return word[-1]

def named(word, row):
    return f"{word} {row['name']}"

pipeline = Pipeline("spread", parallelism=2)
words = pipeline.source("words", codec="text")
counts = words.key_by(last).rolling(aggregates.count()).map(str)
letters = tables.of_json_lines(Path(__file__).parent / "letters.jsonl", by="letter")
joined = words.rebalance().hash_join(letters, key=last, join=named)
counts.merge(joined).sink("output", to="file:output", codec="text")
"""
LETTERS = "abcdefg"
WORDS = [f"{number}{LETTERS[number % 7]}" for number in range(900)]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "input.txt").write_text("".join(f"{word}\n" for word in WORDS))
    (tmp_path / "letters.jsonl").write_text(
        "".join(f'{{"letter": "{letter}", "name": "{letter * 3}"}}\n' for letter in LETTERS)
    )
    make_secret(tmp_path / "shared", Secret.CONTROL)
    return tmp_path


def _await(is_so: Callable[[], bool], command: Running) -> None:
    wait_for(is_so, "it", lambda: command.said)


def app_of(place: Path) -> Pipeline:
    spec = importlib.util.spec_from_file_location("spread_app", place / "app.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    pipeline: Pipeline = module.pipeline
    return pipeline


def output(place: Path) -> bytes:
    return b"".join(committed_output(place / "output", None))


def expected(place: Path) -> bytes:
    return run_in_process(app_of(place), {"words": WORDS}).bytes["output"]


ARGUMENTS = ("run", "app.py", "--input", "input.txt", "--listen", "127.0.0.1:0", "--host-services")


def test_with_a_host_service_tasks_use_no_directory_of_the_pipeline(place: Path) -> None:
    cookie = ("--control-cookie-file", path_of(place / "shared", Secret.CONTROL))
    with running("host", "--dir", place / "host", "--listen", "127.0.0.1:0", *cookie, cwd=place) as service:
        _await(lambda: "serving the runs" in service.said, service)
        (place / "events").mkdir()
        events = ("--conf", "spark.eventLog.enabled=true", "--conf", f"spark.eventLog.dir={place / 'events'}")
        arguments = (*ARGUMENTS, *cookie, "--epoch-records-max", "500", *events)
        with running(*arguments, cwd=place, PROCESSION_HOST_DIR=str(place / "host")) as command:
            assert command.wait() == Status.DONE, command.said
    assert output(place) == expected(place)
    assert list(place.glob(".procession/spread/runs/*/*/*/*.manifest")) == [], "tasks publish in the host's directory"
    of_record = {path.name for path in place.glob(".procession/spread/state/*/*.state")}
    assert of_record
    assert of_record <= {path.name for path in place.glob("host/states/*/*.state")}
    assert list(place.glob("host/tables/*/*.jsonl")), "the table was copied for the tasks"
    assert list((place / "events").iterdir()), "a property that is given with --conf reaches Spark"


FAILING = """
from procession import Pipeline

def checked(word):
    if word.endswith("bad"):
        raise ValueError("bad")
    return word

pipeline = Pipeline("spread", parallelism=2, dead_letter="file:dead")
words = pipeline.source("words", codec="text")
words.rebalance().map(checked).sink("output", to="file:output", codec="text")
"""


def test_two_gateways_feed_tasks_of_host_services_and_an_error_names_the_record_of_its_gateway(place: Path) -> None:
    cookie = path_of(place / "shared", Secret.CONTROL)
    settings = Settings(host_services=True, gateways=2, flight="127.0.0.1:0", control_cookie_file=cookie)
    host = Part("host", (*COMMAND, "host", "--dir", str(place / "host"), "--control-cookie-file", str(cookie)))
    host = replace(host, argv=(*host.argv, "--listen", "127.0.0.1:0"), is_ready=announced_in(place / "host/host.json"))
    inputs = {gateway: [f"{gateway} {number}" for number in range(40)] for gateway in ("gateway", "gateway-1")}
    for gateway, words in inputs.items():
        words[17] = f"{gateway} bad"
    with Cluster(place, FAILING, settings) as cluster:
        driver = {**cluster.local.env[DRIVER], DIRECTORY_VARIABLE: str(place / "host")}
        cluster.local = replace(cluster.local, env={**cluster.local.env, DRIVER: driver})
        cluster.supervisor.start(host)
        assert cluster.local.start(), cluster.describe()
        for turn, (gateway, words) in enumerate(inputs.items()):
            path = place / f"{gateway}.txt"
            path.write_text("".join(f"{word}\n" for word in words))
            cluster.local.start_source([path], name=f"source-{gateway}", turn=turn)
        for gateway in inputs:
            cluster.until(lambda gateway=gateway: cluster.supervisor.is_done(f"source-{gateway}"), "the end")
    letters = [json.loads(line) for line in b"".join(committed_output(place / "dead", None)).splitlines()]
    assert sorted(base64.b64decode(letter["payload"]) for letter in letters) == [b"gateway bad", b"gateway-1 bad"]
    assert len({letter["stream_id"] for letter in letters}) == 2
    lines = output(place).decode().splitlines()
    for gateway, words in inputs.items():
        of_gateway = [line for line in lines if line.startswith(f"{gateway} ")]
        assert sorted(of_gateway) == sorted(word for word in words if not word.endswith("bad"))
