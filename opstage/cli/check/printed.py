"""The start of a file's output: all of it is read, so that the file never blocks, and the rest is dropped."""

from __future__ import annotations

from typing import final

MOST = 64_000
"""The number of bytes kept."""

CHUNK = 1 << 16
"""The number of bytes read at once."""


@final
class Printed:
    """The output of one file so far; `text` is its start."""

    def __init__(self) -> None:
        self._kept = bytearray()

    def take(self, chunk: bytes) -> None:
        """Keep as much as fits."""
        self._kept += chunk[: MOST - len(self._kept)]

    @property
    def is_full(self) -> bool:
        """Whether more would be dropped."""
        return len(self._kept) >= MOST

    @property
    def text(self) -> str:
        """The start of the output, as text."""
        return self._kept.decode(errors="replace")
