"""The axes that a cluster's loop goes through: the fewest along which each operand has one stride."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Protocol

from . import views
from .clusters import Cluster, Level
from .views import View


class LoopOperand(Protocol):
    """An operand or result of a loop, under a name in its source."""

    @property
    def name(self) -> str: ...
    @property
    def level(self) -> Level: ...
    @property
    def view(self) -> View: ...


def fewest_axes(
    cluster: Cluster, reads: Sequence[LoopOperand], writes: Sequence[LoopOperand]
) -> tuple[list[int], dict[str, list[int]], int]:
    """Sizes of the axes, outermost first, every operand's strides along them by its name, and how many axes are outer
    ones; the others, usually one, are those of a row's elements, if the cluster has rows.
    """
    extent = cluster.extent
    for operand in writes:
        scale = (extent or 1) if operand.level is Level.ROW else 1
        cuts = [
            c * scale for c in views.suffixes([n for n, _ in views.merged(operand.view.shape, operand.view.strides)])
        ]
        every = views.chain(cluster.cuts, cuts)
        assert every is not None, "a part of a concatenation is packed along its own axes"
        cluster.cuts = every
    cuts = cluster.cuts
    sizes = [b // a for a, b in pairwise(cuts)][::-1]
    inner_count = sum(1 for c in cuts[:-1] if extent is not None and c < extent)
    table: dict[str, list[int]] = {}
    for operand in (*reads, *writes):
        strides = cluster.strides(operand.view, operand.level)
        assert strides is not None
        if operand.level is Level.ROW:
            strides = strides + [0] * inner_count
        table[operand.name] = strides
    border = len(sizes) - inner_count
    outer, inner = _merge(sizes, table, 0, border), _merge(sizes, table, border, len(sizes))
    if extent is None:  # the last axis is the inner one
        outer, inner = outer[:-1], outer[-1:]
    assert len(inner) <= 1 or cluster.lowered.target.broken_rows
    chosen = outer + (inner or [(1, dict.fromkeys(table, 0))])
    return [n for n, _ in chosen], {name: [s[name] for _, s in chosen] for name in table}, len(outer)


def _merge(
    sizes: Sequence[int], table: Mapping[str, Sequence[int]], start: int, stop: int
) -> list[tuple[int, dict[str, int]]]:
    axes: list[tuple[int, dict[str, int]]] = []
    for i in range(start, stop):
        n, strides = sizes[i], {name: s[i] for name, s in table.items()}
        if axes and all(axes[-1][1][name] == s * n for name, s in strides.items()):
            axes[-1] = (axes[-1][0] * n, strides)
        else:
            axes.append((n, strides))
    return axes


def as_written(
    sizes: Sequence[int], table: Mapping[str, Sequence[int]], name: str
) -> tuple[list[int], dict[str, list[int]]]:
    """The axes in the order in which `name` lies in memory; for a loop that may take elements in any order."""
    order = sorted(range(len(sizes)), key=lambda axis: -table[name][axis])
    turned = {name: [strides[axis] for axis in order] for name, strides in table.items()}
    axes = _merge([sizes[axis] for axis in order], turned, 0, len(sizes))
    return [n for n, _ in axes], {name: [s[name] for _, s in axes] for name in table}
