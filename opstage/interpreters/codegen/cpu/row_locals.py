"""The values that a row has once, in the text of a kernel for the CPU."""

from __future__ import annotations

from typing import final

from .memory import KernelMemory, ScopedElements

LANES = 64
"""Rows that are gone through side by side where their first elements are neighbours, and so on, but not their own."""


@final
class RowLocals:
    """Variables, or with `lanes` memory in which those of the rows in lanes lie side by side."""

    def __init__(self, memory: KernelMemory, lanes: bool):
        self._memory, self._lanes = memory, lanes
        self.places: dict[str, ScopedElements] = {}

    def get(self, name: str) -> str:
        return self._memory.load(self.places[name]) if self._lanes else name

    def set(self, name: str, dtype: str, value: str) -> str:
        """A line that gives one its value."""
        if not self._lanes:
            return f"{name} = {value}"
        if name not in self.places:
            self.places[name] = self._memory.scratch(f"{name}s", dtype, 8 * LANES, "l")
        return self._memory.store(self.places[name], value)
