"""Literal indices and labels that are out of range for any inputs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ....ops.catalogue.indexing import GATHER_ROWS, GATHER_VEC, SCATTER_ADD_ROWS, SCATTER_ADD_VEC
from ....ops.catalogue.layout import BROADCAST_TO, UNSQUEEZE
from ....ops.catalogue.logic import EQUAL, FULL, IOTA
from ....ops.catalogue.loss import CROSS_ENTROPY, class_axis
from ....ops.closed import Equation
from ....ops.dims import Dim, Verdict, at_most, is_zero, require_at_most
from ....ops.errors import ShapeError
from ....ops.types import show_shape
from ..finding import Finding
from .layout import unmoved
from .subject import Subject

RULE = "index-range"

_POSITIONS = {GATHER_ROWS: 1, GATHER_VEC: 1, SCATTER_ADD_ROWS: 2, SCATTER_ADD_VEC: 2}
"""The position of the index operand."""


class _Range(NamedTuple):
    """The range of the integers in a literal tensor."""

    least: int
    greatest: Dim


def index_ranges(subject: Subject) -> Iterator[Finding]:
    """Compare literal indices and labels with the sizes that they index: an error if they are out of range for some
    allowed size, since the run would raise. Undecided cases are left to the run."""
    for call in subject.calls(*_POSITIONS):
        if call.static["mode"] == "raise":
            x, at = subject.type(call.inputs[0]), _POSITIONS[call.primitive]
            found = _literal(subject, call.inputs[at])
            if found is not None:
                yield from _compare(subject, call, "index", found, x.shape[0], f"x is {show_shape(x.shape)}")
    for call in subject.calls(CROSS_ENTROPY):
        found = _literal(subject, call.inputs[1], ignored=call.static["ignore_index"])
        if found is not None:
            logits = subject.type(call.inputs[0])
            axis = class_axis(len(logits.shape))
            sizes = f"logits are {show_shape(logits.shape)}, with classes on axis {axis}"
            yield from _compare(subject, call, "label", found, logits.shape[axis], sizes)
    for call in subject.calls(EQUAL):
        yield from _one_hot(subject, call)


def _compare(subject: Subject, call: Equation, what: str, found: _Range, extent: Dim, sizes: str) -> Iterator[Finding]:
    last = extent - 1
    if found.least < 0:
        reason = f"{what} {found.least} is out of range: {sizes}, so it must be 0 … {last}"
        fix = "count from the front" if what == "index" else f"ignore_index={found.least} leaves such positions out"
        yield subject.at(call, RULE, reason, fix, severity="error")
    elif at_most(found.greatest + 1, extent) is Verdict.refuted:
        try:
            require_at_most(
                found.greatest + 1,
                extent,
                f"{what} {found.greatest} is out of range: {sizes}, so it must be 0 … {last}",
            )
        except ShapeError as error:
            yield subject.at(call, RULE, error.reason, severity="error", constraint=getattr(error, "constraint", None))


def _one_hot(subject: Subject, call: Equation) -> Iterator[Finding]:
    """`ops.one_hot` compares labels, broadcast along an axis, with positions along it: a label that is too large
    matches none."""
    spread, positions = (subject.maker(number) for number in call.inputs)
    if spread is None or positions is None or spread.primitive is not BROADCAST_TO or positions.primitive is not IOTA:
        return
    axis, labels = positions.static["axis"], subject.maker(spread.inputs[0])
    if labels is None or labels.primitive is not UNSQUEEZE or labels.static["axis"] != axis:
        return
    found, classes = _literal(subject, labels.inputs[0]), subject.type(call.inputs[0]).shape[axis]
    if found is None or not isinstance(found.greatest, int):
        return
    wrong = found.least if found.least < 0 else found.greatest
    if wrong < 0 or at_most(classes, wrong) is Verdict.proved:
        reason = f"label {wrong} is out of range: there are {classes} classes, so its row is all zeros"
        yield subject.at(call, RULE, reason, f"labels are 0 … {classes - 1}")


def _literal(subject: Subject, number: int, ignored: int | None = None) -> _Range | None:
    """Return the range of a tensor computed from constants alone, in any order; None for any other."""
    if any(is_zero(dim) for dim in subject.type(number).shape):
        return None
    number = unmoved(subject, number)
    if number in subject.constants:
        return _of_array(np.asarray(subject.constants[number]), ignored)
    maker = subject.maker(number)
    if maker is None:
        return None
    if maker.primitive is FULL:
        return _of_array(np.asarray(maker.static["value"]), ignored)
    if maker.primitive is IOTA:
        shape = maker.static["shape"]
        return _Range(0, shape[maker.static["axis"]] - 1)
    return None


def _of_array(values: npt.NDArray[Any], ignored: int | None) -> _Range | None:
    if values.dtype.kind not in "iu":
        return None
    if ignored is not None:
        values = values[values != ignored]
    return _Range(int(values.min()), int(values.max())) if values.size else None
