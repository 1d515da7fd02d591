"""Activations, softmax, dropout."""

from __future__ import annotations

from typing import Any

from ...operators.values import Value, stretched
from ...ops.derived import dropout, prelu
from ...ops.dims import prod
from ...ops.types import BOOL
from ..call import NodeCall, rule

_SELU_ALPHA, _SELU_GAMMA = 1.67326319217681884765625, 1.05070102214813232421875


@rule("Selu")
def _selu(call: NodeCall[Any]) -> Value:
    ops = call.ops
    alpha, gamma = (
        call.attribute("alpha", _SELU_ALPHA),
        call.attribute("gamma", _SELU_GAMMA),
    )
    return call.give(ops.scale(ops.elu(call.x(), alpha=alpha), c=gamma))


@rule("PRelu")
def _prelu(call: NodeCall[Any]) -> Value:
    ops, x = call.ops, call.x()
    return call.give(prelu(ops, x, stretched(ops, call.x(1), x.shape)))


@rule("HardSigmoid")
def _hard_sigmoid(call: NodeCall[Any]) -> Value:
    ops, x, alpha = call.ops, call.x(), call.attribute("alpha", 0.2)
    shift = ops.full(shape=x.shape, value=call.attribute("beta", 0.5))
    return call.give(ops.clamp(ops.add(ops.scale(x, c=alpha), shift), lo=0.0, hi=1.0))


@rule("Shrink")
def _shrink(call: NodeCall[Any]) -> Value:
    ops, x = call.ops, call.ops.cast(call.x(), dtype=call.ops.dtype)
    bias, limit = call.attribute("bias", 0.0), call.attribute("lambd", 0.5)

    def full(value: float) -> Any:
        return ops.full(shape=x.shape, value=value)

    above = ops.select(ops.less(full(limit), x), ops.sub(x, full(bias)), full(0.0))
    y = ops.select(ops.less(x, full(-limit)), ops.add(x, full(bias)), above)
    return call.wrap(y if call.dtype().kind == "f" else ops.cast(y, dtype="int64"))


@rule("Swish")
def _swish(call: NodeCall[Any]) -> Value:
    ops, x = call.ops, call.x()
    return call.give(ops.mul(x, ops.sigmoid(ops.scale(x, c=call.attribute("alpha", 1.0)))))


@rule("Softmax", "LogSoftmax", "Hardmax")
def _softmax(call: NodeCall[Any]) -> Value:
    """Softmax along one axis; before version 13 over all axes from `axis` on, flattened."""
    ops, x = call.ops, call.x()
    axis = call.axis(-1 if call.version >= 13 else 1)
    if call.version < 13:
        whole = ops.reshape(x, shape=(*x.shape[:axis], prod(x.shape[axis:])))
        return call.give(ops.reshape(_along(call, whole, axis), shape=x.shape))
    return call.give(_along(call, x, axis))


def _along(call: NodeCall[Any], x: Any, axis: int) -> Any:
    ops = call.ops
    if call.node.op == "Softmax":
        return ops.softmax(x, axis=axis)
    if call.node.op == "LogSoftmax":
        return ops.log_softmax(x, axis=axis)
    first = stretched(ops, ops.argmax(x, axis=axis, keepdims=True), x.shape)
    return ops.cast(ops.equal(first, ops.iota(shape=x.shape, axis=axis)), dtype=x.dtype)


@rule("Dropout", known=(1, 2))
def _dropout(call: NodeCall[Any]) -> tuple[Value | None, ...]:
    """Drop in training only. A node with a constant true `training_mode` draws other bits than any runtime."""
    ops, x = call.ops, call.x()
    ratio = call.number(1, "ratio", call.attribute("ratio", 0.5))
    everything = ops.full(shape=x.shape, value=True, dtype=BOOL)
    masked = len(call.node.outputs) > 1 and bool(call.node.outputs[1])
    mode = bool(call.number(2, "training_mode", False))
    if ratio and (call.around.train or mode):
        kept = dropout(ops, ops.full(shape=x.shape, value=1.0), p=float(ratio), train=True)
        there = ops.logical_not(ops.equal(kept, ops.full(shape=x.shape, value=0.0))) if masked else everything
        return call.give(ops.mul(x, kept)), call.mask(there)
    return call.give(x), call.mask(everything)
