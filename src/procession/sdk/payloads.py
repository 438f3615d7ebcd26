"""Payloads: the messages of the data stream that arrived together, one by one or as one piece.

Invariant: messages that arrived together share one buffer, and nothing is copied before it is used. `wire/connection`
decodes the columns; `sdk/participant` and the author's Output see a sequence of bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from procession.wire.messages import binaries


class Payloads(Sequence[bytes]):
    """A sequence of bytes. `joined` has all of them as one buffer.

    Example:
        >>> payloads = Payloads.of([b"one", b"", b"three"])
        >>> list(payloads)
        [b'one', b'', b'three']
        >>> bytes(payloads.joined)
        b'onethree'
        >>> payloads[1:][1]
        b'three'
    """

    def __init__(self, array: pa.Array) -> None:
        """From an Arrow array of binaries without nulls."""
        self._array = array

    @classmethod
    def of(cls, payloads: Sequence[bytes]) -> Payloads:
        """From a sequence of bytes. A single one, which may be large, is not copied."""
        return payloads if isinstance(payloads, Payloads) else cls(binaries(payloads))

    @property
    def array(self) -> pa.Array:
        """All messages as an Arrow array of binaries."""
        return self._array

    @property
    def edges(self) -> npt.NDArray[np.int64]:
        """The start of each message, counted from the first byte, and last the end of all."""
        offsets = self._offsets()
        edges: npt.NDArray[np.int64] = offsets - offsets[0]
        return edges

    @property
    def joined(self) -> memoryview:
        """All bytes, one message behind the other."""
        data = self._array.buffers()[2]
        offsets = self._offsets()
        return memoryview(data)[offsets[0] : offsets[-1]] if data is not None else memoryview(b"")

    def _offsets(self) -> npt.NDArray[np.int64]:
        """Where each begins in the array's buffer, and where the last ends."""
        if not len(self._array):
            return np.zeros(1, np.int64)
        width = 64 if pa.types.is_large_binary(self._array.type) else 32
        start = self._array.offset
        offsets = np.frombuffer(self._array.buffers()[1], f"i{width // 8}")
        return offsets[start : start + len(self._array) + 1].astype(np.int64)

    def __len__(self) -> int:
        return len(self._array)

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> Payloads: ...
    def __getitem__(self, index: int | slice) -> bytes | Payloads:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step != 1:
                raise ValueError("payloads are cut in their order")
            return Payloads(self._array.slice(start, max(0, stop - start)))
        return bytes(self._array[index].as_py())

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._array.to_pylist())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # a sequence of arrays has none
