"""A PyTorch program as a `Model`, for the commands and `opstage.fit`."""

from ..interop.torch.model import Config, configured, trainable

__all__ = ["Config", "configured", "trainable"]
__dir__ = __all__.copy
