"""Lowering of a cluster for the CPU: loops in machine code, one after the other."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import NamedTuple

from ....ops.types import dtype_name
from ...native.pool import workers
from ..clusters import FusionGroup, left_in_memory
from ..lowered import Lowered
from .source import cluster_loop
from .totals import total_loop
from .words import LoweredLoop, address_in

_FEW = 1 << 13
"""Elements; a loop over fewer is not divided among the workers."""


class NativeStep(NamedTuple):
    """A loop in machine code, the workers' together if `parallel`; `group` is the place of what it is a part of."""

    loop: LoweredLoop
    parallel: bool
    group: int


def cluster_steps(
    lowered: Lowered, group: FusionGroup, number: int, read: Mapping[int, set[int]], results: Collection[int]
) -> list[NativeStep]:
    """The loops of a group, a cluster; what other groups `read` of it, and `results`, are left in memory."""
    cluster = group.cluster
    assert cluster is not None
    loop = cluster_loop(cluster, group.equations, left_in_memory(lowered, group, number, read, results))
    parallel = cluster.size >= _FEW and loop.tasks > 1
    steps = [NativeStep(loop, parallel, number)]
    for scratch, slot in loop.totals:
        count = math.prod(lowered.views[slot].shape)
        out = address_in(lowered, lowered.views[slot])
        total = total_loop(scratch, out, count, workers() if parallel else 1, dtype_name(lowered.types[slot].dtype))
        steps.append(NativeStep(total, False, number))
    return steps
