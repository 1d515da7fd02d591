"""The kernel table of a device: `KERNELS` maps primitives to functions that launch kernels.

An entry is `(device, types, *buffers, **static) -> buffers`, with the types of outputs and residuals from the op's
shape rule. Elementwise ops of all families are generated from their formulas. A composite without an entry is
decomposed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ....ops.catalogue import table_with_registered
from ....ops.primitive import Primitive
from . import (
    attention,
    convolution,
    elementwise,
    factorizations,
    indexing,
    layout,
    linalg,
    pooling,
    random,
    reduction,
    sequence,
)

KERNELS: Mapping[Primitive, Callable[..., Any]] = table_with_registered(
    "cuda",
    {
        **elementwise.KERNELS,
        **random.KERNELS,
        **layout.KERNELS,
        **indexing.KERNELS,
        **reduction.KERNELS,
        **sequence.KERNELS,
        **linalg.KERNELS,
        **factorizations.KERNELS,
        **convolution.KERNELS,
        **pooling.KERNELS,
        **attention.KERNELS,
    },
)
