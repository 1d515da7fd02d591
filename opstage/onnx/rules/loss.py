"""Losses on class indices."""

from __future__ import annotations

from typing import Any

from ...operators.values import Value, stretched
from ..call import NodeCall, rule


def _likelihood(call: NodeCall[Any], logs: Any) -> Any:
    """Return -log p of each label, weighted by class; `mean` divides by the weights of labels that are not ignored."""
    ops, labels = call.ops, call.ops.cast(call.x(1), dtype="int64")
    spread = stretched(ops, ops.unsqueeze(labels, axis=1), logs.shape)
    own = ops.equal(spread, ops.iota(shape=logs.shape, axis=1))
    nothing = ops.full(shape=logs.shape, value=0.0)
    weights = ops.full(shape=labels.shape, value=1.0)
    if call.has(2):
        rank = len(logs.shape)
        wide = ops.reshape(call.x(2), shape=(1, call.shape(2)[0], *[1] * (rank - 2)))
        weights = ops.reduce_sum(ops.select(own, stretched(ops, wide, logs.shape), nothing), axis=1)
    ignored = call.attribute("ignore_index")
    if ignored is not None:
        counted = ops.logical_not(ops.equal(labels, ops.full(shape=labels.shape, value=ignored, dtype="int64")))
        weights = ops.select(counted, weights, ops.full(shape=labels.shape, value=0.0))
    losses = ops.neg(ops.mul(weights, ops.reduce_sum(ops.select(own, logs, nothing), axis=1)))
    reduction = call.attribute("reduction", "mean")
    if reduction == "none":
        return losses
    return ops.sum(losses) if reduction == "sum" else ops.div(ops.sum(losses), ops.sum(weights))


@rule("NegativeLogLikelihoodLoss")
def _nll(call: NodeCall[Any]) -> Value:
    return call.give(_likelihood(call, call.x()))


@rule("SoftmaxCrossEntropyLoss")
def _cross_entropy(call: NodeCall[Any]) -> tuple[Value, ...]:
    logs = call.ops.log_softmax(call.x(), axis=1)
    return call.give(_likelihood(call, logs)), call.give(logs)
