"""The language in which kernels are written: the one module that imports numba.cuda.

A kernel is a Python function of pointers and numbers that many threads run at once; a pointer is read and written by
index. Each kernel file imports `cuda` from here as a global name, which is how the simulator finds it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any, TypeVar

import numba.cuda
import numpy as np

cuda: Any = numba.cuda

F = TypeVar("F", bound=Callable[..., Any])

SIMULATED = os.environ.get("NUMBA_ENABLE_CUDASIM", "0") == "1"
"""Whether numba runs kernels in Python. It decides that when it is first imported."""


def device_function(function: F) -> F:
    """A function that kernels call: compiled into them, or called as it is where kernels run in Python."""
    return function if SIMULATED else cuda.jit(device=True, inline="always")(function)


# Functions of one number, float32 to float32. Python's own raise for what IEEE arithmetic has a result for.
_library: Any = np if SIMULATED else math
exp: Any = _library.exp
log: Any = _library.log
sqrt: Any = _library.sqrt
sin: Any = _library.sin
cos: Any = _library.cos
tanh: Any = _library.tanh
log1p: Any = _library.log1p
power: Any = np.power if SIMULATED else math.pow
erf: Any = math.erf

__all__ = ["SIMULATED", "cos", "cuda", "device_function", "erf", "exp", "log", "log1p", "power", "sin", "sqrt", "tanh"]
