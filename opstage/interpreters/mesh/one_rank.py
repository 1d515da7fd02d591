"""`OneRank`: runs a program as if there were a single rank, on top of a mesh."""

from __future__ import annotations

from typing import final

from typing_extensions import override

from ...ops.mesh import ALONE, Mesh
from ..closing import Refs


@final
class OneRank(Refs):
    """Hides the mesh: every collective returns its operand, as is right for programs on whole batches, such as
    prediction."""

    __slots__ = ()

    @property
    @override
    def mesh(self) -> Mesh:
        return ALONE
