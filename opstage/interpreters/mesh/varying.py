"""`Varying`: tracks the mesh axes over which each ref varies, and inserts `vary` accordingly.

A result varies over the axes of its operands. An operand that does not vary over one of them is `vary`-ed first, once.
The transpose of `vary` is `all_reduce`: so the tape itself sums the gradient of a replicated parameter over ranks as
soon as it is complete, and data parallelism needs no further code. As pvary of JAX's shard_map.
"""

from __future__ import annotations

from typing import Any, final

from typing_extensions import override

from ...ops.catalogue.collective import ALL_MAX, ALL_REDUCE, AXIS_INDEX, SHARD, VARY
from ...ops.catalogue.layout import BROADCAST_TO
from ...ops.catalogue.normalization import BATCH_NORM, batch_norm_of_ranks
from ...ops.cursor import Quietly
from ...ops.dims import prod
from ...ops.errors import MeshError
from ...ops.functions.collective import all_mean
from ...ops.kinds import Effect, Kind
from ...ops.primitive import Primitive, Static
from ...ops.types import TensorType
from ..control import bodies_of
from ..interpreter import Holding, Interpreter, Wrapper
from .proof import collectives

NOWHERE: frozenset[str] = frozenset()


@final
class VaryingRef(Holding):
    """A ref, and the mesh axes over which it varies.

    first   axes over which it varies from its first use on: for a parameter, those of the batch, so that its gradient
            is summed at the parameter's size, not at the size of a broadcast
    grown   for a broadcast, its source and static parameters: the source is varied instead, for the same reason
    parts   of a parameter, by mesh axis and dim: a part that is used twice has one gradient, which is summed once
    """

    __slots__ = ("value", "ops", "axes", "first", "grown", "parts", "_known")

    def __init__(self, value: Any, ops: Varying, axes: frozenset[str] = NOWHERE, first: frozenset[str] = NOWHERE):
        self.value = value
        self.ops = ops
        self.axes = axes
        self.first = first
        self.grown: tuple[VaryingRef, Static] | None = None
        self.parts: dict[tuple[str, int], VaryingRef] = {}
        self._known: dict[frozenset[str], VaryingRef] = {}

    def over(self, axes: frozenset[str]) -> VaryingRef:
        """Return the ref varying over these axes too; cached."""
        missing = axes - self.axes
        if not missing:
            return self
        made = self._known.get(missing)
        if made is None:
            inner, value = self.ops.inner, self.value
            with Quietly(self.ops.cursor):
                if self.grown is not None:
                    source, static = self.grown
                    (value,) = inner.bind(BROADCAST_TO, (source.over(missing).value,), static)
                else:
                    for axis in sorted(missing):
                        value = inner.vary(value, axis=axis)
            made = self._known[missing] = VaryingRef(value, self.ops, self.axes | missing)
        return made


@final
class Varying(Wrapper[VaryingRef, Any]):
    """Inserts `vary` where needed, around the interpreter of a rank's program."""

    __slots__ = ("batch", "used_axes")
    ref_type = VaryingRef

    def __init__(self, inner: Interpreter[Any], batch: frozenset[str]):
        """`batch` are the axes over which batches are sharded; statistics of a batch are those of the whole batch."""
        super().__init__(inner, differentiates=False)
        self.batch = batch
        self.used_axes = set(batch)  # the mesh axes that the program uses

    @override
    def wrap(self, value: Any, /) -> VaryingRef:
        return VaryingRef(value, self)

    @override
    def vary_like(self, x: VaryingRef, like: VaryingRef, /) -> VaryingRef:
        return self.adopt(x).over(self._used(like).axes)

    def _used(self, ref: Any) -> VaryingRef:
        found = self.adopt(ref)
        return found.over(found.first) if found.first else found

    @override
    def bind(self, primitive: Primitive, refs: tuple[VaryingRef, ...], static: Static, /) -> tuple[VaryingRef, ...]:
        if primitive is SHARD and self.adopt(refs[0]).first:
            x, cut = self.adopt(refs[0]), (static["axis"], static["dim"])
            if cut not in x.parts:
                x.parts[cut] = self._part(x, static)
            return (x.parts[cut],)
        refs = tuple([self._used(ref) for ref in refs])
        if primitive.kind is Kind.COLLECTIVE:
            axes = self._after(primitive, refs, static)
        else:
            axes = NOWHERE.union(*[ref.axes for ref in refs])
            if axes and Effect.DRAWS in primitive.effects:
                return self._drawn(primitive, refs, axes, static)
            if primitive is BATCH_NORM and refs[0].axes & self.batch:
                return self._batch_norm(refs, static)
            refs = tuple([ref.over(axes) for ref in refs])
            for _, body in bodies_of(static):
                self.used_axes.update(e.static["axis"] for e in collectives(body))
        outs = self.inner.bind(primitive, tuple([ref.value for ref in refs]), static)
        results = tuple([VaryingRef(out, self, axes) for out in outs])
        if primitive is BROADCAST_TO:
            results[0].grown = refs[0], static
        return results

    def _part(self, x: VaryingRef, static: Static) -> VaryingRef:
        """Cut out the rank's part of a parameter before it varies, so that gradients are summed at the size of
        parts."""
        axes = self._after(SHARD, (x,), static)
        if static["axis"] in x.first:
            return self.bind(SHARD, (x.over(x.first),), static)[0]
        (out,) = self.inner.bind(SHARD, (x.value,), static)
        return VaryingRef(out, self, axes, x.first)

    def _after(self, primitive: Primitive, refs: tuple[VaryingRef, ...], static: Static) -> frozenset[str]:
        """Return the axes over which the result of a collective varies."""
        axis: str = static["axis"]
        self.used_axes.add(axis)
        if primitive is AXIS_INDEX:
            return frozenset({axis})
        (x,) = refs
        if primitive in (VARY, SHARD):
            if axis in x.axes:
                raise MeshError(
                    f"x varies over mesh axis {axis!r} already; {primitive} is for one that all ranks have alike",
                    op=primitive.name,
                    region=self.cursor.region.name,
                )
            return x.axes | {axis}
        if axis not in x.axes:
            more = f"; their sum would be {static['size']} times x" if primitive is ALL_REDUCE else ""
            raise MeshError(
                f"all ranks of mesh axis {axis!r} have the same x, so there is nothing to send{more}; use x as it is",
                op=primitive.name,
                region=self.cursor.region.name,
            )
        return x.axes - {axis} if primitive in (ALL_REDUCE, ALL_MAX) or static.get("replicated") else x.axes

    def _batch_norm(self, refs: tuple[VaryingRef, ...], static: Static) -> tuple[VaryingRef, ...]:
        """Compute batch_norm with the statistics of the batch of all ranks."""
        over = sorted(refs[0].axes & self.batch)
        ranks = prod([self.mesh.size(axis) for axis in over])
        x, *affine = [TensorType(ref.shape, ref.dtype) for ref in refs]
        self.infer(BATCH_NORM, (TensorType((x.shape[0] * ranks, *x.shape[1:]), x.dtype), *affine), static)

        def whole(mean: VaryingRef) -> VaryingRef:
            for axis in over:
                mean = all_mean(self, mean, axis=axis)
            return mean

        with Quietly(self.cursor):
            return batch_norm_of_ranks(self, *refs, **static, whole=whole, ranks=ranks)

    def _drawn(
        self, primitive: Primitive, refs: tuple[VaryingRef, ...], axes: frozenset[str], static: Static
    ) -> tuple[VaryingRef, ...]:
        """Draw once for all ranks and take the rank's rows, so that the numbers equal those of the whole batch on one
        rank."""
        inner = self.inner
        shape = static["shape"]
        if not shape:
            raise MeshError(
                "a scalar that is drawn for each rank has no rows to share out; draw a tensor of one row",
                op=primitive.name,
                region=self.cursor.region.name,
            )
        along = [axis for axis in self.mesh.names if axis in axes]
        rows = shape[0]
        for axis in along:
            rows = rows * self.mesh.size(axis)
        whole = {**static, "shape": (rows, *shape[1:])}
        drawn = inner.bind(primitive, tuple([ref.value for ref in refs]), whole)
        with Quietly(self.cursor):
            for axis in along:
                drawn = tuple([inner.shard(x, axis=axis) for x in drawn])
        return tuple([VaryingRef(x, self, axes) for x in drawn])
