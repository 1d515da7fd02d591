"""Ops that normalise over a single element, so that their result does not depend on their operand."""

from __future__ import annotations

from collections.abc import Iterator

from ....ops.catalogue.loss import CROSS_ENTROPY, class_axis
from ....ops.catalogue.normalization import GROUP_NORM, LAYER_NORM, RMS_NORM
from ....ops.catalogue.reduction import LOG_SOFTMAX, SOFTMAX
from ....ops.closed import Equation
from ....ops.dims import Dim, is_one, prod
from ....ops.types import show_shape
from ..finding import Finding
from .subject import Subject

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
