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
"""Recorded programs keep each as one op; its decomposition reads values or runs its body."""


def bodies_of(static: Static) -> Iterator[tuple[str, Body]]:
    """The bodies among static parameters, by name."""
    for name, value in static.items():
        if isinstance(value, Body):
            yield name, value


class Inner(NamedTuple):
    """A body inside another one: the static parameter `name` of an equation there."""

    equation: int
    name: str
    body: Body


def inner_bodies(body: Body) -> list[Inner]:
    """The bodies of a body's equations, in order."""
    return [
        Inner(i, name, value)
        for i, equation in enumerate(body.equations)
        if equation.static
        for name, value in equation.static.items()
        if isinstance(value, Body)
    ]
