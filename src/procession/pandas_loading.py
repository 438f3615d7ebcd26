"""Loading of pandas: delays Arrow's import of pandas until other code imports pandas.

Invariant: it changes when pandas is loaded, never results. At its first conversion, Arrow tries to import pandas, to
recognize pandas' objects. This takes half of a process's start time, and 40 MB. A process that has not imported pandas
has no such objects, so this module hides pandas from Arrow. When any code imports pandas, Arrow imports it, too. Arrow
also imports pandas to infer the types of Python objects. `process_start` calls `defer_pandas`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.abc import Loader, MetaPathFinder
else:
    Loader = MetaPathFinder = object  # the abstract classes add nothing, and take 10 ms to import

ARROW, PANDAS = "pyarrow", "pandas"


class LoadingObserver(MetaPathFinder):
    """Finds one module as Python does, and calls a function once after the module was loaded."""

    def __init__(self, name: str, loaded: Callable[[], None]) -> None:
        self._name = name
        self._loaded = loaded

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        others = (finder for finder in list(sys.meta_path) if finder is not self)
        found = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next((spec for spec in found if spec is not None), None)
        if spec is not None and spec.loader is not None:
            spec.loader = ObservedLoader(spec.loader, self._ended)
        return spec

    def _ended(self) -> None:
        # Not when the module is found: some code only asks whether it is installed.
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            self._loaded()


class ObservedLoader(Loader):
    """Loads a module with its own loader, which stays the module's loader, and then calls a function."""

    def __init__(self, loader: Any, loaded: Callable[[], None]) -> None:
        self._loader = loader
        self._loaded = loaded

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._loaded()


class NoPandas(MetaPathFinder):
    """A finder that hides pandas."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == PANDAS:
            raise ModuleNotFoundError("pandas is loaded when it is used", name=PANDAS)
        return None


def defer_pandas() -> None:
    """Delay the import of pandas in this process. Does nothing if Arrow or pandas is loaded already."""
    if ARROW not in sys.modules and PANDAS not in sys.modules:
        sys.meta_path.insert(0, LoadingObserver(ARROW, _hide_pandas))


def _hide_pandas() -> None:
    """Let Arrow look for pandas while pandas is hidden."""
    if PANDAS in sys.modules:
        return
    refusal = NoPandas()
    sys.meta_path.insert(0, refusal)
    try:
        with suppress(AttributeError):  # a version of Arrow that looks for pandas in another way
            _ = _arrow().have_pandas
    finally:
        sys.meta_path.remove(refusal)
    sys.meta_path.insert(0, LoadingObserver(PANDAS, _show_pandas))


def _show_pandas() -> None:
    """Let Arrow import pandas, which has just been loaded."""
    with suppress(AttributeError, ImportError):  # Arrow refuses old versions of pandas and works without them
        _ = _arrow().pd


def _arrow() -> Any:
    return sys.modules[ARROW].lib._pandas_api
