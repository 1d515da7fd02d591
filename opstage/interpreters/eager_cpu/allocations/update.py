"""Memory: what optimizers do with one parameter. New values stand beside the old ones."""

from __future__ import annotations

from ....ops.primitive import Primitive
from ..kernels.update import FUSED
from .allocation import Rule, packing

ALLOCATIONS: dict[Primitive, Rule] = {}

FAST_ALLOCATIONS: dict[Primitive, Rule] = dict.fromkeys(FUSED, packing)
