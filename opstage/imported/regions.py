"""Run nodes of an imported graph in regions, one per source module."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, TypeVar

from ..ops.protocol import Ops

Node = TypeVar("Node")


def in_regions(
    ops: Ops[Any], nodes: Sequence[tuple[tuple[str, ...], Node]], run: Callable[[Ops[Any], Node], None], level: int = 0
) -> None:
    """Run nodes in order, with consecutive nodes of one module in one region.

    nodes   pairs of the module's path and the node
    """
    for module, group in groupby(nodes, lambda each: each[0][level] if len(each[0]) > level else None):
        inside = list(group)
        if module is None:
            for _, node in inside:
                run(ops, node)
        else:
            ops.region(module, lambda inner, inside=inside: in_regions(inner, inside, run, level + 1))
