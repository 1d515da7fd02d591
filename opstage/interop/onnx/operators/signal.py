"""Fourier transforms, import and export; windows; resizing and sampling of images."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any

import numpy as np

from ....ops import fourier
from ....ops.dims import Dim, Verdict, equal, floor_div
from ....ops.errors import UnsupportedError
from ....ops.interpolation import affine_grid, grid_sample, resize
from ....ops.types import INT64
from ....ops.windows import fold
from ...operators import NAN
from ...values import KnownValue, Value, stretched
from ..file import dtype_of
from ..graph import NodeCall, rule
from ..writer import OnnxValue, OnnxWriter, exports

# Windows and Fourier transforms ---------------------------------------------------------------------------------------


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
    starts = ops.mul(ops.iota(shape=(frames, length), axis=0), step)
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


# Fourier transforms: export -------------------------------------------------------------------------------------------


def _write_scaled(writer: OnnxWriter, name: str, n: Dim, exponent: float) -> str:
    """Multiply by n**exponent."""
    dtype = writer.out.dtype
    if not exponent:
        return name
    if isinstance(n, int):
        return writer.node("Mul", name, writer.number(float(n) ** exponent, dtype))
    size = writer.converted(writer.dims([n]), dtype)
    return writer.node("Mul", name, writer.node("Pow", size, writer.number(exponent, dtype)))


_EXPONENTS: dict[str, float] = {"backward": 0, "ortho": -0.5, "forward": -1}
"""The exponent of n that scales the sum to the transform; for the inverse it is -1 minus this."""


@exports(fourier.FFT, note=NAN)
def _write_fft(writer: OnnxWriter, x: OnnxValue, *, axis: int, inverse: bool, norm: str) -> str:
    name = writer.node("DFT", x, "", writer.constant(axis, INT64), inverse=int(inverse))
    exponent = -_EXPONENTS[norm] if inverse else _EXPONENTS[norm]  # ONNX's inverse has 1/n
    return _write_scaled(writer, name, x.shape[axis], exponent)


@exports(fourier.RFFT, note=NAN)
def _write_rfft(writer: OnnxWriter, x: OnnxValue, *, axis: int, norm: str) -> str:
    column = writer.node("Unsqueeze", x, writer.constant([-1], INT64))
    name = writer.node("DFT", column, "", writer.constant(axis, INT64), onesided=1)
    return _write_scaled(writer, name, x.shape[axis], _EXPONENTS[norm])


@exports(fourier.IRFFT, note=NAN)
def _write_irfft(writer: OnnxWriter, x: OnnxValue, *, n: Dim, axis: int, norm: str) -> str:
    """Sum over all n entries and take the real part; missing entries are conjugates in reverse order.

    It is computed as the forward transform of the conjugates, since onnxruntime's inverse rounds its factor 1/n to half
    precision. The imaginary parts of the first and middle entries only affect imaginary parts.
    """
    at, last = writer.ints(axis), writer.ints(-1)
    conjugate = writer.node("Mul", x, writer.constant([1, -1], x.dtype))
    mirrored = writer.node("Slice", x, writer.dims([floor_div(n - 1, 2)]), writer.ints(0), at, writer.ints(-1))
    name = writer.node("DFT", writer.node("Concat", conjugate, mirrored, axis=axis), "", writer.constant(axis, INT64))
    real = writer.node("Squeeze", writer.node("Slice", name, writer.ints(0), writer.ints(1), last), last)
    return _write_scaled(writer, real, n, -1 - _EXPONENTS[norm])


_MODES = {"nearest": "nearest", "linear": "linear", "bilinear": "linear", "cubic": "cubic", "bicubic": "cubic"}


@rule("Resize", "Upsample", known=(1, 2, 3))
def _resize(call: NodeCall[Any]) -> Value:
    """Resize axes with a scale other than 1; version 10 and Upsample have only scales, as the second input."""
    ops, x = call.ops, call.x()
    old = call.node.op == "Upsample" or call.version < 11
    coordinates = "asymmetric" if old else call.attribute("coordinate_transformation_mode", "half_pixel")
    if coordinates == "tf_crop_and_resize":
        raise UnsupportedError("tf_crop_and_resize is not known")
    rank = len(x.shape)
    axes = [int(axis) % rank for axis in call.attribute("axes", range(rank))]
    at = 1 if old else 2
    scales = call.attribute("scales")
    if scales is None and call.has(at) and call.known(at, "scales").size:
        scales = call.known(at, "scales").ravel().tolist()
    sizes = call.ints(3, "sizes") if not old and call.has(3) and call.known(3, "sizes").size else None
    mode = _MODES[call.attribute("mode", "nearest")]
    if mode != "nearest" and call.dtype().kind != "f":
        raise UnsupportedError(f"integers are not resized by mode {mode}: runtimes round them in ways of their own")
    more: dict[str, Any] = {"mode": mode, "coordinates": coordinates}
    if mode == "nearest":
        more["rounding"] = "floor" if old else call.attribute("nearest_mode", "round_prefer_floor")
    if mode == "cubic":
        more["cubic"] = Fraction(str(call.attribute("cubic_coeff_a", -0.75)))
    if call.attribute("antialias", 0) and mode != "nearest":
        raise UnsupportedError("antialias is not known: ONNX weighs what lies beyond the ends in a way of its own")
    if call.attribute("exclude_outside", 0):
        more["exclude_outside"] = True
    if sizes is not None:
        sizes, scales = _kept_in_proportion(call, axes, sizes), None
        chosen = [i for i, axis in enumerate(axes) if sizes[i] is not x.shape[axis] and sizes[i] != x.shape[axis]]
        if not chosen:
            return call.give(x)
        _require_reasonable(sizes[i] for i in chosen)
        return call.give(resize(ops, x, size=[sizes[i] for i in chosen], axes=[axes[i] for i in chosen], **more))
    if scales is None:
        raise UnsupportedError("it says neither sizes nor scales")
    chosen = [i for i, scale in enumerate(scales) if scale != 1]
    if not chosen:
        return call.give(x)
    whole = all(isinstance(x.shape[axes[i]], int) for i in chosen)
    if coordinates == "align_corners" and not whole:
        raise UnsupportedError("align_corners by scales needs sizes that are known")
    if coordinates == "align_corners" and any(not float(scales[i] * x.shape[axes[i]]).is_integer() for i in chosen):
        raise UnsupportedError("align_corners by scales that give no whole sizes is read in two ways by runtimes")
    _require_reasonable(x.shape[axes[i]] * scales[i] for i in chosen if isinstance(x.shape[axes[i]], int))
    factors = [Fraction(float(np.float32(scales[i]))).limit_denominator(1 << 20) for i in chosen]
    return call.give(resize(ops, x, scale=factors, axes=[axes[i] for i in chosen], **more))


_MOST_ENTRIES = 1 << 13


def _require_reasonable(sizes: Iterable[Any]) -> None:
    """Raise UnsupportedError for unreasonable sizes: the position and weights of each entry are computed one by one."""
    for size in sizes:
        if isinstance(size, (int, float)) and not size <= _MOST_ENTRIES:
            raise UnsupportedError(f"an axis of {size:,} entries is asked for; at most {_MOST_ENTRIES:,} are resampled")


def _kept_in_proportion(call: NodeCall[Any], axes: list[int], sizes: Any) -> Any:
    """Return the sizes, or those of the smallest or largest single scale, as the node's policy asks."""
    policy = call.attribute("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        return sizes
    shape = call.shape()
    if not all(isinstance(each, int) for each in (*sizes, *[shape[axis] for axis in axes])):
        raise UnsupportedError("with a policy on proportions every size must be known")
    known = [int(shape[axis]) for axis in axes]
    scales = [Fraction(int(size), n) for size, n in zip(sizes, known)]
    scale = min(scales) if policy == "not_larger" else max(scales)
    if any((scale * n).denominator != 1 for n in known):
        raise UnsupportedError("a policy on proportions that leaves rounded sizes is not known")
    return [int(scale * n) for n in known]


@rule("GridSample")
def _grid_sample(call: NodeCall[Any]) -> Value:
    mode = _MODES[call.attribute("mode", "linear")]
    border = call.attribute("padding_mode", "zeros")
    aligned = bool(call.attribute("align_corners", 0))
    return call.give(grid_sample(call.ops, call.x(), call.x(1), mode=mode, padding=border, align_corners=aligned))


@rule("AffineGrid", known=(1,))
def _affine_grid(call: NodeCall[Any]) -> Value:
    aligned = bool(call.attribute("align_corners", 0))
    return call.give(affine_grid(call.ops, call.x(), size=call.ints(1, "size"), align_corners=aligned))


@rule("Col2Im", known=(1, 2))
def _col2im(call: NodeCall[Any]) -> Value:
    sizes = call.ints(1, "image_shape")
    kernel = tuple(int(size) for size in call.known(2, "block_shape").ravel())
    rank = len(kernel)
    pads = call.attribute("pads", [0] * (2 * rank))
    if pads[:rank] != pads[rank:]:
        raise UnsupportedError("its padding differs before and behind")
    static = {
        "stride": tuple(call.attribute("strides", [1] * rank)),
        "padding": tuple(pads[:rank]),
        "dilation": tuple(call.attribute("dilations", [1] * rank)),
    }
    return call.give(fold(call.ops, call.x(), size=sizes, kernel=kernel, **static))
