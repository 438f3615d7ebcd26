"""The location of caches: in the environment, in the user's cache, in a named place, or with the pipeline."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from procession import cache


@pytest.fixture
def writable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> set[Path]:
    """Return the directories that count as writable; a test adds them.

    The user who runs the tests may be able to write anywhere.
    """
    found: set[Path] = set()
    monkeypatch.setattr(os, "access", lambda path, _mode: Path(path) in found)
    monkeypatch.setattr(cache, "INSTALLED", tmp_path / "prefix" / "var" / "procession")
    for name in (cache.VARIABLE, cache.NUMBA_VARIABLE, "XDG_CACHE_HOME", "HOME"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    for name in ("prefix", "home", "named", "xdg", "pipeline"):
        (tmp_path / name).mkdir()
    return found


def test_the_environment_comes_first_then_the_users_cache(
    tmp_path: Path, writable: set[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cache.cache_directory() is None
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache.cache_directory() is None, "a home directory that is not writable is ignored"
    writable.add(tmp_path / "home")
    assert str(cache.cache_directory()).startswith(f"{tmp_path}/home/.cache/procession/")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    writable.add(tmp_path / "xdg")
    assert str(cache.cache_directory()).startswith(f"{tmp_path}/xdg/procession/")
    writable.add(tmp_path / "prefix")
    assert cache.cache_directory() == tmp_path / "prefix" / "var" / "procession"


def test_a_missing_home_directory_is_not_used_for_the_cache(
    tmp_path: Path, writable: set[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "nonexistent"))
    assert cache.cache_directory() is None


def test_a_named_place_overrides_all_others_and_is_used_by_numba_too(
    tmp_path: Path, writable: set[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    writable |= {tmp_path / "named", tmp_path / "prefix"}
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "named" / "cache"))
    cache.find_place(tmp_path / "pipeline" / "cache")
    assert cache.cache_directory() == tmp_path / "named" / "cache"
    assert os.environ[cache.NUMBA_VARIABLE] == str(tmp_path / "named" / "cache" / "numba")


def test_without_a_writable_place_the_cache_is_in_the_pipelines_directory(
    tmp_path: Path, writable: set[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.find_place()
    assert cache.cache_directory() is None
    writable.add(tmp_path / "pipeline")
    cache.find_place(tmp_path / "pipeline" / "cache")
    assert cache.cache_directory() == tmp_path / "pipeline" / "cache"
    assert os.environ[cache.NUMBA_VARIABLE] == str(tmp_path / "pipeline" / "cache" / "numba")


def test_numba_keeps_its_cache_beside_the_modules_if_it_can(
    tmp_path: Path, writable: set[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    writable |= {tmp_path / "prefix", Path(cache.__file__).parent}
    cache.find_place(tmp_path / "pipeline" / "cache")
    assert cache.NUMBA_VARIABLE not in os.environ
    assert cache.VARIABLE not in os.environ
