"""ONNX models as programs: an exported network is checked, run on every interpreter, differentiated and trained."""

from ..interop.model import InternalError, Unimportable
from ..interop.onnx.model import OnnxModel, load
from . import source, trainable

__all__ = ["InternalError", "OnnxModel", "Unimportable", "load", "source", "trainable"]
__dir__ = __all__.copy
