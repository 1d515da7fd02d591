"""The memory that a kernel takes, counted by running the kernel itself on arrays without elements.

phantom.py      an array that has a shape, strides and memory, and no elements
functions.py    NumPy's functions on those
world.py        kernels as they are, in a world in which nothing is computed
taken.py        what one call takes
"""

from .phantom import Sizes
from .taken import Result, Taken, taken

__all__ = ["Result", "Sizes", "Taken", "taken"]
