"""What each op is in ONNX: the rules of all families."""

from __future__ import annotations

from ....ops.primitive import Primitive
from . import convolution, elementwise, indexing, layout, linalg, loops, normalization, pooling, random, reduction
from .rules import OnnxRule

RULES: dict[Primitive, OnnxRule] = {
    primitive: rule
    for family in (
        elementwise,
        reduction,
        layout,
        indexing,
        linalg,
        convolution,
        pooling,
        normalization,
        random,
        loops,
    )
    for primitive, rule in family.RULES.items()
}
"""What is said by a rule; all else is said by its decomposition."""
