"""Checks the rules of the source tree in the code itself: directions of imports, purity, names, sizes, log events.

Invariant: every exemption is in a table of this file, with its reason. A test fails if an exemption is no longer
needed, or if there are more than `EXEMPTIONS_MAX` exemptions.
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

from tests.module_state import changing_classes, kept

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "procession"

FLOORS: tuple[frozenset[str], ...] = (
    frozenset({"errors"}),
    frozenset({"log_format"}),
    frozenset({"record", "metrics", "faults", "address", "background_loading", "allocation", "tls"})
    | frozenset({"exit_status", "times", "cache", "compiled_kernels", "format_number", "pandas_loading"}),
    frozenset({"runtime", "process_start"}),
    frozenset({"planner", "merge", "wire", "storage"}),
    frozenset({"operators"}),
    frozenset({"api", "gateway", "commit", "spark", "sdk", "sos"}),
    frozenset({"connectors", "driver"}),
    frozenset({"verify", "testing"}),
    frozenset({"pytest_plugin"}),
    frozenset({"supervisor", "cluster"}),
    frozenset({"deployment"}),
    frozenset({"monitoring", "savepoints"}),
    frozenset({"jobs"}),
    frozenset({"chaos", "sim"}),
    frozenset({"bench", "dashboard"}),
    frozenset({"cli"}),
    frozenset({"__main__"}),
)
FLOOR_OF = {room: number for number, floor in enumerate(FLOORS) for room in floor}

# Imports that are allowed although they do not go down: (module, imported name) -> reason. `*` matches any text.
ALLOWED_IMPORTS: dict[tuple[str, str], str] = {
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
    "monitoring.stall",
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
    "sim.seed_blocks": "it runs simulations in separate processes",
    "sim.blocking_calls": "a blocking call needs a thread; only one thread runs at a time",
    "sim.simulated_loop": "it implements an event loop of asyncio with virtual time and no sockets",
    "sim.simulated_transport": "it implements the transports of that event loop",
}
# A pure module uses no clock, disk, socket, randomness or Spark.
IMPURE_IMPORTS = frozenset(
    {"asyncio", "multiprocessing", "os", "pyspark", "py4j", "random", "secrets", "selectors", "signal", "socket"}
    | {"subprocess", "threading", "time", "uvloop"}
)
# Rooms that run shipped code on simulated ports. Purity is checked for their own modules, not for the code they run:
# tests/sim/test_isolation.py checks that a simulation reaches no clock, socket, file or random number of the machine.
HOSTS: dict[str, str] = {"sim": "it runs shipped code on a simulated machine"}

# The benchmarks also run plain Spark, to compare it with Procession.
ROOMS_WITH_PYSPARK = frozenset({"spark", "bench"})
NAMES_THAT_SAY_NOTHING = frozenset({"utils", "util", "helpers", "helper", "common", "manager"})
LINES_MAX = 400

# Directories that exist on one machine only, and hosts of package registries. The tree names neither, so that a clone
# works on any machine and with any registry.
MACHINE_PATHS = re.compile(r"(?<![\w.$}~-])/(?:home|root|Users|work|opt|mnt|tmp/scratch)/")
REGISTRY_HOSTS = re.compile(
    r"\b(?:pypi\.(?:org|python\.org)|files\.pythonhosted\.org|deb\.debian\.org|archive\.ubuntu\.com|repo1?\.maven\.org"
    r"|registry\.npmjs\.org|crates\.io|proxy\.golang\.org|astral\.sh)\b"
)
SYNCS_ITSELF: dict[str, str] = {
    "runtime.host_files": "it implements the sync that every other module calls",
    "bench.loop": "it measures the disk; no data depends on what it writes",
}
TEXT_SUFFIXES = frozenset({".py", ".toml", ".md", ".txt", ".cfg", ".ini", ".yml", ".yaml", ".sh", ".json", ""})
FOLDERS_OF_OURS = ("src", "tests", "examples", "docs", "scripts", ".ci")


@dataclass(frozen=True)
class Module:
    """One source file. `name` is dotted, below `procession` and without `__init__`; the public API's is empty."""

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
        """Yields each imported name as an absolute dotted name, also from functions and type-checking blocks."""
        package = self.name.split(".") if self.path.name == "__init__.py" else self.name.split(".")[:-1]
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                above = ["procession", *filter(None, package)]
                base = above[: len(above) - node.level + 1] if node.level else []
                yield from (".".join([*base, *filter(None, [node.module]), alias.name]) for alias in node.names)

    def imports_of_ours(self) -> Iterator[str]:
        """Yields those of `imports` that are in `procession`, each as a name below it."""
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


def is_allowed(module: str, imported: str) -> bool:
    return any(matches(module, (importer,)) and matches(imported, (other,)) for importer, other in ALLOWED_IMPORTS)


def floor_breaches(modules: list[Module]) -> list[str]:
    """Lists imports that do not go down.

    The package's public API (`procession/__init__`) may import any room, and no room may import it.
    """
    breaches = []
    for module in modules:
        if not module.name:
            continue
        if module.room not in FLOOR_OF:
            breaches.append(f"{module.name}: the room {module.room} is on no floor")
            continue
        for imported in module.imports_of_ours():
            room = imported.partition(".")[0]
            if is_allowed(module.name, imported):
                continue
            if room not in FLOOR_OF:
                breaches.append(f"{module.name} imports {imported or 'procession'}, which is on no floor")
            elif room != module.room and FLOOR_OF[room] >= FLOOR_OF[module.room]:
                breaches.append(f"{module.name} imports {imported}: not downwards")
    return breaches


def purity_breaches(modules: list[Module]) -> list[str]:
    """Lists impure imports, direct or indirect, of each module that `PURE` or its docstring calls pure."""
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
        f"{pure.name} is pure and imports {impure} through {module.name}"
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
            breaches.append(f"{shown}: the name of a module is the noun it is about")
        if (lines := module.text.count("\n")) > LINES_MAX:
            breaches.append(f"{shown}: {lines} lines, more than {LINES_MAX}")
        if not ast.get_docstring(module.tree):
            breaches.append(f"{shown}: no docstring")
    return breaches


# Module names that occur in several rooms on purpose: each of these modules has the same task in its room.
SHARED_NAMES = frozenset({"performer", "recovery"})


def name_breaches(modules: list[Module]) -> list[str]:
    """Lists names of modules and of classes that occur more than once: each name has one meaning.

    Only a module in a package may have the name of that package.
    """
    packages = {module.name for module in modules if module.path.name == "__init__.py"}
    places: dict[str, list[str]] = {}
    for module in modules:
        last = module.name.rpartition(".")[2]
        if module.path.name != "__init__.py" and last not in SHARED_NAMES:
            others = {package for package in packages if package.rpartition(".")[2] == last}
            named = others - {module.name.rpartition(".")[0]}
            places.setdefault(f"module {last}", []).extend([module.name, *(f"the package {name}" for name in named)])
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef):
                places.setdefault(f"class {node.name}", []).append(module.name)
    return [f"{name} is in {', '.join(found)}" for name, found in places.items() if len(found) > 1]


# Words that say when or how a value came about, not what it is. A parameter is named by a noun, a function by a verb.
VAGUE_NAMES = frozenset({"found", "given", "made", "one", "ours", "said", "some", "taken", "theirs", "thing", "wanted"})
VAGUELY_NAMED: dict[str, str] = {
    "bench.conflux*": "it is being changed elsewhere: rename `given` to `setup` and `found` to what it has",
    "commit.e*": "it is being changed elsewhere: rename `given`, the runs of a connection",
}


def vague_breaches(modules: list[Module]) -> list[str]:
    """Lists public functions, and parameters of public functions, whose name is in `VAGUE_NAMES`."""

    def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        for body in (tree.body, *(node.body for node in tree.body if isinstance(node, ast.ClassDef))):
            for function in body:
                if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and not re.match(
                    "_[^_]", function.name
                ):
                    yield function

    return [
        f"{module.name}: `{name}` in `{function.name}` says nothing about its value"
        for module in modules
        if not any(matches(module.name, (pattern,)) for pattern in VAGUELY_NAMED)
        for function in functions(module.tree)
        for name in (function.name, *(argument.arg for argument in (*function.args.args, *function.args.kwonlyargs)))
        if name in VAGUE_NAMES
    ]


def text_breaches(name: str, text: str) -> list[str]:
    return [
        f"{name}:{number}: {what} {found.group()}"
        for number, line in enumerate(text.splitlines(), 1)
        for what, pattern in (("a path of one machine:", MACHINE_PATHS), ("a registry's host:", REGISTRY_HOSTS))
        if (found := pattern.search(line))
    ]


def our_texts() -> Iterator[Path]:
    # In a git worktree `.git` is a file.
    own = (path for path in ROOT.iterdir() if path.is_file() and path.name != ".git")
    yield from (path for path in own if path.suffix in TEXT_SUFFIXES)
    for folder in FOLDERS_OF_OURS:
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and path.suffix in TEXT_SUFFIXES and "__pycache__" not in path.parts:
                yield path


MODULES = read_modules(SOURCE)


def test_imports_go_down_the_floors_and_never_sideways() -> None:
    assert floor_breaches(MODULES) == []


def test_pure_modules_use_no_clock_disk_socket_randomness_or_spark() -> None:
    assert purity_breaches(MODULES) == []


def test_only_the_spark_room_and_the_benchmarks_import_pyspark() -> None:
    assert spark_breaches(MODULES) == []


def test_every_module_is_named_by_a_noun_is_short_and_has_a_docstring() -> None:
    assert habit_breaches(MODULES) == []


def test_no_name_of_a_module_or_a_class_occurs_twice() -> None:
    assert name_breaches(MODULES) == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("wire.performer_of_frames.session", ""),
        ("wire.x", "class Pipeline:\n    pass"),
        ("sdk.testing", ""),
        ("sdk.apps", ""),
        ("testing", ""),
    ],
)
def test_a_planted_name_that_occurs_twice_is_found(name: str, text: str) -> None:
    assert name_breaches([*MODULES, *planted(name, text)]) != []


def test_no_public_function_or_parameter_has_a_name_that_says_nothing() -> None:
    assert vague_breaches(MODULES) == []


@pytest.mark.parametrize(
    "text",
    [
        "def measure(given): ...",
        "def measure(*, given=1): ...",
        "async def found(): ...",
        "class Log:\n    def made(self): ...",
        "class Log:\n    def __init__(self, found): ...",
    ],
)
def test_a_planted_name_that_says_nothing_is_found(text: str) -> None:
    assert vague_breaches(planted("wire.newcomer", text)) != []
    assert vague_breaches(planted("wire.newcomer", re.sub("given|found|made", "_made", text))) == []


def test_every_exemption_from_telling_names_is_still_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(VAGUELY_NAMED):
        with monkeypatch.context() as without:
            without.delitem(VAGUELY_NAMED, name)
            assert vague_breaches(MODULES) != [], name


# Rooms whose modules are tested together, by tests that run all of them.
TESTED_TOGETHER: dict[str, str] = {"sim": "simulated runs with planted bugs show that the simulation finds them"}
# Pure modules that have no test file of their own: module -> the test file that tests it.
TESTED_BY: dict[str, str] = {
    "api.stage": "api/test_pipeline",
    "operators.chain_output": "operators/test_chain",
    "operators.timed": "operators/test_operator",
    "planner.plan": "planner/test_rules",
    "wire.kernels": "wire/test_columns",
}


def where_tested(module: str) -> Path:
    """Return the file with the tests of a module: one in the folder of the module's room."""
    room, _, last = module.rpartition(".")
    return Path(f"{TESTED_BY[module]}.py") if module in TESTED_BY else Path(*room.split("."), f"test_{last}.py")


def untested(modules: list[Module], tests: Path) -> list[str]:
    """Lists pure modules with functions whose test file, of the same name or from `TESTED_BY`, does not exist."""
    return [
        f"{module.name}: no {where_tested(module.name)}"
        for module in modules
        if (matches(module.name, PURE) or module.is_called_pure) and module.room not in TESTED_TOGETHER
        if module.path.name != "__init__.py"
        if any(isinstance(node, ast.FunctionDef) and node.body[1:] for node in ast.walk(module.tree))
        if not (tests / where_tested(module.name)).exists()
    ]


def test_every_pure_module_with_functions_has_a_test_file() -> None:
    assert untested(MODULES, ROOT / "tests") == []


@pytest.mark.parametrize("table", [TESTED_BY, TESTED_TOGETHER])
def test_every_exemption_from_an_own_test_file_is_still_needed(
    table: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in list(table):
        with monkeypatch.context() as without:
            without.delitem(table, name)
            assert untested(MODULES, ROOT / "tests") != [], name


@pytest.mark.parametrize("table", [RUNNERS, HOSTS])
def test_every_exemption_from_purity_is_still_needed(table: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(table):
        with monkeypatch.context() as without:
            without.delitem(table, name)
            assert purity_breaches(MODULES) != [], name


def test_every_shared_name_is_still_shared() -> None:
    names = [module.name.rpartition(".")[2] for module in MODULES]
    assert {name for name in SHARED_NAMES if names.count(name) > 1} == SHARED_NAMES


def test_a_planted_module_without_a_test_file_is_found() -> None:
    text = "def decide(event):\n    order = [event]\n    return order"
    assert untested(planted("planner.newcomer", text), ROOT / "tests") != []
    assert untested(planted("sdk.newcomer", text), ROOT / "tests") == []
    decides = replace(planted("sdk.newcomer", "")[0], text=f'"""Decides something. Pure."""\n{text}')
    assert untested([decides], ROOT / "tests") != []
    assert untested([replace(decides, name="newcomer")], ROOT / "tests") == ["newcomer: no test_newcomer.py"]


def override_breaches(modules: list[Module]) -> list[str]:
    """Lists methods that override a private, concrete method of a base class; pass a strategy object instead."""
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
LOGS_A_GIVEN_NAME: dict[str, str] = {
    "commit.sink_link": "its method `_failed` is given the name of the event; its calls are checked instead"
}


def log_breaches(modules: list[Module]) -> list[str]:
    """Lists calls of a logger whose event is not a name of the form `part.what_happened`, followed by fields."""
    found = []
    for module in modules:
        for node in ast.walk(module.tree):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not node.args:
                continue
            call, event = node.func, node.args[0]
            is_log = call.attr in LOG_LEVELS and isinstance(call.value, ast.Name) and call.value.id in ("log", "logger")
            is_given = call.attr == "_failed" and module.name in LOGS_A_GIVEN_NAME
            if not is_log and not is_given:
                continue
            if isinstance(event, ast.Name) and module.name in LOGS_A_GIVEN_NAME:
                continue
            if is_log and len(node.args) > 1:
                found.append(f"{module.name}:{node.lineno} passes arguments after the name of the event: pass fields")
            if not isinstance(event, ast.Constant) or not LOG_EVENT.fullmatch(str(event.value)):
                found.append(f"{module.name}:{node.lineno} logs {ast.unparse(event)}, not a part.what_happened name")
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


# The rooms whose code simulated processes run: one Python process has many of them, one after the other.
SIMULATED_ROOMS = frozenset(
    {"gateway", "commit", "storage", "sdk", "wire", "driver", "sos", "connectors", "merge", "operators", "planner"}
    | {"runtime"}
)
# What modules of these rooms keep all the same (`tests/module_state.py`), and why no simulated process finds there what
# another one left. A cache in a pure module needs no exemption: its values depend on its arguments, and on what is
# installed.
KEPT: dict[str, str] = {
    "driver.app_file.*": "one process loads one app; a simulated driver has none",
    "driver.app_values.*": "the command line sets it before an app is loaded; a simulated driver has none",
    "driver.defined_pipeline.*": "the process of a user's program, which imports its file; a simulated driver has none",
    "driver.early_jvm.os.environ": "what the JVM inherits; the simulator has a model of Spark",
    "driver.executor_files._record()": "in Spark's workers, where objects live for one task; the simulator has none",
    "driver.offsets._kept()": "in Spark's helper, which unpickles the feed for each call; the simulator has none",
    "operators.tables._read": "in Spark's workers, by what names a version of a file; the simulator has no tables",
    "storage.batch_file._zeros": "it has nothing but zeros, which nobody overwrites",
    "storage.host_runs.*": "connections of Spark's workers to the hosts, by address; the simulator has none",
    "storage.process_lock._HELD": "which locks the kernel gives to this process; simulated files have their own",
    "storage.table_copies.check_copy()": "in Spark's workers, by a name with a checksum; the simulator has no tables",
    "wire.columns._kernels": "compiled code, which returns what the code without it returns",
}


def kept_by_modules(modules: list[Module]) -> list[str]:
    """Return the values that modules keep from one simulated process to the next."""
    classes = changing_classes(module.tree for module in modules)
    return [
        f"{module.name}.{name}"
        for module in modules
        if module.room in SIMULATED_ROOMS
        for name in sorted(kept(module.tree, classes))
        if not (name.endswith("()") and matches(module.name, PURE))
    ]


def test_no_module_keeps_state_from_one_simulated_process_to_the_next() -> None:
    found = kept_by_modules(MODULES)
    assert [name for name in found if not matches(name, tuple(KEPT))] == []
    assert [pattern for pattern in KEPT if not any(matches(name, (pattern,)) for name in found)] == []


@pytest.mark.parametrize(
    "text",
    [
        "_seen = {}",
        "_seen: dict[str, int] = {}",
        "_seen: set[int] = set()",
        "_seen = WeakKeyDictionary()",
        "_seen = ContextVar('seen')",
        "_seen = defaultdict(list)",
        "_numbers = itertools.count()",
        "_lock = threading.Lock()",
        "class Log:\n    known: list[int] = []",
        "class Log:\n    known = None\n    def f(self):\n        Log.known = 1",
        "class Log:\n    known = (1,)\n    @classmethod\n    def f(cls):\n        cls.known += (2,)",
        "class Log:\n    def f(self):\n        self.n += 1\nlog = Log()",
        "_last = None\ndef f():\n    global _last\n    _last = 1",
        "_known = {1: 2}\ndef f():\n    _known[2] = 3",
        "_known = [1]\ndef f():\n    _known.append(2)",
        "_known = {1: [2]}\ndef f():\n    _known[1].append(2)",
        "_known = {1: 2}\ndef f():\n    del _known[1]",
        "numbers = iter([1])\ndef f():\n    return next(numbers)",
        "import os\ndef f():\n    os.environ['A'] = 'b'",
        "@cache\ndef f(): ...",
        "@functools.lru_cache(maxsize=2)\ndef f(a): ...",
        "class Log:\n    @lru_cache\n    def f(self): ...",
        "f = functools.cache(g)",
    ],
)
def test_planted_state_of_a_module_is_found(text: str) -> None:
    assert kept_by_modules(planted("storage.newcomer", text)) != []
    assert kept_by_modules(planted("bench.newcomer", text)) == []


@pytest.mark.parametrize(
    "text",
    [
        "TABLE = {1: 2}",
        "TABLE = dict(a=1)\ndef f():\n    return TABLE.get(1)",
        "class Report(NamedTuple):\n    clocks: Mapping[int, str] = {}",
        "class Log:\n    def __init__(self):\n        self.known = []\n    def f(self):\n        self.known.append(1)",
        "class Log:\n    def __init__(self):\n        self.n = 1\nlog = Log()",
        "known = [1]\ndef f():\n    known = []\n    known.append(2)",
        "import numpy as np\ndef f(a):\n    np.add(a, 1)",
        "class Log:\n    @cached_property\n    def f(self): ...",
    ],
)
def test_an_unchanging_value_is_not_state_of_a_module(text: str) -> None:
    assert kept_by_modules(planted("storage.newcomer", text)) == []


def test_a_cache_of_a_pure_module_is_not_state() -> None:
    assert kept_by_modules(planted("merge.newcomer", "@cache\ndef f(a): ...")) == []
    assert kept_by_modules(planted("merge.newcomer", "_seen = {}")) != []


EXEMPTIONS_MAX = 32
"""Lower this number when an exemption is removed."""


def test_there_are_no_more_exemptions_than_allowed() -> None:
    tables = (ALLOWED_IMPORTS, RUNNERS, HOSTS, SYNCS_ITSELF, SHARED_NAMES, TESTED_TOGETHER, TESTED_BY, VAGUELY_NAMED)
    assert sum(map(len, (*tables, LOGS_A_GIVEN_NAME, KEPT))) <= EXEMPTIONS_MAX


def sync_breaches(modules: list[Module]) -> list[str]:
    """Lists direct calls of `os.fsync` and `os.fdatasync`: the tests cannot make such a sync fail."""
    return [
        f"{module.name} calls os.{node.attr}, not the sync of runtime.host_files"
        for module in modules
        if module.name not in SYNCS_ITSELF
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Attribute) and node.attr in ("fsync", "fdatasync")
    ]


def test_every_sync_goes_through_the_port_that_tests_can_make_fail() -> None:
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


def test_every_allowed_import_is_still_used() -> None:
    used = {
        (importer, other)
        for module in MODULES
        for imported in module.imports_of_ours()
        for importer, other in ALLOWED_IMPORTS
        if matches(module.name, (importer,)) and matches(imported, (other,))
    }
    assert used == set(ALLOWED_IMPORTS)


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
def test_an_import_that_goes_down_is_accepted(name: str, text: str) -> None:
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
    assert text_breaches("a.py", 'LOG = "/home/user/log"')
    assert text_breaches("a.md", "curl https://pypi.org/simple")
    assert not text_breaches("a.py", 'CURRENT = f"{home}/work/log"  # and /tmp, /proc/self/home')


def test_the_modules_and_their_imports_are_read() -> None:
    assert {"errors", "wire.frame_codec"} <= {module.name for module in MODULES}
    assert any(name.startswith("wire.") for module in MODULES for name in module.imports_of_ours())
