"""`Varying`: tracks the mesh axes over which each ref varies, and inserts `vary` accordingly.

A result varies over the axes of its operands. An operand that does not vary over one of them is `vary`-ed first, once.
The transpose of `vary` is `all_reduce`, so the gradient of what all ranks have is summed over them. As pvary of JAX's
shard_map. The parameters of a training step vary before they come here, so that the step sums their gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import reduce
from typing import Any, TypeAlias, final

from typing_extensions import override

from ..ops.body import Body
from ..ops.collective import ALL_GATHER, ALL_MAX, ALL_REDUCE, AXIS_INDEX, SHARD, SHIFT, VARY, all_mean
from ..ops.dims import prod, ratio
from ..ops.dispatch import VARY_LIKE, Quietly
from ..ops.elementwise import DIV, SCALE
from ..ops.errors import MeshError
from ..ops.layout import BROADCAST_TO
from ..ops.normalization import BATCH_NORM, batch_norm_of_ranks
from ..ops.primitive import Kind, Primitive, Static
from ..ops.random import DRAWS
from ..ops.types import TensorType
from ..transforms.cond import SWITCH
from ..transforms.control_flow import equations_within, get_bodies
from ..transforms.interpreter import Holding, Interpreter, Wrapper
from ..transforms.scan import SCAN
from ..transforms.tracer import Tracer, constants, evaluate
from ..transforms.while_loop import WHILE
from .compiled_collectives import apart
from .nested_derivatives import jvp_of_ranks, vjp_of_ranks

NOWHERE: frozenset[str] = frozenset()

_Over: TypeAlias = "tuple[frozenset[str], frozenset[str]]"
"""The axes over which a tensor varies, and those of them over which it is a copy."""


@final
class VaryingRef(Holding):
    """A ref, and the mesh axes over which it varies.

    copied  those of its axes over which all ranks still have the same, since it was only varied, or gathered
    mean    those of them over which a sum is the mean, as `all_mean` takes it: x was divided by their size
    grown   for a broadcast, its source and static parameters: the source is varied instead, so that its gradient is
            summed at its own size
    parts   its parts by mesh axis and dim: a part that is used twice has one gradient, which is gathered once
    """

    __slots__ = ("value", "ops", "axes", "copied", "mean", "grown", "parts", "_known")

    def __init__(
        self,
        value: Any,
        ops: Varying,
        axes: frozenset[str] = NOWHERE,
        copied: frozenset[str] = NOWHERE,
    ):
        self.value = value
        self.ops = ops
        self.axes = axes
        self.copied = copied
        self.mean = NOWHERE
        self.grown: tuple[VaryingRef, Static] | None = None
        self.parts: dict[tuple[str, int | None], VaryingRef] = {}
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
            made = self._known[missing] = VaryingRef(value, self.ops, self.axes | missing, copied=self.copied | missing)
        return made


@final
class Varying(Wrapper[VaryingRef, Any]):
    """Inserts `vary` where needed, around the interpreter of a rank's program."""

    __slots__ = ("batch", "divided", "quotients", "used_axes", "_outer", "_adopted")
    ref_type = VaryingRef

    def __init__(self, inner: Interpreter[Any], batch: frozenset[str], outer: Varying | None = None):
        """`batch` are the axes over which batches are sharded; statistics of a batch are those of the whole batch.

        `outer` is the rule around a derivative within which this one is.
        """
        super().__init__(inner, differentiates=False)
        self.batch = batch
        self.quotients: frozenset[int] = frozenset()  # ordinals of divisions by what may be 0 on a rank: by 1 then
        self.divided = False  # whether there was one
        self.used_axes: set[str] = set(batch) if outer is None else outer.used_axes  # mesh axes that the program uses
        self._outer = outer
        self._adopted: dict[int, tuple[Any, VaryingRef]] = {}  # refs of outer ones

    def above(self, inner: Interpreter[Any]) -> Varying:
        """Return the rule around `inner`, in which a derivative of a program of this one is taken."""
        return Varying(inner, self.batch, self)

    def holding(self, value: Any, like: VaryingRef) -> VaryingRef:
        """Return a ref to a value that varies as `like` does."""
        made = VaryingRef(value, self, like.axes, like.copied)
        made.mean = like.mean
        return made

    @override
    def adopt(self, ref: Any, /) -> VaryingRef:
        if self._outer is None or type(ref) is not VaryingRef or ref.ops is self or self.closed is not None:
            return super().adopt(ref)
        known = self._adopted.get(id(ref))
        if known is None:
            own = self._outer.adopt(ref)
            known = self._adopted[id(ref)] = ref, self.holding(self.inner.adopt(own.value), own)
        return known[1]

    @override
    def close(self, reason: str) -> None:
        super().close(reason)
        self._adopted.clear()

    @override
    def vjp_of(self, f: Callable[..., Any], /, *refs: Any) -> tuple[Any, Callable[[Any], tuple[Any, ...]]]:
        return vjp_of_ranks(self, f, refs)

    @override
    def jvp_of(self, f: Callable[..., Any], refs: tuple[Any, ...], tangents: tuple[Any, ...], /) -> tuple[Any, Any]:
        return jvp_of_ranks(self, f, refs, tangents)

    @override
    def wrap(self, value: Any, /) -> VaryingRef:
        return VaryingRef(value, self)

    @override
    def vary_like(self, x: VaryingRef, like: VaryingRef, /) -> VaryingRef:
        found = self.adopt(like)
        return self.adopt(x).over(found.axes - found.copied)  # of what all ranks have alike, they draw the same

    @override
    def bind(self, primitive: Primitive, refs: tuple[VaryingRef, ...], static: Static, /) -> tuple[VaryingRef, ...]:
        refs = tuple([self.adopt(ref) for ref in refs])
        if primitive is VARY_LIKE:
            return (self.vary_like(*refs),)
        if primitive.kind is Kind.COLLECTIVE:
            cut = static["axis"], static.get("dim")
            if primitive is SHARD and cut in refs[0].parts:
                return (refs[0].parts[cut],)
            axes = self._result_axes(primitive, refs, static)
        else:
            axes = NOWHERE.union(*[ref.axes for ref in refs])
            if axes and primitive in DRAWS:
                return self._draw_rows(primitive, refs, axes, static)
            if primitive is DIV and self.cursor.ordinal in self.quotients:
                refs, self.divided = (refs[0], self.divisor(refs[1])), True
            if primitive is BATCH_NORM and refs[0].axes & self.batch:
                return self._batch_norm(refs, static)
            if _follows_axes(static):
                return self._with_bodies(primitive, refs, static)
            refs = tuple([ref.over(axes) for ref in refs])
        outs = self.inner.bind(primitive, tuple([ref.value for ref in refs]), static)
        copied = axes - NOWHERE.union(*[ref.axes - ref.copied for ref in refs]) - _split_axis(primitive, static)
        if primitive is ALL_GATHER and not static["replicated"]:
            copied |= {static["axis"]}
        results = tuple([VaryingRef(out, self, axes, copied=copied) for out in outs])
        if primitive is SCALE and copied:
            results[0].mean = frozenset([axis for axis in copied if _is_share(static["c"], self.mesh.size(axis))])
        if primitive is BROADCAST_TO:
            results[0].grown = refs[0], static
        if primitive is SHARD:
            refs[0].parts[cut] = results[0]
        return results

    def divisor(self, x: VaryingRef) -> VaryingRef:
        """x, or 1 where it is 0: a rank on which nothing counts keeps the sum that is divided, and its gradient."""
        with Quietly(self.cursor):
            nothing, one = (self.full(shape=x.shape, value=float(value), dtype=x.dtype) for value in (0, 1))
            return self.adopt(self.select(self.equal(x, nothing), one, x))

    def _with_bodies(
        self, primitive: Primitive, refs: tuple[VaryingRef, ...], static: Static
    ) -> tuple[VaryingRef, ...]:
        """Bind a loop, a branch or a user's op in whose bodies it matters what varies: each is traced again, below
        this rule.

        A carry varies wherever it does in any iteration, and a result wherever it does in any branch, hence the
        fixpoint. Captured floats are varied before the loop, so that their gradients are summed once; over an axis
        along which a body sends, only where they meet what varies.
        """
        bodies = dict(get_bodies(static))
        if _derives_over_ranks(static):
            raise MeshError(
                "its body takes a derivative of what ranks compute together, a collective or batch_norm, and what "
                "varies cannot be followed into that; take the derivative outside of it, or write the loop out",
                op=primitive.name,
                region=self.cursor.region.name,
            )
        sent = {e.static["axis"] for e in equations_within(static) if e.primitive.kind is Kind.COLLECTIVE}
        first = 1 if primitive is SWITCH else 0
        carries = static["carries"] if primitive is SCAN else len(bodies["body"].outputs) if primitive is WHILE else 0
        decided = refs[0].axes if first else NOWHERE
        given = [(ref.axes, ref.copied) for ref in refs]
        least: list[_Over] = given[:carries]
        made: dict[str, tuple[Body, list[_Over]]] = {}
        while True:
            begun = given, least, decided
            everywhere = decided | (NOWHERE.union(*[axes for axes, _ in given]) - sent)
            given = [
                _union(own, (everywhere, everywhere)) if r.dtype.kind in "fO" else own for r, own in zip(refs, given)
            ]
            try:
                for name, body in bodies.items():
                    made[name] = self._trace(body, given[first:], () if name == "test" else least)
            except MeshError:  # what ranks send each other may begin alike, such as a pipeline's zeros
                wider = _copy_over(refs[:carries], given, NOWHERE.union(*[axes for axes, _ in given]))
                if wider == given[:carries]:
                    raise
                given = [*wider, *given[carries:]]
                continue
            if primitive is WHILE:
                decided = decided | made["test"][1][0][0]
            outs = [
                reduce(_union, each, (decided, NOWHERE))
                for each in zip(*[outs for name, (_, outs) in made.items() if name != "test"])
            ]
            least = [_union(own, out) for own, out in zip(given, outs[:carries])]
            given = [*least, *given[carries:]]
            least = outs if first else least
            if (given, least, decided) == begun:
                break
        if decided & sent:
            raise apart(primitive, self.cursor.region.name)
        results = [*least, *outs[len(least) :]]
        changed = {name: body for name, (body, _) in made.items()}
        values = tuple([ref.over(axes).value for ref, (axes, _) in zip(refs, given)])
        found = self.inner.bind(primitive, values, {**static, **changed})
        return tuple(  # a tape may have it keep more
            [VaryingRef(out, self, axes, copied=copied) for out, (axes, copied) in zip(found, results)]
        )

    def _trace(self, body: Body, given: Sequence[_Over], least: Sequence[_Over]) -> tuple[Body, list[_Over]]:
        """Return a body for inputs that vary over these axes, its first results varied over at least those of `least`,
        and over which its results vary."""
        tracer = Tracer(self.inner, body.lines)
        within = Varying(tracer, self.batch)
        inputs = [tracer.input(type_) for type_ in body.input_types]
        refs = [VaryingRef(x, within, axes, copied=copied) for x, (axes, copied) in zip(inputs, given, strict=True)]
        outs = [within.adopt(out) for out in evaluate(within, body, refs, constants(within, body))]
        outs = [*[out.over(axes) for out, (axes, _) in zip(outs, least)], *outs[len(least) :]]
        self.used_axes |= within.used_axes
        return tracer.finish(inputs, [out.value for out in outs]), [(out.axes, out.copied) for out in outs]

    def _result_axes(self, primitive: Primitive, refs: tuple[VaryingRef, ...], static: Static) -> frozenset[str]:
        """Return the axes over which the result of a collective varies."""
        axis: str = static["axis"]
        self.used_axes.add(axis)
        if primitive is AXIS_INDEX:
            return frozenset({axis})
        (x,) = refs
        if primitive in (VARY, SHARD):
            if axis in x.axes:
                raise MeshError(
                    f"x varies over mesh axis {axis!r} already; {primitive} expects a replicated x",
                    op=primitive.name,
                    region=self.cursor.region.name,
                )
            return x.axes | {axis}
        adds = primitive not in (ALL_MAX, SHIFT) and axis in x.copied
        if axis not in x.axes or (adds and not (primitive is ALL_REDUCE and axis in x.mean)):
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

        def over_ranks(mean: VaryingRef) -> VaryingRef:
            for axis in over:
                mean = all_mean(self, mean, axis=axis)
            return mean

        def whole(mean: VaryingRef) -> VaryingRef:
            found = over_ranks(mean)
            exact = not isinstance(ranks, int) or ranks & (ranks - 1) == 0  # a mean of equal numbers is not rounded
            return found if exact else self.add(found, over_ranks(self.sub(mean, found)))

        with Quietly(self.cursor):
            return batch_norm_of_ranks(self, *refs, **static, whole=whole, ranks=ranks)

    def _draw_rows(
        self, primitive: Primitive, refs: tuple[VaryingRef, ...], axes: frozenset[str], static: Static
    ) -> tuple[VaryingRef, ...]:
        """Draw once for all ranks and take the rank's rows, so that the numbers equal those of the whole batch on one
        rank."""
        inner = self.inner
        shape = static["shape"]
        if not shape:
            raise MeshError(
                "a random scalar for each rank is not supported: its rows cannot be sharded. Draw a tensor of one row",
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


def _union(one: _Over, other: _Over) -> _Over:
    """Return over which axes a tensor varies that is either of two, and over which it is a copy all the same."""
    axes = one[0] | other[0]
    return axes, axes - (one[0] - one[1]) - (other[0] - other[1])


def _copy_over(refs: Sequence[VaryingRef], given: Sequence[_Over], over: frozenset[str]) -> list[_Over]:
    """Return what refs vary over if floats among them are copied over these axes too."""
    return [_union(own, (over, over)) if ref.dtype.kind in "fO" else own for ref, own in zip(refs, given)]


def _split_axis(primitive: Primitive, static: Static) -> frozenset[str]:
    """Return the axis along which a collective makes of what is alike what differs; a `vary` that a program asks for
    says that it shall count as such."""
    return frozenset({static["axis"]}) if primitive in (VARY, SHARD, AXIS_INDEX) else NOWHERE


def _is_share(c: Any, size: Any) -> bool:
    """Return whether c is 1/size."""
    share = ratio(1, size)
    return bool(c == share or c == float(share)) if isinstance(share, Fraction) else bool(c == share)


def _follows_axes(static: Static) -> bool:
    """Return whether over which axes a tensor varies makes a difference in bodies: they send, draw or normalize a
    batch."""
    return any(
        e.primitive.kind is Kind.COLLECTIVE or e.primitive in (BATCH_NORM, VARY_LIKE) or e.primitive in DRAWS
        for e in equations_within(static)
    )


def _derives_over_ranks(static: Static) -> bool:
    """Return whether a body takes a derivative and has ops of all ranks, which may be within it."""
    return any(
        any(e.backward for e in equations_within({"body": body}))
        and any(
            e.primitive.kind is Kind.COLLECTIVE or e.primitive is BATCH_NORM for e in equations_within({"body": body})
        )
        for _, body in get_bodies(static)
    )
