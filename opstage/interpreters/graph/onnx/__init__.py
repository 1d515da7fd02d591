"""A recorded program as an ONNX model. `RULES` says which op is written as which operators."""

from .model import IR_VERSION, OPSET, model_of, write_model
from .table import RULES

__all__ = ["IR_VERSION", "OPSET", "RULES", "model_of", "write_model"]
