"""Products of rows with the matrix of their group, as mixtures of experts have them."""

from __future__ import annotations

from typing import Any

from ..protocol import Ops, R
from ..rules import require_rank
from ..types import require_integer, require_same_dtype, show_shape
from .ordering import searchsorted
from .tools import equal_sizes, placed, type_of


def grouped_matmul(ops: Ops[R], x: R, w: R, ends: R, /) -> R:
    """y[i] = x[i] · w[g] for the group g of row i: rows of one group stand together, those of group g before ends[g].

    x (n, k), w (groups, k, m), ends (groups) integers that never fall, the running sum of how many rows each group has;
    (n, m). Rows at ends[-1] and behind are of no group and 0. The loop over the groups multiplies all rows in each:
    2·groups·n·k·m flops, and never more than one group's product in memory. PyTorch:
    torch.nn.functional.grouped_mm, where rows of no group are not written. JAX: jax.lax.ragged_dot.

    Raises:
        DtypeError: x not a float tensor; ends not an integer tensor; dtypes differ.
        ShapeError: ends, w, x of another shape; operands that do not fit each other.
    """
    op = "grouped_matmul"
    for value, rank, name in ((x, 2, "x"), (w, 3, "w"), (ends, 1, "ends")):
        placed(ops, op, lambda value=value, rank=rank, name=name: require_rank(type_of(value), rank, name))  # type: ignore[misc]
    placed(ops, op, lambda: require_integer(type_of(ends), "ends"))
    placed(ops, op, lambda: require_same_dtype(type_of(x), type_of(w), "x", "w"))
    shapes = f"x is {show_shape(x.shape)}, w is {show_shape(w.shape)} and ends are {show_shape(ends.shape)}"
    equal_sizes(ops, op, x.shape[1], w.shape[1], lambda: f"{shapes}: a matrix has a row for each column of x")
    equal_sizes(ops, op, w.shape[0], ends.shape[0], lambda: f"{shapes}: every group has an end")
    n, m = x.shape[0], w.shape[2]
    own = searchsorted(ops, ops.cast(ends, dtype="int64"), ops.iota(shape=(n,)), right=True)

    def step(inner: Any, y: R, at: Any) -> tuple[R, tuple[()]]:
        matrix, group = at
        mine = inner.equal(own, inner.broadcast_to(group, shape=(n,)))
        mine = inner.broadcast_to(inner.unsqueeze(mine, axis=1), shape=(n, m))
        return inner.select(mine, inner.matmul(x, matrix), y), ()

    start = ops.full(shape=(n, m), value=0, dtype=x.dtype)
    y: R
    y, _ = ops.scan(step, start, (w, ops.iota(shape=(w.shape[0],))))
    return y
