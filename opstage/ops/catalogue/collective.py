"""Collectives: communication of the ranks of a mesh along one named axis.

A tensor is replicated over an axis, with the same value on every rank along it, or it varies over it. A sum turns a
varying tensor into a replicated one and `vary` the reverse, so they are each other's transpose: Megatron's f and g
(Shoeybi et al. 2019), and `psum` and `pvary` of JAX. Other ops do not know about axes. `size` is the number of ranks
along the axis. Sums over ranks have a fixed order, see interpreters/mesh/tree.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..dims import Dim, exact_div
from ..errors import DtypeError, ShapeError
from ..kinds import Kind
from ..primitive import Context, Linearity, Primitive, R, Static, no_flops
from ..types import INT64, TensorType, show_shape

if TYPE_CHECKING:
    from ..protocol import Ops


def _same(x: TensorType, **static: Any) -> tuple[TensorType, ...]:
    return (x,)


def _summed(x: TensorType, **static: Any) -> tuple[TensorType, ...]:
    _require_numbers(x)
    return (x,)


def _require_numbers(x: TensorType) -> None:
    if x.dtype.kind == "b":
        raise DtypeError("a sum over ranks is of numbers, but x is a mask; cast it first")


def _along(x: TensorType, dim: int) -> int:
    rank = len(x.shape)
    if not -rank <= dim < rank:
        raise ShapeError(f"dim={dim} is not an axis of x, which is {show_shape(x.shape)}")
    return dim % rank


def _divided(x: TensorType, dim: int, axis: str, size: Dim) -> TensorType:
    """Return the type of x with one of `size` equal parts of an axis."""
    dim = _along(x, dim)

    def message() -> str:
        return (
            f"x is {show_shape(x.shape)}: its axis {dim} has {x.shape[dim]}, which {size} ranks of mesh axis {axis!r} "
            f"cannot share equally; make it a multiple of {size}"
        )

    part = exact_div(x.shape[dim], size, message)
    return TensorType((*x.shape[:dim], part, *x.shape[dim + 1 :]), x.dtype)


def _joined(x: TensorType, dim: int, size: Dim) -> TensorType:
    dim = _along(x, dim)
    return TensorType((*x.shape[:dim], x.shape[dim] * size, *x.shape[dim + 1 :]), x.dtype)


def _adds(inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...], /, *, size: Dim, **static: Any) -> Dim:
    return outputs[0].size * (size - 1)


def _transposed(name: str, change: Callable[[Static], Static] = lambda static: static) -> Any:
    """Return the vjp of a collective whose transpose has this name, with changed static parameters."""

    def vjp(ops: Ops[R], ctx: Context[R], cotangents: tuple[R, ...], /, **static: Any) -> tuple[R | None, ...]:
        return (ops.bind(BY_NAME[name], (cotangents[0],), change(static))[0],)

    return vjp


VARY = Primitive(
    "vary",
    operands=("x",),
    kind=Kind.COLLECTIVE,
    shape=_same,
    vjp=_transposed("all_reduce"),
    jvp=Linearity.JOINT,
    flops=no_flops,
    view=True,
)

ALL_REDUCE = Primitive(
    "all_reduce",
    operands=("x",),
    kind=Kind.COLLECTIVE,
    shape=_summed,
    vjp=_transposed("vary"),
    jvp=Linearity.JOINT,
    flops=_adds,
)

ALL_MAX = Primitive("all_max", operands=("x",), kind=Kind.COLLECTIVE, shape=_same, differentiable=False, flops=_adds)


def _gathered_shape(x: TensorType, *, axis: str, size: Dim, dim: int, replicated: bool) -> tuple[TensorType, ...]:
    return (_joined(x, dim, size),)


def _gathered_vjp(
    ops: Ops[R], ctx: Context[R], cotangents: tuple[R, ...], /, *, replicated: bool, **static: Any
) -> tuple[R | None, ...]:
    """If all ranks use the result alike, each takes its part of the common cotangent; otherwise cotangents are
    summed."""
    return (ops.bind(SHARD if replicated else REDUCE_SCATTER, (cotangents[0],), static)[0],)


ALL_GATHER = Primitive(
    "all_gather",
    operands=("x",),
    kind=Kind.COLLECTIVE,
    shape=_gathered_shape,
    vjp=_gathered_vjp,
    jvp=Linearity.JOINT,
    flops=no_flops,
)


def _part_shape(x: TensorType, *, axis: str, size: Dim, dim: int) -> tuple[TensorType, ...]:
    return (_divided(x, dim, axis, size),)


def _part_of_sum_shape(x: TensorType, *, axis: str, size: Dim, dim: int) -> tuple[TensorType, ...]:
    _require_numbers(x)
    return (_divided(x, dim, axis, size),)


REDUCE_SCATTER = Primitive(
    "reduce_scatter",
    operands=("x",),
    kind=Kind.COLLECTIVE,
    shape=_part_of_sum_shape,
    vjp=_transposed("all_gather", lambda static: {**static, "replicated": False}),
    jvp=Linearity.JOINT,
    flops=_adds,
)

SHARD = Primitive(
    "shard",
    operands=("x",),
    kind=Kind.COLLECTIVE,
    shape=_part_shape,
    vjp=_transposed("all_gather", lambda static: {**static, "replicated": True}),
    jvp=Linearity.JOINT,
    flops=no_flops,
    view=True,
)


def _exchanged_shape(x: TensorType, *, axis: str, size: Dim, split: int, join: int) -> tuple[TensorType, ...]:
    return (_joined(_divided(x, split, axis, size), join, size),)


ALL_TO_ALL = Primitive(
    "all_to_all",
    operands=("x",),
    kind=Kind.COLLECTIVE,
    shape=_exchanged_shape,
    vjp=_transposed("all_to_all", lambda static: {**static, "split": static["join"], "join": static["split"]}),
    jvp=Linearity.JOINT,
    flops=no_flops,
)

SHIFT = Primitive(
    "shift",
    operands=("x",),
    kind=Kind.COLLECTIVE,
    shape=_same,
    vjp=_transposed("shift", lambda static: {**static, "by": -static["by"]}),
    jvp=Linearity.JOINT,
    flops=no_flops,
)


def _axis_index_shape(*, axis: str, size: Dim) -> tuple[TensorType, ...]:
    return (TensorType((), INT64),)


AXIS_INDEX = Primitive(
    "axis_index",
    operands=(),
    kind=Kind.COLLECTIVE,
    shape=_axis_index_shape,
    differentiable=False,
    flops=no_flops,
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
