"""The language in which kernels are written: numba.cuda, or `scheduler.py` in its place where kernels are simulated.

A kernel is a Python function of pointers and numbers that many threads run at once; a pointer is read and written by
index. Each kernel file imports `cuda` from here.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, TypeVar

import numba.cuda
import numpy as np

from ...ops.errors import UsageError

if find_spec("numba_cuda") is None:  # numba has a cuda of its own, an older one
    raise UsageError("device 'cuda' needs the package numba-cuda; install it with: pip install 'opstage[cuda]'")

F = TypeVar("F", bound=Callable[..., Any])

SIMULATED = os.environ.get("NUMBA_ENABLE_CUDASIM", "0") == "1"
"""Whether kernels run in Python. Numba decides that when it is first imported."""

cuda: Any
if SIMULATED:
    if find_spec("greenlet") is None:
        raise UsageError("simulating CUDA needs the package greenlet; install it with: pip install greenlet")
    from . import scheduler

    cuda = scheduler.cuda
else:
    cuda = numba.cuda

ALIGNED = None if SIMULATED else 16
"""Bytes to which shared memory is aligned where four numbers are to be read at once; Python's memory is as it is."""


def device_function(function: F) -> F:
    """A function that kernels call: compiled into them, or called as it is where kernels run in Python."""
    return function if SIMULATED else cuda.jit(device=True, inline="always")(function)


def _barrier() -> None:
    cuda.syncthreads()


def _shuffle(value: Any, distance: Any) -> Any:
    return cuda.shfl_xor_sync(0xFFFFFFFF, value, distance)


barrier: Any = device_function(_barrier)
"""Wait until every thread of the block is here."""
shuffle: Any = device_function(_shuffle)
"""The value of the thread of the same warp whose number differs by exactly the bits of `distance`."""


def _simulated_power(x: Any, y: Any) -> Any:
    """C's pow: of arrays, because NumPy takes a square root for a number 0.5, and at -inf that is another result."""
    return np.power(np.atleast_1d(x), np.atleast_1d(y))[0]


# Functions of one number, float32 to float32. Python's own raise for what IEEE arithmetic has a result for.
_library: Any = np if SIMULATED else math
exp: Any = _library.exp
log: Any = _library.log
sqrt: Any = _library.sqrt
sin: Any = _library.sin
cos: Any = _library.cos
tanh: Any = _library.tanh
log1p: Any = _library.log1p
fmod: Any = _library.fmod
floor: Any = np.floor if SIMULATED else numba.cuda.libdevice.floorf
rint: Any = np.rint if SIMULATED else numba.cuda.libdevice.rintf
log2: Any = _library.log2
log10: Any = _library.log10
exp2: Any = np.exp2 if SIMULATED else numba.cuda.libdevice.exp2f
atan: Any = np.arctan if SIMULATED else math.atan
power: Any = _simulated_power if SIMULATED else math.pow
erf: Any = math.erf


def _cos_pi(x: Any) -> Any:
    return np.cos(np.float32(math.pi) * x)


cos_pi: Any = _cos_pi if SIMULATED else numba.cuda.libdevice.cospif
"""cos(π·x), which reduces its argument exactly, where cos keeps a table of the digits of 2/π for great ones."""

__all__ = [
    "ALIGNED",
    "SIMULATED",
    "atan",
    "barrier",
    "cos",
    "cos_pi",
    "cuda",
    "device_function",
    "erf",
    "exp",
    "exp2",
    "floor",
    "fmod",
    "log",
    "log1p",
    "log2",
    "log10",
    "power",
    "rint",
    "shuffle",
    "sin",
    "sqrt",
    "tanh",
]
