"""Collectives over a named axis of the mesh of ranks that runs the program.

Over an axis that the mesh does not have, each returns its operand, so that programs also run on one rank.
"""

from __future__ import annotations

from typing import Any, final

from ..calls import Calls
from ..catalogue.collective import (
    ALL_GATHER,
    ALL_MAX,
    ALL_REDUCE,
    ALL_TO_ALL,
    AXIS_INDEX,
    REDUCE_SCATTER,
    SHARD,
    SHIFT,
    VARY,
)
from ..catalogue.logic import FULL
from ..primitive import Primitive, R


class CollectiveOps(Calls[R]):
    __slots__ = ()

    @final
    def _over(self, primitive: Primitive, x: R, axis: str, **static: Any) -> R:
        """Bind the collective over an axis; return x itself if there is one rank along it."""
        size = self.mesh.size(axis)
        return x if size == 1 else self._call(primitive, (x,), {"axis": axis, "size": size, **static})

    def vary(self, x: R, /, *, axis: str) -> R:
        """x, marked as varying over the axis; its gradient is summed over the ranks.

        Rarely called explicitly: an op with a varying operand varies its other operands first. JAX:
        jax.lax.pvary.

        Raises:
            MeshError: x that varies over the axis already.
        """
        return self._over(VARY, x, axis)

    def all_reduce(self, x: R, /, *, axis: str) -> R:
        """Σ of the ranks' x over the axis, with the same bits on all ranks. PyTorch: torch.distributed.all_reduce.

        For floats and integers. JAX: jax.lax.psum. MPI: MPI_Allreduce.

        Raises:
            DtypeError: x a mask.
            MeshError: x that all ranks have alike.
        """
        return self._over(ALL_REDUCE, x, axis)

    def all_max(self, x: R, /, *, axis: str) -> R:
        """The elementwise maximum of the ranks' x; nan if any is; not differentiable.

        JAX: jax.lax.pmax.

        Raises:
            DtypeError: x a mask.
            MeshError: x that all ranks have alike.
        """
        return self._over(ALL_MAX, x, axis)

    def all_gather(self, x: R, /, *, axis: str, dim: int = 0, replicated: bool = False) -> R:
        """The ranks' parts joined along `dim`, on every rank. PyTorch: torch.distributed.all_gather.

        Ranks may use the result differently, so gradients are summed and scattered; with `replicated` all ranks use the
        result alike, and each takes its part of the common gradient. JAX: jax.lax.all_gather.

        Raises:
            MeshError: x that all ranks have alike.
            ShapeError: dim that is no axis of x.
        """
        return self._over(ALL_GATHER, x, axis, dim=dim, replicated=replicated)

    def reduce_scatter(self, x: R, /, *, axis: str, dim: int = 0) -> R:
        """The rank's part, along `dim`, of the sum of the ranks' x. PyTorch: torch.distributed.reduce_scatter.

        JAX: jax.lax.psum_scatter.

        Raises:
            DtypeError: x a mask.
            MeshError: x that all ranks have alike.
            ShapeError: dim that is no axis of x, or that the ranks cannot share equally.
        """
        return self._over(REDUCE_SCATTER, x, axis, dim=dim)

    def shard(self, x: R, /, *, axis: str, dim: int = 0) -> R:
        """The rank's part, along `dim`, of an x that is the same on all ranks; nothing is sent.

        Raises:
            MeshError: x that varies over the axis.
            ShapeError: dim that is no axis of x, or that the ranks cannot share equally.
        """
        return self._over(SHARD, x, axis, dim=dim)

    def all_to_all(self, x: R, /, *, axis: str, split: int, join: int) -> R:
        """Send part i of x along `split` to rank i, and join the received parts along `join`.

        PyTorch: torch.distributed.all_to_all. JAX: jax.lax.all_to_all.

        Raises:
            MeshError: x that all ranks have alike.
            ShapeError: split or join that is no axis of x, or a split that the ranks cannot share equally.
        """
        return self._over(ALL_TO_ALL, x, axis, split=split, join=join)

    def shift(self, x: R, /, *, axis: str, by: int = 1) -> R:
        """The x of the rank `by` positions before, around the ring.

        JAX: jax.lax.ppermute. MPI: MPI_Sendrecv.

        Raises:
            MeshError: x that all ranks have alike.
        """
        return self._over(SHIFT, x, axis, by=by)

    def axis_index(self, *, axis: str) -> R:
        """The rank's coordinate along the axis, an int64 scalar. PyTorch: torch.distributed.get_rank.

        JAX: jax.lax.axis_index.
        """
        size = self.mesh.size(axis)
        if size == 1:
            return self._call(FULL, (), {"shape": (), "value": 0, "dtype": "int64"})
        return self._call(AXIS_INDEX, (), {"axis": axis, "size": size})
