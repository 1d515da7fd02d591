"""`MeetingArrays`: the ops that collectives consist of, on host arrays, each one call of a kernel.

Compiled steps have generated loops for everything else; these ops split, join and add what the ranks exchange. The
kernels are those of the eager interpreter, so the bits are equal. Shapes are not checked here; recording checked them.
"""

from __future__ import annotations

from typing import final

import numpy as np
from typing_extensions import override

from ...ops.primitive import Primitive, Static
from ...ops.types import as_dtype
from ...options import Options
from ..eager_cpu.interpreter import HostArrays
from ..eager_cpu.kernels import kernel_table
from ..host import Array
from ..mesh.fabric import EXCHANGE_START, begin_exchange


@final
class MeetingArrays(HostArrays):
    """The eager interpreter of collectives in a compiled step. Sent arrays are not overwritten before they arrive."""

    __slots__ = ("_kernels",)

    def __init__(self, options: Options):
        super().__init__(as_dtype(options.dtype), options.seed)
        self._kernels = {**kernel_table(options.dtype, options.fast_kernels), EXCHANGE_START: begin_exchange}

    @override
    def sendable(self, x: Array) -> Array:
        return x

    @override
    def bind(self, primitive: Primitive, refs: tuple[Array, ...], static: Static, /) -> tuple[Array, ...]:
        with np.errstate(all="ignore"):  # infinity less infinity is nan, without a warning
            out = self._kernels[primitive](*refs, **static)
        return out if type(out) is tuple else (np.asarray(out),)
