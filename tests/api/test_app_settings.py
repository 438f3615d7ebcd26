"""Settings of an app: where a value comes from, how it is parsed, and the error if there is none."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import pytest

from procession import Pipeline, PlanError
from procession.deployment.settings import load_settings
from procession.driver import app_values
from procession.driver.app_file import load_app
from procession.errors import ConfigError, UsageError
from procession.testing import with_settings

APP = """
from procession import Pipeline

pipeline = Pipeline("alerts")
limit = pipeline.setting("max-count", int, default=3)
token = pipeline.setting("token", secret=True)
events = pipeline.source("events", codec="json")
events.filter(lambda event: event["count"] > limit).sink("alerts", to="file:output")
"""


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    # Set and unset, so that the values of `export` are removed afterwards.
    for name in ("PROCESSION_APP_MAX_COUNT", "PROCESSION_APP_TOKEN"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    path = tmp_path / "app.py"
    path.write_text(APP)
    return path


def values(app: Path) -> dict[str, Any]:
    return {setting.name: setting.value for setting in load_app(app).graph.settings}


def test_a_value_on_the_command_line_overrides_the_environment_the_file_and_the_default(
    app: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROCESSION_APP_TOKEN", "t")
    assert values(app) == {"max-count": 3, "token": "t"}
    Path("procession.toml").write_text("epoch_records_max = 7\n[app]\nmax-count = 4\ntoken = 'file'\n")
    assert values(app) == {"max-count": 4, "token": "t"}
    assert load_settings().epoch_records_max == 7
    monkeypatch.setenv("PROCESSION_APP_MAX_COUNT", "5")
    assert values(app) == {"max-count": 5, "token": "t"}
    app_values.export(["max-count=6", "token=a=b"])
    assert values(app) == {"max-count": 6, "token": "a=b"}


def test_explain_shows_each_setting_with_its_origin_and_hides_secrets(app: Path) -> None:
    app_values.export(["token=hunter2"])
    settings_text = "\n".join(
        f"{setting.name} = {setting.shown} ({setting.origin})" for setting in load_app(app).graph.settings
    )
    assert settings_text == "max-count = 3 (default)\ntoken = (secret) (--set token)"
    pipeline = Pipeline("p")
    pipeline.setting("limit", float, default=1.5)
    pipeline.source().sink("out", to="file:out")
    assert "\nsettings\n  limit = 1.5 (default)\n" in pipeline.explain()


def test_the_error_for_a_setting_without_a_value_says_how_to_set_it(app: Path) -> None:
    with pytest.raises(PlanError, match="needs the setting 'token', which has no value") as caught:
        load_app(app)
    assert caught.value.next_step == (
        "write --set token=…, set PROCESSION_APP_TOKEN, or write token = … under [app] in procession.toml"
    )


def test_a_misspelt_setting_is_refused(app: Path) -> None:
    Path("procession.toml").write_text("[app]\nmaxcount = 4\ntoken = 'file'\n")
    with pytest.raises(ConfigError, match=r"has no setting 'maxcount', which procession.toml sets"):
        load_app(app)


@pytest.mark.parametrize("text", ["[app", "app = 3"])
def test_an_unreadable_settings_file_is_reported_in_one_sentence(app: Path, text: str) -> None:
    Path("procession.toml").write_text(text)
    with pytest.raises(ConfigError, match=r"procession.toml (cannot be read|has app = 3)"):
        load_app(app)


@pytest.mark.parametrize("pair", ["limit", "=3", "a b=3", "-x=3"])
def test_an_option_that_is_not_a_name_and_a_value_is_refused(pair: str) -> None:
    with pytest.raises(UsageError, match="is not a setting"):
        app_values.export([pair])


@pytest.mark.parametrize(
    ("kind", "given", "value"),
    [
        (int, "7", 7),
        (float, "0.5", 0.5),
        (bool, "yes", True),
        (Decimal, "0.10", Decimal("0.10")),
        (Literal["a", "b"], "b", "b"),
        (str, "7", "7"),
        (int, 7, 7),
        (list[int], [1, 2], [1, 2]),
    ],
)
def test_a_value_is_parsed_as_its_declared_type(kind: Any, given: Any, value: Any) -> None:
    with with_settings(limit=given):
        assert Pipeline("p").setting("limit", kind) == value


def test_a_value_of_another_type_is_refused_without_showing_a_secret() -> None:
    with with_settings(limit="many"):
        with pytest.raises(
            PlanError, match="setting 'limit' is 'many' from with_settings: Input should be a valid int"
        ):
            Pipeline("p").setting("limit", int)
        with pytest.raises(PlanError) as caught:
            Pipeline("p").setting("limit", int, secret=True)
    assert "many" not in f"{caught.value} {caught.value.next_step}"


def test_an_invalid_declaration_of_a_setting_is_refused() -> None:
    pipeline = Pipeline("p")
    assert pipeline.setting("limit", int, default=3) == pipeline.setting("limit", int, default=3)
    with pytest.raises(PlanError, match="reads the setting 'limit' twice"):
        pipeline.setting("limit", int, default=4)
    with pytest.raises(PlanError, match="cannot name a setting"):
        pipeline.setting("a b")
    with pytest.raises(PlanError, match="cannot be read"):
        pipeline.setting("other", type("Strange", (), {}))


def test_a_default_of_another_type_than_declared_is_refused() -> None:
    assert repr(Pipeline("p").setting("limit", float, default=80)) == "80"
    assert repr(Pipeline("p").setting("limit", float, default="80")) == "80.0"
    assert Pipeline("p").setting("limit", float, default=None) is None
    with pytest.raises(PlanError, match="the default of setting 'limit' is 'many': ") as caught:
        Pipeline("p").setting("limit", float, default="many")
    assert caught.value.next_step
    with pytest.raises(PlanError) as caught:
        Pipeline("p").setting("limit", float, default="many", secret=True)
    assert "many" not in caught.value.explain()
