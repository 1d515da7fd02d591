"""`Prepared`: the exchanges of compiled steps, prepared once for all runs of a program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias, final

import numpy as np

from ...ops.catalogue.collective import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER
from ...ops.dims import prod
from ...ops.primitive import Primitive, Static
from ..host import Array
from .hosting import Hosting
from .parts import GatherUnderWay, PreparedExchange, ScatterUnderWay, gather, scatter
from .sums import Sum, SumUnderWay

UNDER_WAY = (SumUnderWay, ScatterUnderWay, GatherUnderWay)

MemberType: TypeAlias = "tuple[tuple[int, ...], str]"
"""The shape and dtype of a member of an exchange."""


@final
class Prepared:
    """The prepared exchanges of the current program of one kind of inputs.

    aloft       the numbers of flights that the current run has begun
    by_meeting  the exchanges of meetings in compiled programs, by the identity of their static parameters
    """

    def __init__(self, hosting: Hosting):
        self._hosting = hosting
        self._program = ""
        self._made: dict[tuple[object, ...], PreparedExchange | None] = {}
        self._axes: dict[str, tuple[int, Sequence[int]]] = {}
        self.aloft: list[int] = []
        self.by_meeting: dict[int, tuple[Static, PreparedExchange | None]] = {}

    def begin(self, program: str) -> None:
        """Begin a program with this description, which the names of exchanges have."""
        if program != self._program:
            self._program = program
            self._made.clear()
            self.by_meeting.clear()

    def begun(
        self, primitive: Primitive, vectors: Sequence[Array], static: Static, sendable: Callable[[Array], Array]
    ) -> Callable[[], Sequence[Array]] | None:
        """Start a collective on the hosted ranks' vectors; return a function that waits for their results.

        `sendable` returns an array that is not overwritten before the end. Returns None if `Crossing` must do it.
        """
        axis: str = static["axis"]
        x = vectors[0]
        exchange = self.of(primitive.name, axis, (static.get("dim", 0),), ((x.shape, x.dtype.str),))
        if exchange is None:
            return None
        sent = {id(vector): sendable(vector) for vector in {id(vector): vector for vector in vectors}.values()}
        under_way = exchange.begin([sent[id(vector)] for vector in vectors])

        def finish() -> Sequence[Array]:
            ranks, firsts = self._along(axis)
            shape = x.shape
            if primitive is REDUCE_SCATTER:
                shape, firsts = (shape[0] // ranks, *shape[1:]), range(len(firsts))
            elif primitive is ALL_GATHER:
                shape = shape[0] * ranks, *shape[1:]
            outs = {number: np.empty(shape, x.dtype) for number in dict.fromkeys(firsts)}
            under_way.end([outs])
            return [outs[number] for number in firsts]

        return finish

    def _along(self, axis: str) -> tuple[int, Sequence[int]]:
        """Return the size of an axis, and the first hosted rank of the group of each."""
        found = self._axes.get(axis)
        if found is None:
            alike: dict[int, int] = {}
            firsts = [alike.setdefault(group, number) for number, group in enumerate(self._hosting.groups(axis))]
            found = self._axes[axis] = self._hosting.mesh.size(axis), firsts
        return found

    def of(self, call: str, axis: str, dims: Sequence[int], types: tuple[MemberType, ...]) -> PreparedExchange | None:
        """Return the exchange for a collective's calls on members of these types; None if `Ranks` must do it.

        `dims` has the axis of each member that is cut or joined.
        """
        key = call, axis, dims, types
        if key not in self._made:
            self._made[key] = self._exchange(call, axis, dims, types)
        return self._made[key]

    def _exchange(
        self, call: str, axis: str, dims: Sequence[int], types: tuple[MemberType, ...]
    ) -> PreparedExchange | None:
        sizes = [int(prod(shape)) for shape, _ in types]
        dtype, program = np.dtype(types[0][1]), self._program
        if min(sizes) == 0:
            return None
        if call == ALL_REDUCE.name and len(types) == 1:
            made = Sum(self._hosting, axis, types[0][0], dtype, program)
            return made if made.sent_whole else None
        if any(dim % max(1, len(shape)) for dim, (shape, _) in zip(dims, types)):
            return None
        if call == REDUCE_SCATTER.name:
            return scatter(self._hosting, axis, sizes, dtype, program)
        return gather(self._hosting, axis, sizes, dtype, program) if call == ALL_GATHER.name else None
