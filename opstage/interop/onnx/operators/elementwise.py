"""Arithmetic, elementwise functions, comparisons, masks, conversions and random tensors: import and export."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import partial, reduce
from typing import Any, final

import numpy as np

from ....compiler import scalar
from ....ops import activation, elementwise, logic, random, rounding, transcendental
from ....ops.catalogue import primitives
from ....ops.errors import UnsupportedError
from ....ops.splitmix import splitmix64
from ....ops.types import BOOL, FLOAT32, INT64, DType, Shape, as_dtype
from ...operators import NAN, compared, exported, masked, pointwise, together
from ...values import KnownValue, Value, broadcast, is_bfloat16, stretched
from ..file import dtype_of
from ..graph import NodeCall, rule
from ..writer import OnnxValue, OnnxWriter, broadcasting, direct, exports

# Import ---------------------------------------------------------------------------------------------------------------


@rule("Identity")
def _identity(call: NodeCall[Any]) -> Value:
    return call.value(0)


@rule("Pow")
def _pow(call: NodeCall[Any]) -> Value:
    ops, exponent = call.ops, call.value(1)
    dtype = call.dtype()
    if isinstance(exponent, KnownValue) and exponent.array.size == 1 and call.rank(1) <= call.rank(0):
        e = exponent.array.reshape(-1)[0]
        e = e.item() if isinstance(e, np.generic) else e
        if dtype.kind == "f":
            return call.give(ops.pow(call.x(), exponent=int(e) if isinstance(e, float) and e.is_integer() else e))
        if isinstance(e, int) and e >= 0:
            one = ops.full(shape=call.shape(), value=1, dtype=call.x().dtype)
            return call.wrap(reduce(ops.mul, [call.x()] * e, one))
    x, y = call.x(0), call.x(1)
    if dtype.kind != "f":
        x = ops.cast(x, dtype=ops.dtype)
    if y.dtype.kind != "f":
        y = ops.cast(y, dtype=ops.dtype)
    return call.give(ops.power(*broadcast(ops, x, y)))


@rule("Mean")
def _mean(call: NodeCall[Any]) -> Value:
    total = reduce(call.ops.add, call.spread())
    return call.give(call.ops.scale(total, c=1 / len(call)))


@rule("Clip", known=(1, 2))
def _clip(call: NodeCall[Any]) -> Value:
    ops, x = call.ops, call.x()
    bounds: list[Any] = []
    for i, name in ((1, "min"), (2, "max")):
        if call.has(i) and not isinstance(call.value(i), KnownValue):
            bounds.append(stretched(ops, call.x(i), x.shape))
        else:
            bounds.append(call.number(i, name, call.attribute(name)))
    low, high = bounds
    plain = all(isinstance(each, (int, float)) for each in (low, high)) and x.dtype.kind == "f"
    return call.give(ops.clamp(x, lo=low, hi=high)) if plain and low <= high else _limited(call, x, low, high)


def _limited(call: NodeCall[Any], x: Any, low: Any, high: Any) -> Value:
    ops = call.ops

    def tensor(bound: Any) -> Any:
        return ops.full(shape=x.shape, value=bound, dtype=x.dtype) if isinstance(bound, (int, float)) else bound

    x = x if low is None else ops.maximum(x, tensor(low))
    return call.give(x if high is None else ops.minimum(x, tensor(high)))


@rule("IsInf")
def _is_inf(call: NodeCall[Any]) -> Value:
    ops, x = call.ops, call.x()
    wanted = {math.inf: call.attribute("detect_positive", 1), -math.inf: call.attribute("detect_negative", 1)}
    signs = [sign for sign, found in wanted.items() if found]
    if len(signs) == 2:
        return call.mask(ops.isinf(x))
    if not signs:
        return call.mask(ops.full(shape=x.shape, value=False, dtype=BOOL))
    return call.mask(ops.equal(x, ops.full(shape=x.shape, value=signs[0], dtype=x.dtype)))


@rule("Where")
def _where(call: NodeCall[Any]) -> Value:
    mask, x, y = call.spread(0, 1, 2)
    return call.give(call.ops.select(mask, x, y), call.dtype(1))


@rule("Cast", "CastLike")
def _cast(call: NodeCall[Any]) -> Value:
    source = call.dtype()
    target = call.dtype(1) if call.node.op == "CastLike" else dtype_of(int(call.attribute("to")))
    ops, x = call.ops, call.x()
    if is_bfloat16(target) and not is_bfloat16(source):
        raise UnsupportedError("a cast to bfloat16 would not round here, where all floats are of the program's dtype")
    if (
        target.kind == "f"
        and source.kind == "f"
        and target == np.float16
        and target.itemsize < source.itemsize
        and not call.is_exact
    ):
        raise UnsupportedError("a cast to float16 would not round here, where all floats are of the program's dtype")
    if target.kind in "iu" and source.kind == "f" and x.dtype.kind == "f":
        x = ops.cast(x, dtype="int64")
        return call.wrap(x, target)
    return call.wrap(x, target) if target.kind in "iu" and source.kind in "iu" else call.give(x, target)


@rule("BitShift")
def _bit_shift(call: NodeCall[Any]) -> Value:
    x, y = call.spread(0, 1)
    left = call.attribute("direction") == "LEFT"
    return call.wrap(call.ops.left_shift(x, y) if left else call.ops.right_shift(x, y))


# Floor division and shifts: export without operands on which runtimes differ ------------------------------------------


def _write_rest(writer: OnnxWriter, x: OnnxValue, y: OnnxValue, dtype: DType) -> tuple[str, str]:
    """Return x modulo y, and the divisor used: 1 for integer divisors 0 and -1, where the remainder is 0."""
    zero = writer.number(0, dtype)
    if dtype.kind == "i":
        special = writer.node("Or", writer.node("Equal", y, zero), writer.node("Equal", y, writer.number(-1, dtype)))
        safe = writer.node("Where", special, writer.number(1, dtype), y)
        return writer.node("Mod", x, safe), safe
    rest = writer.node("Mod", x, y, fmod=1)
    below = writer.node("And", writer.node("Less", rest, zero), writer.node("Greater", y, zero))
    above = writer.node("And", writer.node("Greater", rest, zero), writer.node("Less", y, zero))
    apart = writer.node("Or", below, above)
    return writer.node("Where", apart, writer.node("Add", rest, y), rest), y.name


@exports(rounding.MOD)
def _write_mod(writer: OnnxWriter, x: OnnxValue, y: OnnxValue) -> str:
    return _write_rest(writer, x, y, writer.out.dtype)[0]


@exports(rounding.FLOOR_DIVIDE)
def _write_floor_divide(writer: OnnxWriter, x: OnnxValue, y: OnnxValue) -> str:
    dtype = writer.out.dtype
    rest, divisor = _write_rest(writer, x, y, dtype)
    whole = writer.node("Div", writer.node("Sub", x, rest), divisor)
    by_zero = writer.node("Equal", y, writer.number(0, dtype))
    if dtype.kind == "f":
        return writer.node("Where", by_zero, writer.node("Div", x, y), writer.node("Round", whole))
    opposite = writer.node("Equal", y, writer.number(-1, dtype))
    whole = writer.node("Where", opposite, writer.node("Neg", x), whole)
    return writer.node("Where", by_zero, writer.number(0, dtype), whole)


def _write_places(writer: OnnxWriter, y: OnnxValue, dtype: DType) -> tuple[str, str]:
    """Return where all bits are shifted out, and the clamped number of places: at most the width minus one."""
    width = writer.number(8 * dtype.itemsize - 1, dtype)
    gone = writer.node("Or", writer.node("Less", width, y), writer.node("Less", y, writer.number(0, dtype)))
    return gone, writer.node("Where", gone, width, y)


@exports(rounding.LEFT_SHIFT)
def _write_left_shift(writer: OnnxWriter, x: OnnxValue, y: OnnxValue) -> str:
    """Shift the bits as unsigned numbers, the only ones that ONNX shifts; 0 where all bits are shifted out."""
    dtype = writer.out.dtype
    unsigned = np.dtype(f"u{dtype}")
    gone, places = _write_places(writer, y, dtype)
    shifted = writer.node(
        "BitShift", writer.converted(x, unsigned), writer.converted(places, unsigned), direction="LEFT"
    )
    return writer.node("Where", gone, writer.number(0, dtype), writer.converted(shifted, dtype))


@exports(rounding.RIGHT_SHIFT)
def _write_right_shift(writer: OnnxWriter, x: OnnxValue, y: OnnxValue) -> str:
    """Shift x where it is not negative, and its complement where it is, which extends the sign."""
    dtype = writer.out.dtype
    unsigned = np.dtype(f"u{dtype}")
    places = writer.converted(_write_places(writer, y, dtype)[1], unsigned)
    below = writer.node("Less", x, writer.number(0, dtype))
    turned = writer.node("Where", below, writer.node("BitwiseNot", x), x)
    shifted = writer.node("BitShift", writer.converted(turned, unsigned), places, direction="RIGHT")
    back = writer.converted(shifted, dtype)
    return writer.node("Where", below, writer.node("BitwiseNot", back), back)


exports(elementwise.SCALE)(lambda writer, x, c: writer.node("Mul", x, writer.number(c, x.dtype)))
exports(elementwise.SAFE_LOG, note=NAN)(
    lambda writer, x, eps: writer.node("Log", writer.node("Max", x, writer.number(eps, x.dtype)))
)
exports(transcendental.EXP2)(lambda writer, x: writer.node("Pow", writer.number(2, x.dtype), x))
exports(activation.SILU)(lambda writer, x: writer.node("Mul", x, writer.node("Sigmoid", x)))
exports(logic.DETACH)(lambda writer, x: x.name)
exports(logic.FULL)(lambda writer, shape, value, dtype: writer.filled(shape, value, as_dtype(dtype)))


@exports(elementwise.POW)
def _write_pow(writer: OnnxWriter, x: OnnxValue, *, exponent: Any) -> str:
    if exponent in (Fraction(1, 2), Fraction(-1, 2)):
        root = writer.node("Sqrt", x)
        return root if exponent > 0 else writer.node("Reciprocal", root)
    return writer.node("Pow", x, writer.number(exponent, writer.out.dtype))


def _write_log(writer: OnnxWriter, x: OnnxValue, *, base: int) -> str:
    """Write a logarithm to another base through the natural one, the only one in ONNX."""
    return writer.node("Mul", writer.node("Log", x), writer.number(1 / math.log(base), writer.out.dtype))


for _primitive, _base in ((transcendental.LOG2, 2), (transcendental.LOG10, 10)):
    exports(_primitive, note="by the natural logarithm: of a power of the base it may be an ulp off")(
        partial(_write_log, base=_base)
    )


@exports(elementwise.CLAMP, note=NAN)
def _write_clamp(writer: OnnxWriter, x: OnnxValue, *, lo: Any, hi: Any) -> str:
    dtype = writer.out.dtype
    return writer.node("Clip", x, writer.number(lo, dtype), writer.number(hi, dtype))


@exports(activation.GELU)
def _write_gelu(writer: OnnxWriter, x: OnnxValue, *, approximate: str) -> str | None:
    """Decompose in float64: ONNX specifies Gelu with float32 constants."""
    return writer.node("Gelu", x, approximate=approximate) if x.dtype == FLOAT32 else None


@exports(logic.CAST)
def _write_cast(writer: OnnxWriter, x: OnnxValue, *, dtype: str) -> str:
    return x.name if x.dtype == writer.out.dtype else writer.converted(x, as_dtype(dtype))


@exports(logic.SELECT)
def _write_select(writer: OnnxWriter, mask: OnnxValue, x: OnnxValue, y: OnnxValue) -> str:
    """Select masks by logic, since onnxruntime has no Where for them."""
    if writer.out.dtype != BOOL:
        return writer.broadcasting("Where", mask, x, y)
    chosen = writer.node("And", mask, x)
    return writer.node("Or", chosen, writer.node("And", writer.node("Not", mask), y))


@exports(logic.IOTA)
def _write_iota(writer: OnnxWriter, *, shape: Shape, axis: int, dtype: str) -> str:
    size = shape[axis]
    count = writer.number(size, INT64)
    steps = writer.node("Range", writer.number(0, INT64), count, writer.number(1, INT64))
    if as_dtype(dtype) != INT64:
        steps = writer.converted(steps, as_dtype(dtype))
    column = (size, *(1,) * (len(shape) - axis - 1))
    return writer.expanded(writer.reshaped(steps, (size,), column), column, shape)


for _row in exported(pointwise, together, compared, masked):
    exports(primitives()[_row.op], note=_row.note)((direct if _row.kind is pointwise else broadcasting)(_row.onnx))


# 64-bit words, for random tensors -------------------------------------------------------------------------------------
#
# Random tensors have the same bits as in every interpreter. The bits of ONNX's own random operators depend on the
# runtime, and it leaves integer overflow undefined. So the nodes here never overflow: sums exclude the highest bit, and
# products are built from 32-bit halves.

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


# Random tensors -------------------------------------------------------------------------------------------------------


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
