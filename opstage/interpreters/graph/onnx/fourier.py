"""Fourier transforms of complex tensors, stored with real and imaginary parts on the last axis as in ONNX, and of real
tensors."""

from __future__ import annotations

from ....ops.catalogue import fourier
from ....ops.dims import Dim, floor_div
from ....ops.primitive import Primitive
from ....ops.types import INT64, TensorType
from .nodes import OnnxValue
from .rules import OnnxRule
from .writer import Writer, is_empty


def _scaled(writer: Writer, name: str, out: TensorType, n: Dim, exponent: float) -> str:
    """Multiply by n**exponent."""
    if not exponent:
        return name
    if isinstance(n, int):
        return writer.node("Mul", name, writer.number(float(n) ** exponent, out.dtype))
    size = writer.converted(writer.dims([n]), out.dtype)
    return writer.node("Mul", name, writer.node("Pow", size, writer.number(exponent, out.dtype)))


_FORWARD: dict[str, float] = {"backward": 0, "ortho": -0.5, "forward": -1}
"""The exponent of n that scales the sum to the transform; for the inverse it is -1 minus this."""


def _fft(
    writer: Writer,
    operands: tuple[OnnxValue, ...],
    results: tuple[TensorType, ...],
    /,
    *,
    axis: int,
    inverse: bool,
    norm: str,
) -> tuple[str, ...]:
    (x,), (out,) = operands, results
    if is_empty(x.type):
        return (writer.filled(out.shape, 0.0, out.dtype),)
    name = writer.node("DFT", x, "", writer.constant(axis, INT64), inverse=int(inverse))
    exponent = -_FORWARD[norm] if inverse else _FORWARD[norm]  # ONNX's inverse has 1/n
    return (_scaled(writer, name, out, x.shape[axis], exponent),)


def _rfft(
    writer: Writer, operands: tuple[OnnxValue, ...], results: tuple[TensorType, ...], /, *, axis: int, norm: str
) -> tuple[str, ...]:
    (x,), (out,) = operands, results
    if is_empty(x.type):
        return (writer.filled(out.shape, 0.0, out.dtype),)
    column = writer.node("Unsqueeze", x, writer.constant([-1], INT64))
    name = writer.node("DFT", column, "", writer.constant(axis, INT64), onesided=1)
    return (_scaled(writer, name, out, x.shape[axis], _FORWARD[norm]),)


def _irfft(
    writer: Writer, operands: tuple[OnnxValue, ...], results: tuple[TensorType, ...], /, *, n: Dim, axis: int, norm: str
) -> tuple[str, ...]:
    """Sum over all n entries and take the real part; missing entries are conjugates in reverse order.

    It is computed as the forward transform of the conjugates, since onnxruntime's inverse rounds its factor 1/n to half
    precision. The imaginary parts of the first and middle entries only affect imaginary parts.
    """
    (x,), (out,) = operands, results
    if is_empty(x.type):
        return (writer.filled(out.shape, 0.0, out.dtype),)
    at, last = writer.ints(axis), writer.ints(-1)
    conjugate = writer.node("Mul", x, writer.constant([1, -1], out.dtype))
    mirrored = writer.node("Slice", x, writer.dims([floor_div(n - 1, 2)]), writer.ints(0), at, writer.ints(-1))
    name = writer.node("DFT", writer.node("Concat", conjugate, mirrored, axis=axis), "", writer.constant(axis, INT64))
    real = writer.node("Squeeze", writer.node("Slice", name, writer.ints(0), writer.ints(1), last), last)
    return (_scaled(writer, real, out, n, -1 - _FORWARD[norm]),)


RULES: dict[Primitive, OnnxRule] = {
    fourier.FFT: OnnxRule(_fft, "ONNX leaves the result for nan undefined"),
    fourier.RFFT: OnnxRule(_rfft, "ONNX leaves the result for nan undefined"),
    fourier.IRFFT: OnnxRule(_irfft, "ONNX leaves the result for nan undefined"),
}
