"""The meaning of ATen's ops: programs over Ops, one family per file."""

from . import (
    activation,
    complex,
    convolution,
    elementwise,
    indexing,
    layout,
    linalg,
    reduction,
)

__all__ = [
    "activation",
    "complex",
    "convolution",
    "elementwise",
    "indexing",
    "layout",
    "linalg",
    "reduction",
]
