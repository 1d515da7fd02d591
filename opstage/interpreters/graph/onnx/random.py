"""Random tensors, with the same bits as in every interpreter. The bits of ONNX's own random operators depend on the
runtime."""

from __future__ import annotations

import math

from ....ops.catalogue import random
from ....ops.primitive import Primitive
from ....ops.splitmix import splitmix64
from ....ops.types import INT64, Shape, TensorType, as_dtype
from ...scalar import random as scalar
from .nodes import OnnxValue
from .rules import OnnxRule
from .words import UINT64, Word, constant
from .writer import Writer


def _rand_uniform(
    writer: Writer,
    operands: tuple[OnnxValue, ...],
    results: tuple[TensorType, ...],
    /,
    *,
    shape: Shape,
    seed: int,
    site: int,
    dtype: str,
) -> tuple[str, ...]:
    """Draw all elements as one row, from the counters 0, 1, 2, …"""
    word, (step, *iterations), storage = constant(writer), operands, as_dtype(dtype)
    mix = scalar.splitmix64(word)
    key = _key(writer, step, seed, site)
    for iteration in iterations:
        key = mix(key + _word(writer, iteration))
    size = math.prod(shape)
    counters = writer.node("Range", writer.number(0, INT64), writer.number(size, INT64), writer.number(1, INT64))
    integers = scalar.uniform_integer(word, mix)(key, Word(writer, writer.converted(counters, UINT64)))
    row = writer.node("Mul", writer.converted(integers.name, storage), writer.number(2.0**-24, storage))
    return (writer.reshaped(row, (size,), shape),)


def _key(writer: Writer, step: OnnxValue, seed: int, site: int) -> Word:
    """Write `stream_key` as nodes. Draws at one site share the key; draws with one seed share its prefix."""
    word = constant(writer)
    mix = scalar.splitmix64(word)
    begun = writer.once(("key", seed, step.name), step, lambda: mix(word(splitmix64(seed)) + _word(writer, step)).name)
    key = writer.once(("key", seed, site, step.name), step, lambda: mix(Word(writer, begun) + word(site)).name)
    return Word(writer, key)


def _word(writer: Writer, integer: OnnxValue) -> Word:
    return Word(writer, writer.converted(integer, UINT64))


RULES: dict[Primitive, OnnxRule] = {random.RAND_UNIFORM: OnnxRule(_rand_uniform)}
