"""The fixed order of all sums over ranks.

Node (level, i) of the tree is the sum of the existing ranks among i·2^level … (i+1)·2^level - 1. A process computes the
nodes within it and sends the fewest that cover its ranks. So the bits of a sum only depend on the mesh, not on the
number of processes, on buckets, or on the transport.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def covering(first: int, last: int) -> list[tuple[int, int]]:
    """Return the fewest nodes that cover the ranks first … last - 1."""
    nodes = []
    while first < last:
        level = (last - first).bit_length() - 1
        if first:
            level = min(level, (first & -first).bit_length() - 1)
        nodes.append((level, first >> level))
        first += 1 << level
    return nodes


def node(ranks: int, level: int, i: int, known: Callable[[int, int], T | None], add: Callable[[T, T], T]) -> T:
    """Return the value of a node. `known(level, i)` returns the value of an available node, else None."""
    value = known(level, i)
    if value is not None:
        return value
    assert level > 0, "a rank has no value"
    left, right = node(ranks, level - 1, 2 * i, known, add), 2 * i + 1
    return add(left, node(ranks, level - 1, right, known, add)) if right << (level - 1) < ranks else left


def additions(ranks: int, nodes: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the additions by which `total` makes a sum from nodes that cover the ranks, in order.

    Operands are numbers: first the nodes in their order, then the sums as they are made.
    """
    known = {at: number for number, at in enumerate(nodes)}
    made: list[tuple[int, int]] = []

    def add(a: int, b: int) -> int:
        made.append((a, b))
        return len(known) + len(made) - 1

    total(ranks, lambda *at: known.get(at), add)
    return made


def total(ranks: int, known: Callable[[int, int], T | None], add: Callable[[T, T], T]) -> T:
    """Return the sum over all ranks, the root of the tree; see `node`."""
    return node(ranks, max(0, (ranks - 1).bit_length()), 0, known, add)
