"""The meaning of ATen's ops: programs over Ops, one family per file."""

from . import (
    activation,
    attention,
    complex,
    control,
    convolution,
    elementwise,
    images,
    indexing,
    layout,
    linalg,
    loss,
    normalization,
    random,
    recurrent,
    reduction,
)

__all__ = [
    "activation",
    "attention",
    "complex",
    "control",
    "convolution",
    "elementwise",
    "images",
    "indexing",
    "layout",
    "linalg",
    "loss",
    "normalization",
    "random",
    "recurrent",
    "reduction",
]
