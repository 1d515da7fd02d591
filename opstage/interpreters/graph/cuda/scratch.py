"""Scratch memory of compiled programs on a device."""

from __future__ import annotations

from typing import final

from ...gpu.buffer import Memory
from ...gpu.device import Device


@final
class CudaScratch:
    """One block shared by all programs of an interpreter, as large as the largest needs. One run at a time uses and
    references it, so it may be trimmed meanwhile.

    runs    the number of runs that used it
    """

    __slots__ = ("runs", "_device", "_memory", "__weakref__")

    def __init__(self, device: Device):
        self.runs = 0
        self._device = device
        self._memory: Memory | None = None
        device.add_idle(self)

    def take(self, nbytes: int) -> Memory | None:
        """Return at least `nbytes` for a new run; None if it needs none."""
        self.runs += 1
        if nbytes and (self._memory is None or self._memory.nbytes < nbytes):
            self._memory = None  # release it before a larger one is allocated
            self._memory = self._device.memory(nbytes)
        return self._memory if nbytes else None

    def trim(self) -> None:
        """Release the block; the next run allocates again."""
        self._memory = None
