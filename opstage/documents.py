"""Plain data from files, with type checks: JSON objects, lists, numbers and texts."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any, final

from .ops.errors import UsageError, brief

LARGEST = 2**53
"""The largest count accepted: not every JSON reader holds larger integers exactly."""

DEEPEST = 50


@final
class Document:
    """A value in a document, and its path there. A value that is not of the requested type is a UsageError."""

    __slots__ = ("value", "where", "advice")

    def __init__(self, value: Any, where: str, advice: str = ""):
        """`where` names the file, and the part of it; `advice` tells the user what to do when the value is wrong."""
        self.value = value
        self.where = where
        self.advice = advice

    @classmethod
    def of(cls, text: str | bytes, where: str, advice: str = "", *, what: str = "JSON") -> Document:
        """Parse JSON text; error messages call the format `what`."""
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{where}: not {what}: {error or type(error).__name__}{_after(advice)}") from error
        if _deeper(value, DEEPEST):
            raise UsageError(f"{where}: nested more than {DEEPEST} deep{_after(advice)}")
        return cls(value, where, advice)

    def __getitem__(self, key: str) -> Document:
        """The value of a required key."""
        if key not in self._object():
            raise self.error(f"there is no {key!r}")
        return self.at(key)

    def get(self, key: str) -> Document | None:
        """The value of a key, None if it is missing or null."""
        return None if self._object().get(key) is None else self.at(key)

    def at(self, key: str) -> Document:
        """The value of an existing key."""
        return Document(self._object()[key], f"{self.where}: {key if len(key) <= 80 else brief(key)}", self.advice)

    def items(self) -> Iterator[tuple[str, Document]]:
        """The keys and values of an object."""
        for key in self._object():
            yield key, self.at(key)

    def elements(self) -> list[Document]:
        """The values of a list."""
        if not isinstance(self.value, list):
            raise self.expected("a list")
        return [Document(value, f"{self.where}[{i}]", self.advice) for i, value in enumerate(self.value)]

    def object(self) -> dict[str, Any]:
        """The object itself, as a dict."""
        return dict(self._object())

    def text(self) -> str:
        """A string."""
        if not isinstance(self.value, str):
            raise self.expected("a string")
        return self.value

    def count(self) -> int:
        """An integer >= 0."""
        if type(self.value) is not int or not 0 <= self.value <= LARGEST:
            raise self.expected("a whole number from 0 on")
        return self.value

    def number(self) -> float:
        """A number; non-finite numbers are written as by `plain_number`."""
        value = self.value
        if isinstance(value, str) and value in _NOT_FINITE:
            return float(value)
        if type(value) is float:
            return value
        if type(value) is int and abs(value) <= LARGEST:
            return float(value)
        raise self.expected("a number")

    def number_or_null(self) -> float | None:
        """A number, or None for null."""
        return None if self.value is None else self.number()

    def expected(self, what: str) -> UsageError:
        """The error for a value of the wrong type, which names the expected one."""
        return self.error(f"expected {what} but found {brief(self.value)}")

    def error(self, what: str) -> UsageError:
        """An error about this value."""
        return UsageError(f"{self.where}: {what}{_after(self.advice)}")

    def _object(self) -> dict[str, Any]:
        if not isinstance(self.value, dict):
            raise self.expected("an object")
        return self.value


def plain_number(value: float) -> float | str:
    """A number in a form that JSON can hold: nan and the infinities become 'nan', 'inf' and '-inf'."""
    return value if math.isfinite(value) else repr(value)


_NOT_FINITE = ("nan", "inf", "-inf")


def _deeper(value: Any, depth: int) -> bool:
    """Whether lists and objects are nested more than `depth` deep."""
    level = [value]
    for _ in range(depth + 1):
        lists = [x for x in level if isinstance(x, list)]
        objects = [x for x in level if isinstance(x, dict)]
        level = [y for x in lists for y in x] + [y for x in objects for y in x.values()]
        if not level:
            return False
    return True


def _after(advice: str) -> str:
    return f"; {advice}" if advice else ""
