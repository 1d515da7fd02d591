"""Activations, softmax, dropout."""

from __future__ import annotations

import math
from typing import Any

from ...ops.derived import dropout, glu, prelu
from ...ops.errors import UnsupportedError
from ...ops.types import BOOL
from ..call import AtenCall, rule


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


@rule("glu.default")
def _glu(call: AtenCall[Any], x: Any, axis: int) -> Any:
    return call.give(glu(call.ops, x.ref, axis=axis))


# Dropout: each call draws anew, by seed and site, not with PyTorch's bits --------------------------------------------


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
