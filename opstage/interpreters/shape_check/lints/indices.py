"""Literal indices and labels that are out of range for any inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ....ops.catalogue.elementwise import ADD, MAXIMUM, MINIMUM, MUL, SUB
from ....ops.catalogue.indexing import GATHER_ROWS, GATHER_VEC, SCATTER_ADD_ROWS, SCATTER_ADD_VEC
from ....ops.catalogue.layout import BROADCAST_TO, UNSQUEEZE
from ....ops.catalogue.logic import EQUAL, FULL, IOTA, LESS, SELECT
from ....ops.catalogue.loss import CROSS_ENTROPY, class_axis
from ....ops.closed import Equation
from ....ops.dims import Dim, DimExpr, Verdict, at_most, maximum, minimum, require_at_most
from ....ops.errors import ShapeError
from ....ops.primitive import Primitive
from ....ops.types import show_shape
from ..finding import Finding
from .layout import unmoved
from .subject import Subject

RULE = "index-range"

_POSITIONS = {GATHER_ROWS: 1, GATHER_VEC: 1, SCATTER_ADD_ROWS: 2, SCATTER_ADD_VEC: 2}
"""The position of the index operand."""


class _Range(NamedTuple):
    """The range of the integers in a literal tensor, which contains both ends."""

    least: Dim
    greatest: Dim

    @property
    def single(self) -> bool:
        return self.least is self.greatest


_RISING: dict[Primitive, Callable[[_Range, _Range], tuple[Dim, Dim]]] = {
    ADD: lambda a, b: (a.least + b.least, a.greatest + b.greatest),
    SUB: lambda a, b: (a.least - b.greatest, a.greatest - b.least),
    MUL: lambda a, b: (a.least * b.least, a.greatest * b.greatest),
    MINIMUM: lambda a, b: (minimum(a.least, b.least), minimum(a.greatest, b.greatest)),
    MAXIMUM: lambda a, b: (maximum(a.least, b.least), maximum(a.greatest, b.greatest)),
}
"""The ends of a result, which it attains if one of the operands is a single number."""


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
    front = "count from the front" if what == "index" else f"ignore_index={found.least} leaves such positions out"
    last = extent - 1
    for wrong, low, high, fix in ((found.least, 0, found.least, front), (found.greatest, found.greatest, last, "")):
        if at_most(low, high) is Verdict.refuted:
            try:
                require_at_most(low, high, f"{what} {wrong} is out of range: {sizes}, so it must be 0 … {last}")
            except ShapeError as error:
                constraint = getattr(error, "constraint", None)
                yield subject.at(call, RULE, error.reason, fix, severity="error", constraint=constraint)
            return


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
    if found is None:
        return
    for wrong, low, high in ((found.least, found.least, -1), (found.greatest, classes, found.greatest)):
        if at_most(low, high) is Verdict.proved:
            reason = f"label {wrong} is out of range: there are {classes} classes, so its row is all zeros"
            yield subject.at(call, RULE, reason, f"labels are 0 … {classes - 1}")
            return


def _literal(subject: Subject, number: int, ignored: int | None = None) -> _Range | None:
    """Return the range of a tensor computed from constants alone, in any order; None for any other, and for one that
    may be empty."""
    if any(at_most(1, dim) is not Verdict.proved for dim in subject.type(number).shape):
        return None
    number = unmoved(subject, number)
    if number in subject.constants:
        return _of_array(np.asarray(subject.constants[number]), ignored)
    maker = subject.maker(number)
    found = None if maker is None else _computed(subject, maker)
    if found is None or ignored is None or at_most(ignored + 1, found.least) is Verdict.proved:
        return found
    return None


def _computed(subject: Subject, maker: Equation) -> _Range | None:
    if maker.primitive is FULL:
        value = maker.static["value"]
        return _Range(value, value) if isinstance(value, DimExpr) else _of_array(np.asarray(value), None)
    if maker.primitive is IOTA:
        return _Range(0, maker.static["shape"][maker.static["axis"]] - 1)
    if maker.primitive is SELECT:
        return _selected(subject, *maker.inputs)
    if maker.primitive in _RISING:
        a, b = (_literal(subject, operand) for operand in maker.inputs)
        if a is not None and b is not None and (a.single or b.single):
            ends = _RISING[maker.primitive](a, b)
            for low, high in (ends, ends[::-1]):  # a product with a negative number falls
                if at_most(low, high) is Verdict.proved:
                    return _Range(low, high)
    return None


def _selected(subject: Subject, mask: int, x: int, y: int) -> _Range | None:
    """Return the range of what `x[i]` gathers, which is `select(i < 0, i + size, i)`, if all of i has one sign."""
    test = subject.maker(mask)
    if test is None or test.primitive is not LESS:
        return None
    index, limit = (_literal(subject, operand) for operand in test.inputs)
    if index is None or limit is None:
        return None
    if at_most(limit.greatest, index.least) is Verdict.proved:
        return _literal(subject, y)
    return _literal(subject, x) if at_most(index.greatest + 1, limit.least) is Verdict.proved else None


def _of_array(values: npt.NDArray[Any], ignored: int | None) -> _Range | None:
    if values.dtype.kind not in "iu":
        return None
    if ignored is not None:
        values = values[values != ignored]
    return _Range(int(values.min()), int(values.max())) if values.size else None
