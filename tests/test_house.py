"""The house rules of the source tree: floors, purity and habits, checked in the code itself.

Invariant: every exemption is in a table of this file, with its reason. A test fails if nothing uses an exemption any
more, and if there are more than `EXEMPTIONS_MAX`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "procession"

FLOORS: tuple[frozenset[str], ...] = (
    frozenset({"errors"}),
    frozenset({"log_format"}),
    frozenset({"record", "metrics", "faults", "address", "background_loading", "allocation", "tls"})
    | frozenset({"exit_status", "times", "cache", "compiled_kernels", "format_number"}),
    frozenset({"runtime"}),
    frozenset({"planner", "merge", "wire", "storage"}),
    frozenset({"operators"}),
    frozenset({"api", "gateway", "commit", "spark", "sdk", "sos"}),
    frozenset({"connectors", "driver"}),
    frozenset({"verify", "testing"}),
    frozenset({"pytest_plugin"}),
    frozenset({"supervisor"}),
    frozenset({"chaos", "sim"}),
    frozenset({"bench", "dashboard"}),
    frozenset({"cli"}),
    frozenset({"__main__"}),
)
FLOOR_OF = {room: number for number, floor in enumerate(FLOORS) for room in floor}

# (module, what it imports): why it may, against the floors. A `*` stands for any part of a name.
INTRODUCTIONS: dict[tuple[str, str], str] = {
    ("planner.*", "operators.*"): "a graph holds the operator of each stage that has one",
    ("*.apps.*", "Pipeline"): "an app imports the public API, as a user's app does",
}

PURE = (
    "wire.*",
    "api.*",
    "planner.*",
    "operators.*",
    "merge.*",
    "gateway.registry",
    "gateway.global_registry",
    "gateway.state",
    "gateway.arrival_order",
    "gateway.event_time_state",
    "gateway.stream_quota",
    "commit.coordinator",
    "commit.one_phase",
    "commit.two_phase",
    "chaos.scenario",
    "runtime.files",
    "sim.*",
    "verify.verdict",
    "verify.verifier",
    "verify.prefix",
    "verify.decided",
    "verify.history_check",
    "verify.semantics",
    "supervisor.restart_policy",
    "supervisor.stall",
    "sdk.batching",
    "sdk.stream_progress",
    "sos.volume_rules",
    "sos.sos_frames",
    "sos.sos_lifecycle",
    "sos.sos_connection",
    "sos.quorum_copies",
    "sos.quorum_events",
    "sos.quorum",
    "sos.file_operations",
)
RUNNERS: dict[str, str] = {
    "sim.runner": "it runs simulations in separate processes",
    "sim.blocking_calls": "a blocking call needs a thread; only one thread runs at a time",
    "sim.simulated_loop": "it is an event loop of asyncio, in virtual time and without sockets",
    "sim.simulated_transport": "it has the transports of that event loop",
}
# Clocks, disks, sockets, randomness and Spark: a module that only decides uses none of these.
IMPURE_IMPORTS = frozenset(
    {"asyncio", "multiprocessing", "os", "pyspark", "py4j", "random", "secrets", "selectors", "signal", "socket"}
    | {"subprocess", "threading", "time", "uvloop"}
)
# Rooms that run shipped code on ports of their own: only their own imports count, not those of what they run.
# tests/sim/test_isolation.py runs them on a machine that refuses everything.
HOSTS = frozenset({"sim"})

# The benchmarks compare us with Spark as others use it.
ROOMS_WITH_PYSPARK = frozenset({"spark", "bench"})
NAMES_THAT_SAY_NOTHING = frozenset({"utils", "util", "helpers", "helper", "common", "manager"})
LINES_MAX = 400

# Where only somebody's machine has files, and hosts that packages come from: a clone must work without naming either.
MACHINE_PATHS = re.compile(r"(?<![\w.$}~-])/(?:home|root|Users|work|opt|mnt|tmp/scratch)/")
REGISTRY_HOSTS = re.compile(
    r"\b(?:pypi\.(?:org|python\.org)|files\.pythonhosted\.org|deb\.debian\.org|archive\.ubuntu\.com|repo1?\.maven\.org"
    r"|registry\.npmjs\.org|crates\.io|proxy\.golang\.org|astral\.sh)\b"
)
SYNCS_ITSELF: dict[str, str] = {
    "runtime.host_files": "it implements the sync",
    "bench.loop": "it measures the disk, and nothing relies on what it writes",
}
TEXT_SUFFIXES = frozenset({".py", ".toml", ".md", ".txt", ".cfg", ".ini", ".yml", ".yaml", ".sh", ".json", ""})
FOLDERS_OF_OURS = ("src", "tests", "examples", "docs", "scripts", ".ci")


@dataclass(frozen=True)
class Module:
    """One source file, with its name below `procession` (empty for the public API, `__init__` left out)."""

    path: Path
    name: str
    text: str

    @property
    def room(self) -> str:
        return self.name.partition(".")[0]

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, str(self.path))

    @property
    def is_called_pure(self) -> bool:
        return re.search(r"\bPure[.:]", ast.get_docstring(self.tree) or "") is not None

    @cached_property
    def imports(self) -> tuple[str, ...]:
        return tuple(self._imports())

    def _imports(self) -> Iterator[str]:
        """Every absolute dotted name imported anywhere in the file, in functions and type-checking blocks too."""
        package = self.name.split(".") if self.path.name == "__init__.py" else self.name.split(".")[:-1]
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                above = ["procession", *filter(None, package)]
                base = above[: len(above) - node.level + 1] if node.level else []
                yield from (".".join([*base, *filter(None, [node.module]), alias.name]) for alias in node.names)

    def imports_of_ours(self) -> Iterator[str]:
        """The same, of our own modules only, each as a name below `procession`."""
        yield from (name.partition(".")[2] for name in self.imports if name.split(".")[0] == "procession")


def read_modules(source: Path) -> list[Module]:
    return [
        Module(
            path, ".".join(part for part in path.relative_to(source).with_suffix("").parts if part != "__init__"), text
        )
        for path in sorted(source.rglob("*.py"))
        for text in [path.read_text()]
    ]


def matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch(name, pattern) or f"{name}.*" == pattern for pattern in patterns)


def is_introduced(module: str, imported: str) -> bool:
    return any(matches(module, (importer,)) and matches(imported, (other,)) for importer, other in INTRODUCTIONS)


def floor_breaches(modules: list[Module]) -> list[str]:
    """Imports that do not go down. The front door (`procession/__init__`) imports any room, and no room imports it."""
    breaches = []
    for module in modules:
        if not module.name:
            continue
        if module.room not in FLOOR_OF:
            breaches.append(f"{module.name}: the room {module.room} is on no floor")
            continue
        for imported in module.imports_of_ours():
            room = imported.partition(".")[0]
            if is_introduced(module.name, imported):
                continue
            if room not in FLOOR_OF:
                breaches.append(f"{module.name} imports {imported or 'procession'}, which is on no floor")
            elif room != module.room and FLOOR_OF[room] >= FLOOR_OF[module.room]:
                breaches.append(f"{module.name} imports {imported}: not downwards")
    return breaches


def purity_breaches(modules: list[Module]) -> list[str]:
    """Impure imports, direct or through other modules, of modules that are pure by `PURE` or by their docstring."""
    by_name = {module.name: module for module in modules}

    def reached(name: str, seen: set[str]) -> Iterator[Module]:
        owner = name if name in by_name else name.rpartition(".")[0]
        if owner in by_name and owner not in seen:
            seen.add(owner)
            yield by_name[owner]
            for imported in by_name[owner].imports_of_ours():
                if by_name[owner].room not in HOSTS or imported.partition(".")[0] in HOSTS:
                    yield from reached(imported, seen)

    return [
        f"{pure.name} is pure and imports {impure}, by way of {module.name}"
        for pure in modules
        if (matches(pure.name, PURE) or pure.is_called_pure) and pure.name not in RUNNERS
        for module in reached(pure.name, {""})
        if module.name not in RUNNERS
        for impure in module.imports
        if impure.split(".")[0] in IMPURE_IMPORTS
    ]


def spark_breaches(modules: list[Module]) -> list[str]:
    return [
        f"{module.name} imports {name}: only {', '.join(ROOMS_WITH_PYSPARK)} may"
        for module in modules
        for name in module.imports
        if name.split(".")[0] in {"pyspark", "py4j"} and module.room not in ROOMS_WITH_PYSPARK
    ]


def habit_breaches(modules: list[Module]) -> list[str]:
    breaches = []
    for module in modules:
        shown = module.name or module.path.name
        if NAMES_THAT_SAY_NOTHING & set(re.split(r"[._]", module.name)):
            breaches.append(f"{shown}: a module is about one noun, and this name says none")
        if (lines := module.text.count("\n")) > LINES_MAX:
            breaches.append(f"{shown}: {lines} lines, more than {LINES_MAX}")
        if not ast.get_docstring(module.tree):
            breaches.append(f"{shown}: no docstring that says what it is")
    return breaches


# Module names that rooms share on purpose: each does, in its room, what the others do in their own.
SHARED_NAMES = frozenset({"performer", "recovery", "__main__"})


def name_breaches(modules: list[Module]) -> list[str]:
    """Names of modules and of classes that occur more than once: one word, one meaning."""
    places: dict[str, list[str]] = {}
    for module in modules:
        last = module.name.rpartition(".")[2]
        if module.path.name != "__init__.py" and last not in SHARED_NAMES:
            places.setdefault(f"module {last}", []).append(module.name)
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef):
                places.setdefault(f"class {node.name}", []).append(module.name)
    return [f"{name} is in {', '.join(found)}" for name, found in places.items() if len(found) > 1]


def text_breaches(name: str, text: str) -> list[str]:
    return [
        f"{name}:{number}: {what} {found.group()}"
        for number, line in enumerate(text.splitlines(), 1)
        for what, pattern in (("a path of one machine:", MACHINE_PATHS), ("a registry's host:", REGISTRY_HOSTS))
        if (found := pattern.search(line))
    ]


def our_texts() -> Iterator[Path]:
    # In a worktree `.git` is a file, and git's own.
    own = (path for path in ROOT.iterdir() if path.is_file() and path.name != ".git")
    yield from (path for path in own if path.suffix in TEXT_SUFFIXES)
    for folder in FOLDERS_OF_OURS:
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and path.suffix in TEXT_SUFFIXES and "__pycache__" not in path.parts:
                yield path


MODULES = read_modules(SOURCE)


def test_imports_go_down_the_floors_and_never_sideways() -> None:
    assert floor_breaches(MODULES) == []


def test_pure_modules_know_no_clock_disk_socket_chance_or_spark() -> None:
    assert purity_breaches(MODULES) == []


def test_only_the_spark_room_and_its_measure_import_pyspark() -> None:
    assert spark_breaches(MODULES) == []


def test_every_module_is_one_noun_of_readable_length_with_a_docstring() -> None:
    assert habit_breaches(MODULES) == []


def test_no_name_of_a_module_or_a_class_occurs_twice() -> None:
    assert name_breaches(MODULES) == []


@pytest.mark.parametrize(
    ("name", "text"), [("wire.performer_of_frames.session", ""), ("wire.x", "class Pipeline:\n    pass")]
)
def test_a_planted_name_that_occurs_twice_is_found(name: str, text: str) -> None:
    assert name_breaches([*MODULES, *planted(name, text)]) != []


# Pure modules whose test file has another name: the test reaches them through the module that uses them.
TESTED_BY: dict[str, str] = {
    "api.stage": "api/test_pipeline",
    "commit.two_phase": "commit/test_coordinator",
    "gateway.arrival_order": "gateway/test_state",
    "gateway.event_time_state": "gateway/test_stream_quota",
    "operators.chain_output": "operators/test_chain",
    "operators.timed": "operators/test_operator",
    "planner.plan": "planner/test_rules",
    "wire.kernels": "wire/test_columns",
}


def untested(modules: list[Module], tests: Path) -> list[str]:
    """Pure modules with functions that neither have a test file of their name nor stand in `TESTED_BY`."""
    return [
        f"{module.name}: no {path.relative_to(tests)}"
        for module in modules
        if matches(module.name, PURE) and module.room != "sim" and module.path.name != "__init__.py"
        if any(isinstance(node, ast.FunctionDef) and node.body[1:] for node in ast.walk(module.tree))
        for name in [TESTED_BY.get(module.name, f"{module.room}/test_{module.name.rpartition('.')[2]}")]
        if not (path := tests / f"{name}.py").exists()
    ]


def test_every_pure_module_that_decides_something_has_its_test_file() -> None:
    assert untested(MODULES, ROOT / "tests") == []
    assert {module.name for module in MODULES} >= set(TESTED_BY)
    own = {module.name for module in MODULES if (ROOT / "tests" / module.room / f"test_{module.path.stem}.py").exists()}
    assert not own & set(TESTED_BY)


def test_a_planted_module_without_a_test_file_is_found() -> None:
    text = "def decide(event):\n    order = [event]\n    return order"
    assert untested(planted("planner.newcomer", text), ROOT / "tests") != []


def override_breaches(modules: list[Module]) -> list[str]:
    """Classes that override a private method of another class: a strategy is handed in, or the method is abstract."""
    classes = {
        node.name: node for module in modules for node in ast.walk(module.tree) if isinstance(node, ast.ClassDef)
    }

    def private_methods(node: ast.ClassDef) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        for method in node.body:
            if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef) and re.match(r"_[a-z]", method.name):
                yield method

    def bases(node: ast.ClassDef) -> Iterator[ast.ClassDef]:
        for base in node.bases:
            name = ast.unparse(base).partition("[")[0].rpartition(".")[2]
            if name in classes and name != node.name:
                yield classes[name]
                yield from bases(classes[name])

    return [
        f"{node.name}.{method.name} overrides that of {base.name}"
        for node in classes.values()
        for base in bases(node)
        for method in private_methods(base)
        if not any("abstract" in ast.unparse(decorator) for decorator in method.decorator_list)
        and any(method.name == own.name for own in private_methods(node))
    ]


def test_no_class_overrides_a_private_method_of_another() -> None:
    assert override_breaches(MODULES) == []


def test_a_planted_override_of_a_private_method_is_found() -> None:
    base = "class Base:\n    def _step(self): ...\nclass Special(Base):\n    def _step(self): ..."
    assert override_breaches(planted("gateway.special", base)) != []
    assert override_breaches(planted("gateway.special", base.replace("_step", "step"))) == []


LOG_LEVELS = frozenset({"debug", "info", "warning", "error", "critical", "exception"})
LOG_EVENT = re.compile(r"[a-z]+(_[a-z]+)*\.[a-z]+(_[a-z]+)*")
LOGS_A_NAME_THAT_IT_IS_GIVEN: dict[str, str] = {"commit.sink_link": "each of its callers names the event, as these do"}


def log_breaches(modules: list[Module]) -> list[str]:
    """Calls of a logger whose event has no name that can be searched for: `part.what_happened`, then fields."""
    found = []
    for module in modules:
        for node in ast.walk(module.tree):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not node.args:
                continue
            call, event = node.func, node.args[0]
            is_log = call.attr in LOG_LEVELS and isinstance(call.value, ast.Name) and call.value.id in ("log", "logger")
            is_given = call.attr == "_failed" and module.name in LOGS_A_NAME_THAT_IT_IS_GIVEN
            if not is_log and not is_given:
                continue
            if isinstance(event, ast.Name) and module.name in LOGS_A_NAME_THAT_IT_IS_GIVEN:
                continue
            if is_log and len(node.args) > 1:
                found.append(f"{module.name}:{node.lineno} logs more than a name; give fields")
            if not isinstance(event, ast.Constant) or not LOG_EVENT.fullmatch(str(event.value)):
                found.append(f"{module.name}:{node.lineno} logs {ast.unparse(event)}, not part.what_happened")
    return found


def test_every_log_event_has_a_name_that_can_be_searched_for() -> None:
    assert log_breaches(MODULES) == []


@pytest.mark.parametrize(
    "line",
    [
        'log.info("=", a=1)',
        'log.warning("! lost")',
        'log.info("the gateway is away")',
        'log.info("gateway")',
        'log.info("gateway.Lost")',
        'log.info(f"gateway.{name}")',
        'log.info("gateway.lost", "again")',
        'log.warning("!" if is_over else "gateway.resumed")',
    ],
)
def test_a_planted_log_event_without_a_name_is_found(line: str) -> None:
    assert log_breaches([Module(SOURCE / "x.py", "gateway.x", line)]) != []


EXEMPTIONS_MAX = 20
"""Lower it when an exemption goes."""


def test_there_are_no_more_exemptions_than_allowed() -> None:
    tables = (INTRODUCTIONS, RUNNERS, SYNCS_ITSELF, SHARED_NAMES, TESTED_BY, LOGS_A_NAME_THAT_IT_IS_GIVEN)
    assert sum(map(len, tables)) <= EXEMPTIONS_MAX


def sync_breaches(modules: list[Module]) -> list[str]:
    """Who syncs by itself: such a sync cannot be made to fail, so nobody knows what comes of it."""
    return [
        f"{module.name} calls os.{node.attr}, not the one of runtime.host_files"
        for module in modules
        if module.name not in SYNCS_ITSELF
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Attribute) and node.attr in ("fsync", "fdatasync")
    ]


def test_every_sync_goes_through_the_one_that_can_be_made_to_fail() -> None:
    assert sync_breaches(MODULES) == []
    assert {module.name for module in MODULES if sync_breaches([replace(module, name="x")])} == set(SYNCS_ITSELF)


def test_no_text_names_one_machine_or_a_registry() -> None:
    breaches = [
        breach
        for path in our_texts()
        if path != Path(__file__).resolve()
        for breach in text_breaches(str(path.relative_to(ROOT)), path.read_text(errors="replace"))
    ]
    assert breaches == []


def test_every_introduction_is_still_used() -> None:
    used = {
        (importer, other)
        for module in MODULES
        for imported in module.imports_of_ours()
        for importer, other in INTRODUCTIONS
        if matches(module.name, (importer,)) and matches(imported, (other,))
    }
    assert used == set(INTRODUCTIONS)


def planted(name: str, text: str) -> list[Module]:
    return [Module(SOURCE / Path(*name.split(".")).with_suffix(".py"), name, f'"""A module."""\n{text}\n')]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("wire.frame_codec", "from procession.gateway.state import GatewayState"),
        ("wire.frame_codec", "import procession.storage.log"),
        ("wire.frame_codec", "from ..storage import log"),
        ("wire.frame_codec", "def late():\n    from procession.storage import log"),
        ("gateway.server", "from procession import Pipeline"),
        ("errors", "from procession.wire import codec"),
        ("chaos.proxy", "from procession.cli import main"),
        ("newroom.thing", ""),
    ],
)
def test_a_planted_import_that_does_not_go_down_is_found(name: str, text: str) -> None:
    assert floor_breaches(planted(name, text))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("gateway.server", "from procession.wire.connection import Connection"),
        ("gateway.server", "from .state import GatewayState"),
        ("verify.comparison", "from procession.verify.verifier import compare"),
        ("sdk", "from procession.wire import v3"),
    ],
)
def test_an_import_that_goes_down_is_left_alone(name: str, text: str) -> None:
    assert floor_breaches(planted(name, text)) == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("wire.frame_codec", "import time"),
        ("planner.rules", "from os import path"),
        ("gateway.state", "import asyncio.subprocess"),
        ("gateway.state", "from procession.gateway.wires import send"),
        ("commit.coordinator", "from procession.gateway import wires"),
    ],
)
def test_a_planted_impure_import_is_found_even_through_another_module(name: str, text: str) -> None:
    between = planted("gateway.wires", "from procession.gateway.sockets import send")
    impure = planted("gateway.sockets", "import socket")
    assert purity_breaches(between + impure + planted(name, text))
    assert not purity_breaches(between + impure + planted(name, "from procession.gateway import lines"))


def test_a_module_that_calls_itself_pure_is_checked() -> None:
    text = '"""Decides something. Pure."""\nimport time\n'
    assert purity_breaches([Module(SOURCE / "sdk" / "x.py", "sdk.x", text)])
    assert not purity_breaches([Module(SOURCE / "sdk" / "x.py", "sdk.x", text.replace("Pure", "Impure"))])


def test_a_planted_pyspark_import_is_found() -> None:
    assert spark_breaches(planted("commit.emitter", "from pyspark.sql import SparkSession"))
    assert not spark_breaches(planted("spark.session", "from pyspark.sql import SparkSession"))


def test_a_planted_bad_habit_is_found() -> None:
    assert habit_breaches(planted("wire.utils", ""))
    assert habit_breaches(planted("wire.frame_codec", "\n" * LINES_MAX))
    assert habit_breaches([Module(SOURCE / "wire" / "codec.py", "wire.frame_codec", "import struct\n")])
    assert not habit_breaches(planted("wire.frame_codec", ""))


def test_a_planted_machine_path_or_registry_is_found() -> None:
    assert text_breaches("a.py", 'LOG = "/home/somebody/log"')
    assert text_breaches("a.md", "curl https://pypi.org/simple")
    assert not text_breaches("a.py", 'CURRENT = f"{home}/work/log"  # and /tmp, /proc/self/home')


def test_the_tree_was_really_read() -> None:
    assert {"errors", "wire.frame_codec"} <= {module.name for module in MODULES}
    assert any(name.startswith("wire.") for module in MODULES for name in module.imports_of_ours())
