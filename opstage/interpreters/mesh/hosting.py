"""`Hosting`: the ranks of a mesh that a process hosts."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from ...ops.mesh import Mesh
from .fabric import Fabric
from .processes import require_hosted


class RankGroup(NamedTuple):
    """The ranks of a collective, as seen by this process.

    ranks   how many they are; `own` maps the index of each hosted one to its number
    others  the first index of each other process's ranks, and the one after its last
    """

    ranks: int
    own: Mapping[int, int]
    others: Mapping[int, tuple[int, int]]


class Hosting(NamedTuple):
    """A mesh, and the processes that host its ranks."""

    mesh: Mesh
    fabric: Fabric

    @property
    def ranks(self) -> range:
        """The ranks hosted by this process."""
        count = require_hosted(self.mesh, self.fabric.processes)
        return range(self.fabric.process * count, (self.fabric.process + 1) * count)

    def along(self, axis: str) -> tuple[int, ...]:
        """Return the coordinates of hosted ranks along an axis."""
        return tuple([self.mesh.coordinate(rank, axis) for rank in self.ranks])

    def crosses(self, axis: str) -> bool:
        """Return whether any group along an axis spans several processes; equal on all processes."""
        return _crosses(self.mesh, len(self.ranks), axis)

    def groups(self, axis: str) -> tuple[int, ...]:
        """Return the first rank of each hosted rank's group along an axis: a group's ranks differ only in that
        coordinate."""
        return tuple([self.mesh.group(rank, axis)[0] for rank in self.ranks])

    def spread(self, axis: str) -> list[RankGroup]:
        """Return the groups along an axis that have hosted ranks, in one order on all processes."""
        made, here = [], self.ranks
        for group in sorted({self.mesh.group(rank, axis) for rank in here}):
            spread: dict[int, list[int]] = {}
            for index, rank in enumerate(group):
                spread.setdefault(rank // len(here), []).append(index)
            own = {index: group[index] - here[0] for index in spread.pop(self.fabric.process)}
            made.append(RankGroup(len(group), own, {p: (indices[0], indices[-1] + 1) for p, indices in spread.items()}))
        return made


@lru_cache(256)
def _crosses(mesh: Mesh, hosted: int, axis: str) -> bool:
    groups = {mesh.group(rank, axis) for rank in range(mesh.ranks)}
    return any(group[0] // hosted != group[-1] // hosted for group in groups)
