"""Effects: finds the effects of a user's function from its code, without calling it.

Invariant: both answers are "yes" only if the code proves it; other code counts as "no". So a wrong "no" costs a copy,
but never causes a wrong result. Methods are recognized by name: a method of a user's class with the name of a built-in
type's method is assumed to have the same effects. Reads the functions of a graph for `planner/sharing`, which avoids
unnecessary copies. Pure.
"""

from __future__ import annotations

import builtins
import dis
import functools
import operator
import re
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    MethodDescriptorType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any

from procession.operators.expressions import Expression
from procession.planner.ownership import IMMUTABLE

UNKNOWN = object()
"""The value of a name that is unknown before the function runs."""

HARMLESS_CODES = re.compile(
    "LOAD_|STORE_FAST|STORE_DEREF|BINARY_OP|BINARY_SUBSCR|BINARY_SLICE|COMPARE_OP|IS_OP|CONTAINS_OP|UNARY_|BUILD_|POP_"
    "|JUMP|RETURN_|RESUME|PUSH_NULL|PRECALL|CALL|KW_NAMES|COPY|SWAP|NOP|UNPACK_|FORMAT_|CONVERT_VALUE|GET_ITER|GET_LEN"
    "|FOR_ITER|END_FOR|LIST_|SET_ADD|SET_UPDATE|SET_FUNCTION_ATTRIBUTE|MAP_ADD|DICT_|MAKE_|YIELD_VALUE|TO_BOOL"
    "|EXTENDED_ARG|MATCH_|NOT_TAKEN|RERAISE|CHECK_EXC_MATCH|PUSH_EXC_INFO"
)
"""Operations that change no object that existed before the call. Operations that fill a list, set or dict fill a
literal that is being built."""

CHANGING_METHODS = frozenset().union(
    *(
        set(dir(kind)) - set(dir(fixed))
        for kind, fixed in ((list, tuple), (dict, tuple), (set, frozenset), (bytearray, bytes), (deque, tuple))
    )
) - {"copy", "get", "items", "keys", "values"}
FIXED = (str, bytes, int, float, tuple, frozenset, date, datetime, timedelta, Decimal, re.Match, re.Pattern)
HARMLESS_METHODS = {"copy", "get", "items", "keys", "values"}.union(
    name for kind in FIXED for name in dir(kind) if not name.startswith("_") and name not in CHANGING_METHODS
)
"""Names of methods of the built-in types that do not change their object."""

HARMLESS_BUILTINS: frozenset[Any] = frozenset(
    {abs, all, any, ascii, bin, bool, bytearray, bytes, callable, chr, complex, dict, divmod, enumerate, filter, float}
    | {format, frozenset, hash, hex, id, int, isinstance, issubclass, iter, len, list, map, max, memoryview, min, oct}
    | {ord, pow, print, range, repr, reversed, round, set, slice, sorted, str, sum, tuple, type, zip}
)
HARMLESS_MODULES = frozenset(
    {"base64", "binascii", "calendar", "datetime", "decimal", "fractions", "hashlib", "html", "ipaddress", "json"}
    | {"math", "re", "statistics", "string", "textwrap", "time", "unicodedata", "urllib.parse", "uuid", "zlib"}
    | {"_decimal", "_hashlib", "_json", "json.decoder", "json.encoder"}
)
"""Modules of the standard library whose functions do not change their arguments."""

SEEING_ALL = frozenset(
    {builtins.eval, builtins.exec, builtins.globals, builtins.vars, builtins.locals, builtins.getattr}
)
"""Functions that may return objects which the caller does not name."""


@dataclass(frozen=True)
class NameUse:
    """One operation of a function, and the outside value that it loads by name, if any."""

    name: str
    argument: Any
    text: str
    loaded: Any = None
    is_loading: bool = False


def changes_nothing(function: Any) -> bool:
    """Whether a call changes neither its arguments nor any object that it can reach."""
    return _is_harmless(function, set())


def returns_own_objects(function: Any) -> bool:
    """Whether the mutable objects in the result of a call are only its arguments and objects that it created."""
    return _is_closed(function, set())


def loaded_by(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the globals and closure variables that a function uses, with their names."""
    return ((use.name, use.loaded) for use in _uses(function) if use.is_loading)


def _is_harmless(value: Any, seen: set[int]) -> bool:
    if _is_fixed(value) or id(value) in seen or isinstance(value, ModuleType):
        return True
    seen.add(id(value))
    if isinstance(value, FunctionType):
        return value.__module__ in HARMLESS_MODULES or all(_is_harmless_use(use, seen) for use in _uses(value))
    if isinstance(value, Expression):
        return True
    if isinstance(value, functools.partial):
        return all(_is_harmless(part, seen) for part in (value.func, *value.args, *value.keywords.values()))
    if type(value) in (operator.itemgetter, operator.attrgetter):
        return True
    if isinstance(value, MethodDescriptorType):
        return value.__name__ in HARMLESS_METHODS
    if isinstance(value, type):
        return value in HARMLESS_BUILTINS or value.__module__ in HARMLESS_MODULES
    if isinstance(value, BuiltinFunctionType):
        holder = value.__self__
        if isinstance(holder, ModuleType | type):
            name = holder.__name__ if isinstance(holder, ModuleType) else holder.__module__
            return value in HARMLESS_BUILTINS or name in HARMLESS_MODULES
        return _is_fixed(holder) and value.__name__ in HARMLESS_METHODS
    if type(value) in (dict, list, set):
        parts = value.values() if type(value) is dict else value
        return all(map(_is_fixed, parts))
    return False


def _is_harmless_use(use: NameUse, seen: set[int]) -> bool:
    if use.is_loading:
        return _is_harmless(use.loaded, seen)
    if use.name in ("LOAD_ATTR", "LOAD_METHOD"):
        return use.argument in HARMLESS_METHODS
    if use.name == "BINARY_OP" and use.text.endswith("="):
        return False  # a list or dict may be extended in place
    return HARMLESS_CODES.match(use.name) is not None


def _is_closed(value: Any, seen: set[int]) -> bool:
    if _is_fixed(value) or id(value) in seen or isinstance(value, ModuleType):
        return True
    seen.add(id(value))
    if isinstance(value, FunctionType):
        if _is_of_library(value):
            return True
        defaults = (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values())
        return all(_is_closed(default, seen) for default in defaults) and all(
            _is_closed_use(use, seen) for use in _uses(value)
        )
    if isinstance(value, Expression):
        return True
    if isinstance(value, functools.partial):
        return all(_is_closed(part, seen) for part in (value.func, *value.args, *value.keywords.values()))
    if isinstance(value, type):
        makers = (value.__dict__.get(name) for name in ("__init__", "__new__", "__post_init__"))
        return _is_of_library(value) or all(
            _is_closed(maker, seen) for maker in makers if isinstance(maker, FunctionType)
        )
    if isinstance(value, BuiltinFunctionType):
        holder = getattr(value, "__self__", None)
        return value not in SEEING_ALL and (
            holder is None or isinstance(holder, ModuleType | type) or _is_fixed(holder)
        )
    is_plain = isinstance(value, MethodDescriptorType | WrapperDescriptorType)
    # The marker for a default factory in a dataclass belongs to the module `dataclasses`.
    is_plain |= type(value).__module__ == "dataclasses"
    return is_plain or type(value) in (operator.itemgetter, operator.attrgetter, operator.methodcaller)


def _is_closed_use(use: NameUse, seen: set[int]) -> bool:
    if use.is_loading:
        return _is_closed(use.loaded, seen)
    if use.name == "IMPORT_NAME":
        return str(use.argument).partition(".")[0] in sys.stdlib_module_names
    return True


def _is_fixed(value: Any) -> bool:
    """Whether this value is immutable, including all its parts."""
    if type(value) in (tuple, frozenset):
        return all(map(_is_fixed, value))
    return type(value) in IMMUTABLE or isinstance(value, Enum)


def _is_of_library(value: Any) -> bool:
    return str(getattr(value, "__module__", "")).partition(".")[0] in sys.stdlib_module_names


def _uses(function: FunctionType) -> Iterator[NameUse]:
    """Yield the operations of a function and of the functions defined in it."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
    return _uses_of(function.__code__, function.__globals__, {name: _content(cell) for name, cell in cells})


def _uses_of(code: CodeType, names: dict[str, Any], free: dict[str, Any]) -> Iterator[NameUse]:
    loaded: Any = None
    is_loading, name = False, ""
    for instruction in dis.get_instructions(code):
        if is_loading and instruction.opname in ("LOAD_ATTR", "LOAD_METHOD") and isinstance(loaded, ModuleType | type):
            loaded, name = getattr(loaded, instruction.argval, UNKNOWN), f"{name}.{instruction.argval}"
            continue
        if is_loading:
            yield NameUse(name, None, "", loaded, is_loading=True)
        name = str(instruction.argval)
        loaded, is_loading = _loaded(instruction, names, free)
        if not is_loading:
            yield NameUse(instruction.opname, instruction.argval, instruction.argrepr)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _uses_of(constant, names, free)


def _loaded(instruction: dis.Instruction, names: dict[str, Any], free: dict[str, Any]) -> tuple[Any, bool]:
    """Return the outside value that an operation loads, and whether it loads one."""
    if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
        return names.get(instruction.argval, getattr(builtins, instruction.argval, UNKNOWN)), True
    if instruction.opname == "LOAD_DEREF" and instruction.argval in free:
        return free[instruction.argval], True
    return None, False


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # the cell is still empty
        return UNKNOWN
