"""Matrix products and determinants."""

from __future__ import annotations

from ....ops.catalogue import determinants, linalg
from ....ops.primitive import Primitive
from ....ops.types import TensorType
from .nodes import OnnxValue
from .rules import OnnxRule
from .writer import Writer, is_empty


def _product(writer: Writer, operands: tuple[OnnxValue, ...], results: tuple[TensorType, ...], /) -> tuple[str, ...]:
    if is_empty(operands[0].type):  # empty sums
        return (writer.filled(results[0].shape, 0.0, results[0].dtype),)
    return (writer.node("MatMul", *operands),)


def _linear(
    writer: Writer, operands: tuple[OnnxValue, ...], results: tuple[TensorType, ...], /, *, has_bias: bool
) -> tuple[str, ...]:
    weight, *bias, x = operands
    if is_empty(x.type):  # no features: only the bias
        if bias:
            return (writer.expanded(bias[0], bias[0].shape, results[0].shape),)
        return (writer.filled(results[0].shape, 0.0, x.dtype),)
    if len(x.shape) == 2:
        return (writer.node("Gemm", x, weight, *bias, transB=1),)
    out = writer.node("MatMul", x, writer.node("Transpose", weight, perm=(1, 0)))
    return (writer.node("Add", out, *bias) if bias else out,)


def _det(writer: Writer, operands: tuple[OnnxValue, ...], results: tuple[TensorType, ...], /) -> tuple[str, ...]:
    if is_empty(operands[0].type):
        return (writer.filled(results[0].shape, 1.0, results[0].dtype),)
    return (writer.node("Det", *operands),)


RULES: dict[Primitive, OnnxRule] = {
    linalg.MATMUL: OnnxRule(_product),
    linalg.BMM: OnnxRule(_product),
    linalg.LINEAR: OnnxRule(_linear),
    determinants.DET: OnnxRule(_det, "ONNX leaves the result for nan undefined"),
}
