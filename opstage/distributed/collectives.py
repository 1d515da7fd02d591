"""Collectives of ranks, by ops of the interpreter that holds their values, within a process and between several.

Everything except the transfer consists of ops, so compiled programs compile it. All sums over ranks have the order of a
tree: node (level, i) is the sum of the existing ranks among i * 2^level … (i + 1) * 2^level - 1. A process
computes the nodes within it and sends the fewest that cover its ranks. So the bits of a sum depend on the mesh alone,
not on the number of processes, on buckets, or on the transport.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from functools import lru_cache, reduce
from typing import Any, TypeVar, final
from zlib import crc32

import numpy as np

from ..ops.collective import ALL_GATHER, ALL_MAX, ALL_REDUCE, ALL_TO_ALL, REDUCE_SCATTER, SHIFT
from ..ops.dims import prod
from ..ops.primitive import Primitive, Static
from ..ops.types import DType, TensorType, dtype_name, show_shape
from ..transforms.interpreter import BaseInterpreter
from .transport import EXCHANGE, EXCHANGE_START, EXCHANGE_WAIT, Transport, get_handle

# The order of sums ----------------------------------------------------------------------------------------------------

T = TypeVar("T")


def covering(first: int, last: int) -> list[tuple[int, int]]:
    """Return the fewest nodes that cover the ranks first … last - 1."""
    nodes = []
    while first < last:
        level = (last - first).bit_length() - 1
        if first:
            level = min(level, (first & -first).bit_length() - 1)
        nodes.append((level, first >> level))
        first += 1 << level
    return nodes


def node(ranks: int, level: int, i: int, known: Callable[[int, int], T | None], add: Callable[[T, T], T]) -> T:
    """Return the value of a node. `known(level, i)` returns the value of an available node, else None."""
    value = known(level, i)
    if value is not None:
        return value
    assert level > 0, "a rank has no value"
    left, right = node(ranks, level - 1, 2 * i, known, add), 2 * i + 1
    return add(left, node(ranks, level - 1, right, known, add)) if right << (level - 1) < ranks else left


def additions(ranks: int, nodes: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the additions by which `total` makes a sum from nodes that cover the ranks, in order.

    Operands are numbers: first the nodes in their order, then the sums as they are made.
    """
    known = {at: number for number, at in enumerate(nodes)}
    made: list[tuple[int, int]] = []

    def add(a: int, b: int) -> int:
        made.append((a, b))
        return len(known) + len(made) - 1

    total(ranks, lambda *at: known.get(at), add)
    return made


def total(ranks: int, known: Callable[[int, int], T | None], add: Callable[[T, T], T]) -> T:
    """Return the sum over all ranks, the root of the tree; see `node`."""
    return node(ranks, max(0, (ranks - 1).bit_length()), 0, known, add)


# Within a process -----------------------------------------------------------------------------------------------------


def within(ops: Any, primitive: Primitive, xs: Sequence[Any], static: Static) -> Sequence[Any]:
    """Return the result of each rank of one group, by ops on the values that they have."""
    count = len(xs)

    def part(x: Any, dim: int, index: int) -> Any:
        return take_part(ops, x, dim, index, count)

    if primitive is ALL_REDUCE:
        return [_sum(ops, xs)] * count
    if primitive is ALL_MAX:
        return [reduce(ops.maximum, xs)] * count
    if primitive is ALL_GATHER:
        return [ops.concat(xs, axis=static["dim"])] * count
    if primitive is REDUCE_SCATTER:
        return [_sum(ops, [part(x, static["dim"], i) for x in xs]) for i in range(count)]
    if primitive is ALL_TO_ALL:
        return [ops.concat([part(x, static["split"], i) for x in xs], axis=static["join"]) for i in range(count)]
    assert primitive is SHIFT, primitive
    return [xs[(i - static["by"]) % count] for i in range(count)]


def take_part(ops: Any, x: Any, dim: int, index: int, count: int) -> Any:
    """Return the part of a tensor that one of `count` ranks has, which share it equally along an axis."""
    length = x.shape[dim] // count
    return ops.slice(x, axis=dim, start=index * length, length=length)


def _sum(ops: Any, values: Sequence[Any]) -> Any:
    return total(len(values), lambda level, i: None if level else values[i], ops.add)


# Between processes ----------------------------------------------------------------------------------------------------

SMALL = 1 << 14
"""Bytes up to which a sum sends all operands to everyone: one message each, where sending parts needs two."""

Values = dict[int, Any]
Exchange = tuple[Mapping[int, Any], Mapping[int, int], DType, str]
Steps = Generator[Exchange, dict[int, Any], Any]


def exchange_name(primitive: Primitive, axis: str, shape: tuple[int, ...], dtype: DType) -> str:
    """Return the name of an exchange, equal on all participants."""
    return f"{primitive.name} over {axis} of {show_shape(shape)} {dtype_name(dtype)}"


@lru_cache(256)
def _described(types: tuple[TensorType, ...]) -> str:
    description = " ".join(f"{show_shape(type_.shape)} {dtype_name(type_.dtype)}" for type_ in types)
    return f" (inputs {crc32(description.encode()):08x})"


@final
class Crossing:
    """Collectives of `inner` over `transport`, whose processes host `hosted` ranks each.

    program     a description of the current program
    """

    __slots__ = ("inner", "transport", "hosted", "_token", "program")

    def __init__(self, inner: BaseInterpreter[Any], transport: Transport, hosted: int):
        self.inner, self.transport, self.hosted = inner, transport, hosted
        self._token: Any = None
        self.program = ""

    def begin(self, types: Iterable[TensorType]) -> None:
        """Begin a program on inputs of these types, which must be equal on all processes."""
        self._token = None
        if self.transport.processes > 1:
            self.program = _described(tuple(types))

    def within(self, primitive: Primitive, group: Sequence[int], own: Values, static: Static) -> Values:
        """Return the results of one group's hosted ranks from their operands, by index in the group."""
        return self._group(primitive, group, own, static).run()

    def begun(self, primitive: Primitive, group: Sequence[int], own: Values, static: Static) -> Begun:
        """Start what `within` does."""
        return Begun(self, self._group(primitive, group, own, static).steps())

    def _group(self, primitive: Primitive, group: Sequence[int], own: Values, static: Static) -> _Group:
        spread: dict[int, list[int]] = {}
        for index, rank in enumerate(group):
            spread.setdefault(rank // self.hosted, []).append(index)
        mine = spread.pop(self.transport.process)
        return _Group(self, primitive, static, len(group), mine, spread, own)

    def start(self, parts: Mapping[int, Any], sizes: Mapping[int, int], dtype: DType, called: str) -> tuple[Any, Any]:
        """Start what `swap` does; return the pending exchange and a description of the incoming vectors."""
        static = self._static(parts, sizes, dtype, called)
        self._token, pending = self.inner.bind(EXCHANGE_START, (self._token, *parts.values()), static)
        return pending, static["come"]

    def arrived(self, pending: Any, come: Any) -> dict[int, Any]:
        """Wait for an exchange; return the received vectors by process."""
        self._token, *arrived = self.inner.bind(EXCHANGE_WAIT, (self._token, pending), {"come": come})
        return dict(zip([process for process, _, _ in come], arrived, strict=True))

    def _static(self, parts: Mapping[int, Any], sizes: Mapping[int, int], dtype: DType, called: str) -> Static:
        if self._token is None:
            self._token = self.inner.const(0, dtype="int64")
        come = tuple([(process, size, dtype_name(dtype)) for process, size in sizes.items()])
        return {
            "transport": get_handle(self.transport),
            "to": tuple(parts),
            "come": come,
            "called": called + self.program,
        }

    def swap(self, parts: Mapping[int, Any], sizes: Mapping[int, int], dtype: DType, called: str) -> dict[int, Any]:
        """Send a vector to each process of `parts`; return the received vectors, of these sizes, by process."""
        static = self._static(parts, sizes, dtype, called)
        self._token, *arrived = self.inner.bind(EXCHANGE, (self._token, *parts.values()), static)
        return dict(zip(sizes, arrived, strict=True))


@final
class Begun:
    """A pending collective; `finish` returns its results."""

    def __init__(self, crossing: Crossing, steps: Steps):
        self._crossing, self._steps = crossing, steps
        self._pending = crossing.start(*next(steps))

    def finish(self) -> Values:
        """Wait for incoming vectors, and run the exchanges that follow."""
        try:
            while True:
                self._pending = self._crossing.start(*self._steps.send(self._crossing.arrived(*self._pending)))
        except StopIteration as end:
            found: Values = end.value
            return found


@final
class _Group:
    """One collective in one group.

    mine    the group indices hosted by this process; `others` has those of other processes
    own     the values of `mine`
    """

    def __init__(
        self,
        crossing: Crossing,
        primitive: Primitive,
        static: Static,
        count: int,
        mine: list[int],
        others: dict[int, list[int]],
        own: Values,
    ):
        self._ops: Any = crossing.inner
        self._crossing, self._primitive, self._static = crossing, primitive, static
        self._count, self._mine, self._others, self._own = count, mine, others, own
        x = own[mine[0]]
        self._shape: tuple[int, ...] = tuple(x.shape)
        self._dtype = x.dtype
        self._size = int(prod(self._shape))
        self._called = exchange_name(primitive, static["axis"], self._shape, self._dtype)

    def run(self) -> Values:
        steps = self.steps()
        try:
            exchange = next(steps)
            while True:
                exchange = steps.send(self._crossing.swap(*exchange))
        except StopIteration as end:
            found: Values = end.value
            return found

    def steps(self) -> Steps:
        """Return a generator of the collective's exchanges, which receives the incoming vectors of each."""
        rules: dict[Primitive, Callable[[], Steps]] = {
            ALL_REDUCE: self._all_reduce,
            ALL_MAX: self._all_max,
            ALL_GATHER: self._all_gather,
            REDUCE_SCATTER: self._reduce_scatter,
            ALL_TO_ALL: self._all_to_all,
            SHIFT: self._shift,
        }
        return rules[self._primitive]()

    # Vectors ----------------------------------------------------------------------------------------------------------

    def _flat(self, xs: Sequence[Any]) -> Any:
        """Concatenate the elements of tensors."""
        flat = [self._ops.reshape(x, shape=(int(prod(x.shape)),)) for x in xs]
        return flat[0] if len(flat) == 1 else self._ops.concat(flat, axis=0)

    def _cut(self, vector: Any, shape: tuple[int, ...], count: int) -> list[Any]:
        """Split a vector into tensors of one shape."""
        size = int(prod(shape))
        parts = [vector] if count == 1 else [self._piece(vector, i * size, size) for i in range(count)]
        return [self._ops.reshape(part, shape=shape) for part in parts]

    def _piece(self, vector: Any, start: int, length: int) -> Any:
        return self._ops.slice(vector, axis=0, start=start, length=length)

    def _own_part(self, x: Any, dim: int, index: int) -> Any:
        return take_part(self._ops, x, dim, index, self._count)

    # Sums -------------------------------------------------------------------------------------------------------------

    def _nodes(self, leaves: Values) -> dict[tuple[int, int], Any]:
        """Return the tree nodes that cover the hosted ranks, computed from the ranks' values."""
        known = {(0, i): x for i, x in leaves.items()}
        return {
            (level, i): node(self._count, level, i, lambda *at: known.get(at), self._ops.add)
            for level, i in _cover(self._mine)
        }

    def _sum(self, known: Mapping[tuple[int, int], Any]) -> Any:
        return total(self._count, lambda *at: known.get(at), self._ops.add)

    def _exchange(self, parts: Mapping[int, Any], sizes: Mapping[int, int], more: str = "") -> Exchange:
        return parts, sizes, self._dtype, self._called + more

    def _to_all(self, x: Any, sizes: Mapping[int, int], more: str = "") -> Exchange:
        return self._exchange(dict.fromkeys(self._others, x), sizes, more)

    def _all_reduce(self) -> Steps:
        nodes = self._nodes(self._own)
        covers = {process: _cover(indices) for process, indices in self._others.items()}
        if not covers or len(covers) == 1 or self._size * np.dtype(self._dtype).itemsize <= SMALL:
            flat = self._flat([*nodes.values()])
            come = yield self._exchange(
                dict.fromkeys(self._others, flat), {p: len(c) * self._size for p, c in covers.items()}
            )
            for process, vector in come.items():
                nodes.update(zip(covers[process], self._cut(vector, self._shape, len(covers[process]))))
            return dict.fromkeys(self._mine, self._sum(nodes))
        whole = yield from self._sum_in_parts(nodes, covers)
        return dict.fromkeys(self._mine, whole)

    def _sum_in_parts(self, nodes: Any, covers: Mapping[int, list[tuple[int, int]]]) -> Steps:
        """Let each process sum a part of the elements, then gather the parts: the same traffic as a ring."""
        here = self._crossing.transport.process
        everyone = sorted([here, *covers])
        edges = [self._size * k // len(everyone) for k in range(len(everyone) + 1)]
        bounds = {p: (edges[k], edges[k + 1] - edges[k]) for k, p in enumerate(everyone)}
        flat = {at: self._flat([x]) for at, x in nodes.items()}
        parts = {p: self._flat([self._piece(x, *bounds[p]) for x in flat.values()]) for p in covers}
        length = bounds[here][1]
        come = yield self._exchange(parts, {p: len(cover) * length for p, cover in covers.items()}, ", its parts")
        known = {at: self._piece(x, *bounds[here]) for at, x in flat.items()}
        for process, vector in come.items():
            known.update(zip(covers[process], self._cut(vector, (length,), len(covers[process]))))
        mine = self._sum(known)
        gathered = yield self._exchange(
            dict.fromkeys(self._others, mine), {p: bounds[p][1] for p in covers}, ", its sums"
        )
        whole = self._flat([mine if p == here else gathered[p] for p in everyone])
        return self._ops.reshape(whole, shape=self._shape)

    def _reduce_scatter(self) -> Steps:
        dim = self._static["dim"]
        by_part = [
            self._nodes({i: self._own_part(x, dim, part) for i, x in self._own.items()}) for part in range(self._count)
        ]
        shape = tuple(next(iter(by_part[0].values())).shape)
        parts = {
            process: self._flat([x for index in indices for x in by_part[index].values()])
            for process, indices in self._others.items()
        }
        covers = {process: _cover(indices) for process, indices in self._others.items()}
        each = int(prod(shape)) * len(self._mine)
        come = yield self._exchange(parts, {p: len(cover) * each for p, cover in covers.items()})
        known = {index: dict(by_part[index]) for index in self._mine}
        for process, vector in come.items():
            cover = covers[process]
            tensors = iter(self._cut(vector, shape, len(cover) * len(self._mine)))
            for index in self._mine:
                known[index].update(zip(cover, tensors))
        return {index: self._sum(known[index]) for index in self._mine}

    # Moves ------------------------------------------------------------------------------------------------------------

    def _all_max(self) -> Steps:
        own = reduce(self._ops.maximum, [self._own[i] for i in self._mine])
        come = yield self._to_all(self._flat([own]), dict.fromkeys(self._others, self._size))
        known = {p: self._ops.reshape(x, shape=self._shape) for p, x in come.items()}
        known[self._crossing.transport.process] = own
        return dict.fromkeys(self._mine, reduce(self._ops.maximum, [known[p] for p in sorted(known)]))

    def _all_gather(self) -> Steps:
        come = yield self._to_all(
            self._flat([self._own[i] for i in self._mine]), {p: len(i) * self._size for p, i in self._others.items()}
        )
        known = dict(self._own)
        for process, vector in come.items():
            indices = self._others[process]
            known.update(zip(indices, self._cut(vector, self._shape, len(indices))))
        whole = self._ops.concat([known[i] for i in range(self._count)], axis=self._static["dim"])
        return dict.fromkeys(self._mine, whole)

    def _all_to_all(self) -> Steps:
        split, join = self._static["split"], self._static["join"]
        parts = {i: [self._own_part(x, split, to) for to in range(self._count)] for i, x in self._own.items()}
        shape = tuple(parts[self._mine[0]][0].shape)
        each = int(prod(shape)) * len(self._mine)
        sends = {p: self._flat([parts[a][b] for a in self._mine for b in to]) for p, to in self._others.items()}
        come = yield self._exchange(sends, {p: len(i) * each for p, i in self._others.items()})
        got = {b: {a: parts[a][b] for a in self._mine} for b in self._mine}
        for process, vector in come.items():
            tensors = iter(self._cut(vector, shape, len(self._others[process]) * len(self._mine)))
            for a in self._others[process]:
                for b in self._mine:
                    got[b][a] = next(tensors)
        return {b: self._ops.concat([got[b][a] for a in range(self._count)], axis=join) for b in self._mine}

    def _shift(self) -> Steps:
        by, count = self._static["by"], self._count
        where = {i: process for process, indices in self._others.items() for i in indices}
        sends: dict[int, list[int]] = {}
        comes: dict[int, list[int]] = {}
        for i in self._mine:
            for place, table in (((i + by) % count, sends), ((i - by) % count, comes)):
                if place in where:
                    table.setdefault(where[place], []).append(place)
        parts = {p: self._flat([self._own[(to - by) % count] for to in sorted(places)]) for p, places in sends.items()}
        come = yield self._exchange(parts, {p: len(places) * self._size for p, places in comes.items()})
        known = dict(self._own)
        for process, vector in come.items():
            # ordered by receiving rank
            places = sorted(comes[process], key=lambda place: (place + by) % count)
            known.update(zip(places, self._cut(vector, self._shape, len(places))))
        return {i: known[(i - by) % count] for i in self._mine}


def _cover(indices: Sequence[int]) -> list[tuple[int, int]]:
    return covering(indices[0], indices[-1] + 1)
