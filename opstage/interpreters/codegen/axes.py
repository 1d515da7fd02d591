"""The iteration axes of a cluster's loop: the fewest along which each operand has a single stride."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise

from . import views
from .clusters import Cluster, Level
from .loop import IterationSpace, Local, LoopOperand
from .views import View

_Axis = tuple[int, tuple[int, ...]]
"""A size, and the stride of each operand."""


def space_of(cluster: Cluster, stored: Collection[int]) -> IterationSpace:
    """Return the axes and operands of a cluster that stores the values of the slots `stored`."""
    lowered, extent = cluster.lowered, cluster.extent
    written = [slot for slot, level in cluster.levels.items() if slot in stored and level is not Level.COLUMN]
    targets = [(lowered.in_memory(lowered.views[slot]), cluster.levels[slot]) for slot in written]
    for view, level in targets:
        scale = (extent or 1) if level is Level.ROW else 1
        every = views.chain(cluster.cuts, views.borders(view.shape, view.strides, scale))
        assert every is not None, "a part of a concatenation is packed along its own axes"
        cluster.cuts = every
    inner = sum(1 for c in cluster.cuts[:-1] if extent is not None and c < extent)
    steps = []
    for view, level in (*cluster.operands, *targets):
        strides = cluster.strides(view, level)
        assert strides is not None
        steps.append([*strides, *([0] * inner if level is Level.ROW else [])])
    sizes = [b // a for a, b in pairwise(cluster.cuts)][::-1]
    axes = [(n, tuple([s[axis] for s in steps])) for axis, n in enumerate(sizes)]
    border = len(axes) - inner
    outer, within = _merged(axes[:border]), _merged(axes[border:])
    if extent is None:  # the last axis is the inner one
        outer, within = outer[:-1], outer[-1:]
    assert len(within) <= 1 or lowered.target.broken_rows
    axes = [*outer, *(within or [(1, tuple([0] * len(steps)))])]

    def operand(name: str, view: View, level: Level, place: int) -> LoopOperand:
        local = Local(name, lowered.types[view.root].dtype, level)
        return LoopOperand(local, view, tuple([s[place] for _, s in axes]), view.root in lowered.counted)

    reads = {
        (view, level): operand(f"x{i}", lowered.in_memory(view), level, i)
        for i, (view, level) in enumerate(cluster.operands)
    }
    writes = {
        slot: operand(f"y{i}", view, level, len(reads) + i)
        for i, (slot, (view, level)) in enumerate(zip(written, targets))
    }
    return IterationSpace(tuple([n for n, _ in axes]), len(outer), reads, writes)


def _merged(axes: Sequence[_Axis]) -> list[_Axis]:
    """Merge adjacent axes where possible."""
    found: list[_Axis] = []
    for n, strides in axes:
        if found and all(before == s * n for before, s in zip(found[-1][1], strides)):
            found[-1] = (found[-1][0] * n, strides)
        else:
            found.append((n, strides))
    return found


def as_written(space: IterationSpace) -> IterationSpace:
    """Order the axes by the memory order of the first stored result, for a loop that may iterate in any order."""
    if not space.writes:
        return space
    first = next(iter(space.writes.values()))
    order = sorted(range(len(space.sizes)), key=lambda axis: -first.strides[axis])
    operands = space.operands
    axes = _merged([(space.sizes[axis], tuple([o.strides[axis] for o in operands])) for axis in order])
    moved = iter([o._replace(strides=tuple([s[i] for _, s in axes])) for i, o in enumerate(operands)])
    return space._replace(
        sizes=tuple([n for n, _ in axes]),
        reads={key: next(moved) for key in space.reads},
        writes={slot: next(moved) for slot in space.writes},
    )
