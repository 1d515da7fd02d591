"""Forward mode over any interpreter, and Jacobian-vector products of what a tape has already recorded."""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import Any, Generic, final

from typing_extensions import override

from ..ops.dispatch import Quietly
from ..ops.errors import ProgramError
from ..ops.primitive import Primitive, R, Static
from .interpreter import Holding, Interpreter, Wrapper
from .tape import Node, Record, Tape


@final
class Dual(Holding, Generic[R]):
    """A ref of forward mode: a value of the inner interpreter and its tangent, None when it is zero."""

    __slots__ = ("value", "ops", "tangent")

    def __init__(self, value: R, ops: ForwardMode[R], tangent: R | None = None):
        self.value = value
        self.ops = ops
        self.tangent = tangent


@final
class ForwardMode(Wrapper[Dual[R], R]):
    """Jacobian-vector products by each primitive's jvp rule."""

    __slots__ = ()
    ref_type = Dual

    def __init__(self, inner: Interpreter[R]):
        super().__init__(inner, differentiates=True)

    @override
    def wrap(self, value: R, /) -> Dual[R]:
        return Dual(value, self)

    def dual(self, value: R, tangent: R | None) -> Dual[R]:
        """Return a ref with a tangent that must have its shape and dtype."""
        return Dual(value, self, tangent if value.dtype.kind in "fO" else None)

    @override
    def bind(self, primitive: Primitive, refs: tuple[Dual[R], ...], static: Static, /) -> tuple[Dual[R], ...]:
        if self.closed:
            raise ProgramError(self.closed)
        refs = tuple([r if type(r) is Dual and r.ops is self else self.adopt(r) for r in refs])
        values = tuple([r.value for r in refs])
        tangents = tuple([r.tangent for r in refs])
        moving = primitive.differentiable and any(t is not None for t in tangents)
        if not moving:
            return tuple([Dual(v, self) for v in self.inner.bind(primitive, values, static)])
        rule = primitive.jvp
        if primitive.expandable and (self.inner.differentiates or rule is None):
            return self.decompose(primitive, refs, static)
        if rule is None:
            raise primitive.without_rule("jvp")
        outs = self.inner.bind(primitive, values, static)
        if primitive.residuals and self.inner.differentiates:
            primitive.require_closed(outs[len(primitive.outputs) :])
        with Quietly(self.cursor):
            moved = rule(self.inner, values, outs, tangents, **static)
        rest = (None,) * (len(outs) - len(moved))
        return tuple([Dual(v, self, t) for v, t in zip(outs, (*moved, *rest))])


# Of a recorded tape ---------------------------------------------------------------------------------------------------
#
# A tape keeps what reverse mode reads and no more, so the primals that forward mode reads are gone. But the pullback
# u -> Jᵀ u is linear, and the pullback of a linear map is its transpose: recording the pullback itself on a second tape
# and pulling v back through that gives J v. The value of u does not matter. An op that declares a vjp and no jvp is
# refused, as by forward mode: its vjp may be any map, so it need not be linear in u.
#
# Source: J. Townsend, "A new trick for calculating Jacobian vector products", 2017.


def pushforward(output: Node[R], tangents: Mapping[Node[R], R]) -> R:
    """Return the tangent of `output` when the leaves of its tape have `tangents`, others zero; zeros without a path.

    It costs about three backward passes, and reads the residuals of everything that `output` depends on.
    """
    ops = output.ops.inner
    with Quietly(ops.cursor):
        zero: R = ops.full(shape=output.shape, value=0.0, dtype=output.dtype)
    if output.record is None:
        return zero
    second = Tape(ops)
    third = Tape(second)
    lifted = _lifted(output.record, second)
    u = second.leaf(zero)
    moved = {lifted[leaf.record]: v for leaf, v in tangents.items() if leaf.record in lifted}
    pulled = third.cotangents([Node(u, third, lifted[output.record], output.slot)], [u], retain=set(moved), keep=True)
    arrived = [(cotangents[0], moved[leaf]) for leaf, cotangents in pulled.items()]
    outputs = [c for c, _ in arrived if c is not None]
    (result,) = second.pull(outputs, [v for c, v in arrived if c is not None], [u])
    return result  # type: ignore[return-value]  # None only where wrt is a constant


def _lifted(root: Record[R], second: Tape[R]) -> dict[Record[R], Record[Node[R]]]:
    """Copy all records that `root` depends on, with their residuals as constants of `second`."""
    seen = {root}
    order = [root]
    for record in order:  # grows while it is walked
        for parent in record.parents:
            if parent is not None and parent not in seen:
                seen.add(parent)
                order.append(parent)
    for record in order:
        primitive = record.primitive
        if primitive is not None and primitive.jvp is None and not primitive.expandable:
            raise primitive.without_rule("jvp")
    copies: dict[Record[R], Record[Node[R]]] = {}
    for record in sorted(order, key=attrgetter("serial")):
        copy: Record[Any] = Record()
        copy.arrived = copy.mark = None
        copy.serial, copy.primitive = record.serial, record.primitive
        copy.shape, copy.dtype, copy.further = record.shape, record.dtype, record.further
        copy.sources = tuple([None if parent is None else copies[parent] for parent in record.parents])
        if record.primitive is not None:
            copy.static, copy.slots, copy.needs = record.static, record.slots, record.needs
            copy.constants = record.constants
            copy.region, copy.ordinal = record.region, record.ordinal
            copy.saved = tuple([None if value is None else second.wrap(value) for value in record.saved])
        copies[record] = copy
    return copies
