"""A problem of an executor is reported in one sentence that names its host."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle

from procession.spark import executor_check
from procession.spark.executor_check import (
    CLOCK_TOLERANCE_S,
    PACKAGES,
    ROOM_BYTES_MIN,
    clock_notice,
    complaint,
    examine,
    failure,
    own_packages,
    service_notice,
    unreachable_service,
)
from procession.storage.host_runs import ANNOUNCEMENT, DIRECTORY_VARIABLE

OWN = {"procession": "0.1.0", "pyspark": "4.3.0", "pyarrow": "21.0.0"}
GOOD: dict[str, Any] = {
    "host": "10.0.0.2",
    "python": "3.11.7",
    "packages": OWN,
    "directory": "/data/host",
    "free_bytes": ROOM_BYTES_MIN,
    "service": "grpc://10.0.0.2:7300",
    "unreachable": "",
    "clock_s": 100.0,
}


def test_this_process_has_no_problem() -> None:
    (facts,) = examine([1])
    assert set(facts["packages"]) == set(PACKAGES)
    assert complaint(facts, own_packages(), has_services=False) is None
    assert clock_notice(facts, time.time(), time.time()) is None


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"packages": {**OWN, "procession": ""}}, "The executor on 10.0.0.2 does not have the package procession."),
        ({"packages": {**OWN, "pyarrow": "20"}}, "The executor on 10.0.0.2 has pyarrow 20, the driver 21.0.0."),
        ({"directory": ""}, "The executor on 10.0.0.2 has no host service: PROCESSION_HOST_DIR is not set."),
        ({"free_bytes": 1_000_000}, "The disk of /data/host on 10.0.0.2 has only 1.0 MB free."),
    ],
)
def test_each_problem_is_reported_in_one_sentence(changed: dict[str, Any], sentence: str) -> None:
    assert complaint(GOOD, OWN, has_services=True) is None
    found = complaint({**GOOD, **changed}, OWN, has_services=True)
    assert found is not None
    assert found.sentence == sentence
    assert found.next_step


def test_without_host_services_no_directory_is_needed() -> None:
    assert complaint({**GOOD, "directory": "", "free_bytes": None}, OWN, has_services=False) is None


@pytest.mark.parametrize(
    ("changed", "unreachable", "sentence"),
    [
        ({"service": ""}, "", "no host service has been started in /data/host on 10.0.0.2"),
        ({"unreachable": "refused"}, "", "the host service on 10.0.0.2 does not run at grpc://10.0.0.2:7300: refused"),
        ({}, "timed out", "the driver cannot reach the host service on 10.0.0.2 at grpc://10.0.0.2:7300: timed out"),
    ],
)
def test_a_host_service_that_does_not_run_is_waited_for(
    changed: dict[str, Any], unreachable: str, sentence: str
) -> None:
    assert service_notice(GOOD, "") is None
    assert complaint({**GOOD, **changed}, OWN, has_services=True) is None
    assert service_notice({**GOOD, **changed}, unreachable) == f"{sentence}; waiting for it"


def test_an_executor_finds_out_whether_its_host_service_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path))
    (before,) = examine([1])
    assert (before["service"], before["unreachable"]) == ("", "")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        location = f"grpc://127.0.0.1:{listener.getsockname()[1]}"
        (tmp_path / ANNOUNCEMENT).write_text(json.dumps({"location": location}))
        (serving,) = examine([1])
        assert (serving["service"], serving["unreachable"]) == (location, "")
        assert unreachable_service(location) == ""
    (after,) = examine([1])
    assert (after["service"], after["unreachable"]) == (location, "Connection refused")
    assert unreachable_service(location) == "Connection refused"


@pytest.mark.parametrize("apart_s", [CLOCK_TOLERANCE_S + 1, -CLOCK_TOLERANCE_S - 1])
def test_a_clock_that_is_apart_is_reported(apart_s: float) -> None:
    assert clock_notice(GOOD, 99.0, 101.0) is None
    assert clock_notice(GOOD, 100.0 + CLOCK_TOLERANCE_S, 120.0) is None
    notice = clock_notice({**GOOD, "clock_s": 100.0 + apart_s}, 100.0, 100.0)
    assert notice is not None
    assert "the clock of the executor on 10.0.0.2 is 6 s apart" in notice


def test_another_python_and_a_missing_python_are_recognised_in_the_text_of_spark() -> None:
    mismatch = (
        "PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.10 than that in"
        " driver: 3.11, PySpark cannot run with different minor versions."
    )
    found = failure(mismatch)
    assert found is not None
    assert found.sentence == "Executors run Python 3.10, the driver runs 3.11."
    found = failure('java.io.IOException: Cannot run program "/x/bin/python": error=2, No such file or directory')
    assert found is not None
    assert found.sentence == "Executors have no Python at /x/bin/python."
    found = failure("java.io.FileNotFoundException: File does not exist: hdfs://name/environment.tar.gz\n at x")
    assert found is not None
    assert found.sentence == "Executors cannot fetch hdfs://name/environment.tar.gz: there is no such file."
    assert failure("something else") is None


def test_the_question_runs_without_our_package() -> None:
    cloudpickle.register_pickle_by_value(executor_check)
    try:
        pickled = cloudpickle.dumps(examine)
    finally:
        cloudpickle.unregister_pickle_by_value(executor_check)
    program = (
        "import pickle, sys; sys.modules['procession'] = None;"
        f" print(next(pickle.loads({pickled!r})([]))['host'] != '')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout == "True\n", done.stderr
