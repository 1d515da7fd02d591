"""64-bit words with arithmetic modulo 2^64, for random number generators.

ONNX leaves integer overflow undefined; one runtime wraps around where another saturates. So the nodes here never
overflow: sums exclude the highest bit, and products are built from 32-bit halves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, final

import numpy as np

if TYPE_CHECKING:
    from .writer import Writer

UINT64 = np.dtype(np.uint64)

_HALF = 2**32 - 1
_TOP = 2**63


@final
class Word:
    """A tensor of words, by its name in the model; for a constant, also its value."""

    __slots__ = ("writer", "name", "value")

    def __init__(self, writer: Writer, name: str, value: int | None = None):
        self.writer = writer
        self.name = name
        self.value = value

    def __add__(self, other: Word) -> Word:
        """Add without overflow: the highest bit is the xor of the operands' highest bits and the carry of the rest."""
        rest = self._node("Add", self & (_TOP - 1), other & (_TOP - 1))
        return rest ^ ((self ^ other) & _TOP)

    def __mul__(self, factor: Word) -> Word:
        """Multiply by a constant: low · low in full, plus the low halves of the two mixed products, shifted by 32
        bits."""
        assert factor.value is not None
        word = constant(self.writer)
        shift, by_high, by_low = word(32), word(factor.value >> 32), word(factor.value & _HALF)
        high, low = self >> shift, self & _HALF
        product = self._node("Mul", low, by_low)
        # A product of halves and two halves fit in a word: (2^32 - 1)^2 + 2·(2^32 - 1) = 2^64 - 1.
        mixed = self._node("Add", self._node("Mul", low, by_high), self._node("Mul", high, by_low) & _HALF)
        upper = self._node("Add", product >> shift, mixed) & _HALF
        return self._node("BitwiseOr", self._node("BitShift", upper, shift, direction="LEFT"), product & _HALF)

    def __xor__(self, other: Word) -> Word:
        return self._node("BitwiseXor", self, other)

    def __rshift__(self, places: Word) -> Word:
        return self._node("BitShift", self, places, direction="RIGHT")

    def __and__(self, mask: int) -> Word:
        word = constant(self.writer)
        return word(self.value & mask) if self.value is not None else self._node("BitwiseAnd", self, word(mask))

    def _node(self, op: str, *operands: Word, **attributes: Any) -> Word:
        return Word(self.writer, self.writer.node(op, *[operand.name for operand in operands], **attributes))


def constant(writer: Writer) -> Callable[[int], Word]:
    """Return a function that makes constants of a model."""

    def word(value: int) -> Word:
        return Word(writer, writer.constant(value, UINT64), value)

    return word
