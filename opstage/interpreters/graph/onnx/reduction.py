"""Reductions along axes, softmax and log-softmax."""

from __future__ import annotations

from ....operators.table import NAN, exported, reduced
from ....ops.catalogue import primitives, reduction
from ....ops.primitive import Primitive
from ....ops.types import TensorType
from .nodes import OnnxValue
from .rules import OnnxRule, Says, direct
from .writer import Writer, is_empty


def reduced_by(op: str) -> Says:
    """Return the rule of an ONNX reduction; over an axis of size 0 its value is that of an empty reduction."""

    def says(
        writer: Writer,
        operands: tuple[OnnxValue, ...],
        results: tuple[TensorType, ...],
        /,
        *,
        axes: tuple[int, ...],
        keepdims: bool,
    ) -> tuple[str, ...]:
        (x,), (out,) = operands, results
        name = x.name if x.dtype == out.dtype else writer.converted(x, out.dtype)  # integers are summed in int64
        if not axes:
            return (name,)
        if is_empty(x.type):  # some runtimes do not know that an empty sum is 0 and an empty product 1
            return (writer.filled(out.shape, int(op == "ReduceProd"), out.dtype),)
        return (writer.node(op, name, writer.ints(*axes), keepdims=int(keepdims)),)

    return says


def _sum(writer: Writer, operands: tuple[OnnxValue, ...], results: tuple[TensorType, ...], /) -> tuple[str, ...] | None:
    return reduced_by("ReduceSum")(writer, operands, results, axes=tuple(range(len(operands[0].shape))), keepdims=False)


RULES: dict[Primitive, OnnxRule] = {
    reduction.SUM: OnnxRule(_sum),
    **{primitives()[each.op]: OnnxRule(reduced_by(each.onnx), each.note) for each in exported(reduced)},
    reduction.ARGMAX: direct("ArgMax", "axis", "keepdims", note=NAN),
    reduction.ARGMIN: direct("ArgMin", "axis", "keepdims", note=NAN),
    reduction.SOFTMAX: direct("Softmax", "axis"),
    reduction.LOG_SOFTMAX: direct("LogSoftmax", "axis"),
}
