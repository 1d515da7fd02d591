"""`Taken`: the memory of one call of a kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ....ops.primitive import Static
from ....ops.types import TensorType
from .functions import MAKERS
from .phantom import Count, CountedMemory, Phantom, Sizes, current
from .world import results_of


class Result(NamedTuple):
    """A result of a kernel.

    of       the owner of its memory: the number of an operand or, counted after these, of an earlier result; None for
             its own
    nbytes   of its own memory
    strides  in bytes; None if row-major
    """

    type: TensorType
    of: int | None
    nbytes: int
    strides: Sizes | None


class Taken(NamedTuple):
    """The memory of one call of a kernel.

    results     outputs, then residuals
    beside      bytes allocated in addition to the operands and all results, block by block, at the peak; freed before
                the call returns. Results not yet allocated count as negative.
    kept        bytes of workspace kept between calls, the maximum over calls
    """

    results: tuple[Result, ...]
    beside: tuple[int, ...]
    kept: int

    @property
    def workspace(self) -> int:
        """Bytes in addition to the operands and the results."""
        return sum(self.beside) + self.kept


def taken(
    kernel: Callable[..., Any], types: Sequence[TensorType], strides: Sequence[Sizes | None], static: Static
) -> Taken:
    """Return the memory of `kernel` for operands of these concrete types and strides. Nothing is computed."""
    current.count = Count()
    memory: list[CountedMemory] = [CountedMemory(0, current.count) for _ in types]
    shapes: Any = [type_.shape for type_ in types]
    phantoms = [Phantom.on(m, shape, s, t.dtype) for m, shape, s, t in zip(memory, shapes, strides, types)]
    current.count = count = Count()
    outs = results_of(kernel, *phantoms, **static)
    results = []
    for out in outs if isinstance(outs, tuple) else (outs,):
        array = out if isinstance(out, Phantom) else MAKERS[np.array](out)
        of = next((i for i, m in enumerate(memory) if m is array.memory), None)
        memory.append(array.memory)
        strides_ = None if array.flags.c_contiguous else array.strides
        nbytes = array.memory.nbytes if of is None else 0
        results.append(Result(TensorType(array.shape, array.dtype), of, nbytes, strides_))
    own = {m.number: m.nbytes for m, result in zip(memory[len(types) :], results) if result.of is None}
    if count.peak == sum(own.values()):
        return Taken(tuple(results), (), count.kept)
    beside = [nbytes for number, nbytes in count.at_peak.items() if number not in own]
    missing = [-nbytes for number, nbytes in own.items() if number not in count.at_peak]
    return Taken(tuple(results), (*beside, *missing), count.kept)
