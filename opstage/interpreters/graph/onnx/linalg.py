"""Products of matrices."""

from __future__ import annotations

from ....ops.catalogue import linalg
from ....ops.primitive import Primitive
from ....ops.types import TensorType
from .nodes import Value
from .rules import Rule, direct
from .writer import Writer


def _linear(
    writer: Writer, operands: tuple[Value, ...], results: tuple[TensorType, ...], /, *, has_bias: bool
) -> tuple[str, ...]:
    weight, *bias, x = operands
    if len(x.shape) == 2:
        return (writer.node("Gemm", x, weight, *bias, transB=1),)
    out = writer.node("MatMul", x, writer.node("Transpose", weight, perm=(1, 0)))
    return (writer.node("Add", out, *bias) if bias else out,)


RULES: dict[Primitive, Rule] = {
    linalg.MATMUL: direct("MatMul"),
    linalg.BMM: direct("MatMul"),
    linalg.LINEAR: Rule(_linear),
}
