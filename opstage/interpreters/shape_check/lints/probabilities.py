"""Probabilities passed as logits, and dropout that drops everything."""

from __future__ import annotations

from collections.abc import Iterator

from ....ops.catalogue.elementwise import LOG, SIGMOID
from ....ops.catalogue.logic import FULL
from ....ops.catalogue.loss import CROSS_ENTROPY
from ....ops.catalogue.random import BERNOULLI_MASK
from ....ops.catalogue.reduction import LOG_SOFTMAX, SOFTMAX
from ..finding import Finding
from .layout import unmoved
from .subject import Subject

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
