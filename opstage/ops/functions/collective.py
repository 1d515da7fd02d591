"""Sums of the ranks of a mesh in other forms: programs over the collectives."""

from __future__ import annotations

from ..dims import ratio
from ..protocol import Ops, R
from .tools import whole, zeros


def all_mean(ops: Ops[R], x: R, /, *, axis: str) -> R:
    """The mean of the ranks' x over an axis of the mesh, the same on all of them; x where the mesh has no such axis.

    jax.lax.pmean.
    """
    size = ops.mesh.size(axis)
    return x if size == 1 else ops.all_reduce(ops.scale(x, c=ratio(1, size)), axis=axis)


def batch_mean(ops: Ops[R], total: R, count: R, /, *, axis: str) -> R:
    """Σ total / Σ count over the ranks: the mean of all rows that count, however the ranks share them out.

    The mean of the ranks' means is another number where some rows count on one rank and not on another one. total and
    count are of one shape and dtype. 0/0 is nan.

    Raises:
        DtypeError: x not a float tensor; dtypes differ.
        ShapeError: shapes differ.
    """
    return ops.div(ops.all_reduce(total, axis=axis), ops.all_reduce(count, axis=axis))


def broadcast(ops: Ops[R], x: R, /, *, axis: str, root: int = 0) -> R:
    """The x of rank `root` of an axis, on all of them. MPI: MPI_Bcast.

    A sum to which the others add zeros, so that its gradient arrives at the root alone.
    """
    if ops.mesh.size(axis) == 1:
        return x
    own = ops.equal(ops.axis_index(axis=axis), whole(ops, (), root))
    return ops.all_reduce(ops.select(ops.broadcast_to(own, shape=x.shape), x, zeros(ops, x)), axis=axis)
