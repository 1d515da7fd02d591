"""The shipped models by name."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ..ops.errors import UsageError, nearest
from . import cnn, gpt, lstm, mlp, pinn, resnet, unet, vae, vit
from .model import Model

MODELS: dict[str, ModuleType] = {
    "cnn": cnn,
    "gpt": gpt,
    "lstm": lstm,
    "mlp": mlp,
    "pinn": pinn,
    "resnet": resnet,
    "unet": unet,
    "vae": vae,
    "vit": vit,
}
"""Each module has a dataclass `Config` and `make(config) -> Model`."""


def model(name: str, config: Any = None) -> Model:
    """The shipped model called `name`; a UsageError names the nearest when there is none."""
    if name not in MODELS:
        raise UsageError(f"unknown model {name!r}{nearest(name, MODELS)}; shipped are {', '.join(sorted(MODELS))}")
    module = MODELS[name]
    made: Model = module.make(module.Config() if config is None else config)
    return made
