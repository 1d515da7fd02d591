"""The memory limit of compiled programs, and the eviction of the least recently used ones."""

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
"""Bytes of one equation of a graph or plan in Python, with its types, places and addresses; a test measures it."""

_REMEMBERED = 256

Array = npt.NDArray[Any]
V = TypeVar("V")


@final
class Bound:
    """A limit on the bytes of cached programs. The most recently run program is kept whatever its size."""

    __slots__ = ("_text", "_limit", "_dropped", "_warned")

    def __init__(self, limit: str):
        """`limit` is an amount such as "128MiB"."""
        self._text = limit
        self._limit = parse_bytes(limit)
        self._dropped: deque[int] = deque(maxlen=_REMEMBERED)
        self._warned = False

    def keep(
        self,
        entries: OrderedDict[Hashable, V],
        nbytes: Callable[[V], int],
        marks: Callable[[Hashable, V], Iterable[int]],
    ) -> None:
        """Evict the least recently run programs, which come first, until the rest fits the limit.

        `marks` returns numbers that identify evicted programs if they are compiled again.
        """
        taken = sum(map(nbytes, entries.values()))
        while taken > self._limit and len(entries) > 1:
            key, dropped = entries.popitem(last=False)
            taken -= nbytes(dropped)
            self._dropped.extend(marks(key, dropped))

    def compiling(self, mark: int) -> None:
        """Warn, once, if the program being compiled is one that was evicted before."""
        if not self._warned and mark in self._dropped:
            self._warned = True
            message = (
                f"a compiled program came back after it had been dropped, and is compiled again: the programs in use "
                f"take more than option program_memory, {self._text}; give them more, "
                f"Options(program_memory={show_bytes(4 * self._limit).replace(' ', '')!r}), or let batches have fewer "
                "shapes"
            )
            warnings.warn(ProgramWarning(message), stacklevel=2)


def bodies_in(body: Body) -> Iterator[Body]:
    """Yield a body and the bodies of its loops."""
    yield body
    for e in body.equations:
        for value in e.static.values():
            if isinstance(value, Body):
                yield from bodies_in(value)


def kept_bytes(graph: Body, planned: int, constants: Iterable[Array] = ()) -> int:
    """Estimate the bytes that a program keeps: its graph, a plan of `planned` equations or calls, and all constants."""
    bodies = list(bodies_in(graph))
    arrays = [*(np.asarray(constant.value) for body in bodies for constant in body.constants), *constants]
    count = sum(len(body.equations) for body in bodies) + planned
    return _EQUATION * count + sum({id(array): array.nbytes for array in arrays}.values())
