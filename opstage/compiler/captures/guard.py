"""Places from which a program reads a value, and `Guard`, which checks whether the values are still there.

Each place has a Python expression that is true while nothing has changed, so that one function with one expression
checks many. Identity is compared first, which is fast and exact. For another object, numbers and texts are compared by
type and bits, since an equal value may have been assigned.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Callable
from datetime import date, time, timedelta
from decimal import Decimal
from fractions import Fraction
from functools import partial
from operator import contains, getitem, is_
from pathlib import PurePath
from typing import Any, final

import numpy as np
import numpy.typing as npt

from ...ops.errors import SourceLine

PLAIN = (
    bool, int, str, bytes, complex, type(None), type(...), range, slice, Fraction, Decimal, PurePath, enum.Enum, date,
    time, timedelta, np.generic, np.dtype,
)  # fmt: skip
"""Types, besides float, with immutable values."""

_SLOT_BYTES = 1000


@final
class CapturedSlot:
    """A place and its value.

    read    returns the current value; an exception means that nothing is there
    text    the expression that is true while the same objects are there, in which {0}, {1}, … stand for `parts`, {held}
            for the value and {settle} for the method; an exception means False
    parts   the objects of the place, by which and by the text two places are the same
    what, where     for messages: `self.tau`, and the line that reads it
    """

    __slots__ = ("read", "text", "parts", "held", "what", "where")

    held: Any
    what: str
    where: SourceLine | None

    def __init__(self, read: Callable[[], Any], text: str, *parts: Any):
        self.read, self.text, self.parts = read, text, parts

    def settle(self) -> bool:
        """Whether the current value is equivalent; other objects of equal value are adopted."""
        try:
            now = self.read()
        except Exception:
            return False
        same = same_value(now, self.held)
        if same:
            self.held = now
        return same


def entry(of: dict[Any, Any], key: Any) -> CapturedSlot:
    """An entry of a dict: a global, a name in a module, an attribute in an object's own dict."""
    return CapturedSlot(partial(getitem, of, key), "{0}[{1}] is {held}", of, key)


def absent(of: dict[str, Any], key: str) -> CapturedSlot:
    """A name that a dict does not have: a builtin that no global hides, an attribute that no instance has."""
    return CapturedSlot(partial(contains, of, key), "{1} not in {0}", of, key)


def attribute(of: Any, name: str) -> CapturedSlot:
    """An attribute as Python resolves it: of an instance, a class, a function, an enclosing variable's cell."""
    return CapturedSlot(partial(getattr, of, name), f"{{0}}.{name} is {{held}}", of)


def method(of: type, name: str) -> CapturedSlot:
    """An attribute as a class defines it: a function, a property."""

    def read() -> Any:
        return next(vars(base)[name] for base in of.__mro__ if name in vars(base))

    owner = next(i for i, base in enumerate(of.__mro__) if name in vars(base))
    shadows = [f"{name!r} not in {{{i}}}.__dict__" for i in range(owner)]
    text = " and ".join([*shadows, f"{{{owner}}}.__dict__[{name!r}] is {{held}}"])
    return CapturedSlot(read, text, *of.__mro__[: owner + 1])


def computed(read: Callable[[], Any], *place: Any) -> CapturedSlot:
    """A value that is computed on each read, compared by type and bits."""
    return CapturedSlot(read, "{settle}()", *place)


def elements(of: Any, view: str = "") -> CapturedSlot:
    """The elements of a list, tuple, deque or set, or the keys or `values` of a dict, in order.

    A set has no defined order, but an unchanged set keeps it.
    """
    each = f"{{0}}.{view}()" if view else "{0}"
    return CapturedSlot(
        lambda: tuple(getattr(of, view)() if view else of),
        f"len({{0}}) == len({{held}}) and all(map(is_, {each}, {{held}}))",
        of,
    )


def bits(of: Any) -> CapturedSlot:
    """The elements of a NumPy array that can be changed in place, or of another object that exposes its memory."""

    def read() -> tuple[Any, ...]:
        array: npt.NDArray[Any] = np.asarray(of)
        return array.shape, array.dtype, tuple(array.flat) if array.dtype == object else array.tobytes()

    text = "{0}.shape == {held}[0] and {0}.dtype == {held}[1] and {0}.tobytes() == {held}[2]"
    return CapturedSlot(read, text if isinstance(of, np.ndarray) and of.dtype != object else "{settle}()", of)


def at_line(where: SourceLine | None) -> str:
    """A place in a message: ` at model.py:12`, or nothing where it is not known."""
    return f" at {where}" if where is not None else ""


def is_plain(value: Any) -> bool:
    """Whether a value is immutable, and comparable by type and bits."""
    return type(value) is float or isinstance(value, PLAIN)


def same_value(a: Any, b: Any) -> bool:
    """Whether b is equivalent to a: the same object, or a plain value of the same type and bits."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if type(a) is tuple:
        return len(a) == len(b) and all(map(same_value, a, b))
    if type(a) is float or isinstance(a, complex | np.generic):
        one, two = np.asarray(a), np.asarray(b)
        return bool(one.dtype == two.dtype) and one.tobytes() == two.tobytes()
    return is_plain(a) and bool(a == b)


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
        last = [slot.held[-1] for slot in self.slots if type(slot.held) is tuple and slot.held]
        return _SLOT_BYTES * len(self.slots) + 2 * sum(len(each) for each in last if type(each) is bytes)

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
    values: dict[str, Any] = {"is_": is_}
    names: dict[int, str] = {}

    def name_of(value: Any) -> str:
        name = names.setdefault(id(value), f"v{len(names)}")
        values.setdefault(name, value)
        return name

    checks = ["True"]
    for slot in slots:
        settle = name_of(slot.settle) if "{settle}" in slot.text else ""
        checks.append(slot.text.format(*map(name_of, slot.parts), held=name_of(slot.held), settle=settle))
    arguments = ", ".join(f"{name}={name}" for name in values)  # default arguments are the fastest to access
    found: dict[str, Any] = {}
    values["__file__"] = __file__  # the framework's: a recording may ask a guard, and is not to read it
    exec(f"def unchanged({arguments}):\n    return {' and '.join(checks)}", values, found)
    unchanged: Callable[[], bool] = found["unchanged"]
    return unchanged


def generator_state(generator: Any) -> Any:
    """Return the state of a random generator, comparable by ==."""
    if isinstance(generator, random.SystemRandom):
        return None  # it has no state
    if isinstance(generator, random.Random):
        return generator.getstate()
    bit_generator = getattr(generator, "bit_generator", None) or getattr(generator, "_bit_generator", generator)
    return _comparable(bit_generator.state)


def _comparable(state: Any) -> Any:
    if isinstance(state, dict):
        return {key: _comparable(value) for key, value in state.items()}
    return state.tobytes() if isinstance(state, np.ndarray) else state
