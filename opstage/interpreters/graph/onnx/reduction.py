"""Reductions along axes, and the normalised exponentials."""

from __future__ import annotations

from ....ops.catalogue import reduction
from ....ops.primitive import Primitive
from ....ops.types import TensorType
from .nodes import OnnxValue
from .rules import OnnxRule, Says, direct
from .writer import Writer, is_empty


def _reduce(op: str) -> Says:
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
        name = x.name if x.dtype == out.dtype else writer.converted(x, out.dtype)  # integers are added in int64
        if not axes:
            return (name,)
        if is_empty(x.type):  # a sum over nothing is 0, which not every runtime knows
            return (writer.filled(out.shape, 0, out.dtype),)
        return (writer.node(op, name, writer.ints(*axes), keepdims=int(keepdims)),)

    return says


def _sum(writer: Writer, operands: tuple[OnnxValue, ...], results: tuple[TensorType, ...], /) -> tuple[str, ...] | None:
    return _reduce("ReduceSum")(writer, operands, results, axes=tuple(range(len(operands[0].shape))), keepdims=False)


def _argmax(
    writer: Writer, operands: tuple[OnnxValue, ...], results: tuple[TensorType, ...], /, *, axis: int, keepdims: bool
) -> tuple[str, ...]:
    return (writer.node("ArgMax", *operands, axis=axis, keepdims=int(keepdims)),)


RULES: dict[Primitive, OnnxRule] = {
    reduction.SUM: OnnxRule(_sum),
    reduction.REDUCE_SUM: OnnxRule(_reduce("ReduceSum")),
    reduction.REDUCE_MEAN: OnnxRule(_reduce("ReduceMean")),
    reduction.REDUCE_MAX: OnnxRule(_reduce("ReduceMax"), "of nan ONNX says nothing"),
    reduction.ARGMAX: OnnxRule(_argmax, "of nan ONNX says nothing"),
    reduction.SOFTMAX: direct("Softmax", "axis"),
    reduction.LOG_SOFTMAX: direct("LogSoftmax", "axis"),
}
