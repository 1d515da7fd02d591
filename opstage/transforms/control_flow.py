"""The ops whose static parameters hold bodies: loops and branches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ..ops.body import Body, Equation
from ..ops.catalogue import primitives
from ..ops.primitive import Kind, Primitive, Static
from .cond import SWITCH
from .remat import REMAT
from .scan import SCAN
from .while_loop import WHILE

CONTROL: frozenset[Primitive] = frozenset({SCAN, SWITCH, WHILE})
"""Recorded programs keep each as one op; its decomposition reads values or runs its body."""


def every_primitive(more: Mapping[str, Primitive] | None = None) -> dict[str, Primitive]:
    """Return Opstage's primitives and `more`, by name."""
    return {**primitives(), **{p.name: p for p in (*CONTROL, REMAT)}, **(more or {})}


def get_bodies(static: Static) -> Iterator[tuple[str, Body]]:
    """Return the bodies among static parameters, by name."""
    for name, value in static.items():
        if isinstance(value, Body):
            yield name, value


def equations_within(static: Static) -> Iterator[Equation]:
    """Return the equations of the bodies among static parameters, each followed by those of its bodies."""
    for _, body in get_bodies(static):
        for equation in body.equations:
            yield equation
            yield from equations_within(equation.static)


def communicates(static: Static) -> bool:
    """Return whether an op with these static parameters has bodies with collectives."""
    return any(e.primitive.kind is Kind.COLLECTIVE for e in equations_within(static))


class Inner(NamedTuple):
    """A body inside another one: the static parameter `name` of an equation there."""

    equation: int
    name: str
    body: Body


def inner_bodies(body: Body) -> list[Inner]:
    """Return the bodies of a body's equations, in order."""
    return [
        Inner(i, name, value)
        for i, equation in enumerate(body.equations)
        if equation.static
        for name, value in equation.static.items()
        if isinstance(value, Body)
    ]
