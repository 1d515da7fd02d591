"""Lowering of a cluster for the CPU: loops in machine code, one after the other."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import NamedTuple

from ....ops.types import dtype_name
from ...native.pool import workers
from ..clusters import Unit, left_in_memory
from ..legal import Legal
from .source import cluster_loop
from .totals import total_loop
from .words import LoweredLoop

_FEW = 1 << 13
"""Elements; a loop over fewer is not divided among the workers."""


class NativeStep(NamedTuple):
    """A loop in machine code, the workers' together if `parallel`; `unit` is the place of what it is a part of."""

    loop: LoweredLoop
    parallel: bool
    unit: int


def cluster_steps(
    legal: Legal, unit: Unit, number: int, read: Mapping[int, set[int]], results: Collection[int]
) -> list[NativeStep]:
    """The loops of a unit, a cluster; what other units `read` of it, and `results`, are left in memory."""
    cluster = unit.cluster
    assert cluster is not None
    loop = cluster_loop(cluster, unit.equations, left_in_memory(legal, unit, number, read, results))
    parallel = cluster.size >= _FEW and loop.tasks > 1
    steps = [NativeStep(loop, parallel, number)]
    for room, slot in loop.totals:
        count = math.prod(legal.views[slot].shape)
        total = total_loop(room, slot, count, workers() if parallel else 1, dtype_name(legal.types[slot].dtype))
        steps.append(NativeStep(total, False, number))
    return steps
