"""The commands `procession letters …`: list and show the dead letters of a pipeline, send them again, or drop them.

As in `cli/main`, they only parse and print; `jobs/letter_replay` decides which letters are open.
"""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from procession.cli.command_options import AppSettings, CookieFile, with_groups
from procession.cli.tls_options import ClientTlsOptions
from procession.exit_status import Status

if TYPE_CHECKING:
    from procession.jobs.letter_replay import LetterSource, PipelineLetters
    from procession.verify.dead_letter_file import StoredLetter

letters_app = typer.Typer(
    help="Show the dead letters of a pipeline, send them again, or drop them.", no_args_is_help=True
)

App = Annotated[Path, typer.Argument(metavar="APP.PY", help="The app, which names its dead letters.")]
Directory = Annotated[
    Path | None,
    typer.Option("--dir", show_default=".procession/NAME", help="The pipeline's directory."),
]
Numbers = Annotated[
    list[str] | None,
    typer.Argument(metavar="[NUMBER|FIRST-LAST]...", show_default="all", help="Only these letters."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON objects, one per line, instead of text.")]
SHOWN_MAX = 100
PATIENCE_S = 30.0


@dataclass(frozen=True, kw_only=True)
class ChoiceOptions:
    """The selected letters."""

    stage: Annotated[str | None, typer.Option(help="Only letters of this stage.")] = None
    error: Annotated[str | None, typer.Option(metavar="TEXT", help="Only letters whose error contains this.")] = None

    def load(self, numbers: list[str] | None) -> Callable[[StoredLetter], bool]:
        ranges = [_range(text) for text in numbers or ()]

        def is_chosen(letter: StoredLetter) -> bool:
            is_numbered = not ranges or any(first <= letter.number <= last for first, last in ranges)
            is_staged = self.stage is None or letter.stage == self.stage
            return is_numbered and is_staged and (self.error is None or self.error in letter.error)

        return is_chosen


@letters_app.command("list")
@with_groups
def list_letters(
    app_file: App,
    numbers: Numbers = None,
    *,
    choice: ChoiceOptions,
    directory: Directory = None,
    sets: AppSettings = None,
    everything: Annotated[bool, typer.Option("--all", help="Also list letters that were replayed or dropped.")] = False,
    most: Annotated[int, typer.Option(min=1, help="Maximum number of letters.")] = SHOWN_MAX,
    as_json: Json = False,
) -> None:
    """List the open dead letters: number, stage, error, stream and message id. The payload is in `show`."""
    is_chosen = choice.load(numbers)
    found = (
        (letter, state)
        for letter, state in _letters(app_file, directory, sets).all()
        if is_chosen(letter) and (everything or state == "open")
    )
    shown = 0
    for letter, state in itertools.islice(found, most):
        shown += 1
        fields = _fields(letter, state)
        line = f"{letter.number} {state}, stage {letter.stage!r}, stream {letter.stream_id}, message"
        print(json.dumps(fields) if as_json else f"{line} {letter.message_id}: {letter.error}")
    if not as_json:
        more = "; there are more: raise --most" if next(found, None) is not None else ""
        print(f"{_counted(shown)}{more}" if shown else "there are no such letters")


@letters_app.command("show")
def show(
    app_file: App,
    numbers: Annotated[list[str], typer.Argument(metavar="NUMBER|FIRST-LAST...", help="These letters.")],
    directory: Directory = None,
    sets: AppSettings = None,
) -> None:
    """Print letters as JSON objects, one per line, with their payload: as text, or as Base64 if it is not UTF-8."""
    is_chosen = ChoiceOptions().load(numbers)
    for letter, state in _letters(app_file, directory, sets).all():
        if is_chosen(letter):
            print(json.dumps({**_fields(letter, state), **_content(letter)}))


@letters_app.command("replay")
@with_groups
def replay(
    app_file: App,
    numbers: Numbers = None,
    *,
    choice: ChoiceOptions,
    directory: Directory = None,
    sets: AppSettings = None,
    cookie_file: CookieFile = None,
    tls: ClientTlsOptions,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Send open dead letters again to the running pipeline, each exactly once. Ends when they are committed.

    Each record passes the whole pipeline again, at the end of the current input. If a replay is killed, the next one
    finishes it first."""
    from procession.deployment.cookies import source_cookie
    from procession.gateway.listen_address import addresses
    from procession.sdk.connector_program import run_source
    from procession.sdk.source_options import SourceOptions

    letters = _letters(app_file, directory, sets)
    _check_order(letters)

    def send(source: LetterSource) -> bool:
        to = str(addresses(letters.directory / "gateway")["listen"])
        cookie = source_cookie(cookie_file, letters.directory, to)
        options = SourceOptions("procession letters", source.name, cookie, tls.load(), patience_s=PATIENCE_S)
        return run_source(source, to, options, is_json=as_json)

    count, is_done = letters.replay(choice.load(numbers), send)
    print(json.dumps({"replayed": count, "is_done": is_done}) if as_json else f"replayed {_counted(count)}")
    if not is_done:
        raise typer.Exit(Status.UNCLEAN)


@letters_app.command("drop")
@with_groups
def drop(
    app_file: App,
    numbers: Numbers = None,
    *,
    choice: ChoiceOptions,
    directory: Directory = None,
    sets: AppSettings = None,
    everything: Annotated[bool, typer.Option("--all", help="Drop all open letters.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Mark open dead letters as dropped, so that `list` and `replay` omit them. Their lines stay in the output."""
    from procession.errors import UsageError

    if not (numbers or choice.stage or choice.error or everything):
        raise UsageError("No letters to drop were named.", next_step="Give numbers, --stage, --error or --all.")
    count = _letters(app_file, directory, sets).drop(choice.load(numbers))
    print(json.dumps({"dropped": count}) if as_json else f"dropped {_counted(count)}")


def _letters(app_file: Path, directory: Path | None, sets: list[str] | None) -> PipelineLetters:
    from procession.driver.app_file import load_app
    from procession.driver.app_values import export
    from procession.jobs.letter_replay import PipelineLetters

    export(sets or [])
    graph = load_app(app_file, is_to_run=False).graph
    return PipelineLetters.of_app(graph, directory or Path(".procession") / graph.name, Path.cwd())


def _check_order(letters: PipelineLetters) -> None:
    """Raise ConfigError with event-time order, where each stream is declared and no new stream can begin."""
    from procession.errors import ConfigError

    if letters.graph.event_time is not None:
        raise ConfigError(
            f"Pipeline {letters.graph.name!r} is ordered by event time, so no new stream can begin.",
            next_step="Send the corrected records with a source of your own, in one of its declared streams.",
        )


def _range(text: str) -> tuple[int, int]:
    from procession.errors import UsageError

    first, dash, last = text.partition("-")
    try:
        return int(first), int(last if dash else first)
    except ValueError:
        raise UsageError(f"{text!r} is not the number of a letter.", next_step="Write 7, or 3-12.") from None


def _counted(letters: int) -> str:
    return f"{letters:,} letter{'' if letters == 1 else 's'}"


def _fields(letter: StoredLetter, state: str) -> dict[str, Any]:
    return {
        "number": letter.number,
        "state": state,
        "stage": letter.stage,
        "error": letter.error,
        "stream_id": letter.stream_id,
        "message_id": letter.message_id,
    }


def _content(letter: StoredLetter) -> dict[str, Any]:
    """Return the parts of a record that a letter list does not show."""
    found: dict[str, Any] = {"event_time": letter.event_time} if letter.event_time else {}
    for name, data in (("key", letter.key), ("payload", letter.payload)):
        try:
            found[name] = data.decode()
        except UnicodeDecodeError:
            found[f"{name}_base64"] = base64.b64encode(data).decode()
    return found
