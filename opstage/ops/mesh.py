"""`Mesh`: named axes of ranks. A rank is a place in it; a program says what one rank does."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import final

from .errors import UsageError
from .untrusted import brief

MOST_RANKS = 1 << 20
"""Of one mesh; more is a slip of the pen."""


@final
@dataclass(frozen=True)
class Mesh:
    """Axes with their sizes, in order; ranks are numbered from 0 with the last axis fastest."""

    axes: tuple[tuple[str, int], ...] = ()

    @classmethod
    def parse(cls, text: str) -> Mesh:
        """`"data=4,model=2"`; an empty text is a mesh of one rank. Raises UsageError for a text of another form."""
        axes: list[tuple[str, int]] = []
        for part in filter(None, (part.strip() for part in text.split(","))):
            name, equals, size = (each.strip() for each in part.partition("="))
            if not (equals and name.isidentifier() and size.isascii() and size.isdigit() and len(size) < 9):
                raise UsageError(f"mesh {brief(text)}: {brief(part)} is no axis; expected name=size, such as data=4")
            if int(size) < 1:
                raise UsageError(f"mesh {brief(text)}: axis {name} has {size} ranks; expected at least 1")
            if name in dict(axes):
                raise UsageError(f"mesh {brief(text)}: two axes are called {name}")
            axes.append((name, int(size)))
        mesh = cls(tuple(axes))
        if mesh.ranks > MOST_RANKS:
            raise UsageError(f"mesh {brief(text)} has {mesh.ranks:,} ranks; at most {MOST_RANKS:,}")
        return mesh

    def size(self, axis: str) -> int:
        """How many ranks stand along an axis; 1 for an axis that the mesh has not."""
        return dict(self.axes).get(axis, 1)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the axes."""
        return tuple(name for name, _ in self.axes)

    @property
    def ranks(self) -> int:
        """How many there are in all."""
        return math.prod(size for _, size in self.axes)

    def coordinate(self, rank: int, axis: str) -> int:
        """Where a rank stands along an axis."""
        return rank // self._stride(axis) % self.size(axis)

    def group(self, rank: int, axis: str) -> tuple[int, ...]:
        """The ranks that differ from `rank` along the axis alone, by their places on it."""
        stride = self._stride(axis)
        first = rank - self.coordinate(rank, axis) * stride
        return tuple(first + i * stride for i in range(self.size(axis)))

    def _stride(self, axis: str) -> int:
        """The distance between two neighbours along an axis, in numbers of ranks."""
        names = self.names
        behind = self.axes[names.index(axis) + 1 :] if axis in names else ()
        return math.prod(size for _, size in behind)

    def __str__(self) -> str:
        return ",".join(f"{name}={size}" for name, size in self.axes)


ALONE = Mesh()
"""The mesh of one rank and no axis: every collective over it is its operand."""


@lru_cache(maxsize=64)
def mesh_of(text: str) -> Mesh:
    """`Mesh.parse`, remembered."""
    return Mesh.parse(text)
