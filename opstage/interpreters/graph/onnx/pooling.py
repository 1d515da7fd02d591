"""Pooling over windows of the spatial axes, and its adjoints."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ....ops.catalogue import pooling
from ....ops.dims import prod
from ....ops.errors import UnsupportedError
from ....ops.primitive import Primitive
from ....ops.types import Shape, TensorType
from .convolution import batched, unbatched
from .nodes import OnnxValue
from .rules import OnnxRule
from .writer import Writer

Ints = tuple[int, ...]
Operands = tuple[OnnxValue, ...]
Results = tuple[TensorType, ...]


def _window(kernel: Ints, stride: Ints, padding: Ints) -> dict[str, Any]:
    return {"kernel_shape": kernel, "strides": stride, "pads": (*padding, *padding)}


def _max_pool(
    writer: Writer, operands: Operands, results: Results, /, *, kernel: Ints, stride: Ints, padding: Ints
) -> tuple[str, ...]:
    """Write a MaxPool. ONNX's index of a maximum counts through the whole tensor; ours is the remainder, within its
    plane."""
    (x,) = operands
    rank = len(kernel)
    name, shape = batched(writer, x, rank)
    out, place = writer.outputs_of("MaxPool", name, count=2, **_window(kernel, stride, padding))
    plane = writer.number(prod(shape[2:]), results[1].dtype)
    index = writer.node("Mod", place, plane)
    return unbatched(writer, out, x, rank), unbatched(writer, index, x, rank)


def _flat_plane(writer: Writer, name: str, shape: Shape, rank: int) -> tuple[str, Shape]:
    flat = (*shape[:-rank], prod(shape[-rank:]))
    return writer.reshaped(name, shape, flat), flat


def _max_pool_gather(
    writer: Writer, operands: Operands, results: Results, /, *, kernel: Ints, **window: Any
) -> tuple[str, ...]:
    x, index = operands
    rank = len(kernel)
    cells, flat = _flat_plane(writer, x.name, x.shape, rank)
    places, counts = _flat_plane(writer, index.name, index.shape, rank)
    out = writer.node("GatherElements", cells, places, axis=len(flat) - 1)
    return (writer.reshaped(out, counts, results[0].shape),)


def _max_pool_scatter(
    writer: Writer, operands: Operands, results: Results, /, *, kernel: Ints, **window: Any
) -> tuple[str, ...]:
    g, index = operands
    rank = len(kernel)
    added, _ = _flat_plane(writer, g.name, g.shape, rank)
    places, _ = _flat_plane(writer, index.name, index.shape, rank)
    shape = results[0].shape
    flat = (*shape[:-rank], prod(shape[-rank:]))
    zeros = writer.filled(flat, 0.0, g.dtype)
    out = writer.node("ScatterElements", zeros, places, added, axis=len(flat) - 1, reduction="add")
    return (writer.reshaped(out, flat, shape),)


def _avg_pool(
    writer: Writer,
    operands: Operands,
    results: Results,
    /,
    *,
    kernel: Ints,
    stride: Ints,
    padding: Ints,
    count_include_pad: bool,
) -> tuple[str, ...]:
    (x,) = operands
    rank = len(kernel)
    name, _ = batched(writer, x, rank)
    window = _window(kernel, stride, padding)
    out = writer.node("AveragePool", name, count_include_pad=int(count_include_pad), **window)
    return (unbatched(writer, out, x, rank),)


def _avg_pool_grad(
    writer: Writer,
    operands: Operands,
    results: Results,
    /,
    *,
    shape: Shape,
    kernel: Ints,
    stride: Ints,
    padding: Ints,
    count_include_pad: bool,
) -> tuple[str, ...]:
    """Write a transposed depthwise convolution with a kernel of ones divided by the number of cells.

    If padding is not counted, that number varies by window: the kernel size times the average, with padding counted, of
    a plane of ones.
    """
    (g,) = operands
    rank = len(kernel)
    counts, leading = g.shape[-rank:], g.shape[:-rank]
    extra = tuple(n + 2 * p - k - (count - 1) * s for n, count, k, s, p in zip(shape, counts, kernel, stride, padding))
    if not all(isinstance(e, int) for e in extra):
        raise UnsupportedError(
            "the cells behind the last window are a number in ONNX, never an expression in sizes; record the program "
            "with numbers for the spatial sizes"
        )
    window: dict[str, Any] = {"strides": stride, "pads": (*padding, *padding)}
    name = g.name
    if not count_include_pad and any(padding):
        ones = writer.filled((1, 1, *shape), 1.0, g.dtype)
        share = writer.node("AveragePool", ones, kernel_shape=kernel, count_include_pad=1, **window)
        name = writer.node("Div", name, writer.reshaped(share, (1, 1, *counts), counts))
    # Planes become samples of one channel; output_padding is less than the stride, the rest is padded at the end.
    name = writer.reshaped(name, g.shape, (prod(leading), 1, *counts))
    weight = writer.constant(np.full((1, 1, *kernel), 1 / math.prod(kernel)), g.dtype)
    name = writer.node("ConvTranspose", name, weight, output_padding=extra, **window)
    return (writer.reshaped(name, (prod(leading), 1, *shape), results[0].shape),)


RULES: dict[Primitive, OnnxRule] = {
    pooling.MAX_POOL: OnnxRule(_max_pool, "ONNX leaves the result for nan undefined"),
    pooling.MAX_POOL_SCATTER: OnnxRule(_max_pool_scatter),
    pooling.MAX_POOL_GATHER: OnnxRule(_max_pool_gather),
    pooling.AVG_POOL: OnnxRule(_avg_pool),
    pooling.AVG_POOL_GRAD: OnnxRule(_avg_pool_grad),
}
