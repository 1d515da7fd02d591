"""Layers shared by models: plain functions over Ops, and the declarations of their parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..init import Declaration, Initialiser, kaiming_uniform, ones, zeros
from ..ops.derived import dropout
from ..ops.protocol import Ops, R

Tree = dict[str, Any]


def linear_init(inputs: int, outputs: int, weight: Initialiser | None = None) -> Tree:
    """Weight (outputs, inputs), by He et al. 2015 unless an initialiser is given; bias 0."""
    weight = kaiming_uniform() if weight is None else weight
    return {"weight": Declaration((outputs, inputs), weight), "bias": Declaration((outputs,), zeros)}


def linear(ops: Ops[R], params: Mapping[str, R], x: R) -> R:
    """x · weightᵀ + bias over the last axis."""
    return ops.linear(params["weight"], params["bias"], x)


def dense(ops: Ops[R], params: Mapping[str, R], x: R, p: float = 0.0, train: bool = False) -> R:
    """Apply a linear layer, relu, and dropout with probability p."""
    return dropout(ops, ops.relu(linear(ops, params, x)), p=p, train=train)


def conv_init(inputs: int, outputs: int, kernel: tuple[int, ...], *, bias: bool = True) -> Tree:
    """Kernel (outputs, inputs, *kernel) by He et al. 2015, bias 0 if there is one: a norm after it has its own."""
    params = {"kernel": Declaration((outputs, inputs, *kernel), kaiming_uniform())}
    return {**params, "bias": Declaration((outputs,), zeros)} if bias else params


def conv(ops: Ops[R], params: Mapping[str, R], x: R, *, stride: int = 1, padding: int = 0) -> R:
    """Cross-correlation of channels-first x with the layer's kernel."""
    return ops.conv(params["kernel"], params.get("bias"), x, stride=stride, padding=padding)


def norm_init(channels: int) -> Tree:
    """gamma 1 and beta 0, each (channels,): the affine map after a normalisation."""
    return {"gamma": Declaration((channels,), ones), "beta": Declaration((channels,), zeros)}


def conv_norm_init(inputs: int, outputs: int, kernel: int) -> Tree:
    """Declare a square convolution without bias, `conv`, and the norm after it, `norm`."""
    return {"conv": conv_init(inputs, outputs, (kernel, kernel), bias=False), "norm": norm_init(outputs)}


def layer_norm(ops: Ops[R], params: Mapping[str, R], x: R) -> R:
    """Layer normalisation over the last axis."""
    return ops.layer_norm(x, params["gamma"], params["beta"])


def group_norm(ops: Ops[R], params: Mapping[str, R], x: R, *, groups: int) -> R:
    """Normalisation of channels-first x over groups of its channels, separately for each sample."""
    return ops.group_norm(x, params["gamma"], params["beta"], groups=groups)


def batch_norm_state(channels: int) -> Tree:
    """Return the running statistics that `batch_norm` starts from: mean 0 and variance 1, each (channels,)."""
    return {"mean": Declaration((channels,), zeros), "variance": Declaration((channels,), ones)}


def batch_norm(
    ops: Ops[R], params: Mapping[str, R], state: Mapping[str, R], x: R, *, train: bool, momentum: float = 0.1
) -> tuple[R, dict[str, R]]:
    """Batch normalisation of channels-first x, and the new running statistics.

    In training by the statistics of the batch, which move the running ones by `momentum`:
    running ← (1 - momentum)·running + momentum·batch. Otherwise by the running ones, which stay.
    Source: Ioffe, Szegedy, Batch normalization, 2015; PyTorch: torch.nn.BatchNorm2d.
    """
    gamma, beta = params["gamma"], params["beta"]
    if not train:
        return ops.batch_norm_eval(x, gamma, beta, state["mean"], state["variance"]), dict(state)
    y, mean, variance = ops.batch_norm(x, gamma, beta)
    batch = {"mean": mean, "variance": variance}
    return y, {
        name: ops.add(ops.scale(state[name], c=1 - momentum), ops.scale(value, c=momentum))
        for name, value in batch.items()
    }
