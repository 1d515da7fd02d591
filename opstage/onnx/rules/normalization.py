"""Normalisations."""

from __future__ import annotations

from typing import Any

from ...operators.values import Value, stretched
from ...ops.dims import prod, ratio
from ...ops.errors import UnsupportedError
from ...ops.functions.pools import instance_norm, local_response_norm
from ...ops.types import FLOAT32, FLOAT64
from ..call import NodeCall, rule
from ..element_types import dtype_of, is_bfloat16


@rule("BatchNormalization")
def _batch_norm(call: NodeCall[Any]) -> tuple[Value | None, ...] | Value:
    """Normalise by running statistics, which are buffers of the model; in training by the batch's, which update them.

    ONNX updates a running variance with the biased variance of the batch, PyTorch with the unbiased one.
    """
    ops, x = call.ops, call.x()
    eps, momentum = call.attribute("epsilon", 1e-5), call.attribute("momentum", 0.9)
    gamma, beta, mean, variance = (call.x(i) for i in range(1, 5))
    training = bool(call.attribute("training_mode", 0))
    if call.version < 9 and not call.attribute("spatial", 1):
        raise UnsupportedError("spatial=0, statistics for each element, is not known")
    if not (call.around.train or training):
        return call.give(ops.batch_norm_eval(x, gamma, beta, mean, variance, channel_axis=1, eps=eps))
    y, batch_mean, unbiased = ops.batch_norm(x, gamma, beta, channel_axis=1, eps=eps)
    count = prod((x.shape[0], *x.shape[2:]))
    biased = ops.scale(unbiased, c=ratio(count - 1, count))
    moved = [
        ops.add(ops.scale(old, c=momentum), ops.scale(new, c=1 - momentum))
        for old, new in ((mean, batch_mean), (variance, biased))
    ]
    for name, value in zip(call.node.inputs[3:5], moved):
        call.around.keep(name, value)
    return tuple(call.give(each) for each in (y, *moved))


def _require_known_statistics(call: NodeCall[Any]) -> None:
    """Raise UnsupportedError for statistics in shorter floats, which would round; here all floats have the program's
    dtype."""
    dtype = dtype_of(int(call.attribute("stash_type", 1)))
    if dtype not in (FLOAT32, FLOAT64) or is_bfloat16(dtype):
        raise UnsupportedError("statistics of short floats would not round here, where all floats are of one dtype")


@rule("LayerNormalization")
def _layer_norm(call: NodeCall[Any]) -> tuple[Value, ...]:
    ops, x, axis, eps = call.ops, call.x(), call.axis(-1), call.attribute("epsilon", 1e-5)
    _require_known_statistics(call)
    rank = len(x.shape)
    few = len([name for name in call.node.outputs if name]) == 1
    beta = call.has(2)
    if few and axis == rank - 1 and call.rank(1) == 1 and (not beta or call.rank(2) == 1):
        return (call.give(ops.layer_norm(x, call.x(1), call.x(2) if beta else None, eps=eps)),)
    axes = tuple(range(axis, rank))
    mean = ops.reduce_mean(x, axis=axes, keepdims=True)
    centred = ops.sub(x, stretched(ops, mean, x.shape))
    variance = ops.reduce_mean(ops.mul(centred, centred), axis=axes, keepdims=True)
    scale = ops.pow(ops.add(variance, ops.full(shape=variance.shape, value=eps)), exponent=-0.5)
    y = ops.mul(ops.mul(centred, stretched(ops, scale, x.shape)), stretched(ops, call.x(1), x.shape))
    y = ops.add(y, stretched(ops, call.x(2), x.shape)) if beta else y
    return call.give(y), call.give(mean), call.give(scale)


@rule("RMSNormalization")
def _rms_norm(call: NodeCall[Any]) -> Value:
    ops, x, axis, eps = call.ops, call.x(), call.axis(-1), call.attribute("epsilon", 1e-5)
    _require_known_statistics(call)
    if axis == len(x.shape) - 1 and call.rank(1) == 1:
        return call.give(ops.rms_norm(x, call.x(1), eps=eps))
    axes = tuple(range(axis, len(x.shape)))
    square = ops.reduce_mean(ops.mul(x, x), axis=axes, keepdims=True)
    scale = ops.pow(ops.add(square, ops.full(shape=square.shape, value=eps)), exponent=-0.5)
    return call.give(ops.mul(ops.mul(x, stretched(ops, scale, x.shape)), stretched(ops, call.x(1), x.shape)))


@rule("InstanceNormalization")
def _instance_norm(call: NodeCall[Any]) -> Value:
    eps = call.attribute("epsilon", 1e-5)
    return call.give(instance_norm(call.ops, call.x(), call.x(1), call.x(2), eps=eps))


@rule("GroupNormalization")
def _group_norm(call: NodeCall[Any]) -> Value:
    ops, x, groups, eps = call.ops, call.x(), int(call.attribute("num_groups")), call.attribute("epsilon", 1e-5)
    _require_known_statistics(call)
    if call.version >= 21:
        return call.give(ops.group_norm(x, call.x(1), call.x(2), groups=groups, eps=eps))
    channels = x.shape[1]  # before version 21 a scale for each group
    each = [
        ops.reshape(stretched(ops, ops.unsqueeze(call.x(i), axis=1), (groups, channels // groups)), shape=(channels,))
        for i in (1, 2)
    ]
    return call.give(ops.group_norm(x, *each, groups=groups, eps=eps))


@rule("LpNormalization")
def _lp_norm(call: NodeCall[Any]) -> Value:
    ops, x, axis, p = call.ops, call.x(), call.axis(-1), int(call.attribute("p", 2))
    size = ops.reduce_sum(ops.abs(x) if p == 1 else ops.mul(x, x), axis=axis, keepdims=True)
    size = size if p == 1 else ops.sqrt(size)
    nothing = ops.full(shape=size.shape, value=0.0)  # rows of length 0 stay zeros
    size = ops.select(ops.equal(size, nothing), ops.full(shape=size.shape, value=1.0), size)
    return call.give(ops.div(x, stretched(ops, size, x.shape)))


@rule("MeanVarianceNormalization")
def _mean_variance(call: NodeCall[Any]) -> Value:
    ops, x, axes = call.ops, call.x(), tuple(call.attribute("axes", [0, 2, 3]))
    centred = ops.sub(x, stretched(ops, ops.reduce_mean(x, axis=axes, keepdims=True), x.shape))
    variance = ops.reduce_mean(ops.mul(centred, centred), axis=axes, keepdims=True)
    deviation = ops.add(ops.sqrt(variance), ops.full(shape=variance.shape, value=1e-9))
    return call.give(ops.div(centred, stretched(ops, deviation, x.shape)))


@rule("LRN")
def _local_response(call: NodeCall[Any]) -> Value:
    size = int(call.attribute("size"))
    alpha, beta, bias = call.attribute("alpha", 1e-4), call.attribute("beta", 0.75), call.attribute("bias", 1.0)
    around = {"size": size, "before": (size - 1) // 2}
    return call.give(local_response_norm(call.ops, call.x(), alpha=alpha, beta=beta, k=bias, **around))
