"""The sizes of a convolution, and how its work is divided."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Sizes = tuple[int, ...]
Words = npt.NDArray[np.uint64]

_ALIGNED = 64


class ConvGeometry(NamedTuple):
    """A conv: x (images, channels_in, *cells), kernel (channels_out, channels_in/groups, *kernel), result
    (images, channels_out, *counts). The sizes along axes have one length, 1, 2 or 3.
    """

    dtype: str
    images: int
    channels_in: int
    channels_out: int
    groups: int
    cells: Sizes
    kernel: Sizes
    counts: Sizes
    stride: Sizes
    padding: Sizes
    dilation: Sizes

    @property
    def itemsize(self) -> int:
        return 4 if self.dtype == "float32" else 8

    @property
    def depth(self) -> int:
        """How many products make an element of the result."""
        return self.channels_in // self.groups * math.prod(self.kernel)

    @property
    def multiplications(self) -> int:
        return self.images * self.channels_out * math.prod(self.counts) * self.depth


class ConvTiling(NamedTuple):
    """How one of the convolutions is divided.

    workspace     bytes that each worker needs
    partial       bytes that all need together, for partial sums or the turned kernel
    tasks         of the main step
    words         of all steps; addresses are still 0
    """

    workspace: int
    partial: int
    tasks: int
    words: Words


def rounded_up(size: int) -> int:
    """Bytes with which the next run of memory is at a multiple of 64."""
    return -(-size // _ALIGNED) * _ALIGNED
