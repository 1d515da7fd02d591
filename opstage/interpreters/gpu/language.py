"""The language of kernels: numba.cuda, or `scheduler.py` instead of it if kernels are simulated.

A kernel is a Python function of pointers and numbers that many threads run at once; pointers are indexed. Kernel files
import `cuda` from here.
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

if find_spec("numba_cuda") is None:  # numba has an older cuda of its own
    raise UsageError("device 'cuda' needs the package numba-cuda; install it with: pip install 'opstage[cuda]'")

F = TypeVar("F", bound=Callable[..., Any])

SIMULATED = os.environ.get("NUMBA_ENABLE_CUDASIM", "0") == "1"
"""Whether kernels run in Python, which numba decides at its first import."""

cuda: Any
if SIMULATED:
    if find_spec("greenlet") is None:
        raise UsageError("simulating CUDA needs the package greenlet; install it with: pip install greenlet")
    from . import scheduler

    cuda = scheduler.cuda
else:
    cuda = numba.cuda

ALIGNED = None if SIMULATED else 16
"""The alignment of shared memory in bytes for vector loads of four numbers; unused in simulation."""


def device_function(function: F) -> F:
    """Decorate a function that kernels call: inlined by the compiler, or called directly in simulation."""
    return function if SIMULATED else cuda.jit(device=True, inline="always")(function)


def _barrier() -> None:
    cuda.syncthreads()


def _shuffle(value: Any, distance: Any) -> Any:
    return cuda.shfl_xor_sync(0xFFFFFFFF, value, distance)


barrier: Any = device_function(_barrier)
"""Wait for all threads of the block."""
shuffle: Any = device_function(_shuffle)
"""Return the value of the thread of the same warp whose number differs exactly in the bits of `distance`."""


def _simulated_power(x: Any, y: Any) -> Any:
    """C's pow. Uses arrays, because NumPy computes a scalar 0.5 power as a square root, which differs at -inf."""
    return np.power(np.atleast_1d(x), np.atleast_1d(y))[0]


# Scalar functions, float32 to float32. Python's own raise errors where IEEE arithmetic has a result.
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
"""cos(π·x), with exact argument reduction, where cos needs a table of the digits of 2/π for large arguments."""


def _times(x: Any, y: Any) -> Any:
    return x * y


times: Any = _times if SIMULATED else numba.cuda.libdevice.fmul_rn
"""x·y rounded to float32. In `x * y + z` the compiler joins both to one instruction that does not round the product,
which so differs from the same product elsewhere."""

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
    "times",
]
