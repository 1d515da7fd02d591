"""Scratch memory of compiled programs on a device."""

from __future__ import annotations

from typing import final

from ...gpu.buffer import Memory
from ...gpu.device import Device


@final
class CudaScratch:
    """One block for all programs of an interpreter, as large as the largest needs: one run at a time has it, and holds
    it, so that it may be trimmed meanwhile.

    runs    how many runs have had it
    """

    __slots__ = ("runs", "_device", "_memory", "__weakref__")

    def __init__(self, device: Device):
        self.runs = 0
        self._device = device
        self._memory: Memory | None = None
        device.add_idle(self)

    def take(self, nbytes: int) -> Memory | None:
        """At least so many bytes for a run that begins; None if it needs none."""
        self.runs += 1
        if nbytes and (self._memory is None or self._memory.nbytes < nbytes):
            self._memory = None  # before there is a larger one
            self._memory = self._device.memory(nbytes)
        return self._memory if nbytes else None

    def trim(self) -> None:
        """Give it back; the next run takes it anew."""
        self._memory = None
