"""Every op that PyTorch has too, beside its twin; and the ops that have none, each with the reason."""

from __future__ import annotations

from tests.parity.twin import Twin
from tests.parity.twins import (
    activation,
    arrange,
    attention,
    convolution,
    derived,
    determinants,
    elementwise,
    factorizations,
    fourier,
    images,
    indexing,
    layout,
    linalg,
    logic,
    loss,
    losses,
    normalization,
    ordering,
    places,
    pooling,
    recurrent,
    reduction,
    resample,
    sequence,
    solving,
    transcendental,
)

TWINS: list[Twin] = [
    *elementwise.TWINS,
    *transcendental.TWINS,
    *activation.TWINS,
    *logic.TWINS,
    *reduction.TWINS,
    *sequence.TWINS,
    *layout.TWINS,
    *indexing.TWINS,
    *linalg.TWINS,
    *solving.TWINS,
    *determinants.TWINS,
    *factorizations.TWINS,
    *fourier.TWINS,
    *convolution.TWINS,
    *pooling.TWINS,
    *normalization.TWINS,
    *attention.TWINS,
    *loss.TWINS,
    *derived.TWINS,
    *losses.TWINS,
    *arrange.TWINS,
    *ordering.TWINS,
    *images.TWINS,
    *places.TWINS,
    *recurrent.TWINS,
    *resample.TWINS,
]

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
