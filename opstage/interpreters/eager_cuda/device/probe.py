"""Which device there is, looked for once, and what is missing where there is none."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

from ....ops.errors import UsageError
from ...gpus import Machine, look
from .interface import Device

OLDEST_DRIVER = (13, 0)
"""The CUDA for which kernels are compiled; a driver of 580 or newer runs it."""

OLDEST_GPU = (7, 5)
"""The compute capability from which on CUDA 13 compiles."""

_PACKAGES = ("cuda.core", "cuda.bindings", "cuda.pathfinder")


def find_device() -> Device:
    """The simulator where numba simulates CUDA (NUMBA_ENABLE_CUDASIM=1), else the first GPU.

    Raises UsageError, naming what is missing and how to get it. Never falls back.
    """
    return _found()


@cache
def _found() -> Device:
    from ..language import SIMULATED

    if SIMULATED:
        if not _installed("greenlet"):
            raise UsageError("simulating CUDA needs the package greenlet; install it with: pip install greenlet")
        from .simulator import Simulator

        return Simulator()
    require_gpu(look())
    missing = [name for name in _PACKAGES if not _installed(name)]
    if missing:
        raise UsageError(
            f"device 'cuda' needs {' and '.join(missing)}, which {'are' if missing[1:] else 'is'} not installed; "
            "install all that it needs with: pip install 'opstage[cuda]'"
        )
    from .driver import Gpu

    return Gpu()


def require_gpu(machine: Machine) -> None:
    """Raises UsageError where `machine` has no driver, one too old, no GPU, or one too old."""
    if machine.version is None:
        raise UsageError(
            "device 'cuda' needs an NVIDIA driver, and this machine has none (libcuda was not found); "
            "NUMBA_ENABLE_CUDASIM=1 runs kernels in Python instead, slowly, to see what they compute"
        )
    if machine.version < OLDEST_DRIVER:
        raise UsageError(
            f"device 'cuda' needs an NVIDIA driver for CUDA {_dotted(OLDEST_DRIVER)}, which is 580 or newer; the one "
            f"here is for CUDA {_dotted(machine.version)}. Install a newer driver"
        )
    if not machine.gpus:
        raise UsageError(
            "device 'cuda' needs an NVIDIA GPU; there is a driver, but it reports none. See whether nvidia-smi lists "
            "one, and what CUDA_VISIBLE_DEVICES hides"
        )
    gpu = machine.gpus[0]
    if gpu.cc < OLDEST_GPU:
        raise UsageError(
            f"device 'cuda' needs a GPU of compute capability {_dotted(OLDEST_GPU)} or newer; the {gpu.name} has "
            f"{_dotted(gpu.cc)}"
        )


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def _installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # nor is the package around it
        return False
