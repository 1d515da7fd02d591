"""Activations, softmax, dropout, random tensors, normalisations and losses."""

from __future__ import annotations

import math
from typing import Any

from ....ops.adaptive_pooling import instance_norm
from ....ops.derived import dropout, prelu
from ....ops.dims import prod, ratio
from ....ops.errors import UnsupportedError
from ....ops.types import BOOL
from ...operators import likelihood
from ..call import AtenCall, rule

# Activations and softmax ----------------------------------------------------------------------------------------------


@rule("log_sigmoid_forward.default")
def _log_sigmoid_forward(call: AtenCall[Any], x: Any) -> Any:
    return [call.give(call.ops.log_sigmoid(x.ref), 0), None]


@rule("elu.default")
def _elu(call: AtenCall[Any], x: Any, alpha: float, scale: float, input_scale: float) -> Any:
    ops = call.ops
    if input_scale == 1:
        y = ops.elu(x.ref, alpha=alpha)
    else:  # x above 0, alpha·(e^(input_scale·x) - 1) below
        below = ops.scale(ops.expm1(ops.scale(ops.minimum(x.ref, 0.0), c=input_scale)), c=alpha)
        y = ops.select(ops.less(0.0, x.ref), x.ref, below)
    return call.give(y if scale == 1 else ops.scale(y, c=scale))


@rule("softplus.default")
def _softplus(call: AtenCall[Any], x: Any, beta: float, threshold: float) -> Any:
    ops = call.ops
    scaled = x.ref if beta == 1 else ops.scale(x.ref, c=beta)
    y = ops.softplus(scaled)
    y = y if beta == 1 else ops.scale(y, c=1 / beta)
    return call.give(ops.select(ops.less(float(threshold), scaled), x.ref, y))


@rule("prelu.default", "_prelu_kernel.default")
def _prelu(call: AtenCall[Any], x: Any, weight: Any) -> Any:
    slope = weight.ref if x.shape else call.ops.reshape(weight.ref, shape=())
    return call.give(prelu(call.ops, x.ref, slope))


@rule("softmax.int", "_softmax.default", "log_softmax.int", "_log_softmax.default")
def _softmax(call: AtenCall[Any], x: Any, axis: int) -> Any:
    ref = call.floats(x)
    if not ref.shape:
        return call.full((), 0.0 if "log" in call.name else 1.0)
    return call.give((call.ops.log_softmax if "log" in call.name else call.ops.softmax)(ref, axis=axis))


# Dropout: each call draws anew, by seed and site, not with PyTorch's bits ---------------------------------------------


@rule("opstage_import.dropout.default")
def _dropout(call: AtenCall[Any], x: Any, p: float, train: bool, kind: str) -> Any:
    if not call.around.trains(call.node) or p == 0:
        return x
    ops, shape = call.ops, x.shape
    if "feature" in kind:  # whole channels
        shape = (*shape[:2], *[1] * (len(shape) - 2))
    ones = ops.full(shape=shape, value=1.0)
    if "alpha" not in kind:
        kept = dropout(ops, ones, p=p, train=True)
        return call.give(ops.mul(x.ref, call.stretched(kept, x.shape)))
    alpha = 1.7580993408473766  # -lim selu, Klambauer et al. 2017
    a = 1 / math.sqrt((alpha * alpha * p + 1) * (1 - p)) if p < 1 else 0.0
    kept = ops.scale(dropout(ops, ones, p=p, train=True), c=1 - p)
    kept = call.stretched(kept, x.shape)
    shift = ops.add(ops.scale(ops.sub(kept, 1.0), c=alpha * a), alpha * a * p)
    return call.give(ops.add(ops.mul(x.ref, ops.scale(kept, c=a)), shift))


@rule("native_dropout.default")
def _native_dropout(call: AtenCall[Any], x: Any, p: float, train: Any) -> Any:
    ops = call.ops
    if not call.around.trains(call.node) or p == 0:
        return [call.give(x.ref, 0), call.give(ops.full(shape=x.shape, value=True, dtype=BOOL), 1)]
    kept = dropout(ops, ops.full(shape=x.shape, value=1.0), p=p, train=True)
    there = ops.logical_not(ops.equal(kept, 0.0))
    return [call.give(ops.mul(x.ref, kept), 0), call.give(there, 1)]


@rule("rrelu_with_noise_functional.default", "rrelu.default", "rrelu_with_noise.default")
def _rrelu(call: AtenCall[Any], x: Any, *rest: Any) -> Any:
    """In evaluation, a leaky ReLU with the mean slope."""
    low, high, trains = rest if call.name == "aten.rrelu" else rest[1:4]
    if trains:
        raise UnsupportedError("its slopes are drawn in training; export the module in evaluation")
    y = call.give(call.ops.leaky_relu(x.ref, negative_slope=(low + high) / 2), 0)
    return [y, None] if "functional" in call.name else y


# Random tensors -------------------------------------------------------------------------------------------------------


@rule("rand.default", "rand_like.default", "randn.default", "randn_like.default")
def _drawn(call: AtenCall[Any], given: Any) -> Any:
    shape = given.shape if "like" in call.name else tuple(given)
    return call.give((call.ops.rand_normal if "randn" in call.name else call.ops.rand_uniform)(shape=shape))


@rule("bernoulli.default", "bernoulli.p")
def _bernoulli(call: AtenCall[Any], x: Any, p: Any = None) -> Any:
    ops = call.ops
    chance = x.ref if p is None else ops.full(shape=x.shape, value=float(p))
    return call.give(ops.less(ops.rand_uniform(shape=x.shape), chance))


@rule("randint.default", "randint.low", "randint_like.default", "randint_like.low_dtype")
def _randint(call: AtenCall[Any], *given: Any) -> Any:
    ops = call.ops
    if "like" in call.name:
        shape, bounds = given[0].shape, given[1:]
    else:
        shape, bounds = tuple(given[-1]), given[:-1]
    low, high = (0, *bounds) if len(bounds) == 1 else bounds
    if not (isinstance(low, int) and isinstance(high, int)):
        raise UnsupportedError("its bounds must be numbers")
    whole = ops.floor(ops.scale(ops.rand_uniform(shape=shape), c=high - low))
    return call.give(ops.add(ops.cast(ops.minimum(whole, float(high - low - 1)), dtype="int64"), low))


@rule("normal.float_float")
def _normal(call: AtenCall[Any], mean: float, deviation: float, shape: Any) -> Any:
    ops = call.ops
    return call.give(ops.add(ops.scale(ops.rand_normal(shape=tuple(shape)), c=deviation), mean))


_COUNT = "num_batches_tracked"


def _ref(value: Any) -> Any:
    return None if value is None else value.ref


# Batch normalisation --------------------------------------------------------------------------------------------------


@rule("_native_batch_norm_legit_no_training.default")
def _evaluated(call: AtenCall[Any], x: Any, g: Any, b: Any, mean: Any, var: Any, momentum: float, eps: float) -> Any:
    """Normalise by running statistics; in training by the batch's, which then update the buffers and the batch
    count."""
    if not call.around.trains(call.node):
        return [_by(call, x, g, b, mean, var, eps), None, None]
    names = [call.around.place(call.node, i) for i in (3, 4)]
    if None in names:
        raise UnsupportedError("its running statistics are not buffers, so training cannot move them")
    old = [call.around.buffer(str(name)) for name in names]
    y, new_mean, new_var = _of_batch(call, x, g, b, old[0], old[1], momentum, eps)
    for name, value in zip(names, (new_mean, new_var)):
        call.around.keep(str(name), value)
    count = f"{str(names[0]).rpartition('.')[0]}.{_COUNT}".removeprefix(".")
    counted = call.around.buffer(count)
    if counted is not None:
        call.around.keep(count, call.ops.add(counted, 1))
    return [y, None, None]


@rule("_native_batch_norm_legit_functional.default", "_native_batch_norm_legit.default")
def _trained(
    call: AtenCall[Any], x: Any, g: Any, b: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float
) -> Any:
    """Return the result, unused inputs of the gradient, and the statistics after this step."""
    if not (call.around.trains(call.node) and training):
        return [_by(call, x, g, b, mean, var, eps), None, None, mean, var]
    y, new_mean, new_var = _of_batch(call, x, g, b, mean.ref, var.ref, momentum, eps)
    return [y, None, None, call.give(new_mean, 3), call.give(new_var, 4)]


@rule("_native_batch_norm_legit.no_stats")
def _without_statistics(
    call: AtenCall[Any], x: Any, g: Any, b: Any, training: bool, momentum: float, eps: float
) -> Any:
    y, _, _ = call.ops.batch_norm(x.ref, _ref(g), _ref(b), channel_axis=1, eps=eps)
    return [call.give(y, 0), None, None]


def _by(call: AtenCall[Any], x: Any, g: Any, b: Any, mean: Any, var: Any, eps: float) -> Any:
    ops, channels = call.ops, (x.shape[1],)
    gamma = call.ops.full(shape=channels, value=1.0) if g is None else g.ref
    beta = call.ops.full(shape=channels, value=0.0) if b is None else b.ref
    y = ops.batch_norm_eval(x.ref, gamma, beta, mean.ref, var.ref, channel_axis=1, eps=eps)
    return call.give(y, 0)


def _of_batch(
    call: AtenCall[Any], x: Any, g: Any, b: Any, mean: Any, var: Any, momentum: float, eps: float
) -> tuple[Any, Any, Any]:
    """Normalise by the batch's statistics, and update running ones by `momentum`, the variance with the unbiased
    one."""
    ops = call.ops
    y, batch_mean, unbiased = ops.batch_norm(x.ref, _ref(g), _ref(b), channel_axis=1, eps=eps)
    moved = [
        ops.detach(ops.add(ops.scale(old, c=1 - momentum), ops.scale(new, c=momentum)))
        for old, new in ((mean, batch_mean), (var, unbiased))
    ]
    return call.give(y, 0), moved[0], moved[1]


@rule("instance_norm.default")
def _instance_norm(
    call: AtenCall[Any], x: Any, g: Any, b: Any, mean: Any, var: Any, own: bool, momentum: float, eps: float
) -> Any:
    if mean is not None or not own:
        raise UnsupportedError("running statistics of each image are not known; track_running_stats=False has none")
    return call.give(instance_norm(call.ops, x.ref, _ref(g), _ref(b), eps=eps))


# Layers, groups -------------------------------------------------------------------------------------------------------


def _over_last(ops: Any, x: Any, count: int, inner: Any) -> Any:
    """Apply a function of the last axis to the last `count` axes, flattened."""
    if count == 1:
        return inner(x)
    lead, last = x.shape[:-count], x.shape[-count:]
    return ops.reshape(inner(ops.reshape(x, shape=(*lead, prod(last)))), shape=x.shape)


def _flat(ops: Any, value: Any) -> Any:
    if value is None:
        return None
    return value.ref if len(value.shape) == 1 else ops.reshape(value.ref, shape=(prod(value.shape),))


@rule("layer_norm.default", "native_layer_norm.default")
def _layer_norm(call: AtenCall[Any], x: Any, shape: Any, g: Any, b: Any, eps: float) -> Any:
    ops, native = call.ops, "native" in call.name
    if native and call.node.used - {0}:
        raise UnsupportedError("its mean and deviation, its second and third results, are not made here")
    gamma, beta = _flat(ops, g), _flat(ops, b)
    if gamma is None and beta is not None:
        gamma = ops.full(shape=beta.shape, value=1.0)
    y = _over_last(ops, x.ref, len(shape), lambda each: ops.layer_norm(each, gamma, beta, eps=eps))
    return [call.give(y, 0), None, None] if native else call.give(y)


_SMALLEST = {"float32": 1.1920928955078125e-07, "float64": 2.220446049250313e-16}


@rule("rms_norm.default")
def _rms_norm(call: AtenCall[Any], x: Any, shape: Any, g: Any, eps: Any) -> Any:
    ops = call.ops
    eps = _SMALLEST[str(call.dtype())] if eps is None else eps
    return call.give(_over_last(ops, x.ref, len(shape), lambda each: ops.rms_norm(each, _flat(ops, g), eps=eps)))


@rule("native_group_norm.default")
def _native_group_norm(
    call: AtenCall[Any], x: Any, g: Any, b: Any, n: Any, c: Any, size: Any, groups: int, eps: float
) -> Any:
    return [call.give(call.ops.group_norm(x.ref, _ref(g), _ref(b), groups=groups, eps=eps), 0), None, None]


# Losses ---------------------------------------------------------------------------------------------------------------

_REDUCTIONS = ("none", "mean", "sum")


def _reduced(call: AtenCall[Any], terms: Any, reduction: int) -> Any:
    ops = call.ops
    if reduction == 0:
        return call.give(terms)
    total = ops.sum(terms)
    return call.give(total if reduction == 2 else ops.scale(total, c=ratio(1, prod(terms.shape))))


@rule("mse_loss.default", "l1_loss.default")
def _distance(call: AtenCall[Any], x: Any, y: Any, reduction: int) -> Any:
    ops = call.ops
    away = ops.sub(*call.together(x, y))
    return _reduced(call, ops.square(away) if "mse" in call.name else ops.abs(away), reduction)


@rule("cross_entropy_loss.default")
def _cross_entropy(
    call: AtenCall[Any], logits: Any, labels: Any, weight: Any, reduction: int, ignored: int, smoothing: float
) -> Any:
    ops = call.ops
    if labels.dtype.kind == "f":
        raise UnsupportedError("labels that are probabilities are not known; those that are numbers of classes are")
    target = ops.cast(labels.ref, dtype="int64")
    static: Any = {"reduction": _REDUCTIONS[reduction], "ignore_index": ignored, "label_smoothing": smoothing}
    if weight is not None:
        static["weight"] = weight.ref
    return call.give(ops.cross_entropy(logits.ref, target, **static))


@rule("nll_loss_forward.default", "nll_loss2d_forward.default")
def _nll(call: AtenCall[Any], logs: Any, labels: Any, weight: Any, reduction: int, ignored: int) -> Any:
    """Compute the loss of log-probabilities, which softmax leaves unchanged since their exponentials sum to 1."""
    ops = call.ops
    index, weights = ops.cast(labels.ref, dtype="int64"), _ref(weight)
    terms, each = likelihood(ops, logs.ref, index, weights, ignored)
    total = ops.sum(each)
    if reduction == 0:
        return [call.give(terms, 0), call.give(total, 1)]
    result = ops.sum(terms) if reduction == 2 else ops.div(ops.sum(terms), total)
    return [call.give(result, 0), call.give(total, 1)]
