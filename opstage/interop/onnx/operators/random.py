"""The export of random tensors, with the same bits as in every interpreter, on 64-bit words.

The bits of ONNX's own random operators depend on the runtime, and it leaves integer overflow undefined. So the nodes
here never overflow: sums exclude the highest bit, and products are built from 32-bit halves.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, final

import numpy as np

from ....compiler import scalar
from ....ops import random
from ....ops.splitmix import splitmix64
from ....ops.types import INT64, Shape, as_dtype
from ..writer import OnnxValue, OnnxWriter, exports

UINT64 = np.dtype(np.uint64)

_HALF = 2**32 - 1
_TOP = 2**63


@final
class Word:
    """A tensor of words, by its name in the model; for a constant, also its value."""

    __slots__ = ("writer", "name", "value")

    def __init__(self, writer: OnnxWriter, name: str, value: int | None = None):
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


def constant(writer: OnnxWriter) -> Callable[[int], Word]:
    """Return a function that makes constants of a model."""

    def word(value: int) -> Word:
        return Word(writer, writer.constant(value, UINT64), value)

    return word


# Random tensors ------------------------------------------------------------------------------------------------------


@exports(random.RAND_UNIFORM)
def _write_rand_uniform(
    writer: OnnxWriter, step: OnnxValue, *iterations: OnnxValue, shape: Shape, seed: int, site: int, dtype: str
) -> str:
    """Draw all elements as one row, from the counters 0, 1, 2, …"""
    word, storage = constant(writer), as_dtype(dtype)
    mix = scalar.splitmix64(word)
    key = _write_key(writer, step, seed, site)
    for iteration in iterations:
        key = mix(key + _write_word(writer, iteration))
    size = math.prod(shape)
    counters = writer.node("Range", writer.number(0, INT64), writer.number(size, INT64), writer.number(1, INT64))
    integers = scalar.uniform_integer(word, mix)(key, Word(writer, writer.converted(counters, UINT64)))
    row = writer.node("Mul", writer.converted(integers.name, storage), writer.number(2.0**-24, storage))
    return writer.reshaped(row, (size,), shape)


def _write_key(writer: OnnxWriter, step: OnnxValue, seed: int, site: int) -> Word:
    """Write `stream_key` as nodes. Draws at one site share the key; draws with one seed share its prefix."""
    word = constant(writer)
    mix = scalar.splitmix64(word)
    begun = writer.once(
        ("key", seed, step.name), step, lambda: mix(word(splitmix64(seed)) + _write_word(writer, step)).name
    )
    key = writer.once(("key", seed, site, step.name), step, lambda: mix(Word(writer, begun) + word(site)).name)
    return Word(writer, key)


def _write_word(writer: OnnxWriter, integer: OnnxValue) -> Word:
    return Word(writer, writer.converted(integer, UINT64))
