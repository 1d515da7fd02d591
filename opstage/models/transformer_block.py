"""The transformer block, plain functions over Ops, and its initialisation: models add positions and choose `causal`.

Vaswani et al., Attention is all you need, 2017; normalised before each sublayer as in Radford et al., Language models
are unsupervised multitask learners, 2019.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..init import xavier_uniform
from ..ops.derived import dropout
from ..ops.dims import Dim
from ..ops.errors import UsageError
from ..ops.protocol import Ops, R
from .layers import Tree, layer_norm, linear_init, norm_init
from .parallel import column_linear, row_linear, share


@dataclass(frozen=True)
class Block:
    """The configuration of a model's blocks: `width` numbers per position, `heads`, a hidden layer of `hidden` units.

    With `causal`, positions do not attend to later ones. Frozen and hashable, so that it can be passed to a region.
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
    """Return declarations of one of `depth` blocks: `norm1`, `attention.query|key|value|out`, `norm2`, `mlp.up|down`.

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

    The ranks of mesh axis `model` shard the heads, and in `mlp` the hidden units.
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
    """Apply two linear layers, with a GELU between them, to each position."""
    out: R = _rows(ops, params["down"], ops.gelu(_columns(ops, params["up"], x)))
    return out


def _columns(ops: Ops[R], params: Mapping[str, Any], x: R) -> R:
    y: R = column_linear(ops, params["weight"], params["bias"], x)
    return y


def _rows(ops: Ops[R], params: Mapping[str, Any], x: R) -> R:
    y: R = row_linear(ops, params["weight"], params["bias"], x)
    return y
