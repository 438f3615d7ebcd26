"""Fingerprints: short texts that identify functions by what they do, to recognize them in a later run.

Invariant: a fingerprint depends on what a function computes, not on how it is written. Comments, argument names, types,
docstrings and the function's own name may change. Its expressions, the constants and functions that it uses by name,
and its closure may not. There are two forms, of the source and of the bytecode, because the source may be missing and
the bytecode differs between Python versions. Two fingerprints are equal if they agree in one form that both have. Made
of the functions of a graph, for `planner/compatibility`. Pure: the caller passes the lines of files.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import operator
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from types import BuiltinFunctionType, CodeType, FunctionType, MethodDescriptorType, MethodType, ModuleType
from typing import Any

from procession.operators.inlining import LinesOf, is_same_code
from procession.planner.effects import loaded_by
from procession.planner.ownership import IMMUTABLE

PARTS_MAX = 1000
"""Maximum number of parts of a table that are described. A larger table is identified by its size."""

NOT_IDENTIFYING = {"is_identifying": False}
"""The metadata of a dataclass field that is not part of any fingerprint."""
GETTERS = (operator.itemgetter, operator.attrgetter, operator.methodcaller)
DIGEST_LETTERS = 12
SOURCE = "source"
CODE = f"code-{sys.version_info.major}.{sys.version_info.minor}"

DescribeBody = Callable[[FunctionType], str]
"""Describes the body of a function: by its source or by its code. Raises `SourceMissing` if there is no source."""


class SourceMissing(Exception):
    """The source of a function is not available."""


def no_lines(name: str) -> Sequence[str]:
    return ()


def fingerprint(function: Any, lines_of: LinesOf = no_lines) -> str:
    """Return the fingerprint of this function: a digest of its source, if available, and of its code."""
    forms = {}
    for name, describe in ((SOURCE, functools.partial(_source, lines_of=lines_of)), (CODE, _code)):
        try:
            text = repr(_described(function, describe, set()))
        except SourceMissing:
            continue
        forms[name] = hashlib.sha256(text.encode(errors="replace")).hexdigest()[:DIGEST_LETTERS]
    return " ".join(f"{name}:{digest}" for name, digest in forms.items())


def is_same(fingerprint: str, other: str) -> bool:
    """Whether both may be fingerprints of one function: a form that both have is equal, or they share no form."""
    forms, others = _forms(fingerprint), _forms(other)
    both = forms.keys() & others.keys()
    return not both or any(forms[form] == others[form] for form in both)


def is_known_same(fingerprint: str, other: str) -> bool:
    """Whether these fingerprints are of the same function: a form that both have is equal."""
    return bool(_forms(fingerprint).items() & _forms(other).items())


def _forms(text: str) -> Mapping[str, str]:
    return dict(part.partition(":")[::2] for part in text.split())


def _described(value: Any, describe: DescribeBody, seen: set[int]) -> Any:
    """Return a description of this value whose `repr` is the same in every process."""
    if isinstance(value, Enum):
        return type(value).__qualname__, value.name
    if isinstance(value, re.Pattern):
        return "pattern", value.pattern, value.flags
    if type(value) in IMMUTABLE:
        return repr(value)
    if isinstance(value, ModuleType):
        return "module", value.__name__
    if id(value) in seen:
        return "again"
    seen = seen | {id(value)}
    if isinstance(value, FunctionType):
        return _described_function(value, describe, seen)
    if isinstance(value, MethodType):
        return "method", _described(value.__self__, describe, seen), _described(value.__func__, describe, seen)
    if isinstance(value, functools.partial):
        given = (value.func, *value.args, *sorted(value.keywords.items()))
        return "partial", [_described(part, describe, seen) for part in given]
    if type(value) in GETTERS:
        return type(value).__qualname__, _described(value.__reduce__()[1], describe, seen)
    if isinstance(value, BuiltinFunctionType | MethodDescriptorType | type):
        return getattr(value, "__module__", "") if _is_library(value) else "", value.__qualname__
    if isinstance(value, dict | list | tuple | set | frozenset):
        return _described_parts(value, describe, seen)
    if is_dataclass(value):
        named = (getattr(value, item.name) for item in fields(value) if item.metadata != NOT_IDENTIFYING)
        return type(value).__qualname__, [_described(part, describe, seen) for part in named]
    # For an object: the functions that it calls, and its plain attributes. Other attributes may change during a run.
    functions = [getattr(value, "__wrapped__", None), getattr(type(value), "__call__", None)]  # noqa: B004
    plain = sorted((name, item) for name, item in getattr(value, "__dict__", {}).items() if type(item) in IMMUTABLE)
    parts = [
        *(item for item in functions if isinstance(item, FunctionType)),
        *([] if _is_library(type(value)) else plain),
    ]
    return type(value).__qualname__, [_described(part, describe, seen) for part in parts]


def _described_parts(value: Any, describe: DescribeBody, seen: set[int]) -> Any:
    if len(value) > PARTS_MAX:
        return type(value).__qualname__, len(value)
    parts = [_described(part, describe, seen) for part in (value.items() if isinstance(value, dict) else value)]
    return type(value).__qualname__, sorted(map(repr, parts)) if isinstance(value, set | frozenset) else parts


def _described_function(function: FunctionType, describe: DescribeBody, seen: set[int]) -> Any:
    if _is_library(function):
        return function.__module__, function.__qualname__
    used = {name: repr(_described(value, describe, seen)) for name, value in loaded_by(function)}
    defaults = [_described(default, describe, seen) for default in function.__defaults__ or ()]
    return describe(function), sorted(used.items()), defaults


def _is_library(value: Any) -> bool:
    top = str(getattr(value, "__module__", None) or "builtins").partition(".")[0]
    return top in sys.stdlib_module_names or top in ("builtins", "procession")


# The source


def _source(function: FunctionType, lines_of: LinesOf) -> str:
    found = {_normal(node) for node in _found(function.__code__, lines_of)}
    if len(found) != 1:
        raise SourceMissing
    return found.pop()


def _found(code: CodeType, lines_of: LinesOf) -> list[ast.Lambda | ast.FunctionDef]:
    """Return the functions in the file that begin where this code begins. Of several lambdas on one line, only those
    with the same code."""
    try:
        tree = ast.parse("".join(lines_of(code.co_filename)))
    except (SyntaxError, ValueError):
        return []
    nodes = [node for node in _functions(tree) if _first_line(node) == code.co_firstlineno]
    if len(nodes) < 2:
        return nodes
    return [node for node in nodes if is_same_code(ast.unparse(node), code)]


def _functions(tree: ast.AST) -> Iterator[ast.Lambda | ast.FunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Lambda | ast.FunctionDef))


def _first_line(node: ast.Lambda | ast.FunctionDef) -> int:
    decorators = node.decorator_list if isinstance(node, ast.FunctionDef) else []
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def _normal(node: ast.Lambda | ast.FunctionDef) -> str:
    """Return only the body, with numbered arguments."""
    arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    numbers = {argument.arg: f"argument{number}" for number, argument in enumerate(arguments)}
    if isinstance(node, ast.Lambda):
        body: list[ast.stmt] = [ast.Return(node.body)]
    else:
        has_docstring = ast.get_docstring(node, clean=False) is not None
        body = [*node.body[has_docstring:]]
    for part in (inner for statement in body for inner in ast.walk(statement)):
        if isinstance(part, ast.Name):
            part.id = numbers.get(part.id, part.id)
    return "\n".join(map(ast.unparse, body))


# The code


def _code(function: FunctionType) -> str:
    return repr(_plain(function.__code__))


def _plain(code: CodeType) -> Any:
    constants = [
        _plain(constant) if isinstance(constant, CodeType) else _constant(constant) for constant in code.co_consts
    ]
    return code.co_code.hex(), constants, code.co_names, code.co_argcount


def _constant(value: Any) -> str:
    # The order of a set differs between processes.
    return repr(sorted(map(repr, value)) if isinstance(value, frozenset) else value)
