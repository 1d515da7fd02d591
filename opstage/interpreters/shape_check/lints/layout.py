"""Ops that only change the layout or shape of their operand."""

from __future__ import annotations

from ....ops.catalogue.layout import (
    BROADCAST_TO,
    FLATTEN,
    PERMUTE,
    RESHAPE,
    SQUEEZE,
    SWAP_ADJACENT_AT_DEPTH,
    TRANSPOSE2D,
    TRANSPOSE3D_FIRST_TO_LAST,
    TRANSPOSE3D_LAST_TO_FIRST,
    TRANSPOSE3D_LAST_TWO,
    UNSQUEEZE,
)
from ....ops.catalogue.logic import CAST, DETACH
from ....ops.catalogue.slicing import SLICE
from ....ops.closed import Equation
from ....ops.dims import Verdict, at_most
from .subject import Subject

_MOVES = {
    BROADCAST_TO,
    DETACH,
    FLATTEN,
    PERMUTE,
    RESHAPE,
    SQUEEZE,
    SWAP_ADJACENT_AT_DEPTH,
    TRANSPOSE2D,
    TRANSPOSE3D_FIRST_TO_LAST,
    TRANSPOSE3D_LAST_TO_FIRST,
    TRANSPOSE3D_LAST_TWO,
    UNSQUEEZE,
}


def unmoved(subject: Subject, number: int) -> int:
    """Return the tensor with these values before ops that change the layout, repeat it or cast between integers."""
    maker = subject.maker(number)
    while maker is not None and (maker.primitive in _MOVES or _keeps(subject, maker)):
        number = maker.inputs[0]
        maker = subject.maker(number)
    return number


def _keeps(subject: Subject, call: Equation) -> bool:
    """Whether a cast is one between integers or between floats, or a slice takes all of its axis."""
    if call.primitive not in (CAST, SLICE):
        return False
    x, result = subject.type(call.inputs[0]), subject.type(call.outputs[0])
    if call.primitive is SLICE:
        return at_most(x.shape[call.static["axis"]], call.static["length"]) is Verdict.proved
    return x.dtype.kind + result.dtype.kind in ("ii", "ff")
