"""Layers whose weights are sharded over the ranks of mesh axis `model`: programs over the collectives, nothing else.

A weight is one parameter, whole and by its name; each rank cuts out its own part, so checkpoints know nothing of it.
Where the mesh has no axis `model`, every layer here is the plain one. Megatron's f (Shoeybi et al. 2019) is written
nowhere: it is the `vary` that x needs to meet a part of a weight; its g is the `all_reduce` of `row_linear`.
"""

from __future__ import annotations

from typing import Any

from ..ops import derived
from ..ops.dims import Dim, exact_div
from ..ops.loss import IGNORED
from ..ops.protocol import Ops, R
from ..ops.types import dtype_name

AXIS = "model"
"""The axis of a mesh whose ranks share out the weights of a layer."""


def share(ops: Ops[R], count: Dim, what: str) -> Dim:
    """Return how many of `count` items each rank has. Raises ShapeError if the ranks cannot divide them equally."""
    size = ops.mesh.size(AXIS)
    return exact_div(
        count,
        size,
        lambda: (
            f"{size} ranks of mesh axis {AXIS!r} cannot share {count} {what} equally; make them a multiple of {size}"
        ),
    )


def part(ops: Ops[R], x: R, dim: int) -> R:
    """Return the rank's own part of a weight along `dim`."""
    return ops.shard(x, axis=AXIS, dim=dim)


def column_linear(ops: Ops[R], weight: R, bias: R | None, x: R) -> R:
    """x · weightᵀ + bias for weight (out, in): of the columns of the result each rank has its own, out/M."""
    return ops.linear(part(ops, weight, 0), None if bias is None else part(ops, bias, 0), x)


def row_linear(ops: Ops[R], weight: R, bias: R, x: R) -> R:
    """x · weightᵀ + bias, on all ranks, of an x (…, in/M) of which each rank has its own columns; weight (out, in).

    The bias is added once, to the sum over the ranks.
    """
    if ops.mesh.size(AXIS) == 1:
        return ops.linear(weight, bias, x)
    out = ops.all_reduce(ops.linear(part(ops, weight, 1), None, x), axis=AXIS)
    return ops.add(out, ops.broadcast_to(bias, shape=out.shape))


def embedding(ops: Ops[R], table: R, idx: R) -> R:
    """Look up rows of `table` (V, D) by integers: each rank takes its own rows, zeros for others, and all are added."""
    if ops.mesh.size(AXIS) == 1:
        return derived.embedding(ops, table, idx)
    own = part(ops, table, 0)
    local, mine = _local(ops, idx, own.shape[0])
    rows = ops.gather_rows(own, ops.select(mine, local, _zero(ops, local)))
    held = ops.cast(mine, dtype=dtype_name(rows.dtype))
    factor = ops.unsqueeze(ops.mul(held, _known(ops, idx, table.shape[0], rows)), axis=len(idx.shape))
    return ops.all_reduce(ops.mul(rows, ops.broadcast_to(factor, shape=rows.shape)), axis=AXIS)


def cross_entropy(ops: Ops[R], logits: R, labels: R, classes: Dim) -> R:
    """Return the mean of -log softmax(logits)[label] over the rows that count, for logits (N, classes/M): each rank's
    classes.

    A whole row of logits is on no rank. Labels (N,) are in [0, classes), or `IGNORED` and do not count.
    """
    if ops.mesh.size(AXIS) == 1:
        return ops.cross_entropy(logits, labels)
    n, own = logits.shape
    counts = ops.logical_not(ops.equal(labels, ops.full(shape=(n,), value=IGNORED, dtype=dtype_name(labels.dtype))))
    safe = ops.select(counts, labels, _zero(ops, labels))
    peak = ops.all_max(ops.reduce_max(ops.detach(logits), axis=1), axis=AXIS)
    shifted = ops.sub(logits, ops.broadcast_to(ops.unsqueeze(peak, axis=1), shape=(n, own)))
    total = ops.all_reduce(ops.reduce_sum(ops.exp(shifted), axis=1), axis=AXIS)
    local, _ = _local(ops, safe, own)
    columns = ops.iota(shape=(n, own), axis=1, dtype=dtype_name(labels.dtype))
    chosen = ops.equal(ops.broadcast_to(ops.unsqueeze(local, axis=1), shape=(n, own)), columns)
    picked = ops.reduce_sum(ops.select(chosen, shifted, _zero(ops, shifted)), axis=1)
    loss = ops.sub(ops.log(total), ops.all_reduce(picked, axis=AXIS))
    weight = ops.mul(ops.cast(counts, dtype=dtype_name(loss.dtype)), _known(ops, safe, classes, loss))
    counted = ops.select(counts, ops.mul(loss, weight), _zero(ops, loss))
    return ops.div(ops.reduce_sum(counted), ops.reduce_sum(weight))


def _local(ops: Ops[R], idx: R, own: Any) -> tuple[R, R]:
    """Return integers as counted from the first that this rank has, and which of them it has."""
    kind = dtype_name(idx.dtype)
    first = ops.mul(ops.axis_index(axis=AXIS), ops.full(shape=(), value=own, dtype="int64"))
    local = ops.sub(idx, ops.broadcast_to(ops.cast(first, dtype=kind), shape=idx.shape))
    last = ops.full(shape=idx.shape, value=own, dtype=kind)
    return local, ops.logical_and(ops.less_equal(_zero(ops, idx), local), ops.less(local, last))


def _known(ops: Ops[R], idx: R, count: Dim, like: R) -> R:
    """1 at every integer in [0, count); for any other the error of a gather, where no rank would have missed it."""
    ones = ops.full(shape=(count, 1), value=1.0, dtype=dtype_name(like.dtype))
    return ops.squeeze(ops.gather_rows(ones, idx), axis=len(idx.shape))


def _zero(ops: Ops[R], like: R) -> R:
    return ops.full(shape=like.shape, value=0, dtype=dtype_name(like.dtype))
