"""The ONNX rule of each op, of all families."""

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
"""The ops with a rule; every other op is exported by its decomposition."""
