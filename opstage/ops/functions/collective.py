"""Further collectives, as programs over others."""

from __future__ import annotations

from ..dims import ratio
from ..protocol import Ops, R
from .tools import whole, zeros


def all_mean(ops: Ops[R], x: R, /, *, axis: str) -> R:
    """The mean of the ranks' x over a mesh axis, the same on all ranks; x itself if the mesh has no such axis.

    JAX: jax.lax.pmean.
    """
    size = ops.mesh.size(axis)
    return x if size == 1 else ops.all_reduce(ops.scale(x, c=ratio(1, size)), axis=axis)


def batch_mean(ops: Ops[R], total: R, count: R, /, *, axis: str) -> R:
    """Σ total / Σ count over the ranks: the mean of all counted rows, however they are distributed.

    The mean of the ranks' means differs if ranks have different counts. total and
    count have the same shape and dtype. 0/0 is nan.

    Raises:
        DtypeError: x not a float tensor; dtypes differ.
        ShapeError: shapes differ.
    """
    return ops.div(ops.all_reduce(total, axis=axis), ops.all_reduce(count, axis=axis))


def broadcast(ops: Ops[R], x: R, /, *, axis: str, root: int = 0) -> R:
    """The x of rank `root` of an axis, on all ranks. MPI: MPI_Bcast.

    A sum with zeros from the other ranks, so that only the root gets a gradient.
    """
    if ops.mesh.size(axis) == 1:
        return x
    own = ops.equal(ops.axis_index(axis=axis), whole(ops, (), root))
    return ops.all_reduce(ops.select(ops.broadcast_to(own, shape=x.shape), x, zeros(ops, x)), axis=axis)
