"""The sizes of a convolution, and its division into tasks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Sizes = tuple[int, ...]
Words = npt.NDArray[np.uint64]

VECTOR_BYTES = 64
_ALIGNED = 64

IMAGES = 4
"""Images, of which fewer are divided, to have work for several workers; more are divided among so many at least."""

_PART_WINDOWS, _MOST_PARTS = 512, 16  # of the kernel's gradient: its sum is written and read once for each part


class ConvGeometry(NamedTuple):
    """A conv: x (images, channels_in, *cells), kernel (channels_out, channels_in/groups, *kernel), result
    (images, channels_out, *counts). The tuples of sizes have the same length, 1, 2 or 3.
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
    def lanes(self) -> int:
        """Return the numbers of a vector of 64 bytes."""
        return VECTOR_BYTES // self.itemsize

    @property
    def depth(self) -> int:
        """Return the number of products in an element of the result."""
        return self.channels_in // self.groups * math.prod(self.kernel)

    @property
    def multiplications(self) -> int:
        return self.images * self.channels_out * math.prod(self.counts) * self.depth

    def channels(self, back: bool) -> Sizes:
        """Return the channels per group of the source and of the target, conv's or with `back` its adjoint's."""
        channels = self.channels_in // self.groups, self.channels_out // self.groups
        return channels[::-1] if back else channels

    def grad_parts(self, blocks: int) -> int:
        """Return the number of parts in which the kernel's gradient adds up blocks of windows."""
        windows = self.images * math.prod(self.counts)
        return max(1, min(blocks, _MOST_PARTS, max(2, windows // _PART_WINDOWS)))


@lru_cache(1024)
def conv_geometry(
    dtype: np.dtype[Any],
    inside: Sizes,
    kernel: Sizes,
    outside: Sizes,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    groups: int,
) -> ConvGeometry:
    """Return the geometry of conv from the shapes of x and of its result, (N, C, *S), and the cells of its kernel."""
    sizes = inside[0], inside[1], outside[1], groups, inside[2:], kernel, outside[2:]
    return ConvGeometry(dtype.name, *sizes, stride, padding, dilation)


class ConvTiling(NamedTuple):
    """The division of a convolution or one of its derivatives.

    workspace     bytes per worker
    partial       bytes shared by all workers, for partial sums or the flipped kernel
    tasks         number of tasks of the main step
    words         arguments of all steps; addresses are still 0
    """

    workspace: int
    partial: int
    tasks: int
    words: Words


def round_up(size: int) -> int:
    """Round up to a multiple of 64 bytes."""
    return -(-size // _ALIGNED) * _ALIGNED


def in_plane(sizes: Sizes, missing: int) -> Sizes:
    """Return the sizes along the last two axes, with `missing` for one that there is not."""
    return ((missing,) * 2 + sizes)[-2:]


def in_volume(sizes: Sizes, missing: int) -> Sizes:
    """Return the sizes along three axes, with `missing` for those that there are not."""
    return (missing,) * (3 - len(sizes)) + sizes


def kernel_words(values: Sequence[int], count: int) -> Words:
    """Return the read-only arguments of a kernel that has `count` words."""
    words = np.array(values, np.int64).view(np.uint64)
    assert len(words) == count
    words.flags.writeable = False
    return words
