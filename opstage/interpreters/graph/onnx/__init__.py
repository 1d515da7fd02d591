"""Recorded programs as ONNX models. `RULES` maps each op to the operators that express it."""

from .model import IR_VERSION, OPSET, model_of, write_model
from .table import RULES

__all__ = ["IR_VERSION", "OPSET", "RULES", "model_of", "write_model"]
