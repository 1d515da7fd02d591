"""Row values in the source of a CPU kernel."""

from __future__ import annotations

from typing import final

from .memory import KernelMemory, ScopedElements

LANES = 64
"""The number of rows processed side by side, if adjacent rows are adjacent in memory and a row's own elements are
not."""


@final
class RowLocals:
    """Row values as variables or, with `lanes`, as memory with one element per lane."""

    def __init__(self, memory: KernelMemory, lanes: bool):
        self._memory, self._lanes = memory, lanes
        self.places: dict[str, ScopedElements] = {}

    def get(self, name: str) -> str:
        return self._memory.load(self.places[name]) if self._lanes else name

    def set(self, name: str, dtype: str, value: str) -> str:
        """Return a line that assigns to a row value."""
        if not self._lanes:
            return f"{name} = {value}"
        if name not in self.places:
            self.places[name] = self._memory.scratch(f"{name}s", dtype, 8 * LANES, "l")
        return self._memory.store(self.places[name], value)
