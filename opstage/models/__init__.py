"""Model programs: for each a config dataclass, `init`, `loss` and `metrics`, plain functions over Ops."""

from typing import TYPE_CHECKING, Any

from .model import MODELS, Model, Recipe, model

if TYPE_CHECKING:
    from . import cnn, gpt, lstm, mlp, pinn, resnet, unet, vae, vit

__all__ = ["MODELS", "Model", "Recipe", "cnn", "gpt", "lstm", "mlp", "model", "pinn", "resnet", "unet", "vae", "vit"]
__dir__ = __all__.copy


def __getattr__(name: str) -> Any:
    """Return a shipped model's module, imported on first use."""
    if name in MODELS:
        return MODELS[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
