"""Places from which a program reads a value, and the value: a name, an attribute, the entries of a container.

Each is a Python expression that is true while nothing has changed, so that one function with one expression checks
many. Identity is compared first, which is fast and exact. For another object, numbers and texts are compared by type
and bits, since an equal value may have been assigned.
"""

from __future__ import annotations

import enum
import struct
from abc import abstractmethod
from collections.abc import Callable
from datetime import date, time, timedelta
from decimal import Decimal
from fractions import Fraction
from operator import is_
from pathlib import PurePath
from types import CellType
from typing import Any, Protocol, final

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from ...ops.errors import SourceLine

PLAIN = (
    bool, int, str, bytes, complex, type(None), type(...), range, slice, Fraction, Decimal, PurePath, enum.Enum, date,
    time, timedelta, np.generic, np.dtype,
)  # fmt: skip
"""Types, besides float, with immutable values."""


class Names:
    """The objects in the text of a check, and their names there."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {"is_": is_}
        self._known: dict[int, str] = {}

    def of(self, value: Any) -> str:
        """Return the name of an object."""
        name = self._known.get(id(value))
        if name is None:
            name = self._known[id(value)] = f"v{len(self._known)}"
            self.values[name] = value
        return name


class CapturedSlot(Protocol):
    """A place and its value.

    what, where     for messages: `self.tau`, and the line that reads it
    """

    what: str
    where: SourceLine | None

    @abstractmethod
    def check(self, names: Names) -> str:
        """Return an expression that is true if the same objects are there; an exception means False."""

    @abstractmethod
    def settle(self) -> bool:
        """Whether the current value is equivalent; other objects of equal value are adopted."""


class _Single(CapturedSlot, Protocol):
    """A place with a single value."""

    held: Any

    @abstractmethod
    def read(self) -> Any:
        """Return the current value."""

    @override
    def settle(self) -> bool:
        try:
            now = self.read()
        except Exception:
            return False
        same = same_value(now, self.held)
        if same:
            self.held = now
        return same


@final
class DictEntry(_Single):
    """An entry of a dict with a string key: a global, a name in a module, an attribute in an object's own dict."""

    def __init__(self, of: dict[Any, Any], key: Any, what: str, where: SourceLine | None):
        self.of, self.key, self.what, self.where = of, key, what, where
        self.held = of[key]

    @override
    def read(self) -> Any:
        return self.of[self.key]

    @override
    def check(self, names: Names) -> str:
        return f"{names.of(self.of)}[{self.key!r}] is {names.of(self.held)}"


@final
class Absent(CapturedSlot):
    """A name that a dict does not have: a builtin that no global hides, an attribute that no instance has."""

    def __init__(self, of: dict[str, Any], key: str, what: str, where: SourceLine | None):
        self.of, self.key, self.what, self.where = of, key, what, where

    @override
    def check(self, names: Names) -> str:
        return f"{self.key!r} not in {names.of(self.of)}"

    @override
    def settle(self) -> bool:
        return self.key not in self.of


@final
class Cell(_Single):
    """A variable of an enclosing function."""

    def __init__(self, cell: CellType, what: str, where: SourceLine | None):
        self.cell, self.what, self.where = cell, what, where
        self.held = cell.cell_contents

    @override
    def read(self) -> Any:
        return self.cell.cell_contents

    @override
    def check(self, names: Names) -> str:
        return f"{names.of(self.cell)}.cell_contents is {names.of(self.held)}"


@final
class Attribute(_Single):
    """An attribute as Python resolves it: of an instance, a class, a function."""

    def __init__(self, of: Any, name: str, what: str, where: SourceLine | None):
        self.of, self.name, self.what, self.where = of, name, what, where
        self.held = getattr(of, name)

    @override
    def read(self) -> Any:
        return getattr(self.of, self.name)

    @override
    def check(self, names: Names) -> str:
        return f"{names.of(self.of)}.{self.name} is {names.of(self.held)}"


@final
class Method(_Single):
    """An attribute as a class defines it: a function, a property."""

    def __init__(self, of: type, name: str, what: str, where: SourceLine | None):
        self.of, self.name, self.what, self.where = of, name, what, where
        self._owner = next(base for base in of.__mro__ if name in vars(base))
        self.held = vars(self._owner)[name]

    @override
    def read(self) -> Any:
        return next(vars(base)[self.name] for base in self.of.__mro__ if self.name in vars(base))

    @override
    def check(self, names: Names) -> str:
        shadows = self.of.__mro__[: self.of.__mro__.index(self._owner)]
        first = [f"{self.name!r} not in {names.of(base)}.__dict__" for base in shadows]
        return " and ".join([*first, f"{names.of(self._owner)}.__dict__[{self.name!r}] is {names.of(self.held)}"])


@final
class Computed(_Single):
    """A value that is computed on each read, compared by type and bits."""

    def __init__(self, read: Callable[[], Any], what: str, where: SourceLine | None):
        self._read, self.what, self.where = read, what, where
        self.held = read()

    @override
    def read(self) -> Any:
        return self._read()

    @override
    def check(self, names: Names) -> str:
        return f"{names.of(self.settle)}()"


@final
class Elements(CapturedSlot):
    """The elements of a list, tuple, deque or set, or the keys or values of a dict, in order.

    A set has no defined order, but an unchanged set keeps it.
    """

    def __init__(self, of: Any, what: str, where: SourceLine | None, view: str = ""):
        self.of, self.view, self.what, self.where = of, view, what, where
        self.held = self._now()

    def _now(self) -> tuple[Any, ...]:
        return tuple(getattr(self.of, self.view)() if self.view else self.of)

    @override
    def check(self, names: Names) -> str:
        of, count = names.of(self.of), len(self.held)
        each = f"{of}.{self.view}()" if self.view else of
        return f"len({of}) == {count} and all(map(is_, {each}, {names.of(self.held)}))"

    @override
    def settle(self) -> bool:
        now = self._now()
        same = len(now) == len(self.held) and all(map(same_value, now, self.held))
        if same:
            self.held = now
        return same


@final
class Bits(CapturedSlot):
    """The elements of a NumPy array that can be changed in place, or of another object that exposes its memory."""

    def __init__(self, of: Any, what: str, where: SourceLine | None):
        self.of, self.what, self.where = of, what, where
        self.held = self._now()

    def _now(self) -> tuple[Any, ...]:
        array: npt.NDArray[Any] = np.asarray(self.of)
        return array.shape, array.dtype, tuple(array.flat) if array.dtype == object else array.tobytes()

    @override
    def check(self, names: Names) -> str:
        if not isinstance(self.of, np.ndarray) or self.of.dtype == object:
            return f"{names.of(self.settle)}()"
        of, (shape, dtype, bits) = names.of(self.of), self.held
        kept = f"{of}.shape == {names.of(shape)} and {of}.dtype == {names.of(dtype)}"
        return f"{kept} and {of}.tobytes() == {names.of(bits)}"

    @override
    def settle(self) -> bool:
        same: bool = self._now() == self.held
        return same


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
    if type(a) is float:
        return struct.pack("<d", a) == struct.pack("<d", b)
    if isinstance(a, complex):
        return struct.pack("<2d", a.real, a.imag) == struct.pack("<2d", b.real, b.imag)
    if isinstance(a, np.generic):
        return bool(a.dtype == b.dtype) and a.tobytes() == b.tobytes()
    if type(a) is tuple:
        return len(a) == len(b) and all(map(same_value, a, b))
    return is_plain(a) and bool(a == b)
