"""The beginning of what a file prints: all of it is read, so that the file never waits, and the rest is dropped."""

from __future__ import annotations

from typing import final

MOST = 64_000
"""Bytes that are kept."""

CHUNK = 1 << 16
"""Bytes that are read at once."""


@final
class Printed:
    """The output of one file so far, of which `text` is the beginning."""

    def __init__(self) -> None:
        self._kept = bytearray()

    def take(self, chunk: bytes) -> None:
        """Keep what there is room for."""
        self._kept += chunk[: MOST - len(self._kept)]

    @property
    def is_full(self) -> bool:
        """Whether more would be dropped."""
        return len(self._kept) >= MOST

    @property
    def text(self) -> str:
        """The beginning, as text."""
        return self._kept.decode(errors="replace")
