"""`Guard`: whether what a recorded program read of Python's state is still what it was."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, final

import numpy as np

from ...ops.errors import SourceLine
from .slots import Bits, CapturedSlot, Names

_SLOT_BYTES = 1000


@final
class Guard:
    """Places that a program read, with what they held."""

    __slots__ = ("slots", "_unchanged")

    def __init__(self, slots: list[CapturedSlot]):
        self.slots = slots
        self._unchanged = _all(slots)

    @property
    def nbytes(self) -> int:
        """About what it keeps: the places with what they held, and arrays, whose elements it has twice."""
        arrays = [slot.held[2] for slot in self.slots if isinstance(slot, Bits)]
        return _SLOT_BYTES * len(self.slots) + 2 * sum(len(bits) for bits in arrays if isinstance(bits, bytes))

    def holds(self) -> bool:
        """Whether a run of the program would read the same. Of most programs that is one expression of Python's."""
        try:
            if self._unchanged():
                return True
        except Exception:  # a name that is gone, a comparison that fails: it is looked at again, one by one
            pass
        if any(not slot.settle() for slot in self.slots):
            return False
        self._unchanged = _all(self.slots)
        return True

    def changed(self) -> list[tuple[str, SourceLine | None]]:
        """The places that hold something else now, and the lines that read them."""
        return [(slot.what, slot.where) for slot in self.slots if not slot.settle()]


def _all(slots: list[CapturedSlot]) -> Callable[[], bool]:
    """A function that checks all slots."""
    if not slots:
        return lambda: True
    names = Names()
    text = " and ".join([slot.check(names) for slot in slots])
    arguments = ", ".join(f"{name}={name}" for name in names.values)  # as defaults they are the fastest to reach
    found: dict[str, Any] = {}
    names.values["__file__"] = __file__  # the framework's: a recording may ask a guard, and is not to read it
    exec(f"def unchanged({arguments}):\n    return {text}", names.values, found)
    unchanged: Callable[[], bool] = found["unchanged"]
    return unchanged


def state_of(generator: Any) -> Any:
    """Where a generator of random numbers stands, comparable by ==."""
    if isinstance(generator, random.SystemRandom):
        return None  # it has none
    if isinstance(generator, random.Random):
        return generator.getstate()
    bits = getattr(generator, "bit_generator", None) or getattr(generator, "_bit_generator", generator)
    return _comparable(bits.state)


def _comparable(state: Any) -> Any:
    if isinstance(state, dict):
        return {key: _comparable(value) for key, value in state.items()}
    return state.tobytes() if isinstance(state, np.ndarray) else state
