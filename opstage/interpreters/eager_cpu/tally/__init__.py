"""The memory that a kernel takes, counted by running the kernel itself on arrays without elements.

phantom.py      an array that has a shape, strides and memory, and no elements
functions.py    NumPy's functions on those
world.py        unchanged kernels, with globals replaced so that nothing is computed
taken.py        the memory of one call
"""

from .phantom import Sizes
from .taken import Result, Taken, taken

__all__ = ["Result", "Sizes", "Taken", "taken"]
