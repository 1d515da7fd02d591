"""The operands of a cluster that its results may overwrite."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from ....ops.closed import Equation
from ..clusters import Cluster, Level, staged
from ..primitives import ROW_MAX, ROW_SUM
from ..views import View


@final
class Overwritable:
    """Operands that a cluster reads for the last time, with the place of that read: its results may overwrite them."""

    __slots__ = ("_cluster", "_written", "_last")

    def __init__(self, cluster: Cluster, equations: Sequence[Equation]):
        lowered, stage = cluster.lowered, staged(cluster, equations)
        loads: dict[tuple[View, int], int] = {}  # the last equation in a pass that reads an operand
        apart = set()  # roots that are not read elementwise
        for place, e in enumerate(equations):
            at = stage[e.outputs[0]] - (e.primitive in (ROW_SUM, ROW_MAX))
            for view in [lowered.views[s] for s in e.inputs if s not in lowered.literals]:
                if view.root in cluster.levels:
                    continue
                loads.setdefault((view, at), place)
                whole = view.contiguous and view.offset == 0 and view.size == cluster.size
                if cluster.levels[e.outputs[0]] is Level.ROW and e.primitive not in (ROW_SUM, ROW_MAX):
                    whole = False
                if not whole:
                    apart.add(view.root)
        self._cluster = cluster
        self._written = {slot: (stage[slot], place) for place, e in enumerate(equations) for slot in e.outputs}
        self._last: dict[int, tuple[int, int]] = {}  # by root, in order of first reads
        for (view, at), place in loads.items():
            if view.root not in apart:
                self._last[view.root] = max(self._last.get(view.root, (0, 0)), (at, place))

    def by(self, slot: int) -> list[int]:
        """Return the roots whose elements are not read after the loop has written the elements of `slot` at their
        places."""
        if self._cluster.levels[slot] is not Level.ELEMENT:
            return []
        written = self._written[slot]
        return [root for root, last in self._last.items() if last <= written]
