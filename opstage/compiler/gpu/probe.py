"""Find devices, opening each once, or report what is missing."""

from __future__ import annotations

import os
import threading
from functools import cache
from importlib.util import find_spec

from ...ops.errors import UsageError
from .device import Device, require_own_process
from .machine import Machine, look

OLDEST_DRIVER = (13, 0)
"""The CUDA version that kernels are compiled for; it needs driver 580 or newer."""

OLDEST_GPU = (7, 5)
"""The lowest compute capability that CUDA 13 supports."""

SIMULATED_GPUS = 2
"""The number of simulated GPUs: programs that confuse two of them are detected."""

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_opening = threading.Lock()
_PACKAGES = ("cuda.core", "cuda.bindings", "cuda.pathfinder")


def find_device(number: int = 0) -> Device:
    """Return the GPU of this number among those visible to the process, or a simulated one if numba simulates CUDA
    (NUMBA_ENABLE_CUDASIM=1).

    Raises UsageError, naming what is missing and how to get it, and DeviceError in a process that was forked from one
    with a device. Never falls back.
    """
    require_own_process()
    with _opening:  # there is one device object per GPU
        return _found(number)


def gpus_seen() -> int:
    """Return how many GPUs this process sees, simulated ones where CUDA is simulated."""
    from .language import SIMULATED

    return visible(os.environ.get(_VISIBLE), SIMULATED_GPUS) if SIMULATED else len(look().gpus)


@cache
def _found(number: int) -> Device:
    from .language import SIMULATED

    if SIMULATED:
        from .simulator import Simulator

        require_simulated(number)
        return Simulator(number=number)
    require_gpu(look(), number)
    missing = [name for name in _PACKAGES if not _installed(name)]
    if missing:
        raise UsageError(
            f"device 'cuda' needs {' and '.join(missing)}, which {'are' if missing[1:] else 'is'} not installed; "
            "install all that it needs with: pip install 'opstage[cuda]'"
        )
    from .driver import Gpu

    return Gpu(number=number)


def require_simulated(number: int) -> None:
    """Raise UsageError if the simulated machine shows no GPU of this number."""
    seen = visible(os.environ.get(_VISIBLE), SIMULATED_GPUS)
    if number >= seen:
        raise UsageError(f"{_no_gpu(number, seen)}; the simulated machine has {SIMULATED_GPUS}, and {_shows()}")


def visible(said: str | None, count: int) -> int:
    """Return how many of `count` GPUs a process sees for this CUDA_VISIBLE_DEVICES: those before the first entry that
    is invalid. An entry that is not a number may name any of them."""
    if said is None:
        return count
    seen: list[str] = []
    for word in (part.strip() for part in said.split(",")):
        named = word.startswith(("GPU-", "MIG-")) or (word.isdecimal() and int(word) < count)
        if not named or word in seen or len(seen) == count:
            break
        seen.append(word)
    return len(seen)


def _no_gpu(number: int, seen: int) -> str:
    there = f"GPUs 0 to {seen - 1}" if seen > 1 else "GPU 0 alone" if seen else "no GPU"
    return f"device 'cuda:{number}' is not available: this process sees {there}"


def _shows() -> str:
    said = os.environ.get(_VISIBLE)
    return f"{_VISIBLE} is not set" if said is None else f"{_VISIBLE}={said} selects those that a process sees"


def require_gpu(machine: Machine, number: int = 0) -> None:
    """Raise UsageError if `machine` has no driver, one too old, no GPU of this number, or one too old."""
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
    if number >= len(machine.gpus):
        names = ", ".join(f"{i}: {gpu.name}" for i, gpu in enumerate(machine.gpus))
        raise UsageError(f"{_no_gpu(number, len(machine.gpus))} ({names}); {_shows()}")
    gpu = machine.gpus[number]
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
    except ModuleNotFoundError:  # the package that contains it is missing too
        return False
