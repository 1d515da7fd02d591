"""The base class for printing loops as source text, shared by all targets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from .formulas import FORMULAS, Constants
from .loop import Accumulation, Accumulator, Assign, Literal, Load, Local, Place, Statement, Store, Value


def indented(lines: Sequence[str], depth: int = 1) -> list[str]:
    return ["    " * depth + line for line in lines]


def from_memory(element: str, *, mask: bool) -> str:
    """Load an element; elements of masks are bytes in memory."""
    return f"({element} != 0)" if mask else element


def to_memory(value: str, *, mask: bool) -> str:
    """Convert a value to its representation in memory."""
    return f"uint8(1 if {value} else 0)" if mask else value


class LoopPrinter(ABC):
    """Prints statements as lines. Constants of formulas are in `constants`; sizes and strides are kernel arguments."""

    def __init__(self, constants: Constants):
        self.constants = constants

    @abstractmethod
    def number(self, value: int) -> str:
        """Return the name of an argument with this value."""

    @abstractmethod
    def divided(self, dividend: str, divisor: str) -> tuple[str, str]:
        """Return the quotient and remainder of two nonnegative numbers."""

    def get(self, local: Local) -> str:
        """Return the value of a local: a variable with its name."""
        return local.name

    def set(self, local: Local, value: str) -> str:
        """Return a line that assigns to a local."""
        return f"{local.name} = {value}"

    @abstractmethod
    def load(self, place: Place) -> str:
        """Return an expression that loads an element."""

    @abstractmethod
    def store(self, place: Place, value: str) -> list[str]: ...

    @abstractmethod
    def noted(self, outside: str) -> list[str]:
        """Return lines that report an index out of range if `outside` holds."""

    @abstractmethod
    def accumulate(self, accumulator: Accumulator, value: str) -> list[str]: ...

    def value(self, value: Value) -> str:
        return self.constants(value.value, value.dtype) if isinstance(value, Literal) else self.get(value)

    def lines(self, statements: Sequence[Statement]) -> list[str]:
        found: list[str] = []
        for statement in statements:
            found += self._lines(statement)
        return found

    def _lines(self, s: Statement) -> list[str]:
        if isinstance(s, Assign):
            return [self.set(s.local, self._formula(s))]
        if isinstance(s, Load):
            return [self.set(s.local, self.load(s.place))]
        if isinstance(s, Store):
            return self.store(s.place, self.get(s.local))
        if isinstance(s, Accumulation):
            return self.accumulate(s.accumulator, self.value(s.value))
        index, size = self.value(s.position), self.number(s.size)
        return [*self.noted(f"{index} < 0 or {index} >= {size}"), self.set(s.local, self.value(s.value))]

    def _formula(self, s: Assign) -> str:
        args = tuple(map(self.value, s.args))
        return FORMULAS[s.equation.primitive](self.constants, s.out, s.ins, args, s.equation.static)

    def coordinates(self, of: str, sizes: Sequence[int], name: str = "i") -> tuple[list[str], list[str]]:
        """Return lines that decompose the index `of` into coordinates along axes of these sizes, and the coordinates'
        names."""
        if len(sizes) <= 1:
            return [], [of] * len(sizes)
        lines, rest = [], of
        places = [f"{name}{axis}" for axis in range(len(sizes))]
        for axis in range(len(sizes) - 1, 0, -1):
            quotient, remainder = self.divided(rest, self.number(sizes[axis]))
            lines.append(f"{places[axis]} = {remainder}")
            lines.append(f"{'rest' if axis > 1 else places[0]} = {quotient}")
            rest = "rest"
        return lines, places

    def terms(self, places: Sequence[str], strides: Sequence[int]) -> list[str]:
        """Return the terms of an element's offset in memory."""
        return [p if n == 1 else f"{p} * {self.number(n)}" for p, n in zip(places, strides) if n]
