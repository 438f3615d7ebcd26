"""The packages that an app needs on another machine are found in its source code, without running it."""

from __future__ import annotations

from pathlib import Path

import pytest

from procession.deployment.app_packages import app_packages
from procession.errors import ConfigError


def app(place: Path, text: str, **modules: str) -> Path:
    for name, source in {"app": text, **modules}.items():
        path = place / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(source)
    return place / "app.py"


def test_our_package_is_included_with_its_requirements_and_without_spark() -> None:
    found = app_packages(None)
    assert {"procession", "pyarrow", "numba", "llvmlite", "numpy", "pydantic-core"} <= found.distributions
    assert not {"pyspark", "py4j", "pytest", "confluent-kafka"} & found.distributions
    assert found.modules == {}


def test_modules_beside_the_app_are_found_by_what_they_import(tmp_path: Path) -> None:
    path = app(
        tmp_path,
        "import first\nraise SystemExit('never run')",
        first="def later():\n    from folder.inner import value",
        folder__inner="import json",
        folder__data="",
        unused="",
    )
    assert set(app_packages(path).modules) == {"first.py", "folder/inner.py", "folder/data.py"}


def test_packages_that_the_app_or_its_modules_import_are_found(tmp_path: Path) -> None:
    path = app(tmp_path, "import first", first="import confluent_kafka\nimport os\nimport not_installed")
    found = app_packages(path)
    assert "confluent-kafka" in found.distributions
    assert set(found.modules) == {"first.py"}


def test_a_named_package_is_included_with_its_extra() -> None:
    assert "psycopg-binary" in app_packages(None, ["psycopg[binary]"]).distributions
    assert "psycopg-binary" not in app_packages(None, ["psycopg"]).distributions


def test_a_missing_package_and_an_unreadable_file_are_reported_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"The package nothing-of-this-name is not installed here\."):
        app_packages(None, ["nothing-of-this-name"])
    with pytest.raises(ConfigError, match=r"app\.py cannot be read: invalid syntax"):
        app_packages(app(tmp_path, "def"))
    with pytest.raises(ConfigError, match=r"nothing\.py cannot be read: No such file or directory\."):
        app_packages(tmp_path / "nothing.py")
