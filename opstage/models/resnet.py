"""A residual network with batch normalisation, whose running statistics are the state of the program.

He, Zhang, Ren, Sun, Deep residual learning for image recognition, 2016.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..data.builtin_datasets import held_out_digits
from ..ops.derived import global_avg_pool
from ..ops.protocol import Aux, Ops, R
from .classify import classifier_loss, classifier_metrics, classifier_outputs
from .layers import Tree, batch_norm, batch_norm_state, conv, conv_norm_init, linear, linear_init
from .model import Model, Recipe, image_batch, of_programs


@dataclass(frozen=True)
class Config:
    """Images (B, inputs, height, width); a stage of `blocks` residual blocks for each entry of `channels`, each stage
    after the first at half the resolution."""

    inputs: int = 1
    height: int = 8
    width: int = 8
    channels: tuple[int, ...] = (16, 32)
    blocks: int = 2
    classes: int = 10
    label_smoothing: float = 0.05


def init(config: Config) -> Tree:
    """Return declarations of the parameters: `stem.conv.kernel`, `stages.0.0.first.conv.kernel`, …, `head.weight`."""
    return {
        "stem": conv_norm_init(config.inputs, config.channels[0], 3),
        "stages": [[_block_init(*block) for block in stage] for stage in _stages(config)],
        "head": linear_init(config.channels[-1], config.classes),
    }


def state(config: Config) -> Tree:
    """Return declarations of the running statistics, one pair for each batch normalisation, under its path."""
    return {
        "stem": batch_norm_state(config.channels[0]),
        "stages": [[_block_state(*block) for block in stage] for stage in _stages(config)],
    }


def _stages(config: Config) -> list[list[tuple[int, int, int]]]:
    """(channels in, channels out, stride) of every block."""
    stages = []
    inputs = config.channels[0]
    for number, outputs in enumerate(config.channels):
        first = (inputs, outputs, 1 if number == 0 else 2)
        stages.append([first, *[(outputs, outputs, 1)] * (config.blocks - 1)])
        inputs = outputs
    return stages


def _block_init(inputs: int, outputs: int, stride: int) -> Tree:
    block = {"first": conv_norm_init(inputs, outputs, 3), "second": conv_norm_init(outputs, outputs, 3)}
    return block if stride == 1 else {**block, "shortcut": conv_norm_init(inputs, outputs, 1)}


def _block_state(inputs: int, outputs: int, stride: int) -> Tree:
    return {name: batch_norm_state(outputs) for name in _block_init(inputs, outputs, stride)}


def logits(
    ops: Ops[R], params: Tree, state: Tree, x: R, *, config: Config, train: bool = False
) -> tuple[R, dict[str, Any]]:
    """(B, inputs, height, width) -> (B, classes), and the new running statistics."""
    x, stem = ops.region("stem", _conv_norm, params["stem"], state["stem"], x, 1, train)
    x = ops.relu(x)
    stages: list[list[Any]] = []
    for i, blocks in enumerate(_stages(config)):
        stages.append([])
        for j, (_, _, stride) in enumerate(blocks):
            block, statistics = params["stages"][i][j], state["stages"][i][j]
            x, new = ops.region(f"stages.{i}.{j}", _block, block, statistics, x, stride, train)
            stages[i].append(new)
    out: R = ops.region("head", linear, params["head"], global_avg_pool(ops, x))
    return out, {"stem": stem, "stages": stages}


def _conv_norm(ops: Ops[R], params: Tree, state: Tree, x: R, stride: int, train: bool) -> tuple[R, dict[str, R]]:
    """Apply a convolution that preserves the size, apart from its stride, and a batch normalisation."""
    padding = (params["conv"]["kernel"].shape[-1] - 1) // 2
    x = conv(ops, params["conv"], x, stride=stride, padding=padding)
    return batch_norm(ops, params["norm"], state, x, train=train)


def _block(ops: Ops[R], params: Tree, state: Tree, x: R, stride: int, train: bool) -> tuple[R, Tree]:
    """relu(x + second(relu(first(x)))); where the block strides, a 1x1 convolution brings x to the same shape."""
    h, first = _conv_norm(ops, params["first"], state["first"], x, stride, train)
    h, second = _conv_norm(ops, params["second"], state["second"], ops.relu(h), 1, train)
    new = {"first": first, "second": second}
    if "shortcut" in params:
        x, new["shortcut"] = _conv_norm(ops, params["shortcut"], state["shortcut"], x, stride, train)
    return ops.relu(ops.add(x, h)), new


def loss(ops: Ops[R], params: Tree, state: Tree, x: R, y: R, *, config: Config, train: bool = False) -> tuple[R, Aux]:
    """Mean cross-entropy of the batch, and the new running statistics."""
    out, new = logits(ops, params, state, x, config=config, train=train)
    return classifier_loss(ops, out, y, smoothing=config.label_smoothing, train=train), Aux(state=new)


def metrics(ops: Ops[R], params: Tree, state: Tree, x: R, y: R, *, config: Config) -> dict[str, R]:
    """Summed loss and number of correct predictions, with the running statistics."""
    return classifier_metrics(ops, logits(ops, params, state, x, config=config)[0], y)


def outputs(ops: Ops[R], params: Tree, state: Tree, x: R, *, config: Config) -> dict[str, R]:
    """`class` and `probabilities`, with the running statistics."""
    return classifier_outputs(ops, logits(ops, params, state, x, config=config)[0])


def make(config: Config) -> Model:
    """Build the model for a config."""
    return of_programs(
        "resnet", config, image_batch(config), init=init, loss=loss, metrics=metrics, outputs=outputs, state=state
    )


RECIPE = Recipe(
    data=held_out_digits, epochs=15, batch_size=64, lr=0.002, weight_decay=0.01, metric="accuracy", goal=0.97
)
