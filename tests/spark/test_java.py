"""The Java that is found, and the error if Spark cannot use any."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from procession.errors import ConfigError
from procession.spark.java import check_java, java_build


def made(home: Path, version: str, *, has_release: bool) -> Path:
    """Create a Java of this version: its version is in its `release` file, or is printed only when it is started."""
    (home / "bin").mkdir(parents=True)
    java = home / "bin" / "java"
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2024-01-16' >&2\n")
    java.chmod(0o755)
    if has_release:
        (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
        java.write_text("#!/bin/sh\nexit 1\n")
    return home


@pytest.mark.parametrize("has_release", [True, False])
@pytest.mark.parametrize(("version", "major"), [("11.0.22", 11), ("1.8.0_292", 8), ("16", 16)])
def test_an_old_java_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, major: int, has_release: bool
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(made(tmp_path, version, has_release=has_release)))
    with pytest.raises(
        ConfigError, match=f"needs Java 17 or newer, and {tmp_path}/bin/java is Java {major}$"
    ) as caught:
        check_java()
    assert "install Java 17" in caught.value.next_step


@pytest.mark.parametrize("has_release", [True, False])
@pytest.mark.parametrize("version", ["17", "17.0.9", "21.0.2", "25-ea", "of my own"])
def test_a_new_java_is_accepted_and_one_without_a_version_is_left_to_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, has_release: bool
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(made(tmp_path, version, has_release=has_release)))
    check_java()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("#!/bin/sh\necho 'Error: could not find libjava.so' >&2\nexit 2\n", "Error: could not find libjava.so"),
        ("#!/bin/sh\nexit 1\n", "it exits with status 1 and prints nothing"),
        ("\x7fELF of another machine", "Exec format error"),
    ],
)
def test_a_java_that_does_not_run_is_reported_with_its_own_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, why: str
) -> None:
    (made(tmp_path, "17", has_release=False) / "bin" / "java").write_text(text)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match=f"{tmp_path}/bin/java does not run: {why}$"):
        check_java()


def test_java_is_found_in_the_path_through_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    home = made(tmp_path / "jdk", "11", has_release=True)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(ConfigError, match=r"is Java 11$"):
        check_java()


def test_a_missing_java_is_reported_with_the_places_that_were_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(ConfigError, match="there is no java in PATH"):
        check_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match=r"JAVA_HOME is .*nowhere, which has no bin/java"):
        check_java()


def test_a_user_without_a_name_gets_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    with pytest.raises(ConfigError, match=f"user {os.getuid()} has no user name on this machine"):
        check_java()


def test_a_class_archive_belongs_to_a_java_whatever_options_the_environment_gives_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`java -version` prints JAVA_TOOL_OPTIONS."""
    monkeypatch.setenv("JAVA_HOME", str(made(tmp_path / "one", "17.0.1", has_release=True)))
    first = java_build()
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Xmx1g")
    assert java_build() == first
    monkeypatch.setenv("JAVA_HOME", str(made(tmp_path / "two", "17.0.2", has_release=True)))
    assert java_build() != first
    monkeypatch.setenv("JAVA_HOME", str(made(tmp_path / "three", "17.0.2", has_release=False)))
    assert "17.0.2" in java_build()
