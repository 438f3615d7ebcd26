"""Payloads: the messages of the data stream that arrived together, as single messages or as one buffer.

Invariant: messages that arrived together share one buffer, and no byte is copied before it is used. `wire/connection`
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
    """A sequence of bytes. `joined` is one buffer with the bytes of all messages.

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
        """Create payloads from an Arrow array of binaries without nulls."""
        self._array = array

    @classmethod
    def of(cls, payloads: Sequence[bytes]) -> Payloads:
        """Create payloads from a sequence of bytes. A single message, which may be large, is not copied."""
        return payloads if isinstance(payloads, Payloads) else cls(binaries(payloads))

    @property
    def array(self) -> pa.Array:
        """All messages as an Arrow array of binaries."""
        return self._array

    @property
    def edges(self) -> npt.NDArray[np.int64]:
        """The start of each message and the end of the last, counted from the first byte."""
        offsets = self._offsets()
        edges: npt.NDArray[np.int64] = offsets - offsets[0]
        return edges

    @property
    def joined(self) -> memoryview:
        """The bytes of all messages, one message after the other."""
        data = self._array.buffers()[2]
        offsets = self._offsets()
        return memoryview(data)[offsets[0] : offsets[-1]] if data is not None else memoryview(b"")

    def _offsets(self) -> npt.NDArray[np.int64]:
        """The start of each message and the end of the last, in the buffer of the array."""
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
                raise ValueError("slices of payloads need the step 1")
            return Payloads(self._array.slice(start, max(0, stop - start)))
        return bytes(self._array[index].as_py())

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._array.to_pylist())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # a sequence of arrays has none
