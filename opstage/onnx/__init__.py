"""ONNX models as programs: an exported network is checked, run on every interpreter, differentiated and trained."""

from ..imported.problems import InternalError, Unimportable
from .model import OnnxModel, load

__all__ = ["InternalError", "OnnxModel", "Unimportable", "load"]
