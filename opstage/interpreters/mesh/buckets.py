"""Buckets of gradients: sums over ranks joined to one, begun when it is full, waited for when one of them is read.

A sum over ranks adds element by element in one order, so how many are joined moves no bit. The backward pass goes on
while a bucket is under way. As of PyTorch's DDP (Li et al. 2020), whose buckets are filled in the order of gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

from ...ops.dims import prod
from ...ops.primitive import Static
from ...ops.types import TensorType


@final
class Bucket:
    """Sums of one dtype over one axis.

    begin   (the ranks' joined vectors, the static parameters) -> what gives their sums on each rank
    """

    def __init__(self, ops: Any, static: Static, begin: Callable[[Sequence[Any], Static], Callable[[], Sequence[Any]]]):
        self._ops, self._static, self._begin = ops, static, begin
        self._given: list[Sequence[Any]] = []
        self._types: list[TensorType] = []
        self._finish: Callable[[], Sequence[Any]] | None = None
        self._results: list[tuple[Any, ...]] = []
        self.nbytes = 0

    def add(self, values: Sequence[Any], type_: TensorType) -> int:
        """One more sum of the ranks' values: its number."""
        self._given.append(values)
        self._types.append(type_)
        self.nbytes += int(type_.nbytes)
        return len(self._given) - 1

    @property
    def begun(self) -> bool:
        """Whether it takes no more."""
        return self._finish is not None

    def begin(self) -> None:
        """Begin the sum of all of them."""
        ops = self._ops
        made: dict[tuple[int, ...], Any] = {}
        joined = []
        for each in zip(*self._given):
            key = tuple(map(id, each))
            if key not in made:
                flat = [ops.reshape(x, shape=(int(prod(x.shape)),)) for x in each]
                made[key] = flat[0] if len(flat) == 1 else ops.concat(flat, axis=0)
            joined.append(made[key])
        self._finish = self._begin(joined, self._static)
        self._given = []

    def result(self, number: int) -> tuple[Any, ...]:
        """The sum on each rank."""
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

    def _cut(self, vector: Any) -> list[Any]:
        ops, first, parts = self._ops, 0, []
        for type_ in self._types:
            size = int(prod(type_.shape))
            part = vector if len(self._types) == 1 else ops.slice(vector, axis=0, start=first, length=size)
            parts.append(ops.reshape(part, shape=type_.shape))
            first += size
        return parts
