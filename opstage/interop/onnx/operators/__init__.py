"""ONNX's operators, one family per file: what each means over Ops, and which ops are exported as it."""

from ..call import HOST_INPUTS, RULES
from ..writer import EXPORTS
from . import (
    activation,
    attention,
    classic,
    control,
    convolution,
    elementwise,
    indexing,
    layout,
    quantization,
    random,
    recurrent,
    reduction,
    signal,
)

__all__ = [
    "EXPORTS",
    "HOST_INPUTS",
    "RULES",
    "activation",
    "attention",
    "classic",
    "control",
    "convolution",
    "elementwise",
    "indexing",
    "layout",
    "quantization",
    "random",
    "recurrent",
    "reduction",
    "signal",
]
