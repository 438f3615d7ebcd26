"""Fingerprints: equal for a function that is only written differently, different for one that does something else."""

from __future__ import annotations

import functools
import linecache
import logging
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from procession.planner.fingerprints import CODE, fingerprint, is_known_same, is_same

HEAD = "FIELD = 'a'\ndef helper(value): return value.strip()\n"
SAME = [
    "key = lambda value: helper(value[FIELD])",
    "key = lambda record: helper(record[FIELD])  # by field",
    "def key(value):\n    return helper(value[FIELD])",
    "def another_name(it: dict) -> str:\n    '''Says why.'''\n\n    return (helper(it[FIELD]))\nkey = another_name",
    "other, key = lambda value: 1, lambda value: helper(value[FIELD])",
]
OTHER = [
    "key = lambda value: helper(value['b'])",
    "key = lambda value: helper(value[FIELD], 1)",
    "FIELD = 'b'\nkey = lambda value: helper(value[FIELD])",
    "def helper(value): return value.strip().lower()\nkey = lambda value: helper(value[FIELD])",
    "def key(value):\n    value = dict(value)\n    return helper(value[FIELD])",
]


def made(folder: Path, text: str, head: str = HEAD) -> Callable[..., Any]:
    path = folder / f"app{len(list(folder.iterdir()))}.py"
    path.write_text(head + text + "\n")
    names: dict[str, Any] = {"__name__": "app"}
    exec(compile(path.read_text(), str(path), "exec"), names)
    function: Callable[..., Any] = names["key"]
    return function


@pytest.mark.parametrize("text", SAME)
def test_the_fingerprint_does_not_depend_on_the_formatting_of_a_function(tmp_path: Path, text: str) -> None:
    one = fingerprint(made(tmp_path, SAME[0]), linecache.getlines)
    other = fingerprint(made(tmp_path, text, f"\n\n{HEAD}\n"), linecache.getlines)
    assert is_same(one, other)
    assert is_known_same(one, other)


@pytest.mark.parametrize("text", OTHER)
@pytest.mark.parametrize("lines_of", [linecache.getlines, lambda name: ()], ids=["source", "code"])
def test_the_fingerprint_depends_on_what_a_function_does(tmp_path: Path, text: str, lines_of: Any) -> None:
    one, other = (fingerprint(made(tmp_path, which), lines_of) for which in (SAME[0], text))
    assert not is_same(one, other)


def test_without_its_source_a_function_is_known_by_its_code(tmp_path: Path) -> None:
    function = made(tmp_path, SAME[0])
    bare, whole = fingerprint(function), fingerprint(function, linecache.getlines)
    assert bare.startswith(f"{CODE}:")
    assert is_known_same(bare, whole)


def test_bytecode_of_another_version_of_python_is_not_compared() -> None:
    assert is_same("code-3.9:aaaa", "code-3.99:bbbb")
    assert not is_known_same("code-3.9:aaaa", "code-3.99:bbbb")
    assert is_same("source:cccc code-3.9:aaaa", "source:cccc code-3.99:bbbb")
    assert not is_same("source:cccc code-3.9:aaaa", "source:dddd code-3.99:bbbb")
    assert is_same("", "source:cccc")


def closing(over: Any) -> Callable[[Any], Any]:
    return lambda value: value[over]


class Keyed:
    def __init__(self, field: str) -> None:
        self.field = field

    def key(self, value: Any) -> Any:
        return value[self.field]


ALL: list[Any] = [
    *(len, str.upper, str.lower, int, closing("a"), closing("b"), closing(["a"]), Keyed("a").key, Keyed("a")),
    *(
        Keyed("b").key,
        operator.itemgetter,
        operator.itemgetter("a"),
        operator.itemgetter("b"),
        functools.partial(max, 1),
        functools.partial(max, 2),
        functools.partial(min, 1),
    ),
]


LOGGER = logging.getLogger("keys")


@functools.lru_cache
def logged(value: Any) -> Any:
    LOGGER.debug("asked")
    return value


def test_the_fingerprint_does_not_depend_on_caches_and_log_levels() -> None:
    before = fingerprint(logged, linecache.getlines)
    logged(1)
    LOGGER.setLevel(7)
    assert fingerprint(logged, linecache.getlines) == before
    LOGGER.setLevel(0)


def test_callables_of_every_kind_have_fingerprints_that_differ() -> None:
    found = [fingerprint(function, linecache.getlines) for function in ALL]
    assert len(set(found)) == len(ALL)
    assert all(found)
    assert found == [fingerprint(function, linecache.getlines) for function in ALL]
