"""What a machine has for CUDA, and what is said where something is missing."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from opstage.compiler.gpu.machine import NOTHING, GpuInfo, Machine, look
from opstage.compiler.gpu.probe import require_gpu
from opstage.ops.errors import UsageError

H200 = GpuInfo("NVIDIA H200", (9, 0), 150_000_000_000)


def into(pointer: Any, kind: Any, value: Any) -> int:
    ctypes.cast(pointer, ctypes.POINTER(kind))[0] = value
    return 0


class Library:
    """The C functions of a driver with these GPUs."""

    def __init__(self, version: int, gpus: list[GpuInfo], init: int = 0):
        self.version, self.gpus, self.init = version, gpus, init

    def cuDriverGetVersion(self, version: Any) -> int:  # noqa: N802
        return into(version, ctypes.c_int, self.version)

    def cuInit(self, flags: int) -> int:  # noqa: N802
        return self.init

    def cuDeviceGetCount(self, count: Any) -> int:  # noqa: N802
        return into(count, ctypes.c_int, len(self.gpus))

    def cuDeviceGet(self, device: Any, index: int) -> int:  # noqa: N802
        return into(device, ctypes.c_int, index)

    def cuDeviceGetName(self, name: Any, size: int, device: Any) -> int:  # noqa: N802
        name.value = self.gpus[device.value].name.encode()
        return 0

    def cuDeviceTotalMem_v2(self, memory: Any, device: Any) -> int:  # noqa: N802
        return into(memory, ctypes.c_size_t, self.gpus[device.value].memory)

    def cuDeviceGetAttribute(self, value: Any, attribute: int, device: Any) -> int:  # noqa: N802
        return into(value, ctypes.c_int, self.gpus[device.value].cc[{75: 0, 76: 1}[attribute]])


def test_the_driver_is_asked() -> None:
    older = GpuInfo("Tesla T4", (7, 5), 15_000_000_000)
    assert look(Library(13000, [H200, older])) == Machine((13, 0), (H200, older))
    assert look(Library(12080, [])) == Machine((12, 8), ())
    assert look(Library(13000, [H200], init=100)) == Machine((13, 0), ())  # CUDA_ERROR_NO_DEVICE


@pytest.mark.parametrize(
    ("machine", "said"),
    [
        (NOTHING, "needs an NVIDIA driver, and this machine has none"),
        (Machine((12, 8), (H200,)), r"for CUDA 13\.0, which is 580 or newer; the one here is for CUDA 12\.8"),
        (Machine((13, 0), ()), "needs an NVIDIA GPU; there is a driver, but it reports none.*CUDA_VISIBLE_DEVICES"),
        (Machine((13, 0), (GpuInfo("V100", (7, 0), 1),)), r"compute capability 7\.5 or newer; the V100 has 7\.0"),
    ],
    ids=["no driver", "an old driver", "no GPU", "an old GPU"],
)
def test_what_is_missing_is_named(machine: Machine, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        require_gpu(machine)


def test_a_machine_that_has_all() -> None:
    require_gpu(Machine((13, 1), (H200,)))
