"""Collectives: communication of the ranks of a mesh along one named axis.

A tensor is replicated over an axis, with the same value on every rank along it, or it varies over it. A sum turns a
varying tensor into a replicated one and `vary` the reverse, so they are each other's transpose: Megatron's f and g
(Shoeybi et al. 2019), and `psum` and `pvary` of JAX. Other ops do not know about axes. `size` is the number of ranks
along the axis. Sums over ranks have a fixed order, see distributed/collectives.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, final

from .dims import Dim, exact_div, ratio
from .errors import DtypeError, ShapeError
from .logic import FULL
from .method import Calls
from .primitive import Context, Kind, Linearity, Primitive, R, Row, Some, Static, Types, no_flops
from .rule_helpers import whole, zeros
from .static_arguments import as_flag
from .types import INT64, TensorType, show_shape

if TYPE_CHECKING:
    from .protocol import Ops


def _same(x: TensorType, **static: Any) -> Types:
    return (x,)


def _summed(x: TensorType, **static: Any) -> Types:
    _require_numbers(x)
    return (x,)


def _require_numbers(x: TensorType) -> None:
    if x.dtype.kind == "b":
        raise DtypeError("a sum over ranks is of numbers, but x is a mask; cast it first")


def _require_dim(x: TensorType, dim: int) -> int:
    rank = len(x.shape)
    if not -rank <= dim < rank:
        raise ShapeError(f"dim={dim} is not an axis of x, which is {show_shape(x.shape)}")
    return dim % rank


def _divided(x: TensorType, dim: int, axis: str, size: Dim) -> TensorType:
    """Return the type of x with one of `size` equal parts of an axis."""
    dim = _require_dim(x, dim)

    def message() -> str:
        return (
            f"x is {show_shape(x.shape)}: its axis {dim} has {x.shape[dim]}, which {size} ranks of mesh axis {axis!r} "
            f"cannot share equally; make it a multiple of {size}"
        )

    part = exact_div(x.shape[dim], size, message)
    return TensorType((*x.shape[:dim], part, *x.shape[dim + 1 :]), x.dtype)


def _gathered_type(x: TensorType, dim: int, size: Dim) -> TensorType:
    dim = _require_dim(x, dim)
    return TensorType((*x.shape[:dim], x.shape[dim] * size, *x.shape[dim + 1 :]), x.dtype)


def _adds(inputs: Types, outputs: Types, /, *, size: Dim, **static: Any) -> Dim:
    return outputs[0].size * (size - 1)


def _transposed(name: str, change: Callable[[Static], Static] = lambda static: static) -> Any:
    """Return the vjp of a collective whose transpose has this name, with changed static parameters."""

    def vjp(ops: Ops[R], ctx: Context[R], cotangents: Row[R], /, **static: Any) -> Some[R]:
        return (ops.bind(BY_NAME[name], (cotangents[0],), change(static))[0],)

    return vjp


def _collective(name: str, shape: Any, vjp: Any, **properties: Any) -> Primitive:
    """Make a collective, linear in its operand, which costs no arithmetic unless `flops` counts it."""
    linear = {"jvp": Linearity.JOINT, "flops": no_flops, **properties}
    return Primitive(name, operands=("x",), kind=Kind.COLLECTIVE, shape=shape, vjp=vjp, **linear)


VARY = _collective("vary", _same, _transposed("all_reduce"), view=True)

ALL_REDUCE = _collective("all_reduce", _summed, _transposed("vary"), flops=_adds)

ALL_MAX = Primitive("all_max", operands=("x",), kind=Kind.COLLECTIVE, shape=_same, differentiable=False, flops=_adds)


def _gathered_shape(x: TensorType, *, axis: str, size: Dim, dim: int, replicated: bool) -> Types:
    return (_gathered_type(x, dim, size),)


def _gathered_vjp(ops: Ops[R], ctx: Context[R], cotangents: Row[R], /, *, replicated: bool, **static: Any) -> Some[R]:
    """Return the rank's part of the common cotangent if all ranks use the result alike, else of the sum of
    cotangents."""
    return (ops.bind(SHARD if replicated else REDUCE_SCATTER, (cotangents[0],), static)[0],)


ALL_GATHER = _collective("all_gather", _gathered_shape, _gathered_vjp)


def _part_shape(x: TensorType, *, axis: str, size: Dim, dim: int) -> Types:
    return (_divided(x, dim, axis, size),)


def _part_of_sum_shape(x: TensorType, *, axis: str, size: Dim, dim: int) -> Types:
    _require_numbers(x)
    return (_divided(x, dim, axis, size),)


REDUCE_SCATTER = _collective(
    "reduce_scatter",
    _part_of_sum_shape,
    _transposed("all_gather", lambda static: {**static, "replicated": False}),
    flops=_adds,
)

SHARD = _collective(
    "shard", _part_shape, _transposed("all_gather", lambda static: {**static, "replicated": True}), view=True
)


def _exchanged_shape(x: TensorType, *, axis: str, size: Dim, split: int, join: int) -> Types:
    return (_gathered_type(_divided(x, split, axis, size), join, size),)


ALL_TO_ALL = _collective(
    "all_to_all",
    _exchanged_shape,
    _transposed("all_to_all", lambda static: {**static, "split": static["join"], "join": static["split"]}),
)

SHIFT = _collective("shift", _same, _transposed("shift", lambda static: {**static, "by": -static["by"]}))


def _axis_index_shape(*, axis: str, size: Dim) -> Types:
    return (TensorType((), INT64),)


AXIS_INDEX = Primitive(
    "axis_index", operands=(), kind=Kind.COLLECTIVE, shape=_axis_index_shape, differentiable=False, flops=no_flops
)

BY_NAME = {
    each.name: each
    for each in (VARY, ALL_REDUCE, ALL_MAX, ALL_GATHER, REDUCE_SCATTER, SHARD, ALL_TO_ALL, SHIFT, AXIS_INDEX)
}


def sent_bytes(primitive: Primitive, nbytes: Dim, size: Dim) -> Dim:
    """Return the bytes that one rank sends for a call: n·(N - 1)/N to receive a part of a sum, and the same to gather
    it.

    n are the bytes of the operand, N = `size` the number of ranks. A sum exchanges parts and then gathers them.
    """
    if primitive in (VARY, SHARD, AXIS_INDEX):
        return 0
    if primitive is ALL_GATHER:
        return nbytes * (size - 1)
    if primitive is SHIFT:
        return nbytes
    part = nbytes - nbytes // size
    return part * 2 if primitive in (ALL_REDUCE, ALL_MAX) else part


# The methods of Ops ------------------------------------------------------------------------------------------


class CollectiveOps(Calls[R]):
    __slots__ = ()

    @final
    def _exchange(self, primitive: Primitive, x: R, axis: str, **static: Any) -> R:
        """Bind the collective over an axis; return x itself if there is one rank along it."""
        size = self.mesh.size(axis)
        return x if size == 1 else self._call(primitive, (x,), {"axis": axis, "size": size, **static})

    def vary(self, x: R, /, *, axis: str) -> R:
        """Mark x as varying over the axis; its gradient is summed over the ranks.

        Rarely called explicitly: an op with a varying operand varies its other operands first. JAX:
        jax.lax.pvary.

        Raises:
            MeshError: x that varies over the axis already.
        """
        return self._exchange(VARY, x, axis)

    def all_reduce(self, x: R, /, *, axis: str) -> R:
        """Sum the ranks' x over the axis, with the same bits on all ranks. PyTorch: torch.distributed.all_reduce.

        For floats and integers. JAX: jax.lax.psum. MPI: MPI_Allreduce.

        Raises:
            DtypeError: x a mask.
            MeshError: x that all ranks have alike.
        """
        return self._exchange(ALL_REDUCE, x, axis)

    def all_max(self, x: R, /, *, axis: str) -> R:
        """Return the elementwise maximum of the ranks' x; nan if any is; not differentiable.

        JAX: jax.lax.pmax.

        Raises:
            DtypeError: x a mask.
            MeshError: x that all ranks have alike.
        """
        return self._exchange(ALL_MAX, x, axis)

    def all_gather(self, x: R, /, *, axis: str, dim: int = 0, replicated: bool = False) -> R:
        """Return the ranks' parts joined along `dim`, on every rank. PyTorch: torch.distributed.all_gather.

        Ranks may use the result differently, so gradients are summed and scattered; with `replicated` all ranks use the
        result alike, and each takes its part of the common gradient. JAX: jax.lax.all_gather.

        Raises:
            MeshError: x that all ranks have alike.
            ShapeError: dim that is not an axis of x.
        """
        return self._exchange(ALL_GATHER, x, axis, dim=dim, replicated=as_flag("all_gather", "replicated", replicated))

    def reduce_scatter(self, x: R, /, *, axis: str, dim: int = 0) -> R:
        """Return the rank's part, along `dim`, of the sum of the ranks' x. PyTorch: torch.distributed.reduce_scatter.

        JAX: jax.lax.psum_scatter.

        Raises:
            DtypeError: x a mask.
            MeshError: x that all ranks have alike.
            ShapeError: dim that is not an axis of x, or that the ranks cannot share equally.
        """
        return self._exchange(REDUCE_SCATTER, x, axis, dim=dim)

    def shard(self, x: R, /, *, axis: str, dim: int = 0) -> R:
        """Return the rank's part, along `dim`, of an x that is the same on all ranks; nothing is sent.

        Raises:
            MeshError: x that varies over the axis.
            ShapeError: dim that is not an axis of x, or that the ranks cannot share equally.
        """
        return self._exchange(SHARD, x, axis, dim=dim)

    def all_to_all(self, x: R, /, *, axis: str, split: int, join: int) -> R:
        """Send part i of x along `split` to rank i, and join the received parts along `join`.

        PyTorch: torch.distributed.all_to_all. JAX: jax.lax.all_to_all.

        Raises:
            MeshError: x that all ranks have alike.
            ShapeError: split or join that is not an axis of x, or a split that the ranks cannot share equally.
        """
        return self._exchange(ALL_TO_ALL, x, axis, split=split, join=join)

    def shift(self, x: R, /, *, axis: str, by: int = 1) -> R:
        """Return the x of the rank `by` positions before, around the ring.

        JAX: jax.lax.ppermute. MPI: MPI_Sendrecv.

        Raises:
            MeshError: x that all ranks have alike.
        """
        return self._exchange(SHIFT, x, axis, by=by)

    def axis_index(self, *, axis: str) -> R:
        """Return the rank's coordinate along the axis, an int64 scalar. PyTorch: torch.distributed.get_rank.

        JAX: jax.lax.axis_index.
        """
        size = self.mesh.size(axis)
        if size == 1:
            return self._call(FULL, (), {"shape": (), "value": 0, "dtype": "int64"})
        return self._call(AXIS_INDEX, (), {"axis": axis, "size": size})


# Functions: further collectives ---------------------------------------------------------------------------------------


def all_mean(ops: Ops[R], x: R, /, *, axis: str) -> R:
    """Return the mean of the ranks' x over a mesh axis, the same on all ranks; x itself if the mesh has no such axis.

    JAX: jax.lax.pmean.
    """
    size = ops.mesh.size(axis)
    return x if size == 1 else ops.all_reduce(ops.scale(x, c=ratio(1, size)), axis=axis)


def batch_mean(ops: Ops[R], total: R, count: R, /, *, axis: str) -> R:
    """Return Σ total / Σ count over the ranks: the mean of all counted rows, however they are distributed.

    The mean of the ranks' means differs if ranks have different counts. total and
    count have the same shape and dtype. 0/0 is nan.

    Raises:
        DtypeError: x not a float tensor; dtypes differ.
        ShapeError: shapes differ.
    """
    return ops.div(ops.all_reduce(total, axis=axis), ops.all_reduce(count, axis=axis))


def broadcast(ops: Ops[R], x: R, /, *, axis: str, root: int = 0) -> R:
    """Return the x of rank `root` of an axis, on all ranks. MPI: MPI_Bcast.

    A sum with zeros from the other ranks, so that only the root gets a gradient.
    """
    if ops.mesh.size(axis) == 1:
        return x
    own = ops.equal(ops.axis_index(axis=axis), whole(ops, (), root))
    return ops.all_reduce(ops.select(ops.broadcast_to(own, shape=x.shape), x, zeros(ops, x)), axis=axis)
