"""Activations, softmax, dropout, losses on class indices; normalisations, import and export.

ONNX's normalisations compute eps and statistics in float32, so programs in float64 and forms that it lacks are exported
by their decompositions.
"""

from __future__ import annotations

from typing import Any

from ....ops import normalization
from ....ops.adaptive_pooling import local_response_norm
from ....ops.derived import dropout, prelu
from ....ops.dims import prod, ratio
from ....ops.errors import UnsupportedError
from ....ops.types import BOOL, FLOAT32, FLOAT64, TensorType
from ...operators import likelihood
from ...values import Value, is_bfloat16, stretched
from ..file import dtype_of
from ..graph import NodeCall, rule
from ..writer import OnnxValue, OnnxWriter, exports

# Activations, softmax, dropout ----------------------------------------------------------------------------------------

_SELU_ALPHA, _SELU_GAMMA = 1.67326319217681884765625, 1.05070102214813232421875


@rule("Selu")
def _selu(call: NodeCall[Any]) -> Value:
    ops = call.ops
    alpha, gamma = (call.attribute("alpha", _SELU_ALPHA), call.attribute("gamma", _SELU_GAMMA))
    return call.give(ops.scale(ops.elu(call.x(), alpha=alpha), c=gamma))


@rule("PRelu")
def _prelu(call: NodeCall[Any]) -> Value:
    ops, x = call.ops, call.x()
    return call.give(prelu(ops, x, stretched(ops, call.x(1), x.shape)))


@rule("HardSigmoid")
def _hard_sigmoid(call: NodeCall[Any]) -> Value:
    ops, x, alpha = call.ops, call.x(), call.attribute("alpha", 0.2)
    return call.give(ops.clamp(ops.add(ops.scale(x, c=alpha), call.attribute("beta", 0.5)), lo=0.0, hi=1.0))


@rule("Shrink")
def _shrink(call: NodeCall[Any]) -> Value:
    ops, x = call.ops, call.ops.cast(call.x(), dtype=call.ops.dtype)
    bias, limit = call.attribute("bias", 0.0), call.attribute("lambd", 0.5)
    above = ops.select(ops.less(limit, x), ops.sub(x, bias), 0.0)
    y = ops.select(ops.less(x, -limit), ops.add(x, bias), above)
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


# Losses on class indices ----------------------------------------------------------------------------------------------


def _likelihood(call: NodeCall[Any], logs: Any) -> Any:
    """Return -log p of each label, weighted by class; `mean` divides by the weights of labels that are not ignored."""
    ops, labels, weight = call.ops, call.ops.cast(call.x(1), dtype="int64"), call.x(2) if call.has(2) else None
    losses, weights = likelihood(ops, logs, labels, weight, call.attribute("ignore_index"))
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
    scale = ops.pow(ops.add(variance, eps), exponent=-0.5)
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
    scale = ops.pow(ops.add(square, eps), exponent=-0.5)
    return call.give(ops.mul(ops.mul(x, stretched(ops, scale, x.shape)), stretched(ops, call.x(1), x.shape)))


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
    size = ops.select(ops.equal(size, 0.0), 1.0, size)  # rows of length 0 stay zeros
    return call.give(ops.div(x, stretched(ops, size, x.shape)))


@rule("MeanVarianceNormalization")
def _mean_variance(call: NodeCall[Any]) -> Value:
    ops, x, axes = call.ops, call.x(), tuple(call.attribute("axes", [0, 2, 3]))
    centred = ops.sub(x, stretched(ops, ops.reduce_mean(x, axis=axes, keepdims=True), x.shape))
    variance = ops.reduce_mean(ops.mul(centred, centred), axis=axes, keepdims=True)
    return call.give(ops.div(centred, stretched(ops, ops.add(ops.sqrt(variance), 1e-9), x.shape)))


@rule("LRN")
def _local_response(call: NodeCall[Any]) -> Value:
    size = int(call.attribute("size"))
    alpha, beta, bias = call.attribute("alpha", 1e-4), call.attribute("beta", 0.75), call.attribute("bias", 1.0)
    around = {"size": size, "before": (size - 1) // 2}
    return call.give(local_response_norm(call.ops, call.x(), alpha=alpha, beta=beta, k=bias, **around))


# Normalisations: export -----------------------------------------------------------------------------------------------


@exports(normalization.LAYER_NORM)
def _write_layer_norm(
    writer: OnnxWriter, x: OnnxValue, *affine: OnnxValue, has_gamma: bool, has_beta: bool, eps: float
) -> tuple[str, ...] | None:
    if x.dtype != FLOAT32:
        return None
    if not has_gamma:
        affine = (_write_ones(writer, x, len(x.shape) - 1), *affine)
    return writer.outputs_of("LayerNormalization", x, *affine, count=3, axis=-1, epsilon=float(eps))


@exports(normalization.BATCH_NORM_EVAL)
def _write_batch_norm_eval(
    writer: OnnxWriter, x: OnnxValue, *rest: OnnxValue, has_gamma: bool, has_beta: bool, channel_axis: int, eps: float
) -> str | None:
    if x.dtype != FLOAT32 or channel_axis != 1:
        return None
    *affine, mean, variance = rest
    gamma = affine[0] if has_gamma else _write_ones(writer, x, 1)
    beta = affine[-1] if has_beta else _write_along(writer, x, 1, 0.0)
    return writer.node("BatchNormalization", x, gamma, beta, mean, variance, epsilon=float(eps))


def _write_ones(writer: OnnxWriter, x: OnnxValue, axis: int) -> OnnxValue:
    return _write_along(writer, x, axis, 1.0)


def _write_along(writer: OnnxWriter, x: OnnxValue, axis: int, value: float) -> OnnxValue:
    """Return a vector of one number along an axis of x."""
    type_ = TensorType((x.shape[axis],), x.dtype)
    return OnnxValue(writer.filled(type_.shape, value, x.dtype), type_, writer)
