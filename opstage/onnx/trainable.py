"""An ONNX model as a `Model`, as the commands and `opstage.fit` expect it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..imported.network import supervised
from ..models.model import Model
from ..ops.errors import UsageError
from .file import File
from .model import OnnxModel, load


@dataclass(frozen=True)
class Config:
    """Settings for loading and training an ONNX model.

    loss     cross_entropy, binary_cross_entropy (both of logits) or mse; left out, the model predicts only
    output   the output that is compared with the labels, by default the only one
    fixed    inputs with a value, `sr=16000` or `shape=2 3`, and `where`: constraints on open sizes, see `load`
    """

    loss: str = ""
    output: str = ""
    fixed: tuple[str, ...] = ()
    where: tuple[str, ...] = ()


def trainable(model: OnnxModel, config: Config) -> Model:
    """Return the Model of a file: see `opstage.imported.network.supervised`. Raises UsageError for an unknown loss."""
    named = {f"input.{name}": declared.name for name, declared in zip(model.inputs, model.graph.inputs)}
    made = supervised(model.network, config, loss=config.loss, output=config.output)
    return replace(made, metadata={**model.metadata, **named})


def configured(file: File, config: Config) -> Model:
    """Return the Model of a file, loaded as `config` says."""
    return trainable(load(file, fixed=fixed_values(config.fixed), where=config.where), config)


def fixed_values(words: Sequence[str]) -> dict[str, Any]:
    """Parse values of inputs, `sr=16000` or `shape=2 3`. Raises UsageError."""
    fixed = {}
    for word in words:
        name, equals, value = word.partition("=")
        try:
            numbers = [float(each) if "." in each else int(each) for each in value.split()]
        except ValueError:
            numbers = []
        if not equals or not numbers:
            raise UsageError(f"model.fixed: {word!r} is not a name and its value, as in sr=16000 or shape=2 3")
        fixed[name.strip()] = np.array(numbers if len(numbers) > 1 else numbers[0])
    return fixed
