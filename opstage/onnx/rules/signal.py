"""Windows and Fourier transforms."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ...operators.values import KnownValue, Value, stretched
from ...ops.dims import Dim, Verdict, equal, floor_div
from ...ops.errors import UnsupportedError
from ..call import NodeCall, rule
from ..element_types import dtype_of


def _window(op: str, terms: Callable[[], tuple[float, ...]]) -> None:
    """Register the window Σ aₖ·cos(2πkn/N) for n = 0 … size - 1; N is size, or size - 1 if not periodic."""

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


def _fitted(ops: Any, x: Any, axis: int, length: Dim) -> Any:
    """Cut x to `length` along the axis, or pad it with zeros."""
    size = x.shape[axis]
    if equal(size, length) is Verdict.proved:
        return x
    if not isinstance(size, int) or not isinstance(length, int):
        raise UnsupportedError(f"whether {length} entries are more than there are, {size}, is not known before a run")
    if length < size:
        return ops.slice(x, axis=axis, start=0, length=length)
    padding = [(0, length - size if a == axis else 0) for a in range(len(x.shape))]
    return ops.pad(x, padding=padding, value=0.0)


def transformed(ops: Any, x: Any, axis: int, length: Dim, *, inverse: bool, onesided: bool) -> Any:
    """Transform x (…, 1 or 2) along an axis, cut or padded to `length`: (…, 2).

    A one-sided transform has `length // 2 + 1` bins, and its inverse is (…, 1).
    """
    parts, last = x.shape[-1], len(x.shape) - 1
    if inverse and onesided:
        x = _fitted(ops, x, axis, floor_div(length, 2) + 1)
        x = x if parts == 2 else _fitted(ops, x, last, 2)
        return ops.unsqueeze(ops.irfft(x, n=length, axis=axis), axis=last)
    x = _fitted(ops, x, axis, length)
    if onesided:
        if parts != 1:
            raise UnsupportedError("half of a transform is that of real numbers, and x has imaginary parts")
        return ops.rfft(ops.squeeze(x, axis=last), axis=axis)
    transform = ops.ifft if inverse else ops.fft
    return transform(_fitted(ops, x, last, 2), axis=axis)


@rule("DFT", known=(1, 2))
def _dft(call: NodeCall[Any]) -> Value:
    x, rank = call.x(), call.rank()
    axis = int(call.number(2, "axis", call.attribute("axis", -2 if call.version >= 20 else 1))) % rank
    inverse, onesided = bool(call.attribute("inverse", 0)), bool(call.attribute("onesided", 0))
    size = x.shape[axis]
    length = call.number(1, "dft_length", 2 * (size - 1) if inverse and onesided else size)
    return call.give(transformed(call.ops, x, axis, length, inverse=inverse, onesided=onesided))


@rule("STFT", known=(1, 3))
def _stft(call: NodeCall[Any]) -> Value:
    """Transform frames, each multiplied by the window: (B, frames, bins, 2)."""
    ops, x = call.ops, call.x()
    x = ops.unsqueeze(x, axis=2) if len(x.shape) == 2 else x
    step = int(call.number(1, "frame_step"))
    window = call.x(2) if call.has(2) else None
    size = call.number(3, "frame_length", None if window is None else window.shape[0])
    length = int(size)
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
    return call.give(transformed(ops, rows, 2, length, inverse=False, onesided=onesided))


@rule("MelWeightMatrix", known=(0, 1, 2, 3, 4))
def _mel(call: NodeCall[Any]) -> Value:
    """Return triangular filters, evenly spaced in mel, 2595·log₁₀(1 + f/700), over the bins of a spectrum: (bins,
    mel)."""
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
