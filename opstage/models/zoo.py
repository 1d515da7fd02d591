"""The shipped models by name: each with its program, the shapes of its batch, and the recipe that trains it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..ops.errors import UsageError, nearest
from ..ops.spec import Spec
from . import cnn, mlp


@dataclass(frozen=True)
class Recipe:
    """How a model is trained by default; what it reaches is held by a test."""

    epochs: int
    batch_size: int
    lr: float
    weight_decay: float


@dataclass(frozen=True)
class Model:
    """A model ready to be trained, checked or graphed: functions over Ops with the config already in them."""

    name: str
    config: Any
    init: Any
    """Declarations of the parameters."""
    loss: Callable[..., Any]
    """(ops, params, *batch, train=) -> scalar."""
    metrics: Callable[..., Any]
    """(ops, params, *batch) -> sums over the batch by name."""
    batch: tuple[Spec, ...]
    recipe: Recipe


def _model(name: str, module: Any, batch: Callable[[Any], tuple[Spec, ...]], recipe: Recipe) -> Callable[[Any], Model]:
    def make(config: Any = None) -> Model:
        config = module.Config() if config is None else config
        return Model(
            name,
            config,
            module.init(config),
            partial(module.loss, config=config),
            partial(module.metrics, config=config),
            batch(config),
            recipe,
        )

    return make


MODELS: dict[str, Callable[..., Model]] = {
    "cnn": _model(
        "cnn",
        cnn,
        lambda c: (Spec(("B", c.inputs, c.height, c.width)), Spec("B", dtype="int64")),
        Recipe(epochs=30, batch_size=64, lr=2e-3, weight_decay=0.01),
    ),
    "mlp": _model(
        "mlp",
        mlp,
        lambda c: (Spec("B 1 8 8") if c.inputs == 64 else Spec(("B", c.inputs)), Spec("B", dtype="int64")),
        Recipe(epochs=40, batch_size=64, lr=2e-3, weight_decay=0.05),
    ),
}


def model(name: str, config: Any = None) -> Model:
    """The shipped model called `name`; a UsageError names the nearest when there is none."""
    if name not in MODELS:
        raise UsageError(f"unknown model {name!r}{nearest(name, MODELS)}; shipped are {', '.join(sorted(MODELS))}")
    return MODELS[name](config)
