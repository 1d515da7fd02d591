"""Loops of clusters that are alike, printed once: layers of a model differ in their tensors and in nothing else.

Clusters are alike if they are the same after their slots are numbered in the order in which they appear. Then so are
the texts, and the words of a loop differ in the slots of their addresses alone.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from typing import final

from ....ops.closed import Equation
from ....ops.primitive import distinct
from ..clusters import Cluster
from ..views import Cuts, View
from .source import cluster_loop
from .words import Address, LoweredLoop


@final
class AlikeClusters:
    """The loops of a plan's clusters, with numbers in place of slots."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[LoweredLoop, Cuts]] = {}

    def loop(self, cluster: Cluster, equations: Sequence[Equation], stored: Collection[int]) -> LoweredLoop:
        """Return what `cluster_loop` does."""
        numbers: dict[int, int] = {}
        key = _key(cluster, equations, stored, numbers)
        found = self._known.get(key)
        if found is None:
            loop = cluster_loop(cluster, equations, stored)
            self._known[key] = _renamed(loop, numbers), cluster.cuts
            return loop
        loop, cluster.cuts = found
        return _renamed(loop, [*numbers])


def _key(cluster: Cluster, equations: Sequence[Equation], stored: Collection[int], numbers: dict[int, int]) -> Hashable:
    """Return all that a cluster's loop is made from; `numbers` becomes the number of each slot in it."""
    lowered = cluster.lowered
    types, literals, views = lowered.types, lowered.literals, lowered.views

    def number(slot: int) -> int:
        return numbers.setdefault(slot, len(numbers))

    def seen(view: View) -> Hashable:
        memory = lowered.in_memory(view)
        of_memory = number(memory.root), memory[1:], types[memory.root].dtype, memory.root in lowered.counted
        return number(view.root), view[1:], of_memory

    parts: list[Hashable] = [cluster.size, cluster.extent, cluster.columns, cluster.cuts]
    parts += [(seen(view), level) for view, level in cluster.operands]
    parts += [(number(slot), level, slot in stored, seen(views[slot])) for slot, level in cluster.levels.items()]
    for e in equations:
        parts += [e.primitive, *map(number, e.outputs), *map(types.__getitem__, (*e.inputs, *e.outputs))]
        parts += [
            _literal(literals[slot]) if slot in literals else (number(views[slot].root), views[slot][1:])
            for slot in e.inputs
        ]
        parts += [*e.static, *map(type, e.static.values()), *distinct(e.static)]
    return tuple(parts)


def _literal(value: object) -> Hashable:
    """Return a constant so that 0.0 and -0.0, and 1 and True, are told apart."""
    return type(value), repr(value)


def _renamed(loop: LoweredLoop, names: dict[int, int] | Sequence[int]) -> LoweredLoop:
    """Return the loop with other slots."""
    words = tuple([Address(names[w.slot], w.offset) if type(w) is Address else w for w in loop.words])
    return loop._replace(words=words, totals=tuple([(scratch, names[slot]) for scratch, slot in loop.totals]))
