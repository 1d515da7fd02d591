"""Model programs: for each a config dataclass, `init`, `loss` and `metrics`, plain functions over Ops."""

from . import cnn, gpt, lstm, mlp, pinn, resnet, unet, vae, vit
from .model import Model
from .zoo import MODELS, model

__all__ = ["MODELS", "Model", "cnn", "gpt", "lstm", "mlp", "model", "pinn", "resnet", "unet", "vae", "vit"]
