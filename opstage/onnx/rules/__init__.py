"""The meaning of ONNX's operators: programs over Ops, one family per file."""

from ..call import HOST_INPUTS, RULES
from . import (
    activation,
    attention,
    classic,
    control,
    convolution,
    elementwise,
    images,
    indexing,
    layout,
    linalg,
    loss,
    normalization,
    quantization,
    recurrent,
    reduction,
    sequence_models,
    signal,
)

__all__ = [
    "HOST_INPUTS",
    "RULES",
    "activation",
    "attention",
    "classic",
    "control",
    "convolution",
    "elementwise",
    "images",
    "indexing",
    "layout",
    "linalg",
    "loss",
    "normalization",
    "quantization",
    "recurrent",
    "reduction",
    "sequence_models",
    "signal",
]
