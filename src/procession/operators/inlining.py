"""Inlining: puts the expression of a one-expression function where the function would be called.

The one rule: the inlined expression compiles to exactly the function's own code. If it does not, or if there is no
source to compare, the function is called. A call costs some 40 ns before the function has done anything, often more
than a filter or a map itself. Takes the user's functions and the lines of their files, which the task reads; used by
`operators/fusion`. Pure.
"""

from __future__ import annotations
import __future__

import ast
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from types import CodeType, FunctionType
from typing import Any

LinesOf = Callable[[str], Sequence[str]]
"""The lines of the file of this name; none if there is no such file."""

OURS = "our_"
"""So the names begin that the loop has for itself: an expression that has such a name, too, is called."""

SCOPES = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
"""They keep the variables of their surroundings, which in a loop are others a moment later."""

REFUSED = (*SCOPES, ast.NamedExpr, ast.Yield, ast.YieldFrom, ast.Await)

CALLED = frozenset(
    one.__name__ for one in (abs, bool, bytes, chr, divmod, float, hash, int, len, max, min, ord, pow, repr, round, str)
)
"""What may be called, beside methods of the argument and of literals: these do not look at their caller. Anything else
might, and would see the loop instead of the function: who logs, who warns, `locals`, a query."""

_FUTURE = sum(getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)


@dataclass(frozen=True)
class Body:
    """What a function returns: an expression on one line, of a variable that is named as it was asked for."""

    text: str
    is_closed: bool
    """It names nothing but its argument: wherever it stands, it means the same."""


def body_of(function: Callable[[Any], Any], variable: str, lines_of: LinesOf) -> Body | None:
    """The function's expression; None if it has to be called."""
    return _body(function.__code__, variable, lines_of) if type(function) is FunctionType else None


@cache
def _body(code: CodeType, variable: str, lines_of: LinesOf) -> Body | None:
    is_plain = (code.co_argcount, code.co_kwonlyargcount, code.co_nlocals) == (1, 0, 1)
    is_plain &= not code.co_freevars and not code.co_cellvars
    if not is_plain or code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
        return None
    try:
        return _found(code, variable, lines_of(code.co_filename))
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the compiler does not take it, or not again
        return None


def _found(code: CodeType, variable: str, lines: Sequence[str]) -> Body | None:
    (argument,) = code.co_varnames
    for returned, head in _candidates(code, lines):
        parts = list(ast.walk(returned))
        names = {part.id for part in parts if isinstance(part, ast.Name)}
        if any(isinstance(part, REFUSED) for part in parts) or not all(_is_known(part, argument) for part in parts):
            continue
        if any(name.startswith(OURS) for name in names):
            continue
        if not _is_same(_compiled(head + ast.unparse(returned), code), code):
            continue
        for part in parts:
            if isinstance(part, ast.Name) and part.id == argument:
                part.id = variable
        text = ast.unparse(returned)
        return None if "\n" in text else Body(text, names <= {argument})
    return None


def _is_known(part: ast.AST, argument: str) -> bool:
    """Whether this is no call, or one of something that does not look at its caller."""
    if not isinstance(part, ast.Call):
        return True
    if isinstance(part.func, ast.Name):
        return part.func.id in CALLED
    root = part.func
    while isinstance(root, ast.Attribute | ast.Subscript | ast.Call):
        root = root.func if isinstance(root, ast.Call) else root.value
    return isinstance(root, ast.Constant | ast.JoinedStr) or (isinstance(root, ast.Name) and root.id == argument)


def _candidates(code: CodeType, lines: Sequence[str]) -> Iterator[tuple[ast.expr, str]]:
    """What functions that begin on this code's line return, and the text that stands before it."""
    tree = ast.parse("".join(lines))
    (argument,) = code.co_varnames
    for node in ast.walk(tree):
        if getattr(node, "lineno", None) != code.co_firstlineno:
            continue
        if isinstance(node, ast.Lambda):
            yield node.body, f"lambda {argument}: "
        elif isinstance(node, ast.FunctionDef) and isinstance(node.body[-1], ast.Return) and node.body[-1].value:
            told = ast.get_docstring(node, clean=False)
            if len(node.body) == (1 if told is None else 2):
                yield node.body[-1].value, f"def function({argument}): {'' if told is None else f'{told!r}; '}return "


def is_same_code(text: str, code: CodeType) -> bool:
    """Whether the one function in this text compiles to that code."""
    try:
        return _is_same(_compiled(text, code), code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


def _compiled(text: str, code: CodeType) -> CodeType | None:
    """The code of the one function in this text, under what the file of that code asks of the compiler."""
    whole = compile(text, "", "exec", flags=code.co_flags & _FUTURE, dont_inherit=True)
    return next((one for one in whole.co_consts if isinstance(one, CodeType)), None)


def _is_same(one: CodeType | None, other: CodeType) -> bool:
    """Whether two codes do the same, whatever they are called and wherever they stand."""
    return one is not None and _bare(one) == _bare(other)


def _bare(code: CodeType) -> CodeType:
    return code.replace(
        co_name="", co_qualname="", co_firstlineno=1, co_linetable=b"", co_flags=code.co_flags & ~inspect.CO_NESTED
    )
