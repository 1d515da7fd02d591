"""Model programs: for each a config dataclass, `init`, `loss` and `metrics`, plain functions over Ops."""

from . import cnn, mlp
from .model import Model
from .zoo import MODELS, model

__all__ = ["MODELS", "Model", "cnn", "mlp", "model"]
