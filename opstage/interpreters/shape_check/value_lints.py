"""Lints on values and sizes: indices out of range, probabilities as logits, norms of one element, stretched axes."""

from __future__ import annotations

import dis
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...ops.body import Equation
from ...ops.dims import Dim, DimExpr, Verdict, at_most, is_one, maximum, minimum, prod, require_at_most
from ...ops.elementwise import ADD, DIV, LOG, MAXIMUM, MINIMUM, MUL, SIGMOID, SUB
from ...ops.errors import Place, ShapeError
from ...ops.indexing import GATHER_ROWS, GATHER_VEC, SCATTER_ADD_ROWS, SCATTER_ADD_VEC
from ...ops.layout import BROADCAST_TO, UNSQUEEZE
from ...ops.logic import CAST, EQUAL, FULL, IOTA, LESS, LESS_EQUAL, SELECT
from ...ops.loss import CROSS_ENTROPY, class_axis
from ...ops.normalization import GROUP_NORM, LAYER_NORM, RMS_NORM
from ...ops.primitive import Kind, Primitive
from ...ops.random import BERNOULLI_MASK
from ...ops.reduction import LOG_SOFTMAX, SOFTMAX
from ...ops.slicing import SLICE
from ...ops.types import Shape, show_shape
from .finding import Finding
from .lint_subject import Subject

# Values behind ops that only change the layout or shape of their operand ----------------------------------------------


def unmoved(subject: Subject, number: int) -> int:
    """Return the tensor with these values before ops that change the layout, repeat it or cast between integers."""
    maker = subject.maker(number)
    while maker is not None and _keeps(subject, maker):
        number = maker.inputs[0]
        maker = subject.maker(number)
    return number


def _keeps(subject: Subject, call: Equation) -> bool:
    """Whether an op is a view of its whole operand, or a cast between integers or between floats."""
    if call.primitive is CAST:
        return subject.type(call.inputs[0]).dtype.kind + subject.type(call.outputs[0]).dtype.kind in ("ii", "ff")
    if call.primitive is SLICE:
        size = subject.type(call.inputs[0]).shape[call.static["axis"]]
        return at_most(size, call.static["length"]) is Verdict.proved
    return call.primitive.view and call.primitive.kind is Kind.LAYOUT


# Literal indices and labels -------------------------------------------------------------------------------------------

INDICES = "index-range"

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
                yield subject.at(call, INDICES, error.reason, fix, severity="error", constraint=constraint)
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
            yield subject.at(call, INDICES, reason, f"labels are 0 … {classes - 1}")
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


# Probabilities as logits, and dropout that drops everything -----------------------------------------------------------

LOGITS_RULE = "probabilities-as-logits"
LOG_RULE = "log-of-probability"
DROPOUT_RULE = "dropout-all"


def probabilities_as_logits(subject: Subject) -> Iterator[Finding]:
    """cross_entropy and softmax expect unbounded scores; probabilities become nearly equal ones, and the loss cannot
    come near 0."""
    for call in subject.calls(CROSS_ENTROPY):
        maker = subject.maker(unmoved(subject, call.inputs[0]))
        if maker is not None and maker.primitive in (SOFTMAX, SIGMOID):
            reason = f"logits are the result of {maker.primitive.name}: probabilities, where scores are expected"
            fix = f"pass what {maker.primitive.name} was given; cross_entropy takes the softmax itself"
            yield subject.at(call, LOGITS_RULE, reason, fix)
    for call in subject.calls(SOFTMAX, LOG_SOFTMAX):
        maker = subject.maker(call.inputs[0])
        if maker is not None and maker.primitive is SOFTMAX and maker.static["axis"] == call.static["axis"]:
            reason = (
                f"x is the result of a softmax over the same axis, {call.static['axis']}: one of the two is too many"
            )
            yield subject.at(call, LOGITS_RULE, reason, "take one of them out")


def log_of_probability(subject: Subject) -> Iterator[Finding]:
    """A probability too small for its dtype is 0, its logarithm is -inf, and its gradient nan."""
    for call in subject.calls(LOG):
        maker = subject.maker(unmoved(subject, call.inputs[0]))
        if maker is not None and maker.primitive in (SOFTMAX, SIGMOID):
            name = str(maker.primitive)
            stable = "ops.log_softmax(x)" if maker.primitive is SOFTMAX else "-ops.softplus(-x)"
            reason = f"x is the result of {name}, which rounds to 0 for low scores, and the logarithm of that is -inf"
            yield subject.at(call, LOG_RULE, reason, f"write {stable}, which is exact there")


def dropout_all(subject: Subject) -> Iterator[Finding]:
    """A mask that keeps nothing: p is the probability to drop, but that of keeping was passed."""
    for call in subject.calls(BERNOULLI_MASK):
        maker = subject.maker(call.inputs[0])
        if maker is not None and maker.primitive is FULL and maker.static["value"] == 0:
            reason = "the probability of keeping an element is 0, so nothing is left and no gradient comes back"
            yield subject.at(call, DROPOUT_RULE, reason, "p is the probability with which an element is dropped")


# Ops that normalise over a single element, so that their result does not depend on their operand ----------------------

SOFTMAX_RULE = "softmax-of-one"
NORM_RULE = "norm-of-one"

_GATE = "for one score use ops.sigmoid, and for its loss ops.softplus(x) - x * y"


def softmax_of_one(subject: Subject) -> Iterator[Finding]:
    """A softmax over an axis of size 1 is always 1, and its logarithm and the cross-entropy are 0."""
    for call in subject.calls(SOFTMAX, LOG_SOFTMAX):
        axis = call.static["axis"]
        shape = subject.type(call.inputs[0]).shape
        if is_one(shape[axis]):
            value = 1 if call.primitive is SOFTMAX else 0
            reason = f"x is {show_shape(shape)}: over axis {axis}, of size 1, it is {value} always"
            yield subject.at(call, SOFTMAX_RULE, reason, f"choose the axis of the scores; {_GATE}")
    for call in subject.calls(CROSS_ENTROPY):
        shape = subject.type(call.inputs[0]).shape
        axis = class_axis(len(shape))
        if is_one(shape[axis]):
            reason = f"logits are {show_shape(shape)}: of one class, on axis {axis}, the loss is 0 always"
            yield subject.at(call, SOFTMAX_RULE, reason, f"give each class a logit; {_GATE}")


def norm_of_one(subject: Subject) -> Iterator[Finding]:
    """The mean of one element is that element: centred it is 0, and only beta remains.

    A batch norm of one element is an error of the op itself.
    """
    for call in subject.calls(LAYER_NORM, RMS_NORM, GROUP_NORM):
        if is_one(_count(subject, call)):
            left = "its sign" if call.primitive is RMS_NORM else "0"
            shape = show_shape(subject.type(call.inputs[0]).shape)
            reason = f"x is {shape}: each element is normalised alone, which leaves {left}, whatever it is"
            yield subject.at(call, NORM_RULE, reason, "normalise over more than one element, or leave the norm out")


def _count(subject: Subject, call: Equation) -> Dim:
    """Return the number of elements per mean."""
    shape = subject.type(call.inputs[0]).shape
    if call.primitive is GROUP_NORM:
        groups: int = call.static["groups"]
        return prod((shape[1] // groups, *shape[2:]))
    return shape[-1]


# Infix arithmetic in which each operand is broadcast along an axis of the other ---------------------------------------

STRETCHED = "stretched-both"

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
        both = [m for m in spread if subject.program.place(m) == place and m.ordinal != call.ordinal]  # not by a rule
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
    return subject.at(call, STRETCHED, reason, fix, operands=operands)


def _bare(shape: Shape) -> Shape:
    """Return the shape without axes of size 1."""
    return tuple([dim for dim in shape if not is_one(dim)])
