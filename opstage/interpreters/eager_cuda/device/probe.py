"""Which device there is, looked for once."""

from __future__ import annotations

import ctypes.util
from functools import cache
from importlib.util import find_spec

from ....ops.errors import UsageError
from .interface import Device


def find_device() -> Device:
    """The simulator where numba simulates CUDA (NUMBA_ENABLE_CUDASIM=1), else a GPU.

    Raises UsageError, naming what is missing and how to get it. Never falls back.
    """
    return _found()


@cache
def _found() -> Device:
    if find_spec("numba_cuda") is None:
        raise UsageError("device 'cuda' needs the package numba-cuda; install it with: pip install 'opstage[cuda]'")
    from ..language import SIMULATED

    if SIMULATED:
        if find_spec("greenlet") is None:
            raise UsageError("simulating CUDA needs the package greenlet; install it with: pip install greenlet")
        from .simulator import Simulator

        return Simulator()
    if ctypes.util.find_library("cuda") is None:
        raise UsageError(
            "device 'cuda' needs an NVIDIA driver, and this machine has none (libcuda was not found); "
            "NUMBA_ENABLE_CUDASIM=1 runs kernels in Python instead, slowly, to see what they compute"
        )
    raise UsageError("this release of Opstage runs CUDA kernels in the simulator alone; set NUMBA_ENABLE_CUDASIM=1")
