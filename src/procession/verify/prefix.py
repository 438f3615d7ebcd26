"""Checks during a run that the output so far is a prefix of the expected output. Pure.

Invariant: every byte is read once. The check remembers its position in the inputs and reads only newly committed bytes,
so a harness can check ten times a second. It reports where the output differs; `verify/verifier` then determines the
differences. Inputs are read through a function. Used by `verify/live_check`.

Each output line must be the next line of some group: of an input, or of an input's key. Without order, any line that
is due matches. Lines of groups that are behind wait in memory, up to a limit; above it the check stops with an
unknown result.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable

from procession.verify.order import KeyOf, PromisedOrder

AHEAD_RECORDS_MAX = 1_000_000
READ_BYTES = 256 * 1024
REPEATED = "The inputs contain the same line more than once, so its order in the output cannot be determined."

# Reads a number of bytes of an input from a position; fewer at the end of the input, which may still grow.
ReadInput = Callable[[int, int, int], bytes]


class PrefixCheck:
    """Checks committed bytes in order. `difference` is the number of the first wrong record."""

    def __init__(
        self,
        inputs: int,
        read: ReadInput,
        *,
        order: PromisedOrder = PromisedOrder.TOTAL,
        key_of: KeyOf | None = None,
        ahead_records_max: int = AHEAD_RECORDS_MAX,
    ) -> None:
        self.records = 0
        self.difference: int | None = None
        self.doubt = ""
        self._read = read
        self._order = order
        self._key_of = key_of
        self._ahead_max = ahead_records_max
        self._positions = [0] * inputs
        self._tails = [b""] * inputs
        self._due: dict[Hashable, deque[bytes]] = {}
        self._ahead = 0
        self._rest = b""
        self._is_ambiguous = False

    @property
    def is_over(self) -> bool:
        """Whether the result is final."""
        return self.difference is not None or bool(self.doubt)

    def take(self, data: bytes) -> None:
        """Check the next committed bytes."""
        if self.is_over:
            return
        data = self._rest + data
        end = data.rfind(b"\n") + 1
        lines, self._rest = data[:end], data[end:]
        if not lines or self._take_equal(lines):
            return
        for line in lines[:-1].split(b"\n"):
            if not self._take_line(line):
                return
            self.records += 1

    def _take_equal(self, lines: bytes) -> bool:
        """Handle the usual case, for any order: the next bytes of the only input."""
        if len(self._positions) != 1 or self._ahead or self._tails[0]:
            return False
        expected = self._read(0, self._positions[0], len(lines))
        if expected != lines and expected + b"\n" != lines:
            return False
        self._positions[0] += len(expected)
        self.records += lines.count(b"\n")
        return True

    def _take_line(self, line: bytes) -> bool:
        while not (found := self._found(line)):
            if not self._read_ahead(line):
                if self._is_ambiguous:
                    self.doubt = REPEATED
                elif not self.doubt:
                    self.difference = self.records
                return False
        self._is_ambiguous = self._is_ambiguous or (len(found) > 1 and self._order is not PromisedOrder.NONE)
        group = found[0]
        self._due[group].popleft()
        self._ahead -= 1
        if not self._due[group]:
            del self._due[group]
        return True

    def _found(self, line: bytes) -> list[Hashable]:
        """Return the groups whose next line this is."""
        groups = [self._group(number, line) for number in range(len(self._positions))]
        return [group for group in groups if group in self._due and self._due[group][0] == line]

    def _read_ahead(self, line: bytes) -> bool:
        """Read further in the inputs whose next line could be this one. Return whether a line was read."""
        is_any = False
        for number in range(len(self._positions)):
            if self._group(number, line) not in self._due:
                is_any = self._read_piece(number) or is_any
        if self._ahead > self._ahead_max:
            self.doubt = (
                f"More than {self._ahead_max} records are due before record {self.records} of the output"
                " can be matched; later records were not checked."
            )
            return False
        return is_any

    def _read_piece(self, number: int) -> bool:
        piece = self._read(number, self._positions[number], READ_BYTES)
        self._positions[number] += len(piece)
        # A last line without a newline is a record too; it is returned when no other line is left.
        *lines, self._tails[number] = (self._tails[number] + (piece or b"\n" * bool(self._tails[number]))).split(b"\n")
        for line in lines:
            self._due.setdefault(self._group(number, line), deque()).append(line)
        self._ahead += len(lines)
        return bool(piece) or bool(lines)

    def _group(self, number: int, line: bytes) -> Hashable:
        if self._order is PromisedOrder.NONE:
            return line
        if self._order is PromisedOrder.KEY and self._key_of is not None:
            return number, self._key_of(line)
        return number
