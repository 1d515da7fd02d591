"""Fourier transforms of complex tensors, whose last axis ONNX has as well, and of real ones."""

from __future__ import annotations

from ....ops.catalogue import fourier
from ....ops.dims import DimExpr
from ....ops.errors import UnsupportedError
from ....ops.primitive import Primitive
from ....ops.types import INT64, TensorType
from .nodes import OnnxValue
from .rules import OnnxRule
from .writer import Writer, is_empty


def _scaled(writer: Writer, name: str, out: TensorType, n: object, *, inverse: bool, norm: str) -> str:
    """ONNX's transform, which has 1/n in the inverse, with the factor where `norm` says."""
    if norm == "backward":
        return name
    if isinstance(n, DimExpr) or not isinstance(n, int):
        raise UnsupportedError(f'norm="{norm}" of a transform of {n} elements: for a named size, export "backward"')
    factor = float(n) ** {"forward": 1, "ortho": 0.5}[norm]
    return writer.node("Mul", name, writer.number(factor if inverse else 1 / factor, out.dtype))


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
    return (_scaled(writer, name, out, x.shape[axis], inverse=inverse, norm=norm),)


def _rfft(
    writer: Writer, operands: tuple[OnnxValue, ...], results: tuple[TensorType, ...], /, *, axis: int, norm: str
) -> tuple[str, ...]:
    (x,), (out,) = operands, results
    if is_empty(x.type):
        return (writer.filled(out.shape, 0.0, out.dtype),)
    column = writer.node("Unsqueeze", x, writer.constant([-1], INT64))
    name = writer.node("DFT", column, "", writer.constant(axis, INT64), onesided=1)
    return (_scaled(writer, name, out, x.shape[axis], inverse=False, norm=norm),)


RULES: dict[Primitive, OnnxRule] = {
    fourier.FFT: OnnxRule(_fft, "of nan ONNX says nothing"),
    fourier.RFFT: OnnxRule(_rfft, "of nan ONNX says nothing"),
}
