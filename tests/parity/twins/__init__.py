"""Every op that PyTorch has too, beside its twin; and the ops that have none, each with the reason."""

from __future__ import annotations

from itertools import chain

from tests.parity.twin import Twin
from tests.parity.twins import (
    attention,
    convolution,
    elementwise,
    images,
    indexing,
    layout,
    linalg,
    loss,
    normalization,
    reduction,
)

FAMILIES = (elementwise, reduction, layout, indexing, linalg, images, convolution, normalization, attention, loss)
TWINS: list[Twin] = list(chain.from_iterable(family.TWINS for family in FAMILIES))

_BITS = "random bits are a function of seed, step and site, not those of PyTorch's generators"

_ONNX = "ONNX and TensorFlow have it; PyTorch has pixel_shuffle, in another order of channels"

_RANKS = "it is its operand where no mesh is; on one it is compared with NumPy in tests/distributed"
WITHOUT_TWIN: dict[str, str] = {
    "rand_uniform": _BITS,
    "rand_normal": _BITS,
    "bernoulli_mask": _BITS,
    "derived.dropout": _BITS,
    "derived.depth_to_space": _ONNX,
    "derived.bidirectional": "the twins of rnn, gru and lstm are of both directions",
    "derived.space_to_depth": _ONNX,
    **dict.fromkeys(
        (
            *("vary", "all_reduce", "all_max", "all_gather", "reduce_scatter", "shard", "all_to_all", "shift"),
            *("axis_index", "derived.all_mean", "derived.batch_mean", "derived.broadcast"),
        ),
        _RANKS,
    ),
}
