"""Model programs: for each a config dataclass, `init`, `loss` and `metrics`, plain functions over Ops."""

from . import cnn, mlp
from .zoo import MODELS, Model, Recipe, model

__all__ = ["MODELS", "Model", "Recipe", "cnn", "mlp", "model"]
