"""The kernel table of a device: `KERNELS` maps primitives to functions that launch kernels.

An entry is `(device, types, *buffers, **static) -> buffers`, with the types that the op's shape rule gives its outputs
and residuals. Each family of ops has a module of the same name as in the catalogue; ops of one element, of whatever
family, are generated from their formulas. A composite without an entry runs by its decomposition.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from ....ops.primitive import Primitive
from . import (
    attention,
    convolution,
    indexing,
    layout,
    linalg,
    logic,
    pointwise,
    pooling,
    random,
    reduction,
    update,
)

KERNELS: Mapping[Primitive, Callable[..., Any]] = MappingProxyType(
    {
        **pointwise.KERNELS,
        **logic.KERNELS,
        **layout.KERNELS,
        **reduction.KERNELS,
        **linalg.KERNELS,
        **convolution.KERNELS,
        **pooling.KERNELS,
        **indexing.KERNELS,
        **attention.KERNELS,
        **random.KERNELS,
        **update.KERNELS,
    }
)
