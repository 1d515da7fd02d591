"""The CUDA driver and GPUs of this machine, without the packages that kernels need, and the failures that it reports.

Some driver errors make the GPU unusable for the process: every later call returns the same error, and memory cannot be
read. Errors of kernels are reported by a later call, not by the launch that caused them."""

from __future__ import annotations

import ctypes
import os
import re
import sys
from typing import Any, NamedTuple, final

from ...ops.errors import DeviceError

# The driver and its GPUs ----------------------------------------------------------------------------------------------

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
    """Return whether this process was forked from one in which `look` initialised the driver, and so cannot use it."""
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


# Failures -------------------------------------------------------------------------------------------------------------

OF_KERNELS = frozenset(
    {
        "CUDA_ERROR_ASSERT",
        "CUDA_ERROR_HARDWARE_STACK_ERROR",
        "CUDA_ERROR_ILLEGAL_ADDRESS",
        "CUDA_ERROR_ILLEGAL_INSTRUCTION",
        "CUDA_ERROR_INVALID_ADDRESS_SPACE",
        "CUDA_ERROR_INVALID_PC",
        "CUDA_ERROR_LAUNCH_FAILED",
        "CUDA_ERROR_LAUNCH_TIMEOUT",
        "CUDA_ERROR_MISALIGNED_ADDRESS",
        "CUDA_ERROR_TENSOR_MEMORY_LEAK",
    }
)
"""Errors that make the GPU unusable for the process, caused by kernels."""

OF_THE_MACHINE = frozenset(
    {
        "CUDA_ERROR_CONTAINED",
        "CUDA_ERROR_CONTEXT_IS_DESTROYED",
        "CUDA_ERROR_DEINITIALIZED",
        "CUDA_ERROR_ECC_UNCORRECTABLE",
        "CUDA_ERROR_EXTERNAL_DEVICE",
        "CUDA_ERROR_MPS_CLIENT_TERMINATED",
        "CUDA_ERROR_NVLINK_UNCORRECTABLE",
        "CUDA_ERROR_UNKNOWN",
    }
)
"""Errors that do the same, but are never caused by programs."""

GO_ON = "no step was applied in part, and the process can continue"
_START_AGAIN = "start the process again, from the last checkpoint if there is one"
_FIND_IT = (
    "A kernel fails some time after it was started, so it may be one of an earlier op. To find it, run with "
    "CUDA_LAUNCH_BLOCKING=1, which waits for every kernel, or under compute-sanitizer"
)
_LOOK = "Programs do not cause this error: see nvidia-smi and the system's log"
_NAME = re.compile(r"\bCUDA_ERROR_\w+")


@final
class Failures:
    """The failures of one GPU, called `gpu`.

    lost    the error with which this process lost the GPU; empty before
    """

    def __init__(self, gpu: str):
        self.gpu = gpu
        self.lost = ""

    def error(self, found: Exception, when: str, op: str, region: str) -> DeviceError | None:
        """Return the error to raise for `found`, detected `when` something was called; None if it is not a driver
        error.

        op, region   the last op that ran
        """
        name = _NAME.search(str(found))
        if name is None or isinstance(found, DeviceError):
            return None
        if self.lost:
            return DeviceError(
                f"this process lost the {self.gpu} to an earlier error, {self.lost}; {_START_AGAIN}", lost=True
            )
        said = str(found).partition(". ")[0].rstrip(".")
        kernels = name[0] in OF_KERNELS
        if not kernels and name[0] not in OF_THE_MACHINE:
            return DeviceError(f"the {self.gpu} failed when {when}: {said}; {GO_ON}")
        last = f"; the last op started was {op!r}{f' in {region}' if region else ''}" if op else ""
        self.lost = f"found when {when}: {said}{last}"
        return DeviceError(
            f"the {self.gpu} failed when {when}: {said}{last}. {_FIND_IT if kernels else _LOOK}. The GPU's "
            f"memory is lost, and this process cannot use the GPU any more: {_START_AGAIN}",
            lost=True,
        )
