"""Compiled kernels: a loop over numbers or bytes, compiled by numba for given types.

The one rule: the result is kept where numba may keep it (see `cache`); where there is no such place, it is compiled for
this process alone. Importing this module imports numba, which takes half a second. Imports nothing of ours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

Kernel = TypeVar("Kernel", bound=Callable[..., Any])


def compiled(signature: Any) -> Callable[[Kernel], Kernel]:
    """Compile a function for these types."""

    def compile_it(function: Kernel) -> Kernel:
        try:
            return cast(Kernel, numba.njit(signature, nogil=True, cache=True)(function))
        except (RuntimeError, OSError):  # there is nowhere to keep it, or the disk does not take it
            return cast(Kernel, numba.njit(signature, nogil=True)(function))

    return compile_it
