"""Compiled kernels: loops over numbers or bytes that numba compiles for given types.

Invariant: the compiled code is cached where numba can write (see `cache`); otherwise it lasts for this process only.
Importing this module imports numba, which takes half a second.
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
        except (RuntimeError, OSError):  # the cache is not writable
            return cast(Kernel, numba.njit(signature, nogil=True)(function))

    return compile_it
