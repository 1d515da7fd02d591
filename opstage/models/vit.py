"""A vision transformer for classification: an image as a sequence of patches.

Dosovitskiy et al., An image is worth 16x16 words, 2021; the mean over the patches stands for the image.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..data.builtin_datasets import held_out_digits
from ..init import Declaration, normal
from ..ops.errors import UsageError
from ..ops.protocol import Ops, R
from .classify import classifier_loss, classifier_metrics, classifier_outputs
from .layers import Tree, conv, conv_init, layer_norm, linear, linear_init, norm_init
from .model import Model, Recipe, image_batch, of_programs
from .transformer_block import Block, block_init, transformer_block


@dataclass(frozen=True)
class Config:
    """Images (B, inputs, height, width) in patches of patch x patch pixels, each embedded in `embedding` numbers, and
    `depth` transformer blocks of `heads` heads and `hidden` units."""

    inputs: int = 1
    height: int = 8
    width: int = 8
    patch: int = 2
    embedding: int = 64
    depth: int = 3
    heads: int = 4
    hidden: int = 128
    classes: int = 10
    dropout: float = 0.1
    label_smoothing: float = 0.05

    def __post_init__(self) -> None:
        if self.height % self.patch or self.width % self.patch:
            raise UsageError(
                f"images of {self.height}x{self.width} pixels cannot be cut into patches of {self.patch}x{self.patch}; "
                "expected patch to divide height and width"
            )

    @property
    def patches(self) -> int:
        """Return the length of the sequence."""
        return (self.height // self.patch) * (self.width // self.patch)

    @property
    def block(self) -> Block:
        """Return the configuration shared by the transformer blocks."""
        return Block(self.embedding, self.heads, self.hidden, dropout=self.dropout)


def init(config: Config) -> Tree:
    """Declare the parameters: `patches.kernel`, `positions`, `blocks.0.norm1.gamma`, …, `head.weight`."""
    return {
        # The same scale as the patches: from 0.02, a few images are memorised before positions are learned.
        "patches": conv_init(config.inputs, config.embedding, (config.patch, config.patch)),
        "positions": Declaration((config.patches, config.embedding), normal(std=1.0)),
        "blocks": [block_init(config.block, depth=config.depth) for _ in range(config.depth)],
        "norm": norm_init(config.embedding),
        "head": linear_init(config.embedding, config.classes),
    }


def logits(ops: Ops[R], params: Tree, x: R, *, config: Config, train: bool = False) -> R:
    """Map images (B, inputs, height, width) to logits (B, classes)."""
    x = ops.region("patches", _embed, params["patches"], params["positions"], x, config.patch)
    for i, block in enumerate(params["blocks"]):
        x = ops.region(f"blocks.{i}", transformer_block, block, x, config.block, train)
    pooled = ops.reduce_mean(layer_norm(ops, params["norm"], x), axis=1)
    out: R = ops.region("head", linear, params["head"], pooled)
    return out


def _embed(ops: Ops[R], params: Tree, positions: R, x: R, patch: int) -> R:
    """Embedded patches in reading order, (B, patches, embedding), plus their positions."""
    x = ops.permute(ops.flatten(conv(ops, params, x, stride=patch), start=2), axes=(0, 2, 1))
    return ops.add(x, ops.broadcast_to(positions, shape=x.shape))


def loss(ops: Ops[R], params: Tree, x: R, y: R, *, config: Config, train: bool = False) -> R:
    """Mean cross-entropy of the batch."""
    out = logits(ops, params, x, config=config, train=train)
    return classifier_loss(ops, out, y, smoothing=config.label_smoothing, train=train)


def metrics(ops: Ops[R], params: Tree, x: R, y: R, *, config: Config) -> dict[str, R]:
    """Summed loss and number of correct predictions."""
    return classifier_metrics(ops, logits(ops, params, x, config=config), y)


def outputs(ops: Ops[R], params: Tree, x: R, *, config: Config) -> dict[str, R]:
    """`class` and `probabilities`."""
    return classifier_outputs(ops, logits(ops, params, x, config=config))


def make(config: Config) -> Model:
    """Build the model for a config."""
    return of_programs("vit", config, image_batch(config), init=init, loss=loss, metrics=metrics, outputs=outputs)


RECIPE = Recipe(
    data=held_out_digits, epochs=30, batch_size=64, lr=0.002, weight_decay=0.01, metric="accuracy", goal=0.96
)
