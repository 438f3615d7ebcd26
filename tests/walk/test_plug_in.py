"""A connector in its own package, built and installed as any other, in a real run."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from procession.exit_status import Status
from tests.walk.cluster import wait_for
from tests.walk.commands import pids, run, running

PACKAGE = Path(__file__).resolve().parent.parent.parent / "examples" / "connector_package"

APP = """
from procession import Pipeline

pipeline = Pipeline("shop")
orders = pipeline.source("orders", from_="file:orders-?.txt", codec="text")
orders.key_by(lambda line: line[:1]).sink("by_letter", to="jsonl:out")
orders.filter(lambda line: int(line[1:]) % 2).sink("odd", to="jsonl:out?prefix=odd", key=lambda line: line[1:])
names = pipeline.source("names", from_="file:names.txt", codec="text")
names.map(str.upper).sink("names", to="file:names")
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the package, and return its directory."""
    place = tmp_path_factory.mktemp("plug-in")
    shutil.copytree(PACKAGE, place / "package")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(place / "dist")]
    subprocess.run(build, cwd=place / "package", check=True, capture_output=True)
    (wheel,) = (place / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as files:  # a wheel of Python alone is installed by unpacking it
        files.extractall(place / "site")
    return place / "site"


def _lines(place: Path, pattern: str) -> list[str]:
    """Return the lines of all files of an output, in order."""
    return [line for path in sorted(place.glob(pattern)) for line in path.read_text().splitlines()]


def test_a_pipeline_writes_to_a_scheme_that_an_installed_package_adds_and_ends_with_its_files(
    installed: Path, tmp_path: Path
) -> None:
    orders = {"a": [f"a{number}" for number in range(300)], "b": [f"b{number}" for number in range(300)]}
    for letter, lines in orders.items():
        (tmp_path / f"orders-{letter}.txt").write_text("".join(f"{line}\n" for line in lines))
    (tmp_path / "names.txt").write_text("ann\nbob\n")
    (tmp_path / "app.py").write_text(APP)
    explained = run("explain", "app.py", cwd=tmp_path, PYTHONPATH=str(installed))
    assert "sink by_letter: jsonl:out" in explained.stdout
    done = run("run", "app.py", "--listen", "127.0.0.1:0", cwd=tmp_path, PYTHONPATH=str(installed))
    assert done.returncode == Status.DONE, done.stderr
    assert "602 of 602 records committed" in done.stdout
    assert "sink 'by_letter' writes to jsonl:out" in done.stderr

    written = [json.loads(line) for line in _lines(tmp_path / "out", "part-shop-by_letter-0/*.jsonl")]
    for letter, lines in orders.items():
        own = [record for record in written if record["key"] == letter]
        assert [record["value"] for record in own] == lines
    assert len(written) == 600
    odd = [json.loads(line) for line in _lines(tmp_path / "out", "odd-shop-odd-0/*.jsonl")]
    assert {record["key"] for record in odd} == {str(number) for number in range(1, 300, 2)}
    assert all(record["value"][1:] == record["key"] for record in odd)
    assert not list((tmp_path / "out").rglob(".*")), "nothing is left in between"
    assert run("cat", "names", cwd=tmp_path).stdout == "ANN\nBOB\n"


@pytest.mark.slow
def test_connectors_that_are_killed_are_started_again_and_every_record_is_written_once_in_order(
    installed: Path, tmp_path: Path
) -> None:
    numbers = [str(number) for number in range(60_000)]
    (tmp_path / "numbers.txt").write_text("".join(f"{number}\n" for number in numbers))
    (tmp_path / "app.py").write_text(
        "from procession import Pipeline\n"
        "pipeline = Pipeline('numbers')\n"
        "source = pipeline.source('numbers', from_='file:numbers.txt', codec='text')\n"
        "source.sink('numbers', to='jsonl:out')\n"
    )
    output, pattern = tmp_path / "out", "part-numbers-numbers-0/*.jsonl"
    arguments = ("run", "app.py", "--listen", "127.0.0.1:0", "--epoch-records-max", "3000")
    with running(*arguments, cwd=tmp_path, PYTHONPATH=str(installed)) as pipeline:
        for part, files in (("source file", 1), ("sink jsonl", 4)):
            wait_for(lambda count=files: len(list(output.glob(pattern))) >= count, part, lambda: pipeline.said)
            for pid in pids(pipeline.mark, part):
                os.kill(pid, signal.SIGKILL)
            wait_for(lambda part=part: f"{part.split()[0]}-" in _restarted(pipeline.said), part, lambda: pipeline.said)
        assert pipeline.wait() == Status.DONE, pipeline.said
    assert [json.loads(line)["value"] for line in _lines(output, pattern)] == numbers


def _restarted(output: str) -> str:
    """Return the lines about restarted parts."""
    return "\n".join(line for line in output.splitlines() if "restarting it" in line)


def test_without_the_package_the_scheme_is_not_known_and_the_error_names_those_that_are(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    done = run("run", "app.py", cwd=tmp_path)
    assert done.returncode == Status.ACT
    assert "whose scheme no connector has" in done.stderr
    assert "file:DIR" in done.stderr


def test_a_sink_of_the_package_conforms(installed: Path, tmp_path: Path) -> None:
    done = run(
        *("sink", "check", "--only", "crash", "--", sys.executable, "-m", "procession", "sink", "jsonl"),
        *("{dir}/out", "{dir}", "--listen", "{listen}", "--open"),
        cwd=tmp_path,
        PYTHONPATH=str(installed),
    )
    assert done.returncode == Status.DONE, done.stdout + done.stderr
