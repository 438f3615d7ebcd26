"""No module state passes from one simulated process to another.

A value that a process leaves in a variable of a module or class would reach the next process without being read from
its disk.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

from procession import faults
from procession.sim.runner import plan_of, run_plan

LOADED, COMPARED = range(5), range(5, 25)
"""The first seeds load modules and fill the caches that depend on the program alone."""

PLAIN = (bool, int, float, str, bytes, tuple, frozenset, type(None))
CONTAINERS = (dict, list, set, bytearray)
SIZE_MAX = 10_000


def shipped_modules() -> Iterator[ModuleType]:
    """Return the modules that simulated processes run."""
    for name, module in sorted(sys.modules.items()):
        if name.startswith("procession.") and not name.startswith("procession.sim"):
            yield module


def held(value: Any, depth: int = 2) -> object:
    """Return the mutable parts of a value."""
    if isinstance(value, PLAIN):
        return value
    if hasattr(value, "cache_info"):
        return ("cached", value.cache_info().currsize)
    if isinstance(value, CONTAINERS):
        return (type(value).__name__, len(value), repr(value)[:SIZE_MAX])
    if depth and type(value).__module__.startswith("procession.") and not isinstance(value, type):
        return [(name, held(inner, depth - 1)) for name, inner in sorted(getattr(value, "__dict__", {}).items())]
    return id(value)


def state() -> dict[str, object]:
    """Return the values of modules and their classes, by name."""
    found: dict[str, object] = {}
    for module in shipped_modules():
        for name, value in list(vars(module).items()):
            if name.startswith("__") or isinstance(value, ModuleType):
                continue
            found[f"{module.__name__}.{name}"] = held(value)
            if isinstance(value, type) and value.__module__ == module.__name__:
                for inner, attribute in list(vars(value).items()):
                    is_shown = not inner.startswith("__") and inner != "_abc_impl"
                    if is_shown and not isinstance(attribute, FunctionType | property | classmethod | staticmethod):
                        found[f"{module.__name__}.{name}.{inner}"] = held(attribute)
    return found


def changed(before: dict[str, object], after: dict[str, object]) -> list[str]:
    return sorted(name for name in after if name in before and after[name] != before[name])


def test_no_variable_of_a_module_changes_while_simulated_processes_run() -> None:
    for seed in LOADED:
        run_plan(plan_of(seed))
    before = state()
    for seed in COMPARED:
        assert run_plan(plan_of(seed)).breach is None
    assert changed(before, state()) == []


def test_a_variable_that_changes_is_noticed() -> None:
    before = state()
    faults._occasions["noticed"] += 1
    try:
        assert "procession.faults._occasions" in changed(before, state())
    finally:
        del faults._occasions["noticed"]
