"""The documentation agrees with the code: generated parts are up to date, examples run, and names exist.

Invariant: a statement about the code that a program can check is checked here.
"""

from __future__ import annotations

import ast
import doctest
import importlib
import importlib.util
import re
import shlex
import struct
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from typer.main import get_command

from procession import Pipeline
from procession.cli.main import app
from procession.deployment.settings import Settings
from procession.errors import ProcessionError
from procession.wire import draft, two_phase_commit, v3
from procession.wire.draft_messages import (
    AckCounts,
    Debug,
    DebugFault,
    DraftFrame,
    DraftMessage,
    DraftOk,
    Flag,
)
from procession.wire.messages import (
    Ack,
    Eos,
    Error,
    Frame,
    Hello,
    ListUncommitted,
    Message,
    Notify,
    NotifyAck,
    Ok,
    Phase1,
    Phase2,
    Reply,
    ReplyUncommitted,
    Restart,
    TwoPhase,
    WorkersLeft,
)

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "procession"
README = ROOT / "README.md"
PAGES = [README, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
TEXTS = {str(path.relative_to(ROOT)): path.read_text() for path in PAGES}

BLOCK = re.compile(r"^```(?P<language>[a-z]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
README_APP_LINES_MAX = 20


def blocks(language: str) -> list[tuple[str, str]]:
    return [
        (name, block["text"])
        for name, text in TEXTS.items()
        for block in BLOCK.finditer(text)
        if block["language"] == language
    ]


def shell_commands() -> list[tuple[str, str]]:
    lines = [(name, line) for name, text in blocks("sh") for line in text.splitlines() if line.strip()]
    return lines + [
        (name, command)
        for name, text in TEXTS.items()
        for command in re.findall(r"`(make [^`]+)`", BLOCK.sub("", text))
    ]


def docs_writer() -> ModuleType:
    spec = importlib.util.spec_from_file_location("procession_docs", ROOT / "scripts" / "docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# Generated parts and examples


def test_every_generated_part_is_up_to_date() -> None:
    stale = [str(path.relative_to(ROOT)) for path in docs_writer().outdated()]
    assert stale == [], "bring them up to date: python scripts/docs.py"


def test_every_generated_part_is_on_a_page() -> None:
    asked_for = {name for text in TEXTS.values() for name in re.findall(r"<!-- made: ([a-z-]+) -->", text)}
    assert asked_for == set(docs_writer().PARTS)


@pytest.mark.parametrize(("page", "text"), blocks("python"))
def test_a_python_example_runs_and_its_pipeline_is_complete(page: str, text: str) -> None:
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(text, page, "exec", dont_inherit=True), names)
    for value in names.values():
        if isinstance(value, Pipeline):
            assert value.graph().sinks


def test_the_app_in_the_readme_is_short_and_is_one_of_the_examples() -> None:
    (text,) = [text for page, text in blocks("python") if page == "README.md"]
    assert text == (ROOT / "examples" / "long_words.py").read_text()
    assert text.count("\n") <= README_APP_LINES_MAX


def command_of(arguments: list[str]) -> tuple[Any, list[str]]:
    """Return the command that these arguments name, and the remaining arguments."""
    command: Any = get_command(app)
    while hasattr(command, "commands"):
        assert arguments, "a group of commands needs a subcommand"
        found = command.get_command(None, arguments[0])
        assert found is not None, f"there is no command {arguments[0]!r}"
        command, arguments = found, arguments[1:]
    return command, arguments


def check_command(line: str) -> None:
    program, *arguments = shlex.split(line, comments=True)
    if program == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert arguments[0] in targets
        if arguments[0] == "run" and len(arguments) > 1:
            command, rest = command_of(["demo", *shlex.split(arguments[1].removeprefix("ARGS="))])
            command.make_context("demo", rest)
        return
    assert Path(program).name == "procession"
    command, rest = command_of(arguments)
    command.make_context(" ".join(arguments), rest)


@pytest.mark.parametrize(("page", "line"), shell_commands())
def test_a_command_that_is_shown_exists_with_its_options(page: str, line: str) -> None:
    check_command(line)


@pytest.mark.parametrize("line", ["procession runn app.py", "procession run app.py --inptu x", "make tset", "ls"])
def test_a_planted_command_that_does_not_exist_is_found(line: str) -> None:
    with pytest.raises(Exception):  # noqa: B017, PT011  (whatever the parser says)
        check_command(line)


def test_every_command_that_is_named_in_passing_exists() -> None:
    known = {command[1:] for command, _ in docs_writer().every_command(get_command(app))}
    starts = {command[:length] for command in known for length in range(len(command) + 1)}
    for page, text in TEXTS.items():
        for named in re.findall(r"`procession ([a-z][a-z0-9 -]*)", text):
            arguments = tuple(named.split())
            assert arguments in starts or any(arguments[: len(command)] == command for command in known), (
                f"{page}: {named}"
            )


def test_defaults_that_the_command_line_shows_are_those_of_the_settings() -> None:
    shown = {
        (option.name, option.show_default if isinstance(option.show_default, str) else str(option.default))
        for _, command in docs_writer().every_command(get_command(app))
        for option in command.params
        if option.name in Settings.model_fields and Settings.model_fields[option.name].default is not None
    }
    assert shown
    assert shown == {(name, str(Settings.model_fields[name].default)) for name, _ in shown}


# Names on the pages exist


def test_every_link_leads_to_a_file_and_a_heading() -> None:
    for page, text in TEXTS.items():
        for target in re.findall(r"\]\(([^)#]*(?:#[^)]*)?)\)", text):
            path, _, heading = target.partition("#")
            found = (ROOT / page).parent / path if path else ROOT / page
            assert found.exists(), f"{page} links to {target}"
            if heading:
                titles = re.findall(r"^#+ (.*)$", found.read_text(), re.MULTILINE)
                assert heading in {anchor(title) for title in titles}, f"{page} links to {target}"


def anchor(title: str) -> str:
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


NAME = r"`([A-Za-z_]\w*(?:\.(?!py|js)\w+)*)(?:\(\))?`"
PATH = r"`([\w/]+\.(?:py|js))`"
# The ways in which a page names something in a file: "`file` `name`", "`file` (`name`", "`name` in `file`".
NAMED_IN = [(rf"{PATH} \(?{NAME}", (1, 2)), (rf"{NAME},? (?:in|of) (?:the table of )?{PATH}", (2, 1))]


def names_that_do_not_exist(text: str) -> list[tuple[str, str]]:
    """Return the files that a text names and that do not exist, and the functions, classes and values that it names
    together with a file that does not define them."""
    text = re.sub(r"\s+", " ", BLOCK.sub("", text))
    named = [(path, "") for path in re.findall(PATH, text)]
    named += [match.group(*order) for pattern, order in NAMED_IN for match in re.finditer(pattern, text)]
    return [(path, name) for path, name in named if not is_defined(path, name)]


def is_defined(path: str, name: str) -> bool:
    """Whether a file exists and defines all parts of a dotted name."""
    found = [
        base / path for base in (SOURCE, SOURCE.parent, ROOT, SOURCE / "dashboard" / "static") if (base / path).exists()
    ]
    text = found[0].read_text() if found else ""
    parts = [part for part in name.split(".") if part]
    return bool(found) and all(
        re.search(rf"(?:def|class|const|function) {part}\b|^\s*{part}(?:: .*)? =", text, re.MULTILINE) for part in parts
    )


def test_every_module_and_function_that_is_named_exists() -> None:
    pages = {page: text for page, text in TEXTS.items() if page != "docs/tutorial.md"}
    # The files of the tutorial are the reader's: tests/test_tutorial.py
    assert {page: gone for page, text in pages.items() if (gone := names_that_do_not_exist(text))} == {}
    for pattern, _ in NAMED_IN:
        assert len(re.findall(pattern, re.sub(r"\s+", " ", TEXTS["CONTRIBUTING.md"]))) > 5


@pytest.mark.parametrize(
    "text",
    [
        "`wire/gone.py`",
        "`wire/connection.py` `gone`",
        "`wire/connection.py`\n`gone`",
        "`wire/connection.py` (`gone`, which",
        "`gone` in `wire/connection.py`",
        "`GONE` of `wire/connection.py`",
        "`Connection.gone` in `wire/connection.py`",
        "`gone` in `dashboard/static/chart.js`",
    ],
)
def test_a_planted_name_that_does_not_exist_is_found(text: str) -> None:
    assert len(names_that_do_not_exist(text)) == 1
    names = text.replace("gone.py", "v3.py").replace("Connection.gone", "Connection.receive")
    names = names.replace("`GONE`", "`Connection`")
    names = names.replace("`gone` in `dashboard", "`PHASES` in `dashboard").replace("`gone`", "`receive`")
    assert names_that_do_not_exist(names) == []


NAMED_PATH = re.compile(r"`([\w.-]+(?:/[\w.-]+)*(?:/|\.py|\.md))`")
PAGES_WITH_PATHS = ["CONTRIBUTING.md", "docs/explanation/walk.md"]


def paths_that_do_not_exist(text: str) -> list[str]:
    """Return the files and directories that a text names and that are neither below the project nor below the
    source."""
    return [path for path in NAMED_PATH.findall(text) if not any((base / path).exists() for base in (ROOT, SOURCE))]


@pytest.mark.parametrize("page", PAGES_WITH_PATHS)
def test_every_path_on_a_page_for_contributors_exists(page: str) -> None:
    assert len(NAMED_PATH.findall(TEXTS[page])) > 20
    assert paths_that_do_not_exist(TEXTS[page]) == []


@pytest.mark.parametrize("path", ["gateway/gone.py", "gone/", "docs/gone.md", "gone.py"])
def test_a_planted_path_that_does_not_exist_is_found(path: str) -> None:
    assert paths_that_do_not_exist(f"See `{path}` and `wire/v3.py`.") == [path]


def test_every_room_is_in_the_tree_for_contributors() -> None:
    tree = TEXTS["CONTRIBUTING.md"].partition("## The tree")[2].partition("\n## ")[0]
    rooms = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert set(re.findall(r"^\|[^|]*\| `(\w+)/` \|", tree, re.MULTILINE)) == rooms


MODULE_PATHS = {str(path.relative_to(SOURCE)): path for path in sorted(SOURCE.rglob("*.py"))}


@pytest.mark.parametrize("module", [name for name, path in MODULE_PATHS.items() if ">>> " in path.read_text()])
def test_an_example_in_a_docstring_runs(module: str) -> None:
    name = ".".join(("procession", *Path(module).with_suffix("").parts))
    results = doctest.testmod(importlib.import_module(name))
    assert results.attempted > 0
    assert results.failed == 0


def modules_that_do_not_exist(text: str) -> list[str]:
    """Return the modules that a text names together with their room and that do not exist."""
    rooms = {name.partition("/")[0] for name in MODULE_PATHS if "/" in name}
    named = [f"{room}/{module}" for room, module in re.findall(r"`(\w+)[/.](\w+)`", text) if room in rooms]
    return [module for module in named if not (SOURCE / module).exists() and f"{module}.py" not in MODULE_PATHS]


def test_every_module_that_the_source_names_with_its_room_exists() -> None:
    assert {
        name: gone for name, path in MODULE_PATHS.items() if (gone := modules_that_do_not_exist(path.read_text()))
    } == {}


def test_a_planted_module_that_does_not_exist_is_found() -> None:
    assert modules_that_do_not_exist("After it `wire/gone`, `wire.gone` and `wire/v3`.") == ["wire/gone", "wire/gone"]


def sentences_in_the_code() -> set[str]:
    """Return every string of the source, with `…` for each inserted value."""
    found = set()
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = [str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values]
                found.add("".join(parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)
    return found


def test_every_error_message_that_is_explained_is_in_the_code() -> None:
    page = TEXTS["docs/reference/errors.md"].partition("The sentences that need an explanation")[2].partition("\n**")[0]
    explained = re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)
    assert len(explained) > 15
    sentences = sentences_in_the_code()
    assert [sentence for sentence in explained if sentence not in sentences] == []


LOGGED = {"warning", "error", "exception", "critical"}


def events_logged_as_problems() -> set[str]:
    """The names of all events that the source logs as a warning or an error."""
    return {
        call.args[0].value
        for path in SOURCE.rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in LOGGED
        if call.args and isinstance(call.args[0], ast.Constant) and isinstance(call.args[0].value, str)
    }


def test_every_warning_and_error_is_among_the_log_events_and_every_log_event_is_logged() -> None:
    rows = re.findall(r"^\| (`[^|]*) \|", TEXTS["docs/reference/log-events.md"], re.MULTILINE)
    listed = {event for row in rows for event in re.findall(r"`([a-z_.]+)`", row)}
    assert len(listed) > 50
    assert sorted(events_logged_as_problems() - listed) == []
    assert sorted(listed - sentences_in_the_code()) == []


def test_every_kind_of_error_is_explained() -> None:
    kinds = {kind.__name__ for kind in ProcessionError.__subclasses__() if kind.__module__ == "procession.errors"}
    explained = set(re.findall(r"^\| `(\w+Error)` \|", TEXTS["docs/reference/errors.md"], re.MULTILINE))
    assert explained == kinds


def test_decisions_are_numbered_without_gaps() -> None:
    numbers = [int(path.name[:4]) for path in sorted((ROOT / "docs" / "decisions").glob("*.md"))]
    assert numbers == list(range(1, len(numbers) + 1))


# The byte tables: each row lists the fields of a frame, and must give the bytes that the encoders give

FIELDS = {"u8": ">B", "u16": ">H", "u32": ">I", "u64": ">Q", "i64": ">q"}
FRAMES: dict[str, tuple[Frame, list[Any]]] = {
    "HELLO": (Hello("v", b"c", "p", "i"), [b"v", b"c", b"p", b"i"]),
    "OK": (Ok(7), [7]),
    "ERROR": (Error("no"), [b"no"]),
    "NOTIFY": (Notify(1, "n", 2), [1, b"n", 2]),
    "NOTIFY_ACK": (NotifyAck(True, 1, 2), [1, 1, 2]),
    "MESSAGE": (Message(1, 2, -3, b"k", b"load"), [1, 2, -3, b"k", b"load"]),
    "ACK": (Ack(9, ((1, 2), (3, 4))), [9, 2, [(1, 2), (3, 4)]]),
    "RESTART": (Restart("h:1"), [3, b"h:1"]),
    "EOS_MESSAGE": (Eos(5), [5]),
}
DRAFT_FRAMES: dict[str, tuple[DraftFrame, list[Any]]] = {
    "HELLO": (Hello("v", b"c", "p", "i"), [b"v", b"c", b"p", b"i"]),
    "OK": (DraftOk(7, ((1, "a", 2), (3, "b", 4))), [7, [(1, b"a", 2), (3, b"b", 4)]]),
    "ERROR": (Error("no"), [b"no"]),
    "NOTIFY": (Notify(1, "n", 2), [1, b"n", 2]),
    "MESSAGE": (DraftMessage(1, 2, b"load", 3, b"k"), [Flag.EVENT_TIME | Flag.KEY, 1, 2, 3, b"k", b"load"]),
    "ACK": (Ack(9, ((1, 2), (3, 4))), [9, 2, [(1, 2), (3, 4)]]),
    "RESTART": (Restart(), []),
    "ACK_COUNTS": (AckCounts(9, ((1, 2, 3),)), [9, 1, [(1, 2, 3)]]),
    "DEBUG": (Debug(DebugFault.TICK, 5), [2, 5]),
}
TWO_PHASE: dict[str, tuple[TwoPhase, list[Any]]] = {
    "LIST_UNCOMMITTED": (ListUncommitted(1), [1]),
    "REPLY_UNCOMMITTED": (ReplyUncommitted(1, ("a", "b")), [1, 2, [(b"a",), (b"b",)]]),
    "PHASE1": (Phase1("t", ((1, 2, 3),)), [b"t", 1, [(1, 2, 3)]]),
    "REPLY": (Reply("t", True), [b"t", 1]),
    "PHASE2": (Phase2("t", False), [b"t", 0]),
    "WORKERS_LEFT": (WorkersLeft(1, ("w",)), [1, 1, [(b"w",)]]),
}


def fields(recipe: str) -> list[str]:
    """Return the fields of a row. A repeated group is one field."""
    return re.findall(r"\s*n × \([^)]*\)|[^,]+", recipe)


def built(recipe: str, values: list[Any]) -> bytes:
    data = b""
    for field, value in zip(map(str.strip, fields(recipe)), values, strict=True):
        kind = field.split()[0]
        if kind == "n":
            inner = field.partition("(")[2].removesuffix(")")
            data += b"".join(built(inner, list(item)) for item in value)
        elif kind == "sb":
            data += struct.pack(">H", len(value)) + value
        else:
            data += value if kind == "rest" else struct.pack(FIELDS[kind], value)
    return data


def test_the_byte_tables_give_the_bytes_that_the_encoders_give() -> None:
    rows = re.findall(r"^\| (\d+) \| (\w+) \| (.*) \|$", TEXTS["docs/reference/protocol.md"], re.MULTILINE)
    assert {name for _, name, _ in rows} == set(FRAMES) | set(TWO_PHASE)
    for tag, name, recipe in rows:
        if name in FRAMES:
            frame, values = FRAMES[name]
            body = bytes([int(tag)]) + built(recipe, values)
            assert struct.pack(">I", len(body)) + body == v3.encode(frame), name
        else:
            message, values = TWO_PHASE[name]
            assert bytes([int(tag)]) + built(recipe, values) == two_phase_commit.encode(message), name


def test_the_byte_table_of_the_draft_gives_the_bytes_that_its_encoder_gives() -> None:
    rows = re.findall(r"^\| ([A-Z!]) \| (\w+) \|(.*)\|$", TEXTS["docs/reference/protocol.md"], re.MULTILINE)
    assert [name for _, name, _ in rows] == list(DRAFT_FRAMES)
    for tag, name, recipe in rows:
        frame, values = DRAFT_FRAMES[name]
        body = tag.encode() + built(recipe.strip(), values)
        assert struct.pack(">I", len(body)) + body == draft.encode(frame), name


def test_the_flags_and_faults_of_the_draft_are_those_of_the_code() -> None:
    rows = re.findall(r"^\| ([A-Z_]+) \| (\d+) \| .* \|$", TEXTS["docs/reference/protocol.md"], re.MULTILINE)
    assert {name: int(bit) for name, bit in rows} == {flag.name: flag.value for flag in Flag}
    faults = re.findall(r"^\| `([A-Z]+)` \| (\d+) \| .* \|$", TEXTS["docs/reference/protocol.md"], re.MULTILINE)
    assert {name: int(number) for name, number in faults} == {fault.name: fault.value for fault in DebugFault}
    assert draft.IN_USE in TEXTS["docs/reference/protocol.md"]
