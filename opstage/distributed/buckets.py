"""Buckets: sums over ranks, or tensors that are gathered, joined to one, begun when it is full, waited for when one of
them is read.

A sum over ranks adds element by element in one order, so how many are joined moves no bit. The backward pass goes on
while a bucket is under way. As of PyTorch's DDP (Li et al. 2020), whose buckets are filled in the order of gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, final

from ..ops.collective import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER
from ..ops.dims import prod
from ..ops.primitive import Primitive, Static
from ..ops.types import TensorType

BUCKETED = (ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER)
"""The collectives that buckets take."""


class _Member(NamedTuple):
    """A tensor of a bucket: the ranks' values, its type, and the axis along which it is cut or joined."""

    values: Sequence[Any]
    type: TensorType
    dim: int

    @property
    def size(self) -> int:
        """Return the number of its elements."""
        return int(prod(self.type.shape))


@final
class Bucket:
    """Calls of one collective over one axis of `ranks` ranks, on tensors of one dtype.

    begin   (the collective, the ranks' joined vectors, static parameters) -> what gives the result on each rank
    """

    def __init__(
        self,
        ops: Any,
        primitive: Primitive,
        static: Static,
        begin: Callable[[Primitive, Sequence[Any], Static], Callable[[], Sequence[Any]]],
    ):
        self._ops, self._primitive, self._begin = ops, primitive, begin
        self._static = {**static, "dim": 0} if "dim" in static else static
        self._ranks: int = static["size"]
        self._members: list[_Member] = []
        self._finish: Callable[[], Sequence[Any]] | None = None
        self._results: list[tuple[Any, ...]] = []
        self.nbytes = 0

    def add(self, values: Sequence[Any], type_: TensorType, static: Static) -> int:
        """Add a call on the ranks' values, and return its number."""
        dim: int = static.get("dim", 0)
        self._members.append(_Member(values, type_, dim % max(1, len(type_.shape))))
        self.nbytes += int(type_.nbytes)
        return len(self._members) - 1

    @property
    def begun(self) -> bool:
        """Return whether it takes no more."""
        return self._finish is not None

    def begin(self) -> None:
        """Begin all of them."""
        made: dict[tuple[int, ...], Any] = {}
        joined = []
        for each in zip(*[member.values for member in self._members]):
            key = tuple(map(id, each))
            if key not in made:
                made[key] = self._pack(each)
            joined.append(made[key])
        self._finish = self._begin(self._primitive, joined, self._static)
        self._members = [member._replace(values=()) for member in self._members]

    def result(self, number: int) -> tuple[Any, ...]:
        """Return the result of a call on each rank."""
        if not self._results:
            if self._finish is None:
                self.begin()
            assert self._finish is not None
            whole, cut = self._finish(), {}
            for vector in whole:
                if id(vector) not in cut:
                    cut[id(vector)] = self._cut(vector)
            self._results = [tuple(each) for each in zip(*[cut[id(vector)] for vector in whole])]
        return self._results[number]

    def _pack(self, xs: Sequence[Any]) -> Any:
        """Return a rank's tensors as one vector; for a sum that is sharded, what goes to one rank after the other."""
        if self._primitive is REDUCE_SCATTER and not self._in_order:
            xs = [
                self._part(x, member.dim, rank) for rank in range(self._ranks) for x, member in zip(xs, self._members)
            ]
        flat = [x if len(x.shape) == 1 else self._ops.reshape(x, shape=(int(prod(x.shape)),)) for x in xs]
        return flat[0] if len(flat) == 1 else self._ops.concat(flat, axis=0)

    @property
    def _in_order(self) -> bool:
        """Return whether the parts of all ranks stand one after the other in a single tensor."""
        return len(self._members) == 1 and self._members[0].dim == 0

    def _part(self, x: Any, dim: int, rank: int) -> Any:
        length = x.shape[dim] // self._ranks
        return self._ops.slice(x, axis=dim, start=rank * length, length=length)

    def _cut(self, vector: Any) -> list[Any]:
        """Return the results of all calls, of the vector of a rank."""
        if self._primitive is ALL_GATHER and self._in_order:
            shape = self._members[0].type.shape
            whole = self._ranks * shape[0], *shape[1:]
            return [vector if len(whole) == 1 else self._ops.reshape(vector, shape=whole)]
        if self._primitive is ALL_GATHER:
            length = sum(member.size for member in self._members)
            each = [self._pieces(vector, rank * length, self._members) for rank in range(self._ranks)]
            return [self._ops.concat(parts, axis=m.dim) for m, *parts in zip(self._members, *each)]
        if self._primitive is REDUCE_SCATTER:
            return self._pieces(vector, 0, [m._replace(type=self._shared(m)) for m in self._members])
        return self._pieces(vector, 0, self._members)

    def _shared(self, member: _Member) -> TensorType:
        shape, dim = member.type.shape, member.dim
        return TensorType((*shape[:dim], shape[dim] // self._ranks, *shape[dim + 1 :]), member.type.dtype)

    def _pieces(self, vector: Any, first: int, members: Sequence[_Member]) -> list[Any]:
        """Return the tensors of these types that a vector contains one after the other."""
        ops, parts = self._ops, []
        for member in members:
            whole = member.size == int(prod(vector.shape))
            part = vector if whole else ops.slice(vector, axis=0, start=first, length=member.size)
            parts.append(part if len(member.type.shape) == 1 else ops.reshape(part, shape=member.type.shape))
            first += member.size
        return parts
