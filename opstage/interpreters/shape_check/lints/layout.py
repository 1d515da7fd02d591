"""Ops that give the same numbers in another shape."""

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
from ....ops.closed import Equation
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
    """The tensor whose numbers these are, before they were laid out anew, repeated or cast from integer to integer."""
    maker = subject.maker(number)
    while maker is not None and (maker.primitive in _MOVES or _widens(subject, maker)):
        number = maker.inputs[0]
        maker = subject.maker(number)
    return number


def _widens(subject: Subject, call: Equation) -> bool:
    if call.primitive is not CAST:
        return False
    return subject.type(call.inputs[0]).dtype.kind + subject.type(call.outputs[0]).dtype.kind in ("ii", "ff")
