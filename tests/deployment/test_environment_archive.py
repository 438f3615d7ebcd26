"""An environment archive provides our packages to a plain Python, wherever it is unpacked."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from procession.deployment.app_packages import AppPackages
from procession.deployment.environment_archive import NO_PYTHON, packed
from procession.errors import ConfigError
from procession.spark.shipped_environment import check_archive
from tests.systems.standalone_cluster import PLAIN_PYTHON, VERSION

SMALL = AppPackages({}, {"procession", "msgpack"})


def unpacked(archive: Path, place: Path) -> Path:
    with tarfile.open(archive) as found:
        found.extractall(place, filter="tar")
    return place / "bin" / "python"


def run(python: Path, program: str, programs: Path) -> subprocess.CompletedProcess[str]:
    """Run a program on a machine that has only these programs."""
    return subprocess.run(
        [python, "-c", program], env={"PATH": str(programs)}, capture_output=True, text=True, check=False, cwd="/"
    )


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    place = tmp_path / "programs"
    place.mkdir()
    for program in ("sh", "dirname", "hostname"):
        found = shutil.which(program)
        assert found is not None
        (place / program).symlink_to(found)
    return place


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("archive")
    (place / "beside.py").write_text("value = 5")
    needed = AppPackages({"beside.py": place / "beside.py"}, SMALL.distributions)
    return packed(place, needed, has_python=False)


def test_a_plain_python_imports_our_package_and_the_apps_modules(archive: Path, tmp_path: Path, programs: Path) -> None:
    python = unpacked(archive, tmp_path / "there")
    (programs / f"python{VERSION}").symlink_to(PLAIN_PYTHON)
    program = "import beside, msgpack, procession; from importlib.metadata import version; print(procession.__file__,"
    done = run(python, f"{program} beside.value, version('procession'))", programs)
    assert done.stdout.startswith(str(tmp_path / "there" / "packages")), done.stderr
    assert done.stdout.split()[1] == "5"


def test_without_a_python_the_script_reports_it(archive: Path, tmp_path: Path, programs: Path) -> None:
    done = run(unpacked(archive, tmp_path / "there"), "1", programs)
    assert done.returncode == 127
    assert done.stderr.startswith(f"{NO_PYTHON} {VERSION} on ")


def test_another_version_of_python_is_not_used(archive: Path, tmp_path: Path, programs: Path) -> None:
    (programs / "python3").write_text("#!/bin/sh\nexit 1\n")
    (programs / "python3").chmod(0o755)
    assert run(unpacked(archive, tmp_path / "there"), "1", programs).stderr.startswith(NO_PYTHON)


@pytest.mark.slow
def test_a_packed_python_needs_no_other(tmp_path: Path, programs: Path) -> None:
    archive = packed(tmp_path, SMALL, has_python=True)
    program = "import ssl, sqlite3, asyncio, ctypes, msgpack, sys; print(sys.prefix)"
    done = run(unpacked(archive, tmp_path / "there"), program, programs)
    assert done.stdout.strip() == str(tmp_path / "there" / "python"), done.stderr


def test_files_and_modes_are_kept_and_tests_are_left_out(archive: Path) -> None:
    with tarfile.open(archive) as found:
        names = set(found.getnames())
        assert found.getmember("bin/python").mode == 0o755
        assert all(member.isreg() and member.uid == 0 for member in found)
    assert "packages/procession/spark/worker_daemon.py" in names
    assert not [name for name in names if "/tests/" in name or name.endswith(".pth")]


def test_an_archive_is_built_again_only_when_a_file_changes(tmp_path: Path) -> None:
    module = tmp_path / "beside.py"
    module.write_text("value = 1")
    needed = AppPackages({"beside.py": module}, set())
    first = packed(tmp_path, needed, has_python=False)
    made = first.stat().st_mtime_ns
    assert packed(tmp_path, needed, has_python=False) == first
    assert first.stat().st_mtime_ns == made
    for value in (22, 333):
        module.write_text(f"value = {value}")
        latest = packed(tmp_path, needed, has_python=False)
    assert latest != first
    assert len(list(tmp_path.glob("environment-*"))) == 2, "old archives are removed"


def test_an_archive_that_is_missing_or_of_another_kind_is_reported_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"There is no environment archive .*nothing\.tar\.gz\."):
        check_archive(str(tmp_path / "nothing.tar.gz"))
    (tmp_path / "some.zip").touch()
    with pytest.raises(ConfigError, match=r"does not end in \.tar\.gz"):
        check_archive(str(tmp_path / "some.zip"))
    with pytest.raises(ConfigError, match="There is no environment archive file:"):
        check_archive(f"file://{tmp_path}/nothing.tar.gz")
    assert check_archive("hdfs://name/environment.tar.gz") == "hdfs://name/environment.tar.gz"
