"""Reverse mode over any interpreter.

The tape computes with the interpreter that it wraps and stores, for each op that a wanted gradient passes through, a
`Record`: the values that the op's vjp reads, and where its cotangents go. Records refer to records, not values, so an
intermediate result stays alive only if some rule reads it, and an unused branch is freed at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Generic, TypeAlias, final

from typing_extensions import override

from ..ops.dims import Dim, Verdict, at_most, is_zero
from ..ops.dispatch import RULE, Quietly, Region
from ..ops.elementwise import ADD
from ..ops.errors import ProgramError
from ..ops.primitive import NO_STATIC, Context, Kind, Primitive, R, Static
from ..ops.slicing import SLICE
from ..ops.types import DType, Shape, TensorType
from .interpreter import Holding, Interpreter, Wrapper


@final
class Record(Generic[R]):
    """One op on the tape, or a leaf (primitive None). It is the context passed to the op's vjp rule."""

    __slots__ = (
        "serial",
        "primitive",
        "static",
        "sources",
        "slots",
        "needs",
        "saved",
        "constants",
        "shape",
        "dtype",
        "further",
        "region",
        "ordinal",
        "arrived",
        "mark",
    )
    # Every object that a record holds, and that can hold others, is one more for the garbage collector to walk. So the
    # types of operands are read from the records that made them, and tuples that many records need are shared.

    serial: int
    primitive: Primitive | None
    static: Static
    sources: Record[R] | Sources[R]  # what made the operands; the record itself where there is one operand
    slots: tuple[int, ...]  # which output of that record the operand is
    needs: tuple[bool, ...]
    saved: tuple[Any, ...]  # aligned with the primitive's saves; None for what no wanted cotangent reads
    constants: tuple[Any, ...]  # shape, dtype, shape, dtype, … of the operands that no record made
    shape: Shape  # of the first output
    dtype: DType
    further: tuple[Any, ...]  # shape, dtype, … of the other outputs and residuals
    region: Region
    ordinal: int
    arrived: list[R | None] | None  # during a backward pass: the cotangents of the outputs so far
    mark: object  # the backward pass that reached it last

    @property
    def parents(self) -> Sources[R]:
        """Return the record that made each operand; None where no gradient is wanted."""
        sources = self.sources
        return (sources,) if isinstance(sources, Record) else sources

    @property
    def inputs(self) -> tuple[TensorType, ...]:
        """Return the types of all operands present."""
        sources = self.sources
        if isinstance(sources, Record):
            return (sources.output(self.slots[0]),)
        constants = iter(_types(self.constants))
        return tuple([next(constants) if p is None else p.output(slot) for p, slot in zip(sources, self.slots)])

    def forget(self) -> None:
        """Drop the values saved for the backward pass, after which none can go through this op."""
        self.saved = self.sources = ()
        self.primitive = CONSUMED

    def output(self, slot: int) -> TensorType:
        """Return the type of one output or residual."""
        if not slot:
            return TensorType(self.shape, self.dtype)
        return TensorType(self.further[2 * slot - 2], self.further[2 * slot - 1])

    @property
    def outputs(self) -> tuple[TensorType, ...]:
        """Return the types of all outputs and residuals."""
        return (TensorType(self.shape, self.dtype), *_types(self.further))


Sources: TypeAlias = tuple[Record[R] | None, ...]


def _types(flat: tuple[Any, ...]) -> list[TensorType]:
    return [TensorType(flat[i], flat[i + 1]) for i in range(0, len(flat), 2)]


def _consumed(*_: Any, **__: Any) -> Any:
    raise ProgramError("this part of the tape was consumed by an earlier backward pass; run the program again")


CONSUMED = Primitive("consumed", operands=(), shape=_consumed, vjp=_consumed)
"""The op of a record whose residuals are gone."""


class Node(Holding, Generic[R]):
    """A ref of the tape: a value of the inner interpreter and the record that made it (None for a constant)."""

    __slots__ = ("value", "ops", "record", "slot")

    def __init__(self, value: R, ops: Tape[R], record: Record[R] | None = None, slot: int = 0):
        self.value = value
        self.ops = ops
        self.record = record
        self.slot = slot


_RECORD, _VALUE, _SLOT = attrgetter("record"), attrgetter("value"), attrgetter("slot")
_NEEDS_1 = (True,)
_NEEDS_BOTH, _NEEDS_LEFT, _NEEDS_RIGHT = (True, True), (True, False), (False, True)
_SLOTS_1, _SLOTS_2 = (0,), (0, 0)


class Tape(Wrapper[Node[R], R]):
    """Reverse mode. `leaf` makes a ref whose gradient is wanted; `pull` propagates cotangents back to leaves."""

    __slots__ = ("_serial", "_shapes")
    ref_type = Node

    def __init__(self, inner: Interpreter[R]):
        super().__init__(inner, differentiates=True)
        self._serial = 0
        self._shapes: dict[Shape, Shape] = {}  # each shape once, because NumPy makes a new tuple whenever it is asked

    @override
    def wrap(self, value: R, /) -> Node[R]:
        return self.ref_type(value, self)

    def leaf(self, value: R, /) -> Node[R]:
        """Return a ref whose gradient is wanted; integers and masks have none and become constants."""
        if value.dtype.kind not in "fO":
            return self.ref_type(value, self)
        record: Record[R] = Record()
        record.arrived = record.mark = None
        record.primitive = None
        record.sources = record.further = ()
        shape = value.shape
        record.shape = self._shapes.setdefault(shape, shape)
        record.dtype = value.dtype
        self._serial = record.serial = self._serial + 1
        return self.ref_type(value, self, record)

    # Forward --------------------------------------------------------------------------------------------------------
    # bind1 and bind2 are bind, written out for the ops of which small programs consist.

    @override
    def bind1(self, primitive: Primitive, x: Node[R], /) -> Node[R]:
        node = self.ref_type
        if type(x) is not node or x.ops is not self or self.closed:
            x = self.adopt(x)
        parent = x.record
        if parent is None or not primitive.differentiable:
            return node(self.inner.bind1(primitive, x.value), self)
        value = x.value
        recorded = primitive
        if primitive.expandable and (self.inner.differentiates or primitive.vjp is None):
            whole = self._whole(primitive, (value,), _NEEDS_1, NO_STATIC)
            if whole is None:
                return self.decompose(primitive, (x,), NO_STATIC)[0]
            recorded = whole
        out = self.inner.bind1(primitive, value)
        record: Record[R] = Record()
        record.arrived = record.mark = None
        record.primitive = recorded
        record.static = NO_STATIC
        record.sources = parent
        slot = x.slot
        record.slots = (slot,) if slot else _SLOTS_1
        record.needs = _NEEDS_1
        record.constants = record.further = ()
        shape = out.shape
        record.shape = self._shapes.setdefault(shape, shape)
        record.dtype = out.dtype
        positions = recorded.saved_memo.get(_NEEDS_1)
        if positions is None:
            positions = recorded.saved_positions(_NEEDS_1, NO_STATIC)
        record.saved = tuple([value if i == 0 else out for i in positions])
        cursor = self.cursor
        record.region = cursor.region
        record.ordinal = cursor.ordinal
        self._serial = record.serial = self._serial + 1
        return node(out, self, record)

    @override
    def bind2(self, primitive: Primitive, x: Node[R], y: Node[R], /) -> Node[R]:
        node = self.ref_type
        if type(x) is not node or x.ops is not self or self.closed:
            x = self.adopt(x)
        if type(y) is not node or y.ops is not self:
            y = self.adopt(y)
        px, py = x.record, y.record
        if (px is None and py is None) or not primitive.differentiable:
            return node(self.inner.bind2(primitive, x.value, y.value), self)
        if primitive.expandable and (self.inner.differentiates or primitive.vjp is None):
            return self.decompose(primitive, (x, y), NO_STATIC)[0]
        a, b = x.value, y.value
        out = self.inner.bind2(primitive, a, b)
        record: Record[R] = Record()
        record.arrived = record.mark = None
        record.primitive = primitive
        record.static = NO_STATIC
        record.sources = (px, py)
        record.slots = (x.slot, y.slot) if x.slot or y.slot else _SLOTS_2
        if px is None:
            record.needs = needs = _NEEDS_RIGHT
            record.constants = (a.shape, a.dtype)
        elif py is None:
            record.needs = needs = _NEEDS_LEFT
            record.constants = (b.shape, b.dtype)
        else:
            record.needs = needs = _NEEDS_BOTH
            record.constants = ()
        shape = out.shape
        record.shape = self._shapes.setdefault(shape, shape)
        record.dtype = out.dtype
        record.further = ()
        positions = primitive.saved_memo.get(needs)
        if positions is None:
            positions = primitive.saved_positions(needs, NO_STATIC)
        record.saved = tuple([a if i == 0 else b if i == 1 else out if i == 2 else None for i in positions])
        cursor = self.cursor
        record.region = cursor.region
        record.ordinal = cursor.ordinal
        self._serial = record.serial = self._serial + 1
        return node(out, self, record)

    @override
    def bind(self, primitive: Primitive, refs: tuple[Node[R], ...], static: Static, /) -> tuple[Node[R], ...]:
        node = self.ref_type
        if self.closed:
            raise ProgramError(self.closed)
        refs = tuple([r if type(r) is node and r.ops is self else self.adopt(r) for r in refs])
        parents = tuple(map(_RECORD, refs))
        values = tuple(map(_VALUE, refs))
        needs = tuple([p is not None for p in parents])
        if not primitive.differentiable or True not in needs:
            return tuple([node(v, self) for v in self.inner.bind(primitive, values, static)])
        recorded = primitive
        if primitive.expandable and (self.inner.differentiates or primitive.vjp is None):
            whole = self._whole(primitive, values, needs, static)
            if whole is None:
                return self.decompose(primitive, refs, static)
            recorded = whole
        if primitive.keeps_more:
            with Quietly(self.cursor):
                static = primitive.keeping(self.inner, needs, static)
        outs = self.inner.bind(primitive, values, static)
        if primitive.residuals and self.inner.differentiates:
            primitive.require_closed(outs[len(primitive.outputs) :])
        every = values + outs
        record: Record[R] = Record()
        record.arrived = record.mark = None
        record.primitive = recorded
        record.static = static
        record.sources = parents
        record.slots = tuple(map(_SLOT, refs))
        record.needs = needs
        if False in needs:
            record.constants = tuple([t for v, p in zip(values, parents) if p is None for t in (v.shape, v.dtype)])
        else:
            record.constants = ()
        out = outs[0]
        shape = out.shape
        record.shape = self._shapes.setdefault(shape, shape)
        record.dtype = out.dtype
        record.further = () if len(outs) == 1 else tuple([t for v in outs[1:] for t in (v.shape, v.dtype)])
        record.saved = tuple([every[i] if i >= 0 else None for i in recorded.saved_positions(needs, static)])
        cursor = self.cursor
        record.region = cursor.region
        record.ordinal = cursor.ordinal
        self._serial = record.serial = self._serial + 1
        if len(outs) == 1:
            return (node(out, self, record if out.dtype.kind in "fO" else None),)
        return tuple([node(v, self, record if v.dtype.kind in "fO" else None, i) for i, v in enumerate(outs)])

    def _whole(
        self, primitive: Primitive, values: tuple[R, ...], needs: tuple[bool, ...], static: Static
    ) -> Primitive | None:
        """Return the primitive to record for a composite without rules; None where the composite is to be expanded."""
        if primitive.kind is not Kind.POINTWISE or self.inner.differentiates or not self.inner.fuses:
            return None
        from .fused_call import whole

        return whole(self.inner, primitive, [TensorType(v.shape, v.dtype) for v in values], needs, static)

    def saved(self, outputs: Sequence[Node[R]]) -> list[R]:
        """Return the values saved by the ops on which the outputs depend."""
        reached = _reached(list({ref.record: None for ref in outputs if ref.record is not None}))
        ops = [record for record in reached if record.primitive is not None]
        return [value for record in ops for value in record.saved if value is not None]

    # Backward -------------------------------------------------------------------------------------------------------

    def pull(
        self, outputs: Sequence[Node[R]], cotangents: Sequence[R | None], wrt: Sequence[Node[R]], *, keep: bool = True
    ) -> list[R | None]:
        """Return the cotangents of `wrt` from cotangents of `outputs`; zeros where none arrives, None for constants.

        Only records that an output depends on are visited, latest first, so each op's cotangents are complete when its
        rule runs. With `keep=False` a record's residuals are dropped once they have been read, so memory decreases
        during the pass; the tape cannot be pulled through again.
        """
        wanted = {ref.record for ref in wrt if ref.record is not None}
        found = self.cotangents(outputs, cotangents, retain=wanted, keep=keep)
        ops = self.inner
        result: list[R | None] = []
        with Quietly(ops.cursor):
            for ref in wrt:
                cotangent = found[ref.record][ref.slot] if ref.record in found else None
                if cotangent is None and ref.record is not None:
                    cotangent = ops.full(shape=ref.shape, value=0.0, dtype=ref.dtype)
                result.append(cotangent)
        return result

    def cotangents(
        self,
        outputs: Sequence[Node[R]],
        cotangents: Sequence[R | None],
        *,
        retain: set[Record[R]] | None = None,
        keep: bool = True,
    ) -> dict[Record[R], list[R | None]]:
        """Return the cotangent of every output of the records in `retain`; of every record reached when `retain` is
        None."""
        ops = self.inner
        result: dict[Record[R], list[R | None]] = {}
        order: list[Record[R]] = []
        outside = ops.cursor.backward
        fused: Callable[..., tuple[R | None, ...] | None] | None = None
        if ops.fuses:
            from .fused_call import pulled

            fused = pulled
        sliced: dict[Record[R], list[tuple[Record[R], R]]] = {}  # slices of a record's outputs, and their cotangents
        try:
            for ref, cotangent in zip(outputs, cotangents):
                if ref.record is not None and cotangent is not None:
                    _deposit(ops, ref.record, ref.slot, cotangent)
                    order.append(ref.record)
            order = _reached(order)
            cursor = ops.cursor
            with Quietly(cursor):
                while order:
                    record = order.pop()
                    if sliced and record in sliced:
                        _deposit_slices(ops, record, sliced.pop(record), keep)
                    arrived = record.arrived
                    if arrived is None:
                        continue
                    record.arrived = None
                    if retain is None or record in retain:
                        result[record] = arrived
                    primitive = record.primitive
                    if primitive is None:
                        continue
                    if primitive is SLICE:
                        sliced.setdefault(record.parents[0], []).append((record, arrived[0]))  # type: ignore[arg-type]
                        continue
                    cursor.region, cursor.ordinal = record.region, record.ordinal
                    cursor.backward = RULE if primitive.recomputes else 1
                    if len(arrived) > 1:
                        arrived = _visible(ops, record, primitive, arrived)
                    found = None
                    if fused is not None and primitive.kind is Kind.POINTWISE and len(arrived) == 1:
                        found = fused(ops, primitive, record, arrived[0], record.static)
                    if found is None:
                        rule: Any = primitive.vjp
                        found = rule(ops, record, tuple(arrived), **record.static)
                    sources = record.sources
                    if isinstance(sources, Record):
                        if found[0] is not None:
                            _deposit(ops, sources, record.slots[0], found[0])
                    else:
                        for parent, slot, cotangent in zip(sources, record.slots, found):
                            if parent is not None and cotangent is not None:
                                _deposit(ops, parent, slot, cotangent)
                    if not keep:  # record.forget(), written out
                        record.saved = record.sources = ()
                        record.primitive = CONSUMED
        finally:
            ops.cursor.backward = outside
            for record in order:  # left over only when a rule failed
                record.arrived = None
        return result


def _visible(ops: Interpreter[R], record: Record[R], primitive: Primitive, arrived: list[R | None]) -> list[R | None]:
    """Return the cotangents of the outputs that users see, with zeros for those that received none."""
    visible = len(arrived) - len(primitive.residuals)
    if any(c is not None for c in arrived[visible:]):
        raise ProgramError(f"a residual of {primitive} received a cotangent; its composite must be expanded")
    if not primitive.zero_cotangents:
        return arrived[:visible]
    return [
        c if c is not None else ops.full(shape=t.shape, value=0.0, dtype=t.dtype)
        for c, t in zip(arrived[:visible], record.outputs)
    ]


def _deposit(ops: Interpreter[R], record: Record[R], slot: int, cotangent: R) -> None:
    arrived = record.arrived
    if arrived is None:
        if not record.further:
            record.arrived = [cotangent]
            return
        arrived = record.arrived = [None] * (1 + len(record.further) // 2)
    before = arrived[slot]
    arrived[slot] = cotangent if before is None else ops.bind2(ADD, before, cotangent)


def _deposit_slices(ops: Interpreter[R], record: Record[R], slices: list[tuple[Record[R], R]], keep: bool) -> None:
    """Deposit the cotangents of slices of a record's outputs, all of one output at once."""

    by_output: dict[int, list[tuple[Record[R], R]]] = {}
    for each in reversed(slices):  # visited latest first
        by_output.setdefault(each[0].slots[0], []).append(each)
    for slot, found in by_output.items():
        first = found[0][0]
        ops.cursor.region, ops.cursor.ordinal = first.region, first.ordinal
        parts = [(part, part.static, cotangent) for part, cotangent in found]
        _deposit(ops, record, slot, cotangent_of_slices(ops, record.output(slot).shape, parts))
    if not keep:
        for part, _ in slices:
            part.forget()


def _reached(roots: list[Record[R]]) -> list[Record[R]]:
    """Return all records that the roots depend on, in the order in which they were made."""
    this_pass = object()
    stack: list[Record[R]] = []
    for root in roots:
        if root.mark is not this_pass:
            root.mark = this_pass
            stack.append(root)
    for record in stack:  # grows while it is walked
        sources = record.sources
        for parent in (sources,) if isinstance(sources, Record) else sources:
            if parent is not None and parent.mark is not this_pass:
                parent.mark = this_pass
                stack.append(parent)
    stack.sort(key=attrgetter("serial"))
    return stack


# Cotangents of slices -------------------------------------------------------------------------------------------------
#
# A slice's own rule pads its cotangent to the whole shape. For the parts of a `split`, and for the rows of a loop that
# is written out, that moves the tensor once per slice and adds as often; T rows of T take T². Slices that lie apart
# are the parts of one tensor, with zeros between them: one concatenation.

Part: TypeAlias = tuple[Context[R], Static, R]
"""A slice as its rule sees it, its static parameters, and its cotangent."""


def cotangent_of_slices(ops: Interpreter[R], shape: Shape, parts: Sequence[Part[R]]) -> R:
    """Return the cotangent of a tensor of a shape from its slices, which are given in the order of the program.

    Slices that overlap are added, those of different axes too. Elements that no slice has are 0.
    """
    axes: dict[tuple[int, int], list[Part[R]]] = {}
    for part in parts:
        axes.setdefault((part[1]["axis"], part[1]["step"]), []).append(part)
    total: R | None = None
    for (axis, step), of_axis in axes.items():
        for layer in _layers(of_axis) if step == 1 else [[part] for part in of_axis]:
            found = _concatenate_slices(ops, shape, axis, layer) if len(layer) > 1 else _padded(ops, layer[0])
            total = found if total is None else ops.bind2(ADD, total, found)
    assert total is not None
    return total


def _layers(parts: list[Part[R]]) -> list[list[Part[R]]]:
    """Return slices along one axis in as few groups as they overlap; within a group each lies behind the one before.

    Slices at symbolic places are compared in the order of the program; where that is not known, they are apart.
    """
    if all(type(static["start"]) is int and type(static["length"]) is int for _, static, _ in parts):
        parts = sorted(parts, key=lambda part: part[1]["start"])
    layers: list[list[Part[R]]] = []
    for part in parts:
        start = part[1]["start"]
        layer = next((each for each in layers if at_most(_end(each[-1]), start) is Verdict.proved), None)
        if layer is None:
            layers.append([part])
        else:
            layer.append(part)
    return layers


def _end(part: Part[Any]) -> Dim:
    static = part[1]
    return static["start"] + static["length"]  # type: ignore[no-any-return]


def _concatenate_slices(ops: Interpreter[R], shape: Shape, axis: int, layer: list[Part[R]]) -> R:
    """Concatenate the cotangents of slices, with zeros where there is none."""
    whole: list[R] = []
    end: Dim = 0

    def fill(until: Dim) -> None:
        if not is_zero(until - end):
            gap = (*shape[:axis], until - end, *shape[axis + 1 :])
            whole.append(ops.full(shape=gap, value=0.0, dtype=layer[0][2].dtype))

    for part in layer:
        fill(part[1]["start"])
        whole.append(part[2])
        end = _end(part)
    fill(shape[axis])
    return ops.concat(whole, axis=axis)


def _padded(ops: Interpreter[R], part: Part[R]) -> R:
    ctx, static, cotangent = part
    rule: Any = SLICE.vjp
    (found,) = rule(ops, ctx, (cotangent,), **static)
    return found  # type: ignore[no-any-return]
