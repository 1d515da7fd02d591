"""A long short-term memory that reads an image row by row and then says what it was.

Hochreiter, Schmidhuber, Long short-term memory, 1997; with forget gates by Gers, Schmidhuber, Cummins 2000.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ..data.builtin_datasets import held_out_digits
from ..init import Declaration, uniform, zeros
from ..ops.derived import dropout
from ..ops.protocol import Ops, R
from .classify import classifier_loss, classifier_metrics, classifier_outputs
from .layers import Tree, linear, linear_init
from .model import Model, Recipe, image_batch, of_programs


@dataclass(frozen=True)
class Config:
    """Images (B, inputs, height, width), a row of inputs·width numbers each step; `hidden` cells."""

    inputs: int = 1
    height: int = 8
    width: int = 8
    hidden: int = 64
    classes: int = 10
    dropout: float = 0.2
    label_smoothing: float = 0.05


def init(config: Config) -> Tree:
    """Return declarations of the parameters: `cell.input|recurrent.weight`, `cell.bias`, `head.weight`, `head.bias`."""
    return {
        "cell": cell_init(config.inputs * config.width, config.hidden),
        "head": linear_init(config.hidden, config.classes),
    }


def cell_init(inputs: int, hidden: int) -> Tree:
    """`input` (4·hidden, inputs) and `recurrent` (4·hidden, hidden), their rows in the order of PyTorch's gates: input,
    forget, candidate, output; uniform in ±1/√hidden as there, `bias` (4·hidden,) 0. PyTorch has two biases, whose sum
    is this one."""
    bound = 1 / math.sqrt(hidden)
    weights = uniform(-bound, bound)
    return {
        "input": Declaration((4 * hidden, inputs), weights),
        "recurrent": Declaration((4 * hidden, hidden), weights),
        "bias": Declaration((4 * hidden,), zeros),
    }


def cell(ops: Ops[R], recurrent: R, state: tuple[R, R], driven: R) -> tuple[R, R]:
    """Compute one step of (hidden, memory), each (B, H): memory ← f·memory + i·c, hidden ← o·tanh(memory).

    The gates (i, f, c, o) = driven + hidden · recurrentᵀ, (B, 4·H), through a sigmoid, the candidate c through tanh.
    """
    hidden, memory = state
    gates = ops.add(driven, ops.linear(recurrent, None, hidden))
    i, f, c, o = ops.split(gates, sizes=(hidden.shape[1],) * 4, axis=1)
    memory = ops.add(ops.mul(ops.sigmoid(f), memory), ops.mul(ops.sigmoid(i), ops.tanh(c)))
    return ops.mul(ops.sigmoid(o), ops.tanh(memory)), memory


def read(ops: Ops[R], params: Tree, steps: R) -> R:
    """Return the last hidden state (B, H) after the sequence `steps` (T, B, inputs); starts from zeros.

    What the inputs contribute to the gates is one product for all steps; the loop has only the recurrence left.
    """
    batch, size = steps.shape[1], params["recurrent"].shape[1]
    driven = ops.linear(params["input"], params["bias"], steps)
    nothing = ops.full(shape=(batch, size), value=0.0, dtype=steps.dtype)

    def step(ops: Ops[Any], state: tuple[Any, Any], entry: Any) -> tuple[tuple[Any, Any], None]:
        return cell(ops, params["recurrent"], state, entry), None

    (hidden, _), _ = ops.scan(step, (nothing, nothing), driven)
    out: R = hidden
    return out


def logits(ops: Ops[R], params: Tree, x: R, *, config: Config, train: bool = False) -> R:
    """Map images (B, inputs, height, width) to logits (B, classes)."""
    rows = ops.permute(x, axes=(2, 0, 1, 3))
    steps = ops.flatten(rows, start=2)
    hidden = ops.region("cell", read, params["cell"], steps)
    hidden = dropout(ops, hidden, p=config.dropout, train=train)
    out: R = ops.region("head", linear, params["head"], hidden)
    return out


def loss(ops: Ops[R], params: Tree, x: R, y: R, *, config: Config, train: bool = False) -> R:
    """Mean cross-entropy of the batch."""
    out = logits(ops, params, x, config=config, train=train)
    return classifier_loss(ops, out, y, smoothing=config.label_smoothing, train=train)


def metrics(ops: Ops[R], params: Tree, x: R, y: R, *, config: Config) -> dict[str, R]:
    """Summed loss and number of correct predictions."""
    return classifier_metrics(ops, logits(ops, params, x, config=config), y)


def outputs(ops: Ops[R], params: dict[str, Any], x: R, *, config: Config) -> dict[str, R]:
    """`class` and `probabilities`."""
    return classifier_outputs(ops, logits(ops, params, x, config=config))


def make(config: Config) -> Model:
    """Build the model for a config."""
    return of_programs("lstm", config, image_batch(config), init=init, loss=loss, metrics=metrics, outputs=outputs)


RECIPE = Recipe(
    data=held_out_digits,
    epochs=40,
    batch_size=64,
    lr=0.01,
    weight_decay=0.1,
    metric="accuracy",
    goal=0.97,
    clip_norm=1.0,
    optimizer="muon",
)
