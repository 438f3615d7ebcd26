"""Groups of options: a command has the options of its groups and gets their values as one object."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated

import typer
from typer.testing import CliRunner

from procession.cli.command_options import PipelineSettings, with_groups
from procession.deployment.settings import Settings


@dataclass(frozen=True, kw_only=True)
class Inner:
    depth: Annotated[int, typer.Option("--how-deep", min=1)] = 3


@dataclass(frozen=True, kw_only=True)
class Outer:
    place: Annotated[str, typer.Option(help="Where.")]
    inner: Inner
    is_loud: Annotated[bool, typer.Option("--loud")] = False


app = typer.Typer()


@app.command()
@with_groups
def show(name: Annotated[str, typer.Argument()], times: int = 1, *, outer: Outer) -> None:
    """Print the given values."""
    print(name, times, outer)


def test_a_group_has_the_given_values_and_defaults_for_the_others() -> None:
    given = CliRunner().invoke(app, ["ann", "--times", "2", "--place", "here", "--how-deep", "5"])
    assert given.output == f"ann 2 {Outer(place='here', inner=Inner(depth=5), is_loud=False)}\n"
    fewer = CliRunner().invoke(app, ["ann", "--place", "here", "--loud"])
    assert fewer.output == f"ann 1 {Outer(place='here', inner=Inner(), is_loud=True)}\n"


def test_the_checks_of_an_option_apply_in_a_group() -> None:
    assert CliRunner().invoke(app, ["ann", "--place", "here", "--how-deep", "0"]).exit_code == 2
    assert CliRunner().invoke(app, ["ann"]).exit_code == 2


def test_every_option_of_a_pipeline_is_a_setting() -> None:
    assert {field.name for field in fields(PipelineSettings)} <= set(Settings.model_fields)
