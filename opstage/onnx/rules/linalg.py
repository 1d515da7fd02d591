"""Matrix products and determinants."""

from __future__ import annotations

from string import ascii_letters
from typing import Any

from ...operators.values import Value, stretched
from ...ops.derived import einsum
from ...ops.dims import prod
from ...ops.infix import product_of_stacks
from ..call import NodeCall, rule


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


@rule("Det")
def _det(call: NodeCall[Any]) -> Value:
    return call.give(call.ops.det(call.x()))


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
