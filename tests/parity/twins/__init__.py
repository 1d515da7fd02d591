"""Every op that PyTorch has too, beside its twin; and the ops that have none, each with the reason."""

from __future__ import annotations

from tests.parity.twin import Twin
from tests.parity.twins import (
    activation,
    convolution,
    elementwise,
    indexing,
    layout,
    linalg,
    logic,
    pooling,
    reduction,
)

TWINS: list[Twin] = [
    *elementwise.TWINS,
    *activation.TWINS,
    *logic.TWINS,
    *reduction.TWINS,
    *layout.TWINS,
    *indexing.TWINS,
    *linalg.TWINS,
    *convolution.TWINS,
    *pooling.TWINS,
]
