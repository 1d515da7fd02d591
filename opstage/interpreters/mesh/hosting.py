"""`Hosting`: which ranks of a mesh are of this process."""

from __future__ import annotations

from typing import NamedTuple

from ...ops.mesh import Mesh
from .fabric import Fabric
from .processes import require_hosted


class Hosting(NamedTuple):
    """A mesh, and the processes that host its ranks."""

    mesh: Mesh
    fabric: Fabric

    @property
    def ranks(self) -> range:
        """Those that this process hosts."""
        count = require_hosted(self.mesh, self.fabric.processes)
        return range(self.fabric.process * count, (self.fabric.process + 1) * count)

    def along(self, axis: str) -> tuple[int, ...]:
        """Where each of them stands along an axis."""
        return tuple([self.mesh.coordinate(rank, axis) for rank in self.ranks])

    def crosses(self, axis: str) -> bool:
        """Whether ranks along an axis are of several processes, be they of this one: alike on all processes."""
        hosted = len(self.ranks)
        groups = {self.mesh.group(rank, axis) for rank in range(self.mesh.ranks)}
        return any(group[0] // hosted != group[-1] // hosted for group in groups)

    def groups(self, axis: str) -> tuple[int, ...]:
        """The first rank of the group of each of them along an axis: those of one group differ along it alone."""
        return tuple([self.mesh.group(rank, axis)[0] for rank in self.ranks])
