"""Work that goes on beside a device's own stream: exchanges with other GPUs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias, final

Patience: TypeAlias = Callable[[Callable[[], bool]], None]
"""Waits until a function says that work is done, and raises an error where it will never be."""


class Aside(Protocol):
    """Work that is asked for on a stream, and sends so many bytes to other GPUs."""

    sent: int

    def __call__(self, stream: Any, places: Sequence[tuple[int, int]]) -> None:
        """Ask for it: `places` are the address and the bytes of each buffer. Returns before it is done."""
        ...


@final
class PatientEvent:
    """An event of a stream that may wait for another GPU for ever."""

    def __init__(self, event: Any, patience: Patience):
        self._event, self._patience = event, patience

    def sync(self) -> None:
        """Wait for it, as long as there is hope."""
        self._patience(lambda: bool(self._event.is_done))
