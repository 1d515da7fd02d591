"""An ONNX model as a `Model`, for the commands and `opstage.fit`."""

from ..interop.onnx.model import Config, configured, fixed_values, trainable

__all__ = ["Config", "configured", "fixed_values", "trainable"]
__dir__ = __all__.copy
