"""Matrix products, determinants, reductions over axes, cumulative sums and sorting: import and export."""

from __future__ import annotations

from functools import partial
from string import ascii_letters
from typing import Any

from ....ops import linalg as determinants
from ....ops import matmul as linalg
from ....ops import reduction, sequence
from ....ops.arrangement import flip
from ....ops.catalogue import primitives
from ....ops.derived import einsum
from ....ops.dims import prod
from ....ops.infix import product_of_stacks
from ....ops.sequence import top_k
from ....ops.types import BOOL, INT32, TensorType
from ...operators import NAN, exported, reduced
from ...values import Value, stretched
from ..graph import NodeCall, rule
from ..writer import OnnxValue, OnnxWriter, Subgraph, direct, exports, is_empty

# Matrix products and determinants -------------------------------------------------------------------------------------


@rule("MatMul")
def _matmul(call: NodeCall[Any]) -> Value:
    return call.wrap(product(call.ops, call.x(0), call.x(1)))


def product(ops: Any, x: Any, y: Any) -> Any:
    """Compute NumPy's matmul; if y is a matrix or a vector, on all rows of the batch at once."""
    if len(x.shape) < 3 or len(y.shape) > 2:
        return product_of_stacks(ops, x, y)
    column = len(y.shape) == 1
    y = ops.unsqueeze(y, axis=1) if column else y
    rows = ops.reshape(x, shape=(prod(x.shape[:-1]), x.shape[-1]))
    z = ops.reshape(ops.matmul(rows, y), shape=(*x.shape[:-1], y.shape[-1]))
    return ops.squeeze(z, axis=-1) if column else z


@rule("Gemm")
def _gemm(call: NodeCall[Any]) -> Value:
    ops, alpha, beta = call.ops, call.attribute("alpha", 1.0), call.attribute("beta", 1.0)
    a = call.x(0)
    a = ops.transpose2d(a) if call.attribute("transA", 0) else a
    b = call.x(1)
    turned = bool(call.attribute("transB", 0))
    vector = call.has(2) and call.rank(2) == 1 and beta == 1.0 and alpha == 1.0
    if turned and a.dtype.kind == "f" and (vector or not call.has(2)) and alpha == 1.0:
        bias = stretched(ops, call.x(2), (b.shape[0],)) if call.has(2) else None
        return call.give(ops.linear(b, bias, a))
    y = ops.matmul(a, ops.transpose2d(b) if turned else b)
    y = y if alpha == 1.0 else ops.scale(y, c=alpha)
    if call.has(2) and beta:
        c = call.x(2)
        c = c if beta == 1.0 else ops.scale(c, c=beta)
        y = ops.add(y, stretched(ops, c, y.shape))
    return call.give(y)


@rule("Einsum")
def _einsum(call: NodeCall[Any]) -> Value:
    equation = _spelled(call.attribute("equation").replace(" ", ""), [call.rank(i) for i in range(len(call))])
    return call.give(einsum(call.ops, equation, *call.xs()))


def _spelled(equation: str, ranks: list[int]) -> str:
    """Return the equation with letters for its ellipses, and with an explicit result."""
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    free = [letter for letter in ascii_letters if letter not in equation]
    depth = max((rank - len(term) + 3 for term, rank in zip(terms, ranks) if "..." in term), default=0)
    hidden = "".join(free[:depth])
    written = [
        term.replace("...", hidden[depth - (rank - len(term) + 3) :] if rank - len(term) + 3 else "")
        for term, rank in zip(terms, ranks)
    ]
    if not arrow:
        letters = "".join(written)
        right = hidden + "".join(c for c in sorted(set(letters) - set(hidden)) if letters.count(c) == 1)
    return ",".join(written) + "->" + right.replace("...", hidden)


# Matrix products: export ----------------------------------------------------------------------------------------------


@exports(linalg.MATMUL, linalg.BMM)
def _write_product(writer: OnnxWriter, x: OnnxValue, y: OnnxValue) -> str:
    if is_empty(x.type):  # empty sums
        return writer.filled(writer.out.shape, 0.0, writer.out.dtype)
    return writer.node("MatMul", x, y)


@exports(linalg.LINEAR)
def _write_linear(writer: OnnxWriter, *operands: OnnxValue, has_bias: bool) -> str:
    weight, *bias, x = operands
    if is_empty(x.type):  # no features: only the bias
        if bias:
            return writer.expanded(bias[0], bias[0].shape, writer.out.shape)
        return writer.filled(writer.out.shape, 0.0, x.dtype)
    if len(x.shape) == 2:
        return writer.node("Gemm", x, weight, *bias, transB=1)
    out = writer.node("MatMul", x, writer.node("Transpose", weight, perm=(1, 0)))
    return writer.node("Add", out, *bias) if bias else out


@exports(determinants.DET, note=NAN)
def _write_det(writer: OnnxWriter, x: OnnxValue) -> str:
    if is_empty(x.type):
        return writer.filled(writer.out.shape, 1.0, writer.out.dtype)
    return writer.node("Det", x)


# Reductions -----------------------------------------------------------------------------------------------------------


@rule("ArgMax", "ArgMin")
def _arg(call: NodeCall[Any]) -> Value:
    ops, x, axis = call.ops, call.x(), call.axis(0)
    keep, last = bool(call.attribute("keepdims", 1)), bool(call.attribute("select_last_index", 0))
    if last:
        x = flip(ops, x, axis=axis)
    found = (ops.argmin if call.node.op == "ArgMin" else ops.argmax)(x, axis=axis, keepdims=keep)
    if last:
        found = ops.sub(ops.full(shape=found.shape, value=x.shape[axis] - 1, dtype="int64"), found)
    return call.index(found)


@rule("CumSum", "CumProd", known=(1,))
def _cumulative(call: NodeCall[Any]) -> Value:
    axis = int(call.number(1, "axis")) % call.rank()
    op = call.ops.cumsum if call.node.op == "CumSum" else call.ops.cumprod
    exclusive, reverse = bool(call.attribute("exclusive", 0)), bool(call.attribute("reverse", 0))
    return call.wrap(op(call.x(), axis=axis, exclusive=exclusive, reverse=reverse))


@rule("TopK", known=(1,))
def _top_k(call: NodeCall[Any]) -> tuple[Value, ...]:
    ops, x, axis = call.ops, call.x(), call.axis(-1)
    k = call.number(1, "k", call.attribute("k"))
    values, places = top_k(ops, x, k=k, axis=axis, largest=bool(call.attribute("largest", 1)))
    return call.give(values), call.index(places)


# Reductions: export ---------------------------------------------------------------------------------------------------


def _write_reduction(writer: OnnxWriter, x: OnnxValue, *, op: str, axes: tuple[int, ...], keepdims: bool) -> str:
    """Write an ONNX reduction; over an axis of size 0 its value is that of an empty reduction."""
    out = writer.out
    name = x.name if x.dtype == out.dtype else writer.converted(x, out.dtype)  # integers are summed in int64
    if not axes:
        return name
    if is_empty(x.type):  # some runtimes do not know that an empty sum is 0 and an empty product 1
        return writer.filled(out.shape, int(op == "ReduceProd"), out.dtype)
    return writer.node(op, name, writer.ints(*axes), keepdims=int(keepdims))


@exports(reduction.SUM)
def _write_sum(writer: OnnxWriter, x: OnnxValue) -> str:
    return _write_reduction(writer, x, op="ReduceSum", axes=tuple(range(len(x.shape))), keepdims=False)


for _row in exported(reduced):
    exports(primitives()[_row.op], note=_row.note)(partial(_write_reduction, op=_row.onnx))
exports(reduction.ARGMAX, note=NAN)(direct("ArgMax", "axis", "keepdims"))
exports(reduction.ARGMIN, note=NAN)(direct("ArgMin", "axis", "keepdims"))
exports(reduction.SOFTMAX)(direct("Softmax", "axis"))
exports(reduction.LOG_SOFTMAX)(direct("LogSoftmax", "axis"))


@exports(sequence.CUMSUM)
def _write_cumsum(writer: OnnxWriter, x: OnnxValue, *, axis: int, exclusive: bool, reverse: bool) -> str:
    name = x.name if x.dtype == writer.out.dtype else writer.converted(x, writer.out.dtype)
    place = writer.constant(axis, INT32)
    return writer.node("CumSum", name, place, exclusive=int(exclusive), reverse=int(reverse))


@exports(sequence.ARGSORT, note=NAN)
def _write_argsort(writer: OnnxWriter, x: OnnxValue, *, axis: int, descending: bool) -> str:
    """Write a TopK of the whole axis, which puts the lower index first among equal elements."""
    name = writer.converted(x, INT32) if x.dtype == BOOL else x.name
    length = writer.dims([x.shape[axis]])
    return writer.outputs_of("TopK", name, length, count=2, axis=axis, largest=int(descending), sorted=1)[1]


@exports(sequence.LINEAR_RECURRENCE)
def _write_linear_recurrence(writer: OnnxWriter, a: OnnxValue, b: OnnxValue, *, axis: int, reverse: bool) -> str:
    """Write a Scan along the axis, whose state is the previous result."""
    out = writer.out
    entry = TensorType((*out.shape[:axis], *out.shape[axis + 1 :]), out.dtype)
    before = writer.filled(entry.shape, 0, entry.dtype)
    inside = [OnnxValue(writer.unique("entry"), entry, writer) for _ in range(3)]
    with writer.into([]) as nodes:
        value = OnnxValue(writer.node("Add", writer.node("Mul", inside[1], inside[0]), inside[2]), entry, writer)
    body = writer.closed(Subgraph(nodes, (), (value, value)), inside)
    return writer.outputs_of(
        "Scan",
        before,
        a,
        b,
        count=2,
        body=body,
        num_scan_inputs=2,
        scan_input_axes=(axis, axis),
        scan_input_directions=(int(reverse),) * 2,
        scan_output_axes=(axis,),
        scan_output_directions=(int(reverse),),
    )[1]
