"""The machines of executors are checked before anything is shipped to them, and each problem is one sentence."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from procession.spark.executor_probe import SCRIPT, SPACE_FACTOR, MachineFacts, complaint, read_facts
from procession.spark.shipped_environment import PACKED_PYTHON, VERSION, ShippedEnvironment
from tests.systems.standalone_cluster import PLAIN_PYTHON

MIB = 1024 * 1024


def asked(programs: Path) -> MachineFacts:
    """Return the facts of a machine that has only these programs."""
    shell = shutil.which("sh")
    assert shell is not None
    done = subprocess.run(
        [shell, "-c", SCRIPT], env={"PATH": str(programs)}, input="1\n", capture_output=True, text=True, check=False
    )
    (facts,) = read_facts(done.stdout.splitlines())
    return facts


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    for program in ("cat", "hostname", "df", "tail"):
        found = shutil.which(program)
        assert found is not None
        (tmp_path / program).symlink_to(found)
    return tmp_path


def test_a_machine_says_its_name_its_pythons_and_its_free_space(programs: Path) -> None:
    (programs / f"python{VERSION}").symlink_to(PLAIN_PYTHON)
    facts = asked(programs)
    assert facts.host
    assert facts.pythons == (VERSION,)
    assert facts.free_bytes is not None
    assert facts.free_bytes > MIB
    assert complaint(facts, 0, has_python=False) is None


def test_a_machine_without_python_or_with_another_one_is_one_sentence(programs: Path) -> None:
    found = complaint(asked(programs), 0, has_python=False)
    assert found is not None
    assert found.sentence.endswith(f"has no Python {VERSION}.")
    assert complaint(asked(programs), 0, has_python=True) is None
    found = complaint(MachineFacts("10.0.0.2", ("3.9",), None), 0, has_python=False)
    assert found is not None
    assert found.sentence == f"The executor on 10.0.0.2 has no Python {VERSION}; it has 3.9."


def test_a_machine_without_room_is_one_sentence() -> None:
    facts = MachineFacts("10.0.0.2", (VERSION,), SPACE_FACTOR * MIB)
    assert complaint(facts, MIB, has_python=False) is None
    found = complaint(facts, MIB + 1, has_python=False)
    assert found is not None
    assert found.sentence == "The disk of the executor on 10.0.0.2 has 5 MB free, and its environment needs 5 MB."


def test_facts_of_several_machines_are_kept_apart_and_missing_ones_are_unknown() -> None:
    lines = ["host one", "python 3.11", "python 3.9", "free /dev/x 9 9 7 1% /", "host two", "free "]
    assert list(read_facts(lines)) == [
        MachineFacts("one", ("3.11", "3.9"), 7 * 1024),
        MachineFacts("two", (), None),
    ]


def test_an_archive_says_whether_it_has_a_python(tmp_path: Path) -> None:
    def archive(*names: str) -> ShippedEnvironment:
        path = tmp_path / f"{len(names)}.tar.gz"
        with tarfile.open(path, "w:gz") as files:
            for name in names:
                files.addfile(tarfile.TarInfo(name))
        return ShippedEnvironment(str(path), "127.0.0.1", b"secret")

    assert not archive("bin/python").may_have_python
    assert archive("bin/python", PACKED_PYTHON, "more").may_have_python
    assert ShippedEnvironment("hdfs://name/environment.tar.gz", "127.0.0.1", b"").may_have_python
    assert archive("bin/python").archive_bytes > 0
    assert "secret" not in repr(archive("bin/python"))


def test_spark_gets_an_archive_of_this_machine_as_a_uri_and_another_one_as_it_is() -> None:
    named = {
        name: ShippedEnvironment(name, "127.0.0.1", b"").location for name in ("/a b/c.tar.gz", "hdfs://n/c.tar.gz")
    }
    assert list(named.values()) == ["file:///a%20b/c.tar.gz#environment", "hdfs://n/c.tar.gz#environment"]
