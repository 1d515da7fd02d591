"""The ONNX rules of all ops."""

from __future__ import annotations

from ....ops.primitive import Primitive
from . import (
    branches,
    convolution,
    elementwise,
    fourier,
    indexing,
    layout,
    linalg,
    loops,
    normalization,
    pooling,
    random,
    reduction,
    sequence,
)
from .rules import OnnxRule

RULES: dict[Primitive, OnnxRule] = {
    primitive: rule
    for family in (
        elementwise,
        reduction,
        sequence,
        layout,
        indexing,
        linalg,
        fourier,
        convolution,
        pooling,
        normalization,
        random,
        branches,
        loops,
    )
    for primitive, rule in family.RULES.items()
}
"""The rules by op; ops without one are exported by their decomposition."""
