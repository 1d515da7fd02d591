"""The kernel table of a device: `KERNELS` maps primitives to functions that launch kernels.

An entry is `(device, types, *buffers, **static) -> buffers`, with the types of outputs and residuals from the op's
shape rule. Each family of ops has a module with its name in the catalogue; elementwise ops of all families are
generated from their formulas. A composite without an entry is decomposed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ....ops.primitive import Primitive
from ....ops.registered import table_with_registered
from . import (
    attention,
    convolution,
    determinants,
    factorizations,
    fourier,
    indexing,
    layout,
    linalg,
    logic,
    pointwise,
    pooling,
    random,
    reduction,
    sequence,
    solving,
)

KERNELS: Mapping[Primitive, Callable[..., Any]] = table_with_registered(
    "cuda",
    {
        **pointwise.KERNELS,
        **logic.KERNELS,
        **layout.KERNELS,
        **reduction.KERNELS,
        **sequence.KERNELS,
        **linalg.KERNELS,
        **solving.KERNELS,
        **determinants.KERNELS,
        **factorizations.KERNELS,
        **fourier.KERNELS,
        **convolution.KERNELS,
        **pooling.KERNELS,
        **indexing.KERNELS,
        **attention.KERNELS,
        **random.KERNELS,
    },
)
