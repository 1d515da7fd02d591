"""Normalisations."""

from __future__ import annotations

from typing import Any

from ...ops.dims import prod
from ...ops.errors import UnsupportedError
from ...ops.functions.pools import instance_norm
from ..call import AtenCall, rule

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


@rule("group_norm.default")
def _group_norm(call: AtenCall[Any], x: Any, groups: int, g: Any, b: Any, eps: float) -> Any:
    return call.give(call.ops.group_norm(x.ref, _ref(g), _ref(b), groups=groups, eps=eps))


@rule("native_group_norm.default")
def _native_group_norm(
    call: AtenCall[Any], x: Any, g: Any, b: Any, n: Any, c: Any, size: Any, groups: int, eps: float
) -> Any:
    return [call.give(call.ops.group_norm(x.ref, _ref(g), _ref(b), groups=groups, eps=eps), 0), None, None]
