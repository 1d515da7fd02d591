"""What the kernels of a target want of the equations that they are given."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Target(NamedTuple):
    """The differences that a body's legal form has between targets.

    packed          whether an op of this name, one that no generated kernel does, reads packed tensors alone
    batch_axes      along how many axes, at most, a stack of products may be stepped through
    index_checks    whether generated kernels can look at indices
    both_sums       whether one loop can take sums along rows and over rows
    """

    packed: Callable[[str], bool]
    batch_axes: int
    index_checks: bool
    both_sums: bool
