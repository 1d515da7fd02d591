"""PyTorch programs of torch.export as programs over Ops: checked for every size, run everywhere, trained."""

from ..imported.problems import Unimportable
from .model import TorchModel, load

__all__ = ["TorchModel", "Unimportable", "load"]
