"""Inlining: puts the expression of a one-expression function where the function would be called.

Invariant: the inlined expression compiles to exactly the function's own code. If it does not, or if there is no source
to compare, the function is called. A call alone costs about 40 ns, often more than the work of a filter or a map. The
task reads the lines of the source files. Used by `operators/fusion`. Pure.
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
"""Returns the lines of a file by its name, or no lines if there is no such file."""

OURS = "our_"
"""Prefix of the loop's own names. A function that uses such a name is not inlined."""

SCOPES = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
"""Expressions that capture variables, which would change with the next record of the loop."""

REFUSED = (*SCOPES, ast.NamedExpr, ast.Yield, ast.YieldFrom, ast.Await)

CALLED = frozenset(
    function.__name__
    for function in (abs, bool, bytes, chr, divmod, float, hash, int, len, max, min, ord, pow, repr, round, str)
)
"""Functions that an inlined expression may call, in addition to methods of its argument and of literals. They do not
inspect their caller. Other functions, such as loggers, `warnings.warn` or `locals`, may do so, and would see the loop
instead of the user's function."""

_FUTURE = sum(getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)


@dataclass(frozen=True)
class FunctionBody:
    """The expression that a function returns, on one line, with its argument renamed."""

    text: str
    is_closed: bool
    """Whether its argument is the only name that the expression uses. Then it means the same in every module."""


def body_of(function: Callable[[Any], Any], variable: str, lines_of: LinesOf) -> FunctionBody | None:
    """Return the expression of the function. None: the function has to be called."""
    return _body(function.__code__, variable, lines_of) if type(function) is FunctionType else None


@cache
def _body(code: CodeType, variable: str, lines_of: LinesOf) -> FunctionBody | None:
    is_plain = (code.co_argcount, code.co_kwonlyargcount, code.co_nlocals) == (1, 0, 1)
    is_plain &= not code.co_freevars and not code.co_cellvars
    if not is_plain or code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
        return None
    try:
        return _found(code, variable, lines_of(code.co_filename))
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the source does not compile
        return None


def _found(code: CodeType, variable: str, lines: Sequence[str]) -> FunctionBody | None:
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
        return None if "\n" in text else FunctionBody(text, names <= {argument})
    return None


def _is_known(part: ast.AST, argument: str) -> bool:
    """Whether this is not a call, or is a call of a function that does not inspect its caller."""
    if not isinstance(part, ast.Call):
        return True
    if isinstance(part.func, ast.Name):
        return part.func.id in CALLED
    root = part.func
    while isinstance(root, ast.Attribute | ast.Subscript | ast.Call):
        root = root.func if isinstance(root, ast.Call) else root.value
    return isinstance(root, ast.Constant | ast.JoinedStr) or (isinstance(root, ast.Name) and root.id == argument)


def _candidates(code: CodeType, lines: Sequence[str]) -> Iterator[tuple[ast.expr, str]]:
    """Yield the expressions that functions on this line of the file return, and the text before each expression."""
    tree = ast.parse("".join(lines))
    (argument,) = code.co_varnames
    for node in ast.walk(tree):
        if getattr(node, "lineno", None) != code.co_firstlineno:
            continue
        if isinstance(node, ast.Lambda):
            yield node.body, f"lambda {argument}: "
        elif isinstance(node, ast.FunctionDef) and isinstance(node.body[-1], ast.Return) and node.body[-1].value:
            text = ast.get_docstring(node, clean=False)
            if len(node.body) == (1 if text is None else 2):
                yield node.body[-1].value, f"def function({argument}): {'' if text is None else f'{text!r}; '}return "


def is_same_code(text: str, code: CodeType) -> bool:
    """Whether the only function in this text compiles to that code."""
    try:
        return _is_same(_compiled(text, code), code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


def _compiled(text: str, code: CodeType) -> CodeType | None:
    """Compile the only function in this text, with the `__future__` features of that code's file. Returns its code."""
    whole = compile(text, "", "exec", flags=code.co_flags & _FUTURE, dont_inherit=True)
    return next((constant for constant in whole.co_consts if isinstance(constant, CodeType)), None)


def _is_same(code: CodeType | None, other: CodeType) -> bool:
    """Whether two code objects are equal, except for their names and positions."""
    return code is not None and _bare(code) == _bare(other)


def _bare(code: CodeType) -> CodeType:
    return code.replace(
        co_name="", co_qualname="", co_firstlineno=1, co_linetable=b"", co_flags=code.co_flags & ~inspect.CO_NESTED
    )
