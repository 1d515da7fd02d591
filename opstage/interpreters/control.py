"""The ops whose static parameters hold bodies: loops and branches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ..ops.closed import Body
from ..ops.primitive import Primitive, Static
from .branching import SWITCH
from .looping import WHILE
from .structural import SCAN

CONTROL: frozenset[Primitive] = frozenset({SCAN, SWITCH, WHILE})
"""They stay one op where a program is written down; each has a decomposition that reads values or runs its body."""


def bodies_of(static: Static) -> Iterator[tuple[str, Body]]:
    """The bodies among static parameters, by their names."""
    for name, value in static.items():
        if isinstance(value, Body):
            yield name, value


class Inner(NamedTuple):
    """A body within another one: that of the static parameter `name` of an equation there."""

    equation: int
    name: str
    body: Body


def inner_bodies(body: Body) -> list[Inner]:
    """The bodies that the equations of one have, in order."""
    return [
        Inner(i, name, value)
        for i, equation in enumerate(body.equations)
        if equation.static
        for name, value in equation.static.items()
        if isinstance(value, Body)
    ]
