"""Windows and Fourier transforms of a length that is known, as products with the matrix of the transform."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ...ops.dims import floor_div
from ...ops.errors import UnsupportedError
from ..call import NodeCall, rule
from ..element_types import dtype_of
from ..values import KnownValue, Value, stretched

_LONGEST = 4096


def _window(op: str, terms: Callable[[], tuple[float, ...]]) -> None:
    """Σ aₖ·cos(2πkn/N) for n = 0 … size - 1; N is the size, or one less where the window is not periodic."""

    @rule(op, known=(0,))
    def apply(call: NodeCall[Any]) -> Value:
        size = call.number(0, "size")
        if not isinstance(size, int):
            raise UnsupportedError("its size is not known before a run")
        period = size if call.attribute("periodic", 1) else size - 1
        angles = 2 * math.pi * np.arange(size) / max(period, 1)
        total = sum(a * np.cos(k * angles) for k, a in enumerate(terms()))
        dtype = dtype_of(int(call.attribute("output_datatype", 1)))
        return KnownValue(np.asarray(total).astype(dtype), dtype)


_window("HannWindow", lambda: (0.5, -0.5))
_window("HammingWindow", lambda: (25 / 46, -21 / 46))
_window("BlackmanWindow", lambda: (0.42, -0.5, 0.08))


def _waves(rows: int, columns: int, length: int) -> tuple[Any, Any]:
    """cos and sin of 2πjk/length, of j·k modulo the length, so that large products lose no digits."""
    angles = 2 * math.pi * (np.outer(np.arange(rows), np.arange(columns)) % length) / length
    return np.cos(angles), np.sin(angles)


def transformed(ops: Any, x: Any, length: int, *, inverse: bool, onesided: bool) -> Any:
    """The transform of x (…, n, 1 or 2) along n, which is cut or padded to `length`: (…, bins, 2), and (…, length, 1)
    for the inverse of one half."""
    n, parts = x.shape[-2], x.shape[-1]
    if not isinstance(n, int) or not isinstance(parts, int):
        raise UnsupportedError("the length of its transform is not known before a run")
    half = length // 2 + 1
    wanted = half if inverse and onesided else length
    rank = len(x.shape)
    if n > wanted:
        x = ops.slice(x, axis=rank - 2, start=0, length=wanted)
    used = min(n, wanted)
    real, *rest = (ops.squeeze(part, axis=rank - 1) for part in ops.split(x, sizes=[1] * parts, axis=rank - 1))
    imaginary = rest[0] if rest else None
    columns = half if onesided and not inverse else length
    cos, sin = _waves(used, columns, length)
    if inverse:
        if onesided:  # each bin but the first, and the middle one, stands for its mirror image too
            twice = np.full((used, 1), 2.0)
            twice[0] = 1.0
            if length % 2 == 0 and used == half:
                twice[-1] = 1.0
            cos, sin = cos * twice, sin * twice
        cos, sin = cos / length, -sin / length

    def times(part: Any, matrix: Any) -> Any:
        return ops.linear(ops.const(matrix.T), None, part)

    re = times(real, cos) if imaginary is None else ops.add(times(real, cos), times(imaginary, sin))
    if inverse and onesided:
        return ops.unsqueeze(re, axis=rank - 1)
    im = times(real, -sin)
    im = im if imaginary is None else ops.add(im, times(imaginary, cos))
    return ops.stack([re, im], axis=rank - 1)


def _length(value: Any) -> int:
    if not isinstance(value, int) or not 0 < value <= _LONGEST:
        raise UnsupportedError(f"the length of its transform, {value}, must be known and at most {_LONGEST}")
    return value


@rule("DFT", known=(1, 2))
def _dft(call: NodeCall[Any]) -> Value:
    ops, x, rank = call.ops, call.x(), call.rank()
    axis = int(call.number(2, "axis", call.attribute("axis", -2 if call.version >= 20 else 1))) % rank
    inverse, onesided = bool(call.attribute("inverse", 0)), bool(call.attribute("onesided", 0))
    size = x.shape[axis]
    default = 2 * (size - 1) if inverse and onesided and isinstance(size, int) else size
    length = _length(call.number(1, "dft_length", default))
    order = [a for a in range(rank - 1) if a != axis] + [axis, rank - 1]
    y = transformed(ops, ops.permute(x, axes=order), length, inverse=inverse, onesided=onesided)
    return call.give(ops.permute(y, axes=[order.index(a) for a in range(rank)]))


@rule("STFT", known=(1, 3))
def _stft(call: NodeCall[Any]) -> Value:
    """Transforms of frames, each times the window: (B, frames, bins, 2)."""
    ops, x = call.ops, call.x()
    x = ops.unsqueeze(x, axis=2) if len(x.shape) == 2 else x
    step = int(call.number(1, "frame_step"))
    window = call.x(2) if call.has(2) else None
    size = call.number(3, "frame_length", None if window is None else window.shape[0])
    length = _length(size)
    _, samples, parts = x.shape
    frames = floor_div(samples - length, step) + 1
    starts = ops.mul(
        ops.iota(shape=(frames, length), axis=0), ops.full(shape=(frames, length), value=step, dtype="int64")
    )
    places = ops.add(starts, ops.iota(shape=(frames, length), axis=1))
    rows = ops.gather_rows(ops.permute(x, axes=(1, 0, 2)), places)  # (frames, length, B, parts)
    rows = ops.permute(rows, axes=(2, 0, 1, 3))
    if window is not None:
        rows = ops.mul(rows, stretched(ops, ops.reshape(window, shape=(1, 1, length, 1)), rows.shape))
    onesided = bool(call.attribute("onesided", 1)) and isinstance(parts, int) and parts == 1
    return call.give(transformed(ops, rows, length, inverse=False, onesided=onesided))


@rule("MelWeightMatrix", known=(0, 1, 2, 3, 4))
def _mel(call: NodeCall[Any]) -> Value:
    """Triangles that are evenly spaced in mel, 2595·log₁₀(1 + f/700), over the bins of a spectrum: (bins, mel)."""
    count, length, rate, low, high = (call.number(i, "a number") for i in range(5))
    mel = np.linspace(2595 * np.log10(1 + low / 700), 2595 * np.log10(1 + high / 700), count + 3)[: count + 2]
    edges = (((length + 1) * 700 * np.expm1(mel / 2595 * np.log(10))) // rate).astype(int)
    bins = np.arange(length // 2 + 1)[:, None]
    left, middle, right = edges[:-2], edges[1:-1], edges[2:]
    rising = (bins - left) / np.maximum(middle - left, 1)
    falling = (right - bins) / np.maximum(right - middle, 1)
    table = np.where((bins >= left) & (bins <= middle), rising, 0.0)
    table = np.where((bins >= middle) & (bins < right), falling, table)
    table = np.where((bins == middle) & (middle == left), 1.0, table)
    dtype = dtype_of(int(call.attribute("output_datatype", 1)))
    return KnownValue(table.astype(dtype), dtype)
