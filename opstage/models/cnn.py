"""A small convolutional network for classification: blocks of convolutions and a pool, and two dense layers."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ..data.builtin_datasets import held_out_digits
from ..ops.derived import dropout
from ..ops.protocol import Ops, R
from .classify import classifier_loss, classifier_metrics, classifier_outputs
from .layers import conv, conv_init, linear, linear_init
from .model import Model, Recipe, image_batch, of_programs


@dataclass(frozen=True)
class Config:
    """Images (B, inputs, height, width); for each entry of `channels` two 3x3 convolutions and a 2x2 pool."""

    inputs: int = 1
    height: int = 8
    width: int = 8
    channels: tuple[int, ...] = (32, 64)
    dense: int = 128
    classes: int = 10
    dropout: float = 0.3
    label_smoothing: float = 0.05


def init(config: Config) -> dict[str, Any]:
    """Return declarations of the parameters: `blocks.0.first.kernel`, …, `dense.weight`, `head.weight`."""
    sizes = (config.inputs, *config.channels)
    blocks = [{"first": conv_init(a, b, (3, 3)), "second": conv_init(b, b, (3, 3))} for a, b in pairwise(sizes)]
    shrink = 2 ** len(config.channels)
    features = sizes[-1] * (config.height // shrink) * (config.width // shrink)
    return {
        "blocks": blocks,
        "dense": linear_init(features, config.dense),
        "head": linear_init(config.dense, config.classes),
    }


def logits(ops: Ops[R], params: dict[str, Any], x: R, *, config: Config, train: bool = False) -> R:
    """Map images (B, inputs, height, width) to logits (B, classes)."""
    for i, block in enumerate(params["blocks"]):
        x = ops.region(f"blocks.{i}", _block, block, x)
    h = ops.region("dense", linear, params["dense"], ops.flatten(x, start=1))
    h = dropout(ops, ops.relu(h), p=config.dropout, train=train)
    out: R = ops.region("head", linear, params["head"], h)
    return out


def _block(ops: Ops[R], block: dict[str, Any], x: R) -> R:
    x = ops.relu(conv(ops, block["first"], x, padding=1))
    x = ops.relu(conv(ops, block["second"], x, padding=1))
    return ops.max_pool2d(x, kernel=2)


def loss(ops: Ops[R], params: dict[str, Any], x: R, y: R, *, config: Config, train: bool = False) -> R:
    """Mean cross-entropy of the batch."""
    out = logits(ops, params, x, config=config, train=train)
    return classifier_loss(ops, out, y, smoothing=config.label_smoothing, train=train)


def metrics(ops: Ops[R], params: dict[str, Any], x: R, y: R, *, config: Config) -> dict[str, R]:
    """Summed loss and number of correct predictions."""
    return classifier_metrics(ops, logits(ops, params, x, config=config), y)


def outputs(ops: Ops[R], params: dict[str, Any], x: R, *, config: Config) -> dict[str, R]:
    """`class` and `probabilities`."""
    return classifier_outputs(ops, logits(ops, params, x, config=config))


def make(config: Config) -> Model:
    """Build the model for a config."""
    return of_programs("cnn", config, image_batch(config), init=init, loss=loss, metrics=metrics, outputs=outputs)


RECIPE = Recipe(
    data=held_out_digits, epochs=25, batch_size=64, lr=0.002, weight_decay=0.01, metric="accuracy", goal=0.98
)
