"""A multilayer perceptron for classification."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ..data.builtin_datasets import held_out_digits
from ..ops.protocol import Ops, R
from ..ops.spec import Spec
from .classify import classifier_loss, classifier_metrics, classifier_outputs
from .layers import dense, linear, linear_init
from .model import Model, Recipe, of_programs


@dataclass(frozen=True)
class Config:
    """`inputs` is the shape of a sample; a relu layer for each entry of `hidden`; `classes` logits."""

    inputs: tuple[int, ...] = (1, 8, 8)
    hidden: tuple[int, ...] = (256, 256)
    classes: int = 10
    dropout: float = 0.2
    label_smoothing: float = 0.05


def init(config: Config) -> dict[str, Any]:
    """Return declarations of the parameters: `layers.0.weight`, … ."""
    sizes = (math.prod(config.inputs), *config.hidden, config.classes)
    return {"layers": [linear_init(a, b) for a, b in pairwise(sizes)]}


def logits(ops: Ops[R], params: dict[str, Any], x: R, *, config: Config, train: bool = False) -> R:
    """Map (B, *features) to logits (B, classes)."""
    h = ops.flatten(x, start=1)
    *hidden, last = params["layers"]
    for i, layer in enumerate(hidden):
        h = ops.region(f"layers.{i}", dense, layer, h, config.dropout, train)
    out: R = ops.region(f"layers.{len(hidden)}", linear, last, h)
    return out


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
    batch = Spec(("B", *config.inputs)), Spec("B", dtype="int64", range=(0, config.classes - 1))
    return of_programs("mlp", config, batch, init=init, loss=loss, metrics=metrics, outputs=outputs)


RECIPE = Recipe(
    data=held_out_digits, epochs=60, batch_size=64, lr=0.002, weight_decay=0.05, metric="accuracy", goal=0.98
)
