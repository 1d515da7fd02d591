"""`InvalidStatic`: the placeholder of a static argument that has no canonical form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from .dims import DimFloat
from .errors import LocatedError, ShapeError


class InvalidStatic(tuple[()]):
    """An empty tuple that carries the reason why an argument is invalid, and the called op."""

    reason: str
    op: str
    error: type[LocatedError]

    def __new__(cls, reason: str, op: str, error: type[LocatedError] = ShapeError) -> InvalidStatic:
        invalid = super().__new__(cls)
        invalid.reason = reason
        invalid.op = op
        invalid.error = error
        return invalid

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other

    def raise_(self) -> NoReturn:
        raise self.error(self.reason, op=self.op)


def raise_invalid(static: Mapping[str, Any]) -> None:
    """Raise the first invalid static parameter, including those in tuples; a symbolic number must be defined."""
    for value in static.values():
        if isinstance(value, tuple):
            _raise_in(value)
        elif isinstance(value, DimFloat):
            value.require_defined()


def _raise_in(value: tuple[Any, ...]) -> None:
    if isinstance(value, InvalidStatic):
        value.raise_()
    for entry in value:
        if isinstance(entry, tuple):
            _raise_in(entry)
