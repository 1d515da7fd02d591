"""`Guard`: checks whether the Python state that a recorded program read is unchanged."""

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
    """Places that a program read, with their values at that time."""

    __slots__ = ("slots", "_unchanged")

    def __init__(self, slots: list[CapturedSlot]):
        self.slots = slots
        self._unchanged = _all(slots)

    @property
    def nbytes(self) -> int:
        """The approximate size of what it stores: the places with values, and arrays, stored twice."""
        arrays = [slot.held[2] for slot in self.slots if isinstance(slot, Bits)]
        return _SLOT_BYTES * len(self.slots) + 2 * sum(len(bits) for bits in arrays if isinstance(bits, bytes))

    def holds(self) -> bool:
        """Whether a run of the program would read the same values. For most programs this evaluates one Python
        expression."""
        try:
            if self._unchanged():
                return True
        except Exception:  # a missing name or a failing comparison: check the slots one by one
            pass
        if any(not slot.settle() for slot in self.slots):
            return False
        self._unchanged = _all(self.slots)
        return True

    def changed(self) -> list[tuple[str, SourceLine | None]]:
        """Return the places that have changed, and the lines that read them."""
        return [(slot.what, slot.where) for slot in self.slots if not slot.settle()]


def _all(slots: list[CapturedSlot]) -> Callable[[], bool]:
    """Return a function that checks all slots."""
    if not slots:
        return lambda: True
    names = Names()
    text = " and ".join([slot.check(names) for slot in slots])
    arguments = ", ".join(f"{name}={name}" for name in names.values)  # default arguments are the fastest to access
    found: dict[str, Any] = {}
    names.values["__file__"] = __file__  # the framework's: a recording may ask a guard, and is not to read it
    exec(f"def unchanged({arguments}):\n    return {text}", names.values, found)
    unchanged: Callable[[], bool] = found["unchanged"]
    return unchanged


def state_of(generator: Any) -> Any:
    """Return the state of a random generator, comparable by ==."""
    if isinstance(generator, random.SystemRandom):
        return None  # it has no state
    if isinstance(generator, random.Random):
        return generator.getstate()
    bits = getattr(generator, "bit_generator", None) or getattr(generator, "_bit_generator", generator)
    return _comparable(bits.state)


def _comparable(state: Any) -> Any:
    if isinstance(state, dict):
        return {key: _comparable(value) for key, value in state.items()}
    return state.tobytes() if isinstance(state, np.ndarray) else state
