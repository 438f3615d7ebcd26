"""Maps each command `procession NAME` to its module.

Invariant: only the module of the command that runs is imported, and only its options are declared to Typer. Importing
all modules takes longer than most commands need to start. Only the help page and an unknown name load all modules.
"""

from __future__ import annotations

import importlib
from typing import Any

from typer import Typer
from typer.core import TyperGroup
from typer.main import get_group

COMMANDS = {
    "chaos": "chaos_command",
    "explain": "explain_command",
    "gateway": "gateway_command",
    "host": "host_command",
    "emitter": "emitter_command",
    "sos": "sos_command",
    "restore": "replica_options",
    "jobs": "job_commands",
    "merge": "merge_command",
    "simulate": "simulate_command",
    "status": "job_commands",
    "stop": "job_commands",
    "pause": "job_commands",
    "resume": "job_commands",
    "drain": "job_commands",
    "dashboard": "dashboard_command",
    "upgrade": "upgrade_command",
    "rollback": "upgrade_command",
    "streams": "streams_command",
    "traces": "traces_command",
    "verify": "verify_command",
    "cat": "verify_command",
    "demo": "run_commands",
    "run": "run_commands",
    "submit": "submit_command",
    "pack": "submit_command",
    "semantics": "semantics_command",
    "driver": "driver_command",
    "doctor": "machine_commands",
    "warm": "machine_commands",
    "source": "source_commands",
    "sink": "sink_commands",
    "frames": "frames_command",
    "bench": "bench_all_command",
    "gateways": "gateways_command",
    "state": "state_command",
    "letters": "letters_command",
    "savepoint": "savepoint_command",
    "cluster": "cluster_command",
}
"""The module of each command in `cli/`, in the order of the help page. The module has a function of the command's name,
or, for a command with subcommands, a Typer app `NAME_app`."""


class CommandGroup(TyperGroup):
    """The commands of the table. A command is loaded when it is used."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in COMMANDS:
            return self._load(cmd_name)
        for name in COMMANDS:  # Typer suggests a name among the loaded commands
            self._load(name)
        return None

    def _load(self, name: str) -> Any:
        if name not in self.commands:
            self.commands[name] = load_command(name)
        return self.commands[name]


def load_command(name: str) -> Any:
    """Import the module of a command and create the command."""
    module = importlib.import_module(f"procession.cli.{COMMANDS[name]}")
    table = Typer()
    subcommands = getattr(module, f"{name}_app", None)
    if subcommands is None:
        table.command(name)(getattr(module, name))
    else:
        table.add_typer(subcommands, name=name)
    return get_group(table).commands[name]
