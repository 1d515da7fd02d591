"""Layers shared by models, the loss of classifiers, and the transformer block: plain functions over Ops.

Vaswani et al., Attention is all you need, 2017; normalised before each sublayer as in Radford et al., Language models
are unsupervised multitask learners, 2019.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..init import Declaration, Initialiser, kaiming_uniform, ones, xavier_uniform, zeros
from ..ops.derived import correct_count, dropout
from ..ops.dims import Dim
from ..ops.errors import UsageError
from ..ops.protocol import Ops, R
from .parallel import column_linear, row_linear, share

# Dense layers ---------------------------------------------------------------------------------------------------------

Tree = dict[str, Any]


def linear_init(inputs: int, outputs: int, weight: Initialiser | None = None) -> Tree:
    """Weight (outputs, inputs), by He et al. 2015 unless an initialiser is given; bias 0."""
    weight = kaiming_uniform() if weight is None else weight
    return {"weight": Declaration((outputs, inputs), weight), "bias": Declaration((outputs,), zeros)}


def linear(ops: Ops[R], params: Mapping[str, R], x: R) -> R:
    """x · weightᵀ + bias over the last axis."""
    return ops.linear(params["weight"], params["bias"], x)


def dense(ops: Ops[R], params: Mapping[str, R], x: R, p: float = 0.0, train: bool = False) -> R:
    """A linear layer, relu, and dropout with probability p."""
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
    """A square convolution without bias, `conv`, and the norm after it, `norm`."""
    return {"conv": conv_init(inputs, outputs, (kernel, kernel), bias=False), "norm": norm_init(outputs)}


def layer_norm(ops: Ops[R], params: Mapping[str, R], x: R) -> R:
    """Layer normalisation over the last axis."""
    return ops.layer_norm(x, params["gamma"], params["beta"])


def group_norm(ops: Ops[R], params: Mapping[str, R], x: R, *, groups: int) -> R:
    """Normalisation of channels-first x over groups of its channels, separately for each sample."""
    return ops.group_norm(x, params["gamma"], params["beta"], groups=groups)


def batch_norm_state(channels: int) -> Tree:
    """The running statistics that `batch_norm` starts from: mean 0 and variance 1, each (channels,)."""
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


# Classifiers ----------------------------------------------------------------------------------------------------------


def classifier_loss(ops: Ops[R], logits: R, labels: R, *, smoothing: float, train: bool) -> R:
    """Mean cross-entropy of the batch; labels are smoothed only in training."""
    return ops.cross_entropy(logits, labels, label_smoothing=smoothing if train else 0.0)


def classifier_outputs(ops: Ops[R], logits: R) -> dict[str, R]:
    """The predictions of a classifier: `class`, the most likely one, int64 (B,), and `probabilities` (B, classes)."""
    return {"class": ops.argmax(logits, axis=-1), "probabilities": ops.softmax(logits, axis=-1)}


def classifier_metrics(ops: Ops[R], logits: R, labels: R) -> dict[str, R]:
    """Sums over the batch, which add up over batches: `loss`, and `accuracy`, the number of correct predictions."""
    return {
        "loss": ops.cross_entropy(logits, labels, reduction="sum"),
        "accuracy": correct_count(ops, logits, labels),
    }


@dataclass(frozen=True)
class Block:
    """The configuration of a model's blocks: `width` numbers for each position, `heads` that divide them among
    themselves, and a hidden layer of `hidden` units. With `causal`, no position attends to a later one. Frozen and
    hashable, so that it can be handed to a region.
    """

    width: int
    heads: int
    hidden: int
    causal: bool = False
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise UsageError(
                f"width={self.width} cannot be divided among heads={self.heads}; expected a multiple of the heads"
            )


def block_init(block: Block, *, depth: int = 1) -> Tree:
    """Declarations of one of `depth` blocks: `norm1`, `attention.query|key|value|out`, `norm2`, `mlp.up|down`.

    The layers that write to the residual stream start smaller by 1/√(2·depth), so that the stream's variance does not
    grow with the depth (Radford et al. 2019).
    """
    quiet = xavier_uniform(gain=1 / math.sqrt(2 * depth))
    dense = xavier_uniform()
    return {
        "norm1": norm_init(block.width),
        "attention": {
            "query": linear_init(block.width, block.width, dense),
            "key": linear_init(block.width, block.width, dense),
            "value": linear_init(block.width, block.width, dense),
            "out": linear_init(block.width, block.width, quiet),
        },
        "norm2": norm_init(block.width),
        "mlp": {
            "up": linear_init(block.width, block.hidden, dense),
            "down": linear_init(block.hidden, block.width, quiet),
        },
    }


def transformer_block(ops: Ops[R], params: Mapping[str, Any], x: R, block: Block, train: bool = False) -> R:
    """x + attention(norm(x)), then x + mlp(norm(x)), for x (B, T, width); dropout after each in training."""
    h = ops.region("attention", attention, params["attention"], layer_norm(ops, params["norm1"], x), block)
    x = ops.add(x, dropout(ops, h, p=block.dropout, train=train))
    h = ops.region("mlp", mlp, params["mlp"], layer_norm(ops, params["norm2"], x))
    return ops.add(x, dropout(ops, h, p=block.dropout, train=train))


def attention(ops: Ops[R], params: Mapping[str, Any], x: R, block: Block) -> R:
    """Self-attention of (B, T, width) with `block.heads` heads, each of width/heads numbers.

    The ranks of mesh axis `model` share out the heads, and in `mlp` the hidden units.
    """
    *_, positions, _ = x.shape
    own, each = share(ops, block.heads, "heads"), block.width // block.heads
    heads = [_heads(ops, _columns(ops, params[name], x), own, each) for name in ("query", "key", "value")]
    merged = ops.permute(ops.scaled_dot_product_attention(*heads, causal=block.causal), axes=(0, 2, 1, 3))
    out: R = _rows(ops, params["out"], ops.reshape(merged, shape=(x.shape[0], positions, own * each)))
    return out


def _heads(ops: Ops[R], x: R, heads: Dim, each: int) -> R:
    """(B, T, heads·each) -> (B, heads, T, each)."""
    batch, positions, _ = x.shape
    return ops.permute(ops.reshape(x, shape=(batch, positions, heads, each)), axes=(0, 2, 1, 3))


def mlp(ops: Ops[R], params: Mapping[str, Any], x: R) -> R:
    """Two linear layers with a GELU between them, applied to each position."""
    out: R = _rows(ops, params["down"], ops.gelu(_columns(ops, params["up"], x)))
    return out


def _columns(ops: Ops[R], params: Mapping[str, Any], x: R) -> R:
    y: R = column_linear(ops, params["weight"], params["bias"], x)
    return y


def _rows(ops: Ops[R], params: Mapping[str, Any], x: R) -> R:
    y: R = row_linear(ops, params["weight"], params["bias"], x)
    return y
