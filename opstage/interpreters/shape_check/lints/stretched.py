"""Infix arithmetic in which each operand is broadcast along an axis of the other."""

from __future__ import annotations

import dis
from collections.abc import Iterator

from ....ops.catalogue.elementwise import ADD, DIV, MUL, SUB
from ....ops.catalogue.layout import BROADCAST_TO, UNSQUEEZE
from ....ops.catalogue.logic import EQUAL, LESS, LESS_EQUAL
from ....ops.closed import Equation
from ....ops.dims import is_one
from ....ops.errors import Place
from ....ops.kinds import Kind
from ....ops.types import Shape, show_shape
from ..finding import Finding
from .subject import Subject

RULE = "stretched-both"

_OPERATORS = {"BINARY_OP", "COMPARE_OP"}


def stretched_both(subject: Subject) -> Iterator[Finding]:
    """Find `x + y` that broadcasts both operands, such as (B,) + (B, 1), with result (B, B): usually an axis too many
    or too few, which never raises an error. `ops.broadcast_to` makes the intent explicit.

    Infix inserts its broadcasts where the operator stands, so all three ops have the place of one `+` in the user's
    code; a broadcast that the user wrote has that of a call. An outer product is also meant where `unsqueeze` put in
    the axes of size 1 that are stretched: that of one of two operands that could never have one shape, else of both.
    """
    for call in subject.calls(ADD, SUB, MUL, DIV, LESS, LESS_EQUAL, EQUAL):
        place = subject.program.place(call)
        if place is None or not _is_operator(place):
            continue
        makers = [subject.maker(number) for number in call.inputs]
        spread = [maker for maker in makers if maker is not None and maker.primitive is BROADCAST_TO]
        both = [maker for maker in spread if subject.program.place(maker) == place]
        if len(both) == 2 and not _is_outer(subject, both[0].inputs[0], both[1].inputs[0]):
            yield _stretched(subject, call, both[0], both[1])


def _is_outer(subject: Subject, left: int, right: int) -> bool:
    """Whether the user inserted the axes along which two tensors are broadcast."""
    shapes = [subject.type(number).shape for number in (left, right)]
    put = [_is_unsqueezed(subject, number) for number in (left, right)]
    if any(any(map(is_one, shape)) and not explicit for shape, explicit in zip(shapes, put)):
        return False
    return all(put) or show_shape(_bare(shapes[0])) != show_shape(_bare(shapes[1]))


def _is_unsqueezed(subject: Subject, number: int) -> bool:
    """Whether a tensor got its axes from `unsqueeze`, directly or through elementwise ops."""
    maker = subject.maker(number)
    if maker is None or maker.primitive is UNSQUEEZE or maker.primitive.kind is not Kind.POINTWISE:
        return maker is not None and maker.primitive is UNSQUEEZE
    return any(_is_unsqueezed(subject, operand) for operand in maker.inputs)


def _is_operator(place: Place) -> bool:
    return dis.opname[place.code.co_code[place.instruction]] in _OPERATORS


def _stretched(subject: Subject, call: Equation, left: Equation, right: Equation) -> Finding:
    x, y = subject.type(left.inputs[0]), subject.type(right.inputs[0])
    out = subject.type(call.outputs[0]).shape
    reason = f"both operands are stretched: {show_shape(x.shape)} and {show_shape(y.shape)} become {show_shape(out)}"
    meant = "write ops.broadcast_to where the larger shape is meant"
    bare = {show_shape(_bare(x.shape)), show_shape(_bare(y.shape))}  # sizes are compared by text; == would need a proof
    fix = f"give both one shape, {bare.pop()}; {meant}" if len(bare) == 1 else meant
    operands = [("the left", left.inputs[0], x), ("the right", right.inputs[0], y)]
    return subject.at(call, RULE, reason, fix, operands=operands)


def _bare(shape: Shape) -> Shape:
    """Return the shape without axes of size 1."""
    return tuple([dim for dim in shape if not is_one(dim)])
