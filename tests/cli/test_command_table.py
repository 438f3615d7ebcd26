"""The table of commands: each name has its command, and a command imports only its own module."""

from __future__ import annotations

import subprocess
import sys

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from procession.cli.command_table import COMMANDS, load_command
from procession.cli.main import app


@pytest.mark.parametrize("name", COMMANDS)
def test_every_name_of_the_table_has_a_command_with_help(name: str) -> None:
    command = load_command(name)
    assert command.name == name
    assert command.help


def test_the_help_page_lists_the_table_in_its_order() -> None:
    assert get_command(app).list_commands(None) == list(COMMANDS)  # type: ignore[attr-defined]


def test_a_name_that_does_not_exist_is_refused_with_the_nearest_ones() -> None:
    result = CliRunner().invoke(app, ["sorce"])
    assert result.exit_code == 2
    assert "No such command 'sorce'" in result.output
    assert "'source', 'restore'" in result.output


def test_a_command_imports_no_module_of_another_command() -> None:
    code = """
import sys
from typer.testing import CliRunner
from procession.cli.main import app

assert CliRunner().invoke(app, ["gateway", "--help"]).exit_code == 0
print(*(name for name in sys.modules if name.startswith("procession.cli.") and name.endswith(("command", "commands"))))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["procession.cli.gateway_command"]
