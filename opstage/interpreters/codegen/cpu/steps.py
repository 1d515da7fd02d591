"""Lowering of a cluster for the CPU: a sequence of loops in machine code."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import NamedTuple

from ....ops.types import dtype_name
from ..clusters import FusionGroup, left_in_memory
from ..lowered import Lowered
from .alike import AlikeClusters
from .totals import FEW, total_loop
from .words import LoweredLoop, address_in


class NativeStep(NamedTuple):
    """A loop in machine code, divided among the workers if `parallel`; `group` is the number of its group."""

    loop: LoweredLoop
    parallel: bool
    group: int


def cluster_steps(
    lowered: Lowered,
    group: FusionGroup,
    number: int,
    read: Mapping[int, set[int]],
    results: Collection[int],
    alike: AlikeClusters,
) -> list[NativeStep]:
    """Return the loops of a group that is a cluster; values that other groups `read`, and `results`, are stored."""
    cluster = group.cluster
    assert cluster is not None
    loop = alike.loop(cluster, group.equations, left_in_memory(lowered, group, number, read, results))
    parallel = cluster.size >= FEW and loop.tasks > 1
    steps = [NativeStep(loop, parallel, number)]
    for scratch, slot in loop.totals:
        count = math.prod(lowered.views[slot].shape)
        out = address_in(lowered, lowered.views[slot])
        total = total_loop(scratch, out, count, dtype_name(lowered.types[slot].dtype))
        steps.append(NativeStep(total, False, number))
    return steps
