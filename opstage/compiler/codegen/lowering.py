"""A body's equations in the forms that generated kernels support.

Layout ops become views, operands of products have a unit stride, and a concatenation is a block of memory whose parts
are written in place. Reductions become row reductions, over trailing axes, or column sums, over leading axes; the axis
order in which their operands are computed follows from that."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple, final

import numpy as np

from ...ops.body import Body, Equation
from ...ops.dispatch import Region
from ...ops.host_arrays import Array
from ...ops.indexing import GATHER_ROW, GATHER_ROWS, GATHER_SCALAR, GATHER_VEC
from ...ops.layout import BROADCAST_TO, PERMUTE, RESHAPE
from ...ops.logic import CAST, DETACH, FULL, IOTA
from ...ops.primitive import Primitive
from ...ops.reduction import REDUCE_MAX, REDUCE_SUM
from ...ops.slicing import CONCAT, PAD, SLICE
from ...ops.types import TensorType
from . import views
from .formulas import ASSEMBLE, COLUMN_SUM, CONTIGUOUS, INDEX_CHECK, PRODUCTS, ROW_MAX, ROW_SUM, elementwise
from .views import View, batch_axes, leading_dimension, whole

# Targets --------------------------------------------------------------------------------------------------------------


class Target(NamedTuple):
    """The differences between targets in a body's lowered form.

    by_hand         ops with hand-written kernels that require packed operands
    strided         whether all other ops without a formula accept any strides; if not, they get packed operands
    batch_axes      the largest number of batch axes of a matrix product
    both_sums       whether one loop can sum both along rows and over rows
    few_rows        the number of rows up to which workers are idle
    counts          whether kernels compute 0, 1, 2, … instead of reading them
    turns           whether a loop may iterate in another order than memory, so that a reduction over an inner axis
                    becomes a row reduction
    broken_rows     whether the elements of a row may have several strides
    joins_rows      whether a loop over elements may also compute values of its rows, before or after
    anywhere        whether results have the same bits wherever the memory of a tensor begins, so that it may be a
                    part of another's memory
    """

    by_hand: frozenset[Primitive]
    strided: bool
    batch_axes: int
    both_sums: bool
    few_rows: int
    counts: bool
    turns: bool
    broken_rows: bool
    joins_rows: bool
    anywhere: bool


# Lowering -------------------------------------------------------------------------------------------------------------

_NOWHERE = Equation(CONTIGUOUS, {}, (), (), Region(), 0)


class Part(NamedTuple):
    """The location of a slot in the memory of another one."""

    whole: int
    offset: int
    strides: tuple[int, ...]


@final
class Lowered:
    """A lowered body: its equations in the forms that a target's kernels support.

    views       of every slot that is read; its root is an input, a constant or an output of an equation
    literals    slots with one repeated number
    constants   the arrays of known slots
    counted     constants that hold 0, 1, 2, …, which kernels compute instead of reading
    parts       slots without memory of their own
    orders      the axis order in which elements are computed, if not that of the shape, see `row_orders`
    """

    def __init__(self, body: Body, target: Target, *, own_outputs: bool = False):
        self.body = body
        self.target = target
        self.types: list[TensorType] = list(body.types)
        self.equations: list[Equation] = []
        self.views: dict[int, View] = {}
        self.literals: dict[int, Any] = {}
        self.constants: dict[int, Array] = {}
        self.counted: set[int] = set()
        self.parts: dict[int, Part] = {}
        self.orders = row_orders(body) if target.turns else {}
        self._transposed: set[int] = set()  # roots whose elements are made in another order than that of their tensor
        self._materialised: dict[int, int] = {}
        self._maker: dict[int, Equation] = {}
        self._read: set[int] = set()  # roots that equations or views read
        for slot in body.inputs:
            self._own(slot)
        for constant in body.constants:
            self._constant(constant.slot, constant.value)
        for equation in body.equations:
            self._equation(equation)
        self.outputs = self._own_outputs() if own_outputs else [self._output(slot) for slot in body.outputs]

    def in_memory(self, view: View) -> View:
        """Return the same elements as a view of a root that has its own memory: a part becomes a view of its whole."""
        part = self.parts.get(view.root)
        while part is not None:  # a view of a part already has strides of the whole
            view = View(part.whole, part.offset + view.offset, view.shape, view.strides)
            part = self.parts.get(part.whole)
        return view

    # Slots ----------------------------------------------------------------------------------------------------------

    def shape(self, slot: int) -> tuple[int, ...]:
        """Return the shape of a slot as numbers."""
        shape: Any = self.types[slot].shape
        return tuple(shape)

    def _own(self, slot: int) -> int:
        self.views[slot] = whole(slot, self.shape(slot))
        return slot

    def fresh(self, shape: Sequence[int], like: TensorType) -> int:
        """Return a new slot with its own memory, with the dtype of `like`."""
        self.types.append(TensorType(tuple(shape), like.dtype))
        return self._own(len(self.types) - 1)

    def seen(self, view: View, like: TensorType) -> int:
        """Return a new slot for a view."""
        self.types.append(TensorType(view.shape, like.dtype))
        self.views[len(self.types) - 1] = view
        return len(self.types) - 1

    def _constant(self, slot: int, value: Array) -> None:
        self._own(slot)
        self.constants[slot] = value
        if value.size == 1 and value.dtype.kind in "fib":
            self.literals[slot] = value.reshape(()).item()

    def emit(self, primitive: Primitive, inputs: Sequence[int], out: int, of: Equation, **static: Any) -> int:
        """Append an equation that computes `out` as a part of the equation `of`; return `out`."""
        self._append(
            of._replace(primitive=primitive, static=static, inputs=tuple(inputs), outputs=(out,), opened=False)
        )
        return out

    def _append(self, e: Equation) -> None:
        self.equations.append(e)
        for slot in e.outputs:
            self._maker[slot] = e
        for slot in e.inputs:
            self._read.add(self.views[slot].root)

    def contiguous(self, slot: int, of: Equation) -> int:
        """Return a slot of the same value with packed strides."""
        view = self.views[slot]
        if slot not in self.literals and view.contiguous:
            return slot
        copy = self._materialised.get(slot)
        if copy is None:
            copy = self._materialised[slot] = self._packed_copy(slot, of)
        return copy

    def _packed_copy(self, slot: int, of: Equation) -> int:
        """Copy to row-major order, writing in the order in which the elements are computed."""
        view, copy = self.views[slot], self.fresh(self.shape(slot), self.types[slot])
        if slot in self.literals or view.root not in self._transposed:
            return self.emit(CONTIGUOUS, (slot,), copy, of)
        order = tuple(sorted(range(len(view.shape)), key=lambda axis: -view.strides[axis]))
        lies = views.permute(self.views[copy], order)
        part = self.fresh(lies.shape, self.types[slot])
        self.parts[part] = Part(copy, 0, lies.strides)
        self.views[part] = lies._replace(root=part)
        self.emit(CONTIGUOUS, (self.seen(views.permute(view, order), self.types[slot]),), part, of)
        return self.emit(ASSEMBLE, (part,), copy, of)

    def _output(self, slot: int) -> int:
        return slot if slot in self.literals or self._is_whole(slot) else self._copied(slot)

    def _is_whole(self, slot: int) -> bool:
        """Return whether it covers all of a root's memory, in order."""
        view = self.views[slot]
        root_size = math.prod(self.shape(view.root))
        return view.contiguous and view.size == root_size and view.root not in self.parts

    def _own_outputs(self) -> list[int]:
        outputs: list[int] = []
        taken: set[int] = set()
        for slot in self.body.outputs:
            root = self.views[slot].root
            made = slot not in self.literals and root in self._maker and root not in taken and self._is_whole(slot)
            taken.add(root)
            outputs.append(slot if made else self._copied(slot))
        return outputs

    def _copied(self, slot: int) -> int:
        of = self.body.equations[-1] if self.body.equations else _NOWHERE
        return self._packed_copy(slot, of)

    # Equations ------------------------------------------------------------------------------------------------------

    def _equation(self, e: Equation) -> None:
        ins = [self.types[slot] for slot in e.inputs]
        outs = [self.types[slot] for slot in e.outputs]
        primitive = e.primitive
        if _is_odd(ins) or _is_odd(outs):
            self._unaided(e)
        elif primitive is FULL:
            self._own(e.outputs[0])
            self.literals[e.outputs[0]] = e.static["value"]
        elif primitive is IOTA:
            self._iota(e)
        elif (primitive in _LAYOUT or (primitive is CAST and ins == outs)) and self._layout(e):
            pass
        elif primitive is CONCAT:
            self._concat(e)
        elif primitive in (REDUCE_SUM, REDUCE_MAX) and reduce(self, e):
            pass
        elif primitive in PRODUCTS and ins[0].dtype.kind == "f":
            self._product(e)
        elif (
            primitive in (GATHER_ROWS, GATHER_VEC)
            and len(ins[0].shape) == 1
            and e.inputs[0] in self.literals
            and e.static["mode"] == "raise"
        ):
            # cross_entropy gathers from ones only to check the labels
            self._own(e.outputs[0])
            self.emit(INDEX_CHECK, (e.inputs[1], e.inputs[0]), e.outputs[0], e, size=self.shape(e.inputs[0])[0])
        elif len(outs) == 1 and elementwise(primitive, tuple(ins), outs[0]):
            self._pointwise(e)
        elif primitive in self.target.by_hand:
            self._packed(e)
        elif primitive is PAD and not any(e.static["interior"]) and min(map(min, e.static["padding"])) >= 0:
            self._pad(e)
        else:
            self._unaided(e)

    def _pointwise(self, e: Equation) -> None:
        (out,) = e.outputs
        order = self.orders.get(tensor_place(e, self.shape(out))) if self.orders else None
        if order is None:
            self._own(out)
            if self._transposed:
                made_elsewhere = [
                    s for s in e.inputs if s not in self.literals and self.views[s].root in self._transposed
                ]
                packed = {slot: self.contiguous(slot, e) for slot in made_elsewhere}
                e = e._replace(inputs=tuple([packed.get(slot, slot) for slot in e.inputs]))
            self._append(e)
            return
        inputs = []
        for slot in e.inputs:
            transposed = None if slot in self.literals else views.permute(self.views[slot], order)
            inputs.append(slot if transposed is None else self.seen(transposed, self.types[slot]))
        made = self.fresh([self.shape(out)[axis] for axis in order], self.types[out])
        self._transposed.add(made)
        self._append(e._replace(inputs=tuple(inputs), outputs=(made,)))
        self.views[out] = views.permute(self.views[made], tuple(np.argsort(order).tolist()))

    def _pad(self, e: Equation) -> None:
        """Lower padding to concatenations, one axis at a time."""
        (x,), (out,), static = e.inputs, e.outputs, e.static
        like = self.types[x]
        widths = [(a, n) for a, n in enumerate(static["padding"]) if n != (0, 0)]
        for i, (axis, (before, after)) in enumerate(widths):
            shape = self.shape(x)
            pieces = []
            for n in (before, after):
                piece = self.fresh((*shape[:axis], n, *shape[axis + 1 :]), like)
                self.literals[piece] = static["value"]
                pieces.append(piece)
            joined = [s for s in (pieces[0], x, pieces[1]) if 0 not in self.shape(s)]
            total = shape[axis] + before + after
            made = out if i == len(widths) - 1 else self.fresh((*shape[:axis], total, *shape[axis + 1 :]), like)
            self._concat(e._replace(inputs=tuple(joined), outputs=(made,), static={"axis": axis}))
            x = made
        if not widths:
            self.views[out] = self.views[x]

    def _unaided(self, e: Equation) -> None:
        """Lower an op for which no kernel is generated."""
        if not self.target.strided:
            return self._packed(e)
        for slot in e.outputs:
            self._own(slot)
        self._append(e)

    def _packed(self, e: Equation) -> None:
        """Append an op with packed operands. Empty operands are not copied."""
        inputs = tuple([self.contiguous(slot, e) if self.views[slot].size else slot for slot in e.inputs])
        for slot in e.outputs:
            self._own(slot)
        self._append(e._replace(inputs=inputs))

    def _iota(self, e: Equation) -> None:
        (out,), axis = e.outputs, e.static["axis"]
        shape, dtype = self.shape(out), self.types[out].dtype
        if not shape:
            self.literals[out] = 0
            self._own(out)
            return
        counted = np.arange(shape[axis], dtype=dtype)
        slot = self.fresh(counted.shape, self.types[out])
        self.constants[slot] = counted
        if self.target.counts:
            self.counted.add(slot)
        strides = tuple(int(a == axis) if n > 1 else 0 for a, n in enumerate(shape))
        self.views[out] = View(slot, 0, shape, strides)

    def _layout(self, e: Equation) -> bool:
        (x, *_), (out,), static = e.inputs, e.outputs, e.static
        shape, view = self.shape(out), self.views[x]
        if x in self.literals:
            self.literals[out] = self.literals[x]
            self._own(out)
            return True
        primitive = e.primitive
        found: View | None
        if primitive is BROADCAST_TO:
            found = views.broadcast(view, shape)
        elif primitive is PERMUTE:
            found = views.permute(view, static["axes"])
        elif primitive is SLICE:
            found = views.cut(view, static["axis"], static["start"], static["length"], static["step"])
        elif primitive in (GATHER_ROW, GATHER_SCALAR):
            if not 0 <= static["index"] < view.shape[0]:
                return False
            found = views.without(view, 0, static["index"])
        elif primitive in (DETACH, CAST):
            found = view
        else:
            found = views.reshape(view, shape)
            if found is None:
                found = views.reshape(self.views[self.contiguous(x, e)], shape)
        assert found is not None
        self.views[out] = found
        self._read.add(found.root)
        return True

    def _concat(self, e: Equation) -> None:
        (out,), axis = e.outputs, e.static["axis"]
        self._own(out)
        strides, start, parts = views.packed(self.shape(out)), 0, []
        used: set[int] = set()
        for slot in e.inputs:
            length = self.shape(slot)[axis]
            view = self.views[slot]
            produced = view.root == slot and slot not in self.parts and slot not in used and self._writable(slot)
            part = (
                slot if produced else self.emit(CONTIGUOUS, (slot,), self.fresh(self.shape(slot), self.types[slot]), e)
            )
            used.add(part)
            offset = start * strides[axis]
            self.parts[part] = Part(out, offset, strides)
            self.views[part] = View(part, 0, self.shape(part), strides)
            parts.append(part)
            start += length
        self.emit(ASSEMBLE, parts, out, e)

    def _writable(self, slot: int) -> bool:
        """Return whether the equation that computes `slot` can write with any strides, and nothing has read the slot
        yet."""
        maker = self._maker.get(slot)
        return (
            maker is not None
            and elementwise(maker.primitive, (), self.types[slot])
            and slot not in self._read
            and slot not in self.body.outputs
        )

    def _product(self, e: Equation) -> None:
        a, b = (self._matrix(slot, e) for slot in e.inputs)
        axes = batch_axes(self.views[a], self.views[b])
        if len(axes) > self.target.batch_axes:
            a, b = self.contiguous(a, e), self.contiguous(b, e)
        (out,) = e.outputs
        self._own(out)
        self._append(e._replace(inputs=(a, b)))

    def _matrix(self, slot: int, e: Equation) -> int:
        if slot in self.literals or leading_dimension(self.views[slot]) is None:
            return self.contiguous(slot, e)
        return slot


def _is_odd(types: Sequence[TensorType]) -> bool:
    """Return whether a tensor is empty or has fractions."""
    return any(0 in type_.shape or type_.dtype.kind == "O" for type_ in types)


_LAYOUT = frozenset({BROADCAST_TO, RESHAPE, PERMUTE, SLICE, GATHER_ROW, GATHER_SCALAR, DETACH})
"""Ops that become views; the other layout ops were expanded."""


# Reductions -----------------------------------------------------------------------------------------------------------

_LONG = 1 << 14
"""The length from which on a sum is split into sums of parts, for several workers, unless there are many such sums."""

Place = tuple[int, bool, tuple[int, ...]]
"""A tensor's place in a program: the op it belongs to, whether it is in the backward pass, and its shape."""

_MANY_COLUMNS = 1 << 15
"""The number of columns that occupies a GPU with a thread for each column."""


def tensor_place(e: Equation, shape: tuple[int, ...]) -> Place:
    """Return the place of a tensor of that shape, which an equation reads or writes."""
    return e.ordinal, bool(e.backward), shape


def row_orders(body: Body) -> dict[Place, tuple[int, ...]]:
    """Return the axis orders, with reduced axes last, for tensors that an op's parts always reduce along the same,
    non-trailing axes. Sums over leading axes with few columns are excluded; these are split into parts."""
    found: dict[Place, set[tuple[int, ...]]] = {}
    greatest: set[Place] = set()
    for e in body.equations:
        if e.primitive in (REDUCE_SUM, REDUCE_MAX):
            shape: Any = body.types[e.inputs[0]].shape
            place = tensor_place(e, tuple(shape))
            axes = tuple([a for a in e.static["axes"] if shape[a] > 1])
            if axes:
                found.setdefault(place, set()).add(axes)
            if e.primitive is REDUCE_MAX:
                greatest.add(place)
    orders = {}
    for place, every in found.items():
        (axes, *others), (*_, shape) = every, place
        kept = tuple([a for a in range(len(shape)) if a not in axes])
        left = [a for a in kept if shape[a] > 1]
        if others or not left or left[-1] < axes[-1]:
            continue
        columns = place not in greatest and left[0] > axes[-1]
        if not columns or math.prod([shape[a] for a in left]) >= _MANY_COLUMNS:
            orders[place] = (*kept, *axes)
    return orders


def reduce(lowered: Lowered, e: Equation) -> bool:
    """Lower a sum or maximum along axes to row reductions or column sums; return False if kernels do not support it."""
    (x,), (out,) = e.inputs, e.outputs
    if x in lowered.literals:
        x = lowered.contiguous(x, e)
    kind, dtype = e.primitive, lowered.types[out].dtype
    if dtype.kind != "f":
        return False  # integers are summed in int64, on the host
    view = lowered.views[x]
    axes = [a for a in e.static["axes"] if view.shape[a] > 1]
    if not axes:
        kept_all = views.reshape(view, lowered.shape(out))  # only axes of size 1 are removed
        assert kept_all is not None
        lowered.views[out] = kept_all
        return True
    rank = len(view.shape)
    trailing = rank
    while trailing - 1 in axes or (trailing > 0 and view.shape[trailing - 1] == 1):
        trailing -= 1
    kept = [a for a in range(rank) if a not in axes]
    if trailing < rank and any(a >= trailing for a in axes):
        inner = range(trailing, rank)
        x = _trailing(lowered, x, kind, math.prod(view.shape[a] for a in inner), view.shape[:trailing], e)
        view = lowered.views[x]
        axes = [a for a in axes if a < trailing]
        kept = [a for a in kept if a < trailing]
    if axes:
        rows = kind is REDUCE_MAX or tensor_place(e, lowered.shape(e.inputs[0])) in lowered.orders
        leading = not rows and all(a < min((k for k in kept if view.shape[k] > 1), default=0) for a in axes)
        if leading:
            extent = math.prod(view.shape[a] for a in kept)
            total = lowered.fresh((extent,), lowered.types[x])
            x = _rows_of_one_stride(lowered, x, extent, e)
            x = lowered.emit(COLUMN_SUM, (x,), total, e, extent=extent)
        else:
            moved = lowered.seen(views.permute(view, (*kept, *axes)), lowered.types[x])
            extent = math.prod(view.shape[a] for a in axes)
            x = _trailing(lowered, moved, kind, extent, tuple(view.shape[a] for a in kept), e)
    result = views.reshape(lowered.views[x], lowered.shape(out))
    assert result is not None
    lowered.views[out] = result
    return True


def _rows_of_one_stride(lowered: Lowered, x: int, extent: int, e: Equation) -> int:
    """Return x, or a copy, such that each run of `extent` elements has one stride."""
    view = lowered.views[x]
    axes = views.merged(view.shape, view.strides)
    cuts = views.chain(views.borders(view.shape, view.strides), (1, extent))
    if cuts is not None:
        strides = views.split(axes, cuts[:-1]) or []
        inner = [c for c in cuts if c < extent]
        sizes = tuple(b // a for a, b in pairwise([*inner, extent]))[::-1]
        if len(views.merged(sizes, tuple(strides[len(strides) - len(inner) :]))) <= 1:
            return x
    return lowered.contiguous(x, e)


def _trailing(lowered: Lowered, x: int, kind: Primitive, extent: int, rows: tuple[int, ...], e: Equation) -> int:
    """Return x (*rows, …) reduced over its last `extent` elements."""
    x = _rows_of_one_stride(lowered, x, extent, e)
    primitive = ROW_SUM if kind is REDUCE_SUM else ROW_MAX
    count = math.prod(rows)
    if count <= lowered.target.few_rows and extent > _LONG:
        part = max(d for d in range(1, math.isqrt(extent) + 1) if extent % d == 0)
        cut = views.reshape(lowered.views[x], (count, part, extent // part)) if part >= 8 else None
        if cut is not None:
            partial = lowered.fresh((count, part), lowered.types[x])
            x = lowered.emit(primitive, (lowered.seen(cut, lowered.types[x]),), partial, e, extent=extent // part)
            extent = part
    total = lowered.fresh((count,), lowered.types[x])
    lowered.emit(primitive, (x,), total, e, extent=extent)
    return lowered.seen(whole(total, rows)._replace(shape=rows), lowered.types[x])
