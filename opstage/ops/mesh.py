"""`Mesh`: named axes of ranks. A rank is a place in it; a program says what one rank does."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, final

from .errors import UsageError
from .untrusted import brief

MOST_RANKS = 1 << 20
"""Of one mesh; more is a slip of the pen."""


@final
@dataclass(frozen=True)
class Mesh:
    """Axes with their sizes, in order; ranks are numbered from 0 with the last axis fastest.

    A size is an int. In the mesh of a check it may be a name, `data=N`, which stands for every number from 2 on; while
    such a check runs the program, `bound` has put dims in their place.
    """

    axes: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def parse(cls, text: str) -> Mesh:
        """`"data=4,model=2"` or, for a check, `"data=N"`; an empty text is a mesh of one rank.

        Raises UsageError for a text of another form.
        """
        axes: list[tuple[str, Any]] = []
        for part in filter(None, (part.strip() for part in text.split(","))):
            name, equals, size = (each.strip() for each in part.partition("="))
            number = size.isascii() and size.isdigit() and len(size) < 9
            if not (equals and name.isidentifier() and (number or (size.isidentifier() and len(size) < 33))):
                raise UsageError(
                    f"mesh {brief(text)}: {brief(part)} is not an axis; expected name=size, such as data=4"
                )
            if number and int(size) < 1:
                raise UsageError(f"mesh {brief(text)}: axis {name} has {size} ranks; expected at least 1")
            if name in dict(axes):
                raise UsageError(f"mesh {brief(text)}: two axes are called {name}")
            axes.append((name, int(size) if number else size))
        mesh = cls(tuple(axes))
        if not mesh.open and mesh.ranks > MOST_RANKS:
            raise UsageError(f"mesh {brief(text)} has {mesh.ranks:,} ranks; at most {MOST_RANKS:,}")
        return mesh

    @property
    def open(self) -> tuple[str, ...]:
        """The names that stand for sizes, each once."""
        return tuple(dict.fromkeys(size for _, size in self.axes if isinstance(size, str)))

    def bound(self, dim: Callable[[str], Any]) -> Mesh:
        """The same with `dim(name)` for every name that stands for a size."""
        return Mesh(tuple([(axis, dim(size) if isinstance(size, str) else size) for axis, size in self.axes]))

    def require_numbers(self) -> Mesh:
        """This mesh. Raises UsageError where a name stands for a size: that is for checks alone."""
        if self.open:
            raise UsageError(
                f"mesh {self}: {' and '.join(self.open)} may be any number; a run needs one, such as "
                f"{Mesh(tuple([(axis, 2 if isinstance(size, str) else size) for axis, size in self.axes]))}, and names "
                "of sizes are for opstage check"
            )
        return self

    @property
    def is_alone(self) -> bool:
        """Whether it is one rank."""
        return not self.open and self.ranks == 1

    def size(self, axis: str) -> Any:
        """How many ranks stand along an axis; 1 for an axis that the mesh has not."""
        return dict(self.axes).get(axis, 1)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the axes."""
        return tuple(name for name, _ in self.axes)

    @property
    def ranks(self) -> int:
        """How many there are in all."""
        return math.prod(size for _, size in self.require_numbers().axes)

    def coordinate(self, rank: int, axis: str) -> int:
        """Where a rank stands along an axis."""
        place: int = rank // self._stride(axis) % self.size(axis)
        return place

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
