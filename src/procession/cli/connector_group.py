"""Adds the commands of connectors to `procession source …` and `procession sink …`, and loads them when they are
used.

Invariant: listing the commands imports no client library. A connector names its commands' module
(`planner/connector.Connector.commands`); its functions are called `sink_NAME` and `source_NAME`, in the style of
`cli/sink_commands` and `cli/source_commands`:

    @with_groups
    def sink_kafka(url: Url, directory: Directory, records: Records = "messages", as_json: Json = False,
                   *, receive: ReceiveOptions) -> None:
        '''Help of the command, whole.'''
        from procession.connectors.kafka_sink import run_kafka_sink  # imports confluent_kafka
        ...

`run` passes what `Connector.sink.arguments` gives, then the options of `ReceiveOptions` (a source: of `SendOptions`),
and `--records blocks` to a sink with `Packing.BLOCKS`. Nothing else needs to be registered.
"""

from __future__ import annotations

import importlib
from typing import Any

from typer.core import TyperCommand, TyperGroup
from typer.main import Typer, get_command

from procession.errors import ConfigError
from procession.planner.connector import Connector
from procession.planner.connector_registry import check_installed, connector_named, connectors


class ConnectorCommand(TyperCommand):
    """A command of a connector that is not loaded yet, with its name and its one-line help."""

    def __init__(self, kind: str, connector: Connector) -> None:
        traits = getattr(connector, kind)
        super().__init__(connector.name, help=traits.help, short_help=traits.help)
        self._kind = kind
        self._connector = connector

    def load(self) -> Any:
        """Load and return the command. Raises ConfigError if a required package is missing."""
        check_installed(self._connector, f"the command procession {self._kind} {self._connector.name}")
        return load_command(self._kind, self._connector)

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        return self.load().make_context(info_name, args, parent, **extra)


def load_command(kind: str, connector: Connector) -> Any:
    """Return the command of a connector, with its options."""
    name = f"{kind}_{connector.name.replace('-', '_')}"
    try:
        function = getattr(importlib.import_module(connector.commands), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"the command procession {kind} {connector.name} cannot be loaded: {error}",
            next_step=f"correct the package that has the connector {connector.name}, or install it again",
        ) from error
    single = Typer(add_completion=False, pretty_exceptions_enable=False)
    single.command(connector.name, epilog=usage_in_apps(kind, connector))(function)
    command = get_command(single)
    # The lines of a docstring have the width of the code, not of the terminal.
    command.help = "\n\n".join(" ".join(part.split()) for part in (command.help or "").split("\n\n"))
    return command


def usage_in_apps(kind: str, connector: Connector) -> str:
    """Return the end of a command's help: how an app names the connector, and where its secrets belong."""
    call = 'pipeline.source("NAME", from_=' if kind == "source" else '.sink("NAME", to='
    lines = [f'In an app, {call}"{connector.form}") is enough: `procession run` starts this program.']
    if not connector.is_opaque:
        lines.append("Options of the system are in the URL, with _ instead of -: ?NAME=VALUE&NAME=VALUE.")
    if kind == "sink":
        lines.append('If you start it yourself, name the address that it listens on: .sink("NAME", to="HOST:PORT").')
    if connector.password_hint:
        lines.append(f"Secrets are never in a URL. Give a password as {connector.password_hint}.")
    return " ".join(lines)


class _ConnectorGroup(TyperGroup):
    kind = ""

    def list_commands(self, ctx: Any) -> list[str]:
        names = super().list_commands(ctx)
        return names + [
            connector.name for connector in connectors() if _has(connector, self.kind) and connector.name not in names
        ]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = super().get_command(ctx, cmd_name)
        if command is not None:
            return command
        connector = connector_named(cmd_name) or next(
            (candidate for candidate in connectors() if candidate.name == cmd_name), None
        )
        return ConnectorCommand(self.kind, connector) if connector is not None and _has(connector, self.kind) else None


class SinkGroup(_ConnectorGroup):
    """The commands of `procession sink`."""

    kind = "sink"


class SourceGroup(_ConnectorGroup):
    """The commands of `procession source`."""

    kind = "source"


def _has(connector: Connector, kind: str) -> bool:
    return bool(connector.commands) and getattr(connector, kind) is not None
