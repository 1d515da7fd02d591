"""The CUDA driver and GPUs of this machine, from the driver's C functions, without the packages that kernels need."""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Any, NamedTuple

_LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR


class GpuInfo(NamedTuple):
    """A GPU: its name, its compute capability as (9, 0), its memory in bytes."""

    name: str
    cc: tuple[int, int]
    memory: int


class Machine(NamedTuple):
    """The driver's version and GPUs.

    version   the newest CUDA version that it supports, as (13, 0); None without a driver
    gpus      in the driver's order
    """

    version: tuple[int, int] | None
    gpus: tuple[GpuInfo, ...]


NOTHING = Machine(None, ())

_initialised_by = 0  # the process that `look` initialised the driver in


def inherited() -> bool:
    """Whether this process was forked from one in which `look` initialised the driver, and so cannot use it."""
    return _initialised_by not in (0, os.getpid())


def look(library: Any = None) -> Machine:
    """Query the driver of this machine, or `library` instead."""
    global _initialised_by
    if library is None:
        try:
            library = ctypes.CDLL(_LIBRARY)
        except OSError:
            return NOTHING
        _initialised_by = os.getpid()
    number = ctypes.c_int()
    if library.cuDriverGetVersion(ctypes.byref(number)) != 0:
        return NOTHING
    version = number.value // 1000, number.value % 1000 // 10
    if library.cuInit(0) != 0 or library.cuDeviceGetCount(ctypes.byref(number)) != 0:
        return Machine(version, ())
    return Machine(version, tuple(_gpu(library, index) for index in range(number.value)))


def _gpu(library: Any, index: int) -> GpuInfo:
    device, name, memory = ctypes.c_int(), ctypes.create_string_buffer(128), ctypes.c_size_t()
    library.cuDeviceGet(ctypes.byref(device), index)
    library.cuDeviceGetName(name, len(name), device)
    library.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
    numbers = ctypes.c_int(), ctypes.c_int()
    for number, attribute in zip(numbers, (_MAJOR, _MINOR), strict=True):
        library.cuDeviceGetAttribute(ctypes.byref(number), attribute, device)
    return GpuInfo(name.value.decode(), (numbers[0].value, numbers[1].value), memory.value)
