"""Jacobian-vector products of what a tape has already recorded.

A tape keeps what reverse mode reads and no more, so the primals that forward mode reads are gone. But the pullback
u -> Jᵀ u is linear, and the pullback of a linear map is its transpose: recording the pullback itself on a second tape
and pulling v back through that gives J v. The value of u does not matter. An op that declares a vjp and no jvp is
refused, as by forward mode: its vjp may be any map, so it need not be linear in u.

Source: J. Townsend, "A new trick for calculating Jacobian vector products", 2017.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import Any

from ..ops.cursor import Quietly
from ..ops.primitive import R
from .tape import Node, Tape
from .tape_record import Record


def pushforward(output: Node[R], tangents: Mapping[Node[R], R]) -> R:
    """The tangent of `output` when the leaves of its tape have `tangents`, others zero; zeros without a path.

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
    """Copies of all records that `root` depends on, with their residuals as constants of `second`."""
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
