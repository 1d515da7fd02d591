"""Every op that PyTorch has too, beside its twin; and the ops that have none, each with the reason."""

from __future__ import annotations

from tests.parity.twin import Twin
from tests.parity.twins import (
    activation,
    attention,
    convolution,
    derived,
    elementwise,
    indexing,
    layout,
    linalg,
    logic,
    loss,
    normalization,
    pooling,
    reduction,
    update,
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
    *normalization.TWINS,
    *attention.TWINS,
    *loss.TWINS,
    *update.TWINS,
    *derived.TWINS,
]

_BITS = "random bits are a function of seed, step and site, not those of PyTorch's generators"

WITHOUT_TWIN: dict[str, str] = {
    "rand_uniform": _BITS,
    "rand_normal": _BITS,
    "bernoulli_mask": _BITS,
    "derived.dropout": _BITS,
}
