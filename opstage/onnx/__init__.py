"""ONNX models as programs: an exported network is checked, run on every interpreter, differentiated and trained."""

from .model import OnnxModel, load
from .run import Unimportable

__all__ = ["OnnxModel", "Unimportable", "load"]
