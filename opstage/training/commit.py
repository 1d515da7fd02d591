"""Commits that an interrupt cannot cut in two."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeAlias

_Handler: TypeAlias = "Callable[[int, FrameType | None], Any]"

_PUT_OFF = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """`with uninterrupted():` puts off SIGINT and SIGTERM until the block is done, so what it changes is changed whole.

    The handler that stood before the block gets the signal right after it; Python's own raises KeyboardInterrupt.
    A signal that no handler in Python hears is left alone: it ends the process or does nothing, and so cuts nothing in
    two. Python delivers signals to the main thread alone, so elsewhere there is nothing to put off.
    """
    before: list[tuple[int, _Handler]] = []
    if threading.current_thread() is threading.main_thread():
        before = [(n, handler) for n in _PUT_OFF if callable(handler := signal.getsignal(n))]
    arrived: dict[int, FrameType | None] = {}
    try:
        for number, _ in before:
            signal.signal(number, arrived.__setitem__)
        yield
    finally:
        _restore(before)
        for number, handler in before:
            if number in arrived:
                handler(number, arrived[number])


def _restore(handlers: list[tuple[int, _Handler]]) -> None:
    """Put every handler back, also where a signal arrives in between and the one just put back raises."""
    if handlers:
        try:
            signal.signal(*handlers[0])
        finally:
            _restore(handlers[1:])
