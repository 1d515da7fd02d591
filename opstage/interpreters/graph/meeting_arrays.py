"""`MeetingArrays`: the ops of which collectives are made, on arrays of the host, each a call of its kernel and no more.

A compiled step has loops of its own for everything else; between them it cuts, joins and adds up what ranks send each
other. The kernels are those of the eager interpreter, and so are the bits. It also checks the shapes of every op, which
here is done: what was recorded has been checked.
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
    """The eager interpreter of who meets in a compiled step. Nobody writes over what is sent until it has come."""

    __slots__ = ("_kernels",)

    def __init__(self, options: Options):
        super().__init__(as_dtype(options.dtype), options.seed)
        self._kernels = {**kernel_table(options.dtype, options.fast_kernels), EXCHANGE_START: begin_exchange}

    @override
    def bind(self, primitive: Primitive, refs: tuple[Array, ...], static: Static, /) -> tuple[Array, ...]:
        with np.errstate(all="ignore"):  # infinity less infinity is nan, without a warning
            out = self._kernels[primitive](*refs, **static)
        return out if type(out) is tuple else (np.asarray(out),)
