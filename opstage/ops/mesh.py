"""`Mesh`: named axes of ranks. A rank is a position in the mesh; a program describes the work of one rank."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, final

from .errors import UsageError, brief

MOST_RANKS = 1 << 20
"""The limit of ranks in a mesh; more is likely a mistake."""


@final
@dataclass(frozen=True)
class Mesh:
    """Named axes with sizes, in order; ranks are numbered from 0 with the last axis fastest.

    A size is an int. In the mesh of a check it may be a name, `data=N`, which stands for every number from 2 on; while
    the check runs the program, `bound` has replaced names by dims.
    """

    axes: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def parse(cls, text: str) -> Mesh:
        """Parse `"data=4,model=2"` or, for a check, `"data=N"`; an empty text is a mesh of one rank.

        Raises UsageError for any other text.
        """
        axes: list[tuple[str, Any]] = []
        for part in filter(None, (part.strip() for part in text.split(","))):
            name, equals, size = (each.strip() for each in part.partition("="))
            number = size.isascii() and size.isdigit() and len(size) < 33
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
        """Return the distinct names of symbolic sizes."""
        return tuple(dict.fromkeys(size for _, size in self.axes if isinstance(size, str)))

    def bound(self, dim: Callable[[str], Any]) -> Mesh:
        """Return the mesh with `dim(name)` for every symbolic size."""
        return Mesh(tuple([(axis, dim(size) if isinstance(size, str) else size) for axis, size in self.axes]))

    def require_numbers(self) -> Mesh:
        """Return the mesh itself. Raises UsageError for symbolic sizes, which are only for checks."""
        if self.open:
            raise UsageError(
                f"mesh {self}: {' and '.join(self.open)} may be any number; a run needs one, such as "
                f"{Mesh(tuple([(axis, 2 if isinstance(size, str) else size) for axis, size in self.axes]))}, and names "
                "of sizes are for opstage check"
            )
        return self

    @property
    def is_alone(self) -> bool:
        """Return whether it has one rank."""
        return not self.open and self.ranks == 1

    def size(self, axis: str) -> Any:
        """Return the number of ranks along an axis; 1 for an axis that the mesh does not have."""
        return dict(self.axes).get(axis, 1)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the axes."""
        return tuple(name for name, _ in self.axes)

    @property
    def ranks(self) -> int:
        """Return the total number of ranks."""
        return math.prod(size for _, size in self.require_numbers().axes)

    def coordinate(self, rank: int, axis: str) -> int:
        """Return a rank's coordinate along an axis."""
        place: int = rank // self._stride(axis) % self.size(axis)
        return place

    def group(self, rank: int, axis: str) -> tuple[int, ...]:
        """Return the ranks that only differ from `rank` in their coordinate along the axis, in order."""
        stride = self._stride(axis)
        first = rank - self.coordinate(rank, axis) * stride
        return tuple(first + i * stride for i in range(self.size(axis)))

    def _stride(self, axis: str) -> int:
        """Return the difference in rank between neighbours along an axis."""
        names = self.names
        behind = self.axes[names.index(axis) + 1 :] if axis in names else ()
        return math.prod(size for _, size in behind)

    def __str__(self) -> str:
        return ",".join(f"{name}={size}" for name, size in self.axes)


ALONE = Mesh()
"""The mesh of one rank and no axis: every collective over it returns its operand."""


@lru_cache(maxsize=64)
def parse_mesh(text: str) -> Mesh:
    """Return `Mesh.parse(text)`, cached."""
    return Mesh.parse(text)
