"""How much memory compiled programs may keep, and which of them are dropped where they keep more."""

from __future__ import annotations

import warnings
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, TypeVar, final

import numpy as np
import numpy.typing as npt

from ...ops.amounts import parse_bytes, show_bytes
from ...ops.closed import Body
from ...ops.errors import ProgramWarning

_EQUATION = 1100
"""Bytes of an equation of a graph or a plan in Python, with its types, places and addresses; a test measures it."""

_REMEMBERED = 256

Array = npt.NDArray[Any]
V = TypeVar("V")


@final
class Bound:
    """At most so many bytes of programs; the one that ran last is kept whatever it takes."""

    __slots__ = ("_text", "_limit", "_dropped", "_told")

    def __init__(self, limit: str):
        """`limit` is an amount such as "128MiB"."""
        self._text = limit
        self._limit = parse_bytes(limit)
        self._dropped: deque[int] = deque(maxlen=_REMEMBERED)
        self._told = False

    def keep(
        self,
        entries: OrderedDict[Hashable, V],
        nbytes: Callable[[V], int],
        marks: Callable[[Hashable, V], Iterable[int]],
    ) -> None:
        """Drop those that ran longest ago, the first ones, until the others take no more than is allowed.

        `marks` are numbers by which programs are known again that nobody holds.
        """
        taken = sum(map(nbytes, entries.values()))
        while taken > self._limit and len(entries) > 1:
            key, dropped = entries.popitem(last=False)
            taken -= nbytes(dropped)
            self._dropped.extend(marks(key, dropped))

    def compiling(self, mark: int) -> None:
        """A program is compiled; say it aloud, once, where it is one that had been dropped."""
        if not self._told and mark in self._dropped:
            self._told = True
            message = (
                f"a compiled program came back after it had been dropped, and is compiled again: the programs in use "
                f"take more than option program_memory, {self._text}; give them more, "
                f"Options(program_memory={show_bytes(4 * self._limit).replace(' ', '')!r}), or let batches have fewer "
                "shapes"
            )
            warnings.warn(ProgramWarning(message), stacklevel=2)


def bodies_in(body: Body) -> Iterator[Body]:
    """A body, and those of its loops."""
    yield body
    for e in body.equations:
        for value in e.static.values():
            if isinstance(value, Body):
                yield from bodies_in(value)


def kept_bytes(graph: Body, planned: int, constants: Iterable[Array] = ()) -> int:
    """About what a program keeps: the graph, a plan of so many equations or calls, and the constants of both."""
    bodies = list(bodies_in(graph))
    arrays = [*(np.asarray(constant.value) for body in bodies for constant in body.constants), *constants]
    count = sum(len(body.equations) for body in bodies) + planned
    return _EQUATION * count + sum({id(array): array.nbytes for array in arrays}.values())
