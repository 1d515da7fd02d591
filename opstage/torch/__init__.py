"""PyTorch programs of torch.export as programs over Ops: checked for every size, run everywhere, trained."""

from ..interop.model import Unimportable
from ..interop.torch.model import TorchModel, load
from . import trainable

__all__ = ["TorchModel", "Unimportable", "load", "trainable"]
__dir__ = __all__.copy
