"""Layers that models share: plain functions over Ops, and the declarations of their parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..init import Declaration, Initialiser, kaiming_uniform, ones, zeros
from ..ops.protocol import Ops, R

Tree = dict[str, Any]


def linear_init(inputs: int, outputs: int, weight: Initialiser | None = None) -> Tree:
    """Weight (outputs, inputs), by He et al. 2015 unless an initialiser is given; bias 0."""
    weight = kaiming_uniform() if weight is None else weight
    return {"weight": Declaration((outputs, inputs), weight), "bias": Declaration((outputs,), zeros)}


def linear(ops: Ops[R], params: Mapping[str, R], x: R) -> R:
    """x · weightᵀ + bias over the last axis."""
    return ops.linear(params["weight"], params["bias"], x)


def conv_init(inputs: int, outputs: int, kernel: tuple[int, ...]) -> Tree:
    """Kernel (outputs, inputs, *kernel) by He et al. 2015, bias 0."""
    return {
        "kernel": Declaration((outputs, inputs, *kernel), kaiming_uniform()),
        "bias": Declaration((outputs,), zeros),
    }


def conv(ops: Ops[R], params: Mapping[str, R], x: R, *, stride: int = 1, padding: int = 0) -> R:
    """Cross-correlation of channels-first x with the layer's kernel."""
    return ops.conv(params["kernel"], params["bias"], x, stride=stride, padding=padding)


def layer_norm_init(width: int) -> Tree:
    """gamma 1, beta 0, each (width,)."""
    return {"gamma": Declaration((width,), ones), "beta": Declaration((width,), zeros)}


def layer_norm(ops: Ops[R], params: Mapping[str, R], x: R) -> R:
    """Layer normalisation over the last axis."""
    return ops.layer_norm(x, params["gamma"], params["beta"])
